#include "core/flight/flight_ended.h"

#include "core/fsutil.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 80 };

static void end_path(const char *flight, char path[FS_PATH_MAX + 8])
{
    snprintf(path, FS_PATH_MAX + 8, "%s/ended", flight);
}

/* Opens the file; -1: errno says why not. */
static int open_end(const char *flight, int flags)
{
    char path[FS_PATH_MAX + 8];
    end_path(flight, path);
    return open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666); /* a pipe of this name is not waited for */
}

int flight_ended_write(const char *flight, const struct flight_end *end)
{
    char line[LINE_BYTES];
    const int length = snprintf(line, sizeof line, "%s %" PRId64 "\n", end->start, end->wall);
    const int fd = open_end(flight, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0)
        return errno;
    const ssize_t written = write(fd, line, (size_t)length);
    int reason = written == length ? 0 : written < 0 ? errno : ENOSPC;
    if (close(fd) != 0 && !reason)
        reason = errno;
    return reason;
}

int flight_ended_delete(const char *flight)
{
    char path[FS_PATH_MAX + 8];
    end_path(flight, path);
    return unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
}

bool flight_ended_read(const char *flight, struct flight_end *end)
{
    char line[LINE_BYTES + 1] = "", newline = 0;
    const int fd = open_end(flight, O_RDONLY);
    if (fd < 0)
        return false;
    const ssize_t count = read(fd, line, LINE_BYTES);
    close(fd);
    return count > 0 && sscanf(line, "%39s %18" SCNd64 "%c", end->start, &end->wall, &newline) == 3 &&
           newline == '\n' && end->wall >= 0;
}
