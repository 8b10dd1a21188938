/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_block.cc: runs blocks one after the other; a block's threads are fibers that run until a barrier or a shuffle.
 *
 *     run_grid -> for every block -> passes over its threads: resume what can run, until all have ended
 *
 * A thread that reaches a barrier waits there; the last one to arrive releases all. If no thread can run and not all have
 * ended, threads wait at different places, which are reported. A barrier's place is its line in the source, not an
 * address, because compilers duplicate code. The seed determines the order of threads and blocks.
 *
 * Stacks lie in one piece of memory, with a closed page between them. Shared memory is an arena with red zones between
 * variables, filled with 0xff for every block. */
#include "emulation.h"
#include "emulation_host.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "the emulation switches stacks on x86-64 only"
#endif

extern "C" {
void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t size) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *size) __attribute__((weak));
void __asan_poison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));

/* Saves the registers that a call preserves and the stack in *save, and continues where `to` was saved. */
void emulation_switch_stack(void **save, void *to);
}
__asm__(".text\n"
        ".globl emulation_switch_stack\n"
        ".type emulation_switch_stack, @function\n"
        "emulation_switch_stack:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulation_switch_stack, .-emulation_switch_stack\n");

namespace emulation
{
uint3 thread_index, block_index;
dim3 block_size, grid_size;
unsigned current_thread;
__thread bool kernel_is_running;
char *shared_arena;

namespace
{
enum { MAX_THREADS = 1024, STACK = 64 << 10, PAGE = 4096, RED_ZONE = 64, SHARED_DEFAULT = 48 << 10 };

struct place {
    const char *what, *file;
    int line;
    bool operator==(const place &other) const
    {
        return line == other.line && what == other.what && (file == other.file || strcmp(file, other.file) == 0);
    }
};

enum fiber_state { RUNNABLE, WAITS_BLOCK, WAITS_WARP, ENDED };

struct fiber {
    fiber_state state;
    bool started;
    int stack; /* index */
    void *sp, *fake_stack;
    uint3 index;
    place at;
    unsigned mask;  /* in a warp's operation */
    uint64_t value; /* given and got */
    int operand, width;
    exchange_kind kind;
};

fiber fibers[MAX_THREADS];

/* Of wgmma. */
struct product {
    wgmma_compute *compute;
    float *sum;
    uint64_t a, b;
    int group;
};
std::vector<product> products[MAX_THREADS]; /* begun by a thread, and not computed */
int product_groups[MAX_THREADS];            /* that it has ended */

unsigned threads, ended, waiting; /* of the block: all, ended, at the block's barrier */
place barrier_place;
int barrier_or, barrier_and, barrier_count;
char *stacks;
std::vector<int> free_stacks;
void *scheduler_sp;
const void *scheduler_bottom;
size_t scheduler_size;

const launch *running; /* NULL: no kernel */
const char *running_name;
std::vector<shared_range> shared;
size_t shared_used, shared_asked;
size_t dynamic_size;
void *dynamic_memory;
uint64_t block_serial;

char *stack_of(int index)
{
    return stacks + static_cast<size_t>(index) * (STACK + PAGE) + PAGE;
}

void make_stacks(void)
{
    size_t bytes = static_cast<size_t>(MAX_THREADS) * (STACK + PAGE);
    stacks = static_cast<char *>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    shared_arena = static_cast<char *>(
        mmap(nullptr, SHARED_ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED || shared_arena == MAP_FAILED)
        report("no memory for the emulation's stacks");
    for (int i = MAX_THREADS - 1; i >= 0; i--) {
        mprotect(stack_of(i) - PAGE, PAGE, PROT_NONE);
        free_stacks.push_back(i);
    }
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(shared_arena, SHARED_ARENA);
}

void to_scheduler(fiber *f)
{
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(f->state == ENDED ? nullptr : &f->fake_stack, scheduler_bottom, scheduler_size);
    emulation_switch_stack(&f->sp, scheduler_sp);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_bottom, &scheduler_size);
}

void fiber_main(void)
{
    fiber *f = &fibers[current_thread];
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
    running->run_thread();
    if (!products[current_thread].empty())
        report("a kernel ends before its wgmma products");
    f->state = ENDED;
    ended++;
    free_stacks.push_back(f->stack);
    to_scheduler(f);
    abort();
}

void resume(unsigned thread)
{
    fiber *f = &fibers[thread];
    current_thread = thread;
    thread_index = f->index;
    if (!f->started) {
        f->started = true;
        f->stack = free_stacks.back();
        free_stacks.pop_back();
        void **top = reinterpret_cast<void **>(stack_of(f->stack) + STACK);
        *--top = nullptr; /* as if fiber_main had been called from address 0 */
        *--top = reinterpret_cast<void *>(fiber_main);
        for (int i = 0; i < 6; i++)
            *--top = nullptr;
        f->sp = top;
        f->fake_stack = nullptr;
    }
    void *fake = nullptr;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&fake, stack_of(f->stack), STACK);
    emulation_switch_stack(&scheduler_sp, f->sp);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}

std::string at_place(const place &p)
{
    char text[512];
    snprintf(text, sizeof text, "%s at %s:%d", p.what, p.file, p.line);
    return text;
}

/* No thread can run: reports which threads wait where. */
[[noreturn]] void report_stuck(void)
{
    std::string text;
    for (unsigned first = 0, i = 1; i <= threads; i++) {
        const fiber &f = fibers[first];
        if (i < threads && fibers[i].state == f.state && (f.state == ENDED || fibers[i].at == f.at))
            continue;
        char part[640];
        snprintf(part, sizeof part, "%sthreads %u to %u %s", first ? "; " : "", first, i - 1,
                 f.state == ENDED ? "have left the kernel" : ("wait for others in " + at_place(f.at)).c_str());
        if (text.size() < 1500)
            text += part;
        first = i;
    }
    report("divergent barrier: %s", text.c_str());
}

void run_block(const std::vector<unsigned> &order)
{
    ended = waiting = 0;
    shadow_block();
    block_serial++;
    shared_used = 0;
    shared_asked = 0;
    shared.clear();
    dynamic_memory = nullptr;
    while (ended < threads) {
        bool any = false;
        for (unsigned thread : order)
            if (fibers[thread].state == RUNNABLE) {
                any = true;
                resume(thread);
            }
        if (!any)
            report_stuck();
    }
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(shared_arena, shared_used);
}

void *shared_take(const char *name, size_t bytes, bool dynamic)
{
    size_t begin = shared_used + RED_ZONE, end = begin + bytes;
    if (end + RED_ZONE > SHARED_ARENA)
        report("shared memory: more than %d bytes in one block", SHARED_ARENA);
    char *p = shared_arena + begin;
    shared_used = (end + 15) / 16 * 16 + RED_ZONE;
    if (!dynamic)
        shared_asked += (bytes + 15) / 16 * 16;
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(p, bytes);
    for (size_t i = 0; i < bytes; i++)
        p[i] = static_cast<char>(0xff);
    shared.push_back({name, p, p + bytes});
    if (shared_asked > SHARED_DEFAULT)
        report("shared memory: more than 48 KiB of static shared memory in one kernel");
    return p;
}
} // namespace

const std::vector<shared_range> &shared_ranges(void)
{
    return shared;
}

bool in_kernel_memory(const void *p)
{
    const char *c = static_cast<const char *>(p);
    return static_cast<size_t>(c - stacks) < static_cast<size_t>(MAX_THREADS) * (STACK + PAGE) ||
           static_cast<size_t>(c - reinterpret_cast<const char *>(running)) < running->bytes;
}

std::string describe_thread(void)
{
    char text[512];
    snprintf(text, sizeof text, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", running_name, block_index.x,
             block_index.y, block_index.z, thread_index.x, thread_index.y, thread_index.z);
    return text;
}

void run_grid(const char *name, const launch *arguments, dim3 grid, dim3 block, size_t dynamic_bytes)
{
    if (!stacks)
        make_stacks();
    running = arguments;
    kernel_is_running = true;
    running_name = name;
    block_size = block;
    grid_size = grid;
    dynamic_size = dynamic_bytes;
    threads = block.x * block.y * block.z;

    /* Threads: forward, backward, or warps in any order and their lanes forward. */
    std::vector<unsigned> order(threads);
    uint64_t way = random_bits();
    unsigned warps = (threads + 31) / 32, turn = static_cast<unsigned>(way >> 8) % warps;
    for (unsigned i = 0, n = 0; i < warps * 32; i++) {
        unsigned thread = (i / 32 + turn) % warps * 32 + i % 32;
        if (thread < threads)
            order[n++] = thread;
    }
    if (way % 2)
        std::reverse(order.begin(), order.end());

    uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t b = way & 4 ? blocks - 1 - i : i;
        block_index = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                       static_cast<unsigned>(b / grid.x / grid.y)};
        for (unsigned t = 0; t < threads; t++) {
            fiber &f = fibers[t];
            f.state = RUNNABLE;
            f.started = false;
            f.index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
        }
        run_block(order);
    }
    kernel_is_running = false;
    running = nullptr;
}

int barrier_block(barrier_kind kind, int predicate, const char *file, int line)
{
    static const char *const names[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and",
                                        "__syncthreads_count"};
    fiber *f = &fibers[current_thread];
    f->at = {names[kind], file, line};
    if (!waiting) {
        barrier_place = f->at;
        barrier_or = 0;
        barrier_and = 1;
        barrier_count = 0;
    } else if (!(barrier_place == f->at)) {
        report("divergent barrier: this thread came to %s, others wait in %s", at_place(f->at).c_str(),
               at_place(barrier_place).c_str());
    }
    barrier_or |= predicate != 0;
    barrier_and &= predicate != 0;
    barrier_count += predicate != 0;
    static int result;
    if (++waiting < threads) {
        f->state = WAITS_BLOCK;
        to_scheduler(f);
    } else {
        waiting = 0;
        result = kind == BARRIER_OR ? barrier_or : kind == BARRIER_AND ? barrier_and : barrier_count;
        shadow_barrier();
        for (unsigned t = 0; t < threads; t++)
            fibers[t].state = RUNNABLE;
    }
    return result;
}

/* ---- wgmma --------------------------------------------------------------- */

void wgmma_enqueue(wgmma_compute *compute, float *sum, uint64_t a, uint64_t b)
{
    for (uint64_t matrix : {a, b})
        if (matrix >> 62 != 1 || (matrix >> 46 & 0xffff) != 0)
            report("wgmma: a descriptor 0x%llx of another layout", static_cast<unsigned long long>(matrix));
    products[current_thread].push_back({compute, sum, a, b, product_groups[current_thread]});
}

void wgmma(const char *what)
{
    static const char wait[] = "wgmma.wait_group.sync.aligned ";
    std::vector<product> &begun = products[current_thread];
    if (strcmp(what, "wgmma.commit_group.sync.aligned") == 0)
        product_groups[current_thread]++;
    if (strncmp(what, wait, sizeof wait - 1) != 0)
        return;
    const int end = product_groups[current_thread] - atoi(what + sizeof wait - 1);
    size_t done = 0;
    for (; done < begun.size() && begun[done].group < end; done++)
        begun[done].compute(begun[done].sum, begun[done].a, begun[done].b);
    begun.erase(begun.begin(), begun.begin() + static_cast<std::ptrdiff_t>(done));
}

namespace
{
/* Waits until every lane of mask has reached the same place; the last one calls release() before they continue. */
template <typename Release> void meet_in_warp(unsigned mask, const place &at, Release release)
{
    unsigned lane = current_thread % 32, first = current_thread - lane;
    fiber *warp = &fibers[first], *f = &warp[lane];
    f->at = at;
    f->mask = mask;
    if (!(mask >> lane & 1))
        report("%s: lane %u is not in its own mask 0x%08x", at_place(at).c_str(), lane, mask);
    f->state = WAITS_WARP;
    bool all = true;
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1))
            continue;
        if (first + i >= threads || warp[i].state == ENDED)
            report("divergent barrier: %s: lane %u of the mask 0x%08x %s", at_place(at).c_str(), i, mask,
                   first + i >= threads ? "is beyond the block" : "has left the kernel");
        if (warp[i].state == WAITS_WARP && (warp[i].mask != mask || !(warp[i].at == at)))
            report("divergent barrier: this thread came to %s with mask 0x%08x, lane %u waits in %s with mask 0x%08x",
                   at_place(at).c_str(), mask, i, at_place(warp[i].at).c_str(), warp[i].mask);
        all = all && warp[i].state == WAITS_WARP;
    }
    if (!all) {
        to_scheduler(f);
        return;
    }
    release(warp);
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1)
            warp[i].state = RUNNABLE;
}
} // namespace

void barrier_warp(unsigned mask, const char *file, int line)
{
    unsigned warp = current_thread / 32;
    /* Lanes beyond the end of a block whose length is not a multiple of 32 do not exist: a full mask means the others. */
    if (mask == 0xffffffffu && threads - warp * 32 < 32)
        mask >>= 32 - (threads - warp * 32);
    meet_in_warp(mask, {"__syncwarp", file, line}, [&](fiber *) { shadow_warp_barrier(warp); });
}

uint64_t exchange(exchange_kind kind, unsigned mask, uint64_t value, int operand, int width, const char *file, int line)
{
    static const char *const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
    fiber *f = &fibers[current_thread];
    f->value = value;
    f->operand = operand;
    f->width = width;
    f->kind = kind;
    place at = {names[kind], file, line};
    if (width < 1 || width > 32 || (width & (width - 1)) != 0)
        report("%s: width %d is not a power of two up to 32", at_place(at).c_str(), width);
    meet_in_warp(mask, at, [&](fiber *warp) {
        uint64_t got[32];
        for (int lane = 0; lane < 32; lane++) {
            if (!(mask >> lane & 1))
                continue;
            int n = warp[lane].operand, w = warp[lane].width, begin = lane & ~(w - 1), end = begin + w, from = lane;
            switch (kind) {
            case EXCHANGE_IDX: from = begin + (n & (w - 1)); break;
            case EXCHANGE_UP: from = lane - n < begin ? lane : lane - n; break;
            case EXCHANGE_DOWN: from = lane + n >= end ? lane : lane + n; break;
            case EXCHANGE_XOR: from = (lane ^ n) >= end ? lane : lane ^ n; break;
            }
            if (from < 0 || from > 31 || !(mask >> from & 1))
                report("%s: lane %d reads from lane %d, which is not in the mask 0x%08x", at_place(at).c_str(), lane,
                       from, mask);
            got[lane] = warp[from].value;
        }
        for (int lane = 0; lane < 32; lane++)
            if (mask >> lane & 1)
                warp[lane].value = got[lane];
    });
    return f->value;
}

unsigned ballot(unsigned mask, int predicate, const char *file, int line)
{
    fiber *f = &fibers[current_thread];
    f->value = predicate != 0;
    meet_in_warp(mask, {"__ballot_sync (or any, all)", file, line}, [&](fiber *warp) {
        unsigned bits = 0;
        for (unsigned lane = 0; lane < 32; lane++)
            if (mask >> lane & 1)
                bits |= static_cast<unsigned>(warp[lane].value) << lane;
        for (unsigned lane = 0; lane < 32; lane++)
            if (mask >> lane & 1)
                warp[lane].value = bits;
    });
    return static_cast<unsigned>(f->value);
}

void *shared_memory(shared_place *place, size_t bytes)
{
    if (place->serial != block_serial) {
        place->memory = shared_take(place->name, bytes, false);
        place->serial = block_serial;
    }
    return place->memory;
}

void *dynamic_shared_memory(void)
{
    if (!dynamic_memory)
        dynamic_memory = shared_take("dynamic shared memory", dynamic_size, true);
    return dynamic_memory;
}

uint64_t atomic_update(atomic_kind kind, void *address, size_t bytes, bool is_signed, uint64_t value, uint64_t compare,
                       const char *file, int line)
{
    if (reinterpret_cast<uintptr_t>(address) % bytes)
        report("misaligned atomic at %s:%d", file, line);
    shadow_atomic(address, bytes);
    auto widen = [&](uint64_t x) { /* sign extension or zeros */
                                   if (bytes == 8)
                                       return x;
                                   return is_signed
                                              ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x)))
                                              : static_cast<uint64_t>(static_cast<uint32_t>(x));
    };
    uint64_t old = 0;
    memcpy(&old, address, bytes);
    old = widen(old);
    value = widen(value);
    bool greater = is_signed ? static_cast<int64_t>(value) > static_cast<int64_t>(old) : value > old;
    uint64_t made = old;
    switch (kind) {
    case ATOMIC_ADD: made = old + value; break;
    case ATOMIC_AND: made = old & value; break;
    case ATOMIC_OR: made = old | value; break;
    case ATOMIC_XOR: made = old ^ value; break;
    case ATOMIC_EXCHANGE: made = value; break;
    case ATOMIC_MAX: made = greater ? value : old; break;
    case ATOMIC_MIN: made = greater ? old : value; break;
    case ATOMIC_CAS: made = old == widen(compare) ? value : old; break;
    }
    memcpy(address, &made, bytes);
    return old;
}

void fence(void)
{
    shadow_fence();
}

void trap(const char *file, int line)
{
    report("__trap at %s:%d", file, line);
}
} // namespace emulation
