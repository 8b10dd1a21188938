/* run_lock.c: one job at a time may write in a run folder.
 *
 * Two files in the folder decide. `lock` is a regular file that is never deleted; rank 0 holds an fcntl lock on it
 * while the run lives (of the open file description where the kernel supports it; the older kind serves as well,
 * as this process never closes another descriptor of the file). The kernel drops it with the process. It works across
 * nodes on NFS and on Lustre (-o flock), but not everywhere: some mounts have no locks (ENOLCK, EOPNOTSUPP, ENOSYS),
 * some have locks that other nodes do not see (local_lock, localflock), and the lock of a node that was cut off may
 * stay. So it does not decide alone: it keeps two takers apart, and `owner` names the owner of the folder:
 *
 *     {"nonce": …, "host": …, "boot": …, "pid_space": …, "pid": …, "began": …, "cluster": …, "job": …, "step": …,
 *      "restarts": …, "locked": …, "period": 10.0, "refreshed": "2026-11-22T11:30:12Z 00000012"}
 *
 * It is written as owner.tmp-NONCE, fsynced and renamed. A thread refreshes its last member once a period, in place,
 * through the descriptor that the file was written with: a job that takes over renames its own file over this one, and
 * from then on the refreshes of the former owner go into a file without a name. A rename for each refresh could
 * instead bury the new owner's file.
 *
 * A taker looks at the lock and at the owner repeatedly:
 *
 *   owner file                            what the taker does
 *   ------------------------------------  ---------------------------------------------------------------------------
 *   none                                  takes the folder once it has the lock; refused if that stays held
 *   same Slurm job, fewer restarts        takes it at once: Slurm requeues a job when its former start is over. If that
 *                                         one lives on, cut off, it finds a foreign nonce
 *   same machine (boot id; else host      the process lives (pid and when it began): refused after `patience`; it is
 *   name) and same PID namespace          gone: takes it as soon as it has the lock
 *   anything else                         takes it if the file stays the same, byte for byte, for three of the owner's
 *                                         periods, by the taker's own clock, counting only time in which it could look;
 *                                         refused at the first change
 *
 * To take the folder, a taker looks once more whether the old owner file is still the same, writes an owner file with
 * its nonce, and reads it back. The lock keeps takers apart that do so at the same moment. Where the lock
 * cannot be taken (no locks, or held by an owner that is to be succeeded) a taker pauses between writing and reading,
 * and of several that renamed their files in that time the last one wins. A lock that is held by a dead owner's node is
 * abandoned: the taker locks a new file and renames it to `lock`.
 *
 * Nothing here can stop a process that is cut off, or was stopped for a minute, and comes back. Hence the rule for the
 * owner: it reads the file again before each checkpoint is published, before `latest` moves, before anything is
 * deleted, before metrics.jsonl is opened and before lines that waited for a disk are written to it; a foreign nonce,
 * or no file, ends the run with 2. (Any other line asks only whether the refreshing thread has found a foreign nonce.)
 * Where the folder itself is not the one that was locked, or has no `lock`, it was moved or deleted, and the run ends
 * with 4. What remains is the moment between that look and the rename that follows.
 *
 *   killed                     what the next start finds
 *   -------------------------  -------------------------------------------------------------------------------------
 *   before the rename          the former owner, or none; owner.tmp-NONCE, which the next owner deletes
 *   after it, until the end    an owner that is dead; on the same machine it is succeeded at once
 *   after run_lock_release()   no owner: after a clean end there is nothing to wait for
 *
 * Threads: the refreshing thread uses the descriptors and `lost`, which is atomic; everything else is used by the
 * caller's thread only. */
#include "cmd/run/run_lock.h"

#include "cmd/run/stop_signal.h"
#include "core/clock.h"
#include "core/fsutil.h"
#include "core/heartbeat.h"
#include "core/io.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Long enough for a slow file server, short enough for a job that starts on another node. */
static const double USUAL_PERIOD = 10; /* seconds */
/* Ranks of a run that was killed may take a moment longer to end than their supervisor. */
static const double USUAL_PATIENCE = 5; /* seconds */
/* Between writing and reading back where no lock keeps other takers away. */
static const double SETTLE = 1; /* seconds */
enum { SILENT_PERIODS = 3, OWNER_MAX_BYTES = 1 << 14, ESTALE_TRIES = 10 };

#define LOCK_NAME "lock"
#define OWNER_NAME "owner"
#define OWNER_TMP OWNER_NAME ".tmp-"
#define LOCK_TMP LOCK_NAME ".tmp-"
#define OWNER_TAIL "\"\n}\n"
enum { REFRESHED_BYTES = 29 }; /* "2026-11-22T11:30:12Z 00000012" */

struct run_lock {
    struct run_lock_config config;
    char folder[FS_PATH_MAX], lock_path[FS_PATH_MAX], owner_path[FS_PATH_MAX];
    struct stat identity; /* of the folder */
    int lock_fd;          /* of `lock`, or -1 */
    int owner_fd;         /* of the owner file that this run wrote, or -1 */
    off_t refreshed_at;
    int64_t refreshes;
    atomic_bool lost; /* at the last look the folder had another owner, or was gone */
    pthread_t thread;
    pthread_mutex_t mutex; /* of `end` */
    pthread_cond_t ended;
    bool thread_runs, end;
};

/* ---- the owner file ------------------------------------------------------ */

/* The content of the owner file. text is "" if there is no file, owner.nonce is "" if it cannot be parsed. */
struct reading {
    char text[OWNER_MAX_BYTES];
    struct run_owner owner;
};

/* The members, for writing and for parsing. */
static const struct {
    const char *name;
    size_t offset, size; /* size 0: int64_t */
} members[] = {
/* clang-format off */
#define TEXT(name) {#name, offsetof(struct run_owner, name), sizeof((struct run_owner *)0)->name}
#define NUMBER(name) {#name, offsetof(struct run_owner, name), 0}
    /* clang-format on */
    TEXT(nonce),   TEXT(host),    TEXT(boot), TEXT(pid_space), NUMBER(pid),
    NUMBER(began), TEXT(cluster), TEXT(job),  TEXT(step),      NUMBER(restarts),
#undef TEXT
#undef NUMBER
};

/* Leaves an owner without a nonce if the text cannot be parsed. */
static void owner_parse(const char *text, struct run_owner *owner)
{
    memset(owner, 0, sizeof *owner);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    bool sound = json_is_object(root) && json_is_number(json_object_get(root, "period"));
    for (size_t i = 0; sound && i < COUNT_OF(members); i++) {
        const json_t *value = json_object_get(root, members[i].name);
        void *at = (char *)owner + members[i].offset;
        if (members[i].size) {
            sound = json_is_string(value) && json_string_length(value) < members[i].size;
            if (sound)
                memcpy(at, json_string_value(value), json_string_length(value) + 1);
        } else {
            sound = json_is_integer(value);
            *(int64_t *)at = json_integer_value(value);
        }
    }
    owner->locked = json_is_true(json_object_get(root, "locked"));
    owner->period = json_number_value(json_object_get(root, "period"));
    json_decref(root);
    sound = sound && owner->nonce[0] && owner->period > 0 && owner->period <= 3600;
    if (!sound)
        memset(owner, 0, sizeof *owner);
}

/* One attempt. */
static enum status owner_read_text(const struct run_lock *lock, char text[OWNER_MAX_BYTES], struct error *err)
{
    int fd;
    TRY(fs_open_file(lock->owner_path, O_RDONLY | O_NOFOLLOW, STATUS_CHECKPOINT, &fd, err));
    ssize_t bytes = io_pread(fd, text, OWNER_MAX_BYTES - 1, 0);
    int code = errno;
    io_close(fd);
    return bytes < 0 ? error_system(err, STATUS_CHECKPOINT, code, "cannot read '%s'", lock->owner_path) : STATUS_OK;
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
    if (status != STATUS_OK && (why.cause == ENOENT || why.cause == ENOTDIR))
        return STATUS_OK;
    if (status != STATUS_OK && err)
        *err = why;
    TRY(status);
    if (reading->text[0] == 0)
        strcpy(reading->text, "?"); /* there is a file */
    owner_parse(reading->text, &reading->owner);
    return STATUS_OK;
}

static void refreshed_text(int64_t count, char out[REFRESHED_BYTES + 1])
{
    char text[64];
    struct tm utc;
    time_t seconds = time(NULL);
    gmtime_r(&seconds, &utc);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(text + n, sizeof text - n, " %08" PRId64, count % 100000000);
    snprintf(out, REFRESHED_BYTES + 1, "%-*.*s", REFRESHED_BYTES, REFRESHED_BYTES, text);
}

/* The text of this run's owner file; the caller frees it. *refreshed_at: the offset of its last member's text. */
static char *owner_text(const struct run_owner *self, off_t *refreshed_at)
{
    char refreshed[REFRESHED_BYTES + 1];
    json_t *root = json_object();
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        const void *at = (const char *)self + members[i].offset;
        json_object_set_new(root, members[i].name,
                            members[i].size ? json_string(at) : json_integer(*(const int64_t *)at));
    }
    refreshed_text(0, refreshed);
    json_object_set_new(root, "locked", json_boolean(self->locked));
    json_object_set_new(root, "period", json_real(self->period));
    json_object_set_new(root, "refreshed", json_string(refreshed));
    char *body = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    ASSERT(body);
    char *text = memory_printf("%s\n", body);
    json_decref(root);
    free(body);
    *refreshed_at = (off_t)(strlen(text) - (sizeof OWNER_TAIL - 1) - REFRESHED_BYTES);
    return text;
}

/* ---- the fcntl lock ------------------------------------------------------ */

enum grip { GRIP_OURS, GRIP_HELD, GRIP_NONE /* no locks on this file system */ };

static bool without_locks(int code)
{
    return code == ENOLCK || code == EOPNOTSUPP || code == ENOTSUP || code == ENOSYS || code == EINVAL;
}

/* One attempt. EBADF and the like are errors: a lock that was not taken protects nothing. */
static enum status lock_descriptor(int fd, const char *path, enum grip *grip, struct error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int command = F_OFD_SETLK, result;
    while ((result = fcntl(fd, command, &whole)) != 0) {
        if (errno == EINVAL && command == F_OFD_SETLK)
            command = F_SETLK; /* an old kernel */
        else if (errno != EINTR)
            break;
    }
    *grip = result == 0 ? GRIP_OURS : errno == EAGAIN || errno == EACCES ? GRIP_HELD : GRIP_NONE;
    if (result != 0 && *grip == GRIP_NONE && !without_locks(errno))
        return error_set(err, STATUS_USAGE, "cannot lock '%s': %s", path, strerror(errno));
    return STATUS_OK;
}

/* The folder was checked before (run_place.h), so a failure now is the disk's. */
static enum status open_error(const char *what, const char *path, struct error *err)
{
    return error_set(err, STATUS_CHECKPOINT, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* Tries for the lock of the file that is named `lock` now: it may have been replaced since the last try. */
static enum status lock_try(struct run_lock *lock, enum grip *grip, struct error *err)
{
    struct stat named, ours;
    if (lock->lock_fd >= 0 && (io_stat(lock->lock_path, &named) || fstat(lock->lock_fd, &ours) ||
                               named.st_ino != ours.st_ino || named.st_dev != ours.st_dev)) {
        io_close(lock->lock_fd);
        lock->lock_fd = -1;
    }
    if (lock->lock_fd < 0)
        TRY(fs_open_file(lock->lock_path, O_RDWR | O_CREAT, STATUS_CHECKPOINT, &lock->lock_fd, err));
    return lock_descriptor(lock->lock_fd, lock->lock_path, grip, err);
}

/* The lock is held by an owner that is to be succeeded: abandons that file and locks a new one of the same name.
 * *beaten: another taker has become the owner meanwhile, and has swept the new file away. */
static enum status lock_replace(struct run_lock *lock, bool *beaten, struct error *err)
{
    char path[FS_PATH_MAX], name[64];
    enum grip grip;
    snprintf(name, sizeof name, LOCK_TMP "%s", lock->config.self.nonce);
    TRY(fs_join(path, lock->folder, name, STATUS_USAGE, err));
    int fd = io_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return open_error("create", path, err);
    enum status status = lock_descriptor(fd, path, &grip, err);
    if (status == STATUS_OK && io_rename(path, lock->lock_path)) {
        *beaten = errno == ENOENT;
        status = *beaten ? STATUS_OK : open_error("rename", path, err);
    }
    if (status != STATUS_OK || *beaten) {
        io_unlink(path);
        io_close(fd);
        return status;
    }
    io_close(lock->lock_fd);
    lock->lock_fd = fd;
    return STATUS_OK;
}

/* ---- judging an owner ---------------------------------------------------- */

/* The start of a process, in clock ticks since the boot; 0: it cannot be seen; -1: it is a zombie. */
static int64_t process_began(int64_t pid)
{
    char path[64], line[2048];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *file = memory_fopen(path, "re");
    if (!file)
        return 0;
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = 0;
    char state;
    long long began;
    const char *rest = strrchr(line, ')'); /* a program's name may hold anything */
    if (!rest || sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld",
                        &state, &began) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? -1 : began;
}

static bool same_machine(const struct run_owner *a, const struct run_owner *b)
{
    bool same_kernel = *a->boot && *b->boot ? !strcmp(a->boot, b->boot) : *a->host && !strcmp(a->host, b->host);
    return same_kernel && !strcmp(a->pid_space, b->pid_space) && a->pid > 0;
}

/* grip: if this process has the lock and the owner recorded that it had it, the owner is gone. That is the only
 * evidence where /proc shows nothing. */
static bool is_alive(const struct run_owner *owner, enum grip grip)
{
    if (kill((pid_t)owner->pid, 0) != 0 && errno == ESRCH)
        return false;
    int64_t began = process_began(owner->pid);
    if (began < 0)
        return false;
    if (began == 0 || owner->began == 0) /* /proc does not show it */
        return !(owner->locked && grip == GRIP_OURS);
    return began == owner->began;
}

enum verdict {
    VERDICT_VACANT,  /* no owner */
    VERDICT_REQUEUE, /* an earlier start of the same job */
    VERDICT_DEAD,    /* its process is gone */
    VERDICT_ALIVE,   /* its process lives */
    VERDICT_DISTANT, /* it can only be watched */
};

static enum verdict judge(const struct run_lock *lock, const struct reading *reading, enum grip grip)
{
    const struct run_owner *self = &lock->config.self, *owner = &reading->owner;
    if (!reading->text[0])
        return VERDICT_VACANT;
    if (*self->job && !strcmp(self->job, owner->job) && !strcmp(self->cluster, owner->cluster) &&
        self->restarts > owner->restarts)
        return VERDICT_REQUEUE;
    if (same_machine(self, owner))
        return is_alive(owner, grip) ? VERDICT_ALIVE : VERDICT_DEAD;
    return VERDICT_DISTANT;
}

/* "host gpu07, process 4711, job 12 step 0" */
static void describe_owner(const struct run_owner *owner, char out[512])
{
    int n = *owner->host ? snprintf(out, 512, "host %.200s, process %" PRId64, owner->host, owner->pid)
                         : snprintf(out, 512, "which one its owner file does not say");
    if (*owner->job)
        snprintf(out + n, 512 - (size_t)n, ", job %s%s%s", owner->job, *owner->step ? " step " : "", owner->step);
}

static enum status refuse_folder(const struct run_lock *lock, const struct reading *reading, enum grip grip,
                                 struct error *err)
{
    char who[512];
    const struct run_lock_words *words = &lock->config.words;
    enum verdict verdict = judge(lock, reading, grip);
    describe_owner(&reading->owner, who);
    if (verdict == VERDICT_ALIVE || verdict == VERDICT_DISTANT)
        error_set(err, STATUS_USAGE, "%s '%s' is in use by %s (%s)", words->folder, lock->folder, words->other, who);
    else
        error_set(err, STATUS_USAGE, "%s '%s' is in use by %s: its file '" LOCK_NAME "' is locked", words->folder,
                  lock->folder, words->other);
    return error_hint(err, "%s", words->hint);
}

/* ---- taking -------------------------------------------------------------- */

/* Writes this run's owner file under its temporary name, and keeps it open. */
static enum status owner_write(struct run_lock *lock, const char *path, struct error *err)
{
    char *text = owner_text(&lock->config.self, &lock->refreshed_at);
    enum status status = STATUS_OK;
    lock->owner_fd = io_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (lock->owner_fd < 0) {
        status = open_error("create", path, err);
    } else {
        errno = 0;
        if (fs_write(lock->owner_fd, path, text, strlen(text), STATUS_USAGE, NULL) != STATUS_OK ||
            io_fsync(lock->owner_fd))
            status = open_error("write", path, err);
    }
    free(text);
    return status;
}

static void owner_forget(struct run_lock *lock, const char *path)
{
    io_unlink(path);
    if (lock->owner_fd >= 0)
        io_close(lock->owner_fd);
    lock->owner_fd = -1;
}

/* Replaces the owner that was read by this run. *won: it has; otherwise another taker was faster. */
static enum status claim(struct run_lock *lock, const struct reading *old, enum grip grip, bool *won, struct error *err)
{
    struct reading now;
    char path[FS_PATH_MAX], name[64];
    *won = false;
    lock->config.self.locked = grip != GRIP_NONE;
    snprintf(name, sizeof name, OWNER_TMP "%s", lock->config.self.nonce);
    TRY(fs_join(path, lock->folder, name, STATUS_USAGE, err));
    enum status status = owner_write(lock, path, err);
    if (status == STATUS_OK)
        status = owner_read(lock, &now, err);
    if (status != STATUS_OK || strcmp(now.owner.nonce, old->owner.nonce) || !now.text[0] != !old->text[0]) {
        owner_forget(lock, path);
        return status;
    }
    bool beaten = false;
    if (grip == GRIP_HELD)
        status = lock_replace(lock, &beaten, err);
    if (beaten) {
        owner_forget(lock, path);
        return status;
    }
    if (status == STATUS_OK && io_rename(path, lock->owner_path) &&
        errno != ENOENT) /* ENOENT: another owner swept it */
        status = open_error("rename", path, err);
    if (status == STATUS_OK)
        status = fs_sync_dir(lock->folder, STATUS_CHECKPOINT, err);
    if (status == STATUS_OK && grip != GRIP_OURS)
        lock->config.pause(SETTLE);
    if (status == STATUS_OK)
        status = owner_read(lock, &now, err);
    *won = status == STATUS_OK && !strcmp(now.owner.nonce, lock->config.self.nonce);
    if (!*won)
        owner_forget(lock, path);
    return status;
}

/* A taker's view of one owner, from the first look on. */
struct watch {
    bool begun;
    char text[OWNER_MAX_BYTES]; /* at the first look */
    char nonce[33];
    double waited; /* seconds during which this process could look */
    double last;   /* the last look */
    bool logged;   /* the user knows that this owner is watched */
};

/* Seconds for which this owner is watched before it counts as dead. A taker without the lock leaves a head start to the
 * taker that has it. */
static double silence_needed(const struct run_lock *lock, const struct reading *reading, enum grip grip)
{
    double period = reading->owner.period > 0 ? reading->owner.period : lock->config.period;
    return SILENT_PERIODS * period + (grip == GRIP_HELD ? lock->config.patience : 0);
}

static void watch_on(struct run_lock *lock, struct watch *watch, const struct reading *reading, double poll)
{
    double now = lock->config.now();
    if (!watch->begun || strcmp(watch->nonce, reading->owner.nonce) || !watch->text[0] != !reading->text[0]) {
        watch->begun = true;
        watch->waited = 0;
        watch->logged = false;
        memcpy(watch->text, reading->text, sizeof watch->text);
        memcpy(watch->nonce, reading->owner.nonce, sizeof watch->nonce);
    } else {
        /* a file server that hangs holds up the owner as well */
        watch->waited += now - watch->last < 2 * poll ? now - watch->last : 2 * poll;
    }
    watch->last = now;
}

enum decision { DECIDE_WAIT, DECIDE_TAKE, DECIDE_REFUSE };

static enum decision decide_on_owner(const struct run_lock *lock, const struct watch *watch,
                                     const struct reading *reading, enum grip grip)
{
    bool patient = watch->waited < lock->config.patience;
    switch (judge(lock, reading, grip)) {
    case VERDICT_REQUEUE: return DECIDE_TAKE;
    case VERDICT_VACANT:
    case VERDICT_DEAD: return grip != GRIP_HELD ? DECIDE_TAKE : patient ? DECIDE_WAIT : DECIDE_REFUSE;
    case VERDICT_ALIVE: return patient ? DECIDE_WAIT : DECIDE_REFUSE;
    case VERDICT_DISTANT: break;
    }
    if (strcmp(watch->text, reading->text) != 0)
        return DECIDE_REFUSE;
    return watch->waited < silence_needed(lock, reading, grip) ? DECIDE_WAIT : DECIDE_TAKE;
}

/* Logged once for each owner that can only be watched. */
static void log_watching(const struct run_lock *lock, struct watch *watch, const struct reading *reading,
                         enum grip grip)
{
    char who[512];
    if (watch->logged || judge(lock, reading, grip) != VERDICT_DISTANT)
        return;
    watch->logged = true;
    describe_owner(&reading->owner, who);
    log_info("%s '%s' is marked as used by %s that can only be watched from here (%s); waiting up to %.0f s for a sign "
             "of life from it before this one takes over",
             lock->config.words.folder, lock->folder, lock->config.words.other, who,
             silence_needed(lock, reading, grip));
}

static enum status take_lock(struct run_lock *lock, struct error *err)
{
    struct watch watch = {.begun = false};
    const double poll = lock->config.period / 50;
    struct reading reading;
    for (;;) {
        enum grip grip;
        bool won;
        TRY(lock_try(lock, &grip, err));
        TRY(owner_read(lock, &reading, err));
        watch_on(lock, &watch, &reading, poll);
        switch (decide_on_owner(lock, &watch, &reading, grip)) {
        case DECIDE_REFUSE: return refuse_folder(lock, &reading, grip, err);
        case DECIDE_TAKE:
            TRY(claim(lock, &reading, grip, &won, err));
            if (won && grip == GRIP_NONE)
                log_warn("'%s' cannot be locked, as its file system has no locks: the file '" OWNER_NAME
                         "' next to it is all that keeps other jobs out of this %s",
                         lock->lock_path, lock->config.words.folder);
            if (won && *reading.text && !watch.logged)
                log_debug("took over '%s' from %s", lock->owner_path, reading.owner.nonce);
            if (won)
                return STATUS_OK;
            break;
        case DECIDE_WAIT:
            if (lock->config.asked_to_stop()) {
                log_info("asked to stop while '%s' was waited for", lock->folder);
                return STATUS_REQUEUE;
            }
            log_watching(lock, &watch, &reading, grip);
            lock->config.pause(poll);
        }
    }
}

/* Deletes the files of takers that were killed. The folder is this run's: no other process may write there. */
static void sweep(const struct run_lock *lock)
{
    DIR *entries = io_opendir(lock->folder);
    if (!entries)
        return;
    for (struct dirent *entry; (entry = io_readdir(entries));)
        if (!strncmp(entry->d_name, OWNER_TMP, sizeof OWNER_TMP - 1) ||
            !strncmp(entry->d_name, LOCK_TMP, sizeof LOCK_TMP - 1))
            unlinkat(dirfd(entries), entry->d_name, 0);
    io_closedir(entries);
}

/* ---- refreshing ---------------------------------------------------------- */

static void refresh(struct run_lock *lock)
{
    char text[REFRESHED_BYTES + 1];
    struct error err;
    refreshed_text(++lock->refreshes, text);
    bool written = pwrite(lock->owner_fd, text, REFRESHED_BYTES, lock->refreshed_at) == REFRESHED_BYTES &&
                   fsync(lock->owner_fd) == 0;
    int code = errno;
    if (run_lock_check(lock, &err) == STATUS_USAGE)
        return; /* reported when it matters: run_lock_check() */
    if (!written && code != ESTALE)
        log_debug("cannot refresh '%s': %s", lock->owner_path, strerror(code));
}

static void *refresh_until_the_end(void *argument)
{
    struct run_lock *lock = argument;
    pthread_mutex_lock(&lock->mutex);
    while (!lock->end) {
        const struct timespec until = time_after(lock->config.period);
        if (pthread_cond_timedwait(&lock->ended, &lock->mutex, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&lock->mutex);
        refresh(lock);
        pthread_mutex_lock(&lock->mutex);
    }
    pthread_mutex_unlock(&lock->mutex);
    return NULL;
}

/* ---- the interface ------------------------------------------------------- */

static void pause_real(double seconds)
{
    for (double end = seconds_now() + seconds, left; (left = end - seconds_now()) > 0;) {
        const struct timespec nap = {.tv_nsec = (long)(1e9 * (left < 0.05 ? left : 0.05))};
        nanosleep(&nap, NULL);
        heartbeat_beat();
    }
}

static bool asked_to_stop(void)
{
    return stop_signal_pending() != 0;
}

/* A file's first line; "" if there is none. */
static void read_first_line(const char *path, char *out, size_t size)
{
    FILE *file = memory_fopen(path, "re");
    out[0] = 0;
    if (!file)
        return;
    if (!fgets(out, (int)size, file))
        out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    fclose(file);
}

/* Names are printed, and written as JSON: bytes that are not printable ASCII become '?'. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

static void copy_variable(const char *name, char *out, size_t size)
{
    const char *value = getenv(name);
    snprintf(out, size, "%s", value ? value : "");
    make_plain(out);
}

void run_lock_config_init(struct run_lock_config *config)
{
    char restarts[32];
    *config = (struct run_lock_config){
        .words = {"run folder", "another run", "wait for it to end, or give this run another run.name"},
        .period = USUAL_PERIOD,
        .patience = USUAL_PATIENCE,
        .now = seconds_now,
        .pause = pause_real,
        .asked_to_stop = asked_to_stop,
    };
    struct run_owner *self = &config->self;
    if (gethostname(self->host, sizeof self->host - 1) != 0)
        self->host[0] = 0;
    make_plain(self->host);
    read_first_line("/proc/sys/kernel/random/boot_id", self->boot, sizeof self->boot);
    if (readlink("/proc/self/ns/pid", self->pid_space, sizeof self->pid_space - 1) < 0)
        self->pid_space[0] = 0;
    self->pid = getpid();
    self->began = process_began(self->pid);
    copy_variable("SLURM_CLUSTER_NAME", self->cluster, sizeof self->cluster);
    copy_variable("SLURM_JOB_ID", self->job, sizeof self->job);
    copy_variable("SLURM_STEP_ID", self->step, sizeof self->step);
    copy_variable("SLURM_RESTART_COUNT", restarts, sizeof restarts);
    self->restarts = strtoll(restarts, NULL, 10);
}

static enum status make_nonce(char nonce[33], struct error *err)
{
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return error_set(err, STATUS_DEVICE, "cannot get random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    return STATUS_OK;
}

enum status run_lock_take(struct run_lock **out, const char *folder, const struct run_lock_config *config,
                          struct error *err)
{
    enum status status = STATUS_OK;
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
    TRY_GOTO(make_nonce(lock->config.self.nonce, err));
    TRY_GOTO(take_lock(lock, err));
    sweep(lock);
    int code = thread_start(&lock->thread, 0, refresh_until_the_end, lock);
    lock->thread_runs = code == 0;
    if (code)
        TRY_GOTO(error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(code)));
    *out = lock;
    return STATUS_OK;
fail:
    run_lock_release(lock);
    return status;
}

/* Whether the folder of this name is not the one that was locked, or its files are being deleted: no run deletes its
 * `lock`. */
static bool folder_is_gone(const struct run_lock *lock)
{
    struct stat now;
    if (io_stat(lock->folder, &now) != 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
    return now.st_ino != lock->identity.st_ino || now.st_dev != lock->identity.st_dev || fs_is_absent(lock->lock_path);
}

static enum status report_gone(const struct run_lock *lock, struct error *err)
{
    error_set(err, STATUS_CHECKPOINT, "the %s '%s' is gone: it was moved or deleted, or its disk was unmounted",
              lock->config.words.folder, lock->folder);
    error_hint(err, "nothing more is written there; --resume takes it where it is now");
    return error_cause(err, RUN_LOCK_GONE);
}

static enum status taken_over(const struct run_lock *lock, const struct run_owner *by, struct error *err)
{
    char who[512];
    const char *name = lock->config.words.folder;
    describe_owner(by, who);
    if (*by->nonce)
        error_set(err, STATUS_USAGE, "another job has taken over this %s, '%s' (%s)", name, lock->folder, who);
    else
        error_set(err, STATUS_USAGE,
                  "another job has taken over this %s, '%s', and has ended (its file '" OWNER_NAME
                  "' no longer names this one)",
                  name, lock->folder);
    return error_hint(err, "this one was silent for too long, or was requeued; it writes nothing more there");
}

enum status run_lock_check(struct run_lock *lock, struct error *err)
{
    struct reading reading;
    TRY(owner_read(lock, &reading, err));
    lock->lost = strcmp(reading.owner.nonce, lock->config.self.nonce) != 0;
    if (!lock->lost)
        return STATUS_OK;
    return folder_is_gone(lock) ? report_gone(lock, err) : taken_over(lock, &reading.owner, err);
}

enum status run_lock_check_quickly(struct run_lock *lock, struct error *err)
{
    return lock->lost ? run_lock_check(lock, err) : STATUS_OK;
}

static void stop_refreshing(struct run_lock *lock)
{
    if (!lock->thread_runs)
        return;
    pthread_mutex_lock(&lock->mutex);
    lock->end = true;
    pthread_cond_signal(&lock->ended);
    pthread_mutex_unlock(&lock->mutex);
    pthread_join(lock->thread, NULL);
    lock->thread_runs = false;
}

void run_lock_release(struct run_lock *lock)
{
    if (!lock)
        return;
    stop_refreshing(lock);
    if (lock->owner_fd >= 0) {
        struct error err;
        if (run_lock_check(lock, &err) == STATUS_OK && io_unlink(lock->owner_path) != 0)
            log_warn("cannot delete '%s': %s", lock->owner_path, strerror(errno));
        io_close(lock->owner_fd);
    }
    if (lock->lock_fd >= 0)
        io_close(lock->lock_fd);
    pthread_cond_destroy(&lock->ended);
    pthread_mutex_destroy(&lock->mutex);
    free(lock);
}

/* The owner goes first: until `lock` is gone as well, a taker finds it locked. A file server keeps deleted files that
 * are open under other names, hence the folder goes last. */
void run_lock_release_folder(struct run_lock *lock)
{
    char folder[FS_PATH_MAX];
    struct error err;
    if (!lock)
        return;
    strcpy(folder, lock->folder);
    stop_refreshing(lock);
    if (run_lock_check(lock, &err) == STATUS_OK) {
        io_unlink(lock->owner_path);
        io_unlink(lock->lock_path);
    }
    run_lock_release(lock);
    io_remove(folder);
}

bool run_lock_in_use(const char *folder)
{
    struct run_lock_config config;
    struct reading reading;
    struct stat facts;
    struct run_lock lock;
    if (fs_join(lock.owner_path, folder, OWNER_NAME, STATUS_CHECKPOINT, NULL) != STATUS_OK ||
        owner_read(&lock, &reading, NULL) != STATUS_OK || io_stat(lock.owner_path, &facts) || !reading.owner.nonce[0])
        return false;
    run_lock_config_init(&config);
    if (same_machine(&config.self, &reading.owner))
        return is_alive(&reading.owner, GRIP_NONE);
    return difftime(time(NULL), facts.st_mtime) < (SILENT_PERIODS + 1) * reading.owner.period;
}
