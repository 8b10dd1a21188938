/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: runs the command, prints its error, exits. No other file does (exceptions: scripts/check-functions.py). */
#include "cmd/command_line.h"

#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

static const struct {
    const char *name;
    enum status (*run)(int argc, char **argv, struct error *err);
} commands[] = {
#define COMMAND(word) {#word, cmd_##word},
    COMMANDS(COMMAND)
#undef COMMAND
};

static const char self[] = "/proc/self/exe";

/* OpenMP's waiting threads spin, which costs most of a step beside another busy process; here they soon sleep. The run
 * time reads its settings when it is loaded: the program starts itself again with them. A user's own stay. */
static void main_lets_threads_sleep(char **argv)
{
    const char *name = (const char *)getauxval(AT_EXECFN);
    struct stat executed, named;
    static const char *const settings[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        if (getenv(settings[i])) return;
    /* not so under valgrind, nor where the dynamic linker was executed with the program */
    const bool is_self = getauxval(AT_BASE) != 0 && name && stat(self, &executed) == 0 && stat(name, &named) == 0 &&
                         executed.st_dev == named.st_dev && executed.st_ino == named.st_ino;
    /* libgomp: turns; libomp: ms */
    if (is_self && !setenv("GOMP_SPINCOUNT", "3000", 1) && !setenv("KMP_BLOCKTIME", "1", 1)) execv(self, argv);
}

int main(int argc, char **argv)
{
    /* a caller may have closed stdin, stdout or stderr: a checkpoint must not get their numbers and our output */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            exit(STATUS_DEVICE); /* no stream could take a message */
    main_lets_threads_sleep(argv);
    prctl(PR_SET_NAME, "ztrain"); /* exec of /proc/self/exe has left "exe" */
    memory_serve_libraries();
    memory_set_final_error(log_error);
    /* a closed pipe and the limit of a file's size (ulimit -f) are errors of the write, not a death */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    struct error err = {.code = STATUS_OK, .text = ""};
    enum status (*run)(int, char **, struct error *) = NULL;
    for (size_t i = 0; argc > 1 && i < COUNT_OF(commands); i++)
        if (!strcmp(argv[1], commands[i].name)) run = commands[i].run;
    enum status status = run ? run(argc - 1, argv + 1, &err) : cmd_train(argc, argv, &err);
    status = status == STATUS_HELPED ? STATUS_OK : status;
    const bool lost = ferror(stdout); /* an earlier write of a long text; its errno is gone */
    if (fflush(stdout) && status == STATUS_OK)
        status = error_set(&err, STATUS_USAGE, "cannot write to standard output: %s", strerror(errno));
    else if (lost && status == STATUS_OK)
        status = error_set(&err, STATUS_USAGE, "cannot write to standard output");
    if (status != STATUS_OK && status != STATUS_REQUEUE) log_error_once(&err);
    log_close();
    /* srun -K ends a step with the first task that fails, and drops output that it has not received by then */
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (status != STATUS_OK && tasks && atoi(tasks) > 1)
        nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
    memory_leave_libraries();
    exit(status);
}
