/* SPDX-License-Identifier: Apache-2.0 */
#include "core/storage/uncached_read.h"

#include "core/core.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

enum { HUGE_PAGE = 2 << 20, PAGES_MOST = 4096 /* of a part that is looked up; larger ones count as not cached */ };
static const long XFS_MAGIC = 0x58465342; /* linux/magic.h has no name for it */

/* Server file systems gain more from the kernel's reading ahead, with several requests under way. */
static bool is_local_read(int fd)
{
    struct statfs facts;
    if (fstatfs(fd, &facts) != 0) return false;
    const long type = (long)facts.f_type;
    return type == EXT4_SUPER_MAGIC || type == XFS_MAGIC || type == BTRFS_SUPER_MAGIC || type == F2FS_SUPER_MAGIC;
}

void uncached_file_init(struct uncached_file *file, int fd, const char *path)
{
    file->path = path;
    file->fd = fd;
    file->direct = false;
    atomic_init(&file->able, is_local_read(fd));
    pthread_mutex_init(&file->mutex, NULL);
}

void uncached_file_release(struct uncached_file *file)
{
    pthread_mutex_destroy(&file->mutex);
}

size_t uncached_room(size_t bytes)
{
    return (size_t)round_up((int64_t)bytes, UNCACHED_ALIGN) +
           UNCACHED_ALIGN; /* a part begins anywhere in the first block */
}

uint8_t *uncached_memory(size_t bytes, size_t count, size_t *stride)
{
    *stride = uncached_room(bytes);
    const bool large = bytes >= UNCACHED_LEAST && count > 1;
    if (large && *stride < HUGE_PAGE) *stride = HUGE_PAGE; /* a buffer in two huge pages would be two segments */
    if (count > SIZE_MAX / 2 / *stride) return NULL;
    uint8_t *memory = aligned_alloc(large ? HUGE_PAGE : UNCACHED_ALIGN, *stride * count);
    if (memory && large) (void)madvise(memory, *stride * count, MADV_HUGEPAGE);
    return memory;
}

/* Whether all pages of [begin, end) are cached. The kernel answers yes for files that the process may not write. */
static bool is_cached(const struct uncached_file *file, int64_t begin, int64_t end)
{
    unsigned char pages[PAGES_MOST];
    const size_t bytes = (size_t)(end - begin), count = bytes / UNCACHED_ALIGN;
    if (sysconf(_SC_PAGESIZE) != UNCACHED_ALIGN || count > PAGES_MOST) return false;
    void *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file->fd, begin);
    if (view == MAP_FAILED) return false;
    bool cached = mincore(view, bytes, pages) == 0;
    for (size_t i = 0; cached && i < count; i++) cached = pages[i] & 1;
    munmap(view, bytes);
    return cached;
}

/* Switches O_DIRECT while the file is able to, or off for good. Another thread may switch it back at any time. */
static bool set_direct(struct uncached_file *file, bool direct, bool for_good)
{
    LOCKED(&file->mutex);
    if (!file->able && !for_good) return false;
    if (for_good) file->able = false;
    if (file->direct == direct) return true;
    const int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) return false;
    file->direct = direct;
    return true;
}

enum status uncached_read(struct uncached_file *file, uint8_t *buffer, size_t bytes, int64_t offset, enum status code,
                          const uint8_t **data, struct error *err)
{
    const int64_t begin = offset / UNCACHED_ALIGN * UNCACHED_ALIGN;
    const size_t skipped = (size_t)(offset - begin);
    const int64_t end = begin + round_up((int64_t)(skipped + bytes), UNCACHED_ALIGN);
    if (file->able && set_direct(file, bytes >= UNCACHED_LEAST && !is_cached(file, begin, end), false)) {
        /* Whole blocks: valid with O_DIRECT on and off. The last one may lie beyond the end of the file. */
        const ssize_t n = io_pread(file->fd, buffer, (size_t)(end - begin), begin);
        *data = buffer + skipped;
        if (n >= 0 && (size_t)n >= skipped + bytes) return STATUS_OK;
    }
    *data = buffer;
    if (!set_direct(file, false, true))
        return error_set(err, code, "cannot read '%s': O_DIRECT cannot be switched off", file->path);
    return fs_pread(file->fd, file->path, buffer, bytes, offset, code, err);
}
