/* SPDX-License-Identifier: Apache-2.0 */
/* test_peft.c: an adapter in PEFT's file is read by any number of ranks, and every fault is named; a checkpoint's
 * adapter goes there and back; merged weights have PEFT's roundings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base_hash.h"
#include "ckpt/huggingface/huggingface.h"
#include "comm/launch/bootstrap.h"
#include "core/memory.h"
#include "core/model/adapter.h"
#include "core/spec/adapter_config.h"
#include "tests/unit/fixtures/safetensors_file.h"
#include "tests/unit/fixtures/save_whole.h"

static char folder[64];

static const char *at(const char *name)
{
    static char paths[8][192];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ztrain-peft-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void clear(void)
{
    teardown(NULL);
    assert_int_equal(mkdir(folder, 0700), 0);
}

/* ---- a model with an adapter ---------------------------------------------- */

struct model {
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    float *shard;    /* of one rank; master weights */
    json_t *adapter; /* adapter_config.json */
    int spoiled;     /* save() gives this tensor an infinity; -1: none */
};

static const char LLAMA[] = "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_attention_heads\":6,"
                            "\"num_key_value_heads\":2,\"num_hidden_layers\":2,\"vocab_size\":37,"
                            "\"intermediate_size\":20}";
static const char TIED[] = "{\"model_type\":\"qwen2\",\"hidden_size\":24,\"num_attention_heads\":6,"
                           "\"num_key_value_heads\":2,\"num_hidden_layers\":1,\"vocab_size\":37,"
                           "\"intermediate_size\":20,\"tie_word_embeddings\":true}";
static const char GPT2[] = "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":2,\"n_layer\":2,\"vocab_size\":41,"
                           "\"n_positions\":9}";
static const char LLAMA_PEFT[] = "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,\"target_modules\":"
                                 "[\"embed_tokens\",\"q_proj\",\"v_proj\",\"down_proj\",\"lm_head\"],"
                                 "\"modules_to_save\":[\"norm\"]}";
static const char TIED_PEFT[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":6,\"target_modules\":"
                                "[\"embed_tokens\",\"lm_head\",\"o_proj\"]}";
static const char TIED_SAVE[] = "{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"o_proj\"],"
                                "\"modules_to_save\":[\"embed_tokens\"],\"ensure_weight_tying\":true}";
static const char GPT2_PEFT[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":5,\"use_rslora\":true,"
                                "\"target_modules\":[\"c_attn\",\"c_proj\",\"c_fc\"]}";

static void model_init(struct model *model, const char *text, const char *peft)
{
    struct error err = {.text = ""};
    struct adapter_config config;
    json_t *source = json_loads(text, 0, NULL);
    *model = (struct model){.adapter = json_loads(peft, 0, NULL), .spoiled = -1};
    if (model_desc_from_json(source, "test", &model->desc, &err) != STATUS_OK ||
        adapter_config_from_json(model->adapter, "test", &config, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    tensor_table_build(&model->desc, &model->table);
    config.settings.on = true;
    if (adapter_apply(&config.settings, &model->desc, &model->table, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
    adapter_config_release(&config);
    json_decref(source);
}

static void model_layout(struct model *model, int world)
{
    shard_layout_release(&model->layout);
    shard_layout_init(&model->layout, &model->table, world);
    model->shard = memory_resize(model->shard, (size_t)model->layout.shard_numel * sizeof(float));
    memset(model->shard, 0x55, (size_t)model->layout.shard_numel * sizeof(float));
}

static void model_release(struct model *model)
{
    free(model->shard);
    json_decref(model->adapter);
    shard_layout_release(&model->layout);
    tensor_table_release(&model->table);
    model_desc_release(&model->desc);
}

static enum status model_slice(void *context, enum slice_access access, enum state_kind state, int unit, float **slice,
                               struct error *err)
{
    struct model *model = context;
    (void)state, (void)access, (void)err;
    *slice = model->shard + model->layout.shard_offset[unit];
    return STATUS_OK;
}

static struct state_slices model_slices(struct model *model, int count)
{
    return (struct state_slices){.owner = model, .count = count, .get = model_slice};
}

/* The value of an element, exact in every dtype and different from its neighbours. */
static float value_of(const struct tensor_info *tensor, int64_t element)
{
    return (float)((tensor->number * 37 + element * 11) % 251 - 125) / 64;
}

/* ---- import ---------------------------------------------------------------- */

enum fault { NO_FAULT, MISSING, SHAPE, NOT_FINITE, TYPE };

/* A tensor of the table as PEFT's files hold it. */
static void add_tensor(struct file *file, const struct tensor_info *tensor, enum dtype dtype, enum fault fault)
{
    static const char *const types[] = {"F32", "BF16", "F16"};
    char name[160], shape[64];
    const bool turned = strstr(tensor->name, "lora_embedding_A") != NULL;
    const int64_t rows = tensor->shape[turned], columns = tensor->shape[!turned];
    const size_t size = dtype_size(dtype);
    char *data = malloc((size_t)tensor->numel * size);
    for (int64_t k = 0; k < tensor->numel; k++) {
        float value = value_of(tensor, turned ? k % columns * rows + k / columns : k);
        value = fault == NOT_FINITE && k == 5 ? INFINITY : value;
        uint16_t half = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
        memcpy(data + (size_t)k * size, dtype == DTYPE_F32 ? (void *)&value : (void *)&half, size);
    }
    snprintf(name, sizeof name, "base_model.model.%s", tensor->name);
    if (tensor->ndim == 1)
        snprintf(shape, sizeof shape, "[%d]", (int)rows);
    else
        snprintf(shape, sizeof shape, fault == SHAPE ? "[%d,1,%d]" : "[%d,%d]", (int)rows, (int)columns);
    file_add(file, name, fault == TYPE ? "I32" : types[dtype], shape, data, (size_t)tensor->numel * size);
    free(data);
}

/* `fault`: of the first trained tensor. */
static void write_adapter(const struct model *model, enum dtype dtype, enum fault fault, const char *extra, size_t cut)
{
    struct file file = {.bytes = 0};
    const float copy[2] = {1, 2};
    file_begin(&file);
    for (int i = model->table.num_tensors - 1; i >= 0; i--) /* not in the table's order */
        if (!model->table.tensors[i].frozen && (i || fault != MISSING))
            add_tensor(&file, &model->table.tensors[i], dtype, i ? NO_FAULT : fault);
    if (extra) file_add(&file, extra, "F32", "[2]", copy, sizeof copy);
    file_write(&file, at("adapter_model.safetensors"), cut);
}

/* Loads as every rank of `world`; frozen units stay as they are. */
static void check_load(struct model *model, int world)
{
    struct error err;
    for (int rank = 0; rank < world; rank++) {
        model_layout(model, world);
        if (peft_load(folder, &model->desc, &model->table, &model->layout, rank, model_slices(model, 1), &err) !=
            STATUS_OK)
            fail_msg("%s", err.text);
        for (int unit = 0; unit < model->table.num_units; unit++) {
            const int64_t slice = model->layout.slice[unit];
            float untouched, expected;
            memset(&untouched, 0x55, sizeof untouched);
            for (int64_t i = 0; i < slice; i++) {
                const int64_t offset = rank * slice + i;
                const struct tensor_info *tensor = tensor_at(&model->table, unit, offset);
                expected = unit >= model->layout.num_trained ? untouched
                           : tensor                          ? value_of(tensor, offset - tensor->offset)
                                                             : 0;
                assert_true(model->shard[model->layout.shard_offset[unit] + i] == expected);
            }
        }
    }
}

static void test_every_rank_reads_its_slices(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {LLAMA, LLAMA_PEFT}, {TIED, TIED_PEFT}, {TIED, TIED_SAVE}, {GPT2, GPT2_PEFT}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct model model;
        struct error err;
        model_init(&model, cases[c][0], cases[c][1]);
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            clear();
            write_adapter(&model, (enum dtype)dtype, NO_FAULT, "base_model.model.x.base_layer.weight", 0);
            assert_int_equal(peft_check(folder, &model.desc, &model.table, &err), STATUS_OK);
            for (int world = 1; world <= 5; world++) check_load(&model, world);
        }
        model_release(&model);
    }
}

static void expect_fault(struct model *model, const char *words)
{
    struct error err = {.text = ""};
    model_layout(model, 2);
    const enum status status =
        peft_load(folder, &model->desc, &model->table, &model->layout, 0, model_slices(model, 1), &err);
    if (status != STATUS_DATA || !strstr(err.text, words))
        fail_msg("'%s' expected, not %d '%s'", words, (int)status, err.text);
}

static void test_faults_are_named(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, LLAMA, LLAMA_PEFT);
    clear();
    expect_fault(&model, "there is no adapter_model.safetensors; hint: expected a folder that peft's");
    const int fd = creat(at("adapter_model.bin"), 0600);
    assert_true(fd >= 0 && close(fd) == 0);
    expect_fault(&model, "hint: adapter_model.bin is not read; peft's save_pretrained() writes safetensors");
    write_adapter(&model, DTYPE_F32, MISSING, NULL, 0);
    expect_fault(&model,
                 "tensor 'base_model.model.model.embed_tokens.lora_embedding_A' is missing; hint: adapter_config");
    write_adapter(&model, DTYPE_F32, SHAPE, NULL, 0);
    expect_fault(&model,
                 "'base_model.model.model.embed_tokens.lora_embedding_A' has shape (3, 1, 37), and the model asks for "
                 "(3, 37)");
    write_adapter(&model, DTYPE_F32, TYPE, NULL, 0);
    expect_fault(&model, "has a dtype that is not supported");
    write_adapter(&model, DTYPE_BF16, NOT_FINITE, NULL, 0);
    expect_fault(&model, "tensor 'base_model.model.model.embed_tokens.lora_embedding_A' holds an infinity");
    write_adapter(&model, DTYPE_F32, NO_FAULT, "base_model.model.lm_head.lora_C.weight", 0);
    expect_fault(&model, "tensor 'base_model.model.lm_head.lora_C.weight' is not part of this adapter");
    write_adapter(&model, DTYPE_F32, NO_FAULT, "model.norm.weight", 0);
    expect_fault(&model, "tensor 'model.norm.weight' is not part of this adapter");
    write_adapter(&model, DTYPE_F32, NO_FAULT, NULL, 3);
    expect_fault(&model, "is truncated");
    struct model other;
    write_adapter(&model, DTYPE_F32, NO_FAULT, NULL, 0);
    model_init(&other, TIED, TIED_PEFT);
    struct error err;
    assert_int_equal(peft_check(folder, &other.desc, &other.table, &err), STATUS_DATA);
    model_release(&other);
    model_release(&model);
}

/* A tied matrix that is trained is the embedding, the head, or both. */
static void test_a_tied_matrix(void **state)
{
    (void)state;
    static const char HEAD[] = "base_model.model.lm_head.weight";
    struct model model;
    model_init(&model, TIED, TIED_SAVE);
    const struct tensor_info *embedding = tensor_find(&model.table, 0, ROLE_WTE);
    struct tensor_info head = *embedding;
    strcpy(head.name, HEAD + strlen("base_model.model."));
    for (int kind = 0; kind < 3; kind++) { /* the head alone, both, both with a difference */
        struct file file = {.bytes = 0};
        clear();
        file_begin(&file);
        for (int i = 0; i < model.table.num_tensors; i++)
            if (!model.table.tensors[i].frozen && (kind || &model.table.tensors[i] != embedding))
                add_tensor(&file, &model.table.tensors[i], DTYPE_F32, NO_FAULT);
        head.number = embedding->number + (kind == 2);
        add_tensor(&file, &head, DTYPE_F32, NO_FAULT);
        file_write(&file, at("adapter_model.safetensors"), 0);
        if (kind < 2)
            check_load(&model, 3);
        else
            expect_fault(&model, "tensor 'base_model.model.lm_head.weight' differs from the embedding");
    }
    model_release(&model);
}

/* ---- export ---------------------------------------------------------------- */

/* Fills the trained tensors, saves as one rank, and opens the checkpoint. */
static struct checkpoint *save(struct model *model, const char *config, const struct checkpoint_base *base)
{
    struct error err;
    struct bootstrap alone = {.world = 1, .local_world = 1, .num_nodes = 1, .shared_fd = -1, .cores = 1};
    struct comm_config comm_config = {.timeout_seconds = 10};
    struct comm *comm;
    struct checkpoint_save_cache *cache = NULL;
    struct checkpoint *checkpoint = NULL;
    char name[64];
    int64_t bytes;
    model_layout(model, 1);
    memset(model->shard, 0, (size_t)model->layout.shard_numel * sizeof(float));
    for (int i = 0; i < model->table.num_tensors; i++)
        for (int64_t k = 0; k < model->table.tensors[i].numel; k++) {
            const struct tensor_info *tensor = &model->table.tensors[i];
            model->shard[model->layout.shard_offset[tensor->unit] + tensor->offset + k] =
                i == model->spoiled ? INFINITY : value_of(tensor, k) / 7;
        }
    if (comm_open(&alone, &comm_config, &comm, &err) != STATUS_OK ||
        checkpoint_save_cache_new(NULL, NULL, &cache, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    json_t *spec = json_object(), *source = json_loads(config, 0, NULL);
    struct checkpoint_writer writer = {.dir = at("checkpoints"),
                                       .table = &model->table,
                                       .layout = &model->layout,
                                       .comm = comm,
                                       .host = "here",
                                       .spec = spec,
                                       .model = source,
                                       .adapter = model->adapter,
                                       .base = *base,
                                       .dtype = DTYPE_BF16,
                                       .cache = cache};
    struct train_position position = {.step = 3, .optimizer_step = 3, .epoch = 1, .step_in_epoch = 3, .tokens = 9};
    if (save_whole(&writer, &position, model_slices(model, STATE_KIND_COUNT), name, &bytes, &err) != STATUS_OK ||
        checkpoint_open(at("checkpoints"), true, &checkpoint, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    checkpoint_save_cache_free(cache);
    json_decref(spec);
    json_decref(source);
    comm_close(comm);
    bootstrap_release(&alone);
    return checkpoint;
}

static void test_an_export_comes_back(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {LLAMA, LLAMA_PEFT}, {TIED, TIED_PEFT}, {TIED, TIED_SAVE}, {GPT2, GPT2_PEFT}};
    const struct checkpoint_base base = {.hash = 1};
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            struct model model, read;
            struct model_desc desc;
            struct error err;
            clear();
            model_init(&model, cases[c][0], cases[c][1]);
            struct checkpoint *checkpoint = save(&model, cases[c][0], &base);
            model_init(&read, cases[c][0], cases[c][1]);
            tensor_table_release(&read.table);
            model_desc_release(&read.desc);
            assert_int_equal(checkpoint_model(checkpoint, &desc, &read.table, &err), STATUS_OK);
            read.desc = desc;
            if (peft_export(checkpoint, &read.desc, &read.table, at("out"), (enum dtype)dtype, false, &err) !=
                STATUS_OK)
                fail_msg("%s", err.text);
            assert_int_equal(peft_export(checkpoint, &read.desc, &read.table, at("out"), DTYPE_F32, false, &err),
                             STATUS_DATA);
            model_layout(&read, 1);
            if (peft_load(at("out"), &read.desc, &read.table, &read.layout, 0, model_slices(&read, 1), &err) !=
                STATUS_OK)
                fail_msg("%s", err.text);
            for (int64_t i = 0; i < read.layout.trained_numel; i++) {
                const float saved = model.shard[i];
                assert_true(read.shard[i] == (dtype == DTYPE_BF16  ? bf16_to_f32(bf16_from_f32(saved))
                                              : dtype == DTYPE_F16 ? f16_to_f32(f16_from_f32(saved))
                                                                   : saved));
            }
            json_t *config = json_load_file(at("out/adapter_config.json"), 0, NULL);
            assert_true(json_equal(config, model.adapter));
            json_decref(config);
            checkpoint_close(checkpoint);
            model_release(&read);
            model_release(&model);
        }
}

/* ---- merging --------------------------------------------------------------- */

/* The base in `dtype`, without the adapter. */
static void write_base(const struct model *model, enum dtype dtype)
{
    static const char *const types[] = {"F32", "BF16", "F16"};
    struct file file = {.bytes = 0};
    file_begin(&file);
    for (int i = 0; i < model->table.num_tensors; i++) {
        const struct tensor_info *tensor = &model->table.tensors[i];
        char shape[64], *data = malloc((size_t)tensor->numel * 4);
        if (tensor->part == PART_BASE) {
            for (int64_t k = 0; k < tensor->numel; k++) {
                const float value = value_of(tensor, k);
                const uint16_t half = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
                memcpy(data + (size_t)k * dtype_size(dtype),
                       dtype == DTYPE_F32 ? (const void *)&value : (const void *)&half, dtype_size(dtype));
            }
            snprintf(shape, sizeof shape, tensor->ndim == 1 ? "[%d]" : "[%d,%d]", (int)tensor->shape[0],
                     (int)tensor->shape[1]);
            file_add(&file, tensor->name, types[dtype], shape, data, (size_t)tensor->numel * dtype_size(dtype));
        }
        free(data);
    }
    file_write(&file, at("base/model.safetensors"), 0);
}

static uint64_t hash_of_base(struct model *model, const struct huggingface_source *source)
{
    struct base_hash hash;
    struct error err;
    model_layout(model, 1);
    if (huggingface_load(source, &model->layout, 0, 7,
                         base_hash_watch(&hash, &model->table, &model->layout, 0, model_slices(model, 1)),
                         &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return base_hash_end(&hash);
}

static float rounded(float x, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x)) : dtype == DTYPE_F16 ? f16_to_f32(f16_from_f32(x)) : x;
}

/* An element of A or B as it was saved. */
static float adapter_value(const struct tensor_info *tensor, int64_t row, int64_t column)
{
    return value_of(tensor, row * tensor->shape[1] + column) / 7;
}

/* What element k of a base tensor is once A and B are merged, by PEFT's words. */
static float merged_value(const struct model *model, const struct tensor_info *tensor, int64_t k, float value,
                          enum dtype dtype)
{
    const struct tensor_info *a = NULL, *b = NULL;
    const char *stem = strrchr(tensor->name, '.');
    char name[128];
    for (int i = 0; i < model->table.num_tensors; i++) {
        const struct tensor_info *other = &model->table.tensors[i];
        const bool is_a = other->part == PART_LORA_A;
        snprintf(name, sizeof name, "%.*s.lora_", (int)(stem - tensor->name), tensor->name);
        if (other->part != PART_BASE && strncmp(other->name, name, strlen(name)) == 0) *(is_a ? &a : &b) = other;
    }
    if (!a || strcmp(stem, ".weight") != 0) return value;
    const bool embedding = strstr(a->name, "embedding") != NULL, gpt2 = model->desc.weights_in_out;
    const int64_t row = k / tensor->shape[1], column = k % tensor->shape[1];
    const int64_t in = gpt2 ? row : column, out = gpt2 ? column : row, r = b->shape[1];
    float sum = 0;
    for (int64_t i = 0; i < r; i++)
        sum = embedding ? fmaf(adapter_value(b, column, i), adapter_value(a, row, i), sum)
                        : fmaf(adapter_value(b, out, i), adapter_value(a, i, in), sum);
    sum *= (float)a->lora_scale;
    return rounded(value + (embedding ? rounded(sum, dtype) : sum), dtype);
}

static void check_merged(struct model *model, const char *out, enum dtype dtype, bool initial)
{
    struct model whole;
    struct error err;
    whole = (struct model){.shard = NULL};
    if (model_desc_load(out, &whole.desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    tensor_table_build(&whole.desc, &whole.table);
    model_layout(&whole, 1);
    const struct huggingface_source source = {.dir = out, .desc = &whole.desc, .table = &whole.table};
    if (huggingface_load(&source, &whole.layout, 0, 7, model_slices(&whole, 1), &err) != STATUS_OK)
        fail_msg("%s", err.text);
    int changed = 0;
    for (int i = 0; i < model->table.num_tensors; i++) {
        const struct tensor_info *tensor = &model->table.tensors[i], *there = NULL;
        for (int j = 0; j < whole.table.num_tensors; j++)
            if (strcmp(whole.table.tensors[j].name, tensor->name) == 0) there = &whole.table.tensors[j];
        if (tensor->part != PART_BASE) continue;
        float *fresh = malloc((size_t)tensor->numel * sizeof *fresh);
        tensor_init_range(&model->table, i, 7, 0, tensor->numel, fresh);
        for (int64_t k = 0; k < tensor->numel; k++) {
            const float base = rounded(initial ? fresh[k] : value_of(tensor, k), dtype);
            const float expected =
                tensor->frozen ? merged_value(model, tensor, k, base, dtype) : rounded(value_of(tensor, k) / 7, dtype);
            const float found = whole.shard[whole.layout.shard_offset[there->unit] + there->offset + k];
            if (found != expected)
                fail_msg("%s[%d] in %s: %.9g, not %.9g", tensor->name, (int)k, dtype_name(dtype), (double)found,
                         (double)expected);
            changed += found != base;
        }
        if (tensor->role == ROLE_WTE && model->desc.tied && !whole.desc.tied) {
            struct tensor_info head = *tensor;
            strcpy(head.name, "lm_head.weight");
            there = tensor_find(&whole.table, whole.table.num_units - 1, ROLE_LM_HEAD);
            for (int64_t k = 0; k < tensor->numel; k++)
                assert_true(whole.shard[whole.layout.shard_offset[there->unit] + there->offset + k] ==
                            merged_value(model, &head, k, rounded(value_of(tensor, k), dtype), dtype));
        }
        free(fresh);
    }
    assert_true(changed > 100);
    const bool on_tied = tensor_find_part(&model->table, 0, ROLE_WTE, PART_LORA_A) != NULL;
    assert_int_equal(whole.desc.tied, model->desc.tied && !on_tied);
    free(whole.shard);
    shard_layout_release(&whole.layout);
    tensor_table_release(&whole.table);
    model_desc_release(&whole.desc);
}

static void test_merging(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {LLAMA, LLAMA_PEFT}, {TIED, TIED_PEFT}, {TIED, TIED_SAVE}, {GPT2, GPT2_PEFT}};
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            struct model model;
            struct error err = {.text = ""};
            clear();
            assert_int_equal(mkdir(at("base"), 0700), 0);
            model_init(&model, cases[c][0], cases[c][1]);
            write_base(&model, (enum dtype)dtype);
            assert_int_equal(fs_write_file(at("base/config.json"), cases[c][0], strlen(cases[c][0]), STATUS_DATA, &err),
                             0);
            struct huggingface_source source = {.dir = at("base"), .desc = &model.desc, .table = &model.table};
            struct checkpoint_base base = {.hash = hash_of_base(&model, &source), .folder = source.dir, .seed = 7};
            struct checkpoint *checkpoint = save(&model, cases[c][0], &base);
            struct peft_base found;
            assert_int_equal(peft_base_find(checkpoint, NULL, &model.desc, &model.table, &found, &err), STATUS_OK);
            if (peft_merge(checkpoint, &found.source, at("out"), DTYPE_COUNT, false, &err) != STATUS_OK)
                fail_msg("%s", err.text);
            check_merged(&model, at("out"), (enum dtype)dtype, false);
            peft_base_release(&found);
            checkpoint_close(checkpoint);
            model_release(&model);
        }
}

/* Without a folder the base is initial values, in fp32. */
static void test_merging_into_initial_values(void **state)
{
    (void)state;
    struct model model;
    struct error err = {.text = ""};
    struct peft_base found;
    clear();
    model_init(&model, LLAMA, LLAMA_PEFT);
    const struct huggingface_source source = {.desc = &model.desc, .table = &model.table};
    const struct checkpoint_base base = {.hash = hash_of_base(&model, &source), .seed = 7};
    struct checkpoint *checkpoint = save(&model, LLAMA, &base);
    assert_int_equal(peft_base_find(checkpoint, folder, &model.desc, &model.table, &found, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "were initial values with run.seed 7, which are in no folder"));
    assert_int_equal(peft_base_find(checkpoint, NULL, &model.desc, &model.table, &found, &err), STATUS_OK);
    if (peft_merge(checkpoint, &found.source, at("out"), DTYPE_COUNT, false, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    check_merged(&model, at("out"), DTYPE_F32, true);
    if (peft_merge(checkpoint, &found.source, at("out16"), DTYPE_BF16, false, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    check_merged(&model, at("out16"), DTYPE_BF16, true);
    checkpoint_close(checkpoint);
    model_release(&model);
}

static void test_merging_refuses(void **state)
{
    (void)state;
    struct model model;
    struct error err = {.text = ""};
    struct peft_base found;
    clear();
    assert_int_equal(mkdir(at("base"), 0700), 0);
    model_init(&model, LLAMA, LLAMA_PEFT);
    write_base(&model, DTYPE_F32);
    assert_int_equal(fs_write_file(at("base/config.json"), LLAMA, strlen(LLAMA), STATUS_DATA, &err), 0);
    struct huggingface_source source = {.dir = at("base"), .desc = &model.desc, .table = &model.table};
    struct checkpoint_base base = {.hash = hash_of_base(&model, &source), .folder = "/nowhere", .seed = 7};
    for (model.spoiled = 0; model.table.tensors[model.spoiled].part != PART_LORA_A; model.spoiled++)
        ;
    struct checkpoint *checkpoint = save(&model, LLAMA, &base);
    assert_int_equal(peft_base_find(checkpoint, NULL, &model.desc, &model.table, &found, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "is not there: '/nowhere'; hint: --base DIR"));
    assert_int_equal(peft_base_find(checkpoint, at("base"), &model.desc, &model.table, &found, &err), STATUS_OK);
    assert_int_equal(peft_merge(checkpoint, &found.source, at("out"), DTYPE_COUNT, false, &err), STATUS_DIVERGED);
    assert_non_null(strstr(err.text, "with its adapter holds"));
    assert_int_equal(peft_merge(checkpoint, &found.source, at("forced"), DTYPE_COUNT, true, &err), STATUS_OK);
    assert_int_equal(peft_export(checkpoint, &model.desc, &model.table, at("adapter"), DTYPE_F32, false, &err),
                     STATUS_DIVERGED);
    assert_int_equal(peft_export(checkpoint, &model.desc, &model.table, at("forced2"), DTYPE_F32, true, &err),
                     STATUS_OK);

    /* another value of the base */
    struct safetensors_header header;
    assert_int_equal(safetensors_read_header(at("base/model.safetensors"), &header, &err), STATUS_OK);
    int64_t place = -1;
    for (int i = 0; i < header.count; i++)
        if (strcmp(header.entries[i].name, "model.layers.1.self_attn.k_proj.weight") == 0)
            place = header.entries[i].place.begin;
    safetensors_header_release(&header);
    FILE *file = fopen(at("base/model.safetensors"), "r+b");
    assert_true(place > 0 && file && fseek(file, place, SEEK_SET) == 0);
    fputc(1, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(peft_merge(checkpoint, &found.source, at("other"), DTYPE_COUNT, true, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "was trained on another base"));
    assert_false(fs_exists(at("other")));
    peft_base_release(&found);
    checkpoint_close(checkpoint);
    model_release(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_reads_its_slices),
        cmocka_unit_test(test_faults_are_named),
        cmocka_unit_test(test_a_tied_matrix),
        cmocka_unit_test(test_an_export_comes_back),
        cmocka_unit_test(test_merging),
        cmocka_unit_test(test_merging_into_initial_values),
        cmocka_unit_test(test_merging_refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
