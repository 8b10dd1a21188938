#include "core/named_file.h"

#include "core/fsutil.h"
#include "core/heartbeat.h"
#include "core/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 };

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

enum status named_file_target(const char *path, char target[FS_PATH_MAX], enum status code, struct error *err)
{
    char link[FS_PATH_MAX], folder[FS_PATH_MAX];
    if (strlen(path) >= FS_PATH_MAX)
        return error_set(err, code, "path too long: '%.200s…'", path);
    strcpy(target, path);
    for (int links = 0;; links++) {
        struct slow_call call;
        heartbeat_slow_begin(&call, "resolving", target, -1);
        const ssize_t length = readlink(target, link, sizeof link - 1);
        heartbeat_slow_end(&call);
        if (length < 0)
            return STATUS_OK;
        if (links == LINKS_MAX)
            return error_system(err, code, ELOOP, "cannot follow the link '%s'", path);
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
    if (named_file_is_special(path))
        return write_special(path, data, size, code, err);
    TRY(named_file_target(path, target, code, err));
    return fs_write_file(target, data, size, code, err);
}
