/* SPDX-License-Identifier: Apache-2.0 */
/* published_speed.h: tokens/s of training that others have measured and published, for plans to be compared with. */
#pragma once

#include "gpu/simulate/gpu_catalog.h"

struct published_speed {
    const char *model; /* "Qwen2.5 1.5B" */
    double billions;   /* of parameters; of a mixture of experts, those that are active for a token */
    const char *gpu;   /* gpu_catalog.h's option */
    int gpus;
    double tokens;       /* a second, of all GPUs, in bf16 */
    const char *program; /* "LLM.Q" */
    const char *source;  /* the document that has the figure */
};

/* The one whose GPU, then active parameters, kind and number of GPUs are nearest. */
struct published_speed published_speed_nearest(const struct gpu_model *gpu, double active, bool mixture, int gpus);
