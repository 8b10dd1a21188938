/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors.c: the header parser against damaged headers; the import of one file, of shards with an index, and
 * of the hub's names, in every dtype, by any number of ranks; and every fault with its message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/huggingface/huggingface.h"
#include "core/fsutil.h"
#include "tests/unit/fixtures/safetensors_file.h"

static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ztrain-safetensors-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *at(const char *name)
{
    static char paths[4][192];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void clear(void)
{
    teardown(NULL);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void put(const char *name, const void *bytes, size_t count)
{
    struct error err;
    if (fs_write_file(at(name), bytes, count, STATUS_DATA, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* ---- the parser ---------------------------------------------------------- */

static const struct {
    const char *header;
    int64_t data_bytes; /* after the header */
    const char *words;  /* NULL: no error */
} HEADERS[] = {
    {"{}", 0, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, NULL},
    {"{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]}}", 16, NULL},
    {"{\"a\":{\"dtype\":\"F9_NEW\",\"shape\":[2],\"data_offsets\":[0,5]}}", 5, NULL},
    {"{\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[4,6]},"
     "\"z\":{\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[4,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     6, NULL},
    {"", 0, "not a safetensors file"},
    {"[]", 0, "not a JSON object"},
    {"{\"a\":", 0, "not a safetensors file: header at offset"},
    {"{} {}", 0, "not a safetensors file"},
    {"\x80\x02}q", 0, "not a safetensors file"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},\"a\":{}}", 1, "duplicate object key"},
    {"{\"a\":[]}", 0, "tensor 'a' needs dtype, shape and two data_offsets"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "needs dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "needs dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "has 9 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "impossible shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "impossible shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "impossible shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "do not fit its shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", 9, "has 9 bytes, which do not fit its shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "impossible data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "impossible data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[\"0\",8]}}", 8, "impossible data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated: tensor 'a' ends at offset 70"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "trailing bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "begins at offset 67, 63 expected"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
     3, "a hole or an overlap"},
    {"{}", 5, "trailing bytes"},
};

static void test_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(HEADERS); i++) {
        struct safetensors_header header;
        struct error err = {.text = ""};
        size_t n = strlen(HEADERS[i].header);
        enum status status = safetensors_parse(
            HEADERS[i].header, n, SAFETENSORS_PREFIX + (int64_t)n + HEADERS[i].data_bytes, "f", &header, &err);
        if (HEADERS[i].words ? status != STATUS_DATA || !strstr(err.text, HEADERS[i].words) : status != STATUS_OK)
            fail_msg("%s: status %d, '%s'", HEADERS[i].header, (int)status, err.text);
        int64_t end = SAFETENSORS_PREFIX + (int64_t)n;
        for (int k = 0; status == STATUS_OK && k < header.count; k++) {
            assert_true(header.entries[k].place.begin == end);
            end += header.entries[k].place.bytes;
        }
        safetensors_header_release(&header);
    }
}

static void test_prefix(void **state)
{
    (void)state;
    struct error err;
    size_t n = 0;
    const uint8_t ten[8] = {10}, huge[8] = {0, 0, 0, 0, 0, 0, 0, 0x80}, large[8] = {1, 0xe1, 0xf5, 5};
    assert_int_equal(safetensors_prefix(ten, 18, "f", &n, &err), STATUS_OK);
    assert_int_equal(n, 10);
    assert_int_equal(safetensors_prefix(ten, 17, "f", &n, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "'f' is truncated: header of 10 bytes, but the file has 17 bytes"));
    assert_int_equal(safetensors_prefix(ten, 7, "f", &n, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "'f' is truncated: 7 bytes are not a safetensors file"));
    assert_int_equal(safetensors_prefix(huge, INT64_MAX, "f", &n, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "header of 9223372036854775808 bytes, at most 100000000 expected"));
    assert_int_equal(safetensors_prefix(large, INT64_MAX, "f", &n, &err), STATUS_DATA);
}

static void test_producer(void **state)
{
    (void)state;
    static const char *const headers[] = {"{\"__metadata__\":{\"producer\":\"ztrain\"}}",
                                          "{\"__metadata__\":{\"producer\":\"other\"}}", "{\"__metadata__\":{}}", "{}"};
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        struct safetensors_header header;
        size_t n = strlen(headers[i]);
        assert_int_equal(safetensors_parse(headers[i], n, SAFETENSORS_PREFIX + (int64_t)n, "f", &header, NULL),
                         STATUS_OK);
        assert_int_equal(header.by_ztrain, i == 0);
        safetensors_header_release(&header);
    }
}

/* ---- a model on disk ----------------------------------------------------- */

struct model {
    struct model_desc desc;
    struct tensor_table table;
};

static void model_init(struct model *model, const char *text)
{
    struct error err;
    json_t *config = json_loads(text, 0, NULL);
    if (model_desc_from_json(config, "test", &model->desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    json_decref(config);
    tensor_table_build(&model->desc, &model->table);
}

static void model_release(struct model *model)
{
    tensor_table_release(&model->table);
    model_desc_release(&model->desc);
}

/* The value of an element, exact in every dtype and different from its neighbours. */
static float value_of(int tensor, int64_t element)
{
    return (float)((tensor * 37 + element * 11) % 251 - 125) / 64;
}

/* Adds tensor i of the table under `name` in a dtype. */
static void file_add_tensor(struct file *file, const struct tensor_table *table, int i, const char *name,
                            enum dtype dtype)
{
    const struct tensor_info *tensor = &table->tensors[i];
    char shape[64];
    size_t bytes = (size_t)tensor->numel * dtype_size(dtype);
    char *data = malloc(bytes);
    for (int64_t k = 0; k < tensor->numel; k++) {
        float value = value_of(i, k);
        uint16_t half = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
        memcpy(data + (size_t)k * dtype_size(dtype), dtype == DTYPE_F32 ? (void *)&value : (void *)&half,
               dtype_size(dtype));
    }
    snprintf(shape, sizeof shape, tensor->ndim == 1 ? "[%d]" : "[%d,%d]", (int)tensor->shape[0], (int)tensor->shape[1]);
    static const char *const names[] = {"F32", "BF16", "F16"};
    file_add(file, name, names[dtype], shape, data, bytes);
    free(data);
}

/* Writes the file without its last `cut` bytes. */
static void file_end(struct file *file, const char *name, size_t cut)
{
    file_write(file, at(name), cut);
}

static void write_index(const char *weight_map)
{
    char text[8192];
    int n = snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":%s}", weight_map);
    put("model.safetensors.index.json", text, (size_t)n);
}

/* ---- import -------------------------------------------------------------- */

struct slices {
    struct shard_layout layout;
    float *shard; /* of one rank */
};

static enum status slice_of(void *context, enum slice_access access, enum state_kind state, int unit, float **slice,
                            struct error *err)
{
    struct slices *slices = context;
    assert_int_equal(state, STATE_MASTER);
    (void)access;
    (void)err;
    *slice = slices->shard + slices->layout.shard_offset[unit];
    return STATUS_OK;
}

static struct string_list ignore; /* model.ignore_tensors */

static struct huggingface_source source_of(const struct model *model)
{
    return (struct huggingface_source){.dir = folder, .desc = &model->desc, .table = &model->table, .ignore = &ignore};
}

/* Loads as every rank of `world` and checks every element, gaps and padding included. */
static void check_load(const struct model *model, int world)
{
    struct slices slices;
    const struct state_slices access = {.owner = &slices, .get = slice_of};
    const struct huggingface_source source = source_of(model);
    struct error err;
    shard_layout_init(&slices.layout, &model->table, world);
    size_t bytes = (size_t)slices.layout.shard_numel * sizeof(float);
    slices.shard = malloc(bytes);
    for (int rank = 0; rank < world; rank++) {
        memset(slices.shard, 0x55, bytes);
        if (huggingface_load(&source, &slices.layout, rank, 1, access, &err) != STATUS_OK) fail_msg("%s", err.text);
        for (int unit = 0; unit < model->table.num_units; unit++) {
            int64_t slice = slices.layout.slice[unit];
            for (int64_t i = 0; i < slice; i++) {
                int64_t offset = rank * slice + i;
                const struct tensor_info *tensor = tensor_at(&model->table, unit, offset);
                float expected = tensor ? value_of((int)(tensor - model->table.tensors), offset - tensor->offset) : 0;
                assert_true(slices.shard[slices.layout.shard_offset[unit] + i] == expected);
            }
        }
    }
    free(slices.shard);
    shard_layout_release(&slices.layout);
}

static void expect_fault(const struct model *model, const char *words)
{
    struct slices slices;
    const struct state_slices access = {.owner = &slices, .get = slice_of};
    const struct huggingface_source source = source_of(model);
    struct error err = {.text = ""};
    shard_layout_init(&slices.layout, &model->table, 2);
    slices.shard = malloc((size_t)slices.layout.shard_numel * sizeof(float));
    enum status status = huggingface_load(&source, &slices.layout, 1, 1, access, &err);
    if (status != STATUS_DATA || !strstr(err.text, words))
        fail_msg("'%s' expected, not %d '%s'", words, (int)status, err.text);
    free(slices.shard);
    shard_layout_release(&slices.layout);
}

static const char LLAMA[] =
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":2,\"num_hidden_layers\":2,\"vocab_size\":37,\"intermediate_size\":20,"
    "\"attention_bias\":true}";
static const char TIED[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":24,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
    "\"num_hidden_layers\":1,\"vocab_size\":37,\"intermediate_size\":20,\"tie_word_embeddings\":true}";
static const char GPT2[] = "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":2,\"n_layer\":2,\"vocab_size\":41,"
                           "\"n_positions\":9}";

/* All tensors except `without` (-1: none) in one file. */
static void write_single(const struct model *model, enum dtype dtype, int without, size_t cut)
{
    struct file file = {.bytes = 0};
    file_begin(&file);
    for (int i = model->table.num_tensors - 1; i >= 0; i--) /* not in the table's order */
        if (i != without) file_add_tensor(&file, &model->table, i, model->table.tensors[i].name, dtype);
    file_end(&file, "model.safetensors", cut);
}

static void test_single(void **state)
{
    (void)state;
    static const char *const configs[] = {LLAMA, TIED, GPT2};
    for (size_t c = 0; c < COUNT_OF(configs); c++) {
        struct model model;
        model_init(&model, configs[c]);
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            clear();
            write_single(&model, (enum dtype)dtype, -1, 0);
            for (int world = 1; world <= 4; world++) check_load(&model, world);
        }
        model_release(&model);
    }
}

/* The hub's GPT-2 has no prefix, but mask buffers; Llama has a buffer. */
static void test_skipped(void **state)
{
    (void)state;
    struct model model;
    struct file file = {.bytes = 0};
    const char byte = 1;
    clear();
    model_init(&model, GPT2);
    file_begin(&file);
    for (int i = 0; i < model.table.num_tensors; i++)
        file_add_tensor(&file, &model.table, i, model.table.tensors[i].name + strlen("transformer."), DTYPE_F32);
    file_add(&file, "h.0.attn.bias", "U8", "[1,1,1,1]", &byte, 1);
    file_add(&file, "transformer.h.1.attn.bias", "U8", "[1]", &byte, 1);
    file_add(&file, "h.0.attn.masked_bias", "BOOL", "[]", &byte, 1);
    file_end(&file, "model.safetensors", 0);
    check_load(&model, 2);
    model_release(&model);

    clear();
    model_init(&model, TIED);
    file_begin(&file);
    for (int i = 0; i < model.table.num_tensors; i++)
        file_add_tensor(&file, &model.table, i, model.table.tensors[i].name, DTYPE_F16);
    file_add(&file, "model.layers.0.self_attn.rotary_emb.inv_freq", "F64", "[0]", &byte, 0);
    file_end(&file, "model.safetensors", 0);
    check_load(&model, 3);
    model_release(&model);
}

/* A file that was saved from the model without its head: names lack the prefix, and there may be no head. */
static void test_without_prefix(void **state)
{
    (void)state;
    static const char *const configs[] = {LLAMA, TIED};
    for (size_t c = 0; c < COUNT_OF(configs); c++) {
        struct model model;
        struct file file = {.bytes = 0};
        clear();
        model_init(&model, configs[c]);
        for (int head = 1; head >= 0; head--) {
            file_begin(&file);
            for (int i = 0; i < model.table.num_tensors; i++) {
                const char *name = model.table.tensors[i].name;
                const bool flat = strncmp(name, "model.", 6) == 0;
                if (flat || head) file_add_tensor(&file, &model.table, i, name + (flat ? 6 : 0), DTYPE_F32);
            }
            file_end(&file, "model.safetensors", 0);
            if (head || model.desc.tied)
                check_load(&model, 2);
            else
                expect_fault(&model, "tensor 'lm_head.weight' is missing; hint: config.json does not tie the head");
        }
        model_release(&model);
    }
}

/* All tensors of LLAMA, and one more of this name. */
static void write_extra(const struct model *model, const char *const *extra, int count)
{
    struct file file = {.bytes = 0};
    const float one = 1;
    file_begin(&file);
    for (int i = 0; i < model->table.num_tensors; i++)
        file_add_tensor(&file, &model->table, i, model->table.tensors[i].name, DTYPE_F32);
    for (int i = 0; i < count; i++) file_add(&file, extra[i], "F32", "[1]", &one, sizeof one);
    file_end(&file, "model.safetensors", 0);
}

/* Tensors that the model does not have: each refusal names a pattern that leaves the tensor out. */
static void test_extra(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"v_head.summary.weight", "v_head.summary.*"},
        {"model.layers.1.self_attn.k_scale", "model.layers.*.self_attn.k_scale"},
        {"model.layers.2.mlp.up_proj.weight", "model.layers.2.*"},
        {"lonely", "lonely"},
    };
    struct model model;
    const char *all[COUNT_OF(names)];
    char words[256];
    clear();
    model_init(&model, LLAMA);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        all[i] = names[i][0];
        write_extra(&model, &names[i][0], 1);
        snprintf(words, sizeof words, "(model_type llama, 2 layers); model.ignore_tensors: ['%s'] in a run spec leaves",
                 names[i][1]);
        expect_fault(&model, words);
        string_list_add(&ignore, names[i][1]);
        check_load(&model, 2);
        string_list_release(&ignore);
    }
    write_extra(&model, all, COUNT_OF(names));
    expect_fault(&model, "tensor 'v_head.summary.weight' is not part of this model (the first of 4); hint: ");
    string_list_add(&ignore, "model.layers.[1-9].*"); /* a layer that the model has, too */
    string_list_add(&ignore, "v_head*");
    string_list_add(&ignore, "lonel?");
    expect_fault(&model,
                 "tensor 'model.layers.1.input_layernorm.weight' is missing; hint: model.ignore_tensors leaves it");
    string_list_release(&ignore);
    model_release(&model);
}

static void check_refused(const struct model *model, const char *words, bool absent)
{
    const struct huggingface_source source = source_of(model);
    bool is_absent;
    struct error err = {.text = ""};
    assert_int_equal(huggingface_check(&source, &is_absent, &err), STATUS_DATA);
    if (!strstr(err.text, words) || is_absent != absent) fail_msg("'%s' expected, not '%s'", words, err.text);
}

/* The check that a dry run makes reads no values. */
static void test_check(void **state)
{
    (void)state;
    struct model model;
    struct error err;
    bool absent;
    clear();
    model_init(&model, LLAMA);
    const struct huggingface_source source = source_of(&model);
    check_refused(&model, "no weights in", true);
    put("pytorch_model.bin", "x", 1);
    check_refused(&model, "pytorch_model.bin is not read", false);
    write_single(&model, DTYPE_F16, 5, 0);
    check_refused(&model, "is missing", false);
    write_single(&model, DTYPE_F16, -1, 0);
    assert_int_equal(huggingface_check(&source, &absent, &err), STATUS_OK);
    put("adapter_config.json", "{}", 2);
    check_refused(&model, "holds a model and a LoRA adapter (adapter_config.json); hint: model.adapter starts", false);
    expect_fault(&model, "holds a model and a LoRA adapter");
    model_release(&model);
}

/* A tied model's matrix stored as the embedding, as the head, and as both; a different matrix as the head. */
static void test_tied_head(void **state)
{
    (void)state;
    static const char *const configs[] = {TIED, GPT2};
    struct model model;
    struct file file = {.bytes = 0};
    for (size_t c = 0; c < COUNT_OF(configs); c++) {
        model_init(&model, configs[c]);
        for (int both = 0; both < 2; both++) {
            clear();
            file_begin(&file);
            for (int i = both ? 0 : 1; i < model.table.num_tensors; i++)
                file_add_tensor(&file, &model.table, i, model.table.tensors[i].name, DTYPE_BF16);
            file_add_tensor(&file, &model.table, 0, "lm_head.weight", both ? DTYPE_F32 : DTYPE_F16);
            file_end(&file, "model.safetensors", 0);
            check_load(&model, 3);
        }
        model_release(&model);
    }

    clear();
    model_init(&model, TIED);
    const int last = model.table.num_tensors - 1;
    float other[37 * 24];
    for (int64_t i = 0; i < 37 * 24; i++) other[i] = value_of(0, i);
    other[37 * 24 - 1] += 1; /* in rank 1's slice, which expect_fault loads */
    file_begin(&file);
    for (int i = 0; i <= last; i++) file_add_tensor(&file, &model.table, i, model.table.tensors[i].name, DTYPE_F32);
    file_add(&file, "lm_head.weight", "F32", "[37,24]", other, sizeof other);
    file_end(&file, "model.safetensors", 0);
    expect_fault(&model, "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', but config.json ties them; "
                         "hint: tie_word_embeddings: false");
    /* neither of the two; wrong shapes */
    write_single(&model, DTYPE_F32, 0, 0);
    expect_fault(&model, "tensor 'model.embed_tokens.weight' is missing");
    file_begin(&file);
    file_add(&file, "lm_head.weight", "F32", "[24,37]", other, sizeof other);
    file_end(&file, "model.safetensors", 0);
    expect_fault(&model, "tensor 'lm_head.weight' has shape (24, 37), but config.json asks for (37, 24)");
    model_release(&model);
}

/* Two files, tensor i in file i % 2; `map` gets the index's weight_map. */
static void write_two(const struct model *model, char *map, size_t size)
{
    struct file files[2];
    snprintf(map, size, "{");
    for (int f = 0; f < 2; f++) {
        file_begin(&files[f]);
        for (int i = f; i < model->table.num_tensors; i += 2) {
            const char *name = model->table.tensors[i].name;
            file_add_tensor(&files[f], &model->table, i, name, f ? DTYPE_BF16 : DTYPE_F32);
            size_t used = strlen(map);
            snprintf(map + used, size - used, "%s\"%s\":\"m-%d.safetensors\"", used > 1 ? "," : "", name, f + 1);
        }
        file_end(&files[f], f ? "m-2.safetensors" : "m-1.safetensors", 0);
    }
    strcat(map, "}");
}

static void test_index(void **state)
{
    (void)state;
    struct model model;
    char map[4096], other[8192];
    clear();
    model_init(&model, LLAMA);
    write_two(&model, map, sizeof map);
    write_index(map);
    for (int world = 1; world <= 3; world++) check_load(&model, world);

    /* a tensor that the index does not name; one that it places elsewhere; one that no file has */
    snprintf(other, sizeof other, "{%s", strchr(map, ',') + 1);
    write_index(other);
    expect_fault(&model, "tensor 'model.embed_tokens.weight' is not in model.safetensors.index.json");
    memcpy(other, map, sizeof map);
    strstr(other, "m-1.")[2] = '2';
    write_index(other);
    expect_fault(&model, "tensor 'model.embed_tokens.weight' should be in 'm-2.safetensors'");
    snprintf(other, sizeof other, "{\"ghost\":\"m-1.safetensors\",%s", map + 1);
    write_index(other);
    expect_fault(&model, "names 30 tensors, its files hold 29");
    /* files that are absent, or outside the folder */
    snprintf(other, sizeof other, "{\"ghost\":\"m-3.safetensors\",%s", map + 1);
    write_index(other);
    expect_fault(&model, "m-3.safetensors': No such file or directory");
    write_index("{\"a\":\"../x.safetensors\"}");
    expect_fault(&model, "tensor 'a' must name a file in the folder");
    write_index("{\"a\":\".hidden\"}");
    expect_fault(&model, "tensor 'a' must name a file in the folder");
    write_index("{\"a\":7}");
    expect_fault(&model, "tensor 'a' must name a file in the folder");
    write_index("{}");
    expect_fault(&model, "weight_map must be an object with tensor names");
    write_index("[]");
    expect_fault(&model, "weight_map must be an object with tensor names");
    write_index("{\"a\":\"x\",\"a\":\"y\"}");
    expect_fault(&model, "duplicate object key");
    put("model.safetensors.index.json", "[]", 2);
    expect_fault(&model, "weight_map must be an object with tensor names");
    put("model.safetensors.index.json", "{", 1);
    expect_fault(&model, "model.safetensors.index.json:1:1: not valid JSON");
    model_release(&model);
}

static void test_faults(void **state)
{
    (void)state;
    struct model model;
    struct file file = {.bytes = 0};
    const float zeros[37 * 24] = {0};
    model_init(&model, LLAMA);

    clear();
    expect_fault(&model,
                 "neither model.safetensors nor model.safetensors.index.json; hint: expected a Hugging Face folder");
    put("pytorch_model.bin", "x", 1);
    expect_fault(&model,
                 "hint: pytorch_model.bin is not read; python3 -c 'from transformers import AutoModelForCausalLM as M");
    unlink(at("pytorch_model.bin"));
    put("pytorch_model.bin.index.json", "{}", 2);
    expect_fault(&model, ".save_pretrained(\"NEW\")' writes NEW with safetensors");
    put("model.safetensors", "", 0);
    expect_fault(&model, "model.safetensors' is truncated: 0 bytes are not a safetensors file");
    put("model.safetensors", "\x05\0\0\0\0\0\0\0{}", 10);
    expect_fault(&model, "is truncated: header of 5 bytes");
    unlink(at("model.safetensors"));
    mkdir(at("model.safetensors"), 0700);
    expect_fault(&model, "it is a folder, expected a file");

    clear();
    write_single(&model, DTYPE_F32, -1, 1);
    expect_fault(&model, "is truncated: tensor 'model.embed_tokens.weight' ends at offset");
    write_single(&model, DTYPE_F32, 3, 0);
    expect_fault(&model, "tensor 'model.layers.0.self_attn.k_proj.weight' is missing; hint: is the file complete?");
    write_single(&model, DTYPE_F32, model.table.num_tensors - 1, 0);
    expect_fault(&model, "tensor 'lm_head.weight' is missing; hint: config.json does not tie the head");

    /* a file of another model: missing tensors, extra ones, wrong shapes */
    file_begin(&file);
    file_add_tensor(&file, &model.table, 0, model.table.tensors[0].name, DTYPE_F32);
    file_end(&file, "model.safetensors", 0);
    expect_fault(&model, "tensor 'model.layers.0.input_layernorm.weight' is missing; hint: 28 tensors in all");
    file_begin(&file);
    file_add(&file, "model.layers.2.mlp.up_proj.weight", "F32", "[1]", zeros, 4);
    file_end(&file, "model.safetensors", 0);
    expect_fault(&model,
                 "tensor 'model.layers.2.mlp.up_proj.weight' is not part of this model; hint: config.json must be");
    static const char *const shapes[][2] = {
        {"[24,37]", "has shape (24, 37), but config.json asks for (37, 24)"},
        {"[888]", "has shape (888), but config.json asks for (37, 24)"},
        {"[37,24,1]", "has shape (37, 24, 1), but config.json asks for (37, 24)"},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        file_begin(&file);
        file_add(&file, "model.embed_tokens.weight", "F32", shapes[i][0], zeros, sizeof zeros);
        file_end(&file, "model.safetensors", 0);
        expect_fault(&model, shapes[i][1]);
    }
    file_begin(&file);
    file_add(&file, "model.embed_tokens.weight", "I32", "[37,24]", zeros, sizeof zeros);
    file_end(&file, "model.safetensors", 0);
    expect_fault(&model, "has a dtype that is not supported; hint: F32, BF16 and F16 are");
    model_release(&model);

    /* both spellings of one tensor */
    model_init(&model, GPT2);
    file_begin(&file);
    for (int i = 0; i < model.table.num_tensors; i++)
        file_add_tensor(&file, &model.table, i, model.table.tensors[i].name, DTYPE_F32);
    file_add_tensor(&file, &model.table, 0, "wte.weight", DTYPE_F32);
    file_end(&file, "model.safetensors", 0);
    expect_fault(&model, "tensor 'wte.weight' occurs twice (also in 'model.safetensors')");
    model_release(&model);
}

/* The last element of wte, which is the last of the file and belongs to rank 1. */
static void test_not_finite(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        uint32_t bits;
        const char *words;
    } cases[] = {
        {DTYPE_F32, 0x7fc00000, "tensor 'transformer.wte.weight' holds NaN"},
        {DTYPE_F32, 0xff800000, "tensor 'transformer.wte.weight' holds an infinity"},
        {DTYPE_BF16, 0xff80, "tensor 'transformer.wte.weight' holds an infinity"},
        {DTYPE_BF16, 0x7f81, "tensor 'transformer.wte.weight' holds NaN"},
        {DTYPE_F16, 0x7c00, "tensor 'transformer.wte.weight' holds an infinity"},
        {DTYPE_F16, 0xfe00, "tensor 'transformer.wte.weight' holds NaN"},
    };
    struct model model;
    model_init(&model, GPT2);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char words[200];
        size_t bytes = dtype_size(cases[i].dtype);
        write_single(&model, cases[i].dtype, -1, 0);
        FILE *f = fopen(at("model.safetensors"), "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, -(long)bytes, SEEK_END), 0);
        snprintf(words, sizeof words, "' at byte %ld: %s", ftell(f), cases[i].words);
        assert_int_equal(fwrite(&cases[i].bits, bytes, 1, f), 1);
        assert_int_equal(fclose(f), 0);
        expect_fault(&model, words);
    }
    model_release(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),        cmocka_unit_test(test_prefix),  cmocka_unit_test(test_producer),
        cmocka_unit_test(test_single),         cmocka_unit_test(test_skipped), cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_index),          cmocka_unit_test(test_faults),  cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_without_prefix), cmocka_unit_test(test_extra),   cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
