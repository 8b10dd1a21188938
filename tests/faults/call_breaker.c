/* SPDX-License-Identifier: Apache-2.0 */
/* call_breaker.c: runs a command and breaks one of its system calls: call_breaker LOG N ACTION COMMAND… Test code,
 * x86-64.
 *
 * The command is traced (ptrace, with a seccomp filter, so that only the calls of the table below stop it). Calls on
 * files and folders count, in all of its threads and children, from main() on; those on /proc, /sys, /dev and the
 * system's own folders, on sockets and pipes, and on descriptors 0 to 2 do not.
 *
 *   LOG      a line "N KIND PATH" for each counted call, and "hit" after the one that was broken
 *   N        the call that is broken, from 1; 0: none; for at: any number of them in order, with commas between
 *   ACTION   a number: the call is not made and fails with this errno; close() is made first, as a kernel does
 *            half: a read or write moves half of its bytes
 *            kill: SIGKILL to all of the command's processes just before it; in a write, after half of its bytes
 *            one: the same to the calling process only
 *            at:SHELL  nothing is broken: the shell command runs, with $N set, while the calling thread stands before
 * it
 *
 * Ends with the command's exit status, or 128 + signal. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "registers are read as x86-64 has them"
#endif

/* Where a call names its file: a descriptor in argument 0, a path in argument 0 or 1 (after a folder's
 * descriptor). */
enum where { FD, PATH_0, PATH_1 };

static const struct call {
    long number;
    const char *kind;
    enum where where;
} calls[] = {
    {SYS_open, "open", PATH_0},       {SYS_openat, "open", PATH_1},     {SYS_creat, "open", PATH_0},
    {SYS_read, "read", FD},           {SYS_pread64, "read", FD},        {SYS_readv, "read", FD},
    {SYS_write, "write", FD},         {SYS_pwrite64, "write", FD},      {SYS_writev, "write", FD},
    {SYS_fsync, "sync", FD},          {SYS_fdatasync, "sync", FD},      {SYS_close, "close", FD},
    {SYS_rename, "rename", PATH_0},   {SYS_renameat, "rename", PATH_1}, {SYS_renameat2, "rename", PATH_1},
    {SYS_mkdir, "mkdir", PATH_0},     {SYS_mkdirat, "mkdir", PATH_1},   {SYS_unlink, "remove", PATH_0},
    {SYS_unlinkat, "remove", PATH_1}, {SYS_rmdir, "remove", PATH_0},    {SYS_symlink, "link", PATH_1},
    {SYS_symlinkat, "link", PATH_0},  {SYS_link, "link", PATH_1},       {SYS_ftruncate, "truncate", FD},
    {SYS_stat, "stat", PATH_0},       {SYS_lstat, "stat", PATH_0},      {SYS_newfstatat, "stat", PATH_1},
    {SYS_statx, "stat", PATH_1},      {SYS_access, "stat", PATH_0},     {SYS_faccessat, "stat", PATH_1},
    {SYS_faccessat2, "stat", PATH_1}, {SYS_getdents64, "list", FD},     {SYS_flock, "lock", FD},
    {SYS_lseek, "seek", FD},          {SYS_fcntl, "lock", FD},          {SYS_fallocate, "reserve", FD},
};
enum { NUM_CALLS = sizeof calls / sizeof calls[0] };

static FILE *trace;
static long wanted, counted;
static bool armed;
static enum { FAIL, HALF, KILL_ALL, KILL_ONE, RUN_SHELL } action;
static const char *shell, *more_wanted;
static int code; /* FAIL: the errno */
static pid_t leader;

static void die(const char *what)
{
    fprintf(stderr, "call_breaker: %s: %s\n", what, strerror(errno));
    if (leader > 0) kill(leader, SIGKILL);
    exit(98);
}

/* In the child: stop at the calls of the table, pass all others. */
static void filter_calls(void)
{
    struct sock_filter filter[2 * NUM_CALLS + 8];
    int n = 0;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < NUM_CALLS; i++) {
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].number, 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        die("cannot filter system calls");
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The file that a call is about; false: it does not count. */
static bool subject(pid_t thread, const struct call *call, const struct user_regs_struct *regs, char path[PATH_MAX])
{
    static const char *const foreign[] = {"/proc/", "/sys/", "/dev/",  "/etc/",     "/lib",   "/usr/",
                                          "/bin",   "/run/", "/memfd", "/nonexist", "socket:"};
    path[0] = '\0';
    if (call->where == FD) {
        char link[64];
        if ((long)regs->rdi <= STDERR_FILENO) return false;
        snprintf(link, sizeof link, "/proc/%d/fd/%d", thread, (int)regs->rdi);
        ssize_t n = readlink(link, path, PATH_MAX - 1);
        path[n > 0 ? n : 0] = '\0';
        if (path[0] != '/') return false; /* a pipe, a socket, an eventfd */
    } else {
        unsigned long address = call->where == PATH_0 ? regs->rdi : regs->rsi;
        struct iovec local = {path, PATH_MAX - 1}, remote = {(void *)address, 1};
        /* not beyond the page, which may be the last one */
        remote.iov_len = 4096 - address % 4096;
        local.iov_len = remote.iov_len;
        ssize_t n = process_vm_readv(thread, &local, 1, &remote, 1, 0);
        path[n > 0 ? n : 0] = '\0';
        if (!path[0]) return false; /* fstat() in disguise */
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (begins(path, foreign[i])) return false;
    return true;
}

static const struct call *find_call(const struct user_regs_struct *regs)
{
    for (int i = 0; i < NUM_CALLS; i++)
        if (calls[i].number == (long)regs->orig_rax) return &calls[i];
    return NULL;
}

static pid_t process_of(pid_t thread)
{
    char path[64], line[256];
    pid_t process = thread;
    snprintf(path, sizeof path, "/proc/%d/status", thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Tgid: %d", &process) == 1) break;
    if (file) fclose(file);
    return process;
}

static void end_now(pid_t thread)
{
    if (action == KILL_ONE)
        kill(process_of(thread), SIGKILL);
    else
        kill(-leader, SIGKILL), kill(leader, SIGKILL);
}

static void run_shell(void)
{
    char number[24];
    snprintf(number, sizeof number, "%ld", counted);
    setenv("N", number, 1);
    if (system(shell) != 0) die(shell);
    more_wanted = strchr(more_wanted, ',');
    wanted = more_wanted ? atol(++more_wanted) : 0;
}

static bool moves_bytes(const struct call *call)
{
    return call->number == SYS_read || call->number == SYS_pread64 || call->number == SYS_write ||
           call->number == SYS_pwrite64;
}

/* At a stop before a call. Returns how the thread continues: PTRACE_CONT, or PTRACE_SYSCALL to see the call's end. */
static int at_call(pid_t thread)
{
    struct user_regs_struct regs;
    char path[PATH_MAX];
    if (ptrace(PTRACE_GETREGS, thread, 0, &regs) != 0) return PTRACE_CONT;
    const struct call *call = find_call(&regs);
    if (!armed) /* ztrain's main() begins with a look at descriptor 0 */
        armed = call && call->number == SYS_fcntl && regs.rdi == STDIN_FILENO && regs.rsi == F_GETFD;
    if (!armed || !call) return PTRACE_CONT;
    if (call->number == SYS_fcntl && regs.rsi != F_SETLK && regs.rsi != F_SETLKW && regs.rsi != F_OFD_SETLK)
        return PTRACE_CONT;
    if (!subject(thread, call, &regs, path)) return PTRACE_CONT;
    counted++;
    fprintf(trace, "%ld %s %s\n", counted, call->kind, path);
    if (counted != wanted) return PTRACE_CONT;
    fputs("hit\n", trace);
    fflush(trace);
    if (action == RUN_SHELL) {
        run_shell();
        return PTRACE_CONT;
    }
    bool killing = action == KILL_ALL || action == KILL_ONE;
    if (action == HALF || (killing && !strcmp(call->kind, "write") && moves_bytes(call))) {
        regs.rdx = moves_bytes(call) && regs.rdx > 1 ? regs.rdx / 2 : regs.rdx;
        ptrace(PTRACE_SETREGS, thread, 0, &regs);
        return killing ? PTRACE_SYSCALL : PTRACE_CONT;
    }
    if (killing) {
        end_now(thread);
        return PTRACE_CONT;
    }
    if (call->number == SYS_close) return PTRACE_SYSCALL; /* the descriptor is closed nevertheless */
    regs.orig_rax = (unsigned long long)-1;
    regs.rax = (unsigned long long)-code;
    ptrace(PTRACE_SETREGS, thread, 0, &regs);
    return PTRACE_CONT;
}

/* At a stop after a call that was to be seen to its end. */
static void after_call(pid_t thread)
{
    struct user_regs_struct regs;
    if (action != FAIL) {
        end_now(thread);
    } else if (ptrace(PTRACE_GETREGS, thread, 0, &regs) == 0) {
        regs.rax = (unsigned long long)-code;
        ptrace(PTRACE_SETREGS, thread, 0, &regs);
    }
}

static void start(char **command)
{
    int go[2];
    if (pipe2(go, O_CLOEXEC) != 0) die("pipe");
    leader = fork();
    if (leader < 0) die("fork");
    if (leader == 0) {
        char byte;
        leader = -1;
        setpgid(0, 0);
        if (read(go[0], &byte, 1) != 1) _exit(98);
        filter_calls();
        execvp(command[0], command);
        die(command[0]);
    }
    setpgid(leader, leader);
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                   PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, leader, 0, options) != 0) die("cannot trace");
    if (write(go[1], "", 1) != 1) die("pipe");
    close(go[0]);
    close(go[1]);
}

static void parse_action(const char *text)
{
    shell = begins(text, "at:") ? text + 3 : NULL;
    action = shell                   ? RUN_SHELL
             : !strcmp(text, "half") ? HALF
             : !strcmp(text, "kill") ? KILL_ALL
             : !strcmp(text, "one")  ? KILL_ONE
                                     : FAIL;
    code = atoi(text);
}

int main(int argc, char **argv)
{
    int status, result = 97;
    if (argc < 5 || !(trace = fopen(argv[1], "we"))) return 98;
    more_wanted = argv[2];
    wanted = atol(more_wanted);
    parse_action(argv[3]);
    start(argv + 4);
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == leader) result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int event = status >> 16, number = WSTOPSIG(status), deliver = 0, go_on = PTRACE_CONT;
        if (event == PTRACE_EVENT_SECCOMP)
            go_on = at_call(thread);
        else if (number == (SIGTRAP | 0x80))
            after_call(thread);
        else if (event == PTRACE_EVENT_STOP && number != SIGTRAP)
            go_on = PTRACE_LISTEN; /* a group stop */
        else if (event == 0)
            deliver = number;
        ptrace(go_on, thread, 0, deliver);
    }
    fclose(trace);
    return result;
}
