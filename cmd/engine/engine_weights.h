/* engine_weights.h: the weights with which a run begins. Their bits depend on neither world size nor ZeRO stage. */
#pragma once

#include "ckpt/checkpoint.h"
#include "cmd/engine/engine.h"

/* Fills this rank's share of the weights: from `checkpoint` if it is not NULL, else from the Hugging Face folder that
 * the spec names, else by initialisation. */
enum status engine_weights_load(struct engine *engine, const struct checkpoint *checkpoint, struct error *err);

/* Reads the headers of the Hugging Face folder that the spec names, if it names one: huggingface_check(). */
enum status engine_weights_check(const struct engine *engine, bool *absent, struct error *err);

/* Collective, after that: turns the loaded shares into the parameters that the ranks compute with. */
enum status engine_weights_spread(struct engine *engine, struct error *err);
