/* transformer_embedding.h: unit 0, the token and position embeddings. */
#pragma once

#include "gpu/model/transformer_unit.h"

/* Writes block 0's res1. */
enum status embedding_forward(const struct pass *pass, enum param_pass kind);

/* Adds up the gradients of the embeddings from dres; it needs no parameters. A tied head has already written the token
 * embedding's gradient: this function adds to it. */
enum status embedding_backward(const struct pass *pass);
