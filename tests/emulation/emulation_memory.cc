/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_memory.cc: device memory that the host cannot access, pinned memory that it cannot access too early.
 *
 *     | closed page | 0xff … allocation 1 | slack < 256 | closed page | allocation 2 | …      addresses are used once
 *
 * Device memory is one file in memory, mapped twice: for programs, inaccessible except while a kernel runs, and for the
 * run time. An allocation ends less than 256 bytes before a closed page, and freed memory stays closed.
 *
 * From the time a copy is queued until the host has waited for it, the whole pages of pinned memory that it covers are
 * closed: to every access if the copy writes them, to writing if it reads them. The copies themselves use a second mapping.
 * Two copies of the same bytes, of which one writes, must be ordered by events. Memory that is not pinned is checked by
 * the copy itself (emulation_cudart.cc). */
#include "emulation_queue.h"

#include <algorithm>
#include <errno.h>
#include <map>
#include <set>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" char __executable_start, _end;

namespace emulation
{
device_memory memory;
counts stats;

namespace
{
enum { PAGE = 4096, ALIGN = 256 };
const size_t RESERVED = static_cast<size_t>(32) << 30;

struct allocation {
    unsigned number;
    char *p, *map;
    size_t bytes, map_bytes;
};
std::map<char *, allocation> allocations; /* by the begin of the mapping */
size_t next_offset = PAGE;
unsigned next_number = 1, open_count;

/* What an operation does with pinned memory, until a later one writes all of it. */
struct pinned_access {
    const char *begin, *end;
    bool write;
    int stream;
    uint32_t number;
    std::string name;
};

struct pinned {
    size_t bytes;
    bool registered;
    char *alias; /* the same memory, always accessible; registered: NULL */
    std::vector<pinned_access> accesses;
};
std::map<char *, pinned> pinned_ranges;
struct closed_range {
    char *begin, *end;
    bool readable;
};
std::vector<closed_range> closed;

/* Communicators, and memory that collectives of graphs have registered with them. */
std::set<std::pair<const void *, const void *>> registered;

size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

const allocation *allocation_at(const void *p)
{
    auto next = allocations.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    if (next == allocations.begin())
        return nullptr;
    const allocation *a = &std::prev(next)->second;
    return static_cast<const char *>(p) < a->map + a->map_bytes + PAGE ? a : nullptr;
}

void protect(char *p, size_t bytes, int protection)
{
    if (mprotect(p, bytes, protection) != 0)
        report("mprotect: %s", strerror(errno));
}

struct sigaction before;

void on_bad_access(int number, siginfo_t *info, void *context)
{
    const void *p = info->si_addr;
    const void *code = reinterpret_cast<void *>(static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP]);
    if (is_device(p)) {
        if (kernel_running())
            report("out of bounds: %s touches %s, in %s", describe_thread().c_str(), describe_address(p).c_str(),
                   source_line(code).c_str());
        report("host code touched device memory: %s, in %s", describe_address(p).c_str(), source_line(code).c_str());
    }
    for (const closed_range &r : closed)
        if (p >= r.begin && p < r.end)
            report("host code touched pinned memory before its copy had run: byte %td of a copy %s it, in %s",
                   static_cast<const char *>(p) - r.begin, r.readable ? "from" : "to", source_line(code).c_str());
    if (kernel_running())
        report("out of bounds: %s touches %p, in %s", describe_thread().c_str(), p, source_line(code).c_str());
    sigaction(number, &before, nullptr); /* not of the emulation: the access is repeated and fails */
}

void on_end(int status, void *)
{
    guard lock(big_lock);
    lock.release(); /* the emulation's threads run no work any more */
    if (status == 0 && !allocations.empty() && !getenv("ZTRAIN_EMULATION_LEAKS")) {
        const allocation &a = allocations.begin()->second;
        char text[160];
        int n =
            snprintf(text, sizeof text, "emulation: error: %zu allocations were never freed, the first of %zu bytes\n",
                     allocations.size(), a.bytes);
        if (write(STDERR_FILENO, text, static_cast<size_t>(n)) < 0)
            _exit(EXIT_REPORT);
        _exit(EXIT_REPORT);
    }
    if (getenv("ZTRAIN_EMULATION_STATS") && stats.collectives)
        fprintf(
            stderr,
            "emulation: NCCL: %llu registered, %llu deregistered, %llu collectives in windows, %llu on copy engines, "
            "%llu groups of %llu, %llu bytes sent to peers\n",
            static_cast<unsigned long long>(stats.registered), static_cast<unsigned long long>(stats.deregistered),
            static_cast<unsigned long long>(stats.in_windows), static_cast<unsigned long long>(stats.on_engines),
            static_cast<unsigned long long>(stats.groups), static_cast<unsigned long long>(stats.in_groups),
            static_cast<unsigned long long>(stats.to_peers));
    if (getenv("ZTRAIN_EMULATION_STATS"))
        fprintf(stderr,
                "emulation: %llu kernels, %llu copies and fills, %llu products, %llu collectives, %llu host functions, "
                "%llu waits, %llu accesses checked, %llu graphs of %llu operations\n",
                static_cast<unsigned long long>(stats.kernels), static_cast<unsigned long long>(stats.copies),
                static_cast<unsigned long long>(stats.products), static_cast<unsigned long long>(stats.collectives),
                static_cast<unsigned long long>(stats.host_functions), static_cast<unsigned long long>(stats.waits),
                static_cast<unsigned long long>(stats.checked), static_cast<unsigned long long>(graphs_launched),
                static_cast<unsigned long long>(operations_in_graphs));
}

void open_memory(void)
{
    const char *mib = getenv("ZTRAIN_EMULATION_MEMORY");
    memory.total = static_cast<size_t>(mib ? atol(mib) : 4096) << 20;
    int fd = memfd_create("emulated-gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(RESERVED)) != 0)
        report("cannot make the emulated device's memory: %s", strerror(errno));
    void *base = mmap(nullptr, RESERVED, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    void *alias = mmap(nullptr, RESERVED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (base == MAP_FAILED || alias == MAP_FAILED)
        report("cannot map the emulated device's memory: %s", strerror(errno));
    memory.base = static_cast<char *>(base);
    memory.alias = static_cast<char *>(alias);
    memory.reserved = RESERVED;
    struct sigaction action = {};
    action.sa_sigaction = on_bad_access;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before);
    on_exit(on_end, nullptr);
}
} // namespace

void report(const char *format, ...)
{
    static char text[4096]; /* the stack may be a fiber's */
    int n = snprintf(text, sizeof text, "emulation: error: ");
    va_list ap;
    va_start(ap, format);
    n += vsnprintf(text + n, sizeof text - static_cast<size_t>(n) - 1, format, ap);
    va_end(ap);
    std::string all(text);
    if (kernel_running() && all.find("kernel ") == std::string::npos)
        all += "; in " + describe_thread();
    all += "\n";
    if (write(STDERR_FILENO, all.data(), all.size()) < 0)
        _exit(EXIT_REPORT);
    _exit(EXIT_REPORT);
}

std::string source_line(const void *address)
{
    char command[256], line[1024];
    snprintf(command, sizeof command, "addr2line -e /proc/%d/exe %#tx 2>/dev/null", static_cast<int>(getpid()),
             static_cast<const char *>(address) - 1 - &__executable_start);
    snprintf(line, sizeof line, "code at %p", address);
    unsetenv("LD_PRELOAD");
    FILE *f = popen(command, "r");
    if (f) {
        char got[1024];
        if (fgets(got, sizeof got, f) && got[0] != '?')
            snprintf(line, sizeof line, "%s", got);
        pclose(f);
    }
    line[strcspn(line, "\n")] = '\0';
    if (char *extra = strstr(line, " (discriminator"))
        *extra = '\0';
    if (strncmp(line, "./", 2) == 0)
        return line + 2;
    return line;
}

/* ZTRAIN_EMULATION_REFUSES=LEAST-MOST: allocations of so many bytes fail, as if the memory did not suffice. */
static bool is_refused(size_t bytes)
{
    size_t least, most;
    const char *range = getenv("ZTRAIN_EMULATION_REFUSES");
    return range && sscanf(range, "%zu-%zu", &least, &most) == 2 && bytes >= least && bytes <= most;
}

cudaError_t memory_new(void **p, size_t bytes)
{
    if (!memory.base)
        open_memory();
    *p = nullptr;
    if (!bytes)
        return cudaSuccess;
    size_t size = round_up(bytes, ALIGN), mapped = round_up(size, PAGE);
    if (memory.used + mapped > memory.total || is_refused(bytes))
        return cudaErrorMemoryAllocation;
    if (next_offset + mapped + PAGE > memory.reserved)
        report("the emulated device's addresses are used up");
    allocation a = {next_number++, memory.base + next_offset + (mapped - size), memory.base + next_offset, bytes,
                    mapped};
    next_offset += mapped + PAGE;
    memory.used += mapped;
    memset(open_alias(a.p), 0xff, size);
    shadow_allocated(a.p, bytes, size - bytes);
    if (open_count)
        protect(a.map, a.map_bytes, PROT_READ | PROT_WRITE);
    allocations[a.map] = a;
    *p = a.p;
    return cudaSuccess;
}

void memory_register(const void *communicator, const void *p)
{
    registered.emplace(communicator, p);
}

void memory_unregister(const void *communicator)
{
    auto first = registered.lower_bound({communicator, nullptr});
    while (first != registered.end() && first->first == communicator)
        first = registered.erase(first);
}

cudaError_t memory_free(void *p)
{
    if (!p)
        return cudaSuccess;
    const allocation *a = is_device(p) ? allocation_at(p) : nullptr;
    if (!a || a->p != p)
        report("cudaFree of %p, which is not an allocation of the device", p);
    for (const auto &[communicator, used] : registered)
        if (allocation_at(used) == a)
            report("cudaFree of memory that a graph's collectives use, before NCCL's communicator has ended");
    protect(a->map, a->map_bytes, PROT_NONE);
    madvise(open_alias(a->map), a->map_bytes, MADV_REMOVE);
    shadow_freed(a->p, a->bytes);
    memory.used -= a->map_bytes;
    allocations.erase(a->map);
    return cudaSuccess;
}

void memory_open(void)
{
    static thread_local bool has_stack;
    if (!has_stack) { /* the handler's stack: the kernel's own may be the one that overflowed */
        stack_t stack = {};
        stack.ss_size = 256 << 10;
        stack.ss_sp = mmap(nullptr, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sigaltstack(&stack, nullptr);
        has_stack = true;
    }
    if (open_count++ == 0)
        for (auto &entry : allocations)
            protect(entry.second.map, entry.second.map_bytes, PROT_READ | PROT_WRITE);
}

void memory_close(void)
{
    if (--open_count == 0)
        for (auto &entry : allocations)
            protect(entry.second.map, entry.second.map_bytes, PROT_NONE);
}

std::string describe_address(const void *p)
{
    char text[160];
    const allocation *a = is_device(p) ? allocation_at(p) : nullptr;
    if (a)
        snprintf(text, sizeof text, "offset %td of allocation %u (%zu bytes)", static_cast<const char *>(p) - a->p,
                 a->number, a->bytes);
    else if (static_cast<size_t>(static_cast<const char *>(p) - shared_arena) < SHARED_ARENA)
        snprintf(text, sizeof text, "shared memory");
    else
        snprintf(text, sizeof text, "%p, %s", p, is_device(p) ? "memory that is not allocated" : "host memory");
    for (const shared_range &r : shared_ranges())
        if (p >= r.begin && p < r.end)
            snprintf(text, sizeof text, "byte %td of the shared '%.100s'", static_cast<const char *>(p) - r.begin,
                     r.name);
    return text;
}

void check_range(const char *what, const void *p, size_t bytes)
{
    if (!is_device(p))
        report("%s: %p is not device memory", what, p);
    const allocation *a = allocation_at(p);
    if (!a || p < a->p || static_cast<const char *>(p) + bytes > a->p + a->bytes)
        report("out of bounds: %s of %zu bytes at %s", what, bytes, describe_address(p).c_str());
}

/* ---- pinned memory ------------------------------------------------------- */

cudaError_t pinned_new(void **p, size_t bytes)
{
    size_t size = round_up(bytes ? bytes : 1, PAGE);
    int fd = memfd_create("emulated-pinned", MFD_CLOEXEC);
    *p = nullptr;
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0)
        report("pinned memory: %s", strerror(errno));
    void *map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *alias = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED || alias == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(map, 0xff, size);
    pinned_ranges[static_cast<char *>(map)] = {bytes, false, static_cast<char *>(alias), {}};
    *p = map;
    return cudaSuccess;
}

/* ZTRAIN_EMULATION_PINS: the bytes that may be registered, as an IOMMU limits them; 0: no memory may, as in WSL2. */
static bool may_register(size_t bytes)
{
    static size_t registered_bytes;
    const char *most = getenv("ZTRAIN_EMULATION_PINS");
    registered_bytes += bytes;
    return !most || registered_bytes <= static_cast<size_t>(atoll(most));
}

/* Private pages become shared ones, which can have an alias. */
cudaError_t pinned_register(void *p, size_t bytes)
{
    if (is_pinned(p) || is_pinned(static_cast<char *>(p) + bytes - 1))
        return cudaErrorHostMemoryAlreadyRegistered;
    if (!may_register(bytes))
        return getenv("ZTRAIN_EMULATION_PINS")[0] == '0' ? cudaErrorNotSupported : cudaErrorMemoryAllocation;
    if (reinterpret_cast<uintptr_t>(p) % PAGE || bytes % PAGE) {
        pinned_ranges[static_cast<char *>(p)] = {bytes, true, nullptr, {}};
        return cudaSuccess;
    }
    int fd = memfd_create("emulated-registered", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)
        report("registered memory: %s", strerror(errno));
    void *alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (alias == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    copy_bytes(alias, p, bytes);
    if (mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        report("registered memory: %s", strerror(errno));
    close(fd);
    pinned_ranges[static_cast<char *>(p)] = {bytes, true, static_cast<char *>(alias), {}};
    return cudaSuccess;
}

cudaError_t pinned_free(void *p, bool registered)
{
    if (!p && !registered)
        return cudaSuccess;
    auto at = pinned_ranges.find(static_cast<char *>(p));
    if (at == pinned_ranges.end() || at->second.registered != registered)
        report("%s of %p, which is not pinned so", registered ? "cudaHostUnregister" : "cudaFreeHost", p);
    for (const closed_range &r : closed)
        if (r.begin >= at->first && r.begin < at->first + at->second.bytes)
            report("pinned memory is freed before a copy %s it has been waited for", r.readable ? "from" : "to");
    const size_t mapped = round_up(at->second.bytes ? at->second.bytes : 1, PAGE);
    if (!registered)
        munmap(p, mapped); /* what is registered stays its owner's */
    if (at->second.alias)
        munmap(at->second.alias, mapped);
    pinned_ranges.erase(at);
    return cudaSuccess;
}

namespace
{
/* The pinned memory that holds p; NULL: none. */
std::pair<char *const, pinned> *pinned_at(const void *p)
{
    auto next = pinned_ranges.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    if (next == pinned_ranges.begin())
        return nullptr;
    auto &entry = *std::prev(next);
    return static_cast<const char *>(p) < entry.first + entry.second.bytes ? &entry : nullptr;
}
} // namespace

bool is_pinned(const void *p)
{
    return pinned_at(p) != nullptr;
}

bool crosses_pinned(const void *p, size_t bytes)
{
    return bytes && pinned_at(p) != pinned_at(static_cast<const char *>(p) + bytes - 1);
}

void *pinned_alias(void *p)
{
    auto *entry = pinned_at(p);
    return entry && entry->second.alias ? entry->second.alias + (static_cast<char *>(p) - entry->first) : p;
}

void pinned_order(const operation &op, const range &range)
{
    auto *entry = pinned_at(range.p);
    if (!entry)
        return;
    const char *begin = static_cast<const char *>(range.p), *end = begin + range.bytes;
    std::vector<pinned_access> &accesses = entry->second.accesses;
    for (const pinned_access &a : accesses)
        if (a.begin < end && begin < a.end && (a.write || range.write) && op.after.at[a.stream] < a.number)
            report("missing event: %s (number %u on stream %d) %s byte %td of pinned memory, which %s (number %u on "
                   "stream %d) %s; no event or synchronisation orders stream %d after stream %d",
                   op.name.c_str(), op.number, op.stream, range.write ? "writes" : "reads", begin - entry->first,
                   a.name.c_str(), a.number, a.stream, a.write ? "wrote" : "read", op.stream, a.stream);
    auto covered = [&](const pinned_access &a) {
        return begin <= a.begin && a.end <= end && (range.write || (!a.write && a.stream == op.stream));
    };
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(), covered), accesses.end());
    accesses.push_back({begin, end, range.write, op.stream, op.number, op.name});
}

namespace
{
bool whole_pages(const void *p, size_t bytes, char **begin, char **end)
{
    *begin = reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(p), PAGE));
    *end = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(p) + bytes) / PAGE * PAGE);
    return *begin < *end;
}
} // namespace

void pinned_close(const void *p, size_t bytes, bool host_may_read)
{
    char *begin, *end;
    if (!whole_pages(p, bytes, &begin, &end))
        return;
    closed.push_back({begin, end, host_may_read});
    protect(begin, static_cast<size_t>(end - begin), host_may_read ? PROT_READ : PROT_NONE);
}

void pinned_open(const void *p, size_t bytes)
{
    char *begin, *end;
    if (!whole_pages(p, bytes, &begin, &end))
        return;
    for (size_t i = 0; i < closed.size(); i++)
        if (closed[i].begin == begin && closed[i].end == end) {
            closed.erase(closed.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        }
    protect(begin, static_cast<size_t>(end - begin), PROT_READ | PROT_WRITE);
    for (const closed_range &r : closed) {
        char *from = std::max(r.begin, begin), *to = std::min(r.end, end);
        if (from < to)
            protect(from, static_cast<size_t>(to - from), r.readable ? PROT_READ : PROT_NONE);
    }
}

/* Neither memcpy nor a loop that becomes one: AddressSanitizer would check those as the program's. */
void copy_bytes(void *to, const void *from, size_t bytes)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

uint64_t hash_bytes(const void *p, size_t bytes)
{
    const unsigned char *c = static_cast<const unsigned char *>(p);
    uint64_t hash = 0xcbf29ce484222325u;
    while (bytes >= 8) {
        uint64_t word;
        copy_bytes(&word, c, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
        c += 8;
        bytes -= 8;
    }
    while (bytes--)
        hash = (hash ^ *c++) * 0x100000001b3u;
    return hash;
}
} // namespace emulation
