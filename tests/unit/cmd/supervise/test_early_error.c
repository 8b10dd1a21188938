/* SPDX-License-Identifier: Apache-2.0 */
/* test_early_error.c: if ranks of one node fail alike before they can agree, one of them prints the message; a rank
 * that cannot be sure of that prints it itself. */
#include "cmd/train/early_error.c"
#include "core/log.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A process that is a rank with an error to print; it lives until rank_end(). */
struct rank {
    pid_t pid;
    int words, end; /* pipes: its stderr, which it closes after its error; it ends when the test closes the other */
};

/* about: the rank that the error is about, or -1 */
static void rank_start(struct rank *rank, int number, const char *job, const char *text, int about)
{
    int words[2], end[2];
    char byte;
    assert_int_equal(pipe(words), 0);
    assert_int_equal(pipe(end), 0);
    rank->pid = fork();
    if (rank->pid == 0) {
        struct bootstrap boot = {.rank = number, .world = 4};
        struct error err;
        snprintf(boot.job_id, sizeof boot.job_id, "%s", job);
        error_set(&err, STATUS_USAGE, "%s", text);
        error_blame(&err, about, FAILURE_NONE);
        dup2(words[1], STDERR_FILENO);
        close(words[0]);
        close(words[1]);
        close(end[1]);
        log_identity(number, 4, "node");
        early_error_print(&boot, &err);
        close(STDERR_FILENO);
        _exit(err.printed && read(end[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(words[1]);
    close(end[0]);
    rank->words = words[0];
    rank->end = end[1];
}

/* Returns the text that it has printed. */
static const char *rank_said(struct rank *rank, char text[512])
{
    size_t at = 0;
    ssize_t n;
    while (at < 511 && (n = read(rank->words, text + at, 511 - at)) > 0) at += (size_t)n;
    text[at] = 0;
    close(rank->words);
    return text;
}

static void rank_end(struct rank *rank)
{
    int status;
    close(rank->end);
    assert_int_equal(waitpid(rank->pid, &status, 0), rank->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Starts a rank with this error while the others live. Returns whether it prints the error. */
static bool is_heard(int number, const char *job, const char *text, int about)
{
    struct rank rank;
    char said[512];
    rank_start(&rank, number, job, text, about);
    bool heard = *rank_said(&rank, said) != 0;
    rank_end(&rank);
    if (heard && (!strstr(said, text) || !strstr(said, "on node: "))) fail_msg("%s", said);
    return heard;
}

static const char *job_name(char name[64], const char *more)
{
    snprintf(name, 64, "test.%d%s", (int)getpid(), more);
    return name;
}

static void test_one_of_a_node(void **state)
{
    (void)state;
    char job[64], other[64], said[512];
    struct rank first;
    unsetenv("MASTER_ADDR");
    job_name(job, "");
    rank_start(&first, 0, job, "no secret for rank 0: SLURM_PROCID=0, SLURM_NTASKS=4; hint: rank 7", 0);
    assert_non_null(strstr(rank_said(&first, said), "rank 0 on node: no secret"));
    assert_false(is_heard(0, job, "no secret for rank 0: SLURM_PROCID=0, SLURM_NTASKS=4", 0));
    assert_false(is_heard(3, job, "no secret for rank 3: SLURM_PROCID=3, SLURM_NTASKS=4; hint: another", 3));
    assert_true(is_heard(3, job, "no secret for rank 2: SLURM_PROCID=3, SLURM_NTASKS=4", 2));
    assert_true(is_heard(3, job, "something else", -1));
    assert_true(is_heard(3, job_name(other, ".r1"), "no secret for rank 3: SLURM_PROCID=3, SLURM_NTASKS=4", 3));
    assert_true(is_heard(3, "", "no secret for rank 3: SLURM_PROCID=3, SLURM_NTASKS=4", 3));
    rank_end(&first);
    assert_true(is_heard(3, job, "no secret for rank 3: SLURM_PROCID=3, SLURM_NTASKS=4", 3));
}

/* Without a job name, the address where its ranks meet identifies the job. */
static void test_ranks_of_torchrun(void **state)
{
    (void)state;
    char port[64], said[512];
    struct rank first;
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", job_name(port, ""), 1);
    rank_start(&first, 0, "", "no secret", -1);
    assert_non_null(strstr(rank_said(&first, said), "no secret"));
    assert_false(is_heard(1, "", "no secret", -1));
    rank_end(&first);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

/* Whether the process has the socket of that inode open. */
static bool has_socket(pid_t process, unsigned long inode)
{
    char path[64], wanted[64], link[64];
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)process, fd);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        if (strcmp(link, wanted) == 0) return true;
    }
    return false;
}

/* The abstract name that a rank has taken; other runs on this machine may have theirs. */
static socklen_t find_name(pid_t rank, struct sockaddr_un *name)
{
    char line[512];
    size_t length = 0;
    unsigned long inode;
    FILE *file = fopen("/proc/net/unix", "r");
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "@ztrain-");
        if (!at || sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) != 1 || !has_socket(rank, inode)) continue;
        length = strcspn(at, "\n");
        memcpy(name->sun_path + 1, at + 1, length - 1);
    }
    if (file) fclose(file);
    assert_true(length > 0);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

/* Another process has the name: one that does not listen, or one of another user. */
static void test_a_name_that_proves_nothing(void **state)
{
    (void)state;
    char job[64], said[512], byte;
    struct rank first;
    struct sockaddr_un name;
    job_name(job, "");
    rank_start(&first, 0, job, "no secret", -1);
    rank_said(&first, said);
    socklen_t size = find_name(first.pid, &name);
    rank_end(&first);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), ready[2], status;
    /* the name is free again, and this process takes it */
    assert_int_equal(bind(fd, (struct sockaddr *)&name, size), 0);
    assert_true(is_heard(1, job, "no secret", -1));
    close(fd);
    if (geteuid() != 0) return;
    assert_int_equal(pipe(ready), 0);
    pid_t stranger = fork();
    if (stranger == 0) {
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (setresuid(65534, 65534, 65534) != 0 || bind(fd, (struct sockaddr *)&name, size) != 0 ||
            listen(fd, 8) != 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_true(is_heard(1, job, "no secret", -1));
    kill(stranger, SIGKILL);
    waitpid(stranger, &status, 0);
    close(ready[0]);
    close(ready[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_of_a_node), cmocka_unit_test(test_ranks_of_torchrun),
                                       cmocka_unit_test(test_a_name_that_proves_nothing)};
    return cmocka_run_group_tests_name("final error", tests, NULL, NULL);
}
