/* SPDX-License-Identifier: Apache-2.0 */
/* test_bootstrap.c: environments that describe a rank, that do not, and that are refused. */
#include "comm/comm.h"
#include "comm/control/control.h"
#include "comm/launch/bootstrap.h"
#include "tests/unit/fixtures/bootstrap_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct env_case {
    const char *set[16]; /* name, value, … */
    enum status status;
    const char *words[3];
};

static void test_environments(void **state)
{
    (void)state;
    static const struct env_case cases[] = {
        {{NULL}, STATUS_OK, {NULL}},
        /* a batch script is not a rank; a single task of srun is a world of one */
        {{"SLURM_JOB_ID", "7", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"}, STATUS_OK, {NULL}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_NTASKS", "1"}, STATUS_OK, {NULL}},
        {{"RANK", "0", "WORLD_SIZE", "1"}, STATUS_OK, {NULL}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_NTASKS", "2"},
         STATUS_USAGE,
         {"ZTRAIN_JOB_SECRET", "srun --mpi=pmi2 -n 2"}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"},
         STATUS_USAGE,
         {"ZTRAIN_JOB_SECRET", "srun --mpi=pmi2 -n 2"}},
        {{"PMI_RANK", "0", "PMI_SIZE", "2"}, STATUS_USAGE, {"PMI_RANK", "not supported"}},
        {{"OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2"}, STATUS_USAGE, {"mpirun", "not supported"}},
        {{"RANK", "3", "WORLD_SIZE", "4"},
         STATUS_USAGE,
         {"torchrun started rank 3 of 4, but ZTRAIN_JOB_SECRET is not set", "hint"}},
        {{"RANK", "0"}, STATUS_USAGE, {"RANK is set and WORLD_SIZE is not", "hint"}},
        {{"WORLD_SIZE", "2"}, STATUS_USAGE, {"WORLD_SIZE is set and RANK is not", "hint"}},
        {{"RANK", "4", "WORLD_SIZE", "4"}, STATUS_USAGE, {"RANK=4", "hint"}},
        {{"RANK", "x", "WORLD_SIZE", "1"}, STATUS_USAGE, {"RANK=x", "hint"}},
        {{"RANK", "0", "WORLD_SIZE", "99999999999999999999"}, STATUS_USAGE, {"WORLD_SIZE=9999", "hint"}},
        /* the batch, the interactive and the extern step are not tasks in any version of Slurm */
        {{"SLURM_STEP_ID", "4294967291", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"}, STATUS_OK, {NULL}},
        {{"SLURM_STEP_ID", "4294967290", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"}, STATUS_OK, {NULL}},
        /* a step of one task in a job of four */
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS", "4"},
         STATUS_OK,
         {NULL}},
        /* PMI that is not needed, stale or not; PMIx needs a rank; an empty variable counts as unset */
        {{"PMI_FD", "987", "PMI_RANK", "0", "PMI_SIZE", "1"}, STATUS_OK, {NULL}},
        {{"PMIX_NAMESPACE", "x"}, STATUS_OK, {NULL}},
        {{"RANK", "", "WORLD_SIZE", ""}, STATUS_OK, {NULL}},
        {{"PMI_FD", "5"}, STATUS_USAGE, {"PMI_FD is set and PMI_RANK and PMI_SIZE are not", "srun --mpi=pmi2"}},
        {{"PMI_FD", "987", "PMI_RANK", "0", "PMI_SIZE", "2"},
         STATUS_USAGE,
         {"PMI_FD=987 is not an open descriptor", "srun --mpi=pmi2 -n 2"}},
        {{"PMI_FD", "x", "PMI_RANK", "0", "PMI_SIZE", "2"}, STATUS_USAGE, {"PMI_FD=x is not an open descriptor"}},
        /* the variables of an enclosing step, in a step without PMI */
        {{"PMI_FD", "0", "PMI_RANK", "0", "PMI_SIZE", "1", "SLURM_STEP_ID", "1", "SLURM_PROCID", "0",
          "SLURM_STEP_NUM_TASKS", "2"},
         STATUS_USAGE,
         {"contradicts itself: PMI_RANK=0, PMI_SIZE=1, but SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=2",
          "srun --mpi=pmi2 -n 2"}},
        {{"PMIX_NAMESPACE", "x", "PMIX_RANK", "1", "SLURM_STEP_ID", "1", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS",
          "2"},
         STATUS_USAGE,
         {"contradicts itself: PMIX_RANK=1, SLURM_STEP_NUM_TASKS=2, but SLURM_PROCID=0"}},
        {{"PMIX_NAMESPACE", "x", "PMIX_RANK", "1"}, STATUS_USAGE, {"PMIX_RANK is set and SLURM_STEP_NUM_TASKS is not"}},
        /* left over from another script */
        {{"WORLD_SIZE", "1", "RANK", "0", "SLURM_STEP_ID", "1", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "4",
          "SLURM_STEP_NUM_NODES", "2"},
         STATUS_USAGE,
         {"contradicts itself: RANK=0, WORLD_SIZE=1", "srun --mpi=pmi2 -N 2 --ntasks-per-node=2"}},
        {{"WORLD_SIZE", "8", "SLURM_STEP_ID", "1", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"},
         STATUS_USAGE,
         {"contradicts itself", "but WORLD_SIZE=8"}},
        /* an incomplete set that agrees with a complete one does no harm */
        {{"WORLD_SIZE", "1", "SLURM_STEP_ID", "1", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"},
         STATUS_OK,
         {NULL}},
        /* a step of two tasks, with some variables unset or changed: no rank trains alone */
        {{"SLURM_STEP_NUM_TASKS", "2"}, STATUS_USAGE, {"SLURM_STEP_NUM_TASKS is set and SLURM_PROCID is not", "-n 2"}},
        {{"SLURM_STEP_ID", "0", "SLURM_STEP_NUM_TASKS", "2"}, STATUS_USAGE, {"SLURM_PROCID is not", "-n 2"}},
        {{"SLURM_STEP_ID", "0"}, STATUS_USAGE, {"SLURM_STEP_ID is set and SLURM_PROCID is not", "srun --mpi=pmi2"}},
        {{"SLURM_STEP_ID", "0", "SLURM_TASKS_PER_NODE", "1(x2)"},
         STATUS_USAGE,
         {"SLURM_STEP_ID is set and SLURM_PROCID is not"}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0"},
         STATUS_USAGE,
         {"SLURM_PROCID is set and SLURM_STEP_NUM_TASKS is not", "srun --mpi=pmi2"}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_TASKS_PER_NODE", "2"},
         STATUS_USAGE,
         {"SLURM_PROCID is set and SLURM_STEP_NUM_TASKS is not"}},
        {{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
         STATUS_USAGE,
         {"SLURM_STEP_TASKS_PER_NODE=1(x2) implies at least 2 ranks", "srun --mpi=pmi2 -n 2"}},
        {{"SLURM_STEP_NUM_TASKS", "2", "SLURM_PROCID", "0"}, STATUS_USAGE, {"ZTRAIN_JOB_SECRET"}},
        {{"SLURM_GTIDS", "0,1", "SLURM_JOB_ID", "7"}, STATUS_USAGE, {"SLURM_GTIDS=0,1", "-n 2"}},
        {{"SLURM_GTIDS", "3", "SLURM_NTASKS", "8"}, STATUS_USAGE, {"at least 4 ranks", "-n 4"}},
        {{"SLURM_LOCALID", "1"}, STATUS_USAGE, {"SLURM_LOCALID=1"}},
        {{"SLURM_NODEID", "1"}, STATUS_USAGE, {"SLURM_NODEID=1"}},
        {{"SLURM_PROCID", "1", "SLURM_NTASKS", "2"}, STATUS_USAGE, {"SLURM_PROCID=1"}},
        {{"SLURM_STEP_NUM_NODES", "2"}, STATUS_USAGE, {"SLURM_STEP_NUM_NODES=2"}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS", "1", "SLURM_GTIDS",
          "0,1"},
         STATUS_USAGE,
         {"contradicts itself: SLURM_GTIDS=0,1, so there are at least 2 ranks, but SLURM_PROCID=0, "
          "SLURM_STEP_NUM_TASKS=1",
          "srun --mpi=pmi2 -n 2"}},
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "3", "SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
         STATUS_USAGE,
         {"SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=3, but SLURM_STEP_TASKS_PER_NODE=1(x2)"}},
        /* all variables of a step with one task, of a batch script, of an interactive shell */
        {{"SLURM_STEP_ID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_STEP_TASKS_PER_NODE", "1", "SLURM_GTIDS", "0",
          "SLURM_LOCALID", "0", "SLURM_NODEID", "0", "SLURM_PROCID", "0"},
         STATUS_OK,
         {NULL}},
        {{"SLURM_STEP_ID", "0", "SLURM_STEP_NUM_TASKS", "1"}, STATUS_OK, {NULL}},
        {{"SLURM_PROCID", "0", "SLURM_NTASKS", "4", "SLURM_TASKS_PER_NODE", "2(x2)", "SLURM_GTIDS", "0",
          "SLURM_LOCALID", "0", "SLURM_NODEID", "0"},
         STATUS_OK,
         {NULL}},
        {{"SLURM_STEP_ID", "4294967290", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_NUM_NODES", "2",
          "SLURM_NTASKS", "4"},
         STATUS_OK,
         {NULL}},
        /* the same for torchrun and mpirun */
        {{"LOCAL_RANK", "1"}, STATUS_USAGE, {"LOCAL_RANK=1 implies at least 2 ranks"}},
        {{"LOCAL_WORLD_SIZE", "2", "LOCAL_RANK", "0"}, STATUS_USAGE, {"LOCAL_WORLD_SIZE=2"}},
        {{"GROUP_RANK", "1"}, STATUS_USAGE, {"GROUP_RANK=1"}},
        {{"RANK", "0", "WORLD_SIZE", "1", "LOCAL_WORLD_SIZE", "4"},
         STATUS_USAGE,
         {"contradicts itself: LOCAL_WORLD_SIZE=4, so there are at least 4 ranks, but RANK=0, WORLD_SIZE=1"}},
        {{"RANK", "0", "WORLD_SIZE", "1", "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "1", "GROUP_RANK", "0", "MASTER_PORT",
          "29500"},
         STATUS_OK,
         {NULL}},
        {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, STATUS_USAGE, {"OMPI_COMM_WORLD_LOCAL_SIZE=2"}},
        {{"OMPI_COMM_WORLD_RANK", "0"}, STATUS_USAGE, {"OMPI_COMM_WORLD_SIZE is not"}},
        {{"MPI_LOCALRANKID", "1"}, STATUS_USAGE, {"MPI_LOCALRANKID=1"}},
        /* incomplete PMI in a step of two tasks */
        {{"PMI_RANK", "0", "PMI_SIZE", "2", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"},
         STATUS_USAGE,
         {"PMI_RANK and PMI_SIZE are set and PMI_FD is not", "unset PMI_FD PMI_RANK PMI_SIZE", "-n 2"}},
        {{"PMI_SIZE", "2", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"},
         STATUS_USAGE,
         {"PMI_SIZE is set and PMI_FD and PMI_RANK are not"}},
        {{"PMI_FD", "0", "PMI_RANK", "0", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"},
         STATUS_USAGE,
         {"PMI_FD and PMI_RANK are set and PMI_SIZE is not"}},
        {{"PMI_SIZE", "2"}, STATUS_USAGE, {"PMI_SIZE is set and PMI_RANK is not", "-n 2"}},
        {{"PMI_RANK", "0"}, STATUS_USAGE, {"PMI_RANK is set and PMI_SIZE is not"}},
        {{"PMIX_NAMESPACE", "x", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"},
         STATUS_USAGE,
         {"PMIX_NAMESPACE is set and PMIX_RANK is not", "srun --mpi=pmi2 -n 2"}},
        {{"PMIX_RANK", "0", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_NTASKS", "2"},
         STATUS_USAGE,
         {"PMIX_RANK is set and PMIX_NAMESPACE is not", "srun --mpi=pmi2 -n 2"}},
        {{"PMIX_RANK", "0"}, STATUS_USAGE, {"PMIX_RANK is set and SLURM_STEP_NUM_TASKS is not"}},
        {{"RANK", "0", "WORLD_SIZE", "5000"}, STATUS_USAGE, {"5000 ranks are more than the 4096"}},
        {{"RANK", "0", "WORLD_SIZE", "2", "ZTRAIN_JOB_SECRET",
          "zz112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"},
         STATUS_USAGE,
         {"ZTRAIN_JOB_SECRET is not 64 hexadecimal digits"}},
        {{"ZTRAIN_LOCAL_RANK", "0"}, STATUS_USAGE, {"ZTRAIN_LOCAL_WORLD=", "--local-gpus"}},
        {{"ZTRAIN_LOCAL_FD", "3"}, STATUS_USAGE, {"ZTRAIN_LOCAL_RANK=,", "--local-gpus"}},
        {{"ZTRAIN_LOCAL_RANK", "2", "ZTRAIN_LOCAL_WORLD", "2", "ZTRAIN_LOCAL_FD", "0"},
         STATUS_USAGE,
         {"local rank", "hint"}},
        {{"ZTRAIN_LOCAL_RANK", "0", "ZTRAIN_LOCAL_WORLD", "2", "ZTRAIN_LOCAL_FD", "987"},
         STATUS_USAGE,
         {"=987", "hint"}},
        {{"ZTRAIN_LOCAL_RANK", "0", "ZTRAIN_LOCAL_WORLD", "4097", "ZTRAIN_LOCAL_FD", "0"},
         STATUS_USAGE,
         {"=4097", "hint"}},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct bootstrap bootstrap;
        struct error error = {.code = STATUS_OK};
        clear_launchers();
        for (int i = 0; i < 16 && cases[c].set[i]; i += 2) setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        enum status status = bootstrap_init(&bootstrap, &error);
        if (status != cases[c].status) fail_msg("case %zu: status %d, '%s'", c, status, error.text);
        for (int w = 0; w < 3 && cases[c].words[w]; w++)
            if (!strstr(error.text, cases[c].words[w]))
                fail_msg("case %zu: '%s' is not in '%s'", c, cases[c].words[w], error.text);
        if (status == STATUS_OK) {
            assert_int_equal(bootstrap.world, 1);
            assert_int_equal(bootstrap.rank, 0);
            assert_string_equal(bootstrap.source, "alone");
            assert_true(bootstrap.cores >= 1 && bootstrap.host[0]);
            assert_false(bootstrap_is_local_rank());
        }
    }
    clear_launchers();
}

/* A task of a step with two tasks, with every subset of its variables unset: as long as a trace of the step is left,
 * the task does not take itself for a single rank or for another rank. */
static void test_every_half_of_a_step(void **state)
{
    (void)state;
    enum { NAMES = 12 };
    static const struct {
        const char *name, *values[2];
        bool trace;
    } step[NAMES] = {
        {"PMI_FD", {"0", "0"}, true},
        {"PMI_RANK", {"0", "1"}, true},
        {"PMI_SIZE", {"2", "2"}, true},
        {"PMI_JOBID", {"7.0", "7.0"}, false},
        {"SLURM_STEP_ID", {"0", "0"}, true},
        {"SLURM_PROCID", {"0", "1"}, false},
        {"SLURM_NTASKS", {"2", "2"}, false},
        {"SLURM_STEP_NUM_TASKS", {"2", "2"}, true},
        {"SLURM_STEP_TASKS_PER_NODE", {"2", "2"}, true},
        {"SLURM_TASKS_PER_NODE", {"2", "2"}, false},
        {"SLURM_GTIDS", {"0,1", "0,1"}, true},
        {"SLURM_LOCALID", {"0", "1"}, false},
    };
    for (int rank = 0; rank < 2; rank++)
        for (int left = 0; left < 1 << NAMES; left++) {
            struct bootstrap bootstrap;
            struct error error;
            bool trace = false;
            clear_launchers();
            setenv("SLURM_JOB_ID", "7", 1);
            for (int i = 0; i < NAMES; i++)
                if (left >> i & 1) {
                    setenv(step[i].name, step[i].values[rank], 1);
                    trace |= step[i].trace;
                }
            enum status status = bootstrap_init(&bootstrap, &error);
            if (status == STATUS_OK && (bootstrap.world == 1 ? trace : bootstrap.world != 2 || bootstrap.rank != rank))
                fail_msg("variables %x: rank %d of %d", (unsigned)left, bootstrap.rank, bootstrap.world);
            if (status != STATUS_OK && (status != STATUS_USAGE || !strstr(error.text, "hint: ")))
                fail_msg("variables %x: %d: %s", (unsigned)left, status, error.text);
            if (status == STATUS_OK) bootstrap_release(&bootstrap);
        }
    clear_launchers();
}

/* A refused rank names itself, as far as its rank and world can be known. */
static void test_who_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *set[8];
        int rank, world;
    } cases[] = {
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "3", "SLURM_NTASKS", "4"}, 3, 4},
        {{"SLURM_GTIDS", "0,1"}, 0, 2},
        {{"RANK", "2"}, 2, 3},
        {{"WORLD_SIZE", "5"}, 0, 5},
        {{"RANK", "9", "WORLD_SIZE", "4"}, 9, 10},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct bootstrap bootstrap;
        struct error error;
        clear_launchers();
        for (int i = 0; i < 8 && cases[c].set[i]; i += 2) setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_USAGE);
        assert_int_equal(bootstrap.rank, cases[c].rank);
        assert_int_equal(bootstrap.world, cases[c].world);
        assert_true(bootstrap.host[0]);
    }
    clear_launchers();
}

/* PMI_JOBID distinguishes a step's PMI from that of the step around it. */
static void test_pmi_of_another_step(void **state)
{
    (void)state;
    struct bootstrap bootstrap;
    struct error error;
    static const char *const variables[][2] = {
        {"PMI_RANK", "1"},      {"PMI_SIZE", "2"},       {"PMI_FD", "1"},
        {"PMI_JOBID", "812.0"}, {"SLURM_PROCID", "1"},   {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_STEP_ID", "1"}, {"SLURM_JOB_ID", "812"},
    };
    clear_launchers();
    for (size_t i = 0; i < COUNT_OF(variables); i++) setenv(variables[i][0], variables[i][1], 1);
    assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "left over from another step: PMI_JOBID=812.0, and this is 812.1"));
    assert_int_equal(bootstrap_check_launcher(&error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "cannot have local ranks"));
    clear_launchers();
}

/* A batch script, or salloc's shell, where srun was forgotten. */
static void test_alone_in_a_larger_job(void **state)
{
    (void)state;
    static const struct {
        const char *set[10], *words[3]; /* no words: training is allowed */
    } cases[] = {
        {{NULL}, {NULL}},
        {{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "1", "SLURM_JOB_NUM_NODES", "1"}, {NULL}},
        {{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "4", "SLURM_JOB_NUM_NODES", "2"},
         {"job 7 has SLURM_NTASKS=4", "srun --mpi=pmi2 -N 2 --ntasks-per-node=2", "--local-gpus 1"}},
        {{"SLURM_JOB_ID", "7", "SLURM_JOB_NUM_NODES", "2"}, {"SLURM_JOB_NUM_NODES=2", "--local-gpus 1"}},
        {{"SLURM_JOB_ID", "7", "SLURM_STEP_ID", "4294967290", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"},
         {"SLURM_NTASKS=4", "srun --mpi=pmi2 -n 4"}},
        /* a single task of srun; a rank whose world is 1 */
        {{"SLURM_JOB_ID", "7", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS",
          "4"},
         {NULL}},
        {{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "4", "RANK", "0", "WORLD_SIZE", "1"}, {NULL}},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct error error = {.code = STATUS_OK};
        clear_launchers();
        for (int i = 0; i < 10 && cases[c].set[i]; i += 2) setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        if (bootstrap_check_alone(&error) != (cases[c].words[0] ? STATUS_USAGE : STATUS_OK))
            fail_msg("case %zu: '%s'", c, error.text);
        for (int w = 0; w < 3 && cases[c].words[w]; w++)
            if (!strstr(error.text, cases[c].words[w]))
                fail_msg("case %zu: '%s' is not in '%s'", c, cases[c].words[w], error.text);
    }
    clear_launchers();
}

/* The name of a job is the same on every rank of one start and differs at the next start. */
static void test_job_names(void **state)
{
    (void)state;
    static const struct {
        const char *set[12], *name;
    } cases[] = {
        {{NULL}, ""},
        {{"SLURM_JOB_ID", "812"}, "812"},
        {{"SLURM_JOB_ID", "812", "SLURM_STEP_ID", "4294967291", "SLURM_PROCID", "0"}, "812"},
        {{"SLURM_JOB_ID", "812", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_NTASKS", "1"}, "812.0"},
        {{"SLURM_JOB_ID", "812", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_RESTART_COUNT",
          "3"},
         "812.0.r3"},
        {{"TORCHELASTIC_RUN_ID", "my job;1", "MASTER_PORT", "29500", "RANK", "0", "WORLD_SIZE", "1"}, "my_job_1.29500"},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct bootstrap bootstrap;
        struct error error;
        clear_launchers();
        for (int i = 0; i < 12 && cases[c].set[i]; i += 2) setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_OK);
        assert_string_equal(bootstrap.job_id, cases[c].name);
    }
    clear_launchers();
}

/* A single rank: its place, an exchange with itself, an abort without peers. */
static void test_alone(void **state)
{
    (void)state;
    struct bootstrap bootstrap;
    struct error error;
    int own = 5, all = 0;
    clear_launchers();
    assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_OK);
    assert_int_equal(bootstrap_connect(&bootstrap, 20, NULL, &error), STATUS_OK);
    assert_int_equal(bootstrap_connect(&bootstrap, 20, NULL, &error), STATUS_OK);
    assert_true(bootstrap.start_seconds == 20.25);
    assert_int_equal(bootstrap.places[0].pid, getpid());
    assert_int_equal(bootstrap.places[0].node, 0);
    assert_int_equal(bootstrap_exchange(&bootstrap, "five", &own, sizeof own, &all, &error), STATUS_OK);
    assert_int_equal(all, 5);
    bootstrap_abort(&bootstrap, STATUS_DATA, "nobody hears");
    bootstrap_finish(&bootstrap);
    bootstrap_release(&bootstrap);
    assert_null(bootstrap.places);
}

/* OMP_NUM_THREADS, the cores that Slurm has given the job on this node, the affinity mask. */
static void test_threads(void **state)
{
    (void)state;
    struct bootstrap bootstrap;
    struct error error;
    clear_launchers();
    const int all = bootstrap_cores();
    assert_int_equal(bootstrap_threads(8, 1), 8);
    assert_int_equal(bootstrap_threads(8, 3), 2);
    assert_int_equal(bootstrap_threads(2, 3), 1);
    setenv("SLURM_CPUS_ON_NODE", "1", 1);
    assert_int_equal(bootstrap_cores(), all); /* no job */
    setenv("SLURM_JOB_ID", "7", 1);
    assert_int_equal(bootstrap_cores(), 1);
    setenv("SLURM_CPUS_ON_NODE", "4096", 1);
    assert_int_equal(bootstrap_cores(), all);
    setenv("SLURM_CPUS_ON_NODE", "many", 1);
    assert_int_equal(bootstrap_cores(), all);
    static const char *const none[] = {"x", "0", "-3", "4 cores"};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        setenv("OMP_NUM_THREADS", none[i], 1);
        assert_int_equal(bootstrap_threads(8, 2), 4);
    }
    setenv("OMP_NUM_THREADS", "5", 1);
    assert_int_equal(bootstrap_threads(8, 2), 5);
    setenv("OMP_NUM_THREADS", "3,2", 1);
    assert_int_equal(bootstrap_threads(1, 1), 3);
    assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_OK);
    assert_int_equal(bootstrap_connect(&bootstrap, 1, NULL, &error), STATUS_OK);
    assert_int_equal(bootstrap.cores, 3);
    bootstrap_release(&bootstrap);
    clear_launchers();
}

static void test_local_rank(void **state)
{
    (void)state;
    struct error error;
    struct bootstrap bootstrap;
    int fd;
    clear_launchers();
    const struct control_shape shape = {.world = 3, .local_world = 3, .num_nodes = 1};
    assert_int_equal(control_create(&shape, &fd, &error), STATUS_OK);
    /* a launcher's variables do not count for a local rank */
    setenv("RANK", "0", 1);
    char pmi[16]; /* the supervisor was a task of srun, but its ranks are not */
    int pmi_fd = open("/dev/null", O_RDWR);
    snprintf(pmi, sizeof pmi, "%d", pmi_fd);
    setenv("PMI_FD", pmi, 1);
    bootstrap_local_env(2, 3, fd);
    assert_null(getenv("PMI_FD"));
    assert_true(fcntl(pmi_fd, F_GETFD) & FD_CLOEXEC);
    close(pmi_fd);
    assert_true(bootstrap_is_local_rank());
    assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_OK);
    assert_int_equal(bootstrap.rank, 2);
    assert_int_equal(bootstrap.world, 3);
    assert_int_equal(bootstrap.shared_fd, fd);
    assert_string_equal(bootstrap.source, "--local-gpus 3");
    assert_int_equal(bootstrap_connect(&bootstrap, 1, NULL, &error), STATUS_OK);
    assert_int_equal(bootstrap.places[2].local_rank, 2);
    assert_int_equal(bootstrap.places[2].node, 0);
    bootstrap_release(&bootstrap);
    clear_launchers();

    /* a descriptor of another kind, or of another job */
    struct comm *comm;
    struct comm_config config = {.timeout_seconds = 1};
    FILE *other = tmpfile();
    bootstrap.shared_fd = fileno(other);
    assert_int_equal(comm_open(&bootstrap, &config, &comm, &error), STATUS_USAGE);
    assert_int_equal(ftruncate(fileno(other), 64 << 20), 0);
    assert_int_equal(comm_open(&bootstrap, &config, &comm, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "is not the shared memory of a job with 3 ranks"));
    bootstrap.shared_fd = fd;
    bootstrap.world = 2;
    bootstrap.rank = 0;
    assert_int_equal(comm_open(&bootstrap, &config, &comm, &error), STATUS_USAGE);
    bootstrap.world = BOOTSTRAP_MAX_RANKS + 1;
    assert_int_equal(comm_open(&bootstrap, &config, &comm, &error), STATUS_USAGE);
    bootstrap_release(&bootstrap);
    fclose(other);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_environments),
                                       cmocka_unit_test(test_every_half_of_a_step),
                                       cmocka_unit_test(test_who_is_refused),
                                       cmocka_unit_test(test_pmi_of_another_step),
                                       cmocka_unit_test(test_alone_in_a_larger_job),
                                       cmocka_unit_test(test_job_names),
                                       cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_local_rank)};
    return cmocka_run_group_tests_name("bootstrap", tests, NULL, NULL);
}
