/* SPDX-License-Identifier: Apache-2.0 */
/* test_export.c: an export has the values of the checkpoint (read back by the import), in one file or in shards. It
 * replaces an older export, but never another model; a failure leaves the folder as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/command_line.c"
#include "cmd/export.c"
#include "cmd/run/run_lock.c"
#include "cmd/run/run_state.c"
#include "cmd/run/stop_signal.c"
#include "tests/unit/fixtures/save_whole.h"

static char folder[64];
static int spoiled = -1; /* the tensor that save() gives a weight that is not finite */

/* A path in the folder. */
static const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *at(const char *format, ...)
{
    static char paths[64][192];
    static int turn;
    char *path = paths[turn++ % 64];
    int n = snprintf(path, sizeof paths[0], "%s/", folder);
    va_list args;
    va_start(args, format);
    vsnprintf(path + n, sizeof paths[0] - (size_t)n, format, args);
    va_end(args);
    return path;
}

static void put(const char *path, const char *text)
{
    struct error err;
    if (fs_write_file(path, text, strlen(text), STATUS_DATA, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static bool file_is(const char *path, const char *text)
{
    char *data;
    size_t size;
    if (fs_read_file(path, 1 << 20, STATUS_DATA, &data, &size, NULL) != STATUS_OK) return false;
    bool same = strcmp(data, text) == 0;
    free(data);
    return same;
}

/* The number of names in a folder that end with `suffix` (NULL: of all). */
static int count_files(const char *path, const char *suffix)
{
    int count = 0;
    DIR *listing = opendir(path);
    assert_non_null(listing);
    for (struct dirent *item; (item = readdir(listing));) {
        size_t n = strlen(item->d_name), m = suffix ? strlen(suffix) : 0;
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            count += !suffix || (n >= m && strcmp(item->d_name + n - m, suffix) == 0);
    }
    closedir(listing);
    return count;
}

/* ---- a model, its state on one rank, its checkpoint ---------------------- */

struct model {
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    float *state;
};

static const char UNTIED[] = "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_attention_heads\":6,"
                             "\"num_key_value_heads\":2,\"num_hidden_layers\":2,\"vocab_size\":37,"
                             "\"intermediate_size\":20,\"mlp_bias\":true,\"torch_dtype\":\"float16\"}";
static const char TIED[] = "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":2,\"n_layer\":2,\"vocab_size\":41,"
                           "\"n_positions\":9}";
/* an embedding of more elements than the export's window */
static const char LARGE[] = "{\"model_type\":\"qwen3\",\"hidden_size\":40,\"num_attention_heads\":2,"
                            "\"num_key_value_heads\":1,\"head_dim\":20,\"num_hidden_layers\":1,\"vocab_size\":60000,"
                            "\"intermediate_size\":64,\"tie_word_embeddings\":true}";

/* The value of an element, which needs all bits of fp32. */
static float value_of(int tensor, int64_t element)
{
    return (float)(tensor + 1) / 7 + (float)(element % 10007) / 3000;
}

static float *own_slice(const struct model *model, int unit)
{
    return model->state + model->layout.shard_offset[unit];
}

static enum status slice_of(void *context, enum slice_access access, enum state_kind state, int unit, float **slice,
                            struct error *err)
{
    (void)state;
    (void)access;
    (void)err;
    *slice = own_slice(context, unit);
    return STATUS_OK;
}

static struct state_slices slices_of(struct model *model)
{
    return (struct state_slices){.owner = model, .count = STATE_KIND_COUNT, .get = slice_of};
}

static void model_layout(struct model *model, int world)
{
    free(model->state);
    shard_layout_release(&model->layout);
    shard_layout_init(&model->layout, &model->table, world);
    model->state = calloc((size_t)model->layout.shard_numel, sizeof *model->state);
}

static void model_init(struct model *model, const char *text)
{
    struct error err;
    json_t *config = json_loads(text, 0, NULL);
    memset(model, 0, sizeof *model);
    if (model_desc_from_json(config, "test", &model->desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    json_decref(config);
    tensor_table_build(&model->desc, &model->table);
    model_layout(model, 1);
}

static void model_release(struct model *model)
{
    free(model->state);
    shard_layout_release(&model->layout);
    tensor_table_release(&model->table);
    model_desc_release(&model->desc);
}

/* Saves the model as one rank and opens the checkpoint. */
static struct checkpoint *save(struct model *model, const char *config, const char *tokenizer_dir)
{
    struct error err;
    struct bootstrap alone = {.world = 1, .local_world = 1, .num_nodes = 1, .shared_fd = -1, .cores = 1};
    struct comm_config comm_config = {.timeout_seconds = 10};
    struct comm *comm;
    model_layout(model, 1);
    for (int i = 0; i < model->table.num_tensors; i++)
        for (int64_t k = 0; k < model->table.tensors[i].numel; k++)
            own_slice(model, model->table.tensors[i].unit)[model->table.tensors[i].offset + k] =
                i == spoiled && k == 3 ? INFINITY : value_of(i, k);
    if (comm_open(&alone, &comm_config, &comm, &err) != STATUS_OK) fail_msg("%s", err.text);
    json_t *spec = json_object(), *source = json_loads(config, 0, NULL);
    struct checkpoint_save_cache *cache;
    if (checkpoint_save_cache_new(tokenizer_dir, tokenizer_dir, &cache, &err) != STATUS_OK) fail_msg("%s", err.text);
    struct checkpoint_writer writer = {.dir = at("checkpoints"),
                                       .table = &model->table,
                                       .layout = &model->layout,
                                       .comm = comm,
                                       .host = "here",
                                       .spec = spec,
                                       .model = source,
                                       .dtype = DTYPE_BF16,
                                       .cache = cache};
    struct train_position position = {.step = 3, .optimizer_step = 3, .epoch = 1, .step_in_epoch = 3, .tokens = 9};
    char name[64];
    int64_t bytes;
    if (save_whole(&writer, &position, slices_of(model), name, &bytes, &err) != STATUS_OK) fail_msg("%s", err.text);
    checkpoint_save_cache_free(cache);
    json_decref(spec);
    json_decref(source);
    comm_close(comm);
    bootstrap_release(&alone);
    struct checkpoint *checkpoint;
    if (checkpoint_open(at("checkpoints"), false, &checkpoint, &err) != STATUS_OK) fail_msg("%s", err.text);
    return checkpoint;
}

/* As the command does it. */
static enum status try_export(const struct checkpoint *checkpoint, const char *out, enum dtype dtype,
                              int64_t shard_bytes, struct error *err)
{
    struct export_folder target;
    enum status status = export_folder_open(&target, out, err);
    if (status == STATUS_OK)
        status = huggingface_export(checkpoint, NULL, target.fresh, dtype, shard_bytes, false, err);
    if (status == STATUS_OK) status = export_folder_publish(&target, err);
    export_folder_close(&target);
    return status;
}

static void export(const struct checkpoint *checkpoint, const char *out, enum dtype dtype, int64_t shard_bytes)
{
    struct error err;
    if (try_export(checkpoint, out, dtype, shard_bytes, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void expect_fault(const struct checkpoint *checkpoint, const char *out, enum status status, const char *words)
{
    struct error err = {.text = ""};
    enum status got = try_export(checkpoint, out, DTYPE_F32, 0, &err);
    if (got != status || !strstr(err.text, words)) fail_msg("'%s' expected, not %d '%s'", words, (int)got, err.text);
}

/* Reads an export back as two ranks and compares it with the values that were saved. */
static void check_export(struct model *model, const char *out, enum dtype dtype)
{
    struct error err;
    struct model_desc again;
    if (model_desc_load(out, &again, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(again.has_torch_dtype && again.torch_dtype == dtype);
    assert_non_null(json_object_get(again.source, "architectures"));
    const struct huggingface_source source = {.dir = out, .desc = &again, .table = &model->table};
    model_layout(model, 2);
    for (int rank = 0; rank < 2; rank++) {
        if (huggingface_load(&source, &model->layout, rank, 1, slices_of(model), &err) != STATUS_OK)
            fail_msg("%s", err.text);
        for (int unit = 0; unit < model->table.num_units; unit++) {
            for (int64_t i = 0; i < model->layout.slice[unit]; i++) {
                int64_t offset = rank * model->layout.slice[unit] + i;
                const struct tensor_info *tensor = tensor_at(&model->table, unit, offset);
                float want = tensor ? value_of((int)(tensor - model->table.tensors), offset - tensor->offset) : 0;
                if (dtype == DTYPE_BF16) want = bf16_to_f32(bf16_from_f32(want));
                if (dtype == DTYPE_F16) want = f16_to_f32(f16_from_f32(want));
                assert_true(own_slice(model, unit)[i] == want);
            }
        }
    }
    model_desc_release(&again);
    assert_true(count_files(out, ".tmp") == 0);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ztrain-export-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* ---- tests --------------------------------------------------------------- */

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const configs[] = {UNTIED, TIED, LARGE};
    for (size_t c = 0; c < COUNT_OF(configs); c++) {
        struct model model;
        model_init(&model, configs[c]);
        struct checkpoint *checkpoint = save(&model, configs[c], NULL);
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            const char *out = at("out-%d-%d/deep/er", (int)c, dtype);
            export(checkpoint, out, (enum dtype)dtype, 0);
            check_export(&model, out, (enum dtype)dtype);
            assert_int_equal(count_files(out, NULL), 2); /* config.json, model.safetensors */
        }
        checkpoint_close(checkpoint);
        model_release(&model);
    }
}

/* The data begin at a multiple of 8, which suits readers that map the file; tied heads are not written. */
static void test_header(void **state)
{
    (void)state;
    struct model model;
    struct safetensors_header header;
    struct error err;
    model_init(&model, TIED);
    struct checkpoint *checkpoint = save(&model, TIED, NULL);
    export(checkpoint, at("out"), DTYPE_BF16, 0);
    assert_int_equal(safetensors_read_header(at("out/model.safetensors"), &header, &err), STATUS_OK);
    assert_int_equal(header.count, model.table.num_tensors);
    assert_int_equal(header.entries[0].place.begin % 8, 0);
    assert_true(header.by_ztrain);
    for (int i = 0; i < header.count; i++) assert_string_equal(header.entries[i].name, model.table.tensors[i].name);
    safetensors_header_release(&header);
    checkpoint_close(checkpoint);
    model_release(&model);
}

static void test_shards(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, UNTIED);
    struct checkpoint *checkpoint = save(&model, UNTIED, NULL);
    const char *out = at("out");
    export(checkpoint, out, DTYPE_F32, 5000);
    check_export(&model, out, DTYPE_F32);
    int files = count_files(out, ".safetensors");
    assert_true(files > 3);
    assert_true(fs_exists(at("out/model-00001-of-%05d.safetensors", files)));
    json_t *index = json_load_file(at("out/model.safetensors.index.json"), 0, NULL);
    assert_int_equal(json_object_size(json_object_get(index, "weight_map")), model.table.num_tensors);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
                     model.table.num_params * 4);
    json_decref(index);
    for (int i = 1; i <= files; i++) {
        struct stat st;
        assert_int_equal(stat(at("out/model-%05d-of-%05d.safetensors", i, files), &st), 0);
        assert_true(st.st_size < 5000 + 3000); /* a header of less than 3000 bytes */
    }

    /* another number of files over it: the old files go, and so does what a killed export left; others stay */
    put(at("out/.tmp-model-00001-of-00099.safetensors"), "left behind");
    put(at("out/README.md"), "mine");
    assert_int_equal(mkdir(at("out/notes"), 0750), 0);
    put(at("out/notes/deep"), "mine as well");
    assert_int_equal(symlink("README.md", at("out/link")), 0);
    assert_int_equal(chmod(out, 0711), 0);
    export(checkpoint, out, DTYPE_BF16, 9000);
    check_export(&model, out, DTYPE_BF16);
    assert_true(count_files(out, ".safetensors") < files);
    export(checkpoint, out, DTYPE_F16, 0);
    check_export(&model, out, DTYPE_F16);
    assert_int_equal(count_files(out, NULL), 5); /* config.json, model.safetensors and the three others */
    assert_true(file_is(at("out/README.md"), "mine") && file_is(at("out/notes/deep"), "mine as well") &&
                file_is(at("out/link"), "mine"));
    struct stat facts;
    assert_true(stat(out, &facts) == 0 && (facts.st_mode & 07777) == 0711);
    assert_true(stat(at("out/notes"), &facts) == 0 && (facts.st_mode & 07777) == 0750);
    assert_int_equal(count_files(folder, NULL), 2); /* checkpoints, out */
    checkpoint_close(checkpoint);
    model_release(&model);
}

static void test_tokenizer(void **state)
{
    (void)state;
    struct model model;
    assert_int_equal(mkdir(at("tokenizer"), 0700), 0);
    put(at("tokenizer/vocab.json"), "{\"a\": 0}");
    put(at("tokenizer/merges.txt"), "#version\n");
    assert_int_equal(mkdir(at("tokenizer/additional_chat_templates"), 0700), 0);
    put(at("tokenizer/additional_chat_templates/tool_use.jinja"), "{{ tools }}");
    model_init(&model, TIED);
    struct checkpoint *checkpoint = save(&model, TIED, at("tokenizer"));
    export(checkpoint, at("out"), DTYPE_F32, 0);
    assert_true(file_is(at("out/vocab.json"), "{\"a\": 0}"));
    assert_true(file_is(at("out/merges.txt"), "#version\n"));
    assert_true(file_is(at("out/additional_chat_templates/tool_use.jinja"), "{{ tools }}"));
    assert_int_equal(count_files(at("out"), NULL), 5);
    put(at("checkpoints/step-00000003/vocab.json"), "{\"b\": 0}");
    expect_fault(checkpoint, at("out"), STATUS_CHECKPOINT, "vocab.json' is damaged at offset 0: its ");
    assert_true(file_is(at("out/vocab.json"), "{\"a\": 0}"));
    assert_int_equal(count_files(at("out"), NULL), 5);
    checkpoint_close(checkpoint);
    model_release(&model);
}

static void test_foreign_folders(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, TIED);
    struct checkpoint *checkpoint = save(&model, TIED, NULL);
    static const struct {
        const char *file, *text;
    } foreign[] = {
        {"config.json", "{}"},
        {"model.safetensors", "\x02\0\0\0\0\0\0\0{}"},
        {"adapter.safetensors", "junk"},
        {"pytorch_model.bin", "x"},
    };
    for (size_t i = 0; i < COUNT_OF(foreign); i++) {
        assert_int_equal(mkdir(at("foreign-%d", (int)i), 0700), 0);
        put(at("foreign-%d/%s", (int)i, foreign[i].file), foreign[i].text);
        expect_fault(checkpoint, at("foreign-%d", (int)i), STATUS_USAGE,
                     "holds a model that ztrain did not export; hint: choose another folder");
        assert_int_equal(count_files(at("foreign-%d", (int)i), NULL), 1);
        assert_true(file_is(at("foreign-%d/%s", (int)i, foreign[i].file), foreign[i].text));
    }
    assert_int_equal(mkdir(at("notes"), 0700), 0);
    export(checkpoint, at("notes"), DTYPE_F32, 0); /* an empty folder */
    assert_int_equal(mkdir(at("project"), 0700), 0);
    put(at("project/notes.txt"), "x");
    expect_fault(checkpoint, at("project"), STATUS_USAGE, "is not empty; hint: an export has a folder to itself");
    put(at("notes/metrics.jsonl"), "x");
    expect_fault(checkpoint, at("notes"), STATUS_USAGE, "is that of a run; hint: ");
    assert_int_equal(symlink("nowhere", at("lost")), 0);
    expect_fault(checkpoint, at("lost"), STATUS_USAGE, "it is a broken link");
    assert_int_equal(symlink("linked", at("link")), 0);
    assert_int_equal(mkdir(at("linked"), 0700), 0);
    export(checkpoint, at("link/"), DTYPE_F32, 0);
    export(checkpoint, at("link"), DTYPE_F32, 0);
    assert_int_equal(count_files(at("linked"), NULL), 2);
    char before[FS_PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(at("linked")), 0);
    expect_fault(checkpoint, ".", STATUS_USAGE, "is the current folder");
    assert_int_equal(chdir(before), 0);
    put(at("file"), "x");
    expect_fault(checkpoint, at("file"), STATUS_USAGE, "is a file, not a folder");
    expect_fault(checkpoint, at("file/out"), STATUS_USAGE, "/file' is not a folder");
    expect_fault(checkpoint, "/", STATUS_USAGE, "is a mount point");
    checkpoint_close(checkpoint);
    model_release(&model);
}

/* A full disk (a limit on file sizes stands in for it): the older export stays whole. */
static void test_full_disk(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, UNTIED);
    struct checkpoint *checkpoint = save(&model, UNTIED, NULL);
    export(checkpoint, at("out"), DTYPE_BF16, 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 8192;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_fault(checkpoint, at("out"), STATUS_DATA, "cannot write");
    expect_fault(checkpoint, at("new"), STATUS_DATA, "/new/model.safetensors': File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    check_export(&model, at("out"), DTYPE_BF16);
    assert_int_equal(count_files(at("out"), NULL), 2);
    assert_false(fs_exists(at("new")));
    assert_int_equal(count_files(folder, NULL), 2); /* checkpoints, out */
    checkpoint_close(checkpoint);
    model_release(&model);
}

/* What a killed export leaves beside its folder: half an export, or the earlier one between two renames. */
static void test_after_a_kill(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, TIED);
    struct checkpoint *checkpoint = save(&model, TIED, NULL);
    export(checkpoint, at("out"), DTYPE_BF16, 0);
    put(at("out/README.md"), "mine");
    assert_int_equal(mkdir(at(".out.ztrain-export"), 0700), 0);
    assert_int_equal(mkdir(at(".out.ztrain-export/new"), 0700), 0);
    put(at(".out.ztrain-export/new/tokenizer.json"), "half");
    export(checkpoint, at("out"), DTYPE_F32, 0);
    check_export(&model, at("out"), DTYPE_F32);
    assert_int_equal(count_files(at("out"), NULL), 3);

    put(at("checkpoints/step-00000003/manifest.json"), "damaged"); /* the export fails */
    for (int again = 0; again < 2; again++) { /* the second time somebody has made the folder anew */
        assert_int_equal(mkdir(at(".out.ztrain-export"), 0700), 0);
        assert_int_equal(rename(at("out"), at(".out.ztrain-export/former")), 0);
        if (again) assert_int_equal(mkdir(at("out"), 0700), 0);
        expect_fault(checkpoint, at("out"), STATUS_CHECKPOINT, "manifest.json");
        check_export(&model, at("out"), DTYPE_F32);
        assert_true(file_is(at("out/README.md"), "mine"));
        assert_int_equal(count_files(folder, NULL), 2); /* checkpoints, out */
    }
    checkpoint_close(checkpoint);
    model_release(&model);
}

/* One writer: another is refused at once. A writer that has lost its folder publishes nothing. */
static void test_one_writer(void **state)
{
    (void)state;
    struct export_folder first, second;
    struct error err;
    assert_int_equal(export_folder_open(&first, at("out"), &err), STATUS_OK);
    assert_int_equal(export_folder_open(&second, at("out/"), &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "is in use by another export (host "));
    export_folder_close(&second);
    assert_int_equal(export_folder_open(&second, at("other"), &err), STATUS_OK);
    export_folder_close(&second);
    assert_int_equal(mkdir(first.fresh, 0700), 0);
    assert_int_equal(unlink(at(".out.ztrain-export/owner")), 0);
    assert_int_equal(export_folder_publish(&first, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "another job has taken over this export folder"));
    export_folder_close(&first);
    assert_false(fs_exists(at("out")));
}

/* A checkpoint whose weights are damaged is not exported. */
static void test_damaged_checkpoint(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, UNTIED);
    struct checkpoint *checkpoint = save(&model, UNTIED, NULL);
    FILE *file = fopen(at("checkpoints/step-00000003/rank-00000.zst"), "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, 500, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 500, SEEK_SET), 0);
    fputc(byte ^ 4, file);
    fclose(file);
    expect_fault(checkpoint, at("out"), STATUS_CHECKPOINT, "rank-00000.zst");
    assert_false(fs_exists(at("out")));
    checkpoint_close(checkpoint);
    model_release(&model);
}

static void test_weights_that_are_not_finite(void **state)
{
    (void)state;
    struct model model;
    struct error err;
    model_init(&model, UNTIED);
    spoiled = model.table.num_tensors - 1;
    struct checkpoint *checkpoint = save(&model, UNTIED, NULL);
    expect_fault(checkpoint, at("out"), STATUS_DIVERGED,
                 "tensor 'lm_head.weight' holds an infinity: the run has diverged");
    assert_false(fs_exists(at("out/config.json")));
    assert_int_equal(huggingface_export(checkpoint, NULL, at("out"), DTYPE_BF16, 0, true, &err), STATUS_OK);
    assert_true(fs_exists(at("out/config.json")));
    spoiled = -1;
    checkpoint_close(checkpoint);
    model_release(&model);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_round_trip),
        CASE(test_header),
        CASE(test_shards),
        CASE(test_tokenizer),
        CASE(test_foreign_folders),
        CASE(test_full_disk),
        CASE(test_damaged_checkpoint),
        CASE(test_after_a_kill),
        CASE(test_one_writer),
        CASE(test_weights_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
