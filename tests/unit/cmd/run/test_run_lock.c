/* SPDX-License-Identifier: Apache-2.0 */
/* test_run_lock.c: the ownership of a run folder. Other hosts and jobs are parameters. The clock is fake: pauses take
 * no time, and a hook plays the events during a pause. The fcntl calls are real unless a test makes them fail. */
#include <errno.h>
#include <fcntl.h>

static int lock_errno; /* the errno of fcntl() instead of locking; 0: the real call */
static int lock_command_unknown;

static int test_fcntl(int fd, int command, struct flock *lock)
{
    if (command == lock_command_unknown) return errno = EINVAL, -1;
    if (lock_errno) return errno = lock_errno, -1;
    return fcntl(fd, command, lock);
}

#define fcntl test_fcntl
#include "cmd/run/run_lock.c"
#undef fcntl

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

int stop_signal_pending(void) /* tests use fake_stop() instead */
{
    return 0;
}

static char folder[64];
static double fake_time;        /* seconds */
static void (*meanwhile)(void); /* called while a taker pauses */
static bool stop;

static double fake_now(void)
{
    return fake_time;
}

static void fake_pause(double seconds)
{
    fake_time += seconds;
    if (meanwhile) meanwhile();
}

static int fake_stop(void)
{
    return stop;
}

/* Patience 5 s and a period of 10 s, which take no real time. */
static struct run_lock_config config_of(const char *host, int64_t pid, const char *job, int64_t restarts)
{
    struct run_lock_config config;
    run_lock_config_init(&config);
    config.now = fake_now;
    config.pause = fake_pause;
    config.asked_to_stop = fake_stop;
    if (host) {
        snprintf(config.self.host, sizeof config.self.host, "%s", host);
        snprintf(config.self.boot, sizeof config.self.boot, "boot of %s", host);
        config.self.pid = pid;
        if (pid) machine_process(pid, &config.self.began);
    }
    snprintf(config.self.cluster, sizeof config.self.cluster, "c");
    snprintf(config.self.job, sizeof config.self.job, "%s", job ? job : "");
    config.self.restarts = restarts;
    return config;
}

static const char *at(const char *name)
{
    static char path[4][128];
    static int turn;
    char *out = path[turn = (turn + 1) % 4];
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static bool there_is(const char *name)
{
    return access(at(name), F_OK) == 0;
}

/* Writes an owner file that is not refreshed. */
static void leave_owner(struct run_owner owner)
{
    owner.period = 10;
    if (!*owner.nonce) strcpy(owner.nonce, "0123456789abcdef");
    char *text = owner_text(&owner, 0);
    put("owner", text);
    free(text);
}

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test-run-lock-XXXXXX");
    fake_time = 1000;
    meanwhile = NULL;
    stop = false;
    lock_errno = 0;
    lock_command_unknown = -1;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"lock", "owner", "owner.tmp-1"};
    for (size_t i = 0; i < COUNT_OF(names); i++) unlink(at(names[i]));
    return rmdir(folder); /* no other file may be left */
}

/* Takes and returns the lock, which must work within `seconds` of the fake clock. */
static struct run_lock *taken(struct run_lock_config config, double seconds)
{
    struct run_lock *lock;
    struct error err = {0};
    double begin = fake_time;
    if (run_lock_take(&lock, folder, &config, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(fake_time - begin <= seconds);
    assert_int_equal(run_lock_check(lock, &err), STATUS_OK);
    return lock;
}

static double refused(struct run_lock_config config, enum status expected, const char *text)
{
    struct run_lock *lock;
    struct error err = {0};
    double begin = fake_time;
    assert_int_equal(run_lock_take(&lock, folder, &config, &err), expected);
    assert_null(lock);
    if (!strstr(err.text, text)) fail_msg("'%s' is not in: %s", text, err.text);
    return fake_time - begin;
}

/* A process that holds the folder (its own real identity, or `config`'s) until it is killed. */
static pid_t holder(const struct run_lock_config *config)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct run_lock_config own = config ? *config : config_of(NULL, 0, NULL, 0);
        struct run_lock *lock;
        if (run_lock_take(&lock, folder, &own, NULL) != STATUS_OK || write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- one machine --------------------------------------------------------- */

static void test_a_clean_end_leaves_no_owner(void **state)
{
    (void)state;
    put("owner.tmp-1", "of a taker that was killed");
    struct run_lock *lock = taken(config_of(NULL, 0, "7", 0), 0);
    assert_true(there_is("owner") && there_is("lock") && !there_is("owner.tmp-1"));
    struct reading reading;
    assert_int_equal(owner_read(lock, &reading, NULL), STATUS_OK);
    assert_string_equal(reading.owner.job, "7");
    assert_true(reading.owner.locked && reading.owner.period == 10 && reading.owner.pid == getpid());
    int64_t began;
    assert_int_equal(machine_process(getpid(), &began), 'R');
    assert_true(reading.owner.began > 0 && reading.owner.began == began);
    run_lock_release(lock, false);
    assert_true(!there_is("owner") && there_is("lock"));
    run_lock_release(taken(config_of("elsewhere", 1, NULL, 0), 0), false);
}

static void test_a_living_process_is_refused_and_a_dead_one_succeeded(void **state)
{
    (void)state;
    pid_t pid = holder(NULL);
    char who[64];
    snprintf(who, sizeof who, "process %d", (int)pid);
    double waited = refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, who);
    assert_true(waited >= 4.9 && waited < 6);
    refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, "is in use by another run (host ");
    end(pid);
    assert_true(there_is("owner"));
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 0), false);
}

static pid_t ending;

static void end_it(void)
{
    if (ending) end(ending);
    ending = 0;
}

static void test_an_owner_that_is_about_to_go_is_waited_for(void **state)
{
    (void)state;
    ending = holder(NULL);
    meanwhile = end_it;
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 1), false);
}

/* The pid of a dead owner may have been reused. */
static void test_a_pid_that_is_used_again(void **state)
{
    (void)state;
    struct run_owner owner = config_of(NULL, 0, NULL, 0).self;
    owner.began--;
    leave_owner(owner);
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 0), false);
    /* after a reboot only the host's name is known */
    owner.began++;
    strcpy(owner.boot, "");
    leave_owner(owner);
    refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, "in use by another run");
    /* a zombie's files are closed */
    pid_t zombie = fork();
    if (zombie == 0) _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT), 0);
    owner = config_of(NULL, 0, NULL, 0).self;
    owner.pid = zombie;
    leave_owner(owner);
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 0), false);
    waitpid(zombie, NULL, 0);
}

/* In another container on the same machine the same pid is another process, or none. */
static void test_another_pid_namespace_is_another_machine(void **state)
{
    (void)state;
    struct run_owner owner = config_of(NULL, 0, NULL, 0).self;
    owner.pid = 4194000;
    strcpy(owner.pid_space, "pid:[1]");
    leave_owner(owner);
    struct run_lock *lock = taken(config_of(NULL, 0, NULL, 0), 31);
    assert_true(fake_time >= 1029);
    run_lock_release(lock, false);
}

static void test_a_lock_without_an_owner(void **state)
{
    (void)state;
    put("lock", "");
    int fd = open(at("lock"), O_RDWR | O_CLOEXEC);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &whole), 0);
    refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, "'lock' is locked");
    close(fd);
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 0), false);
}

/* ---- other machines ------------------------------------------------------ */

static int looks;

static void refresh_at_the_second_look(void)
{
    if (++looks != 2) return;
    char text[OWNER_MAX_BYTES] = "";
    FILE *file = fopen(at("owner"), "r+");
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    char *count = strstr(text, " 00000000");
    assert_non_null(count);
    fseek(file, count + 8 - text, SEEK_SET);
    fputc('1', file);
    fclose(file);
}

static void test_a_distant_owner_is_watched(void **state)
{
    (void)state;
    leave_owner(config_of("n1", 12, "5", 0).self);
    looks = 0;
    meanwhile = refresh_at_the_second_look;
    double waited = refused(config_of("n2", 13, "6", 0), STATUS_USAGE, "(host n1, process 12, job 5)");
    assert_true(waited < 1); /* at the first sign of life */
    meanwhile = NULL;
    struct run_lock *lock = taken(config_of("n2", 13, "6", 0), 31);
    assert_true(fake_time - 1000 - waited >= 29);
    run_lock_release(lock, false);
}

/* A file server that hangs for a minute delays the owner's refreshes as well as the taker's reads. */
static void hang(void)
{
    if (++looks == 10) fake_time += 60;
}

static void test_time_in_which_nobody_could_look_does_not_count(void **state)
{
    (void)state;
    leave_owner(config_of("n1", 12, NULL, 0).self);
    looks = 0;
    meanwhile = hang;
    struct run_lock *lock = taken(config_of("n2", 13, NULL, 0), 91);
    assert_true(fake_time >= 1089);
    run_lock_release(lock, false);
}

static void remove_owner(void)
{
    unlink(at("owner"));
}

static void ask_to_stop(void)
{
    stop = true;
}

static void test_the_wait_ends_with_the_owner_and_with_a_stop(void **state)
{
    (void)state;
    leave_owner(config_of("n1", 12, NULL, 0).self);
    meanwhile = ask_to_stop;
    assert_true(refused(config_of("n2", 13, NULL, 0), STATUS_REQUEUE, "") < 1);
    stop = false;
    meanwhile = remove_owner;
    run_lock_release(taken(config_of("n2", 13, NULL, 0), 1), false);
}

static void test_a_requeued_job_takes_over_at_once(void **state)
{
    (void)state;
    struct error err;
    struct run_lock *former = taken(config_of("n1", 12, "5", 0), 0);
    struct run_lock *other_descriptor_holds = former; /* its lock stays held, as by a node that was cut off */
    struct run_lock *next = taken(config_of("n2", 13, "5", 1), 1.1);
    assert_int_equal(run_lock_check(other_descriptor_holds, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "another job has taken over this run folder"));
    assert_non_null(strstr(err.text, "(host n2, process 13, job 5)"));
    assert_int_equal(run_lock_check(next, &err), STATUS_OK);
    run_lock_release(former, false); /* leaves the folder as it is */
    assert_int_equal(run_lock_check(next, &err), STATUS_OK);
    /* the earlier start, which comes late, does not take it back; nor does another step of the same start */
    looks = -10000;
    meanwhile = NULL;
    struct run_owner owner = next->config.self;
    run_lock_release(next, false);
    owner.began = 0;
    leave_owner(owner);
    struct run_lock *late = taken(config_of("n1", 12, "5", 0), 31);
    assert_true(fake_time > 1029);
    run_lock_release(late, false);
    /* another cluster has its own job numbers */
    strcpy(owner.cluster, "another");
    leave_owner(owner);
    double begin = fake_time;
    run_lock_release(taken(config_of("n3", 14, "5", 9), 31), false);
    assert_true(fake_time - begin > 29);
}

static void test_an_owner_without_a_file_has_lost_it(void **state)
{
    (void)state;
    struct error err;
    struct run_lock *lock = taken(config_of(NULL, 0, NULL, 0), 0);
    assert_int_equal(run_lock_check_quickly(lock, &err), STATUS_OK);
    remove_owner();
    assert_int_equal(run_lock_check_quickly(lock, &err), STATUS_OK); /* the owner file has not been read yet */
    assert_int_equal(run_lock_check(lock, &err), STATUS_USAGE);
    assert_int_equal(run_lock_check_quickly(lock, &err), STATUS_USAGE);
    run_lock_release(lock, false);
}

/* A folder that was moved or deleted is not another job's; put back, it is the run's again. */
static void test_a_folder_that_is_gone(void **state)
{
    (void)state;
    struct error err;
    char moved[80];
    struct run_lock *lock = taken(config_of(NULL, 0, NULL, 0), 0);
    snprintf(moved, sizeof moved, "%s-moved", folder);
    for (int again = 0; again < 2; again++) { /* the second time there is another folder in its place */
        assert_int_equal(rename(folder, moved), 0);
        if (again) assert_int_equal(mkdir(folder, 0700), 0);
        assert_int_equal(run_lock_check(lock, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, "is gone: it was moved or deleted"));
        assert_true(err.cause == RUN_LOCK_GONE && !error_is_transient(&err));
        assert_int_equal(run_lock_check_quickly(lock, &err), STATUS_CHECKPOINT);
        if (again) assert_int_equal(rmdir(folder), 0);
        assert_int_equal(rename(moved, folder), 0);
        assert_int_equal(run_lock_check_quickly(lock, &err), STATUS_OK);
    }
    remove_owner(); /* rm -r has come so far */
    snprintf(moved, sizeof moved, "%s/lock", folder);
    assert_int_equal(unlink(moved), 0);
    assert_int_equal(run_lock_check(lock, &err), STATUS_CHECKPOINT);
    assert_true(err.cause == RUN_LOCK_GONE);
    run_lock_release(lock, false);
    assert_false(there_is("owner"));
}

static void test_a_folder_for_the_lock_alone(void **state)
{
    (void)state;
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 0), true);
    assert_int_equal(access(folder, F_OK), -1);
    assert_int_equal(mkdir(folder, 0700), 0);
    struct run_lock *lock = taken(config_of(NULL, 0, NULL, 0), 0);
    put("owner.tmp-1", "of a taker that has just come");
    run_lock_release(lock, true);
    assert_true(!there_is("owner") && !there_is("lock") && there_is("owner.tmp-1"));
}

/* A pipe or a device in the place of a file ends the taking at once. */
static void test_no_regular_files(void **state)
{
    (void)state;
    static const char *const names[] = {"owner", "lock"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_int_equal(mkfifo(at(names[i]), 0600), 0);
        refused(config_of(NULL, 0, NULL, 0), STATUS_CHECKPOINT, "it is not a regular file");
        assert_false(run_lock_in_use(folder));
        unlink(at("owner"));
        unlink(at("lock"));
    }
}

/* The refreshes of an owner that was succeeded have no effect. */
static void test_refreshing(void **state)
{
    (void)state;
    struct reading before, after;
    struct error err;
    struct run_lock *lock = taken(config_of("n1", 12, "5", 0), 0);
    assert_int_equal(owner_read(lock, &before, NULL), STATUS_OK);
    refresh(lock);
    assert_int_equal(owner_read(lock, &after, NULL), STATUS_OK);
    assert_string_not_equal(before.text, after.text);
    assert_true(strlen(before.text) == strlen(after.text) && !memcmp(&before.owner, &after.owner, sizeof after.owner));
    struct run_lock *next = taken(config_of("n2", 13, "5", 1), 2);
    assert_int_equal(owner_read(next, &before, NULL), STATUS_OK);
    refresh(lock);
    assert_int_equal(owner_read(next, &after, NULL), STATUS_OK);
    assert_string_equal(before.text, after.text);
    assert_int_equal(run_lock_check_quickly(lock, &err), STATUS_USAGE); /* the owner has noticed its loss */
    run_lock_release(lock, false);
    run_lock_release(next, false);
}

static void test_a_reader_sees_whether_a_run_lives(void **state)
{
    (void)state;
    struct run_owner owner = config_of(NULL, 0, NULL, 0).self;
    assert_false(run_lock_in_use(folder));
    leave_owner(owner); /* this process */
    assert_true(run_lock_in_use(folder));
    owner.began++; /* its pid was another process's */
    leave_owner(owner);
    assert_false(run_lock_in_use(folder));
    strcpy(owner.boot, "another machine");
    leave_owner(owner);
    assert_true(run_lock_in_use(folder));
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, at("owner"), long_ago, 0), 0);
    assert_false(run_lock_in_use(folder));
    put("owner", "?");
    assert_false(run_lock_in_use(folder));
}

static void test_owner_files_that_say_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "x", "{}", "[1]", "{\"nonce\": \"a\"}"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        put("owner", texts[i]);
        double begin = fake_time;
        struct run_lock *lock = taken(config_of(NULL, 0, NULL, 0), 31);
        assert_true(fake_time - begin >= 29);
        run_lock_release(lock, false);
    }
    assert_int_equal(mkdir(at("owner"), 0777), 0);
    refused(config_of(NULL, 0, NULL, 0), STATUS_CHECKPOINT, "/owner': it is a folder");
    assert_int_equal(rmdir(at("owner")), 0);
}

/* ---- file systems, and races --------------------------------------------- */

static void test_file_systems_without_locks(void **state)
{
    (void)state;
    static const int none[] = {ENOLCK, EOPNOTSUPP, ENOSYS}, wrong[] = {EBADF, EIO, EDEADLK};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        lock_errno = none[i];
        pid_t pid = holder(NULL);
        refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, "in use by another run");
        end(pid);
        struct run_lock *lock = taken(config_of(NULL, 0, NULL, 0), 2);
        assert_false(lock->config.self.locked);
        run_lock_release(lock, false);
    }
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        lock_errno = wrong[i];
        refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, "cannot lock '");
    }
}

/* A kernel before 3.15: the lock belongs to the process. */
static void test_process_locks(void **state)
{
    (void)state;
    lock_command_unknown = F_OFD_SETLK;
    pid_t pid = holder(NULL);
    unlink(at("owner"));
    refused(config_of(NULL, 0, NULL, 0), STATUS_USAGE, "'lock' is locked");
    end(pid);
    run_lock_release(taken(config_of(NULL, 0, NULL, 0), 0), false);
}

static struct run_lock *rival;

/* Another taker has seen the same dead owner and is faster while this one pauses after its rename. */
static void let_rival_win(void)
{
    if (rival) return;
    meanwhile = NULL;
    struct run_lock_config config = config_of("n3", 14, "8", 1);
    struct taking taking = {.grip = GRIP_NONE};
    bool won;
    rival = calloc(1, sizeof *rival);
    rival->config = config;
    rival->config.self.period = 10;
    rival->lock_fd = rival->owner_fd = -1;
    pthread_mutex_init(&rival->mutex, NULL);
    condition_init(&rival->ended);
    strcpy(rival->folder, folder);
    strcpy(rival->lock_path, at("lock"));
    strcpy(rival->owner_path, at("owner"));
    strcpy(rival->config.self.nonce, "fedcba9876543210");
    assert_int_equal(owner_read(rival, &taking.now, NULL), STATUS_OK);
    assert_int_equal(become_owner(rival, &taking, &won, NULL), STATUS_OK);
    assert_true(won);
    looks = 0;
    meanwhile = refresh_at_the_second_look;
}

static void test_of_two_takers_one_wins(void **state)
{
    (void)state;
    lock_errno = ENOLCK;
    leave_owner(config_of("n1", 12, "8", 0).self);
    rival = NULL;
    meanwhile = let_rival_win;
    refused(config_of("n2", 13, "8", 1), STATUS_USAGE, "(host n3, process 14, job 8)");
    meanwhile = NULL;
    struct error err;
    assert_int_equal(run_lock_check(rival, &err), STATUS_OK);
    run_lock_release(rival, false);
}

/* Many real processes, with and without locks: exactly one takes the folder. ghost: the lock is held, as by a node that
 * was cut off, and the takers abandon it. */
static void storm(int round, bool ghost)
{
    enum { TAKERS = 12 };
    pid_t pids[TAKERS];
    int go[2], winners = 0;
    atomic_int *done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(done != MAP_FAILED);
    *done = 0;
    assert_int_equal(pipe(go), 0);
    leave_owner(config_of("gone", 1, "3", 0).self);
    const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int held = ghost ? open(at("lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (ghost) assert_int_equal(fcntl(held, F_OFD_SETLK, &whole), 0);
    fflush(NULL);
    for (int i = 0; i < TAKERS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i]) continue;
        struct run_lock_config own = config_of(NULL, 0, "3", 1);
        struct run_lock *lock;
        char byte;
        if (round) own.pause = lock_pause_real, own.now = seconds_now;
        own.patience = 0.2;
        close(go[1]);
        int got = read(go[0], &byte, 1) == 0 ? 0 : -1;
        struct error err;
        enum status status = run_lock_take(&lock, folder, &own, &err);
        atomic_fetch_add(done, 1);
        while (*done < TAKERS) /* the winner stays until all have tried */
            usleep(1000);
        if (status == STATUS_OK) status = run_lock_check(lock, &err);
        _exit(got == 0 ? (int)status : 99);
    }
    close(go[0]);
    close(go[1]); /* all at once */
    for (int i = 0; i < TAKERS; i++) {
        int code;
        assert_int_equal(waitpid(pids[i], &code, 0), pids[i]);
        assert_true(WIFEXITED(code) && (WEXITSTATUS(code) == 0 || WEXITSTATUS(code) == STATUS_USAGE));
        winners += WEXITSTATUS(code) == 0;
    }
    munmap(done, sizeof *done);
    if (ghost) close(held);
    assert_int_equal(winners, 1);
}

static void test_a_storm_of_takers(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) storm(0, false);
    for (int i = 0; i < 3; i++) storm(0, true);
    storm(1, true);
    lock_errno = ENOLCK;
    storm(1, false);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_clean_end_leaves_no_owner),
        TEST(test_a_living_process_is_refused_and_a_dead_one_succeeded),
        TEST(test_an_owner_that_is_about_to_go_is_waited_for),
        TEST(test_a_pid_that_is_used_again),
        TEST(test_another_pid_namespace_is_another_machine),
        TEST(test_a_lock_without_an_owner),
        TEST(test_a_distant_owner_is_watched),
        TEST(test_time_in_which_nobody_could_look_does_not_count),
        TEST(test_the_wait_ends_with_the_owner_and_with_a_stop),
        TEST(test_a_requeued_job_takes_over_at_once),
        TEST(test_an_owner_without_a_file_has_lost_it),
        TEST(test_a_folder_that_is_gone),
        TEST(test_a_folder_for_the_lock_alone),
        TEST(test_no_regular_files),
        TEST(test_refreshing),
        TEST(test_a_reader_sees_whether_a_run_lives),
        TEST(test_owner_files_that_say_nothing),
        TEST(test_file_systems_without_locks),
        TEST(test_process_locks),
        TEST(test_of_two_takers_one_wins),
        TEST(test_a_storm_of_takers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
