/* test_bootstrap.c: which environments are a rank, which are none, and which are refused. */
#include "comm/bootstrap.h"
#include "comm/comm.h"
#include "comm/control.h"
#include "tests/unit/bootstrap_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct env_case {
    const char *set[12]; /* name, value, … */
    enum status status;
    const char *words[3];
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
        /* the batch, the interactive and the extern step are no tasks in any version of Slurm */
        {{"SLURM_STEP_ID", "4294967291", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"}, STATUS_OK, {NULL}},
        {{"SLURM_STEP_ID", "4294967290", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"}, STATUS_OK, {NULL}},
        /* one task of a step in a job of four */
        {{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS", "4"},
         STATUS_OK,
         {NULL}},
        /* PMI that nobody needs, stale or not; no PMIx without a rank; an empty variable is none */
        {{"PMI_FD", "987", "PMI_RANK", "0", "PMI_SIZE", "1"}, STATUS_OK, {NULL}},
        {{"PMIX_NAMESPACE", "x"}, STATUS_OK, {NULL}},
        {{"RANK", "", "WORLD_SIZE", ""}, STATUS_OK, {NULL}},
        {{"PMI_FD", "5"}, STATUS_USAGE, {"PMI_FD is set and PMI_RANK and PMI_SIZE are not", "srun --mpi=pmi2"}},
        {{"PMI_FD", "987", "PMI_RANK", "0", "PMI_SIZE", "2"},
         STATUS_USAGE,
         {"PMI_FD=987 is no open descriptor", "srun --mpi=pmi2 -n 2"}},
        {{"PMI_FD", "x", "PMI_RANK", "0", "PMI_SIZE", "2"}, STATUS_USAGE, {"PMI_FD=x is no open descriptor"}},
        /* the variables of an enclosing step in one without PMI */
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
        /* a half that says the same as a whole does no harm */
        {{"WORLD_SIZE", "1", "SLURM_STEP_ID", "1", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"},
         STATUS_OK,
         {NULL}},
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
        for (int i = 0; i < 12 && cases[c].set[i]; i += 2)
            setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        enum status status = bootstrap_init(&bootstrap, &error);
        if (status != cases[c].status)
            fail_msg("case %zu: status %d, '%s'", c, status, error.text);
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

/* PMI_JOBID tells a step's PMI from that of the step around it. */
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
    for (size_t i = 0; i < COUNT_OF(variables); i++)
        setenv(variables[i][0], variables[i][1], 1);
    assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "left over from another step: PMI_JOBID=812.0, and this is 812.1"));
    assert_int_equal(bootstrap_check_launcher(&error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "cannot have local ranks"));
    clear_launchers();
}

/* What is the same on every rank of one start of a job, and not of the next. */
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
        for (int i = 0; i < 12 && cases[c].set[i]; i += 2)
            setenv(cases[c].set[i], cases[c].set[i + 1], 1);
        assert_int_equal(bootstrap_init(&bootstrap, &error), STATUS_OK);
        assert_string_equal(bootstrap.job_id, cases[c].name);
    }
    clear_launchers();
}

/* A rank alone: places, an exchange with itself, nobody to abort. */
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
    char pmi[16]; /* the supervisor was a task of srun: its ranks are none */
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
    bootstrap_release(&bootstrap);
    fclose(other);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_environments), cmocka_unit_test(test_pmi_of_another_step),
                                       cmocka_unit_test(test_job_names), cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_local_rank)};
    return cmocka_run_group_tests_name("bootstrap", tests, NULL, NULL);
}
