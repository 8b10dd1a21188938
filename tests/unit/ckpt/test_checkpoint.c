/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint.c: saving and loading at every world size; the choice of a run folder's checkpoint.
 * test_checkpoint_damage.c covers damage. */
#include "tests/unit/fixtures/checkpoint_case.h"

#include "ckpt/manifest.h"

/* ---- save and load ------------------------------------------------------- */

static void test_everything_comes_back(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], link[FS_PATH_MAX], target[64] = "";
    struct case_save how = {.world = 1, .step = 20, .epoch = 3, .level = 3, .large = true};
    struct train_position saved = case_position(&how);
    struct checkpoint *checkpoint;
    struct error err;
    struct stat info;
    case_save_ok(&how, path);
    assert_non_null(strstr(path, "/epoch-0003"));
    case_path(link, "latest");
    assert_true(readlink(link, target, sizeof target - 1) > 0);
    assert_string_equal(target, "epoch-0003");
    assert_int_equal(case_count(".tmp-"), 0);

    assert_int_equal(checkpoint_open(path, true, &checkpoint, &err), STATUS_OK);
    assert_memory_equal(&checkpoint->position, &saved, offsetof(struct train_position, epoch_end));
    assert_true(checkpoint->position.epoch_end);
    assert_int_equal(checkpoint->world, 1);
    assert_int_equal(checkpoint->dtype, DTYPE_BF16);
    assert_string_equal(json_string_value(json_object_get(checkpoint->spec, "run.name")), "ünï");
    assert_true(json_real_value(json_object_get(checkpoint->spec, "optimizer.params.lr")) == 0.1);
    assert_string_equal(json_string_value(json_object_get(checkpoint->model, "model_type")), "gpt2");
    int64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        char file[FS_PATH_MAX];
        assert_int_equal(fs_join(file, path, i ? "manifest.json" : "rank-00000.zst", STATUS_BUG, NULL), STATUS_OK);
        assert_int_equal(stat(file, &info), 0);
        bytes += info.st_size;
    }
    assert_true(checkpoint->bytes == bytes);
    checkpoint_close(checkpoint);
    case_load_ok(path, true, 1, 20);

    how.epoch = 0;
    how.step = 21;
    case_save_ok(&how, path);
    assert_non_null(strstr(path, "/step-00000021"));
}

static void test_every_world_size_loads_every_other(void **unused)
{
    (void)unused;
    static const int worlds[] = {1, 2, 3, 4, 6};
    for (size_t w = 0; w < COUNT_OF(worlds); w++) {
        char path[FS_PATH_MAX];
        struct case_save how = {.world = worlds[w], .step = 5 + (int64_t)w, .level = w % 2 ? 0 : 3, .large = w < 3};
        case_save_ok(&how, path);
        for (size_t r = 0; r < COUNT_OF(worlds); r++) case_load_ok(path, how.large, worlds[r], how.step);
    }
}

/* An adapter's base is in no rank file, at every world size; the manifest has its hash and where it came from. */
static void test_an_adapter_without_its_base(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], file[FS_PATH_MAX];
    static const int worlds[] = {1, 2, 3, 5};
    struct checkpoint *checkpoint;
    struct tensor_table table;
    struct stat whole, adapter;
    struct error err;
    float value;
    for (size_t w = 0; w < COUNT_OF(worlds); w++) {
        struct case_save how = {.world = worlds[w], .step = 3 + worlds[w], .large = w == 2};
        case_save_ok(&how, path);
        assert_int_equal(fs_join(file, path, "rank-00000.zst", STATUS_BUG, NULL), STATUS_OK);
        assert_int_equal(stat(file, &whole), 0);
        case_adapts = true;
        how.step += 100;
        case_save_ok(&how, path);
        assert_int_equal(fs_join(file, path, "rank-00000.zst", STATUS_BUG, NULL), STATUS_OK);
        assert_int_equal(stat(file, &adapter), 0);
        assert_true(how.large ? adapter.st_size < whole.st_size : adapter.st_size <= whole.st_size);
        for (size_t r = 0; r < COUNT_OF(worlds); r++) case_load_ok(path, how.large, worlds[r], how.step);

        assert_int_equal(checkpoint_open(path, true, &checkpoint, &err), STATUS_OK);
        assert_int_equal(json_integer_value(json_object_get(checkpoint->adapter, "r")), 8);
        assert_true(checkpoint->base.hash == CASE_BASE_HASH && checkpoint->base.seed == 7);
        assert_string_equal(checkpoint->base.folder, "/models/base");
        assert_true(checkpoint_stores(checkpoint, CASE_UNITS - 1) && !checkpoint_stores(checkpoint, CASE_UNITS));
        assert_int_equal(checkpoint_read(checkpoint, STATE_MASTER, 1, 0, 1, &value, &err), STATUS_OK);
        case_adapts = false;
        case_table(&table, how.large);
        assert_int_equal(checkpoint_check_table(checkpoint, &table, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, "is of an adapter, and this model of a whole model"));
        checkpoint_close(checkpoint);
    }
}

static void test_another_base(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3};
    struct checkpoint_base base = {.hash = CASE_BASE_HASH, .folder = "/elsewhere"};
    struct checkpoint *checkpoint;
    struct error err;
    case_adapts = true;
    case_save_ok(&how, path);
    case_adapts = false;
    assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_OK);
    assert_int_equal(checkpoint_check_base(checkpoint, &base, &err), STATUS_OK);
    base.hash++;
    assert_int_equal(checkpoint_check_base(checkpoint, &base, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "was trained on another base: the frozen weights of /elsewhere have the hash "
                                     "0123456789abcdf0, and those it was trained on 0123456789abcdef"));
    assert_non_null(strstr(err.text, "hint: its base was the folder '/models/base'"));
    base.folder = checkpoint->base.folder = NULL;
    assert_int_equal(checkpoint_check_base(checkpoint, &base, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "the frozen weights of the model have"));
    assert_non_null(strstr(err.text, "hint: its base were initial values with run.seed 7"));
    checkpoint_close(checkpoint);
}

static void test_moments_in_other_bits_are_refused(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 8};
    struct tensor_table table;
    struct case_state state;
    struct checkpoint *checkpoint;
    struct error err;
    case_save_ok(&how, path);
    assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_OK);
    case_table(&table, false);
    case_state_init(&state, &table, 0, 1);
    table.moment_blocks = true;
    struct state_slices slices = case_slices(&state);
    assert_int_equal(checkpoint_load(checkpoint, &table, &state.layout, 0, slices, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "has moments in fp32, this run in 8 bits; hint: set optimizer.type as it was"));
    slices.count = 1;
    slices.weights_only = true;
    assert_int_equal(checkpoint_load(checkpoint, &table, &state.layout, 0, slices, &err), STATUS_OK);
    case_state_release(&state);
    checkpoint_close(checkpoint);
}

static void test_any_range_can_be_read(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 2, .step = 9, .level = 1, .large = true};
    struct tensor_table table;
    struct checkpoint *checkpoint;
    struct error err;
    case_table(&table, true);
    case_save_ok(&how, path);
    assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_OK);
    int64_t numel = table.units[2].numel;
    float *out = malloc((size_t)(numel + 2) * sizeof *out);
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 60; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int unit = i % 3, state = (i / 3) % 3;
        int64_t n = table.units[unit].numel, first = (int64_t)(random % (uint64_t)n);
        int64_t count = i < 6 ? n - first : (int64_t)((random >> 20) % (uint64_t)(n - first + 1));
        out[0] = out[count + 1] = -7.0f;
        assert_int_equal(checkpoint_read(checkpoint, (enum state_kind)state, unit, first, count, out + 1, &err),
                         STATUS_OK);
        assert_true(out[0] == -7.0f && out[count + 1] == -7.0f);
        for (int64_t k = 0; k < count; k++) {
            float expected = case_value(state, unit, first + k, 9);
            assert_memory_equal(&out[k + 1], &expected, sizeof expected);
        }
    }
    free(out);
    checkpoint_close(checkpoint);
}

/* A stored checkpoint of format version 1: checkpoints on users' disks must stay readable. */
static void test_golden_checkpoint(void **unused)
{
    (void)unused;
    case_load_ok("tests/unit/fixtures/checkpoint-v1", false, 1, 5);
    case_load_ok("tests/unit/fixtures/checkpoint-v1", false, 3, 5);
}

/* Messages contain printable text only. */
static void test_machine(void **unused)
{
    (void)unused;
    struct tensor_table table;
    struct case_state state;
    case_table(&table, false);
    case_state_init(&state, &table, 0, 1);
    json_t *machines[] = {
        json_pack("{s:s, s:b, s:i}", "gpu", "NVIDIA ~1", "amx_bf16", 1, "threads", 2),
        json_object(),
        NULL,
        json_pack("{s:s}", "gpu", "a\nb"),
        json_pack("{s:s}", "gpu", "caf\xc3\xa9"),
        json_pack("{s:f}", "gpu", 1.5),
        json_pack("{s:[]}", "gpu"),
        json_array(),
    };
    struct checkpoint_writer writer = {
        .table = &table, .layout = &state.layout, .spec = json_object(), .model = json_object()};
    struct rankfile_shape shape = {0, 1, STATE_KIND_COUNT, CASE_UNITS, state.layout.slice, state_kind_names, NULL};
    struct manifest_file file = {"rank-00000.zst", 1000, rankfile_num_frames(&shape), 1};
    for (size_t i = 0; i < COUNT_OF(machines); i++) {
        const struct train_position position = {.epoch = 1};
        struct manifest *manifest;
        struct error err;
        char *text;
        size_t bytes;
        writer.machine = machines[i];
        enum status status = manifest_encode(&writer, &position, STATE_KIND_COUNT, NULL, &file, 1, &text, &bytes, &err);
        assert_int_equal(status, i < 3 ? STATUS_OK : STATUS_CHECKPOINT);
        if (status == STATUS_OK) {
            assert_int_equal(manifest_decode(text, bytes, "m", &manifest, &err), STATUS_OK);
            assert_true(machines[i] ? json_equal(manifest->facts.machine, machines[i]) : !manifest->facts.machine);
            manifest_free(manifest);
        } else { /* manifest_encode() decodes its own output */
            assert_non_null(strstr(err.text, "'manifest.json' is damaged: machine: expected"));
        }
        free(text);
        json_decref(machines[i]);
    }
    json_decref((json_t *)writer.spec);
    json_decref((json_t *)writer.model);
    case_state_release(&state);
}

static void test_hashes_of_the_state(void **unused)
{
    (void)unused;
    static const uint64_t hashes[STATE_KIND_COUNT] = {1, 0xfedcba9876543210u, 0};
    struct tensor_table table;
    struct case_state state;
    case_table(&table, false);
    case_state_init(&state, &table, 0, 2);
    struct checkpoint_writer writer = {
        .table = &table, .layout = &state.layout, .spec = json_object(), .model = json_object()};
    struct rankfile_shape shape = {0, 2, STATE_KIND_COUNT, CASE_UNITS, state.layout.slice, state_kind_names, NULL};
    struct manifest_file files[2] = {{"rank-00000.zst", 1000, rankfile_num_frames(&shape), 1},
                                     {"rank-00001.zst", 1000, rankfile_num_frames(&shape), 1}};
    const struct train_position position = {.epoch = 1};
    for (writer.virtual_ranks = 0; writer.virtual_ranks < 5; writer.virtual_ranks++) {
        const bool fits = writer.virtual_ranks % 2 == 0;
        struct manifest *manifest;
        struct error err;
        char *text;
        size_t bytes;
        enum status status =
            manifest_encode(&writer, &position, STATE_KIND_COUNT, fits ? hashes : NULL, files, 2, &text, &bytes, &err);
        assert_int_equal(status, fits ? STATUS_OK : STATUS_CHECKPOINT);
        if (!fits) {
            assert_non_null(strstr(err.text, "virtual_ranks: expected a multiple of 2 ranks"));
            continue;
        }
        assert_int_equal(manifest_decode(text, bytes, "m", &manifest, &err), STATUS_OK);
        assert_int_equal(manifest->facts.virtual_ranks, writer.virtual_ranks);
        assert_true(manifest->facts.hashed);
        assert_memory_equal(manifest->facts.hashes, hashes, sizeof hashes);
        manifest_free(manifest);
        free(text);
    }
    json_decref((json_t *)writer.spec);
    json_decref((json_t *)writer.model);
    case_state_release(&state);
}

static void test_losses_that_json_has_no_number_for(void **unused)
{
    (void)unused;
    static const double sums[] = {NAN, INFINITY, -INFINITY, 0.1, 5e-324, 1.7976931348623157e308, 0, -3};
    struct tensor_table table;
    struct case_state state;
    case_table(&table, false);
    case_state_init(&state, &table, 0, 1);
    struct checkpoint_writer writer = {
        .table = &table, .layout = &state.layout, .spec = json_object(), .model = json_object()};
    struct rankfile_shape shape = {0, 1, STATE_KIND_COUNT, CASE_UNITS, state.layout.slice, state_kind_names, NULL};
    struct manifest_file file = {"rank-00000.zst", 1000, rankfile_num_frames(&shape), 0xfedcba9876543210u};
    for (size_t i = 0; i < COUNT_OF(sums); i++) {
        struct train_position position = {.epoch_loss_sum = sums[i]};
        struct manifest *manifest;
        struct error err;
        char *text;
        size_t bytes;
        assert_int_equal(manifest_encode(&writer, &position, STATE_KIND_COUNT, NULL, &file, 1, &text, &bytes, &err),
                         STATUS_OK);
        assert_int_equal(manifest_decode(text, bytes, "m", &manifest, &err), STATUS_OK);
        assert_true(isnan(sums[i]) ? isnan(manifest->facts.position.epoch_loss_sum)
                                   : manifest->facts.position.epoch_loss_sum == sums[i]);
        assert_true(manifest->files[0].checksum == 0xfedcba9876543210u);
        manifest_free(manifest);
        free(text);
    }
    json_decref((json_t *)writer.spec);
    json_decref((json_t *)writer.model);
    case_state_release(&state);
}

static void test_tokenizer_files_come_along(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], source[FS_PATH_MAX], file[FS_PATH_MAX], next[FS_PATH_MAX];
    struct checkpoint *checkpoint;
    struct error err;
    case_path(source, "tokenizer");
    assert_int_equal(mkdir(source, 0777), 0);
    case_path(file, "tokenizer/tokenizer.json");
    case_write(file, "{\"a\": 1}", 8);
    case_path(file, "tokenizer/merges.txt");
    case_write(file, "", 0);
    case_path(file, "tokenizer/model.safetensors");
    case_write(file, "x", 1);
    case_path(file, "tokenizer/additional_chat_templates");
    assert_int_equal(mkdir(file, 0777), 0);
    case_path(file, "tokenizer/additional_chat_templates/rag.jinja");
    case_write(file, "{{ 1 }}", 7);
    case_path(file, "tokenizer/additional_chat_templates/rag.jinja~");
    case_write(file, "old", 3);
    struct case_save how = {.world = 2, .step = 1, .level = 3, .tokenizer_dir = source};
    case_save_ok(&how, path);
    assert_true(case_has("step-00000001/tokenizer.json") && case_has("step-00000001/merges.txt"));
    assert_false(case_has("step-00000001/model.safetensors"));
    assert_true(case_has("step-00000001/additional_chat_templates-rag.jinja"));
    assert_false(case_has("step-00000001/additional_chat_templates-rag.jinja~"));
    assert_int_equal(checkpoint_open(path, true, &checkpoint, &err), STATUS_OK);
    checkpoint_close(checkpoint);

    struct checkpoint_save_cache *cache; /* a checkpoint is a tokenizer's folder for the run that resumes from it */
    how.tokenizer_dir = path;
    how.step = 2;
    case_save_ok(&how, next);
    assert_true(case_has("step-00000002/tokenizer.json") && case_has("step-00000002/merges.txt"));
    assert_true(case_has("step-00000002/additional_chat_templates-rag.jinja"));

    case_path(file, "tokenizer/additional_chat_templates/a-name-that-has-no-room-in-manifests.jinja");
    case_write(file, "", 0);
    assert_int_equal(checkpoint_save_cache_new(source, source, &cache, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "its name is too long"));

    case_path(source, "elsewhere");
    assert_int_equal(mkdir(source, 0777), 0);
    case_path(file, "elsewhere/additional_chat_templates");
    assert_int_equal(symlink("unmounted", file), 0);
    assert_int_equal(checkpoint_save_cache_new(source, NULL, &cache, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "it is a broken link"));

    how.tokenizer_dir = "/nonexistent"; /* no such files, so none is copied */
    how.step = 3;
    case_save_ok(&how, path);
}

static void test_another_model_is_refused(void **unused)
{
    (void)unused;
    static const char *const expected[] = {
        "'wte.weight' of shape (7, 11) there and 'wpe.weight' of shape (7, 11)",
        "(30) there and 'h.0.ln.bias' of shape (31)", "has 'h.0.mlp.weight' at element 64 of unit 1",
        "there and no more tensors in this model", "264 elements in unit 1, this model 265"};
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 1, .level = 3};
    struct checkpoint *checkpoint;
    struct error err;
    case_save_ok(&how, path);
    assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        struct tensor_table table;
        struct case_state state;
        case_table(&table, false);
        if (i == 0)
            strcpy(table.tensors[0].name, "wpe.weight");
        else if (i == 1)
            table.tensors[1].shape[0] = 31;
        else if (i == 2)
            table.tensors[2].offset = 32;
        else if (i == 3)
            table.num_tensors--;
        else
            table.units[1].numel++;
        case_state_init(&state, &table, 0, 1);
        assert_int_equal(checkpoint_load(checkpoint, &table, &state.layout, 0, case_slices(&state), &err),
                         STATUS_CHECKPOINT);
        if (!strstr(err.text, expected[i])) fail_msg("%s", err.text);
        case_state_release(&state);
    }
    checkpoint_close(checkpoint);
}

/* ---- which checkpoint is taken ------------------------------------------- */

static void test_newest_valid_one(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], run[FS_PATH_MAX], link[FS_PATH_MAX];
    struct error err;
    assert_false(case_holds_any(case_dir));
    for (int i = 1; i <= 4; i++) { /* epoch-0002 belongs to step 3; step-00000004 is newer */
        struct case_save how = {.world = 1, .step = i, .epoch = i == 3 ? 2 : 0, .level = 0};
        case_save_ok(&how, path);
    }
    assert_true(case_holds_any(case_dir));
    assert_int_equal(case_opened_step(case_dir, true, &err), 4);
    case_damage("step-00000004/rank-00000.zst");
    assert_int_equal(case_opened_step(case_dir, true, &err), 3);
    assert_int_equal(case_opened_step(case_dir, false, &err),
                     4); /* the sizes are right; loading will find the damage */
    case_damage("epoch-0002/manifest.json");
    assert_int_equal(case_opened_step(case_dir, true, &err), 2);

    /* a run folder; `latest` dangles, is a file, is not there */
    case_path(run, "run");
    assert_int_equal(mkdir(run, 0777), 0);
    case_path(path, "run/checkpoints");
    assert_int_equal(symlink(case_dir, path), 0);
    assert_int_equal(case_opened_step(run, true, &err), 2);
    case_path(link, "latest");
    assert_int_equal(remove(link), 0);
    assert_int_equal(symlink("epoch-0099", link), 0);
    assert_int_equal(case_opened_step(run, true, &err), 2);
    assert_int_equal(case_opened_step(link, true, &err), -1);
    assert_non_null(strstr(err.text, "it is a broken link"));
    assert_int_equal(remove(link), 0);
    case_write(link, "x", 1);
    assert_int_equal(case_opened_step(run, true, &err), 2);

    case_path(path, "step-00000002/rank-00000.zst");
    assert_int_equal(remove(path), 0);
    assert_int_equal(case_opened_step(run, true, &err), 1);
    case_path(path, "step-00000001/manifest.json");
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(case_opened_step(run, true, &err), -1);
    assert_non_null(strstr(err.text, "none of the 4 checkpoints"));
    assert_non_null(strstr(err.text, "is damaged at offset "));
    assert_non_null(strstr(err.text, "; hint: another run.name starts a new run"));
}

static void test_what_is_no_checkpoint(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], manifest[FS_PATH_MAX];
    struct error err;
    case_path(path, "nothing");
    assert_int_equal(case_opened_step(path, false, &err), -1);
    assert_non_null(strstr(err.text, "No such file or directory; hint: "));
    assert_int_equal(case_opened_step(case_dir, false, &err), -1);
    assert_non_null(strstr(err.text, "neither a checkpoint (there is no manifest.json) nor a run folder"));
    case_path(path, "file");
    case_write(path, "x", 1);
    assert_int_equal(case_opened_step(path, false, &err), -1);
    assert_non_null(strstr(err.text, "it is not a folder"));
    case_path(path, "run.yaml");
    case_write(path, "x", 1);
    assert_int_equal(case_opened_step(case_dir, true, &err), -1);
    assert_non_null(strstr(err.text, "holds no checkpoint yet; hint: "));
    assert_int_equal(unlink(path), 0);
    case_path(path, "checkpoints");
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(case_opened_step(case_dir, false, &err), -1);
    assert_non_null(strstr(err.text, "there is no checkpoint in"));

    struct case_save how = {.world = 1, .step = 1};
    case_save_ok(&how, path);
    case_path(manifest, "step-00000001/manifest.json");
    assert_int_equal(remove(manifest), 0);
    assert_int_equal(case_opened_step(path, false, &err), -1);
    assert_non_null(strstr(err.text, "manifest.json is missing"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, case_setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_everything_comes_back),
        TEST(test_every_world_size_loads_every_other),
        TEST(test_an_adapter_without_its_base),
        TEST(test_another_base),
        TEST(test_moments_in_other_bits_are_refused),
        TEST(test_any_range_can_be_read),
        TEST(test_golden_checkpoint),
        TEST(test_machine),
        TEST(test_hashes_of_the_state),
        TEST(test_losses_that_json_has_no_number_for),
        TEST(test_tokenizer_files_come_along),
        TEST(test_another_model_is_refused),
        TEST(test_newest_valid_one),
        TEST(test_what_is_no_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
