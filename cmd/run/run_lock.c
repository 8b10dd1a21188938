/* SPDX-License-Identifier: Apache-2.0 */
/* run_lock.c: two files in the folder decide who may write there.
 *
 * Rank 0 holds an fcntl lock on `lock` while the run lives. Some mounts have no locks (ENOLCK, EOPNOTSUPP, ENOSYS),
 * some have locks that other nodes do not see, and the lock of a node that was cut off may stay. So the lock only keeps
 * two takers apart, and `owner` names the owner:
 *
 *     {"nonce": …, "host": …, "boot": …, "pid_space": …, "pid": …, "began": …, "cluster": …, "job": …, "step": …,
 *      "restarts": …, "locked": …, "period": 10.0, "refreshed": "2026-11-22T11:30:12Z 00000012"}
 *
 * It is written as owner.tmp-NONCE, fsynced and renamed. Once a period a thread writes it again in place, with another
 * last member. Another owner's file is renamed over it, so former owners refresh a file without a name.
 *
 *   owner file                            what a taker does, which looks at both repeatedly
 *   ------------------------------------  ---------------------------------------------------------------------------
 *   none                                  takes the folder once it has the lock; refused if that stays held
 *   same Slurm job, fewer restarts        takes it at once: Slurm requeues a job when its former start is over
 *   same machine (boot id; else host      the process lives (pid and when it began): refused after `patience`; it is
 *   name) and same PID namespace          gone: takes it as soon as it has the lock
 *   anything else                         takes it if the file stays the same for three of the owner's periods in
 *                                         which the taker could look; refused at the first change
 *
 * To take the folder, a taker looks whether the old owner file is still the same, renames its own over it, and reads it
 * back. A lock that a dead owner's node holds is abandoned: the taker deletes `lock` and locks a new one. After that,
 * and where there are no locks, it pauses before it reads back: the last taker that renamed its file wins.
 *
 * Nothing here can stop a process that was cut off and comes back. Hence the owner reads the file again before a
 * checkpoint is published, `latest` moves, anything is deleted, metrics.jsonl is opened, or lines that waited for a
 * disk are written to it; a foreign nonce, or no file, ends the run with 2, a folder that was moved or deleted with 4.
 *
 * A kill before the rename leaves owner.tmp-NONCE, which the next owner deletes. The thread uses the descriptors and
 * `lost`, which is atomic; everything else is the caller's. */
#include "cmd/run/run_lock.h"

#include "cmd/run/stop_signal.h"
#include "core/core.h"

#include <signal.h>
#include <sys/random.h>

/* Seconds. Killed ranks may end after their supervisor, hence the patience; the last is between write and read back. */
static const double USUAL_PERIOD = 10, USUAL_PATIENCE = 5, SETTLE = 1;
enum { SILENT_PERIODS = 3, OWNER_MAX_BYTES = 1 << 14, ESTALE_TRIES = 10 };

#define LOCK_NAME "lock"
#define OWNER_NAME "owner"
#define OWNER_TMP OWNER_NAME ".tmp-"

struct run_lock {
    struct run_lock_config config;
    char folder[FS_PATH_MAX], lock_path[FS_PATH_MAX], owner_path[FS_PATH_MAX];
    struct stat identity; /* of the folder */
    int lock_fd;          /* of `lock`, or -1 */
    int owner_fd;         /* of the owner file that this run wrote, or -1 */
    int64_t refreshes;
    atomic_bool lost; /* at the last look the folder had another owner, or was gone */
    pthread_t thread;
    pthread_mutex_t mutex; /* of `end` */
    pthread_cond_t ended;
    bool thread_runs, end;
};

struct reading {
    char text[OWNER_MAX_BYTES]; /* "": there is no file */
    struct run_owner owner;     /* nonce "": it cannot be parsed */
};

static void owner_parse(const char *text, struct run_owner *owner)
{
    const char *nonce, *host, *boot, *pid_space, *cluster, *job, *step;
    json_int_t pid, began, restarts;
    int locked;
    double period;
    json_auto_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    memset(owner, 0, sizeof *owner);
    if (json_unpack(root, "{ss ss ss ss sI sI ss ss ss sI sb sF}", "nonce", &nonce, "host", &host, "boot", &boot,
                    "pid_space", &pid_space, "pid", &pid, "began", &began, "cluster", &cluster, "job", &job, "step",
                    &step, "restarts", &restarts, "locked", &locked, "period", &period) == 0 &&
        period > 0 && period <= 3600) {
        *owner = (struct run_owner){
            .pid = pid, .began = began, .restarts = restarts, .locked = locked != 0, .period = period};
        snprintf(owner->nonce, sizeof owner->nonce, "%s", nonce);
        snprintf(owner->host, sizeof owner->host, "%s", host);
        snprintf(owner->boot, sizeof owner->boot, "%s", boot);
        snprintf(owner->pid_space, sizeof owner->pid_space, "%s", pid_space);
        snprintf(owner->cluster, sizeof owner->cluster, "%s", cluster);
        snprintf(owner->job, sizeof owner->job, "%s", job);
        snprintf(owner->step, sizeof owner->step, "%s", step);
    }
}

static enum status owner_read_text(const struct run_lock *lock, char text[OWNER_MAX_BYTES], struct error *err)
{
    RELEASED(fs_close) int fd = -1;
    TRY(fs_open_regular(lock->owner_path, O_RDONLY | O_NOFOLLOW, STATUS_CHECKPOINT, &fd, NULL, err));
    if (io_pread(fd, text, OWNER_MAX_BYTES - 1, 0) >= 0) return STATUS_OK;
    return error_system(err, STATUS_CHECKPOINT, errno, "cannot read '%s'", lock->owner_path);
}

static enum status owner_read(const struct run_lock *lock, struct reading *reading, struct error *err)
{
    struct error why;
    enum status status;
    int tries = 0;
    memset(reading, 0, sizeof *reading);
    do /* ESTALE: another node has renamed a file over the one that was found */
        status = owner_read_text(lock, reading->text, &why);
    while (status != STATUS_OK && (why.cause == ESTALE || why.cause == EINTR) && ++tries < ESTALE_TRIES);
    if (status != STATUS_OK && (why.cause == ENOENT || why.cause == ENOTDIR)) return STATUS_OK;
    if (status != STATUS_OK && err) *err = why;
    TRY(status);
    if (reading->text[0] == 0) strcpy(reading->text, "?"); /* there is a file */
    owner_parse(reading->text, &reading->owner);
    return STATUS_OK;
}

static bool same_lock_owner(const struct reading *a, const struct reading *b)
{
    return !strcmp(a->owner.nonce, b->owner.nonce) && !a->text[0] == !b->text[0];
}

/* Owned by the caller. Its length does not depend on the number of refreshes. */
static char *owner_text(const struct run_owner *self, int64_t refreshes)
{
    char clock[32], refreshed[64];
    struct tm utc;
    const time_t seconds = time(NULL);
    strftime(clock, sizeof clock, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    snprintf(refreshed, sizeof refreshed, "%s %08" PRId64, clock, refreshes % 100000000);
    json_auto_t *root = json_pack("{ss ss ss ss sI sI ss ss ss sI sb sf ss}", "nonce", self->nonce, "host", self->host,
                                  "boot", self->boot, "pid_space", self->pid_space, "pid", (json_int_t)self->pid,
                                  "began", (json_int_t)self->began, "cluster", self->cluster, "job", self->job, "step",
                                  self->step, "restarts", (json_int_t)self->restarts, "locked", (int)self->locked,
                                  "period", self->period, "refreshed", refreshed);
    OWNED char *body = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    ASSERT(body);
    return memory_printf("%s\n", body);
}

/* ---- the fcntl lock ------------------------------------------------------ */

enum grip { GRIP_OURS, GRIP_HELD, GRIP_NONE /* no locks on this file system */ };

/* EBADF and the like are errors: a lock that was not taken protects nothing. */
static enum status lock_descriptor(int fd, const char *path, enum grip *grip, struct error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int command = F_OFD_SETLK, result;
    while ((result = fcntl(fd, command, &whole)) != 0) {
        if (errno == EINVAL && command == F_OFD_SETLK)
            command = F_SETLK; /* an old kernel: to close another descriptor of the file would drop it; nothing does */
        else if (errno != EINTR)
            break;
    }
    *grip = result == 0 ? GRIP_OURS : errno == EAGAIN || errno == EACCES ? GRIP_HELD : GRIP_NONE;
    if (*grip == GRIP_NONE && errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return error_set(err, STATUS_USAGE, "cannot lock '%s': %s", path, strerror(errno));
    return STATUS_OK;
}

/* ---- what is known of an owner ------------------------------------------- */

static bool same_machine(const struct run_owner *a, const struct run_owner *b)
{
    bool same_kernel = *a->boot && *b->boot ? !strcmp(a->boot, b->boot) : *a->host && !strcmp(a->host, b->host);
    return same_kernel && !strcmp(a->pid_space, b->pid_space) && a->pid > 0;
}

/* Where /proc shows nothing: an owner that had the lock is gone if this process has it. */
static bool is_alive(const struct run_owner *owner, enum grip grip)
{
    int64_t began;
    const char state = machine_process(owner->pid, &began);
    if ((began && state == 'X') || (kill((pid_t)owner->pid, 0) != 0 && errno == ESRCH)) return false;
    if (began == 0 || owner->began == 0) /* /proc does not show it */
        return !(owner->locked && grip == GRIP_OURS);
    return began == owner->began;
}

enum owner_state {
    OWNER_NONE,
    OWNER_REQUEUED, /* an earlier start of the same job */
    OWNER_DEAD,     /* its process is gone */
    OWNER_ALIVE,    /* its process lives */
    OWNER_DISTANT,  /* it can only be watched */
};

static enum owner_state owner_state(const struct run_owner *self, const struct reading *reading, enum grip grip)
{
    const struct run_owner *owner = &reading->owner;
    if (!reading->text[0]) return OWNER_NONE;
    if (*self->job && !strcmp(self->job, owner->job) && !strcmp(self->cluster, owner->cluster) &&
        self->restarts > owner->restarts)
        return OWNER_REQUEUED;
    if (same_machine(self, owner)) return is_alive(owner, grip) ? OWNER_ALIVE : OWNER_DEAD;
    return OWNER_DISTANT;
}

/* "host gpu07, process 4711, job 12 step 0" */
static void describe_owner(const struct run_owner *owner, char out[512])
{
    int n = *owner->host ? snprintf(out, 512, "host %.200s, process %" PRId64, owner->host, owner->pid)
                         : snprintf(out, 512, "which one its owner file does not say");
    if (*owner->job)
        snprintf(out + n, 512 - (size_t)n, ", job %s%s%s", owner->job, *owner->step ? " step " : "", owner->step);
}

/* ---- taking -------------------------------------------------------------- */

struct taking {
    struct reading now, first; /* at the last look, and at the first one at the same owner */
    enum grip grip;
    enum owner_state state;
    double looked;  /* the last look; 0: none yet */
    double waited;  /* seconds since `first` in which this process could look */
    bool logged;    /* that this owner is watched */
    bool abandoned; /* the lock of a former owner */
};

static enum status look(struct run_lock *lock, struct taking *t, double poll, struct error *err)
{
    struct stat named, ours;
    if (lock->lock_fd >= 0 && (io_stat(lock->lock_path, &named) || fstat(lock->lock_fd, &ours) ||
                               named.st_ino != ours.st_ino || named.st_dev != ours.st_dev))
        fs_close(&lock->lock_fd); /* `lock` was replaced since the last look */
    if (lock->lock_fd < 0)
        TRY(fs_open_regular(lock->lock_path, O_RDWR | O_CREAT, STATUS_CHECKPOINT, &lock->lock_fd, NULL, err));
    TRY(lock_descriptor(lock->lock_fd, lock->lock_path, &t->grip, err));
    TRY(owner_read(lock, &t->now, err));
    t->state = owner_state(&lock->config.self, &t->now, t->grip);
    const double now = lock->config.now();
    if (t->looked == 0 || !same_lock_owner(&t->first, &t->now)) {
        t->first = t->now;
        t->waited = 0;
        t->logged = false;
    } else {
        /* a file server that hangs holds up the owner as well */
        t->waited += now - t->looked < 2 * poll ? now - t->looked : 2 * poll;
    }
    t->looked = now;
    return STATUS_OK;
}

/* Seconds until a distant owner counts as dead. A taker that has the lock gets a head start. */
static double silence_needed(const struct run_lock *lock, const struct taking *t)
{
    const double period = t->now.owner.period > 0 ? t->now.owner.period : lock->config.period;
    return SILENT_PERIODS * period + (t->grip == GRIP_HELD ? lock->config.patience : 0);
}

enum decision { DECIDE_WAIT, DECIDE_TAKE, DECIDE_REFUSE };

static enum decision decide(const struct run_lock *lock, const struct taking *t)
{
    if (t->state == OWNER_REQUEUED) return DECIDE_TAKE;
    if (t->state == OWNER_DISTANT && strcmp(t->first.text, t->now.text) != 0) return DECIDE_REFUSE;
    if (t->state == OWNER_DISTANT) return t->waited < silence_needed(lock, t) ? DECIDE_WAIT : DECIDE_TAKE;
    if (t->state != OWNER_ALIVE && t->grip != GRIP_HELD) return DECIDE_TAKE;
    return t->waited < lock->config.patience ? DECIDE_WAIT : DECIDE_REFUSE;
}

/* Replaces the owner of the last look. *won: false if another taker was faster. */
static enum status become_owner(struct run_lock *lock, const struct taking *t, bool *won, struct error *err)
{
    struct reading now;
    char path[FS_PATH_MAX], name[64];
    enum status status;
    *won = false;
    lock->config.self.locked = t->grip == GRIP_OURS;
    OWNED char *text = owner_text(&lock->config.self, 0);
    snprintf(name, sizeof name, OWNER_TMP "%s", lock->config.self.nonce);
    TRY(fs_join(path, lock->folder, name, STATUS_USAGE, err));
    lock->owner_fd = io_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (lock->owner_fd < 0) TRY_END(error_system(err, STATUS_CHECKPOINT, errno, "cannot create '%s'", path));
    TRY_END(fs_write(lock->owner_fd, path, text, strlen(text), STATUS_CHECKPOINT, err));
    if (io_fsync(lock->owner_fd)) TRY_END(error_system(err, STATUS_CHECKPOINT, errno, "cannot write '%s'", path));
    TRY_END(owner_read(lock, &now, err));
    if (same_lock_owner(&now, &t->now)) {
        if (io_rename(path, lock->owner_path) && errno != ENOENT) /* ENOENT: another owner has swept it away */
            TRY_END(error_system(err, STATUS_CHECKPOINT, errno, "cannot rename '%s'", path));
        TRY_END(fs_sync_dir(lock->folder, STATUS_CHECKPOINT, err));
        if (t->grip != GRIP_OURS || t->abandoned) lock->config.pause(SETTLE);
        TRY_END(owner_read(lock, &now, err));
        *won = !strcmp(now.owner.nonce, lock->config.self.nonce);
    }
end:
    if (!*won) {
        io_unlink(path);
        fs_close(&lock->owner_fd);
    }
    return status;
}

static enum status take_over(struct run_lock *lock, struct taking *t, bool *won, struct error *err)
{
    *won = false;
    if (t->grip == GRIP_HELD && !t->abandoned) {
        t->abandoned = true;
        if (io_unlink(lock->lock_path) && errno != ENOENT)
            return error_system(err, STATUS_CHECKPOINT, errno, "cannot delete '%s'", lock->lock_path);
        return STATUS_OK;
    }
    TRY(become_owner(lock, t, won, err));
    if (*won && t->grip == GRIP_NONE)
        log_warn("'%s' cannot be locked, as its file system has no locks: the file '" OWNER_NAME
                 "' next to it is all that keeps other jobs out of this %s",
                 lock->lock_path, lock->config.words.folder);
    if (*won && *t->now.text) log_debug("took over '%s' from %s", lock->owner_path, t->now.owner.nonce);
    return STATUS_OK;
}

static enum status take(struct run_lock *lock, struct error *err)
{
    const struct run_lock_words *words = &lock->config.words;
    struct taking t = {.looked = 0};
    char who[512];
    const double poll = lock->config.period / 50;
    for (bool won = false; !won;) {
        TRY(look(lock, &t, poll, err));
        const enum decision decision = decide(lock, &t);
        if (decision == DECIDE_REFUSE) {
            describe_owner(&t.now.owner, who);
            if (t.state == OWNER_ALIVE || t.state == OWNER_DISTANT)
                error_set(err, STATUS_USAGE, "%s '%s' is in use by %s (%s)", words->folder, lock->folder, words->other,
                          who);
            else
                error_set(err, STATUS_USAGE, "%s '%s' is in use by %s: its file '" LOCK_NAME "' is locked",
                          words->folder, lock->folder, words->other);
            return error_hint(err, "%s", words->hint);
        }
        if (decision == DECIDE_TAKE) {
            TRY(take_over(lock, &t, &won, err));
            continue;
        }
        if (lock->config.asked_to_stop()) {
            log_info("asked to stop while it waited for '%s'", lock->folder);
            return STATUS_REQUEUE;
        }
        if (!t.logged && t.state == OWNER_DISTANT) {
            describe_owner(&t.now.owner, who);
            log_info("%s '%s' is marked as used by %s that can only be watched from here (%s); waiting up to %.0f s "
                     "for a sign of life from it before this one takes over",
                     words->folder, lock->folder, words->other, who, silence_needed(lock, &t));
            t.logged = true;
        }
        lock->config.pause(poll);
    }
    return STATUS_OK;
}

/* ---- refreshing ---------------------------------------------------------- */

static void refresh(struct run_lock *lock)
{
    OWNED char *text = owner_text(&lock->config.self, ++lock->refreshes);
    const ssize_t length = (ssize_t)strlen(text);
    struct error err;
    const bool written = pwrite(lock->owner_fd, text, (size_t)length, 0) == length && fsync(lock->owner_fd) == 0;
    const int code = errno;
    if (run_lock_check(lock, &err) != STATUS_USAGE && !written && code != ESTALE) /* reported when it matters */
        log_debug("cannot refresh '%s': %s", lock->owner_path, strerror(code));
}

static void *refresh_lock_until_end(void *argument)
{
    struct run_lock *lock = argument;
    LOCKED(&lock->mutex);
    while (!lock->end) {
        const struct timespec until = time_after(lock->config.period);
        if (pthread_cond_timedwait(&lock->ended, &lock->mutex, &until) != ETIMEDOUT) continue;
        pthread_mutex_unlock(&lock->mutex);
        refresh(lock);
        pthread_mutex_lock(&lock->mutex);
    }
    return NULL;
}

static void lock_pause_real(double seconds)
{
    for (double end = seconds_now() + seconds, left; (left = end - seconds_now()) > 0;)
        heartbeat_pause(left < 0.05 ? left : 0.05);
}

/* Copies a text up to its first line end (NULL: ""), with '?' for what is not printable ASCII. */
static void copy_lock_text(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%.*s", text ? (int)strcspn(text, "\n") : 0, text ? text : "");
    for (; *out; out++)
        if (*out < ' ' || *out > '~') *out = '?';
}

static void describe_self(struct run_owner *self)
{
    char text[256] = "";
    if (gethostname(text, sizeof text - 1) == 0) copy_lock_text(self->host, sizeof self->host, text);
    FILE *file = memory_fopen("/proc/sys/kernel/random/boot_id", "re");
    copy_lock_text(self->boot, sizeof self->boot, file ? fgets(text, sizeof text, file) : NULL);
    if (file) fclose(file);
    if (readlink("/proc/self/ns/pid", self->pid_space, sizeof self->pid_space - 1) < 0) self->pid_space[0] = 0;
    self->pid = getpid();
    machine_process(self->pid, &self->began);
    copy_lock_text(self->cluster, sizeof self->cluster, getenv("SLURM_CLUSTER_NAME"));
    copy_lock_text(self->job, sizeof self->job, getenv("SLURM_JOB_ID"));
    copy_lock_text(self->step, sizeof self->step, getenv("SLURM_STEP_ID"));
    const char *restarts = getenv("SLURM_RESTART_COUNT");
    self->restarts = restarts ? strtoll(restarts, NULL, 10) : 0;
}

void run_lock_config_init(struct run_lock_config *config)
{
    *config = (struct run_lock_config){
        .words = {"run folder", "another run", "wait for it to end, or give this run another run.name"},
        .period = USUAL_PERIOD,
        .patience = USUAL_PATIENCE,
        .now = seconds_now,
        .pause = lock_pause_real,
        .asked_to_stop = stop_signal_pending,
    };
    describe_self(&config->self);
}

enum status run_lock_take(struct run_lock **out, const char *folder, const struct run_lock_config *config,
                          struct error *err)
{
    enum status status = STATUS_OK;
    unsigned char random[16];
    *out = NULL;
    struct run_lock *lock = memory_zeroed(1, sizeof *lock);
    lock->config = *config;
    lock->config.self.period = config->period;
    lock->lock_fd = lock->owner_fd = -1;
    pthread_mutex_init(&lock->mutex, NULL);
    condition_init(&lock->ended);
    snprintf(lock->folder, sizeof lock->folder, "%s", folder);
    TRY_GOTO(fs_join(lock->lock_path, folder, LOCK_NAME, STATUS_USAGE, err));
    TRY_GOTO(fs_join(lock->owner_path, folder, OWNER_NAME, STATUS_USAGE, err));
    if (io_stat(folder, &lock->identity) != 0)
        TRY_GOTO(error_system(err, STATUS_CHECKPOINT, errno, "cannot open the folder '%s'", folder));
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot get random numbers: %s", strerror(errno)));
    for (size_t i = 0; i < sizeof random; i++) snprintf(lock->config.self.nonce + 2 * i, 3, "%02x", random[i]);
    TRY_GOTO(take(lock, err));
    DIR *entries = io_opendir(folder); /* deletes the files of takers that were killed */
    for (struct dirent *entry; entries && (entry = io_readdir(entries));)
        if (!strncmp(entry->d_name, OWNER_TMP, sizeof OWNER_TMP - 1)) unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries) io_closedir(entries);
    int code = thread_start(&lock->thread, 0, refresh_lock_until_end, lock);
    lock->thread_runs = code == 0;
    if (code) TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(code)));
    *out = lock;
    return STATUS_OK;
fail:
    run_lock_release(lock, false);
    return status;
}

enum status run_lock_check(struct run_lock *lock, struct error *err)
{
    const char *name = lock->config.words.folder;
    struct reading reading;
    struct stat now;
    char who[512];
    TRY(owner_read(lock, &reading, err));
    lock->lost = strcmp(reading.owner.nonce, lock->config.self.nonce) != 0;
    if (!lock->lost) return STATUS_OK;
    const bool there = io_stat(lock->folder, &now) == 0, gone = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
    const bool same = there && now.st_ino == lock->identity.st_ino && now.st_dev == lock->identity.st_dev;
    if (there ? same && !fs_is_absent(lock->lock_path) : !gone) { /* no run deletes its `lock` */
        describe_owner(&reading.owner, who);
        if (*reading.owner.nonce)
            error_set(err, STATUS_USAGE, "another job has taken over this %s, '%s' (%s)", name, lock->folder, who);
        else
            error_set(err, STATUS_USAGE,
                      "another job has taken over this %s, '%s', and has ended (its file '" OWNER_NAME
                      "' no longer names this one)",
                      name, lock->folder);
        return error_hint(err, "this one was silent for too long, or was requeued; it writes nothing more there");
    }
    error_set(err, STATUS_CHECKPOINT, "the %s '%s' is gone: it was moved or deleted, or its disk was unmounted", name,
              lock->folder);
    error_hint(err, "nothing more is written there; --resume takes it where it is now");
    return error_cause(err, RUN_LOCK_GONE);
}

enum status run_lock_check_quickly(struct run_lock *lock, struct error *err)
{
    return lock->lost ? run_lock_check(lock, err) : STATUS_OK;
}

/* The owner file goes first, so that a taker finds `lock` locked; the folder last: a server may keep deleted files. */
void run_lock_release(struct run_lock *lock, bool folder)
{
    struct error err;
    if (!lock) return;
    thread_tell(&lock->end, &lock->mutex, &lock->ended);
    if (lock->thread_runs) pthread_join(lock->thread, NULL);
    if (lock->owner_fd >= 0) {
        const bool ours = run_lock_check(lock, &err) == STATUS_OK;
        if (ours && io_unlink(lock->owner_path) != 0)
            log_warn("cannot delete '%s': %s", lock->owner_path, strerror(errno));
        if (ours && folder) io_unlink(lock->lock_path);
        io_close(lock->owner_fd);
    }
    if (lock->lock_fd >= 0) io_close(lock->lock_fd);
    if (folder) io_remove(lock->folder);
    pthread_cond_destroy(&lock->ended);
    pthread_mutex_destroy(&lock->mutex);
    free(lock);
}

const char *run_lock_nonce(const struct run_lock *lock)
{
    return lock->config.self.nonce;
}

/* lock: storage for the path. */
static bool owner_of(const char *folder, struct run_lock *lock, struct run_owner *owner)
{
    struct reading reading;
    if (fs_join(lock->owner_path, folder, OWNER_NAME, STATUS_CHECKPOINT, NULL) != STATUS_OK ||
        owner_read(lock, &reading, NULL) != STATUS_OK)
        return false;
    *owner = reading.owner;
    return owner->nonce[0];
}

bool run_lock_is_owner(const char *folder, const char *nonce)
{
    struct run_lock lock;
    struct run_owner owner;
    return owner_of(folder, &lock, &owner) && !strcmp(owner.nonce, nonce);
}

bool run_lock_in_use(const char *folder)
{
    struct run_owner self = {.pid = 0}, owner;
    struct run_lock lock;
    struct stat facts;
    if (!owner_of(folder, &lock, &owner) || io_stat(lock.owner_path, &facts)) return false;
    describe_self(&self);
    if (same_machine(&self, &owner)) return is_alive(&owner, GRIP_NONE);
    return difftime(time(NULL), facts.st_mtime) < (SILENT_PERIODS + 1) * owner.period;
}
