/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host_pages.h"

#include "core/core.h"

#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

/* Maps a huge page more than needed, and unmaps the unaligned ends. NULL: errno has the reason. */
static char *map_aligned(size_t size)
{
    const size_t align = size >= HUGE_PAGE ? HUGE_PAGE : HOST_PAGE, mapped = size + align;
    char *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return NULL;
    char *start = (char *)round_up((intptr_t)map, (int64_t)align);
    if (start > map) munmap(map, (size_t)(start - map));
    if (start + size < map + mapped) munmap(start + size, (size_t)(map + mapped - (start + size)));
    if (align == HUGE_PAGE) madvise(start, size, MADV_HUGEPAGE); /* best effort: small pages work as well */
    return start;
}

static size_t mapped_bytes(size_t bytes)
{
    return (size_t)round_up(bytes ? (int64_t)bytes : 1, HOST_PAGE);
}

enum status host_pages_new(size_t bytes, void **memory, struct error *err)
{
    struct machine_memory machine;
    machine_memory("", &machine);
    *memory = NULL;
    if (bytes > machine.available)
        return error_set(err, STATUS_DEVICE, "cannot allocate %.3f GiB of memory: only %.3f GiB are available",
                         in_gib(bytes), in_gib(machine.available));
    const size_t size = mapped_bytes(bytes);
    char *start = map_aligned(size);
    if (!start)
        return error_set(err, STATUS_DEVICE,
                         "cannot allocate %.3f GiB of memory: %s (%.3f GiB are available); hint: see `ulimit -v`",
                         in_gib(bytes), strerror(errno), in_gib(machine.available));
    const int64_t blocks = (int64_t)((size + HUGE_PAGE - 1) / HUGE_PAGE);
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t block = 0; block < blocks; block++) {
        size_t first = (size_t)block * HUGE_PAGE, end = first + HUGE_PAGE < size ? first + HUGE_PAGE : size;
        for (size_t at = first; at < end; at += HOST_PAGE) *(volatile char *)(start + at) = 0;
        heartbeat_beat();
    }
    *memory = start;
    return STATUS_OK;
}

void host_pages_free(void *memory, size_t bytes)
{
    if (memory) munmap(memory, mapped_bytes(bytes));
}
