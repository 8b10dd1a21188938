/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_binding.c: which GPU a rank gets, for the ways in which ranks are started. */
#include "tests/unit/fixtures/ranks.h"

#include "comm/gpu_binding.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 8 };

static struct error error;

/* The GPUs that the ranks of a node see: CUDA_VISIBLE_DEVICES and, in `physical`, which GPUs those are (a digit for
 * each; NULL: their identities are unknown), and the GPU of each rank (a digit; NULL: refused, with `words`). */
struct binding_case {
    int ranks;
    const char *visible[RANKS]; /* "-": not set */
    int counts[RANKS];
    const char *physical[RANKS];
    const char *chosen;
    const char *words[3];
};

static const struct binding_case cases[] = {
    /* every rank sees all GPUs: the local rank chooses */
    {4, {"0,1,2,3", "0,1,2,3", "0,1,2,3", "0,1,2,3"}, {4, 4, 4, 4}, {NULL}, "0123", {NULL}},
    {4, {"-", "-", "-", "-"}, {4, 4, 4, 4}, {"0123", "0123", "0123", "0123"}, "0123", {NULL}},
    {2, {"-", "-"}, {4, 4}, {NULL}, "01", {NULL}},
    /* --gpus-per-task=1 without control groups: each names its own */
    {3, {"0", "1", "2"}, {1, 1, 1}, {NULL}, "000", {NULL}},
    /* parts of one GPU, whose UUID it is */
    {2, {"MIG-a", "MIG-b"}, {1, 1}, {"0", "0"}, "00", {NULL}},
    {2, {"MIG-a", "MIG-a"}, {1, 1}, {"0", "0"}, NULL, {"2 ranks there see 1 GPU;"}},
    /* with control groups: each rank sees its GPU as number 0 */
    {3, {"0", "0", "0"}, {1, 1, 1}, {"0", "1", "2"}, "000", {NULL}},
    /* each rank has two GPUs for itself */
    {2, {"0,1", "2,3"}, {2, 2}, {NULL}, "00", {NULL}},
    /* names */
    {2, {"GPU-1b2c,GPU-77aa", "GPU-1b2c,GPU-77aa"}, {2, 2}, {NULL}, "01", {NULL}},
    {2, {"GPU-1b2c", "GPU-77aa"}, {1, 1}, {NULL}, "00", {NULL}},
    {3, {"MIG-a,MIG-b,MIG-c", "MIG-a,MIG-b,MIG-c", "MIG-a,MIG-b,MIG-c"}, {3, 3, 3}, {NULL}, "012", {NULL}},
    {2, {" 3 , 5", "5"}, {2, 1}, {NULL}, "00", {NULL}},
    /* the same GPUs in another order */
    {2, {"0,1", "1,0"}, {2, 2}, {NULL}, "00", {NULL}},
    {3, {"2,1,0", "2,1,0", "2,1,0"}, {3, 3, 3}, {"210", "210", "210"}, "012", {NULL}},
    /* rank 1 sees only what rank 0 would have: rank 0 moves on; a chain of such */
    {2, {"0,1", "0"}, {2, 1}, {NULL}, "10", {NULL}},
    {3, {"0,1", "0,2", "0"}, {2, 2, 1}, {NULL}, "110", {NULL}},
    {3, {"0,1", "1,2", "0"}, {2, 2, 1}, {NULL}, "110", {NULL}},
    /* impossible views */
    {3, {"0,1", "0,1", "0,1"}, {2, 2, 2}, {NULL}, NULL, {"rank 12 on n1 has no GPU of its own", "3 ranks", "=2 "}},
    {4, {"-", "-", "-", "-"}, {1, 1, 1, 1}, {NULL}, NULL, {"4 ranks there see 1 GPU;", "--ntasks-per-node=1"}},
    {2, {"0", "0"}, {1, 1}, {NULL}, NULL, {"2 ranks there see 1 GPU;", "--gpus-per-node=1"}},
    {3, {"0", "0", "1,2"}, {1, 1, 2}, {NULL}, NULL, {"rank 11", "see 3 GPUs", "without CUDA_VISIBLE_DEVICES"}},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        const struct binding_case *one = &cases[c];
        struct gpu_view views[RANKS];
        const struct gpu_host host = {.name = "n1"};
        for (int r = 0; r < one->ranks; r++) {
            unsigned char uuids[GPU_VIEW_MAX][DEVICE_UUID_BYTES] = {{0}};
            for (int i = 0; one->physical[r] && i < one->counts[r]; i++)
                uuids[i][3] = (unsigned char)one->physical[r][i];
            const char *visible = strcmp(one->visible[r], "-") ? one->visible[r] : NULL;
            if (gpu_view_init(&views[r], 10 + r, visible, one->counts[r], uuids, &error) != STATUS_OK)
                fail_msg("case %zu: %s", c, error.text);
        }
        for (int r = 0; r < one->ranks; r++) {
            int index = -2;
            enum status status = gpu_binding_choose(views, one->ranks, r, &host, &index, &error);
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
    assert_int_equal(gpu_view_init(&view, 3, NULL, GPU_VIEW_MAX, NULL, &error), STATUS_OK);
    assert_int_equal(gpu_view_init(&view, 3, NULL, GPU_VIEW_MAX + 1, NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "rank 3 sees 33 GPUs"));
    /* CUDA stops at -1; a list with fewer GPUs than the driver shows is not the list that the driver saw */
    static const char *const short_lists[] = {"0", "0,", "0,-1,1", "", ",0,1", "-1"};
    for (size_t i = 0; i < COUNT_OF(short_lists); i++) {
        assert_int_equal(gpu_view_init(&view, 0, short_lists[i], 2, NULL, &error), STATUS_USAGE);
        assert_non_null(strstr(error.text, "CUDA_VISIBLE_DEVICES="));
    }
    /* 1 is not GPU 1 of another list, and a name differs from its prefix */
    struct gpu_view other;
    assert_int_equal(gpu_view_init(&view, 0, "1,GPU-12", 2, NULL, &error), STATUS_OK);
    assert_int_equal(gpu_view_init(&other, 0, "12,GPU-1", 2, NULL, &error), STATUS_OK);
    assert_true(view.ids[0] != other.ids[0] && view.ids[1] != other.ids[1]);
}

/* ---- over the ranks of a job --------------------------------------------- */

/* A job of two nodes, or of one supervisor. */
struct job_case {
    int world;
    const int *nodes;        /* (world) */
    const char *see[RANKS];  /* a digit for each GPU of its node that a rank sees; "": none; "!": an invalid one */
    const char *share;       /* ranks that would share */
    const char *chosen;      /* NULL: refused */
    int blind;               /* -1: none */
    enum status statuses[2]; /* of each node's ranks */
    const char *words;       /* in the message */
};

static const int two_nodes[] = {0, 1, 0, 1}, one_node[] = {0, 0, 0, 0};
static const struct job_case jobs[] = {
    {4, two_nodes, {"01", "01", "01", "01"}, "", "0011", -1, {STATUS_OK, STATUS_OK}, ""},
    {4, two_nodes, {"0", "0", "1", "1"}, "", "0000", -1, {STATUS_OK, STATUS_OK}, ""},
    {2, NULL, {"01", "01"}, "", "01", -1, {STATUS_OK}, ""},
    {1, NULL, {"01"}, "", "0", -1, {STATUS_OK}, ""},
    /* too few, counted by node; ranks that share; one of two nodes has to share */
    {4, two_nodes, {"01", "0", "01", "0"}, "", NULL, -1, {STATUS_OK, STATUS_USAGE}, "rank 3 on node1"},
    {4, one_node, {"01", "01", "01", "01"}, "", NULL, -1, {STATUS_USAGE}, "srun --mpi=pmi2 --ntasks-per-node=2"},
    {3, NULL, {"01", "01", "01"}, "", NULL, -1, {STATUS_USAGE}, "--local-gpus 2"},
    {4, two_nodes, {"01", "0", "01", "0"}, "0123", "0010", -1, {STATUS_OK, STATUS_OK}, ""},
    {3, NULL, {"01", "01", "01"}, "012", "010", -1, {STATUS_OK}, ""},
    {3, NULL, {"01", "01", "01"}, "01", NULL, -1, {STATUS_USAGE}, "ZTRAIN_SHARE_GPUS=1"},
    /* a rank that sees none: the message names it, the reason and that others do; worse failures */
    {4, two_nodes, {"01", "", "01", "0"}, "", "----", 1, {STATUS_OK, STATUS_OK}, ""},
    {4, two_nodes, {"01", "01", "", "!"}, "", NULL, -1, {STATUS_USAGE, STATUS_USAGE}, "not what may be"},
};

static void run_job(struct bootstrap *boot, void *context)
{
    const struct job_case *one = context;
    struct comm_config config = {.timeout_seconds = 20, .interface = ""};
    struct comm *comm;
    struct gpu_view view;
    struct gpu_binding binding;
    const char *see = one->see[boot->rank];
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    if (*see && *see != '!') {
        unsigned char uuids[GPU_VIEW_MAX][DEVICE_UUID_BYTES] = {{0}};
        for (int i = 0; see[i]; i++) uuids[i][7] = (unsigned char)(see[i] + 100 * boot->node);
        CHECK_OK(gpu_view_init(&view, boot->rank, NULL, (int)strlen(see), uuids, &error));
    } else {
        gpu_view_none(&view, boot->rank, *see ? STATUS_USAGE : STATUS_DEVICE, *see ? "not what may be" : "no driver");
    }
    view.share = strchr(one->share, '0' + boot->rank) != NULL;
    enum status status = gpu_binding_find(comm, boot, &view, &binding, &error);
    CHECK(status == one->statuses[boot->node]);
    if (status != STATUS_OK) {
        CHECK(strstr(error.text, one->words));
    } else if (one->blind >= 0) {
        CHECK(binding.blind == one->blind && binding.seeing == boot->world - 1 && !strcmp(binding.why, "no driver"));
    } else if (one->chosen) {
        CHECK(binding.blind < 0 && binding.index == one->chosen[boot->rank] - '0');
        CHECK((binding.sharing > 0) == (boot->local_world > view.count && *one->share));
    }
    comm_close(comm);
}

static void test_jobs(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        struct job_case one = jobs[i];
        if (!ranks_run(one.world, one.nodes, run_job, &one)) fail_msg("case %zu", i);
    }
}

/* Views that a damaged peer might send. */
static void send_nonsense(struct bootstrap *boot, void *context)
{
    struct comm_config config = {.timeout_seconds = 20};
    struct comm *comm;
    struct gpu_view view;
    struct gpu_binding binding;
    int *which = context;
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    CHECK_OK(gpu_view_init(&view, boot->rank, NULL, 2, NULL, &error));
    if (boot->rank == 1)
        *(*which == 0 ? &view.count : *which == 1 ? &view.rank : &view.code) = *which == 0 ? GPU_VIEW_MAX + 1 : 5;
    CHECK(gpu_binding_find(comm, boot, &view, &binding, &error) == STATUS_PEER);
    CHECK(strstr(error.text, "rank 1 on here"));
    comm_close(comm);
}

static void test_nonsense(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) assert_true(ranks_run(2, NULL, send_nonsense, &which));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_views),
                                       cmocka_unit_test(test_jobs), cmocka_unit_test(test_nonsense)};
    return cmocka_run_group_tests_name("gpu_binding", tests, NULL, NULL);
}
