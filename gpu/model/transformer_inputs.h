/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_inputs.h: the inputs of layers (Gemma 4's per-layer inputs). */
#pragma once

#include "gpu/model/transformer_unit.h"

/* In unit 0: from block 0's input to layer_in. Then from the gradients there to those of its tensors, which are added
 * to dres as well. */
void layer_inputs_forward(const struct pass *pass, const struct unit *unit);
void layer_inputs_backward(const struct pass *pass, const struct unit *unit);

/* In a block, after the MLP: from res2 and delta to res3 and delta, which it adds. Then, in dres, from the gradient of
 * their sum to that before; that of the layer's input is written over it. */
void layer_input_add(const struct pass *pass, const struct unit *unit, const struct block_buffers *b);
void layer_input_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b);
