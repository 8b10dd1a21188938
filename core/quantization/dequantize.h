/* SPDX-License-Identifier: Apache-2.0 */
/* dequantize.h: from stored matrices (quantized.h) to values: the op's arguments (gpu/ops.h), and its code for CPUs. */
#pragma once

#include "core/dtype.h"
#include "core/quantization/dynamic_map.h"
#include "core/quantization/quantized.h"

/* out = the values of a matrix stored in 4 or 8 bits, rounded to nearest even: to `through`, then to dtype. In 4 bits
 * cols is even, in MXFP4 a multiple of 32. Scales are in the order of the elements: NF4 one for each `block` of all,
 * FP8 and MXFP4 by rows of blocks. NF4 has scales in fp32, or scale_codes into `map`: scale = map[scale_code] ·
 * nested_scale + *offset, product and sum rounded to fp32. */
struct dequantize_args {
    enum dtype dtype;
    enum quantized_format format;
    enum dtype through; /* NF4: the dtype that the weights had; else DTYPE_F32 */
    int64_t rows, cols;
    void *out;            /* dt (rows, cols) */
    const uint8_t *codes; /* (code_bytes): rows · cols, or half of that */
    int64_t code_bytes;
    int64_t block;              /* NF4: even, a power of two */
    const float *scales;        /* (num_scales); NULL: scale_codes */
    const uint8_t *scale_codes; /* (num_scales) of NF4, or MXFP4's exponents; else NULL */
    int64_t num_scales;
    /* of NF4's scale_codes, else NULL */
    const float *nested_scales; /* (num_nested) */
    int64_t num_nested, nested_block;
    const float *map;    /* (DYNAMIC_MAP_SIZE) */
    const float *offset; /* one value */
};

#ifndef __CUDACC__
/* The units in which a matrix can be decoded: blocks of 4-bit codes, rows of FP8. */
int64_t dequantize_count(const struct dequantize_args *args);

/* The elements of a unit; the last one may have less. */
int64_t dequantize_elements(const struct dequantize_args *args);

/* Decodes a unit into `out`. */
void dequantize_unit(const struct dequantize_args *args, int64_t unit, void *out);

/* Decodes units [first, end) into args->out. */
void dequantize_units(const struct dequantize_args *args, int64_t first, int64_t end);
#endif
