/* SPDX-License-Identifier: Apache-2.0 */
/* hf_quantized.h: the quantized matrices of a Hugging Face folder, each of several tensors in its files:
 *
 *   bitsandbytes   NAME (codes), NAME.absmax, .quant_map, .quant_state.bitsandbytes__nf4; with double quantization
 *                  .nested_absmax, .nested_quant_map
 *   FP8            NAME (codes), NAME_scale_inv
 *   MXFP4          NAME_blocks, NAME_scales; of gpt-oss's experts (experts, out, in), where NAME is (experts, in, out)
 */
#pragma once

#include "ckpt/huggingface/huggingface.h"
#include "core/model/stored_base.h"

enum hf_part { HF_CODES, HF_SCALES, HF_NESTED_SCALES, HF_NESTED_MAP, HF_MAP, HF_STATE, HF_PARTS };

enum { HF_MATRIX_NAME_MAX = sizeof(((struct tensor_info *)0)->name) };

/* Where a quantized matrix is. */
struct hf_quantized {
    struct hf_place parts[HF_PARTS];
    struct stored_tensor stored; /* after hf_quantized_open() */
    float offset;                /* the same, of double quantization */
};

/* Whether an entry of a folder with this method is a part of a quantized matrix; if so, names the matrix and the part.
 */
bool hf_quantized_part(enum quantization_method method, const struct safetensors_entry *entry,
                       char matrix[HF_MATRIX_NAME_MAX], enum hf_part *part);

/* Once all entries are known: checks that the matrix is whole, and as the config says. */
enum status hf_quantized_open(struct hf_quantized *quantized, const struct model_desc *desc,
                              const struct tensor_info *tensor, struct hf_files *files, struct error *err);

/* out (in, out) = the values of an expert's matrix in a stack of them. */
enum status hf_quantized_expert(const struct hf_quantized *quantized, const struct tensor_info *stack, int64_t expert,
                                struct hf_files *files, float *out, struct error *err);

/* stored_source.part: a whole part, in the form of stored_base.h. */
enum status hf_quantized_read(const struct hf_quantized *quantized, const struct tensor_info *tensor,
                              enum stored_part part, struct hf_files *files, void *out, struct error *err);
