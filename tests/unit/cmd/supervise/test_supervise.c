/* SPDX-License-Identifier: Apache-2.0 */
/* test_supervise.c: local ranks under their supervisor: output, signals, deaths, exit codes, no orphans.
 *
 * The supervisor executes /proc/self/exe, which is this program, with the same arguments. With a scenario's name as
 * argument, this program is the supervisor of that scenario, and its children play the ranks. */
#include "tests/unit/fixtures/ranks.h"

#include "cmd/run/stop_signal.c"
#include "cmd/supervise/supervise.c"

#include "core/heartbeat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct error error;
/* ---- what ranks do ------------------------------------------------------- */

/* Takes one stop signal, waiting at most this many milliseconds. Returns 1 or 0. The supervisor has blocked these
 * signals, so that they stay pending until they are taken. */
static int take_stop(int milliseconds)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGUSR1);
    struct timespec limit = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    return sigtimedwait(&mask, NULL, &limit) > 0;
}

/* Enters barriers until the job fails. Returns its code. */
static enum status work_until_failure(struct comm *comm)
{
    for (;;) {
        enum status status = comm_barrier(comm, &error);
        if (status != STATUS_OK) return status;
        usleep(10000);
    }
}

static int final_error(enum status status)
{
    fprintf(stderr, "final error: %s\n", error.text);
    return (int)status;
}

static int play_rank(const char *scenario)
{
    struct bootstrap bootstrap;
    struct comm_config config = {.timeout_seconds = 20};
    struct comm *comm;
    CHECK_OK(bootstrap_init(&bootstrap, &error));
    int rank = bootstrap.rank;
    if (!strcmp(scenario, "absent")) /* never joins */
        return 0;
    if (!strcmp(scenario, "foreign")) /* as a library that exits before main() */
        _exit(1);
    if (!strcmp(scenario, "early-3")) return rank == 0 ? final_error(STATUS_DATA) : (sleep(60), 0);
    if (!strcmp(scenario, "slow-start")) { /* a signal that arrives before the rank waits for it is not lost */
        usleep(700000);
        return take_stop(0) ? STATUS_REQUEUE : STATUS_BUG;
    }
    CHECK_OK(comm_open(&bootstrap, &config, &comm, &error));
    CHECK_OK(comm_barrier(comm, &error));
    if (!strcmp(scenario, "hello")) {
        printf("rank %d of %d with %d cores\nline two\n", rank, bootstrap.world, bootstrap.cores);
        fflush(stdout);
        fprintf(stderr, "no end of line %d", rank);
        for (int i = 0; rank == 2 && i < 20000; i++) putchar('x');
        comm_close(comm);
        bootstrap_release(&bootstrap);
        return 0;
    }
    if (!strcmp(scenario, "stop")) {
        printf("ready %d\n", (int)getpid());
        fflush(stdout);
        while (!take_stop(100)) heartbeat_beat();
        printf("stops %d\n", 1 + take_stop(200));
        comm_close(comm);
        bootstrap_release(&bootstrap);
        return STATUS_REQUEUE;
    }
    if (!strcmp(scenario, "killed") && rank == 1) raise(SIGKILL);
    if (!strcmp(scenario, "crash") && rank == 2) raise(SIGABRT);
    if (!strcmp(scenario, "stubborn")) { /* ignores the other ranks and the signals */
        if (rank == 1) raise(SIGKILL);
        for (;;) usleep(1000);
    }
    if (!strcmp(scenario, "frozen") && rank == 1) /* the supervisor cannot know; a peer exits with its own code */
        raise(SIGSTOP);
    if ((!strcmp(scenario, "abort") && rank == 1) || (!strcmp(scenario, "frozen") && rank == 0)) {
        enum status status = error_set(&error, STATUS_DATA, "a bad shard");
        comm_abort(comm, &error);
        comm_close(comm);
        bootstrap_release(&bootstrap);
        return final_error(status);
    }
    if (!strcmp(scenario, "leaver")) {
        if (rank == 1) _exit(0);
        for (;;) {
            if (comm_status(comm, &error) != STATUS_OK) return final_error(comm_status(comm, &error));
            heartbeat_beat();
            usleep(1000);
        }
    }
    enum status status = work_until_failure(comm);
    comm_close(comm);
    bootstrap_release(&bootstrap);
    return final_error(status);
}

static int play_supervisor(char **argv)
{
    struct job_end end;
    enum status status = supervise(3, NULL, argv, 1.0, &end, &error);
    output_drain(); /* as main() does: the ranks' last lines may still be queued */
    if (status == STATUS_OK) return end.code;
    fprintf(stderr, "supervisor: %s\n", error.text);
    return (int)status;
}

/* ---- running a scenario -------------------------------------------------- */

struct scene {
    pid_t pid;
    int output; /* stdout and stderr of the supervisor */
    char text[65536];
    size_t used;
    double started;
};

static void scene_start(struct scene *scene, const char *name)
{
    int ends[2];
    *scene = (struct scene){.started = seconds_now()};
    assert_int_equal(pipe(ends), 0);
    scene->pid = fork();
    if (scene->pid == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "test_supervise", name, (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    scene->output = ends[0];
}

/* Reads output until `words` have come `times` times, or until its end. */
static bool scene_read(struct scene *scene, const char *words, int times)
{
    for (;;) {
        int seen = 0;
        for (const char *at = scene->text; words && (at = strstr(at, words)) != NULL; at++) seen++;
        if (words && seen >= times) return true;
        ssize_t n = read(scene->output, scene->text + scene->used, sizeof scene->text - 1 - scene->used);
        if (n <= 0) return false;
        scene->used += (size_t)n;
        scene->text[scene->used] = 0;
    }
}

/* Returns the exit code after all output has ended, which requires that all ranks, which hold the pipe, are gone. */
static int scene_end(struct scene *scene)
{
    int status;
    scene_read(scene, NULL, 0);
    close(scene->output);
    assert_int_equal(waitpid(scene->pid, &status, 0), scene->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void expect(const struct scene *scene, const char *words)
{
    if (!strstr(scene->text, words)) fail_msg("'%s' is not in:\n%s", words, scene->text);
}

static void test_output_has_ranks_in_front(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "hello");
    assert_int_equal(scene_end(&scene), 0);
    for (int r = 0; r < 3; r++) {
        char words[64];
        snprintf(words, sizeof words, "[%d] rank %d of 3 with ", r, r);
        expect(&scene, words);
        snprintf(words, sizeof words, "[%d] no end of line %d\n", r, r);
        expect(&scene, words);
    }
    size_t xs = 0;
    for (char *line = strtok(scene.text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(line[0] == '[' && line[1] >= '0' && line[1] <= '2' && line[2] == ']' && line[3] == ' ');
        for (char *c = line; *c; c++) xs += *c == 'x';
    }
    assert_int_equal(xs, 20000); /* a line longer than the pump's buffer is broken, not cut */
}

static void test_deaths(void **state)
{
    (void)state;
    static const struct {
        const char *scenario;
        int code;
        const char *words[2];
    } cases[] = {
        {"absent", STATUS_PEER, {"supervisor: rank ", "left with exit code 0 without the others' consent"}},
        {"foreign",
         STATUS_BROKEN,
         {"supervisor: rank ", "ended with exit code 1, which is not one of ztrain's; hint: "}},
        {"killed", STATUS_PEER, {"supervisor: rank 1 on ", "was killed by signal 9 (Killed)"}},
        {"crash", STATUS_PEER, {"supervisor: rank 2 on ", "was killed by signal 6"}},
        {"stubborn", STATUS_PEER, {"supervisor: rank 1 on ", "was killed by signal 9"}},
        {"abort", STATUS_DATA, {"final error: rank 1 on ", "a bad shard"}},
        {"frozen", STATUS_DATA, {"final error: rank 0 on ", "a bad shard"}},
        {"early-3", STATUS_DATA, {"final error: ", ""}},
        {"leaver", STATUS_PEER, {"supervisor: rank 1 on ", "left with exit code 0 while 2 others continued"}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct scene scene;
        scene_start(&scene, cases[i].scenario);
        int code = scene_end(&scene);
        if (code != cases[i].code) fail_msg("%s: exit code %d\n%s", cases[i].scenario, code, scene.text);
        expect(&scene, cases[i].words[0]);
        expect(&scene, cases[i].words[1]);
        assert_true(seconds_now() - scene.started < 30);
        if (!strcmp(cases[i].scenario, "killed")) /* the survivors have the reason as well */
            expect(&scene, "final error: rank 1 on ");
    }
}

static void test_signals_go_on_once(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        struct scene scene;
        scene_start(&scene, "stop");
        assert_true(scene_read(&scene, "ready", 3));
        kill(scene.pid, signals[i]);
        assert_int_equal(scene_end(&scene), STATUS_REQUEUE);
        for (int r = 0; r < 3; r++) {
            char words[64];
            snprintf(words, sizeof words, "[%d] stops 1\n", r);
            expect(&scene, words);
        }
    }
    struct scene scene;
    scene_start(&scene, "slow-start");
    usleep(300000);
    kill(scene.pid, SIGTERM);
    assert_int_equal(scene_end(&scene), STATUS_REQUEUE);
}

static void test_no_orphans(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "stop");
    assert_true(scene_read(&scene, "ready", 3));
    kill(scene.pid, SIGKILL);
    assert_int_equal(scene_end(&scene), -SIGKILL);
    int ranks = 0;
    for (const char *at = scene.text; (at = strstr(at, "ready ")) != NULL; at++) {
        pid_t pid = atoi(at + 6);
        for (int i = 0; i < 6000 && kill(pid, 0) == 0; i++) {
            char path[64], name[64] = "";
            snprintf(path, sizeof path, "/proc/%d/stat", (int)pid); /* unreaped: a zombie counts as gone */
            FILE *file = fopen(path, "r");
            char kind = 0;
            if (!file || fscanf(file, "%*d %63s %c", name, &kind) != 2) kind = 'Z';
            if (file) fclose(file);
            if (kind == 'Z' || kind == 'X') break;
            usleep(10000);
            assert_true(i < 5999);
        }
        ranks++;
    }
    assert_int_equal(ranks, 3);
}

static void test_refusals(void **state)
{
    (void)state;
    char *argv[] = {(char *)"x", NULL};
    struct job_end end;
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    assert_int_equal(supervise(2, NULL, argv, 1, &end, &error), STATUS_USAGE);
    assert_non_null(strstr(error.text, "WORLD_SIZE=2"));
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

int main(int argc, char **argv)
{
    if (argc > 1) return bootstrap_is_local_rank() ? play_rank(argv[1]) : play_supervisor(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_has_ranks_in_front),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_signals_go_on_once),
        cmocka_unit_test(test_no_orphans),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("supervise", tests, NULL, NULL);
}
