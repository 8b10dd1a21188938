#include "core/named_file.h"

#include "core/fsutil.h"
#include "core/io.h"
#include "core/liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

bool named_file_is_special(const char *path)
{
    struct stat st;
    return io_stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

static enum status write_special(const char *path, const void *data, size_t size, enum status code, struct error *err)
{
    int fd = io_open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), reason = errno;
    if (fd < 0)
        return error_system(err, code, reason, "cannot open '%s'%s", path,
                            reason == ENXIO ? " (a pipe needs its reader first)" : "");
    enum status status = STATUS_OK;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0)
        status = error_system(err, code, errno, "cannot open '%s'", path);
    if (status == STATUS_OK)
        status = fs_write(fd, path, data, size, code, err);
    if (io_close(fd) != 0 && status == STATUS_OK)
        status = error_system(err, code, errno, "cannot close '%s'", path);
    return status;
}

/* The name of the file that the link at `path` leads to. It is made if it is absent, for only then has it a name. */
static enum status resolve_link(const char *path, char real[PATH_MAX], enum status code, struct error *err)
{
    int fd = io_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_system(err, code, errno, "cannot create what the link '%s' leads to", path);
    io_close(fd);
    struct slow_call call;
    liveness_slow_begin(&call, "resolving", path, -1);
    const char *found = realpath(path, real);
    int reason = errno;
    liveness_slow_end(&call);
    return found ? STATUS_OK : error_system(err, code, reason, "cannot follow the link '%s'", path);
}

enum status named_file_write(const char *path, const void *data, size_t size, enum status code, struct error *err)
{
    struct stat st;
    char real[PATH_MAX];
    if (named_file_is_special(path))
        return write_special(path, data, size, code, err);
    if (io_lstat(path, &st) != 0 || !S_ISLNK(st.st_mode))
        return fs_write_file(path, data, size, code, err);
    TRY(resolve_link(path, real, code, err));
    return fs_write_file(real, data, size, code, err);
}
