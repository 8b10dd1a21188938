/* transformer_block.h: units 1 … L, the blocks: attention and MLP, each with a norm before it. */
#pragma once

#include "gpu/model/transformer_unit.h"

/* `block` counts from 0. The residual stream comes in as the block before it left it, res2 + transformer.delta (block
 * 0: in res1, from the embedding), and is left in the same way. */
enum status block_forward(const struct pass *pass, int64_t block, enum param_pass kind);

/* transformer.dres, the gradient of the residual stream: in place, from that of the block's output to that of its
 * input. */
enum status block_backward(const struct pass *pass, int64_t block);

/* Whether the up matrix's product is run again for the MLP's activation: its GELU is a part of the product. */
bool block_runs_up_again(const struct transformer *t);

/* The arguments of attention without its pointers. */
struct attention_bwd_args attention_bwd_sizes(const struct transformer *t, int64_t block, int64_t M, int32_t num_seqs,
                                              int32_t max_seq);
