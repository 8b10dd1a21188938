/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_settings.h: the run spec's settings of how the transformer computes. */
#pragma once

#include "core/dtype.h"
#include "core/training/recompute.h"

#include <stdbool.h>

struct transformer_settings {
    enum recompute recompute; /* activation_checkpointing.policy: the activations that backward computes again */
    bool deterministic;       /* false: the backward pass of a GPU's attention may add in any order */
    double label_smoothing;   /* of the loss, in training and evaluation; 0: none */
    enum dtype logits_dtype;  /* DTYPE_F32 or that of parameters (DTYPE_COUNT); the loss is computed in fp32 */
};
