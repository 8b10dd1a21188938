/* model_encoder.h: the keys of BERT's config.json. */
#pragma once

#include "core/model/config_reader.h"

/* Reads what BERT has and other families have not: token types, the norms after the residual, the norm of the
 * embeddings, both forms of GELU, attention that looks both ways. */
void model_encoder_read(struct config_reader *reader, double norm_eps, struct model_desc *desc);

/* Whether `architecture` is a class of transformers whose folder has BERT's weights without a classifier of sequences:
 * BertModel, BertForMaskedLM, BertForPreTraining, … */
bool model_encoder_is_base(const char *architecture);
