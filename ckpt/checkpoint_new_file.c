/* checkpoint_new_file.c: see checkpoint_new_file.h. */
#include "ckpt/checkpoint_new_file.h"

#include "core/faults.h"
#include "core/fsutil.h"
#include "core/heartbeat.h"
#include "core/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum status checkpoint_io_error(const char *what, const char *path, struct error *err)
{
    int code = errno;
    error_set(err, STATUS_CHECKPOINT, "cannot %s '%s': %s", what, path, strerror(code));
    if (code == ENOSPC || code == EDQUOT)
        error_hint(err, "free space there, or keep fewer checkpoints (checkpoint.keep_last)");
    error_cause(err, code);
    return STATUS_CHECKPOINT;
}

enum status checkpoint_put_file(const char *folder, const char *name, const void *data, size_t bytes, struct error *err)
{
    char path[FS_PATH_MAX];
    TRY(fs_join(path, folder, name, STATUS_CHECKPOINT, err));
    int fd = io_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return checkpoint_io_error("create", path, err);
    enum status status = fs_write(fd, path, data, bytes, STATUS_CHECKPOINT, NULL);
    if (status != STATUS_OK || fault_fsync(fd))
        status = checkpoint_io_error("write", path, err);
    if (io_close(fd) && status == STATUS_OK)
        status = checkpoint_io_error("write", path, err);
    heartbeat_beat();
    return status;
}

enum status checkpoint_reads_from_disk(const char *path, struct error *err)
{
    int fd = io_open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return checkpoint_io_error("open", path, err);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    io_close(fd);
    return STATUS_OK;
}
