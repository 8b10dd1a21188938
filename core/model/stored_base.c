/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/stored_base.h"

#include "core/memory.h"
#include "core/quantization/nf4.h"
#include "core/round_up.h"

/* ---- which tensors ------------------------------------------------------- */

/* Whether transformers quantizes the tensor: the matrix of a linear layer, no router; to bitsandbytes no expert. */
static bool stored_is_linear(enum quantization_method method, const struct tensor_info *tensor)
{
    return tensor->part == PART_BASE && tensor->ndim == 2 && !role_is_embedding(tensor->role) &&
           tensor->role != ROLE_ROUTER_W && !(method == QUANTIZATION_NF4 && role_is_expert(tensor->role));
}

/* As transformers' should_convert_module, of names that are no regular expressions. */
static bool stored_key_names(const char *key, const struct tensor_info *tensor)
{
    const char *end = strrchr(tensor->name, '.');
    const size_t n = strlen(key), length = end ? (size_t)(end - tensor->name) : strlen(tensor->name);
    return n > 0 && n <= length && (!memcmp(tensor->name, key, n) || !memcmp(tensor->name + length - n, key, n));
}

bool stored_base_has(const char *key, const struct model_desc *desc, const struct tensor_table *table)
{
    bool found = desc->tied && strcmp(key, "lm_head") == 0;
    for (int t = 0; t < table->num_tensors && !found; t++) found = stored_key_names(key, &table->tensors[t]);
    return found;
}

static bool stored_is_skipped(const struct quantization_settings *settings, const struct tensor_info *tensor)
{
    for (int i = 0; i < settings->skip.count; i++)
        if (stored_key_names(settings->skip.items[i], tensor)) return true;
    return !settings->has_skip && (tensor->role == ROLE_LM_HEAD || tensor->role == ROLE_SCORE_W);
}

static bool stored_is_quantized(const struct quantization_settings *settings, const struct tensor_info *tensor)
{
    return settings->method != QUANTIZATION_NONE && !settings->decoded && tensor->frozen &&
           stored_is_linear(settings->method, tensor) && !stored_is_skipped(settings, tensor);
}

struct stored_settings stored_settings_of(const struct model_desc *desc, const struct quantization_settings *wanted,
                                          enum dtype plain)
{
    struct stored_settings settings = {.quantization = desc->quantization,
                                       .weights = desc->has_torch_dtype ? desc->torch_dtype : DTYPE_F32,
                                       .plain = plain};
    if (settings.quantization.method != QUANTIZATION_NONE || !wanted) return settings;
    settings.quantization = *wanted;
    settings.quantization.has_skip = wanted->skip.count > 0;
    return settings;
}

enum status stored_matrix_check(enum quantization_method method, const struct model_desc *desc,
                                const struct tensor_info *matrix, struct error *err)
{
    const int64_t multiple = method == QUANTIZATION_MXFP4 ? MXFP4_BLOCK : method == QUANTIZATION_NF4 ? 2 : 1;
    if (desc->weights_in_out)
        return error_set(err, STATUS_USAGE,
                         "the matrices of %s are (in, out), and are not quantized; hint: another model, or its "
                         "unquantized weights without model.quantization_config",
                         model_family_name(desc->family));
    if (matrix->shape[1] % multiple)
        return error_set(err, STATUS_USAGE, "'%s' has %" PRId64 " columns; in 4 bits they are a multiple of %" PRId64,
                         matrix->name, matrix->shape[1], multiple);
    return STATUS_OK;
}

enum status stored_base_check(const struct stored_settings *settings, const struct model_desc *desc,
                              const struct tensor_table *table, struct error *err)
{
    for (int t = 0; t < table->num_tensors; t++)
        if (stored_is_quantized(&settings->quantization, &table->tensors[t]))
            TRY(stored_matrix_check(settings->quantization.method, desc, &table->tensors[t], err));
    return STATUS_OK;
}

/* ---- layout -------------------------------------------------------------- */

static void stored_begin_parts(struct stored_tensor *stored)
{
    for (int part = 0; part < STORED_PARTS; part++)
        stored->begin[part + 1] = stored->begin[part] + round_up(stored->bytes[part], STORED_ALIGN);
}

struct stored_tensor stored_quantized(const struct tensor_info *tensor, const struct stored_settings *settings)
{
    static const enum quantized_format formats[] = {
        [QUANTIZATION_NF4] = QUANTIZED_NF4, [QUANTIZATION_FP8] = QUANTIZED_FP8, [QUANTIZATION_MXFP4] = QUANTIZED_MXFP4};
    const enum quantized_format format = formats[settings->quantization.method];
    const bool nf4 = format == QUANTIZED_NF4, nested = nf4 && settings->quantization.double_quant;
    struct stored_tensor stored = {.quantized = true,
                                   .nested = nested,
                                   .format = format,
                                   .dtype = nf4 ? settings->weights : DTYPE_F32,
                                   .block = NF4_BLOCK,
                                   .nested_block = NF4_NESTED_BLOCK};
    const int64_t scales = nf4 ? ceil_div(tensor->numel, NF4_BLOCK)
                           : format == QUANTIZED_MXFP4
                               ? tensor->numel / MXFP4_BLOCK
                               : ceil_div(tensor->shape[0], FP8_BLOCK) * ceil_div(tensor->shape[1], FP8_BLOCK);
    stored.bytes[STORED_CODES] = format == QUANTIZED_FP8 ? tensor->numel : tensor->numel / 2;
    stored.bytes[STORED_SCALES] = scales * (nested || format == QUANTIZED_MXFP4 ? 1 : (int64_t)sizeof(float));
    if (nested) {
        stored.bytes[STORED_NESTED_SCALES] = ceil_div(scales, NF4_NESTED_BLOCK) * (int64_t)sizeof(float);
        stored.bytes[STORED_MAP] = DYNAMIC_MAP_SIZE * (int64_t)sizeof(float);
        stored.bytes[STORED_OFFSET] = sizeof(float);
    }
    stored_begin_parts(&stored);
    return stored;
}

static struct stored_tensor stored_plain(const struct tensor_info *tensor, enum dtype dtype)
{
    struct stored_tensor stored = {.dtype = dtype};
    stored.bytes[STORED_CODES] = tensor->numel * (int64_t)dtype_size(dtype);
    stored_begin_parts(&stored);
    return stored;
}

void stored_base_lay_out(struct tensor_table *table, enum dtype compute, const struct stored_settings *settings)
{
    OWNED struct stored_tensor *all = memory_zeroed((size_t)table->num_tensors, sizeof *all);
    bool any = false;
    ASSERT(!table->stored);
    table->word = (int64_t)dtype_size(compute);
    for (int u = tensor_table_trained(table); u < table->num_units; u++) {
        struct unit_info *unit = &table->units[u];
        bool needed = false;
        int64_t bytes = 0;
        for (int t = unit->first_tensor; t < unit->first_tensor + unit->num_tensors; t++) {
            const struct tensor_info *tensor = &table->tensors[t];
            all[t] = stored_is_quantized(&settings->quantization, tensor) ? stored_quantized(tensor, settings)
                                                                          : stored_plain(tensor, settings->plain);
            all[t].offset = bytes;
            bytes += all[t].begin[STORED_PARTS];
            needed = needed || all[t].quantized || all[t].dtype != compute;
        }
        unit->stored_bytes = needed ? bytes : 0;
        any = any || needed;
    }
    if (any) table->stored = TAKEN(all);
}

/* ---- reading ------------------------------------------------------------- */

enum { STORED_PIECE = 1 << 18 }; /* elements at a time; whole blocks */

static enum status stored_quantize(const struct tensor_info *info, const struct stored_tensor *stored, int tensor,
                                   const struct stored_source *source, uint8_t *out, struct error *err)
{
    const int64_t blocks = ceil_div(info->numel, stored->block);
    uint8_t *codes = out + stored->begin[STORED_CODES], *scale_codes = out + stored->begin[STORED_SCALES];
    OWNED float *piece = memory_alloc(STORED_PIECE * sizeof *piece);
    OWNED float *apart = stored->nested ? memory_alloc((size_t)blocks * sizeof *apart) : NULL;
    float *scales = apart ? apart : (void *)scale_codes, *map = (void *)(out + stored->begin[STORED_MAP]);
    ASSERT(stored->format == QUANTIZED_NF4 && stored->block == NF4_BLOCK && stored->nested_block == NF4_NESTED_BLOCK);
    for (int64_t at = 0; at < info->numel; at += STORED_PIECE) {
        const int64_t n = min64(info->numel - at, STORED_PIECE);
        TRY(source->values(source->context, tensor, at, n, piece, err));
        for (int64_t i = 0; i < n; i++) piece[i] = dtype_rounded(piece[i], stored->dtype);
        nf4_encode(piece, n, at + n == info->numel, codes + at / 2, scales + at / NF4_BLOCK);
    }
    if (stored->nested) {
        dynamic_map_signed(map);
        nf4_encode_scales(scales, blocks, map, (void *)(out + stored->begin[STORED_OFFSET]), scale_codes,
                          (void *)(out + stored->begin[STORED_NESTED_SCALES]));
    }
    return STATUS_OK;
}

enum status stored_tensor_read(const struct tensor_info *info, const struct stored_tensor *stored, int tensor,
                               const struct stored_source *source, uint8_t *out, struct error *err)
{
    ASSERT(stored->quantized);
    memset(out, 0, (size_t)stored->begin[STORED_PARTS]);
    if (!source->part) return stored_quantize(info, stored, tensor, source, out, err);
    for (int part = 0; part < STORED_PARTS; part++)
        if (stored->bytes[part])
            TRY(source->part(source->context, tensor, (enum stored_part)part, out + stored->begin[part], err));
    return STATUS_OK;
}

/* Elements of a plain tensor. */
static enum status stored_read_plain(const struct stored_tensor *stored, int tensor, const struct stored_source *source,
                                     int64_t first, int64_t count, uint8_t *out, struct error *err)
{
    OWNED float *piece = stored->dtype == DTYPE_F32 ? NULL : memory_alloc(STORED_PIECE * sizeof *piece);
    for (int64_t at = 0; at < count; at += STORED_PIECE) {
        const int64_t n = min64(count - at, STORED_PIECE);
        void *to = out + at * (int64_t)dtype_size(stored->dtype);
        TRY(source->values(source->context, tensor, first + at, n, piece ? piece : to, err));
        for (int64_t i = 0; piece && i < n; i++) dtype_store(to, i, piece[i], stored->dtype);
    }
    return STATUS_OK;
}

enum status stored_unit_read(const struct tensor_table *table, int unit, const struct stored_source *source,
                             int64_t first, int64_t count, void *out, struct error *err)
{
    const struct unit_info *info = &table->units[unit];
    memset(out, 0, (size_t)count);
    for (int t = info->first_tensor; t < info->first_tensor + info->num_tensors; t++) {
        const struct stored_tensor *stored = &table->stored[t];
        const int64_t size = stored->quantized ? 1 : (int64_t)dtype_size(stored->dtype);
        const int64_t end = stored->quantized ? stored->begin[STORED_PARTS] : stored->bytes[STORED_CODES];
        const int64_t from = max64(first - stored->offset, 0), to = min64(first + count - stored->offset, end);
        uint8_t *at = (uint8_t *)out + (stored->offset + from - first);
        if (from >= to) continue;
        if (!stored->quantized) {
            TRY(stored_read_plain(stored, t, source, from / size, (to - from) / size, at, err));
            continue;
        }
        OWNED uint8_t *whole = memory_alloc((size_t)end);
        TRY(stored_tensor_read(&table->tensors[t], stored, t, source, whole, err));
        memcpy(at, whole + from, (size_t)(to - from));
    }
    return STATUS_OK;
}

struct dequantize_args stored_dequantize(const struct tensor_info *info, const struct stored_tensor *stored,
                                         const void *bytes, enum dtype dtype, void *out)
{
    const uint8_t *tensor = bytes, *scales = tensor + stored->begin[STORED_SCALES];
    const bool codes = stored->nested || stored->format == QUANTIZED_MXFP4;
    struct dequantize_args args = {.dtype = dtype,
                                   .format = stored->format,
                                   .through = stored->dtype,
                                   .rows = info->shape[0],
                                   .cols = info->shape[1],
                                   .out = out,
                                   .codes = tensor + stored->begin[STORED_CODES],
                                   .code_bytes = stored->bytes[STORED_CODES],
                                   .block = stored->block,
                                   .scales = codes ? NULL : (const void *)scales,
                                   .scale_codes = codes ? scales : NULL,
                                   .num_scales = stored->bytes[STORED_SCALES] / (codes ? 1 : (int64_t)sizeof(float))};
    if (stored->nested) {
        args.nested_scales = (const void *)(tensor + stored->begin[STORED_NESTED_SCALES]);
        args.num_nested = stored->bytes[STORED_NESTED_SCALES] / (int64_t)sizeof(float);
        args.nested_block = stored->nested_block;
        args.map = (const void *)(tensor + stored->begin[STORED_MAP]);
        args.offset = (const void *)(tensor + stored->begin[STORED_OFFSET]);
    }
    return args;
}

void stored_values(const struct tensor_info *info, const struct stored_tensor *stored, const void *bytes, int64_t first,
                   int64_t count, float *out)
{
    const struct dequantize_args args = stored_dequantize(info, stored, bytes, DTYPE_F32, NULL);
    const int64_t unit = dequantize_elements(&args);
    OWNED float *values = memory_alloc((size_t)unit * sizeof *values);
    for (int64_t at = first; at < first + count;) { /* units that the range has a part of */
        const int64_t begin = at / unit * unit, end = min64(begin + unit, first + count);
        dequantize_unit(&args, at / unit, values);
        memcpy(out + (at - first), values + (at - begin), (size_t)(end - at) * sizeof *out);
        at = end;
    }
}

static bool stored_same_tensor(const struct tensor_table *a, const struct tensor_table *b, int ta, int tb)
{
    const struct tensor_info *x = &a->tensors[ta], *y = &b->tensors[tb];
    const bool same = x->role == y->role && x->offset == y->offset && x->numel == y->numel;
    return same &&
           (!a->stored || (a->stored[ta].offset == b->stored[tb].offset && a->stored[ta].dtype == b->stored[tb].dtype &&
                           a->stored[ta].quantized == b->stored[tb].quantized));
}

bool stored_base_is_same(const struct tensor_table *a, const struct tensor_table *b)
{
    bool same = a->num_units == b->num_units && a->num_frozen == b->num_frozen && !a->stored == !b->stored;
    for (int u = tensor_table_trained(a); u < a->num_units && same; u++) {
        const struct unit_info *x = &a->units[u], *y = &b->units[u];
        same = x->num_tensors == y->num_tensors && x->numel == y->numel && x->stored_bytes == y->stored_bytes;
        for (int t = 0; t < x->num_tensors && same; t++)
            same = stored_same_tensor(a, b, x->first_tensor + t, y->first_tensor + t);
    }
    for (int u = 0; u < tensor_table_trained(a) && same; u++) same = a->units[u].frozen == b->units[u].frozen;
    return same;
}
