#include "core/data/shard_file.h"

#include "core/fsutil.h"
#include "core/io.h"
#include "core/retry.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static const double read_patience = 30; /* seconds */

static enum status open_facts(const char *path, int *fd, struct stat *facts, struct error *err)
{
    struct error why;
    const enum status status = fs_open_regular(path, O_RDONLY, STATUS_DATA, fd, facts, &why);
    if (status != STATUS_OK && why.cause == ENOENT && fs_exists(path))
        return error_set(err, STATUS_DATA, "cannot open '%s': it is a broken link", path);
    if (status != STATUS_OK && err)
        *err = why;
    return status;
}

enum status shard_file_open(struct shard_file *file, struct error *err)
{
    struct stat facts;
    TRY(open_facts(file->path, &file->fd, &facts, err));
    file->bytes = facts.st_size;
    file->inode = facts.st_ino;
    file->written = facts.st_mtim;
    return STATUS_OK;
}

void shard_file_close(struct shard_file *file)
{
    if (file->fd >= 0)
        io_close(file->fd);
    file->fd = -1;
}

static enum status check_unchanged(const struct shard_file *file, const struct stat *facts, struct error *err)
{
    const char *what = NULL;
    if (facts->st_ino != file->inode)
        what = "replaced by another file";
    else if (facts->st_size != file->bytes)
        what = facts->st_size < file->bytes ? "truncated" : "made longer";
    else if (facts->st_mtim.tv_sec != file->written.tv_sec || facts->st_mtim.tv_nsec != file->written.tv_nsec)
        what = "written again";
    if (!what)
        return STATUS_OK;
    return error_set(err, STATUS_DATA,
                     "'%s' was %s while in use (%lld bytes, %lld when it was opened); hint: data of a run must not "
                     "change; put them back, and resume",
                     file->path, what, (long long)facts->st_size, (long long)file->bytes);
}

/* anew: through a new descriptor. */
static enum status read_once(const struct shard_file *file, bool anew, int64_t offset, int64_t count, void *out,
                             struct error *err)
{
    struct stat facts;
    int fd = anew ? -1 : file->fd;
    const bool opens = fd < 0;
    if (opens)
        TRY(open_facts(file->path, &fd, &facts, err));
    enum status status = STATUS_OK;
    if (!opens && fstat(fd, &facts) != 0)
        status = error_system(err, STATUS_DATA, errno, "cannot read '%s'", file->path);
    if (status == STATUS_OK)
        status = check_unchanged(file, &facts, err);
    if (status == STATUS_OK)
        status = fs_pread(fd, file->path, out, (size_t)count, offset, STATUS_DATA, err);
    if (opens)
        io_close(fd);
    return status;
}

enum status shard_file_read(const struct shard_file *file, int64_t offset, int64_t count, void *out, struct error *err)
{
    struct retry retry = {.limit = read_patience};
    struct error why = {.code = STATUS_OK};
    enum status status;
    bool anew = false; /* a descriptor that is stale stays so */
    do {
        status = read_once(file, anew, offset, count, out, &why);
        anew = true;
    } while (status != STATUS_OK && error_is_transient(&why) && retry_again(&retry, &status, &why));
    if (status != STATUS_OK && err)
        *err = why;
    return status;
}
