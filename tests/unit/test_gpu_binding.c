/* test_gpu_binding.c: which GPU a rank gets, for the ways in which ranks are started. */
#include "comm/gpu_binding.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 8 };

/* What the ranks of a node see: CUDA_VISIBLE_DEVICES and, in `physical`, which GPUs those are (a digit for each; NULL:
 * their identities are not known), and what each gets (a digit for each; NULL: refused, with `words`). */
struct binding_case {
    int ranks;
    const char *visible[RANKS]; /* "-": not set */
    int counts[RANKS];
    const char *physical[RANKS];
    const char *chosen;
    const char *words[3];
};

static const struct binding_case cases[] = {
    /* all see all: the local rank chooses */
    {4, {"0,1,2,3", "0,1,2,3", "0,1,2,3", "0,1,2,3"}, {4, 4, 4, 4}, {NULL}, "0123", {NULL}},
    {4, {"-", "-", "-", "-"}, {4, 4, 4, 4}, {"0123", "0123", "0123", "0123"}, "0123", {NULL}},
    {2, {"-", "-"}, {4, 4}, {NULL}, "01", {NULL}},
    /* --gpus-per-task=1 without control groups: each names its own */
    {3, {"0", "1", "2"}, {1, 1, 1}, {NULL}, "000", {NULL}},
    /* with control groups: each one's own is its number 0 */
    {3, {"0", "0", "0"}, {1, 1, 1}, {"0", "1", "2"}, "000", {NULL}},
    /* two of their own each */
    {2, {"0,1", "2,3"}, {2, 2}, {NULL}, "00", {NULL}},
    /* names */
    {2, {"GPU-1b2c,GPU-77aa", "GPU-1b2c,GPU-77aa"}, {2, 2}, {NULL}, "01", {NULL}},
    {2, {"GPU-1b2c", "GPU-77aa"}, {1, 1}, {NULL}, "00", {NULL}},
    {3, {"MIG-a,MIG-b,MIG-c", "MIG-a,MIG-b,MIG-c", "MIG-a,MIG-b,MIG-c"}, {3, 3, 3}, {NULL}, "012", {NULL}},
    {2, {" 3 , 5", "5"}, {2, 1}, {NULL}, "00", {NULL}},
    /* another order of the same GPUs */
    {2, {"0,1", "1,0"}, {2, 2}, {NULL}, "00", {NULL}},
    {3, {"2,1,0", "2,1,0", "2,1,0"}, {3, 3, 3}, {"210", "210", "210"}, "012", {NULL}},
    /* rank 1 sees only what rank 0 would have: rank 0 moves on; a chain of such */
    {2, {"0,1", "0"}, {2, 1}, {NULL}, "10", {NULL}},
    {3, {"0,1", "0,2", "0"}, {2, 2, 1}, {NULL}, "110", {NULL}},
    {3, {"0,1", "1,2", "0"}, {2, 2, 1}, {NULL}, "110", {NULL}},
    /* what cannot be */
    {3, {"0,1", "0,1", "0,1"}, {2, 2, 2}, {NULL}, NULL, {"rank 12 on n1 has no GPU of its own", "3 ranks", "=2 "}},
    {4, {"-", "-", "-", "-"}, {1, 1, 1, 1}, {NULL}, NULL, {"4 ranks there see 1 GPU;", "--ntasks-per-node=1"}},
    {2, {"0", "0"}, {1, 1}, {NULL}, NULL, {"2 ranks there see 1 GPU;", "--gpus-per-node=1"}},
    {2, {"", "0"}, {0, 1}, {NULL}, NULL, {"rank 10 on n1 sees no GPU", "--gpus-per-node=2", "device: cpu"}},
    {3, {"0", "0", "1,2"}, {1, 1, 2}, {NULL}, NULL, {"rank 11", "see 3 GPUs", "without CUDA_VISIBLE_DEVICES"}},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        const struct binding_case *one = &cases[c];
        struct gpu_view views[RANKS];
        struct error error = {.code = STATUS_OK};
        for (int r = 0; r < one->ranks; r++) {
            unsigned char uuids[GPU_VIEW_MAX][GPU_UUID_BYTES] = {{0}};
            for (int i = 0; one->physical[r] && i < one->counts[r]; i++)
                uuids[i][3] = (unsigned char)one->physical[r][i];
            const char *visible = strcmp(one->visible[r], "-") ? one->visible[r] : NULL;
            if (gpu_view_init(&views[r], 10 + r, visible, one->counts[r],
                              one->physical[r] ? (const unsigned char(*)[GPU_UUID_BYTES])uuids : NULL,
                              &error) != STATUS_OK)
                fail_msg("case %zu: %s", c, error.text);
        }
        for (int r = 0; r < one->ranks; r++) {
            int index = -2;
            enum status status = gpu_binding_choose(views, one->ranks, r, "n1", &index, &error);
            if (one->chosen) {
                if (status != STATUS_OK || index != one->chosen[r] - '0')
                    fail_msg("case %zu, rank %d: %d, index %d: %s", c, r, status, index, error.text);
                continue;
            }
            assert_int_equal(status, STATUS_USAGE);
            assert_int_equal(index, -1);
            for (int w = 0; w < 3 && one->words[w]; w++)
                if (!strstr(error.text, one->words[w]))
                    fail_msg("case %zu: '%s' is not in '%s'", c, one->words[w], error.text);
        }
    }
}

static void test_views(void **state)
{
    (void)state;
    struct gpu_view view;
    struct error error;
    assert_int_equal(gpu_view_init(&view, 3, NULL, GPU_VIEW_MAX, NULL, &error), STATUS_OK);
    assert_int_equal(gpu_view_init(&view, 3, NULL, GPU_VIEW_MAX + 1, NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "rank 3 sees 33 GPUs"));
    /* CUDA stops at -1; a list that names fewer than the driver shows is not what the driver saw */
    static const char *const short_lists[] = {"0", "0,", "0,-1,1", "", ",0,1", "-1"};
    for (size_t i = 0; i < COUNT_OF(short_lists); i++) {
        assert_int_equal(gpu_view_init(&view, 0, short_lists[i], 2, NULL, &error), STATUS_USAGE);
        assert_non_null(strstr(error.text, "CUDA_VISIBLE_DEVICES="));
    }
    /* 1 is not GPU 1 of another list, a name is not its prefix */
    struct gpu_view other;
    assert_int_equal(gpu_view_init(&view, 0, "1,GPU-12", 2, NULL, &error), STATUS_OK);
    assert_int_equal(gpu_view_init(&other, 0, "12,GPU-1", 2, NULL, &error), STATUS_OK);
    assert_true(view.ids[0] != other.ids[0] && view.ids[1] != other.ids[1]);
}

/* A supervisor's ranks, and a rank alone, ask nobody. */
static void test_local_ranks(void **state)
{
    (void)state;
    struct error error;
    struct gpu_view view;
    int index;
    assert_int_equal(gpu_view_init(&view, 0, "4,6", 2, NULL, &error), STATUS_OK);
    for (int r = 0; r < 3; r++) {
        struct bootstrap boot = {
            .rank = r, .world = 3, .local_rank = r, .local_world = 3, .num_nodes = 1, .shared_fd = -1};
        snprintf(boot.host, sizeof boot.host, "here");
        assert_int_equal(bootstrap_connect(&boot, 1, NULL, &error), STATUS_OK);
        assert_int_equal(gpu_binding_find(&boot, &view, &index, &error), STATUS_USAGE);
        assert_non_null(strstr(error.text, "rank 2 on here"));
        boot.world = boot.local_world = 2;
        if (r < 2) {
            assert_int_equal(gpu_binding_find(&boot, &view, &index, &error), STATUS_OK);
            assert_int_equal(index, r);
        }
        bootstrap_release(&boot);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_views),
                                       cmocka_unit_test(test_local_ranks)};
    return cmocka_run_group_tests_name("gpu_binding", tests, NULL, NULL);
}
