/* test_checkpoint.c: saving and loading at every world size; the choice of a run folder's checkpoint; occupied
 * names; retention; failures and kills in the middle of a save. test_checkpoint_damage.c covers damage. */
#include "tests/unit/fixtures/checkpoint_case.h"

#include "ckpt/manifest.h"
#include "core/faults.h"
#include "core/metrics/eval_part.h"

#include <sys/inotify.h>
#include <sys/prctl.h>

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
        for (size_t r = 0; r < COUNT_OF(worlds); r++)
            case_load_ok(path, how.large, worlds[r], how.step);
    }
}

/* Frozen tensors are there once, at every world size; they must be the same ones in the run that loads them. */
static void test_frozen_tensors(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], manifest[FS_PATH_MAX];
    static const int worlds[] = {1, 2, 3, 5};
    struct checkpoint *checkpoint;
    struct tensor_table plain, table;
    struct error err;
    size_t bytes;
    case_freezes = true;
    for (size_t w = 0; w < COUNT_OF(worlds); w++) {
        struct case_save how = {.world = worlds[w], .step = 3 + worlds[w], .level = (int)w, .large = w == 2};
        case_save_ok(&how, path);
        for (size_t r = 0; r < COUNT_OF(worlds); r++)
            case_load_ok(path, how.large, worlds[r], how.step);
        assert_int_equal(checkpoint_open(path, true, &checkpoint, &err), STATUS_OK);
        case_plain_table(&plain, how.large);
        assert_int_equal(checkpoint_check_table(checkpoint, &plain, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, "2 units with frozen tensors"));
        case_copy_table(&table, &plain);
        checkpoint_freeze_table(checkpoint, &table);
        assert_int_equal(checkpoint_check_table(checkpoint, &table, &err), STATUS_OK);
        tensor_table_release(&table);
        checkpoint_close(checkpoint);
    }
    case_freezes = false;
    assert_int_equal(fs_join(manifest, path, "manifest.json", STATUS_BUG, NULL), STATUS_OK);
    char *text = case_read(manifest, &bytes);
    assert_non_null(strstr(text, "\"format_version\": 3,"));
    assert_non_null(strstr(text, "\"name\": \"embedding, frozen\", \"numel\": 77, \"slice\": 64, \"frozen\": true"));
    free(text);
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
    struct rankfile_shape shape = {
        0, 1, STATE_KIND_COUNT, CASE_UNITS, CASE_UNITS, state.layout.slice, state_kind_names};
    struct manifest_file file = {"rank-00000.zst", 1000, rankfile_num_frames(&shape), 1};
    for (size_t i = 0; i < COUNT_OF(machines); i++) {
        const struct train_position position = {.epoch = 1};
        struct manifest *manifest;
        struct error err;
        char *text;
        size_t bytes;
        writer.machine = machines[i];
        enum status status = manifest_encode(&writer, &position, STATE_KIND_COUNT, &file, 1, &text, &bytes, &err);
        assert_int_equal(status, i < 3 ? STATUS_OK : STATUS_CHECKPOINT);
        if (status == STATUS_OK) {
            assert_int_equal(manifest_decode(text, bytes, "m", &manifest, &err), STATUS_OK);
            assert_true(machines[i] ? json_equal(manifest->machine, machines[i]) : !manifest->machine);
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
    struct rankfile_shape shape = {
        0, 1, STATE_KIND_COUNT, CASE_UNITS, CASE_UNITS, state.layout.slice, state_kind_names};
    struct manifest_file file = {"rank-00000.zst", 1000, rankfile_num_frames(&shape), 0xfedcba9876543210u};
    for (size_t i = 0; i < COUNT_OF(sums); i++) {
        struct train_position position = {.epoch_loss_sum = sums[i]};
        struct manifest *manifest;
        struct error err;
        char *text;
        size_t bytes;
        assert_int_equal(manifest_encode(&writer, &position, STATE_KIND_COUNT, &file, 1, &text, &bytes, &err),
                         STATUS_OK);
        assert_int_equal(manifest_decode(text, bytes, "m", &manifest, &err), STATUS_OK);
        assert_true(isnan(sums[i]) ? isnan(manifest->position.epoch_loss_sum)
                                   : manifest->position.epoch_loss_sum == sums[i]);
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
        if (!strstr(err.text, expected[i]))
            fail_msg("%s", err.text);
        case_state_release(&state);
    }
    checkpoint_close(checkpoint);
}

/* ---- which checkpoint is taken ------------------------------------------- */

/* The step of the checkpoint that opening `dir` gives; -1: none. */
static int64_t opened_step(const char *dir, bool full, struct error *err)
{
    struct checkpoint *checkpoint;
    if (checkpoint_open(dir, full, &checkpoint, err) != STATUS_OK)
        return -1;
    int64_t step = checkpoint->position.step;
    checkpoint_close(checkpoint);
    return step;
}

/* Flips a bit in the middle of a file. */
static void damage(const char *name)
{
    char path[FS_PATH_MAX];
    size_t bytes;
    case_path(path, "%s", name);
    char *data = case_read(path, &bytes);
    data[bytes / 2] ^= 4;
    case_write(path, data, bytes);
    free(data);
}

static bool holds_any(const char *dir)
{
    bool any;
    struct error err;
    assert_int_equal(checkpoint_any(dir, &any, &err), STATUS_OK);
    return any;
}

static void test_newest_valid_one(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], run[FS_PATH_MAX], link[FS_PATH_MAX];
    struct error err;
    assert_false(holds_any(case_dir));
    for (int i = 1; i <= 4; i++) { /* epoch-0002 belongs to step 3; step-00000004 is newer */
        struct case_save how = {.world = 1, .step = i, .epoch = i == 3 ? 2 : 0, .level = 0};
        case_save_ok(&how, path);
    }
    assert_true(holds_any(case_dir));
    assert_int_equal(opened_step(case_dir, true, &err), 4);
    damage("step-00000004/rank-00000.zst");
    assert_int_equal(opened_step(case_dir, true, &err), 3);
    assert_int_equal(opened_step(case_dir, false, &err), 4); /* the sizes are right; loading will find the damage */
    damage("epoch-0002/manifest.json");
    assert_int_equal(opened_step(case_dir, true, &err), 2);

    /* a run folder; `latest` dangles, is a file, is not there */
    case_path(run, "run");
    assert_int_equal(mkdir(run, 0777), 0);
    case_path(path, "run/checkpoints");
    assert_int_equal(symlink(case_dir, path), 0);
    assert_int_equal(opened_step(run, true, &err), 2);
    case_path(link, "latest");
    assert_int_equal(remove(link), 0);
    assert_int_equal(symlink("epoch-0099", link), 0);
    assert_int_equal(opened_step(run, true, &err), 2);
    assert_int_equal(opened_step(link, true, &err), -1);
    assert_non_null(strstr(err.text, "it is a broken link"));
    assert_int_equal(remove(link), 0);
    case_write(link, "x", 1);
    assert_int_equal(opened_step(run, true, &err), 2);

    case_path(path, "step-00000002/rank-00000.zst");
    assert_int_equal(remove(path), 0);
    assert_int_equal(opened_step(run, true, &err), 1);
    case_path(path, "step-00000001/manifest.json");
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(opened_step(run, true, &err), -1);
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
    assert_int_equal(opened_step(path, false, &err), -1);
    assert_non_null(strstr(err.text, "No such file or directory; hint: "));
    assert_int_equal(opened_step(case_dir, false, &err), -1);
    assert_non_null(strstr(err.text, "neither a checkpoint (there is no manifest.json) nor a run folder"));
    case_path(path, "file");
    case_write(path, "x", 1);
    assert_int_equal(opened_step(path, false, &err), -1);
    assert_non_null(strstr(err.text, "it is not a folder"));
    case_path(path, "run.yaml");
    case_write(path, "x", 1);
    assert_int_equal(opened_step(case_dir, true, &err), -1);
    assert_non_null(strstr(err.text, "holds no checkpoint yet; hint: "));
    assert_int_equal(unlink(path), 0);
    case_path(path, "checkpoints");
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(opened_step(case_dir, false, &err), -1);
    assert_non_null(strstr(err.text, "there is no checkpoint in"));

    struct case_save how = {.world = 1, .step = 1};
    case_save_ok(&how, path);
    case_path(manifest, "step-00000001/manifest.json");
    assert_int_equal(remove(manifest), 0);
    assert_int_equal(opened_step(path, false, &err), -1);
    assert_non_null(strstr(err.text, "manifest.json is missing"));
}

/* ---- names, retention, leftovers ----------------------------------------- */

/* A link whose disk is not mounted, or a file, is no absent folder; in the place of a checkpoint it may be the newest.
 */
static void test_what_leads_nowhere(void **unused)
{
    (void)unused;
    char run[FS_PATH_MAX], path[FS_PATH_MAX], disk[FS_PATH_MAX], away[FS_PATH_MAX];
    struct error err;
    bool any;
    for (int i = 1; i <= 2; i++) {
        struct case_save how = {.world = 1, .step = i};
        case_save_ok(&how, path);
    }
    case_path(run, "run");
    assert_int_equal(mkdir(run, 0777), 0);
    case_path(path, "run/checkpoints");
    assert_int_equal(symlink("../disk", path), 0);
    for (int file = 0; file < 2; file++) {
        assert_int_equal(checkpoint_any(path, &any, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, file ? "it is not a folder; hint: " : "it is a broken link; hint: "));
        assert_int_equal(opened_step(run, true, &err), -1);
        assert_non_null(strstr(err.text, file ? "it is not a folder; hint: " : "it is a broken link; hint: "));
        assert_int_equal(remove(path), 0);
        case_write(path, "x", 1);
    }
    assert_int_equal(remove(path), 0);
    assert_int_equal(checkpoint_any(path, &any, &err), STATUS_OK);
    assert_false(any);

    case_path(path, "step-00000002");
    case_path(disk, "disk");
    case_path(away, "away");
    assert_int_equal(rename(path, disk), 0);
    assert_int_equal(symlink("disk", path), 0);
    assert_int_equal(opened_step(case_dir, true, &err), 2);
    assert_int_equal(rename(disk, away), 0);
    assert_int_equal(opened_step(case_dir, true, &err), -1);
    assert_non_null(strstr(err.text, "step-00000002': it is a broken link; hint: make "));
    assert_non_null(strstr(err.text, "step-00000001' is of step 1"));
    struct case_save next = {.world = 1, .step = 3, .keep_last = 1};
    case_save_ok(&next, path); /* an older one that leads nowhere stays */
    assert_true(case_has("step-00000002") && !case_has("step-00000001"));
    assert_int_equal(opened_step(case_dir, true, &err), 3);
}

/* What a kill has left after the checkpoint was complete. */
static void test_mending(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct checkpoint_save_cache *cache;
    struct error err;
    for (int i = 1; i <= 3; i++) {
        struct case_save how = {.world = 1, .step = i};
        case_save_ok(&how, path);
    }
    case_path(path, ".tmp-delete-step-00000000");
    assert_int_equal(mkdir(path, 0777), 0);
    case_path(path, ".tmp-delete-step-00000000/rank-00000.zst");
    case_write(path, "x", 1);
    case_path(path, "latest");
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("step-00000002", path), 0);
    const struct case_save last = {.world = 1, .step = 3};
    const struct train_position position = case_position(&last);
    const struct checkpoint_keep keep = {.last = 2};
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, &err), STATUS_OK);
    for (int again = 0; again < 2; again++) {
        checkpoint_publish_again(cache, case_dir, "step-00000003", &position, &keep);
        assert_true(case_has("step-00000003") && case_has("step-00000002") && !case_has("step-00000001"));
        assert_int_equal(case_count(".tmp-"), 0);
        case_path(path, "latest");
        assert_int_equal(opened_step(path, true, &err), 3);
    }
    checkpoint_save_cache_free(cache);
}

static void test_keep_last(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    for (int i = 1; i <= 5; i++) {
        struct case_save how = {.world = 1, .step = i, .epoch = i == 4 ? 1 : 0, .keep_last = i < 5 ? 3 : 2};
        case_save_ok(&how, path);
        assert_int_equal(case_count("step-") + case_count("epoch-"), i < 4 ? i : i == 4 ? 3 : 2);
    }
    assert_true(case_has("step-00000005") && case_has("epoch-0001"));
    /* an epoch's end at the same step: the new one stays, whatever its name */
    struct case_save end = {.world = 1, .step = 5, .epoch = 2, .keep_last = 1};
    case_save_ok(&end, path);
    assert_true(case_has("epoch-0002"));
    assert_int_equal(case_count("step-") + case_count("epoch-"), 1);
}

/* Where the link `best` points; "": nowhere. */
static const char *best_link(void)
{
    static char name[64];
    char path[FS_PATH_MAX];
    case_path(path, "best");
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n > 0 ? n : 0] = '\0';
    return name;
}

static void test_keep_best(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    const double losses[] = {0, 5, 4, NAN, 0, 4, 4.5, 3, 6, 7}; /* of steps 1 to 9; of step 4 there is none */
    for (int i = 1; i <= 9; i++) {
        struct case_save how = {
            .world = 1, .step = i, .keep_last = 1, .keep_best = 2, .keep_every_steps = 4, .eval_loss = losses[i]};
        case_save_ok(&how, path);
    }
    assert_true(case_has("step-00000009") && case_has("step-00000008") && case_has("step-00000004"));
    assert_true(case_has("step-00000007") && case_has("step-00000002")); /* 5 is as good as 2, but later */
    assert_int_equal(case_count("step-"), 5);
    assert_string_equal(best_link(), "step-00000007");
    /* back at step 6: 7 is of another history */
    struct case_save again = {.world = 1, .step = 6, .keep_last = 1, .keep_best = 2, .eval_loss = 4.2};
    case_save_ok(&again, path);
    assert_true(case_has("step-00000007.aside-1") && case_has("step-00000002") && case_has("step-00000006"));
    assert_false(case_has("step-00000004"));
    assert_string_equal(best_link(), "step-00000002");
    struct case_save none = {.world = 1, .step = 10, .keep_last = 1, .eval_loss = 9};
    case_save_ok(&none, path);
    assert_false(case_has("step-00000002"));
    assert_string_equal(best_link(), ""); /* it would point at nothing */
}

static void test_scores_are_read_back(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct error err;
    struct checkpoint *checkpoint;
    for (int i = 1; i <= 3; i++) {
        struct case_save how = {.world = 1, .step = i, .eval_loss = i == 3 ? NAN : 4 + 0.1 * i};
        case_save_ok(&how, path);
        assert_int_equal(checkpoint_open(path, true, &checkpoint, &err), STATUS_OK);
        const struct train_position *position = &checkpoint->position;
        assert_true(position->scores.known && isnan(position->scores.values[EVAL_METRIC_ACCURACY]));
        assert_true(i == 3 ? isnan(position->scores.values[0]) : position->scores.values[0] == how.eval_loss);
        assert_true(position->scores.values[EVAL_METRIC_F1] == 0.25 && position->stopped_early == (i % 2 == 1));
        assert_true(position->stopping.begun && position->stopping.evaluations == i);
        assert_true(position->mean_loss.steps == (i == 2 ? 2 : 0));
        assert_true(position->mean_loss.mean == (i == 2 ? 1.0 / 3 + 2 : 0));
        checkpoint_close(checkpoint);
    }
    assert_int_equal(checkpoint_open_best(case_dir, true, &checkpoint, &err), STATUS_OK);
    assert_int_equal(checkpoint->position.step, 1);
    checkpoint_close(checkpoint);
    assert_int_equal(checkpoint_open_best(path, true, &checkpoint, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "name the run folder"));
    damage("step-00000001/rank-00000.zst");
    assert_int_equal(checkpoint_open_best(case_dir, true, &checkpoint, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "step-00000001"));
}

static void test_names_in_the_way(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], stale[FS_PATH_MAX];
    struct case_save how = {.world = 2, .step = 3};
    struct error err;
    case_path(stale, ".tmp-step-00000003");
    assert_int_equal(mkdir(stale, 0777), 0);
    case_path(stale, ".tmp-step-00000003/rank-00000.zst");
    case_write(stale, "x", 1);
    case_save_ok(&how, path);
    assert_int_equal(case_count(".tmp-"), 0);

    case_save_ok(&how, path); /* valid, same step: replaced */
    assert_int_equal(case_count(""), 2);
    case_load_ok(path, false, 1, 3);

    damage("step-00000003/rank-00001.zst");
    case_save_ok(&how, path);
    case_load_ok(path, false, 1, 3);
    assert_true(case_has("step-00000003.damaged-1"));
    damage("step-00000003/manifest.json");
    case_save_ok(&how, path);
    assert_true(case_has("step-00000003.damaged-2"));
    assert_int_equal(opened_step(case_dir, true, &err), 3);

    struct case_save epoch = {.world = 1, .step = 8, .epoch = 1}, again = {.world = 1, .step = 4, .epoch = 1};
    case_save_ok(&epoch, path);
    case_save_ok(&again, path); /* the same epoch at an earlier step: the run went back */
    assert_true(case_has("epoch-0001.aside-1"));
    case_load_ok(case_dir, false, 1, 4);
    how.step = 2; /* further back: later checkpoints would be taken for the newest */
    how.keep_last = 1;
    case_save_ok(&how, path);
    case_load_ok(case_dir, false, 1, 2);
    assert_true(case_has("step-00000003.aside-1") && case_has("epoch-0001.aside-2"));
    assert_true(holds_any(case_dir));
    case_path(path, "epoch-0001.aside-2");
    case_load_ok(path, false, 2, 4); /* it can still be opened by name */
}

/* Copied or renamed checkpoints belong to the user: they are not deleted, moved aside or taken for the newest. */
static void test_names_of_users(void **unused)
{
    (void)unused;
    static const char *const names[] = {"step-00000006.best", "step-00000001.aside-x", "step-7",
                                        "step-000000001",     "epoch-0001-copy",       "epoch-1"};
    char path[FS_PATH_MAX], copy[FS_PATH_MAX];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct case_save how = {.world = 1, .step = 1 + (int64_t)i};
        case_save_ok(&how, path);
        case_path(copy, "%s", names[i]);
        assert_int_equal(rename(path, copy), 0);
    }
    for (int i = 1; i <= 3; i++) {
        struct case_save how = {.world = 1, .step = i, .keep_last = 1};
        case_save_ok(&how, path);
    }
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_true(case_has(names[i]));
    assert_int_equal(case_count("step-") + case_count("epoch-"), (int)COUNT_OF(names) + 1);
    case_load_ok(case_dir, false, 1, 3);
    case_path(copy, "%s", names[5]);
    case_load_ok(copy, false, 1, 6); /* it can be opened by name */
    /* ztrain's own names grow with their numbers */
    struct case_save late = {.world = 1, .step = 8, .epoch = 12345, .keep_last = 1};
    case_save_ok(&late, path);
    assert_non_null(strstr(path, "/epoch-12345"));
    late.step++;
    late.epoch++;
    case_save_ok(&late, path);
    assert_true(case_has("epoch-12346") && !case_has("epoch-12345"));
}

static void test_a_save_opens_no_older_checkpoint(void **unused)
{
    (void)unused;
    char events[4096], path[FS_PATH_MAX];
    struct checkpoint_save_cache *cache;
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
    struct case_save how = {.world = 1, .keep_last = 5, .cache = cache};
    for (how.step = 1; how.step <= 4; how.step++)
        case_save_here(&how);
    int opens = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(opens >= 0);
    for (int i = 2; i <= 4; i++) {
        case_path(path, "step-%08d", i);
        assert_true(inotify_add_watch(opens, path, IN_OPEN) >= 0);
    }
    for (how.step = 5; how.step <= 6; how.step++) /* the second deletes the first checkpoint */
        case_save_here(&how);
    assert_int_equal(read(opens, events, sizeof events), -1);
    close(opens);
    assert_int_equal(case_count("step-"), 5);
    /* one that changes under its name is verified again: this one is damaged and does not count as kept */
    case_path(path, "step-00000003");
    char aside[FS_PATH_MAX];
    case_path(aside, "other");
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    case_save_here(&how);
    assert_true(case_has("step-00000002") && case_has("step-00000003"));
    assert_int_equal(case_count("step-"), 6);
    checkpoint_save_cache_free(cache);
}

static int opens_during_save(const struct case_save *how, int64_t last)
{
    int watch = case_watch_opens(last);
    case_save_here(how);
    return case_count_opens(watch);
}

static int opens_during_start(int64_t last)
{
    struct error err;
    int watch = case_watch_opens(last);
    assert_int_equal(opened_step(case_dir, true, &err), last);
    return case_count_opens(watch);
}

/* A run that starts where 2 or 50 checkpoints are: its start reads the newest one, and its first save those that
 * keep_last counts; the others open nothing, however many there are. */
static void test_saves_do_not_depend_on_the_number_of_checkpoints(void **unused)
{
    (void)unused;
    struct case_save how = {.world = 1, .step = 0};
    for (int64_t others = 2; others <= 50; others += 48) {
        struct checkpoint_save_cache *cache;
        for (how.keep_last = how.keep_every_steps = 0, how.cache = NULL; how.step < others;) {
            how.step++;
            case_save_here(&how);
        }
        assert_int_equal(opens_during_start(how.step), 2); /* the manifest and the rank's file */
        assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
        how.cache = cache;
        how.keep_last = 3;
        how.keep_every_steps = 1; /* nothing is deleted */
        int64_t before = how.step++;
        assert_int_equal(opens_during_save(&how, before), 4); /* two manifests, to order and to settle them */
        before = how.step++;
        assert_int_equal(opens_during_save(&how, before), 0);
        checkpoint_save_cache_free(cache);
    }
    assert_int_equal(case_count("step-"), 52);
}

/* Those that an earlier start has left: one without a rank file is damaged, though its manifest is right. */
static void test_checkpoints_with_a_missing_file_do_not_count(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1};
    for (how.step = 1; how.step <= 4; how.step++)
        case_save_here(&how);
    case_path(path, "step-00000003/rank-00000.zst");
    assert_int_equal(unlink(path), 0);
    how.keep_last = 3; /* 5, 4 and 2, not 3, which stays nevertheless */
    case_save_here(&how);
    assert_int_equal(case_count("step-"), 4);
    assert_true(case_has("step-00000002") && case_has("step-00000003") && !case_has("step-00000001"));
    how.keep_last = 1;
    how.step++;
    case_save_here(&how);
    assert_true(case_has("step-00000006") && case_has("step-00000003"));
    assert_int_equal(case_count("step-"), 2);
}

/* The best one has lost a file: the second best is kept in its place. */
static void test_a_best_checkpoint_with_a_missing_file_does_not_count(void **unused)
{
    (void)unused;
    static const double losses[] = {2, 1, 3};
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1};
    for (how.step = 1; how.step <= 3; how.step++) {
        how.eval_loss = losses[how.step - 1];
        case_save_here(&how);
    }
    case_path(path, "step-00000002/rank-00000.zst");
    assert_int_equal(unlink(path), 0);
    how.eval_loss = 4;
    how.keep_last = how.keep_best = 1;
    case_save_here(&how);
    assert_true(case_has("step-00000001") && case_has("step-00000002") && case_has("step-00000004"));
    assert_int_equal(case_count("step-"), 3);
}

/* The folder may be deleted during a run. */
static void test_tokenizer_files_are_kept_from_the_start(void **unused)
{
    (void)unused;
    char source[FS_PATH_MAX], file[FS_PATH_MAX];
    struct checkpoint_save_cache *cache;
    struct error err;
    case_path(source, "model");
    assert_int_equal(mkdir(source, 0777), 0);
    case_path(file, "model/tokenizer.json");
    case_write(file, "{}", 2);
    assert_int_equal(checkpoint_save_cache_new(source, source, &cache, &err), STATUS_OK);
    case_remove(source);
    struct case_save how = {.world = 1, .step = 1, .cache = cache};
    case_save_here(&how);
    checkpoint_save_cache_free(cache);
    assert_true(case_has("step-00000001/tokenizer.json"));
    case_load_ok(case_dir, false, 1, 1);
    assert_int_equal(mkdir(source, 0777), 0);
    assert_int_equal(mkdir(file, 0777), 0);
    assert_int_equal(checkpoint_save_cache_new(source, source, &cache, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "tokenizer.json"));
}

/* A rank of the previous start, which was cut off, continues to write where it was. */
static void test_a_rank_of_another_start_is_not_in_the_way(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], stale[FS_PATH_MAX], file[FS_PATH_MAX];
    int ready[2];
    char byte;
    case_path(stale, ".tmp-step-00000003");
    case_path(file, ".tmp-step-00000003/rank-00001.zst");
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t rank = fork();
    if (rank == 0)
        for (bool first = true;; first = false) {
            if (first)
                prctl(PR_SET_PDEATHSIG, SIGKILL); /* in case this test fails */
            mkdir(stale, 0777);
            int fd = open(file, O_WRONLY | O_CREAT, 0666);
            if (fd >= 0)
                close(fd);
            if (first && write(ready[1], "x", 1) != 1)
                _exit(1);
        }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    struct case_save how = {.world = 2, .step = 3};
    case_save_ok(&how, path);
    how.step = 4;
    case_save_ok(&how, path);
    kill(rank, SIGKILL);
    waitpid(rank, NULL, 0);
    case_load_ok(case_dir, false, 1, 4);
}

/* A crash between the two renames of a file system without an exchange. */
static void test_replaced_one_counts_until_its_successor_is_there(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], aside[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3};
    case_save_ok(&how, path);
    case_path(aside, "step-00000003.replaced-1");
    assert_int_equal(rename(path, aside), 0);
    case_load_ok(case_dir, false, 1, 3);
    struct case_save next = {.world = 1, .step = 4};
    case_save_ok(&next, path);
    assert_true(case_has("step-00000003.replaced-1"));
    case_save_ok(&how, path); /* back at step 3: now it has a successor */
    assert_false(case_has("step-00000003.replaced-1"));
    case_load_ok(case_dir, false, 1, 3);
}

/* The same crash after the new one was damaged: the replaced one is the only good one. */
static void test_replaced_one_stays_beside_a_damaged_successor(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], aside[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3}, next = {.world = 1, .step = 4};
    case_save_ok(&how, path);
    case_path(aside, "step-00000003.replaced-1");
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    case_save_ok(&next, path);
    assert_true(case_has("step-00000003.replaced-1"));
    assert_true(case_has("step-00000003"));
}

/* A folder that somebody has renamed: its name is older than its manifest. */
static void test_renamed_one_is_not_deleted(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], renamed[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 50}, next = {.world = 1, .step = 55, .keep_last = 1};
    case_save_ok(&how, path);
    case_path(renamed, "step-00000005");
    assert_int_equal(rename(path, renamed), 0);
    case_save_ok(&next, path);
    assert_true(case_has("step-00000005"));
}

/* `latest` is a convenience: an obstacle to it is a warning. */
static void test_latest_that_cannot_be_moved(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 3};
    case_path(path, "latest");
    assert_int_equal(mkdir(path, 0777), 0);
    case_path(path, "latest/x");
    case_write(path, "x", 1);
    case_save_ok(&how, path);
    case_load_ok(case_dir, false, 1, 3);
    assert_int_equal(case_count(".tmp-"), 0);
}

/* ---- failures ------------------------------------------------------------ */

static void test_failure_of_one_rank_is_failure_of_all(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct case_save good = {.world = 2, .step = 1, .large = true};
    struct case_end ends[CASE_RANKS];
    case_save_ok(&good, path);
    for (int limited = 0; limited < 3; limited++) {
        struct case_save bad = {
            .world = 3, .step = 2, .large = true, .file_limit = limited ? 5000 : 50000, .rank_limited = limited};
        case_save_ranks(&bad, ends);
        for (int r = 0; r < 3; r++) {
            char expected[64];
            snprintf(expected, sizeof expected, "rank %d on here: cannot write '", limited);
            assert_int_equal(ends[r].status, STATUS_CHECKPOINT);
            assert_non_null(strstr(ends[r].err.text, expected));
            assert_non_null(strstr(ends[r].err.text, "File too large"));
        }
        assert_int_equal(case_count(".tmp-"), 0);
        assert_false(case_has("step-00000002"));
        case_load_ok(case_dir, true, 1, 1);
    }
}

static void test_folder_that_cannot_be(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], old[FS_PATH_MAX];
    struct case_end ends[CASE_RANKS];
    struct case_save how = {.world = 2, .step = 1};
    case_path(path, "file");
    case_write(path, "x", 1);
    memcpy(old, case_dir, sizeof old);
    case_path(path, "file/checkpoints");
    memcpy(case_dir, path, sizeof case_dir);
    case_save_ranks(&how, ends);
    memcpy(case_dir, old, sizeof old);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ends[r].status, STATUS_CHECKPOINT);
        assert_non_null(strstr(ends[r].err.text, "/file"));
    }
    case_path(path, "run/checkpoints"); /* it is made, but not the run folder above it, which was moved away */
    memcpy(case_dir, path, sizeof case_dir);
    case_save_ranks(&how, ends);
    assert_int_equal(ends[0].status, STATUS_CHECKPOINT);
    memcpy(case_dir, old, sizeof old);
    assert_false(case_has("run"));
    case_path(path, "run");
    assert_int_equal(mkdir(path, 0777), 0);
    case_path(path, "run/checkpoints");
    memcpy(case_dir, path, sizeof case_dir);
    case_save_ok(&how, path);
    case_load_ok(path, false, 1, 1);
    memcpy(case_dir, old, sizeof old);
}

static int flip_at; /* the file that loses a bit on its way to the disk, counted from 1; 0: none */

/* ckpt calls it before it reads from the disk, so the file has changed by then. */
int posix_fadvise(int fd, off_t offset, off_t bytes, int advice)
{
    char path[64];
    uint8_t byte;
    (void)offset, (void)bytes;
    assert_int_equal(advice, POSIX_FADV_DONTNEED);
    if (--flip_at != 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int out = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(out, &byte, 1, 1), 1);
    byte ^= 1;
    assert_int_equal(pwrite(out, &byte, 1, 1), 1);
    close(out);
    return 0;
}

/* keep_last: a checkpoint that did not reach the disk as it was written takes no older one's place. */
static void test_what_cannot_be_read_back_replaces_nothing(void **unused)
{
    (void)unused;
    char source[FS_PATH_MAX], file[FS_PATH_MAX], path[FS_PATH_MAX];
    struct case_end ends[CASE_RANKS];
    case_path(source, "model");
    assert_int_equal(mkdir(source, 0777), 0);
    case_path(file, "model/vocab.json");
    case_write(file, "{}", 2);
    struct case_save how = {.world = 1, .step = 1, .keep_last = 1, .tokenizer_dir = source};
    case_save_ok(&how, path);
    how.step = 2;
    for (int i = 1; i <= 3; i++) { /* the rank's file, the manifest, the tokenizer's */
        flip_at = i;
        case_save_ranks(&how, ends);
        assert_int_equal(ends[0].status, STATUS_CHECKPOINT);
        assert_non_null(strstr(ends[0].err.text, "reading the new checkpoint back: '"));
        assert_int_equal(case_count("step-"), 1);
        assert_int_equal(case_count(".tmp-"), 0);
        case_load_ok(case_dir, false, 1, 1);
    }
    how.world = 2;
    flip_at = 1; /* each rank its own file */
    case_save_ranks(&how, ends);
    assert_int_equal(ends[1].status, STATUS_CHECKPOINT);
    flip_at = 0;
    case_save_ok(&how, path);
    case_load_ok(case_dir, false, 1, 2);
    assert_int_equal(case_count("step-"), 1);
}

static int json_allocations_left; /* until one fails */

static void *failing_malloc(size_t bytes)
{
    return --json_allocations_left == 0 ? NULL : malloc(bytes);
}

/* Objects that lack a member because memory ran out do not become a checkpoint. */
static void test_a_manifest_that_memory_was_too_short_for(void **unused)
{
    (void)unused;
    struct checkpoint_save_cache *cache;
    struct error err;
    int failures = 0;
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
    struct tensor_table table;
    struct case_state state;
    case_table(&table, false);
    case_state_init(&state, &table, 0, 1);
    case_fill(&state, 1);
    struct comm alone = {.rank = 0, .world = 1};
    json_t *spec = json_pack("{s:i, s:s}", "run.seed", 1234, "run.name", "x"), *model = json_pack("{s:s}", "a", "b");
    double part_sums[] = {1.0 / 3, 7, 123456789};
    const struct eval_part part = {
        .samples = 5, .data = 77, .world = 1, .losses = part_sums, .num_counts = 2, .counts = part_sums + 1};
    json_t *evaluation_part = eval_part_to_json(&part);
    struct checkpoint_writer writer = {.dir = case_dir,
                                       .table = &table,
                                       .layout = &state.layout,
                                       .comm = &alone,
                                       .cache = cache,
                                       .host = "here",
                                       .spec = spec,
                                       .model = model,
                                       .evaluation_part = evaluation_part};
    for (int n = 1; json_allocations_left <= 0; n++) {
        char name[64], path[FS_PATH_MAX];
        int64_t bytes;
        struct train_position position = {.step = n, .epoch = 1, .evaluation_due = true};
        json_set_alloc_funcs(failing_malloc, free);
        json_allocations_left = n;
        enum status status = save_whole(&writer, &position, case_slices(&state), name, &bytes, &err);
        json_set_alloc_funcs(malloc, free);
        failures += status != STATUS_OK;
        if (status != STATUS_OK)
            continue;
        struct checkpoint *checkpoint;
        case_path(path, "%s", name);
        if (checkpoint_open(path, true, &checkpoint, &err) != STATUS_OK)
            fail_msg("allocation %d: %s", n, err.text);
        assert_true(json_equal(checkpoint->spec, spec) && checkpoint->position.evaluation_due);
        assert_true(json_equal(checkpoint->evaluation_part, evaluation_part));
        checkpoint_close(checkpoint);
    }
    assert_true(failures > 100);
    checkpoint_save_cache_free(cache);
    json_decref(spec);
    json_decref(model);
    json_decref(evaluation_part);
    case_state_release(&state);
}

#ifdef ZTRAIN_FAULTS
static char fault_spec[64];

static void arm(void)
{
    assert_true(faults_arm(fault_spec));
}

/* A save whose Nth call fails, for every N. replaces: the checkpoint has the name of the previous one. */
static void walk(const char *action, bool replaces, int world)
{
    char path[FS_PATH_MAX];
    struct case_end ends[CASE_RANKS];
    struct error err;
    struct case_save before = {.world = 2, .step = 1, .keep_last = 2}, after = {.world = 1, .step = 3, .keep_last = 2};
    struct case_save how = {.world = world, .step = replaces ? 1 : 2, .keep_last = 1, .before = arm};
    bool reached = true; /* the fault was reached */
    int n, published = 0;
    for (n = 1; reached; n++) {
        assert_true(n < 100);
        case_remove(case_dir);
        assert_int_equal(mkdir(case_dir, 0777), 0);
        case_save_ok(&before, path);
        snprintf(fault_spec, sizeof fault_spec, "any:%d:%s", n, action);
        case_save_ranks(&how, ends);
        bool killed = false, failed = false;
        for (int r = 0; r < world; r++) {
            killed = killed || ends[r].killed;
            failed = failed || (!ends[r].killed && ends[r].status != STATUS_OK);
        }
        /* whatever happened, the folder has a valid checkpoint, of this step or the one before */
        int64_t step = opened_step(case_dir, true, &err);
        if (step != 1 && step != how.step)
            fail_msg("%s: %s", fault_spec, err.text);
        case_load_ok(case_dir, false, 1, step);
        if (failed) {
            assert_int_equal(ends[0].status, STATUS_CHECKPOINT);
            if (!error_is_transient(&ends[0].err)) /* a run retries transient errors */
                fail_msg("%s: '%s', cause %d", fault_spec, ends[0].err.text, ends[0].err.cause);
            assert_int_equal(case_count(".tmp-"), 0);
        } else if (!killed) {
            assert_int_equal(step, how.step);
        }
        published += (killed || failed) && step == 2;
        /* and the next save works, and cleans up */
        case_save_ok(&after, path);
        case_load_ok(case_dir, false, 1, 3);
        assert_int_equal(case_count(".tmp-"), 0);
        reached = false;
        for (int r = 0; r < world; r++)
            reached = reached || ends[r].killed || ends[r].calls >= n;
    }
    assert_true(n > 15 && (replaces || published > 0 || strcmp(action, "kill") != 0));
}
#endif

/* A file system that cannot exchange two folders in one call. */
static void test_replacing_without_exchange(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    char path[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 1};
    case_save_ok(&how, path);
    strcpy(fault_spec, "rename:1:EINVAL");
    how.before = arm;
    case_save_ok(&how, path);
    case_load_ok(path, false, 1, 1);
    assert_int_equal(case_count(""), 2); /* the checkpoint and `latest` */
#else
    skip();
#endif
}

static void test_errors_at_every_call(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    walk("ENOSPC", false, 1);
    walk("EIO", true, 1);
    walk("EACCES", false, 2);
#else
    skip();
#endif
}

static void test_kill_at_every_call(void **unused)
{
    (void)unused;
#ifdef ZTRAIN_FAULTS
    walk("kill", false, 1);
    walk("kill", true, 1);
    walk("kill", false, 2);
#else
    skip();
#endif
}

int main(void)
{
#ifdef _OPENMP
    omp_set_num_threads(1); /* this process forks: its own team must stay alone; the children have two threads */
#endif
#define TEST(name) cmocka_unit_test_setup_teardown(name, case_setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_everything_comes_back),
        TEST(test_every_world_size_loads_every_other),
        TEST(test_frozen_tensors),
        TEST(test_any_range_can_be_read),
        TEST(test_golden_checkpoint),
        TEST(test_machine),
        TEST(test_losses_that_json_has_no_number_for),
        TEST(test_tokenizer_files_come_along),
        TEST(test_another_model_is_refused),
        TEST(test_newest_valid_one),
        TEST(test_what_is_no_checkpoint),
        TEST(test_what_leads_nowhere),
        TEST(test_mending),
        TEST(test_keep_last),
        TEST(test_keep_best),
        TEST(test_scores_are_read_back),
        TEST(test_names_of_users),
        TEST(test_a_save_opens_no_older_checkpoint),
        TEST(test_saves_do_not_depend_on_the_number_of_checkpoints),
        TEST(test_checkpoints_with_a_missing_file_do_not_count),
        TEST(test_a_best_checkpoint_with_a_missing_file_does_not_count),
        TEST(test_tokenizer_files_are_kept_from_the_start),
        TEST(test_a_rank_of_another_start_is_not_in_the_way),
        TEST(test_what_cannot_be_read_back_replaces_nothing),
        TEST(test_a_manifest_that_memory_was_too_short_for),
        TEST(test_names_in_the_way),
        TEST(test_replaced_one_counts_until_its_successor_is_there),
        TEST(test_replaced_one_stays_beside_a_damaged_successor),
        TEST(test_renamed_one_is_not_deleted),
        TEST(test_latest_that_cannot_be_moved),
        TEST(test_failure_of_one_rank_is_failure_of_all),
        TEST(test_folder_that_cannot_be),
        TEST(test_replacing_without_exchange),
        TEST(test_errors_at_every_call),
        TEST(test_kill_at_every_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
