/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/huggingface/hf_quantized.h"

#include <jansson.h>

struct part_ending {
    enum quantization_method method;
    const char *ending;
    enum hf_part part;
};
static const struct part_ending PART_ENDINGS[] = {
    {QUANTIZATION_NF4, ".nested_absmax", HF_NESTED_SCALES},
    {QUANTIZATION_NF4, ".nested_quant_map", HF_NESTED_MAP},
    {QUANTIZATION_NF4, ".absmax", HF_SCALES},
    {QUANTIZATION_NF4, ".quant_map", HF_MAP},
    {QUANTIZATION_NF4, ".quant_state.bitsandbytes__nf4", HF_STATE},
    {QUANTIZATION_FP8, "_scale_inv", HF_SCALES},
    {QUANTIZATION_MXFP4, "_blocks", HF_CODES},
    {QUANTIZATION_MXFP4, "_scales", HF_SCALES},
};

bool hf_quantized_part(enum quantization_method method, const struct safetensors_entry *entry,
                       char matrix[HF_MATRIX_NAME_MAX], enum hf_part *part)
{
    const size_t length = strlen(entry->name);
    for (const struct part_ending *row = PART_ENDINGS; row < PART_ENDINGS + COUNT_OF(PART_ENDINGS); row++) {
        const size_t kept = length - strlen(row->ending);
        if (row->method != method || !fs_has_suffix(entry->name, row->ending) || kept >= HF_MATRIX_NAME_MAX) continue;
        memcpy(matrix, entry->name, kept);
        matrix[kept] = '\0';
        *part = row->part;
        return true;
    }
    const enum stored_codes codes = method == QUANTIZATION_NF4   ? CODES_U8
                                    : method == QUANTIZATION_FP8 ? CODES_E4M3
                                                                 : CODES_NONE;
    *part = HF_CODES;
    const bool packed = method == QUANTIZATION_NF4 && entry->ndim == 2 && entry->shape[1] == 1; /* in any dtype */
    return codes != CODES_NONE && (entry->codes == codes || packed) &&
           snprintf(matrix, HF_MATRIX_NAME_MAX, "%s", entry->name) < HF_MATRIX_NAME_MAX;
}

static enum status hf_bad_part(const struct hf_quantized *quantized, const struct tensor_info *tensor,
                               enum hf_part part, const char *what, struct error *err)
{
    static const enum quantization_method methods[] = {
        [QUANTIZED_NF4] = QUANTIZATION_NF4, [QUANTIZED_FP8] = QUANTIZATION_FP8, [QUANTIZED_MXFP4] = QUANTIZATION_MXFP4};
    const char *name = "codes";
    for (size_t i = 0; i < COUNT_OF(PART_ENDINGS); i++)
        if (PART_ENDINGS[i].method == methods[quantized->stored.format] && PART_ENDINGS[i].part == part)
            name = PART_ENDINGS[i].ending;
    error_set(err, STATUS_DATA, "'%s': %s (%s)", tensor->name, what, name);
    return error_hint(err, "config.json's quantization_config must be that of the weights");
}

static enum status hf_check_part(const struct hf_quantized *quantized, const struct tensor_info *tensor,
                                 enum hf_part part, int64_t elements, int64_t size, struct error *err)
{
    const struct hf_place *place = &quantized->parts[part];
    const bool halves = part == HF_SCALES && size == 4 && quantized->stored.format == QUANTIZED_FP8 &&
                        place->known_dtype && place->dtype != DTYPE_F32;
    if (!place->found) return hf_bad_part(quantized, tensor, part, "a tensor of the quantized matrix is missing", err);
    if (place->bytes != elements * (halves ? 2 : size) || (size == 4 && !place->known_dtype))
        return hf_bad_part(quantized, tensor, part,
                           "a tensor of the quantized matrix has another size than its shape asks for", err);
    return STATUS_OK;
}

static bool hf_state_is(const json_t *state, const char *key, int64_t wanted)
{
    const json_t *value = json_object_get(state, key);
    return json_is_integer(value) && json_integer_value(value) == wanted;
}

/* bitsandbytes' quant_state: a JSON object as bytes. */
static enum status hf_read_state(struct hf_quantized *quantized, const struct tensor_info *tensor,
                                 struct hf_files *files, struct error *err)
{
    enum { LONGEST = 1 << 16 };
    static const char *const dtypes[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    const struct hf_place *place = &quantized->parts[HF_STATE];
    const struct stored_tensor *stored = &quantized->stored;
    if (!place->found || place->bytes > LONGEST)
        return hf_bad_part(quantized, tensor, HF_STATE, "a tensor of the quantized matrix is missing", err);
    OWNED char *text = memory_alloc((size_t)place->bytes + 1);
    TRY(hf_files_read(files, place, text, err));
    json_auto_t *state = json_loadb(text, (size_t)place->bytes, 0, NULL);
    const char *dtype = json_string_value(json_object_get(state, "dtype"));
    const json_t *offset = json_object_get(state, "nested_offset");
    if (!hf_state_is(state, "blocksize", stored->block) ||
        (stored->nested && (!hf_state_is(state, "nested_blocksize", stored->nested_block) || !json_is_real(offset))))
        return hf_bad_part(quantized, tensor, HF_STATE, "blocks of 64 weights, and of 256 scales, are read", err);
    if (!dtype || strcmp(dtype, dtypes[stored->dtype]) != 0)
        return hf_bad_part(quantized, tensor, HF_STATE, "the weights had another dtype than config.json says (dtype)",
                           err);
    quantized->offset = (float)json_real_value(offset);
    return STATUS_OK;
}

enum status hf_quantized_open(struct hf_quantized *quantized, const struct model_desc *desc,
                              const struct tensor_info *tensor, struct hf_files *files, struct error *err)
{
    const struct stored_settings settings = {.quantization = desc->quantization,
                                             .weights = desc->has_torch_dtype ? desc->torch_dtype : DTYPE_F32};
    struct stored_tensor *stored = &quantized->stored;
    TRY(stored_matrix_check(desc->quantization.method, desc, tensor, err));
    *stored = stored_quantized(tensor, &settings);
    const int64_t scale_size = stored->nested || stored->format == QUANTIZED_MXFP4 ? 1 : (int64_t)sizeof(float);
    TRY(hf_check_part(quantized, tensor, HF_CODES, stored->bytes[STORED_CODES], 1, err));
    TRY(hf_check_part(quantized, tensor, HF_SCALES, stored->bytes[STORED_SCALES] / scale_size, scale_size, err));
    if (stored->nested) {
        TRY(hf_check_part(quantized, tensor, HF_NESTED_SCALES, stored->bytes[STORED_NESTED_SCALES] / 4, 4, err));
        TRY(hf_check_part(quantized, tensor, HF_NESTED_MAP, DYNAMIC_MAP_SIZE, 4, err));
    }
    if (stored->format != QUANTIZED_NF4) return STATUS_OK;
    float map[NF4_VALUES]; /* the values of codes are part of the format */
    TRY(hf_check_part(quantized, tensor, HF_MAP, NF4_VALUES, sizeof *map, err));
    TRY(hf_files_read(files, &quantized->parts[HF_MAP], map, err));
    for (int code = 0; code < NF4_VALUES; code++)
        if (map[code] != nf4_value(code))
            return hf_bad_part(quantized, tensor, HF_MAP, "the values of its codes are not those of nf4", err);
    return hf_read_state(quantized, tensor, files, err);
}

static enum status hf_bad_numbers(const struct tensor_info *tensor, struct error *err)
{
    error_set(err, STATUS_DATA, "tensor '%s' has a NaN or an infinity", tensor->name);
    return error_hint(err, "the file is damaged; take another copy");
}

enum status hf_quantized_read(const struct hf_quantized *quantized, const struct tensor_info *tensor,
                              enum stored_part part, struct hf_files *files, void *out, struct error *err)
{
    static const enum hf_part places[STORED_PARTS] = {HF_CODES, HF_SCALES, HF_NESTED_SCALES, HF_NESTED_MAP};
    const struct hf_place *place = &quantized->parts[places[part]];
    if (part == STORED_OFFSET)
        memcpy(out, &quantized->offset, sizeof quantized->offset);
    else if (place->bytes < quantized->stored.bytes[part])
        TRY(hf_files_values(files, place, 0, place->bytes / 2, out, err)); /* FP8's scales may have 16 bits */
    else
        TRY(hf_files_read(files, place, out, err));
    const struct stored_tensor *stored = &quantized->stored; /* scales are numbers, and so are FP8's codes */
    const int64_t bytes = stored->bytes[part];
    bool finite = true;
    if (part == STORED_CODES)
        for (int64_t i = 0; i < bytes && stored->format == QUANTIZED_FP8; i++)
            finite = finite && (((const uint8_t *)out)[i] & 0x7f) != 0x7f;
    else if (part != STORED_SCALES || !(stored->nested || stored->format == QUANTIZED_MXFP4))
        for (int64_t i = 0; i < bytes / 4; i++) finite = finite && isfinite(((const float *)out)[i]);
    return finite ? STATUS_OK : hf_bad_numbers(tensor, err);
}

enum status hf_quantized_expert(const struct hf_quantized *quantized, const struct tensor_info *stack, int64_t expert,
                                struct hf_files *files, float *out, struct error *err)
{
    const int64_t ins = stack->shape[1], outs = stack->shape[2];
    const struct tensor_info matrix = {.ndim = 2, .shape = {outs, ins, 1}, .numel = ins * outs};
    const struct stored_settings settings = {.quantization.method = QUANTIZATION_MXFP4};
    const struct stored_tensor stored = stored_quantized(&matrix, &settings);
    struct hf_place codes = quantized->parts[HF_CODES], scales = quantized->parts[HF_SCALES];
    OWNED uint8_t *bytes = memory_alloc((size_t)stored.begin[STORED_PARTS]);
    OWNED float *values = memory_alloc((size_t)matrix.numel * sizeof *values);
    codes.bytes = stored.bytes[STORED_CODES];
    codes.begin += expert * codes.bytes;
    scales.bytes = stored.bytes[STORED_SCALES];
    scales.begin += expert * scales.bytes;
    TRY(hf_files_read(files, &codes, bytes, err));
    TRY(hf_files_read(files, &scales, bytes + stored.begin[STORED_SCALES], err));
#pragma omp parallel for
    for (int64_t i = 0; i < outs; i++) {
        stored_values(&matrix, &stored, bytes, i * ins, ins, values + i * ins);
        for (int64_t j = 0; j < ins; j++) out[j * outs + i] = values[i * ins + j];
    }
    return huggingface_not_finite(out, matrix.numel) < matrix.numel ? hf_bad_numbers(stack, err) : STATUS_OK;
}
