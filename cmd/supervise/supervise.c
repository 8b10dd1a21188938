/* SPDX-License-Identifier: Apache-2.0 */
/* supervise.c: see supervise.h.
 *
 * The supervisor makes the shared memory (comm/control/control.h), starts the ranks, each with a share of the cores,
 * and polls their output and a signalfd. It never waits for a reader of its output (core/output.h).
 *
 *   - SIGINT, SIGTERM, SIGUSR1 and SIGQUIT are passed on to the ranks, whose process groups a Ctrl-C does not reach;
 *     SIGHUP (the terminal is gone) as SIGTERM. Ranks start with these signals blocked, so that none is lost before
 * they listen. SIGTSTP and SIGCONT stop and continue them. SIGHUP and SIGTSTP stay ignored if they were (nohup).
 *   - If a rank fails, the others learn of it through the control block and end by themselves. Ranks that still run get
 *     SIGTERM, and at last SIGKILL, all within 5 seconds. A second SIGINT kills the ranks at once.
 *   - If the supervisor is killed, the kernel kills the ranks (PR_SET_PDEATHSIG). The shared memory has no name.
 *
 * Exit code: the code that a rank gave with its error; 5 if the kernel killed one at the limit of a control group's
 * memory, 6 if one was killed by another signal or left without an error, 8 if one ended with a code that is none of
 * ztrain's; 75 if the ranks stopped on request; 130 after a second SIGINT; 0 only if all ended with 0 and together. */
#include "cmd/supervise/supervise.h"

#include "cmd/run/stop_signal.h"
#include "comm/control/control.h"
#include "core/output.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

/* Seconds after a failure. */
static const double term_after = 1.5, kill_after = 3.5;

/* The signals that arrive here, and the ones that the ranks get for them. */
static const struct {
    int from, to;
} forwarded[] = {{SIGINT, SIGINT}, {SIGTERM, SIGTERM}, {SIGUSR1, SIGUSR1}, {SIGHUP, SIGTERM}, {SIGQUIT, SIGQUIT}};

/* Copies a rank's output line by line into the queues of core/output.h, with "[2] " in front. Long lines are broken. */
enum { PUMP_BYTES = 16384, PUMP_FRONT = 16 };
struct line_pump {
    int from; /* non-blocking, owned; -1: ended */
    enum outlet to;
    char front[PUMP_FRONT]; /* of each line */
    size_t used;
    char buffer[PUMP_BYTES];
};

struct child {
    pid_t pid;
    bool running, ended_by_us;
    int code;                  /* of exit, or 128 + signal */
    struct line_pump pumps[2]; /* stdout, stderr */
};

struct job {
    int ranks, fd;
    const char *visible;
    char **argv;
    char host[64];
    double timeout;
    struct control *control;
    sigset_t old_mask;
    int signals; /* signalfd */
    struct child children[SUPERVISE_MAX_RANKS];
    double failed_at, left_at; /* monotonic seconds; INFINITY: not yet */
    double interrupted_at;     /* the same of the newest SIGINT */
    bool interrupted;          /* a second one came: the ranks are killed */
    bool asked;                /* a signal has asked the job to stop */
    int left_rank;             /* the rank that left early */
    int first_code;            /* of the first rank that ended with an error */
    uint64_t memory_kills;     /* machine_memory_kills() before the job */
    bool told_term;
    struct error unsaid; /* an error that no rank can print; code STATUS_OK: none */
};

static void pump_line(struct line_pump *pump, const char *line, size_t length)
{
    char text[PUMP_FRONT + PUMP_BYTES + 1];
    _Static_assert(sizeof text <= OUTPUT_RECORD, "a line is one record");
    size_t front = strlen(pump->front);
    memcpy(text, pump->front, front);
    memcpy(text + front, line, length);
    text[front + length] = '\n';
    output_put(pump->to, text, front + length + 1, OUTPUT_LINE);
}

static void write_lines(struct line_pump *pump, bool all)
{
    size_t start = 0;
    for (char *end; (end = memchr(pump->buffer + start, '\n', pump->used - start));) {
        pump_line(pump, pump->buffer + start, (size_t)(end - pump->buffer) - start);
        start = (size_t)(end - pump->buffer) + 1;
    }
    if (start < pump->used && (all || (start == 0 && pump->used == sizeof pump->buffer))) {
        pump_line(pump, pump->buffer + start, pump->used - start);
        start = pump->used;
    }
    memmove(pump->buffer, pump->buffer + start, pump->used - start);
    pump->used -= start;
}

/* Copies the whole lines that are there; at the end of the input, or the last time, the rest too, and closes `from`. */
static void line_pump_run(struct line_pump *pump, bool last)
{
    enum { READS = 64 }; /* at a time, so that one rank's flood does not keep the others waiting */
    for (int i = 0; i < READS && pump->from >= 0; i++) {
        ssize_t n = read(pump->from, pump->buffer + pump->used, sizeof pump->buffer - pump->used);
        if (n < 0 && errno == EINTR) continue;
        last |= n <= 0 && !(n < 0 && errno == EAGAIN);
        if (n <= 0) break;
        pump->used += (size_t)n;
        write_lines(pump, false);
    }
    if (!last || pump->from < 0) return;
    write_lines(pump, true);
    fs_close(&pump->from);
}

static void pump_all_lines(struct job *job, bool last)
{
    for (int r = 0; r < job->ranks; r++)
        for (int i = 0; i < 2; i++) line_pump_run(&job->children[r].pumps[i], last);
}

/* ---- starting ------------------------------------------------------------ */

/* Binds this process to the rank's share of the job's cores: at least one, which ranks share if they are too few. */
static void supervise_share_cores(int rank, int ranks)
{
    cpu_set_t all, own;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return; /* more cores than a cpu_set_t holds: every rank may use all */
    int cores = CPU_COUNT(&all), first = rank * cores / ranks, end = (rank + 1) * cores / ranks, seen = 0;
    if (end == first) end = first + 1;
    CPU_ZERO(&own);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) {
            if (seen >= first && seen < end) CPU_SET(cpu, &own);
            seen++;
        }
    sched_setaffinity(0, sizeof own, &own);
}

/* In the child, between fork and exec. outputs: the descriptors that become stdout and stderr. */
static void become_rank(const struct job *job, int rank, const int outputs[2], pid_t supervisor)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) /* it died before that */
        _exit(STATUS_PEER);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (outputs[0] != STDOUT_FILENO) dup2(outputs[0], STDOUT_FILENO);
    dup2(outputs[1], STDERR_FILENO);
    if (null > STDERR_FILENO) close(null);
    supervise_share_cores(rank, job->ranks);
    bootstrap_local_env(rank, job->ranks, job->fd);
    if (job->visible && setenv("CUDA_VISIBLE_DEVICES", job->visible, 1) != 0) memory_exhausted(0);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTOU, SIG_IGN); /* rank 0 may write to the terminal though its group is in the background */
    sigset_t mask = job->old_mask;
    for (size_t i = 0; i < COUNT_OF(forwarded); i++) sigaddset(&mask, forwarded[i].to);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    execv("/proc/self/exe", job->argv);
    fprintf(stderr, "ztrain: error: cannot start rank %d: %s\n", rank, strerror(errno));
    _exit(STATUS_DEVICE);
}

static enum status start_rank(struct job *job, int rank, struct error *err)
{
    struct child *child = &job->children[rank];
    int pipes[2][2] = {{-1, -1}, {-1, -1}}, outputs[2];
    bool terminal = rank == 0 && isatty(STDOUT_FILENO); /* rank 0 shows its progress itself */
    for (int i = terminal ? 1 : 0; i < 2; i++)
        if (pipe2(pipes[i], O_CLOEXEC) != 0) goto fail;
    for (int i = 0; i < 2; i++) outputs[i] = pipes[i][1] >= 0 ? pipes[i][1] : STDOUT_FILENO;
    fflush(NULL);
    pid_t supervisor = getpid();
    child->pid = fork();
    if (child->pid < 0) goto fail;
    if (child->pid == 0) become_rank(job, rank, outputs, supervisor);
    setpgid(child->pid, child->pid); /* in parent and child, so that it is done when either continues */
    child->running = true;
    control_expect(job->control, rank, (int)child->pid, job->host);
    for (int i = 0; i < 2; i++) {
        struct line_pump *pump = &child->pumps[i];
        *pump = (struct line_pump){.from = pipes[i][0], .to = i == 0 ? OUTLET_STDOUT : OUTLET_STDERR};
        snprintf(pump->front, sizeof pump->front, "[%d] ", rank);
        if (pipes[i][0] >= 0) {
            fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
            close(pipes[i][1]);
        }
    }
    return STATUS_OK;
fail:
    error_set(err, STATUS_DEVICE, "cannot start rank %d: %s", rank, strerror(errno));
    for (int i = 0; i < 2; i++)
        for (int end = 0; end < 2; end++)
            if (pipes[i][end] >= 0) close(pipes[i][end]);
    return STATUS_DEVICE;
}

/* ---- ending -------------------------------------------------------------- */

static int supervise_running(const struct job *job)
{
    int n = 0;
    for (int r = 0; r < job->ranks; r++) n += job->children[r].running;
    return n;
}

static void signal_ranks(struct job *job, int signal_number, bool ending)
{
    for (int r = 0; r < job->ranks; r++) {
        struct child *child = &job->children[r];
        if (!child->running) continue;
        child->ended_by_us |= ending;
        kill(child->pid, signal_number);
    }
}

/* The job fails because of `rank`. said: whether the rank has printed its error. */
static void fail_job(struct job *job, int rank, enum failure failure, bool said, struct error *err)
{
    if (!isfinite(job->failed_at)) {
        job->failed_at = seconds_now();
        job->first_code = err->code;
    }
    error_blame(err, rank, failure);
    if (!said && job->unsaid.code == STATUS_OK) job->unsaid = *err;
    control_mark_dead(job->control, rank, err);
}

/* Why a rank was killed by a signal. Returns the code: with a control group's limit another start would end alike. */
static enum status explain_kill(const struct job *job, int signal_number, char text[256])
{
    struct machine_memory machine;
    uint64_t planned = 0; /* as far as it is known */
    *text = '\0';
    if (signal_number != SIGKILL || machine_memory_kills("") == job->memory_kills) return STATUS_PEER;
    machine_memory("", &machine);
    if (machine.limit >= machine.total) {
        snprintf(text, 256, ", as the machine's memory was exhausted");
        return STATUS_PEER;
    }
    for (int r = 0; r < job->ranks; r++) planned += atomic_load(&job->control->block->ranks[r].planned);
    snprintf(text, 256,
             ": it ran out of memory; the control group's limit is %s, and the plan%s of %d rank%s take%s %s of it; "
             "hint: a higher limit, fewer ranks, or what `ztrain plan` shows",
             SIZE(round, machine.limit), PLURAL(job->ranks), job->ranks, PLURAL(job->ranks), job->ranks == 1 ? "s" : "",
             SIZE(round, planned));
    return STATUS_DEVICE;
}

static void rank_ended(struct job *job, int rank, int status)
{
    struct child *child = &job->children[rank];
    struct error err;
    child->running = false;
    if (WIFSIGNALED(status)) {
        child->code = 128 + WTERMSIG(status);
        if (child->ended_by_us) return;
        char why[256];
        const enum status code = explain_kill(job, WTERMSIG(status), why);
        error_set(&err, code, "rank %d on %s (process %d) was killed by signal %d (%s)%s", rank, job->host,
                  (int)child->pid, WTERMSIG(status), strsignal(WTERMSIG(status)), why);
        fail_job(job, rank, *why ? FAILURE_MEMORY : FAILURE_DIED, false, &err);
        return;
    }
    child->code = WEXITSTATUS(status);
    if (!strcmp(status_name((enum status)child->code), "unknown")) {
        error_set(&err, STATUS_BROKEN,
                  "rank %d on %s (process %d) ended with exit code %d, which is not one of ztrain's; hint: a library "
                  "or the dynamic linker ended it; its own message may stand above",
                  rank, job->host, (int)child->pid, child->code);
        fail_job(job, rank, FAILURE_DIED, false, &err);
    } else if (child->code != STATUS_OK && child->code != STATUS_REQUEUE) {
        error_set(&err, (enum status)child->code, "rank %d on %s ended with exit code %d", rank, job->host,
                  child->code);
        fail_job(job, rank, FAILURE_DIED, true, &err);
    } else if (atomic_load(&job->control->block->ranks[rank].state) != RANK_CLOSED && !isfinite(job->left_at)) {
        job->left_at = seconds_now(); /* no failure if the others leave as well */
        job->left_rank = rank;
    }
}

/* Fails the job if a rank left early; signals ranks that outlive a failure. Returns the seconds until the next look. */
static double supervise_check_time(struct job *job)
{
    double now = seconds_now();
    if (!isfinite(job->failed_at) && now >= job->left_at + job->timeout) {
        struct error err;
        error_set(&err, STATUS_PEER, "rank %d on %s (process %d) left with exit code %d while %d others continued",
                  job->left_rank, job->host, (int)job->children[job->left_rank].pid, job->children[job->left_rank].code,
                  supervise_running(job));
        fail_job(job, job->left_rank, FAILURE_LEFT, false, &err);
    }
    if (!isfinite(job->failed_at)) return isfinite(job->left_at) ? job->left_at + job->timeout - now : INFINITY;
    if (now < job->failed_at + term_after) return job->failed_at + term_after - now;
    if (!job->told_term) signal_ranks(job, SIGTERM, true);
    job->told_term = true;
    if (now < job->failed_at + kill_after) return job->failed_at + kill_after - now;
    signal_ranks(job, SIGKILL, true);
    return 0.1;
}

/* ---- the loop ------------------------------------------------------------ */

static void take_interrupt(struct job *job)
{
    double now = seconds_now();
    if (!isfinite(job->interrupted_at)) {
        output_put(OUTLET_STDERR, stop_signal_first_words, strlen(stop_signal_first_words), OUTPUT_LINE);
    } else if (stop_signal_is_another(now - job->interrupted_at)) {
        job->interrupted = true;
        signal_ranks(job, SIGKILL, true);
    }
    job->interrupted_at = now;
}

static void supervise_forward(struct job *job, int signal_number)
{
    for (size_t i = 0; i < COUNT_OF(forwarded); i++) {
        const int to = forwarded[i].to;
        if (signal_number != forwarded[i].from) continue;
        if (isfinite(job->failed_at) && to != SIGQUIT) /* it is not the failure's cause */
            stop_signal_note(to);
        else if (to != SIGQUIT) /* which only asks for the flight records */
            job->asked = true;
        signal_ranks(job, to, false);
    }
}

/* The job's exit code once all ranks have ended. *unsaid: the error, if no rank has printed it; else code STATUS_OK. */
static int job_exit_code(struct job *job, struct error *unsaid)
{
    const struct control_block *block = job->control->block;
    *unsaid = (struct error){.code = STATUS_OK};
    if (job->interrupted)
        return error_set(unsaid, STATUS_INTERRUPTED, "interrupted a second time: ended at once, without a checkpoint");
    if (isfinite(job->failed_at)) {
        if (atomic_load(&block->failed) == 2 && block->failure == FAILURE_ERROR)
            return block->code; /* with the error that the rank has printed */
        *unsaid = job->unsaid;
        return unsaid->code != STATUS_OK ? (int)unsaid->code : job->first_code;
    }
    for (int r = 0; r < job->ranks; r++)
        if (job->children[r].code != STATUS_OK) return job->children[r].code;
    if (isfinite(job->left_at))
        return error_set(unsaid, STATUS_PEER,
                         "rank %d on %s (process %d) left with exit code 0 without the others' consent", job->left_rank,
                         job->host, (int)job->children[job->left_rank].pid);
    return STATUS_OK;
}

/* Starts the ranks, passes on a stop signal from before they could get it, and waits until all have ended. */
static enum status run_ranks(struct job *job, struct error *err)
{
    struct pollfd fds[1 + 2 * SUPERVISE_MAX_RANKS];
    enum status status = STATUS_OK;
    for (int r = 0; r < job->ranks && status == STATUS_OK; r++) status = start_rank(job, r, err);
    int error = output_start(); /* no fork any more: a reader of the output may pause, and the ranks continue */
    if (error && status == STATUS_OK)
        status = error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error));
    if (status != STATUS_OK) {
        signal_ranks(job, SIGKILL, true);
    } else if (stop_signal_pending()) { /* it came before signals were blocked here */
        if (stop_signal_pending() == SIGINT) take_interrupt(job);
        supervise_forward(job, stop_signal_pending());
    }
    while (supervise_running(job) > 0) {
        nfds_t n = 0;
        fds[n++] = (struct pollfd){.fd = job->signals, .events = POLLIN};
        for (int r = 0; r < job->ranks; r++)
            for (int i = 0; i < 2; i++)
                fds[n++] = (struct pollfd){.fd = job->children[r].pumps[i].from, .events = POLLIN};
        const double wait = supervise_check_time(job);
        poll(fds, n, isfinite(wait) ? (int)(wait * 1000) + 1 : -1);
        pump_all_lines(job, false);
        for (struct signalfd_siginfo info; read(job->signals, &info, sizeof info) == (ssize_t)sizeof info;) {
            if (info.ssi_signo == SIGINT) take_interrupt(job);
            supervise_forward(job, (int)info.ssi_signo);
            if (info.ssi_signo != SIGTSTP) continue;
            signal_ranks(job, SIGSTOP, false);
            raise(SIGSTOP);
            signal_ranks(job, SIGCONT, false);
        }
        for (int r = 0, code; r < job->ranks; r++)
            if (job->children[r].running && waitpid(job->children[r].pid, &code, WNOHANG) == job->children[r].pid)
                rank_ended(job, r, code);
    }
    pump_all_lines(job, true);
    return status;
}

/* Also blocks the signals: the signalfd gets them instead. */
static enum status job_open(struct job *job, int ranks, const char *visible, char **argv, double timeout_seconds,
                            struct error *err)
{
    const struct control_shape shape = {.world = ranks, .local_world = ranks, .num_nodes = 1};
    sigset_t mask;
    *job = (struct job){.ranks = ranks,
                        .visible = visible,
                        .argv = argv,
                        .timeout = timeout_seconds,
                        .fd = -1,
                        .memory_kills = machine_memory_kills("")};
    job->failed_at = job->left_at = job->interrupted_at = INFINITY;
    bootstrap_host(job->host, sizeof job->host);
    for (int r = 0; r < ranks; r++) job->children[r].pumps[0].from = job->children[r].pumps[1].from = -1;
    signal(SIGCHLD, SIG_DFL); /* where it stayed ignored, the kernel would reap the ranks itself */
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    if (!stop_signal_is_ignored(SIGTSTP)) sigaddset(&mask, SIGTSTP);
    for (size_t i = 0; i < COUNT_OF(forwarded); i++)
        if (forwarded[i].from != SIGHUP || !stop_signal_is_ignored(SIGHUP)) sigaddset(&mask, forwarded[i].from);
    sigprocmask(SIG_BLOCK, &mask, &job->old_mask);
    job->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signals < 0) return error_set(err, STATUS_DEVICE, "cannot watch signals: %s", strerror(errno));
    TRY(control_create(&shape, &job->fd, err));
    return control_attach(job->fd, -1, ranks, job->host, timeout_seconds, &job->control, err);
}

enum status supervise(int ranks, const char *visible, char **argv, double timeout_seconds, struct job_end *end,
                      struct error *err)
{
    ASSERT(timeout_seconds > 0 && ranks >= 1 && ranks <= SUPERVISE_MAX_RANKS);
    *end = (struct job_end){.code = STATUS_BUG, .rank = -1};
    TRY(bootstrap_check_launcher(err));
    struct job *job = memory_alloc(sizeof *job);
    struct error unsaid;
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN);
    enum status status = job_open(job, ranks, visible, argv, timeout_seconds, err);
    if (status == STATUS_OK) status = run_ranks(job, err);
    if (status == STATUS_OK) {
        end->code = job_exit_code(job, &unsaid);
        const struct control_block *block = job->control->block;
        if (atomic_load(&block->failed) == 2) {
            snprintf(end->cause, sizeof end->cause, "%.*s", (int)sizeof end->cause - 1, block->text);
            end->rank = block->rank;
        } else if (unsaid.code != STATUS_OK) {
            end->rank = unsaid.rank;
        }
        if (unsaid.code != STATUS_OK && err) *err = unsaid;
        status = unsaid.code;
    }
    end->asked = job->asked;
    control_detach(job->control);
    if (job->fd >= 0) close(job->fd);
    if (job->signals >= 0) close(job->signals);
    signal(SIGPIPE, old_pipe);
    sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
    free(job);
    return status;
}
