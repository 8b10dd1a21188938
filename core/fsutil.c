/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fsutil.h"

#include "core/core.h"
#include "core/faults.h"

enum { COPY_CHUNK = 1 << 20, IO_CHUNK = 8 << 20 /* bytes between two heartbeats */ };

enum status fs_join(char out[FS_PATH_MAX], const char *dir, const char *name, enum status code, struct error *err)
{
    size_t length = strlen(dir);
    const char *slash = length > 0 && dir[length - 1] == '/' ? "" : "/";
    int n = snprintf(out, FS_PATH_MAX, "%s%s%s", dir, slash, name);
    if (n < 0 || n >= FS_PATH_MAX) return error_set(err, code, "path too long: '%.200s…/%.200s'", dir, name);
    return STATUS_OK;
}

const char *fs_last_part(const char *path, size_t *length)
{
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';) begin--;
    *length = end - begin;
    return path + begin;
}

void fs_parent(const char *path, char out[FS_PATH_MAX])
{
    const size_t slash = (size_t)(fs_last_part(path, &(size_t){0}) - path);
    if (!slash)
        snprintf(out, FS_PATH_MAX, ".");
    else
        snprintf(out, FS_PATH_MAX, "%.*s", slash == 1 ? 1 : (int)(slash - 1), path);
}

bool fs_has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

bool fs_exists(const char *path)
{
    struct stat st;
    return io_lstat(path, &st) == 0;
}

bool fs_is_absent(const char *path)
{
    struct stat st;
    return io_lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

bool fs_is_dir(const char *path)
{
    struct stat st;
    return io_stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Cuts `path`, which cannot be opened, down to the nearest name that exists, above it or itself. Returns why that is no
 * folder; NULL: it is one, so that nothing has the path's name. *reason: the errno of a disk that does not answer. */
static const char *fs_why_no_folder(char path[FS_PATH_MAX], int *reason)
{
    char parent[FS_PATH_MAX];
    struct stat st;
    *reason = 0;
    while (io_lstat(path, &st) != 0) {
        fs_parent(path, parent);
        if ((errno != ENOENT && errno != ENOTDIR) || !strcmp(parent, path)) return strerror(*reason = errno);
        strcpy(path, parent);
    }
    if (io_stat(path, &st) == 0) return S_ISDIR(st.st_mode) ? NULL : "is not a folder";
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return "is a broken link";
    return strerror(*reason = errno);
}

enum status fs_find_dir(const char *path, bool *there, enum status code, struct error *err)
{
    char nearest[FS_PATH_MAX];
    size_t length = strlen(path);
    int reason;
    *there = fs_is_dir(path);
    if (*there) return STATUS_OK;
    while (length > 1 && path[length - 1] == '/') /* which would follow a link */
        length--;
    if (length >= sizeof nearest) return error_set(err, code, "path too long: '%.200s…'", path);
    snprintf(nearest, sizeof nearest, "%.*s", (int)length, path);
    const char *why = fs_why_no_folder(nearest, &reason);
    if (!why) return STATUS_OK;
    if (reason) return error_system(err, code, reason, "cannot open the folder '%s'", path);
    if (strlen(nearest) == length) return error_set(err, code, "cannot open the folder '%s': it %s", path, why);
    return error_set(err, code, "cannot open the folder '%s': '%s' %s", path, nearest, why);
}

enum status fs_open_regular(const char *path, int flags, enum status code, int *fd, struct stat *st, struct error *err)
{
    struct stat own = {0};
    st = st ? st : &own;
    /* O_NONBLOCK: a pipe must not make us wait for its other end; ENXIO: it has none */
    *fd = io_open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (*fd < 0 && errno != ENXIO) return error_system(err, code, errno, "cannot open '%s'", path);
    const char *problem = "it is not a regular file";
    int reason = *fd >= 0 && fstat(*fd, st) != 0 ? errno : 0;
    if (*fd >= 0 && !reason && S_ISREG(st->st_mode)) return STATUS_OK;
    if (reason)
        problem = strerror(reason);
    else if (*fd >= 0 && S_ISDIR(st->st_mode))
        problem = "it is a folder, expected a file";
    fs_close(fd);
    error_set(err, code, "cannot open '%s': %s", path, problem);
    error_cause(err, reason);
    return code;
}

enum status fs_open_read(const char *path, enum status code, int *fd, int64_t *bytes, struct error *err)
{
    struct stat facts;
    TRY(fs_open_regular(path, O_RDONLY, code, fd, &facts, err));
    if (bytes) *bytes = facts.st_size;
    return STATUS_OK;
}

void fs_close(int *fd)
{
    if (*fd >= 0) io_close(*fd);
    *fd = -1;
}

enum status fs_open_stream(const char *path, enum status code, FILE **stream, struct error *err)
{
    int fd;
    *stream = NULL;
    TRY(fs_open_read(path, code, &fd, NULL, err));
    *stream = memory_fdopen(fd, "r");
    return STATUS_OK;
}

enum status fs_pread(int fd, const char *path, void *data, size_t count, int64_t offset, enum status code,
                     struct error *err)
{
    char *out = data;
    while (count > 0) {
        ssize_t n = io_pread(fd, out, count < IO_CHUNK ? count : IO_CHUNK, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_system(err, code, errno, "cannot read '%s' at offset %lld", path, (long long)offset);
        if (n == 0)
            return error_set(err, code, "'%s' is truncated: it ends at offset %lld, %zu more bytes expected", path,
                             (long long)offset, count);
        out += n;
        count -= (size_t)n;
        offset += n;
        heartbeat_beat();
    }
    return STATUS_OK;
}

enum status fs_write(int fd, const char *path, const void *data, size_t count, enum status code, struct error *err)
{
    const char *in = data;
    while (count > 0) {
        ssize_t n = fault_write(fd, in, count < IO_CHUNK ? count : IO_CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_system(err, code, errno, "cannot write '%s'", path);
        in += n;
        count -= (size_t)n;
        heartbeat_beat();
    }
    return STATUS_OK;
}

enum status fs_read_file(const char *path, size_t most, enum status code, char **data, size_t *size, struct error *err)
{
    *data = NULL;
    *size = 0;
    RELEASED(fs_close) int fd = -1;
    int64_t bytes = 0;
    TRY(fs_open_read(path, code, &fd, &bytes, err));
    if ((uint64_t)bytes > most)
        return error_set(err, code, "'%s' has %lld bytes, at most %zu expected", path, (long long)bytes, most);
    OWNED char *text = memory_alloc((size_t)bytes + 1);
    TRY(fs_pread(fd, path, text, (size_t)bytes, 0, code, err));
    text[bytes] = '\0';
    *size = (size_t)bytes;
    *data = TAKEN(text);
    return STATUS_OK;
}

enum status fs_read_json(const char *path, size_t most, size_t flags, json_t **json, struct error *err)
{
    OWNED char *text = NULL;
    size_t bytes;
    json_error_t fault;
    *json = NULL;
    TRY(fs_read_file(path, most, STATUS_DATA, &text, &bytes, err));
    *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | flags, &fault);
    if (!*json)
        return error_set(err, STATUS_DATA, "%s:%d:%d: not valid JSON: %s", path, fault.line, fault.column, fault.text);
    return STATUS_OK;
}

enum status fs_mkdirs(const char *path, enum status code, struct error *err)
{
    char partial[FS_PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial)
        return error_set(err, code, "cannot make folder '%.200s': its name is %s", path, length ? "too long" : "empty");
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        memcpy(partial, path, i);
        partial[i] = '\0';
        if (io_mkdir(partial, 0777) == 0) continue;
        int reason = errno; /* an existing folder may also answer EROFS or EACCES */
        struct stat st;
        const bool there = io_stat(partial, &st) == 0;
        if (!there && reason == EEXIST) reason = errno;
        if (!there || !S_ISDIR(st.st_mode)) return error_system(err, code, reason, "cannot make folder '%s'", partial);
    }
    return STATUS_OK;
}

enum status fs_sync_dir(const char *path, enum status code, struct error *err)
{
    RELEASED(fs_close) int fd = io_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return error_system(err, code, errno, "cannot open folder '%s'", path);
    const int result = FAULT(FSYNC, io_fsync(fd)), reason = errno;
    heartbeat_beat();
    if (result != 0 && reason != EINVAL && reason != ENOTSUP) /* some file systems cannot sync a folder */
        return error_system(err, code, reason, "cannot sync folder '%s'", path);
    return STATUS_OK;
}

struct temporary {
    int fd;
    char name[FS_PATH_MAX + 32];
};

static enum status fs_temporary_open(struct temporary *temporary, const char *path, enum status code, struct error *err)
{
    if (strlen(path) >= FS_PATH_MAX) return error_set(err, code, "path too long: '%.200s…'", path);
    snprintf(temporary->name, sizeof temporary->name, "%s.tmp-%ld", path, (long)getpid());
    temporary->fd = io_open(temporary->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (temporary->fd < 0) return error_system(err, code, errno, "cannot create '%s'", temporary->name);
    return STATUS_OK;
}

/* Publishes it as `path` if `status` is STATUS_OK so far, else removes it. Returns the outcome. */
static enum status fs_temporary_finish(struct temporary *temporary, const char *path, enum status status,
                                       enum status code, struct error *err)
{
    if (status == STATUS_OK && FAULT(FSYNC, io_fsync(temporary->fd)) != 0)
        status = error_system(err, code, errno, "cannot sync '%s'", temporary->name);
    if (io_close(temporary->fd) != 0 && status == STATUS_OK)
        status = error_system(err, code, errno, "cannot close '%s'", temporary->name);
    if (status == STATUS_OK && FAULT(RENAME, io_rename(temporary->name, path)) != 0)
        status = error_system(err, code, errno, "cannot rename '%s' to '%s'", temporary->name, path);
    if (status != STATUS_OK) {
        io_unlink(temporary->name);
        return status;
    }
    char parent[FS_PATH_MAX];
    fs_parent(path, parent);
    return fs_sync_dir(parent, code, err);
}

enum status fs_make_file(const char *path, const void *data, size_t size, int64_t bytes, enum status code,
                         struct error *err)
{
    struct temporary temporary;
    TRY(fs_temporary_open(&temporary, path, code, err));
    enum status status = fs_write(temporary.fd, temporary.name, data, size, code, err);
    if (status == STATUS_OK && bytes > (int64_t)size && io_ftruncate(temporary.fd, bytes) != 0)
        status = error_system(err, code, errno, "cannot extend '%s'", temporary.name);
    return fs_temporary_finish(&temporary, path, status, code, err);
}

enum status fs_write_file(const char *path, const void *data, size_t size, enum status code, struct error *err)
{
    return fs_make_file(path, data, size, 0, code, err);
}

enum status fs_copy_file(const char *from, const char *to, enum status code, struct error *err)
{
    RELEASED(fs_close) int in = -1;
    int64_t total;
    struct temporary temporary;
    enum status status = STATUS_OK;
    TRY(fs_open_read(from, code, &in, &total, err));
    TRY(fs_temporary_open(&temporary, to, code, err));
    OWNED char *chunk = memory_alloc(COPY_CHUNK);
    for (int64_t done = 0; status == STATUS_OK && done < total;) {
        size_t count = total - done < COPY_CHUNK ? (size_t)(total - done) : (size_t)COPY_CHUNK;
        status = fs_pread(in, from, chunk, count, done, code, err);
        if (status == STATUS_OK) status = fs_write(temporary.fd, temporary.name, chunk, count, code, err);
        done += (int64_t)count;
    }
    return fs_temporary_finish(&temporary, to, status, code, err);
}

/* ---- files for output that a user names ---------------------------------- */

enum { LINKS_MAX = 40 };

bool named_file_is_special(const char *path)
{
    struct stat st;
    return io_stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

static enum status fs_write_special(const char *path, const void *data, size_t size, enum status code,
                                    struct error *err)
{
    int fd = io_open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), reason = errno;
    if (fd < 0)
        return error_system(err, code, reason, "cannot open '%s'%s", path,
                            reason == ENXIO ? " (a pipe needs its reader first)" : "");
    enum status status = STATUS_OK;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0)
        status = error_system(err, code, errno, "cannot open '%s'", path);
    if (status == STATUS_OK) status = fs_write(fd, path, data, size, code, err);
    if (io_close(fd) != 0 && status == STATUS_OK) status = error_system(err, code, errno, "cannot close '%s'", path);
    return status;
}

enum status named_file_target(const char *path, char target[FS_PATH_MAX], enum status code, struct error *err)
{
    char link[FS_PATH_MAX], folder[FS_PATH_MAX];
    if (strlen(path) >= FS_PATH_MAX) return error_set(err, code, "path too long: '%.200s…'", path);
    strcpy(target, path);
    for (int links = 0;; links++) {
        struct slow_call call;
        heartbeat_slow_begin(&call, "resolving", target, -1);
        const ssize_t length = readlink(target, link, sizeof link - 1);
        heartbeat_slow_end(&call);
        if (length < 0) return STATUS_OK;
        if (links == LINKS_MAX) return error_system(err, code, ELOOP, "cannot follow the link '%s'", path);
        link[length] = '\0';
        fs_parent(target, folder);
        if (*link == '/')
            strcpy(target, link);
        else
            TRY(fs_join(target, folder, link, code, err));
    }
}

enum status named_file_write(const char *path, const void *data, size_t size, enum status code, struct error *err)
{
    char target[FS_PATH_MAX];
    if (named_file_is_special(path)) return fs_write_special(path, data, size, code, err);
    TRY(named_file_target(path, target, code, err));
    return fs_write_file(target, data, size, code, err);
}
