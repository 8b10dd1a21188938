/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_queue.cc: streams and the order in which their work runs.
 *
 * Every operation has a vector clock: for each stream, the number of the last operation that comes before it. The clock is
 * known when the operation is queued: the work before it in its stream, the events that its stream waited for, the work
 * that the host had waited for. The same clock decides when the operation may run and, in emulation_shadow.cc, whether
 * two accesses are ordered.
 *
 * Orders (ZTRAIN_EMULATION_ORDER), wherever the clocks leave a choice:
 *   lazy     no work runs before something waits for it, and then only the work that is waited for
 *   starve   one stream does not run while others can, which run as far ahead as they may; streams take turns
 *   random   some work runs at any call
 *   eager    all work runs when it is queued, as on a fast GPU
 *
 * Host functions and collectives have a thread each, because they may block; neither may call the CUDA run time. A third
 * thread runs the remaining work if the host makes no call for a while, so that a program whose host waits for a peer
 * continues as with a GPU. */
#include "emulation_queue.h"

#include <chrono>
#include <deque>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include <unistd.h>

namespace emulation
{
std::mutex big_lock;
stream_state streams[MAX_STREAMS];
double planted_seconds;

namespace
{
enum order { LAZY, STARVE, RANDOM, EAGER };
enum { QUEUE_MAX = 2048 };

order the_order;
uint64_t random_state = 1;
unsigned turns;
pid_t process;
clock_vector host; /* the work that the host knows to be done */
/* Never destroyed: threads still wait for them when the process ends. */
std::condition_variable &finished = *new std::condition_variable;
std::condition_variable *const worker_ready = new std::condition_variable[2];
std::deque<operation> worker_queue[2]; /* host functions, collectives */
std::vector<pinned_copy> pinned_copies;
bool memory_is_open;
unsigned calls;
thread_local bool in_host_function;

void open_for_kernels(void)
{
    if (!memory_is_open)
        memory_open();
    memory_is_open = true;
}

void close_for_host(void)
{
    if (memory_is_open)
        memory_close();
    memory_is_open = false;
}

void open_pinned(const clock_vector &known)
{
    for (size_t i = 0; i < pinned_copies.size();) {
        pinned_copy &c = pinned_copies[i];
        if (known.at[c.stream] >= c.number) {
            pinned_open(c.p, c.bytes);
            c = pinned_copies.back();
            pinned_copies.pop_back();
        } else {
            i++;
        }
    }
}

void work(int kind)
{
    in_host_function = true;
    guard lock(big_lock);
    for (;;) {
        worker_ready[kind].wait(lock, [kind] { return !worker_queue[kind].empty(); });
        operation op = std::move(worker_queue[kind].front());
        worker_queue[kind].pop_front();
        shadow_operation(op);
        for (const range &r : op.ranges)
            shadow_range(op, r);
        if (!op.collective)
            open_pinned(op.after);
        lock.unlock();
        op.run();
        lock.lock();
        streams[op.stream].done = op.number;
        streams[op.stream].busy = false;
        finished.notify_all();
    }
}

bool can_run(const stream_state &s)
{
    if (s.busy || s.pending.empty())
        return false;
    const operation &op = s.pending.front();
    for (int i = 0; i < MAX_STREAMS; i++)
        if (i != op.stream && streams[i].done < op.after.at[i])
            return false;
    return true;
}

/* A planted fault of the GPU: ZTRAIN_EMULATION_LOSES names an operation that does nothing. */
bool is_lost(const operation &op)
{
    static const char *const lost = getenv("ZTRAIN_EMULATION_LOSES");
    return lost && op.name.find(lost) != std::string::npos;
}

void run_head(guard &lock, stream_state &s)
{
    operation op = std::move(s.pending.front());
    s.pending.pop_front();
    if (op.on_host_thread) {
        s.busy = true;
        int kind = op.collective;
        uint32_t number = op.number;
        close_for_host();
        worker_queue[kind].push_back(std::move(op));
        worker_ready[kind].notify_one();
        /* Device memory stays closed for a moment, so that a host function that touches it is caught. */
        finished.wait_for(lock, std::chrono::milliseconds(5), [&] { return s.done >= number; });
        return;
    }
    if (op.kernel)
        open_for_kernels();
    shadow_operation(op);
    if (op.more_ranges)
        op.more_ranges(op.ranges);
    for (const range &r : op.ranges)
        shadow_range(op, r);
    if (!is_lost(op))
        op.run();
    s.done = op.number;
    finished.notify_all();
}

/* A stream whose head may run and, with `target`, is needed for it; NULL: none. */
stream_state *choose(const clock_vector *target)
{
    uint32_t needed[MAX_STREAMS] = {};
    if (target) {
        memcpy(needed, target->at, sizeof needed);
        for (bool more = true; more;) {
            more = false;
            for (stream_state &s : streams) {
                if (s.pending.empty() || s.done >= needed[s.index()])
                    continue;
                for (int i = 0; i < MAX_STREAMS; i++)
                    if (s.pending.front().after.at[i] > needed[i] && i != s.index()) {
                        needed[i] = s.pending.front().after.at[i];
                        more = true;
                    }
            }
        }
    }
    stream_state *found[MAX_STREAMS];
    int count = 0;
    for (stream_state &s : streams)
        if (can_run(s) && (!target || s.done < needed[s.index()]))
            found[count++] = &s;
    return count ? found[random_bits() % static_cast<unsigned>(count)] : nullptr;
}

/* With STARVE: a stream other than the one that does not run for now. */
stream_state *choose_favoured(void)
{
    int victim = static_cast<int>(turns / 97 % MAX_STREAMS);
    for (int i = 0; i < MAX_STREAMS; i++) {
        stream_state &s = streams[(turns + static_cast<unsigned>(i)) % MAX_STREAMS];
        if (s.index() != victim && can_run(s))
            return &s;
    }
    return nullptr;
}

void run_all_that_can(guard &lock)
{
    while (stream_state *s = choose(nullptr))
        run_head(lock, *s);
    close_for_host();
}

void run_when_idle(void)
{
    unsigned seen = 0;
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        guard lock(big_lock);
        if (seen == calls)
            run_all_that_can(lock);
        seen = calls;
    }
}

void start(void)
{
    const char *order = getenv("ZTRAIN_EMULATION_ORDER"), *seed = getenv("ZTRAIN_EMULATION_SEED");
    static const char *const names[] = {"lazy", "starve", "random", "eager"};
    the_order = LAZY;
    bool known = !order;
    for (int i = 0; order && i < 4; i++)
        if (strcmp(order, names[i]) == 0) {
            the_order = static_cast<enum order>(i);
            known = true;
        }
    if (!known)
        report("ZTRAIN_EMULATION_ORDER: '%s' is not lazy, starve, random or eager", order);
    random_state = 0x9e3779b97f4a7c15u * (seed ? strtoull(seed, nullptr, 10) + 1 : 1);
    process = getpid();
    std::thread(work, 0).detach();
    std::thread(work, 1).detach();
    std::thread(run_when_idle).detach();
}
} // namespace

uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 11;
}

void clock_vector::join(const clock_vector &other)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        at[i] = at[i] < other.at[i] ? other.at[i] : at[i];
}

int stream_state::index(void) const
{
    return static_cast<int>(this - streams);
}

/* Sleeps at the calls that the environment names. */
void be_slow(const char *what)
{
    static std::mutex mutex;
    static std::map<std::string, int> counts;
    const char *slow = getenv("ZTRAIN_EMULATION_SLOW");
    if (!slow)
        return;
    int count;
    {
        std::lock_guard<std::mutex> lock(mutex);
        count = ++counts[what];
    }
    const std::string all = "," + std::string(slow) + ",", name = "," + std::string(what);
    if ((count == 1 && all == name + ",") || all.find(name + "@" + std::to_string(count) + ",") != std::string::npos) {
        fprintf(stderr, "emulation: slow: %s\n", what);
        sleep(2);
    }
}

/* Of core/heartbeat.h, which planted faults (faults.cu) are linked without. */
extern "C" bool heartbeat_is_patient(void) __attribute__((weak));

/* Calls of helper threads, for which nobody waits. */
static bool watched_without(const char *what)
{
    return !strcmp(what, "ncclCommAbort");
}

void enter(const char *what)
{
    calls++;
    if (heartbeat_is_patient && !heartbeat_is_patient() && !watched_without(what))
        report("%s outside of a call that keeps the rank alive (core/heartbeat.h)", what);
    be_slow(what);
    if (in_host_function)
        report("a host function calls %s: it may not call the CUDA run time", what);
    if (process && process != getpid())
        report("%s in a forked process: CUDA was used before the fork", what);
}

stream_state *stream_of(cudaStream_t stream)
{
    if (!stream || stream == cudaStreamLegacy)
        return &streams[0];
    stream_state *s = reinterpret_cast<stream_state *>(stream);
    if (s <= streams || s >= streams + MAX_STREAMS || !s->open)
        report("%p is not a stream", static_cast<void *>(stream));
    return s;
}

stream_state *stream_make(bool waits_for_default, int priority)
{
    for (int i = 1; i < MAX_STREAMS; i++)
        if (!streams[i].open) {
            streams[i].open = true;
            streams[i].with_default = waits_for_default;
            streams[i].priority = priority;
            return &streams[i];
        }
    report("more than %d streams", MAX_STREAMS - 1);
}

clock_vector after_of(stream_state *s)
{
    clock_vector after = s->after;
    if (s == &streams[0]) {
        for (const stream_state &other : streams)
            if (other.open && other.with_default)
                after.join(other.after);
    } else if (s->with_default) {
        after.join(streams[0].after);
    }
    return after;
}

clock_vector everything(void)
{
    clock_vector all;
    for (const stream_state &s : streams)
        all.join(s.after);
    return all;
}

bool is_done(const clock_vector &target)
{
    for (const stream_state &s : streams)
        if (s.done < target.at[s.index()])
            return false;
    return true;
}

void host_knows(const clock_vector &target)
{
    host.join(target);
    open_pinned(host);
}

void enqueue(guard &lock, stream_state *s, operation &&op, const pinned_copy *copy)
{
    if (!process)
        start();
    if (s->capture) {
        capture_operation(s, std::move(op));
        return;
    }
    s->after = after_of(s);
    s->after.join(host);
    op.stream = s->index();
    op.number = ++s->queued;
    s->after.at[op.stream] = op.number;
    op.after = s->after;
    for (const range &r : op.ranges)
        pinned_order(op, r);
    if (copy) {
        pinned_copies.push_back(*copy);
        pinned_copies.back().stream = op.stream;
        pinned_copies.back().number = op.number;
        pinned_close(copy->p, copy->bytes, copy->host_may_read);
    }
    s->pending.push_back(std::move(op));
    if (the_order == EAGER || s->pending.size() > QUEUE_MAX)
        run_all_that_can(lock);
    while (the_order == RANDOM && random_bits() % 4 == 0) {
        stream_state *other = choose(nullptr);
        if (!other)
            break;
        run_head(lock, *other);
    }
    close_for_host();
}

void run_until(guard &lock, const clock_vector &target)
{
    stats.waits++;
    while (!is_done(target)) {
        turns++;
        stream_state *s = the_order == STARVE ? choose_favoured() : nullptr;
        if (!s)
            s = choose(the_order == RANDOM ? nullptr : &target);
        if (s) {
            run_head(lock, *s);
            continue;
        }
        close_for_host();
        finished.wait_for(lock, std::chrono::milliseconds(50));
    }
    close_for_host();
}

void run_something(guard &lock)
{
    if (stream_state *s = choose(nullptr))
        run_head(lock, *s);
    close_for_host();
}

bool is_quiet(const void *p, size_t bytes)
{
    const char *begin = static_cast<const char *>(p);
    for (const stream_state &s : streams) {
        if (s.busy)
            return false;
        for (const operation &op : s.pending) {
            if (op.on_host_thread)
                return false;
            for (const range &r : op.ranges)
                if (begin < static_cast<const char *>(r.p) + r.bytes && static_cast<const char *>(r.p) < begin + bytes)
                    return false;
        }
    }
    return true;
}

void open_for_copy(int stream, uint32_t number, const void *p, size_t bytes, bool open)
{
    for (const pinned_copy &c : pinned_copies)
        if (c.stream == stream && c.number == number) {
            if (open)
                pinned_open(p, bytes);
            else
                pinned_close(p, bytes, c.host_may_read);
        }
}
} // namespace emulation
