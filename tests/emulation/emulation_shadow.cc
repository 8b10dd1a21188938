/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_shadow.cc: the last writer and readers of every two bytes of device and shared memory.
 *
 * Kernels are compiled with -fsanitize=thread, so that every access calls a function __tsan_readN or __tsan_writeN;
 * the ones in this file replace the sanitizer's run time. Each two bytes have a cell: the last write and the last read,
 * as an id and a thread. Ids count up: one for an operation, one for each block, one after each of its barriers. So an
 * id shows whether an earlier access was in this block since its last barrier, earlier in this block, in another block,
 * or in another operation:
 *
 *     … | operation_base … earlier blocks … | block_base … | now        now: since the last barrier
 *
 * Two accesses of which one writes must be ordered: by a barrier within a block (or a __syncwarp in a warp), by nothing
 * between blocks (except __threadfence and an atomic), by streams and events between operations. The vector clocks of the
 * operations decide the last case, independently of the order of execution. Operations that read at the same time form a
 * set, so that a later write is compared with all of them. The same cells mark memory outside of allocations and memory
 * that was never written.
 *
 * Pages whose cells are all alike have one cell only, so that large fills and copies are cheap. Without
 * EMULATION_SHADOW (the build with AddressSanitizer) all of this is empty. */
#include "emulation.h"
#include "emulation_traffic.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

extern "C" {
void __asan_poison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
extern char __executable_start, _end;
}

#ifdef EMULATION_SHADOW

namespace emulation
{
namespace
{
enum : uint32_t {
    ID_FREE,    /* was never allocated, or was freed */
    ID_NEW,     /* never written */
    ID_OUTSIDE, /* between allocations, or between pieces of one */
    ID_FIRST = 16,
    ID_SET = 1u << 31 /* readers: a set of operations */
};
/* Threads: 0 … 1023; then all of a warp; then these. */
enum : uint32_t { WHO_WARP = 1024, WHO_ATOMIC = 2044, WHO_BLOCKS, WHO_OPERATION, WHO_MANY, WHO_BITS = 11 };
const uint32_t WHO_BYTE = 1u << 31; /* an access of one byte: the cell's other byte may belong to another thread */

struct cell {
    uint32_t write_id, write_who, read_id, read_who;
};
enum { PAGE = 4096, CELLS = PAGE / 2 };
struct page {
    cell all;
    bool own; /* its cells differ: they are in `cells` */
};

page *pages;
cell *cells;
cell shared_cells[SHARED_ARENA / 2];

struct known_operation {
    uint32_t base; /* its first id */
    uint32_t number;
    int stream;
    const char *name;
};
std::vector<known_operation> operations;
std::set<std::string> names;
std::vector<std::vector<uint32_t>> sets; /* of indices of operations */
std::map<std::vector<uint32_t>, uint32_t> set_numbers;

uint32_t next_id = ID_FIRST, operation_base, block_base, now, acquired;
uint32_t this_operation; /* index */
clock_vector after;
bool fenced;
uint32_t warp_epochs[32];

void make_tables(void)
{
    size_t n = memory.reserved / PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *a = mmap(nullptr, n * sizeof(page), PROT_READ | PROT_WRITE, flags, -1, 0);
    void *b = mmap(nullptr, n * CELLS * sizeof(cell), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (a == MAP_FAILED || b == MAP_FAILED)
        report("no address space for the shadow of %zu MiB", memory.reserved >> 20);
    pages = static_cast<page *>(a);
    cells = static_cast<cell *>(b);
}

size_t offset_of(const void *p)
{
    return static_cast<size_t>(static_cast<const char *>(p) - memory.base);
}

cell *cells_of(size_t offset)
{
    page *p = &pages[offset / PAGE];
    cell *first = &cells[offset / PAGE * CELLS];
    if (!p->own) {
        for (int i = 0; i < CELLS; i++)
            first[i] = p->all;
        p->own = true;
    }
    return first + offset % PAGE / 2;
}

/* Calls f(cell) for all cells of a range, once for a page of equal ones. */
template <typename F> void for_range(size_t offset, size_t bytes, F f)
{
    size_t end = offset + bytes;
    offset &= ~static_cast<size_t>(1);
    while (offset < end) {
        if (offset % PAGE == 0 && offset + PAGE <= end && !pages[offset / PAGE].own) {
            f(&pages[offset / PAGE].all);
            offset += PAGE;
            continue;
        }
        size_t stop = std::min(end, (offset / PAGE + 1) * PAGE);
        for (cell *c = cells_of(offset); offset < stop; offset += 2)
            f(c++);
    }
}

/* The index of the operation that an id belongs to. */
uint32_t operation_of(uint32_t id)
{
    static uint32_t low = 1, high = 0, found; /* the last answer holds for ids from low to high */
    if (id >= low && id <= high)
        return found;
    auto next = std::upper_bound(operations.begin(), operations.end(), id,
                                 [](uint32_t i, const known_operation &o) { return i < o.base; });
    found = static_cast<uint32_t>(next - operations.begin()) - 1;
    low = operations[found].base;
    high = next == operations.end() ? id : next->base - 1;
    return found;
}

bool comes_before(uint32_t operation) /* this operation */
{
    const known_operation &o = operations[operation];
    return operation == this_operation || after.at[o.stream] >= o.number;
}

std::string describe_known(uint32_t operation)
{
    const known_operation &o = operations[operation];
    char text[512];
    snprintf(text, sizeof text, "%s (number %u on stream %d)", o.name, o.number, o.stream);
    return text;
}

uint32_t me(void)
{
    return current_thread | (warp_epochs[current_thread / 32] & 0xfffff) << WHO_BITS;
}

/* Whether an earlier access of this operation is ordered before one of `who` now. */
bool ordered_here(uint32_t id, uint32_t earlier, uint32_t who)
{
    if ((earlier | who) & WHO_BYTE)
        return true;
    uint32_t thread = earlier % (1 << WHO_BITS), mine = who % (1 << WHO_BITS);
    if (thread == WHO_ATOMIC && mine == WHO_ATOMIC)
        return true;
    if (id < block_base)
        return id < acquired;
    if (id < now || thread == WHO_OPERATION)
        return true;
    if (thread == mine)
        return true;
    uint32_t warp = thread < WHO_WARP ? thread / 32 : thread - WHO_WARP;
    return mine < WHO_WARP && warp == mine / 32 && earlier >> WHO_BITS != who >> WHO_BITS;
}

struct access {
    const char *verb; /* "reads" */
    const void *p;
    size_t bytes;
    const void *code; /* NULL: the operation as a whole */
};

std::string describe_access(const access &a)
{
    char text[1024];
    snprintf(text, sizeof text, "%s %s %zu bytes at %s%s%s",
             a.code ? describe_thread().c_str() : describe_known(this_operation).c_str(), a.verb, a.bytes,
             describe_address(a.p).c_str(), a.code ? ", in " : "", a.code ? source_line(a.code).c_str() : "");
    return text;
}

std::string describe_who(uint32_t who)
{
    uint32_t thread = who % (1 << WHO_BITS);
    if (thread < WHO_WARP)
        return "thread " + std::to_string(thread);
    if (thread < WHO_ATOMIC)
        return "several threads of warp " + std::to_string(thread - WHO_WARP);
    return thread == WHO_ATOMIC ? "an atomic" : thread == WHO_BLOCKS ? "several blocks" : "several threads";
}

[[noreturn]] void report_here(uint32_t id, uint32_t earlier, const char *what, const access &a)
{
    if (id >= block_base)
        report("missing barrier: %s, which %s %s since the block's last barrier", describe_access(a).c_str(),
               describe_who(earlier).c_str(), what);
    report("race between blocks: %s, which another block of the same kernel %s", describe_access(a).c_str(), what);
}

[[noreturn]] void report_operation(uint32_t operation, const char *what, const access &a)
{
    report("missing event: %s, which %s %s; no event or synchronisation orders stream %d after stream %d",
           describe_access(a).c_str(), describe_known(operation).c_str(), what, operations[this_operation].stream,
           operations[operation].stream);
}

[[noreturn]] void report_bad(uint32_t id, const access &a)
{
    if (id == ID_NEW && is_device(a.p))
        report("uninitialised memory: %s, which nothing has written", describe_access(a).c_str());
    if (id == ID_NEW)
        report("uninitialised memory or missing barrier: %s, which nothing in this block has written yet",
               describe_access(a).c_str());
    report("out of bounds: %s", describe_access(a).c_str());
}

void check_readers(const cell *c, uint32_t who, const access &a)
{
    uint32_t id = c->read_id;
    if (!id)
        return;
    if (id & ID_SET) {
        for (uint32_t operation : sets[id & ~ID_SET])
            if (!comes_before(operation))
                report_operation(operation, "read", a);
    } else if (id >= operation_base) {
        if (!ordered_here(id, c->read_who, who))
            report_here(id, c->read_who, "read", a);
    } else if (uint32_t operation = operation_of(id); !comes_before(operation)) {
        report_operation(operation, "read", a);
    }
}

void check_writer(const cell *c, uint32_t who, const access &a)
{
    uint32_t id = c->write_id;
    if (id < ID_FIRST)
        return;
    if (id >= operation_base) {
        if (!ordered_here(id, c->write_who, who))
            report_here(id, c->write_who, "wrote", a);
    } else if (uint32_t operation = operation_of(id); !comes_before(operation)) {
        report_operation(operation, "wrote", a);
    }
}

/* The readers so far and this operation, which is not ordered after all of them. */
uint32_t add_reader(uint32_t id)
{
    std::vector<uint32_t> set;
    if (id & ID_SET) {
        for (uint32_t operation : sets[id & ~ID_SET])
            if (!comes_before(operation))
                set.push_back(operation);
    } else if (uint32_t operation = operation_of(id); !comes_before(operation)) {
        set.push_back(operation);
    }
    if (set.empty())
        return 0;
    set.push_back(this_operation);
    std::sort(set.begin(), set.end());
    auto [at, added] = set_numbers.emplace(set, static_cast<uint32_t>(sets.size()));
    if (added)
        sets.push_back(set);
    return ID_SET | at->second;
}

void read_cell(cell *c, uint32_t who, const access &a)
{
    if (c->write_id < ID_FIRST)
        report_bad(c->write_id, a);
    if (c->read_id == now && c->read_who == who && c->write_id != now)
        return;
    check_writer(c, who, a);
    uint32_t id = c->read_id;
    if (id == now) {
        uint32_t warp = WHO_WARP + who % (1 << WHO_BITS) / 32;
        uint32_t before = c->read_who % (1 << WHO_BITS);
        if (c->read_who == who)
            return;
        bool same_warp = before == warp || (before < WHO_WARP && before / 32 == warp - WHO_WARP);
        if (before != who % (1 << WHO_BITS))
            who = same_warp ? (who & ~((1u << WHO_BITS) - 1)) | warp : WHO_MANY;
    } else if (id & ID_SET || (id && id < operation_base)) {
        if (uint32_t set = add_reader(id)) {
            c->read_id = set;
            return;
        }
    } else if (id && id < block_base) { /* another block read it too */
        c->read_id = operation_base;
        c->read_who = WHO_BLOCKS;
        return;
    }
    c->read_id = now;
    c->read_who = who;
}

void write_cell(cell *c, uint32_t who, const access &a)
{
    if (c->write_id < ID_FIRST && c->write_id != ID_NEW)
        report_bad(c->write_id, a);
    if (c->write_id != now || c->write_who != who)
        check_writer(c, who, a);
    check_readers(c, who, a);
    c->write_id = now;
    c->write_who = who;
    c->read_id = 0;
}

[[noreturn]] void report_shared(const access &a)
{
    std::string text;
    const char *p = static_cast<const char *>(a.p);
    for (const shared_range &r : shared_ranges())
        if (p >= r.begin - 64 && p < r.end + 64)
            text = std::string(" (byte ") + std::to_string(p - r.begin) + " of '" + r.name + "', which has " +
                   std::to_string(r.end - r.begin) + ")";
    report("out of bounds: %s %s %zu bytes of shared memory%s, in %s", describe_thread().c_str(), a.verb, a.bytes,
           text.c_str(), source_line(a.code).c_str());
}

void check_shared_bounds(const access &a)
{
    static const shared_range *last;
    const char *begin = static_cast<const char *>(a.p), *end = begin + a.bytes;
    const std::vector<shared_range> &ranges = shared_ranges();
    if (last >= ranges.data() && last < ranges.data() + ranges.size() && begin >= last->begin && end <= last->end)
        return;
    for (const shared_range &r : ranges)
        if (begin >= r.begin && end <= r.end) {
            last = &r;
            return;
        }
    report_shared(a);
}

void check_shared(bool write, uint32_t who, const access &a)
{
    check_shared_bounds(a);
    size_t offset = static_cast<size_t>(static_cast<const char *>(a.p) - shared_arena);
    for (size_t i = offset / 2; i <= (offset + a.bytes - 1) / 2; i++) {
        cell *c = &shared_cells[i];
        if (c->write_id < block_base)
            *c = {ID_NEW, 0, c->read_id < block_base ? 0 : c->read_id, c->read_who}; /* another block's */
        if (write)
            write_cell(c, who, a);
        else
            read_cell(c, who, a);
    }
}

/* Whether an access needs no check: this thread was the last one here since the barrier, or it is one of several readers.
 * The first reader since the barrier has compared the writer for all of them. */
bool is_known(const cell *c, bool write, uint32_t who)
{
    if (write)
        return c->write_id == now && c->write_who == who && !c->read_id;
    if (c->read_id != now || c->write_id >= now || c->write_id < ID_FIRST)
        return false;
    const uint32_t reader = c->read_who % (1 << WHO_BITS), warp = who % (1 << WHO_BITS) / 32;
    return c->read_who == who || reader == WHO_MANY ||
           (reader == WHO_WARP + warp && c->read_who >> WHO_BITS == who >> WHO_BITS);
}

/* The cells of an access, if they lie side by side. */
cell *cells_at(const void *p, size_t bytes)
{
    size_t offset = static_cast<size_t>(static_cast<const char *>(p) - shared_arena);
    if (offset < SHARED_ARENA)
        return &shared_cells[offset / 2];
    offset = offset_of(p);
    return offset < memory.reserved && offset % PAGE + bytes <= PAGE && pages[offset / PAGE].own ? &cells[offset / 2]
                                                                                                 : nullptr;
}

__attribute__((noinline)) void check_closely(bool write, const void *p, size_t bytes, bool aligned, uint32_t who,
                                             const void *code)
{
    const access a = {write ? "writes" : "reads", p, bytes, code};
    if (is_device(p)) {
        if (aligned && reinterpret_cast<uintptr_t>(p) % bytes)
            report("misaligned: %s", describe_access(a).c_str());
        if (bytes == 1)
            who |= WHO_BYTE;
        for_range(offset_of(p), bytes, [&](cell *c) { write ? write_cell(c, who, a) : read_cell(c, who, a); });
    } else if (static_cast<size_t>(static_cast<const char *>(p) - shared_arena) < SHARED_ARENA) {
        if (aligned && reinterpret_cast<uintptr_t>(p) % bytes)
            report("misaligned: %s %s %zu bytes of shared memory, in %s", describe_thread().c_str(), a.verb, bytes,
                   source_line(code).c_str());
        check_shared(write, bytes == 1 ? who | WHO_BYTE : who, a);
    } else if (!in_kernel_memory(p) && !is_pinned(p) &&
               (p < static_cast<void *>(&__executable_start) || p >= static_cast<void *>(&_end))) {
        report("kernel touches host memory: %s %s %zu bytes at %p, in %s", describe_thread().c_str(), a.verb, bytes, p,
               source_line(code).c_str());
    }
}

inline void check_access(bool write, const void *p, size_t bytes, bool aligned, const void *code)
{
    uint32_t who = me();
    stats.checked++;
    if (traffic_counts && is_device(p))
        traffic_access(write, p, bytes);
    const cell *c = cells_at(p, bytes);
    if (c && bytes > 1 && reinterpret_cast<uintptr_t>(p) % 2 == 0) {
        const cell *end = c + (bytes + 1) / 2;
        while (c < end && is_known(c, write, who))
            c++;
        if (c == end)
            return;
    }
    check_closely(write, p, bytes, aligned, who, code);
}
} // namespace

void shadow_allocated(const void *p, size_t bytes, size_t slack)
{
    if (!pages)
        make_tables();
    for_range(offset_of(p), bytes, [](cell *c) { *c = {ID_NEW, 0, 0, 0}; });
    if (slack)
        for_range(offset_of(p) + (bytes + 1) / 2 * 2, slack - bytes % 2, [](cell *c) { *c = {ID_OUTSIDE, 0, 0, 0}; });
}

void shadow_freed(const void *p, size_t bytes)
{
    for_range(offset_of(p), bytes, [](cell *c) { *c = {ID_FREE, 0, 0, 0}; });
}

void shadow_red_zone(const void *p, size_t bytes, bool on)
{
    for_range(offset_of(p), bytes, [on](cell *c) {
        if (on || c->write_id == ID_OUTSIDE)
            *c = {on ? ID_OUTSIDE : ID_NEW, 0, 0, 0};
    });
}

void shadow_operation(const operation &op)
{
    operation_base = block_base = now = next_id++;
    if (next_id >= ID_SET - 1)
        report("the emulation ran out of ids");
    acquired = 0;
    fenced = false;
    after = op.after;
    this_operation = static_cast<uint32_t>(operations.size());
    operations.push_back({now, op.number, op.stream, names.insert(op.name).first->c_str()});
}

void shadow_block(void)
{
    block_base = now = next_id++;
    acquired = 0;
    memset(warp_epochs, 0, sizeof warp_epochs);
}

void shadow_barrier(void)
{
    now = next_id++;
}

void shadow_warp_barrier(unsigned warp)
{
    warp_epochs[warp]++;
}

void shadow_fence(void)
{
    fenced = true;
}

void shadow_atomic(const void *p, size_t bytes)
{
    if (fenced)
        acquired = block_base;
    const access a = {"updates", p, bytes, __builtin_return_address(0)};
    if (is_device(p)) {
        for_range(offset_of(p), bytes, [&](cell *c) {
            if (c->write_id < ID_FIRST)
                report_bad(c->write_id, a);
            write_cell(c, WHO_ATOMIC, a);
        });
    } else if (static_cast<size_t>(static_cast<const char *>(p) - shared_arena) < SHARED_ARENA) {
        check_shared(true, WHO_ATOMIC, a);
    } else {
        report("kernel touches host memory: %s updates %p", describe_thread().c_str(), p);
    }
}

void shadow_range(const operation &op, const range &range)
{
    (void)op;
    const access a = {range.write ? "writes" : "reads", range.p, range.bytes, nullptr};
    if (traffic_counts && is_device(range.p))
        traffic_access(range.write, range.p, range.bytes);
    if (is_device(range.p))
        for_range(offset_of(range.p), range.bytes,
                  [&](cell *c) { range.write ? write_cell(c, WHO_OPERATION, a) : read_cell(c, WHO_OPERATION, a); });
}
} // namespace emulation

/* ---- what instrumented code calls ---------------------------------------- */

using namespace emulation;

#define ACCESS(name, write, bytes, aligned)                                      \
    void name(void *p)                                                           \
    {                                                                            \
        if (kernel_is_running)                                                   \
            check_access(write, p, bytes, aligned, __builtin_return_address(0)); \
    }
extern "C" {
ACCESS(__tsan_read1, false, 1, true)
ACCESS(__tsan_read2, false, 2, true)
ACCESS(__tsan_read4, false, 4, true)
ACCESS(__tsan_read8, false, 8, true)
ACCESS(__tsan_read16, false, 16, true)
ACCESS(__tsan_write1, true, 1, true)
ACCESS(__tsan_write2, true, 2, true)
ACCESS(__tsan_write4, true, 4, true)
ACCESS(__tsan_write8, true, 8, true)
ACCESS(__tsan_write16, true, 16, true)
ACCESS(__tsan_unaligned_read2, false, 2, false)
ACCESS(__tsan_unaligned_read4, false, 4, false)
ACCESS(__tsan_unaligned_read8, false, 8, false)
ACCESS(__tsan_unaligned_read16, false, 16, false)
ACCESS(__tsan_unaligned_write2, true, 2, false)
ACCESS(__tsan_unaligned_write4, true, 4, false)
ACCESS(__tsan_unaligned_write8, true, 8, false)
ACCESS(__tsan_unaligned_write16, true, 16, false)
void __tsan_read_range(void *p, size_t bytes)
{
    if (bytes && kernel_is_running)
        check_access(false, p, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void *p, size_t bytes)
{
    if (bytes && kernel_is_running)
        check_access(true, p, bytes, false, __builtin_return_address(0));
}
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
}

#else

namespace emulation
{
void shadow_allocated(const void *p, size_t bytes, size_t slack)
{
    if (__asan_poison_memory_region) {
        __asan_unpoison_memory_region(p, bytes);
        __asan_poison_memory_region(static_cast<const char *>(p) + bytes, slack);
    }
}
void shadow_freed(const void *p, size_t bytes)
{
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(p, bytes);
}
void shadow_red_zone(const void *p, size_t bytes, bool on)
{
    if (__asan_poison_memory_region)
        (on ? __asan_poison_memory_region : __asan_unpoison_memory_region)(p, bytes);
}
void shadow_operation(const operation &)
{
}
void shadow_block(void)
{
}
void shadow_barrier(void)
{
}
void shadow_warp_barrier(unsigned)
{
}
void shadow_fence(void)
{
}
void shadow_atomic(const void *, size_t)
{
}
void shadow_range(const operation &, const range &)
{
}
} // namespace emulation

#endif
