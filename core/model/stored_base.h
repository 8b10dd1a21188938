/* SPDX-License-Identifier: Apache-2.0 */
/* stored_base.h: a frozen base that is kept as its folder has it, or in another dtype than that of compute: its frozen
 * units are bytes, and are decoded when they are used.
 *
 *     unit      | tensor | gap | tensor | …              each begins at a multiple of STORED_ALIGN
 *     tensor    | codes | scales | nested scales | map | offset |         the same of its parts; plain: codes only
 *
 * The shard layout counts such a unit in words, each of the size of the compute dtype, so ranks share, gather and copy
 * its bytes as they do elements. A unit whose tensors are all in the compute dtype is stored as elements. */
#pragma once

#include "core/model/tensor_table.h"
#include "core/quantization/dequantize.h"

enum { STORED_ALIGN = 64 };

/* CODES: or plain elements. SCALES: fp32, codes of the map (nested), exponents (MXFP4). The rest: of nested scales. */
enum stored_part { STORED_CODES, STORED_SCALES, STORED_NESTED_SCALES, STORED_MAP, STORED_OFFSET, STORED_PARTS };

struct stored_tensor {
    bool quantized; /* else it is plain: elements of `dtype` */
    bool nested;    /* NF4 with double quantization */
    enum quantized_format format;
    enum dtype dtype;                /* NF4: that the weights had */
    int64_t block, nested_block;     /* NF4 */
    int64_t offset;                  /* bytes from the unit's start */
    int64_t begin[STORED_PARTS + 1]; /* of its parts, bytes from the tensor's start; the last one: its end */
    int64_t bytes[STORED_PARTS];
};

/* Which tensors are quantized, and what the others are. */
struct stored_settings {
    struct quantization_settings quantization;
    enum dtype weights; /* dtype that the weights have, or had before they were quantized */
    enum dtype plain;   /* dtype of tensors that are not quantized */
};

/* Of a run: as the folder is quantized, or as `wanted` (NULL: not). plain: of other tensors. Lists are borrowed. */
struct stored_settings stored_settings_of(const struct model_desc *desc, const struct quantization_settings *wanted,
                                          enum dtype plain);

/* STATUS_USAGE: the matrix cannot be quantized by the method. */
enum status stored_matrix_check(enum quantization_method method, const struct model_desc *desc,
                                const struct tensor_info *matrix, struct error *err);

/* The same, for one of those that the settings quantize. */
enum status stored_base_check(const struct stored_settings *settings, const struct model_desc *desc,
                              const struct tensor_table *table, struct error *err);

/* Whether a name of llm_int8_skip_modules is that of a module. */
bool stored_base_has(const char *key, const struct model_desc *desc, const struct tensor_table *table);

/* Makes bytes of the frozen units that need it. After the table was frozen, before anything is derived from it. */
void stored_base_lay_out(struct tensor_table *table, enum dtype compute, const struct stored_settings *settings);

/* The form of a matrix that the settings quantize. */
struct stored_tensor stored_quantized(const struct tensor_info *tensor, const struct stored_settings *settings);

/* Where the bytes come from. */
struct stored_source {
    void *context;
    /* Elements [first, first + count) of a tensor in fp32. */
    enum status (*values)(void *context, int tensor, int64_t first, int64_t count, float *out, struct error *err);
    /* A whole part of a quantized tensor; NULL: the source has values, which are quantized here. */
    enum status (*part)(void *context, int tensor, enum stored_part part, void *out, struct error *err);
};

/* Bytes [first, first + count) of a stored unit; gaps and what is beyond the end are zeros. Whole words. */
enum status stored_unit_read(const struct tensor_table *table, int unit, const struct stored_source *source,
                             int64_t first, int64_t count, void *out, struct error *err);

/* The whole of a quantized tensor: begin[STORED_PARTS] bytes. */
enum status stored_tensor_read(const struct tensor_info *info, const struct stored_tensor *stored, int tensor,
                               const struct stored_source *source, uint8_t *out, struct error *err);

/* The op that decodes a quantized tensor, whose first byte is `bytes`. */
struct dequantize_args stored_dequantize(const struct tensor_info *info, const struct stored_tensor *stored,
                                         const void *bytes, enum dtype dtype, void *out);

/* Elements [first, first + count) of a quantized tensor. */
void stored_values(const struct tensor_info *info, const struct stored_tensor *stored, const void *bytes, int64_t first,
                   int64_t count, float *out);

/* Whether the frozen tensors of two tables lie in the same places in the same form: two adapters can share them. */
bool stored_base_is_same(const struct tensor_table *a, const struct tensor_table *b);
