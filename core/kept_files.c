/* SPDX-License-Identifier: Apache-2.0 */
#include "core/kept_files.h"

#include "core/memory.h"

#include <sys/mman.h>

#define FILE_NAME "ztrain-kept-files"
static const char variable[] = "ZTRAIN_KEPT_FILES";
enum { MOST_BYTES = 16 << 20 /* more than any reader takes */ };

struct record {
    uint32_t path_bytes, text_bytes;
};

/* The memory file; -1: there is none, or the variable is another program's and its number another file's. */
static int kept(void)
{
    static const char name[] = "/memfd:" FILE_NAME " ";
    const char *number = getenv(variable);
    const int fd = number ? atoi(number) : -1;
    char path[32], found[sizeof name] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const bool ours = readlink(path, found, sizeof name - 1) > 0 && !strcmp(found, name);
    return ours ? fd : -1;
}

static bool kept_write_all(int fd, const void *data, size_t bytes)
{
    return write(fd, data, bytes) == (ssize_t)bytes;
}

char *kept_files_read(const char *path, size_t *bytes)
{
    const int fd = kept();
    struct record record;
    for (off_t at = 0; fd >= 0 && pread(fd, &record, sizeof record, at) == (ssize_t)sizeof record;) {
        const size_t both = (size_t)record.path_bytes + record.text_bytes;
        OWNED char *found = memory_zeroed(1, both + 1); /* the path, and the text after it */
        const bool whole = pread(fd, found, both, at + (off_t)sizeof record) == (ssize_t)both;
        at += (off_t)(sizeof record + both);
        if (!whole || strlen(path) != record.path_bytes || memcmp(found, path, record.path_bytes) != 0) continue;
        *bytes = record.text_bytes;
        memmove(found, found + record.path_bytes, *bytes + 1);
        return TAKEN(found);
    }
    return NULL;
}

char *any_file_read(const char *path, size_t most, size_t *bytes, bool *opened)
{
    /* O_NONBLOCK while opening: a pipe without a writer is an empty file instead of an endless wait */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *opened = fd >= 0;
    if (fd < 0) return NULL;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    size_t room = 1 << 16;
    char *text = memory_alloc(room);
    ssize_t n = 1;
    *bytes = 0;
    while (*bytes <= most && ((n = read(fd, text + *bytes, room - *bytes)) > 0 || (n < 0 && errno == EINTR))) {
        *bytes += n > 0 ? (size_t)n : 0;
        if (*bytes == room) text = memory_resize(text, room *= 4);
    }
    const int reason = errno;
    close(fd);
    errno = reason;
    if (n >= 0) return text;
    free(text);
    return NULL;
}

static int make_kept_file(void)
{
    char number[16];
    const int fd = memfd_create(FILE_NAME, 0);
    snprintf(number, sizeof number, "%d", fd);
    if (fd >= 0 && setenv(variable, number, 1) != 0) memory_exhausted(0);
    return fd;
}

enum status kept_files_add(const char *path, struct error *err)
{
    size_t bytes;
    bool opened;
    OWNED char *known = kept_files_read(path, &bytes);
    OWNED char *text = known ? NULL : any_file_read(path, MOST_BYTES, &bytes, &opened);
    if (!text) return STATUS_OK;
    const int fd = kept() >= 0 ? kept() : make_kept_file();
    const struct record record = {(uint32_t)strlen(path), (uint32_t)bytes};
    const bool done = fd >= 0 && lseek(fd, 0, SEEK_END) >= 0 && kept_write_all(fd, &record, sizeof record) &&
                      kept_write_all(fd, path, record.path_bytes) && kept_write_all(fd, text, bytes);
    return done ? STATUS_OK : error_system(err, STATUS_DEVICE, errno, "cannot keep '%s' in memory", path);
}
