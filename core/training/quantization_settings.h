/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_settings.h: `model.quantization_config` of the run spec, and quantization_config of a config.json: which
 * matrices of the base have 4 or 8 bits. */
#pragma once

#include "core/dtype.h"
#include "core/string_list.h"

#include <stdbool.h>
#include <stdint.h>

enum quantization_method { QUANTIZATION_NONE, QUANTIZATION_NF4, QUANTIZATION_FP8, QUANTIZATION_MXFP4 };

struct quantization_settings {
    enum quantization_method method;
    bool double_quant;        /* NF4: bnb_4bit_use_double_quant */
    enum dtype compute_dtype; /* NF4: bnb_4bit_compute_dtype; DTYPE_COUNT: not set */
    bool has_skip;            /* else `skip` is the default: the heads */
    struct string_list skip;  /* modules that are not quantized: how their names begin or end */
};
