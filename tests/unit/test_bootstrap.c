/* test_bootstrap.c: which environments are a rank, which are none, and which are refused. */
#include "comm/bootstrap.h"
#include "comm/comm.h"
#include "comm/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const names[] = {"ZTRAIN_LOCAL_RANK",
                                    "ZTRAIN_LOCAL_WORLD",
                                    "ZTRAIN_LOCAL_FD",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_STEP_NUM_TASKS",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "RANK",
                                    "WORLD_SIZE"};

static void clear(void)
{
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unsetenv(names[i]);
}

struct env_case {
    const char *set[8]; /* name, value, … */
    enum status status;
    const char *words[2];
};

static void test_environments(void **state)
{
    (void)state;
    static const struct env_case cases[] = {
        {{NULL}, STATUS_OK, {NULL}},
        /* a batch script is no rank, one task of srun is alone */
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
        {{"RANK", "3", "WORLD_SIZE", "4"}, STATUS_USAGE, {"ZTRAIN_JOB_SECRET", "hint"}},
        {{"RANK", "0"}, STATUS_USAGE, {"RANK is set and WORLD_SIZE is not", "hint"}},
        {{"WORLD_SIZE", "2"}, STATUS_USAGE, {"WORLD_SIZE is set and RANK is not", "hint"}},
        {{"RANK", "4", "WORLD_SIZE", "4"}, STATUS_USAGE, {"RANK=4", "hint"}},
        {{"RANK", "x", "WORLD_SIZE", "1"}, STATUS_USAGE, {"RANK=x", "hint"}},
        {{"RANK", "0", "WORLD_SIZE", "99999999999999999999"}, STATUS_USAGE, {"WORLD_SIZE=9999", "hint"}},
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
        clear();
        for (int i = 0; cases[c].set[i]; i += 2)
            setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        enum status status = bootstrap_init(&bootstrap, &error);
        if (status != cases[c].status)
            fail_msg("case %zu: status %d, '%s'", c, status, error.text);
        for (int w = 0; w < 2 && cases[c].words[w]; w++)
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
    clear();
}

static void test_local_rank(void **state)
{
    (void)state;
    struct error error;
    struct bootstrap bootstrap;
    int fd;
    clear();
    const struct control_shape shape = {.world = 3, .local_world = 3, .num_nodes = 1};
    assert_int_equal(control_create(&shape, &fd, &error), STATUS_OK);
    /* a launcher's variables do not count for a local rank */
    setenv("RANK", "0", 1);
    bootstrap_local_env(2, 3, fd);
    assert_true(bootstrap_is_local_rank());
    assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_OK);
    assert_int_equal(bootstrap.rank, 2);
    assert_int_equal(bootstrap.world, 3);
    assert_int_equal(bootstrap.shared_fd, fd);
    assert_string_equal(bootstrap.source, "--local-gpus 3");
    clear();

    /* a descriptor that is something else, or of another job */
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
    fclose(other);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_environments), cmocka_unit_test(test_local_rank)};
    return cmocka_run_group_tests_name("bootstrap", tests, NULL, NULL);
}
