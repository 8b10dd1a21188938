/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint_scale.c: checkpoints of hundreds of ranks, and what is remembered of many checkpoints: counted in
 * files that are opened. */
#include "tests/unit/fixtures/checkpoint_case.h"

#include "ckpt/manifest.h"

/* Writes a checkpoint of many ranks at step 1 without running them. */
static void write_many_ranks(int world, char path[FS_PATH_MAX])
{
    struct tensor_table table;
    struct shard_layout layout;
    char file_path[FS_PATH_MAX], *text;
    size_t bytes;
    struct manifest_file *files = calloc((size_t)world, sizeof *files);
    case_table(&table, true);
    case_path(path, "step-00000001");
    assert_int_equal(mkdir(path, 0777), 0);
    shard_layout_init(&layout, &table, world);
    for (int r = 0; r < world; r++) {
        struct case_state state;
        struct rankfile_writer *out;
        struct rankfile_facts facts;
        const struct rankfile_shape shape = {r,   world, STATE_KIND_COUNT, CASE_UNITS, layout.slice, state_kind_names,
                                             NULL};
        case_state_init(&state, &table, r, world);
        case_fill(&state, 1);
        manifest_rank_name(r, files[r].name);
        assert_int_equal(fs_join(file_path, path, files[r].name, STATUS_BUG, NULL), STATUS_OK);
        assert_int_equal(rankfile_writer_new(file_path, &shape, 0, &out, NULL), STATUS_OK);
        for (int s = 0; s < STATE_KIND_COUNT; s++)
            for (int u = 0; u < CASE_UNITS; u++)
                assert_int_equal(rankfile_writer_slice(out, s, u, case_slice(&state, (enum state_kind)s, u), NULL),
                                 STATUS_OK);
        assert_int_equal(rankfile_writer_finish(out, &facts, NULL), STATUS_OK);
        rankfile_writer_free(out);
        files[r].bytes = facts.bytes;
        files[r].num_frames = facts.num_frames;
        files[r].checksum = facts.index_checksum;
        case_state_release(&state);
    }
    json_t *spec = json_pack("{s:i}", "run.seed", 1);
    const struct checkpoint_writer writer = {.table = &table, .layout = &layout, .spec = spec, .model = spec};
    const struct train_position position = {.step = 1, .epoch = 1};
    assert_int_equal(manifest_encode(&writer, &position, STATE_KIND_COUNT, NULL, files, world, &text, &bytes, NULL),
                     STATUS_OK);
    assert_int_equal(fs_join(file_path, path, MANIFEST_NAME, STATUS_BUG, NULL), STATUS_OK);
    case_write(file_path, text, bytes);
    free(text);
    json_decref(spec);
    shard_layout_release(&layout);
    free(files);
}

/* Loads what one of `world` ranks owns and compares it; returns how many files were opened for it. */
static int opens_to_load(const struct checkpoint *checkpoint, int rank, int world)
{
    struct tensor_table table;
    struct case_state state;
    struct error err;
    case_table(&table, true);
    case_state_init(&state, &table, rank, world);
    int watch = case_watch_opens(1);
    if (checkpoint_load(checkpoint, &table, &state.layout, rank, case_slices(&state), &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_true(case_holds(&state, 1));
    case_state_release(&state);
    return case_count_opens(watch);
}

/* A rank opens the files that have its part, each once: with half as many ranks two for the large unit, of which the
 * slices are aligned, or one more. */
static void test_512_ranks_are_loaded_by_others(void **unused)
{
    (void)unused;
    static const int ranks[] = {0, 1, 128, 253};
    char path[FS_PATH_MAX];
    struct checkpoint *checkpoint;
    struct rlimit limit, few;
    write_many_ranks(512, path);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = limit;
    for (size_t i = 0; i < COUNT_OF(ranks); i++) {
        assert_int_equal(checkpoint_open(path, false, &checkpoint, NULL), STATUS_OK);
        assert_in_range(opens_to_load(checkpoint, ranks[i], 256), 1, 6);
        checkpoint_close(checkpoint);
    }
    few.rlim_cur = limit.rlim_max < 1100 ? limit.rlim_max : 1100;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(checkpoint_open(path, false, &checkpoint, NULL), STATUS_OK);
    assert_int_equal(opens_to_load(checkpoint, 0, 1), 495); /* the others have padding alone */
    checkpoint_close(checkpoint);
    few.rlim_cur = 200; /* 100 files at a time: 99 stay open from each of three states to the next */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(checkpoint_open(path, false, &checkpoint, NULL), STATUS_OK);
    assert_in_range(opens_to_load(checkpoint, 0, 1), 495, 3 * 495 - 2 * 90);
    checkpoint_close(checkpoint);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* The best one counts only if it has all of its files. */
static void test_the_best_one_that_is_whole(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX];
    struct checkpoint *checkpoint;
    struct error err;
    struct case_save how = {.world = 2};
    for (how.step = 1; how.step <= 4; how.step++) {
        how.eval_loss = how.step == 4 ? 9 : 5 - (double)how.step;
        case_save_ok(&how, path);
    }
    for (int64_t best = 3; best > 0; best--) {
        assert_int_equal(checkpoint_open_best(case_dir, false, &checkpoint, &err), STATUS_OK);
        assert_int_equal(checkpoint->position.step, best);
        checkpoint_close(checkpoint);
        case_path(path, "step-%08d/rank-00001.zst", (int)best);
        assert_int_equal(truncate(path, 100), 0);
    }
    assert_int_equal(checkpoint_open_best(case_dir, false, &checkpoint, &err), STATUS_OK);
    assert_int_equal(checkpoint->position.step, 4);
    checkpoint_close(checkpoint);
    case_path(path, "step-00000004/manifest.json");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(checkpoint_open_best(case_dir, false, &checkpoint, &err), STATUS_CHECKPOINT);
}

/* Whether share `part` of `parts` can be opened; the error names `missing`. */
static bool opens_part(const char *path, int part, int parts, const char *missing)
{
    struct checkpoint *checkpoint;
    struct error err = {.code = STATUS_OK};
    if (checkpoint_open_part(path, part, parts, &checkpoint, &err) == STATUS_OK) {
        checkpoint_close(checkpoint);
        return true;
    }
    assert_int_equal(err.code, STATUS_CHECKPOINT);
    if (!strstr(err.text, missing)) fail_msg("%s", err.text);
    return false;
}

/* A rank that shares in a verification looks at the files of its share, and at no others. */
static void test_a_share_needs_its_own_files_alone(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], file[FS_PATH_MAX], tokenizer[FS_PATH_MAX];
    case_path(tokenizer, "tokenizer");
    case_path(file, "tokenizer/tokenizer.json");
    assert_int_equal(mkdir(tokenizer, 0777), 0);
    case_write(file, "{}", 2);
    const struct case_save how = {.world = 4, .step = 1, .tokenizer_dir = tokenizer};
    case_save_ok(&how, path);
    for (int parts = 1; parts <= 9; parts++)
        for (int part = 0; part < parts; part++) assert_true(opens_part(path, part, parts, "nothing"));
    case_path(file, "step-00000001/rank-00002.zst");
    assert_int_equal(unlink(file), 0);
    assert_false(opens_part(path, 0, 1, "rank-00002.zst"));
    assert_true(opens_part(path, 0, 2, ""));
    assert_false(opens_part(path, 1, 2, "rank-00002.zst"));
    assert_false(opens_part(path, 1, 3, "rank-00002.zst")); /* frames 12 to 23 of 9 in each file */
    assert_false(opens_part(path, 2, 4, "rank-00002.zst"));
    for (int part = 0; part < 4; part++) assert_int_equal(opens_part(path, part, 4, "rank-00002.zst"), part != 2);
    case_path(file, "step-00000001/rank-00000.zst");
    assert_int_equal(truncate(file, 10), 0);
    assert_false(opens_part(path, 0, 4, "rank-00000.zst' is damaged at offset 10"));
    assert_true(opens_part(path, 3, 4, ""));
    case_path(file, "step-00000001/tokenizer.json");
    assert_int_equal(unlink(file), 0);
    assert_true(opens_part(path, 1, 4, ""));
    assert_false(opens_part(path, 3, 4, "tokenizer.json"));
    case_path(file, "step-00000001/manifest.json");
    assert_int_equal(unlink(file), 0);
    assert_false(opens_part(path, 1, 4, "manifest.json is missing"));
    assert_false(opens_part("/nowhere", 1, 4, "No such file"));
    case_path(file, "checkpoints");
    assert_int_equal(mkdir(file, 0777), 0);
    assert_false(opens_part(case_dir, 1, 4, "is a folder of checkpoints"));
}

/* Puts another file in the place of a checkpoint's, in the same folder. */
static void replace_file(const char *name, const void *data, size_t bytes)
{
    char path[FS_PATH_MAX], fresh[FS_PATH_MAX];
    case_path(path, "%s", name);
    case_path(fresh, "fresh");
    case_write(fresh, data, bytes);
    assert_int_equal(rename(fresh, path), 0);
}

/* A process remembers what it has read of checkpoints, whose folders may change meanwhile: what it deletes, what it
 * counts as kept and what it takes for the best is looked at again. */
static void test_what_is_remembered_is_not_trusted(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], *other;
    size_t bytes;
    struct checkpoint_save_cache *cache;
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
    struct case_save how = {.world = 1, .keep_last = 3, .cache = cache};
    for (how.step = 1; how.step <= 3; how.step++) case_save_here(&how);
    /* 2 is damaged: 4, 3 and 1 are kept, not 4, 3 and 2 */
    case_path(path, "step-00000003/manifest.json");
    other = case_read(path, &bytes);
    replace_file("step-00000002/manifest.json", "{}", 2);
    case_save_here(&how);
    assert_true(case_has("step-00000001") && case_has("step-00000003"));
    /* one that has lost a file is as well: 5, 4 and 1 */
    case_path(path, "step-00000003/rank-00000.zst");
    assert_int_equal(unlink(path), 0);
    how.step = 5;
    case_save_here(&how);
    assert_true(case_has("step-00000001") && case_has("step-00000004"));
    /* what is due to be deleted is another checkpoint by now: it stays */
    replace_file("step-00000001/manifest.json", other, bytes);
    free(other);
    for (how.step = 6; how.step <= 7; how.step++) case_save_here(&how);
    assert_true(case_has("step-00000001") && !case_has("step-00000004") && case_has("step-00000005"));
    checkpoint_save_cache_free(cache);
}

/* The best one is damaged after it was read: the next best stays, and the link points there. */
static void test_the_best_is_looked_at_again(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], target[64] = "";
    struct checkpoint_save_cache *cache;
    assert_int_equal(checkpoint_save_cache_new(NULL, NULL, &cache, NULL), STATUS_OK);
    struct case_save how = {.world = 1, .keep_last = 2, .keep_best = 1, .cache = cache};
    for (how.step = 1; how.step <= 4; how.step++) {
        how.eval_loss = how.step == 1 ? 3 : 3 + (double)how.step; /* 1 is the best, then 2 */
        if (how.step == 3) replace_file("step-00000001/manifest.json", "{}", 2);
        case_save_here(&how);
    }
    case_path(path, "best");
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    assert_string_equal(target, "step-00000002");
    assert_true(case_has("step-00000001") && case_has("step-00000003"));
    checkpoint_save_cache_free(cache);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, case_setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_512_ranks_are_loaded_by_others),    TEST(test_the_best_one_that_is_whole),
        TEST(test_a_share_needs_its_own_files_alone), TEST(test_what_is_remembered_is_not_trusted),
        TEST(test_the_best_is_looked_at_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
