/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_nccl.cc: the functions of NCCL that ztrain calls, between processes of one machine.
 *
 * The unique id names a piece of shared memory: a header, and a window for each rank. A collective is work of its
 * stream and runs on the emulation's thread for collectives. It goes through the windows piece by piece:
 *
 *     own piece -> own window | barrier | read the others' windows | barrier | next piece
 *
 * A group of ncclSend and ncclRecv is one collective, of all ranks: each may send once to each other and receive once
 * from it. What a rank sends has to be what its peer receives.
 *
 * Sums add ranks 0, 1, … in fp32 or in the type itself. With each piece a rank announces its collective: ranks that
 * call different ones end with a report instead of hanging. As with NCCL, the death of a peer is not noticed; an
 * aborted communicator leaves its collectives. After a call of a non-blocking communicator, the call is in progress for
 * a while; another call before it has ended is reported as a mistake.
 *
 * Collectives of a group are queued at its end; one that uses another's result is a mistake. Memory of ncclMemAlloc can
 * be registered. If a collective uses a window, it has to on all ranks, at the same place (the result of a gather, what
 * a reduce-scatter reads). With CTAPolicy ZERO gathers whose both ends lie in windows run on copy engines: these wait
 * for peers whether the communicator is aborted or not. What is registered when the communicator ends in order, or
 * memory that is freed while it is registered, is a mistake.
 *
 * ZTRAIN_EMULATION_NCCL: a fault of this process's NCCL: version=N (another version), deaf (it never finds its peers),
 * refuse (it joins no communicator), small (the same for lack of room in /dev/shm), error=N (the Nth collective hangs
 * with an asynchronous error), cuda=N (the same with an error of the GPU), fault=N (with one that programs cause),
 * reject=N (the Nth collective is refused), forgets (sums lack the last rank), forgets=window (in windows alone),
 * no-memory (ncclMemAlloc refuses), no-window, no-register (registrations give no handle), bad-window (they fail),
 * bad-window=cuda (with an error of CUDA's), engines (an abort does not end gathers on copy engines),
 * stays (an abort does not return). ZTRAIN_EMULATION_CTAS=N: a communicator with other maxCTAs than N (0: the default) is a mistake. */
#include "emulation_host.h"
#include "emulation_queue.h"

#if __has_include(<nccl.h>)
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace emulation;

namespace
{
enum { MAX_RANKS = 64, WINDOW = 1 << 18 };

struct signature { /* of a collective; the same on all ranks */
    int64_t kind, count, type, reduction;
    int64_t place; /* in a window; -1: in none */
};

struct segment {
    std::atomic<int> connected, aborted;
    char gpus[MAX_RANKS][GPU_ID_BYTES];
    std::atomic<uint64_t> turn[MAX_RANKS]; /* barriers that the rank has reached */
    uint64_t sent[MAX_RANKS][MAX_RANKS], received[MAX_RANKS][MAX_RANKS]; /* bytes in a group, by rank and its peer */
    signature doing[MAX_RANKS];
    char windows[];
};
} // namespace

struct ncclComm {
    int rank, world;
    segment *shared;
    size_t bytes;
    std::string name;
    std::atomic<int> state;           /* ncclResult_t */
    std::atomic<int> in_progress;     /* the number of times that a call is reported as in progress */
    bool blocking, engines;           /* engines: gathers in windows run on copy engines */
    std::atomic<int64_t> collectives; /* that have begun */
    int64_t calls;
    std::atomic<bool> aborted;
    uint64_t turn;
    std::thread connecting;
};

namespace
{
std::atomic<const char *> last_message{""};

/* Aborted communicators are kept: a graph may still contain their collectives. */
std::vector<ncclComm *> &aborted = *new std::vector<ncclComm *>;

/* Memory of ncclMemAlloc, and registrations by their handle. */
std::map<const char *, size_t> &pieces = *new std::map<const char *, size_t>;
struct registration {
    const ncclComm *comm;
    const char *base;
    size_t bytes;
    bool window;
};
std::vector<registration *> &registrations = *new std::vector<registration *>;

struct pending { /* of a group */
    operation op;
    cudaStream_t stream;
    ncclComm *comm;
};
thread_local int group_depth;
thread_local std::vector<pending> group;

struct transfer { /* of ncclSend or ncclRecv */
    char *at;
    size_t bytes;
};
struct peers { /* the transfers of a group */
    ncclComm *comm = nullptr;
    cudaStream_t stream;
    transfer to[MAX_RANKS] = {}, from[MAX_RANKS] = {}; /* bytes 0: none */
};
thread_local peers transfers;

/* The value of a fault ("" if it has none); NULL: the fault is not asked for. */
const char *mistake(const char *name)
{
    const char *made = getenv("ZTRAIN_EMULATION_NCCL");
    size_t length = strlen(name);
    if (!made || strncmp(made, name, length) != 0)
        return nullptr;
    return made[length] == '=' ? made + length + 1 : made + length;
}

void check_ctas(const ncclConfig_t *config)
{
    const char *wanted = getenv("ZTRAIN_EMULATION_CTAS");
    int most = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : 0;
    if (wanted && atoi(wanted) != most)
        report("NCCL: maxCTAs is %d, not %s", most, wanted);
}

/* Where the memory lies in a window of the communicator; -1: in none. */
int64_t place_in_window(const ncclComm *c, const void *p)
{
    const char *at = static_cast<const char *>(p);
    for (const registration *r : registrations)
        if (r->comm == c && r->window && at >= r->base && at < r->base + r->bytes)
            return at - r->base;
    return -1;
}

/* A call of this communicator begins, and ends. */
void begin(ncclComm *c, const char *name)
{
    if (c->in_progress)
        report("NCCL: %s while a call before it is in progress", name);
}

ncclResult_t end(ncclComm *c)
{
    if (c->blocking)
        return ncclSuccess;
    c->in_progress = static_cast<int>(1 + c->collectives % 3);
    return ncclInProgress;
}

ncclResult_t fail(ncclResult_t code, const char *message)
{
    last_message = message;
    return code;
}

thread_local bool on_engine; /* the collective that this thread runs */

/* Waits; false: the communicator was aborted. */
template <typename Condition> bool wait_until(ncclComm *c, Condition holds)
{
    for (int spins = 0; !holds(); spins++) {
        if (c->aborted && !on_engine)
            return false;
        if (spins > 100)
            usleep(100);
    }
    return true;
}

bool meet(ncclComm *c)
{
    c->turn++;
    c->shared->turn[c->rank] = c->turn;
    return wait_until(c, [c] {
        for (int r = 0; r < c->world; r++)
            if (c->shared->turn[r] < c->turn)
                return false;
        return true;
    });
}

char *window(ncclComm *c, int rank)
{
    return c->shared->windows + static_cast<size_t>(rank) * WINDOW;
}

void connect(ncclComm *c)
{
    c->shared->connected += !mistake("deaf");
    bool there = wait_until(c, [c] { return c->shared->connected == c->world; }), alone = there;
    for (int r = 0; r < c->world && there; r++)
        alone &= r == c->rank || memcmp(c->shared->gpus[r], c->shared->gpus[c->rank], GPU_ID_BYTES) != 0;
    if (c->rank == 0)
        shm_unlink(c->name.c_str());
    c->state = alone ? ncclSuccess : there ? ncclInvalidUsage : ncclInternalError;
}

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

double load(ncclDataType_t type, const char *p, size_t i)
{
    switch (type) {
    case ncclFloat16: return __half2float(reinterpret_cast<const __half *>(p)[i]);
    case ncclBfloat16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(p)[i]);
    case ncclFloat32: return reinterpret_cast<const float *>(p)[i];
    case ncclFloat64: return reinterpret_cast<const double *>(p)[i];
    case ncclInt32: return reinterpret_cast<const int32_t *>(p)[i];
    case ncclUint32: return reinterpret_cast<const uint32_t *>(p)[i];
    default: report("a reduction of NCCL's type %d", static_cast<int>(type));
    }
}

void store(ncclDataType_t type, char *p, size_t i, double x)
{
    switch (type) {
    case ncclFloat16: reinterpret_cast<__half *>(p)[i] = __float2half_rn(static_cast<float>(x)); break;
    case ncclBfloat16: reinterpret_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(static_cast<float>(x)); break;
    case ncclFloat32: reinterpret_cast<float *>(p)[i] = static_cast<float>(x); break;
    case ncclFloat64: reinterpret_cast<double *>(p)[i] = x; break;
    case ncclInt32: reinterpret_cast<int32_t *>(p)[i] = static_cast<int32_t>(x); break;
    default: reinterpret_cast<uint32_t *>(p)[i] = static_cast<uint32_t>(x); break;
    }
}

/* to[i] = the reduction of element `first + i` of all windows */
void reduce(ncclComm *c, const signature &s, size_t first, size_t n, char *to)
{
    ncclDataType_t type = static_cast<ncclDataType_t>(s.type);
    const char *forgets = mistake("forgets"); /* the last rank's contributions */
    const int world = c->world - (forgets && (!*forgets || s.place >= 0) ? 1 : 0);
    for (size_t i = 0; i < n; i++) {
        double x = load(type, window(c, 0), first + i);
        for (int r = 1; r < world; r++) {
            double y = load(type, window(c, r), first + i);
            switch (s.reduction) {
            case ncclMax: x = y > x || y != y ? y : x; break;
            case ncclMin: x = y < x || y != y ? y : x; break;
            default:
                x = type == ncclFloat64 ? x + y : static_cast<double>(static_cast<float>(x) + static_cast<float>(y));
            }
        }
        store(type, to, i, x);
    }
}

enum { GATHER, SCATTER, REDUCE, PEERS };

/* Every rank's piece is in the windows while take() runs. */
template <typename Give, typename Take> bool exchange_piece(ncclComm *c, const signature &s, Give give, Take take)
{
    c->shared->doing[c->rank] = s;
    give(window(c, c->rank));
    if (!meet(c))
        return false;
    for (int r = 0; r < c->world; r++)
        if (memcmp(&c->shared->doing[r], &s, sizeof s) != 0)
            report("NCCL: rank %d is in collective %d of %lld elements at %lld, rank %d in %d of %lld at %lld", c->rank,
                   static_cast<int>(s.kind), static_cast<long long>(s.count), static_cast<long long>(s.place), r,
                   static_cast<int>(c->shared->doing[r].kind), static_cast<long long>(c->shared->doing[r].count),
                   static_cast<long long>(c->shared->doing[r].place));
    take();
    return meet(c);
}

void run_collective(ncclComm *c, const signature &s, const char *send, char *receive)
{
    stats.collectives++;
    const size_t size = size_of(static_cast<ncclDataType_t>(s.type)), world = static_cast<size_t>(c->world);
    const size_t count = static_cast<size_t>(s.count);
    /* SCATTER: a window holds a piece for each rank. */
    const size_t most = WINDOW / size / (s.kind == SCATTER ? world : 1);
    send = open_alias(send);
    receive = open_alias(receive);
    for (size_t at = 0; at < count; at += most) {
        const size_t n = std::min(most, count - at);
        bool good = exchange_piece(
            c, s,
            [&](char *own) {
                if (s.kind == SCATTER)
                    for (size_t r = 0; r < world; r++)
                        memcpy(own + r * n * size, send + (r * count + at) * size, n * size);
                else
                    memcpy(own, send + at * size, n * size);
            },
            [&] {
                switch (s.kind) {
                case GATHER:
                    for (size_t r = 0; r < world; r++)
                        memcpy(receive + (r * count + at) * size, window(c, static_cast<int>(r)), n * size);
                    break;
                case SCATTER: reduce(c, s, static_cast<size_t>(c->rank) * n, n, receive + at * size); break;
                default: reduce(c, s, 0, n, receive + at * size); break;
                }
            });
        if (!good)
            return;
    }
}

/* Each window holds a piece for each rank. */
void run_exchange(ncclComm *c, const peers &e)
{
    const signature s = {PEERS, 0, 0, 0, -1};
    const size_t room = WINDOW / static_cast<size_t>(c->world);
    size_t most = 0;
    stats.collectives++;
    for (int r = 0; r < c->world; r++) {
        c->shared->sent[c->rank][r] = e.to[r].bytes;
        c->shared->received[c->rank][r] = e.from[r].bytes;
        stats.to_peers += e.to[r].bytes;
    }
    for (size_t at = 0; at == 0 || at < most; at += room) {
        const bool good = exchange_piece(
            c, s,
            [&](char *own) {
                for (int r = 0; r < c->world; r++)
                    if (e.to[r].bytes > at)
                        memcpy(own + static_cast<size_t>(r) * room, open_alias(e.to[r].at) + at,
                               std::min(room, e.to[r].bytes - at));
            },
            [&] {
                for (int from = 0; from < c->world; from++)
                    for (int to = 0; to < c->world; to++) {
                        const uint64_t sent = c->shared->sent[from][to], received = c->shared->received[to][from];
                        if (sent != received)
                            report("NCCL: rank %d sends %llu bytes to rank %d, which receives %llu", from,
                                   static_cast<unsigned long long>(sent), to,
                                   static_cast<unsigned long long>(received));
                        most = std::max(most, static_cast<size_t>(sent));
                    }
                for (int r = 0; r < c->world; r++)
                    if (e.from[r].bytes > at)
                        memcpy(open_alias(e.from[r].at) + at,
                               window(c, r) + static_cast<size_t>(c->rank) * room,
                               std::min(room, e.from[r].bytes - at));
            });
        if (!good)
            return;
    }
}

bool overlap(const range &a, const range &b)
{
    const char *p = static_cast<const char *>(a.p), *q = static_cast<const char *>(b.p);
    return (a.write || b.write) && p < q + b.bytes && q < p + a.bytes;
}

/* In place, a collective reads and writes the same memory. */
void check_group(const operation &op)
{
    for (const pending &p : group)
        for (const range &a : p.op.ranges)
            for (const range &b : op.ranges)
                if (overlap(a, b))
                    report("NCCL: %s and %s are in one group, but depend on each other", p.op.name.c_str(),
                           op.name.c_str());
}

/* Whether the communicator takes a call; *result is the call's if not. */
bool takes_call(const char *name, ncclComm *c, ncclResult_t *result)
{
    *result = ncclSuccess;
    if (c->state == ncclInProgress)
        *result = fail(ncclInvalidUsage, "the communicator is not ready");
    else if (c->state != ncclSuccess)
        *result = static_cast<ncclResult_t>(c->state.load());
    else
        begin(c, name);
    return *result == ncclSuccess;
}

bool is_rejected(ncclComm *c)
{
    const char *rejected = mistake("reject");
    return ++c->calls == (rejected ? atoll(rejected) : 0);
}

/* A collective of this communicator, with the faults that are asked for. */
std::function<void()> with_faults(ncclComm *c, std::function<void()> run)
{
    return [=] {
        const char *network = mistake("error"), *device = mistake("cuda"), *fault = mistake("fault"),
                   *failing = network  ? network
                              : device ? device
                                       : fault;
        if (++c->collectives == (failing ? atoll(failing) : 0)) {
            last_message = network ? "the network has gone away"
                           : fault ? "Cuda failure 700 'an illegal memory access was encountered'"
                                   : "Cuda failure 'uncorrectable ECC error encountered'";
            c->state = network ? ncclSystemError : ncclUnhandledCudaError;
            wait_until(c, [] { return false; });
        }
        if (!c->aborted)
            run();
    };
}

ncclResult_t collective(const char *name, signature s, size_t sent, size_t received, const void *send, void *receive,
                        ncclComm *c, cudaStream_t stream)
{
    guard lock(big_lock);
    enter(name);
    size_t size = size_of(static_cast<ncclDataType_t>(s.type));
    if (!size)
        return fail(ncclInvalidArgument, "unknown type");
    ncclResult_t result;
    if (!takes_call(name, c, &result) || !s.count)
        return result;
    if (is_rejected(c))
        return fail(ncclInvalidArgument, "it does not like this one");
    check_range(name, send, sent * size);
    check_range(name, receive, received * size);
    s.place = place_in_window(c, s.kind == GATHER ? receive : send);
    const bool engine = c->engines && s.kind == GATHER && s.place >= 0 && place_in_window(c, send) >= 0;
    stats.in_windows += s.place >= 0;
    stats.on_engines += engine;
    if (stream_of(stream)->capture)
        for (const void *used : {send, static_cast<const void *>(receive)})
            memory_register(c, used);
    operation op;
    op.name = std::string(name) + " (" + std::to_string(s.count) + " elements)";
    op.on_host_thread = op.collective = true;
    op.ranges = {{send, sent * size, false}, {receive, received * size, true}};
    op.run = with_faults(c, [=] {
        on_engine = engine && mistake("engines");
        run_collective(c, s, static_cast<const char *>(send), static_cast<char *>(receive));
        on_engine = false;
    });
    if (group_depth > 0) {
        check_group(op);
        group.push_back({std::move(op), stream, c});
        return ncclSuccess;
    }
    enqueue(lock, stream_of(stream), std::move(op));
    return end(c);
}

/* Half of a transfer, until the group's end. */
ncclResult_t transfer_piece(const char *name, bool receives, void *memory, size_t count, ncclDataType_t type, int peer,
                            ncclComm *c, cudaStream_t stream)
{
    guard lock(big_lock);
    enter(name);
    const size_t bytes = count * size_of(type);
    if (!size_of(type) || peer < 0 || peer >= c->world || peer == c->rank)
        return fail(ncclInvalidArgument, "an unknown type, or no other rank");
    ncclResult_t result;
    if (!takes_call(name, c, &result) || !count)
        return result;
    if (is_rejected(c)) {
        transfers = peers();
        return fail(ncclInvalidArgument, "it does not like this one");
    }
    if (group_depth == 0)
        report("NCCL: %s outside of a group waits for its peer, which waits in its own", name);
    if (transfers.comm && (transfers.comm != c || transfers.stream != stream))
        report("NCCL: the transfers of a group are in two streams or communicators");
    transfers.comm = c;
    transfers.stream = stream;
    transfer *own = receives ? &transfers.from[peer] : &transfers.to[peer];
    if (own->bytes)
        report("NCCL: two times %s with rank %d in one group", name, peer);
    check_range(name, memory, bytes);
    if (stream_of(stream)->capture)
        memory_register(c, memory);
    *own = {static_cast<char *>(memory), bytes};
    return ncclSuccess;
}

/* The operation of a group's transfers. */
operation operation_of_exchange()
{
    const peers e = transfers;
    operation op;
    size_t sent = 0;
    for (int r = 0; r < e.comm->world; r++) {
        const range both[] = {{e.to[r].at, e.to[r].bytes, false}, {e.from[r].at, e.from[r].bytes, true}};
        sent += e.to[r].bytes;
        for (const range &b : both) {
            for (const range &a : op.ranges)
                if (b.bytes && overlap(a, b))
                    report("NCCL: transfers of one group depend on each other");
            if (b.bytes)
                op.ranges.push_back(b);
        }
    }
    op.name = "ncclSend and ncclRecv (" + std::to_string(sent) + " bytes)";
    op.on_host_thread = op.collective = true;
    op.run = with_faults(e.comm, [=] { run_exchange(e.comm, e); });
    transfers = peers();
    return op;
}

/* `fault`: where the handle is NULL. */
ncclResult_t register_piece(const char *name, ncclComm *c, void *memory, size_t bytes, bool window, const char *fault,
                            void **handle)
{
    guard lock(big_lock);
    enter(name);
    begin(c, name);
    *handle = nullptr;
    const char *base = static_cast<const char *>(memory);
    auto piece = pieces.upper_bound(base);
    const char *bad = mistake("bad-window");
    if (bad && *bad)
        return fail(ncclUnhandledCudaError, "Cuda failure 801 'operation not supported'");
    if (bad || piece == pieces.begin() ||
        base + bytes > std::prev(piece)->first + std::prev(piece)->second)
        return fail(ncclInvalidArgument, "this memory cannot be registered");
    if (!mistake(fault)) {
        registrations.push_back(new registration{c, base, bytes, window});
        *handle = registrations.back();
    }
    stats.registered += *handle != nullptr;
    return window ? end(c) : ncclSuccess;
}

ncclResult_t deregister_piece(const char *name, ncclComm *c, const void *handle)
{
    guard lock(big_lock);
    enter(name);
    begin(c, name);
    auto at = std::find(registrations.begin(), registrations.end(), handle);
    if (at == registrations.end() || (*at)->comm != c)
        report("NCCL: %s of what is not registered", name);
    const bool window = (*at)->window;
    delete *at;
    registrations.erase(at);
    stats.deregistered++;
    return window ? end(c) : ncclSuccess;
}
} // namespace

bool emulation::is_of_nccl(const void *p)
{
    return pieces.count(static_cast<const char *>(p)) > 0;
}

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    const char *other = mistake("version");
    *version = other ? atoi(other) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code)
{
    return code == ncclSuccess ? "no error" : code == ncclInProgress ? "in progress" : "an error of the emulated NCCL";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_message;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<int> number;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/emulated-nccl-%d-%d", static_cast<int>(getpid()), ++number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    if (world < 1 || world > MAX_RANKS || rank < 0 || rank >= world)
        return fail(ncclInvalidArgument, "a rank out of range");
    if (mistake("refuse"))
        return fail(ncclSystemError, "no network");
    if (mistake("small"))
        return fail(ncclSystemError, "Error while creating shared memory segment /dev/shm/nccl-KWfVyt (size 9637888), "
                                     "error: No space left on device (28)");
    check_ctas(config);
    ncclComm *c = new ncclComm();
    c->engines = config && config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
    c->blocking = !config || config->blocking != 0;
    c->rank = rank;
    c->world = world;
    c->name.assign(id.internal, strnlen(id.internal, sizeof id.internal));
    c->bytes = sizeof(segment) + static_cast<size_t>(world) * WINDOW;
    int fd = shm_open(c->name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    void *map = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(c->bytes)) == 0)
        map = mmap(nullptr, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED) {
        delete c;
        return fail(ncclSystemError, strerror(errno));
    }
    c->shared = static_cast<segment *>(map);
    current_gpu(c->shared->gpus[rank]);
    c->state = ncclInProgress;
    *comm = c;
    if (!c->blocking) {
        c->connecting = std::thread(connect, c);
        return ncclInProgress;
    }
    connect(c);
    return static_cast<ncclResult_t>(c->state.load());
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    *state = static_cast<ncclResult_t>(comm->state.load());
    if (*state == ncclSuccess && comm->in_progress) {
        comm->in_progress--;
        *state = ncclInProgress;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    guard lock(big_lock);
    enter("ncclCommFinalize");
    begin(comm, "ncclCommFinalize");
    return end(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    guard lock(big_lock);
    enter("ncclCommDestroy");
    for (const registration *r : registrations)
        if (r->comm == comm)
            report("NCCL: ncclCommDestroy with %zu bytes that are still registered", r->bytes);
    run_until(lock, everything());
    if (comm->connecting.joinable())
        comm->connecting.join();
    munmap(comm->shared, comm->bytes);
    memory_unregister(comm);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    while (mistake("stays"))
        usleep(100 * 1000);
    comm->aborted = true;
    comm->state = ncclInternalError;
    if (comm->rank == 0)
        shm_unlink(comm->name.c_str());
    if (comm->connecting.joinable())
        comm->connecting.join();
    guard lock(big_lock);
    enter("ncclCommAbort");
    run_until(lock, everything());
    munmap(comm->shared, comm->bytes);
    memory_unregister(comm);
    registrations.erase(std::remove_if(registrations.begin(), registrations.end(),
                                       [=](const registration *r) { return r->comm == comm; }),
                        registrations.end());
    aborted.push_back(comm);
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    const signature s = {GATHER, static_cast<int64_t>(count), type, 0, -1};
    return collective("ncclAllGather", s, count, count * static_cast<size_t>(comm->world), send, receive, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    const signature s = {SCATTER, static_cast<int64_t>(count), type, reduction, -1};
    return collective("ncclReduceScatter", s, count * static_cast<size_t>(comm->world), count, send, receive, comm,
                      stream);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream)
{
    const signature s = {REDUCE, static_cast<int64_t>(count), type, reduction, -1};
    return collective("ncclAllReduce", s, count, count, send, receive, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return transfer_piece("ncclSend", false, const_cast<void *>(send), count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return transfer_piece("ncclRecv", true, receive, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart()
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    guard lock(big_lock);
    enter("ncclGroupEnd");
    if (group_depth == 0)
        report("NCCL: ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0 || (group.empty() && !transfers.comm))
        return ncclSuccess;
    ncclComm *c = transfers.comm ? transfers.comm : group.front().comm;
    stats.groups += !group.empty();
    stats.in_groups += group.size();
    if (transfers.comm) {
        const cudaStream_t stream = transfers.stream;
        operation op = operation_of_exchange();
        check_group(op);
        enqueue(lock, stream_of(stream), std::move(op));
    }
    for (pending &p : group)
        enqueue(lock, stream_of(p.stream), std::move(p.op));
    group.clear();
    return end(c);
}

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    guard lock(big_lock);
    enter("ncclMemAlloc");
    if (mistake("no-memory") || memory_new(memory, bytes) != cudaSuccess)
        return fail(ncclUnhandledCudaError, "no memory");
    pieces[static_cast<const char *>(*memory)] = bytes;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    guard lock(big_lock);
    enter("ncclMemFree");
    if (!pieces.erase(static_cast<const char *>(memory)))
        report("NCCL: ncclMemFree of %p, which ncclMemAlloc did not give", memory);
    for (const registration *r : registrations)
        if (r->base == memory)
            report("NCCL: ncclMemFree of memory that is still registered");
    run_until(lock, everything());
    memory_free(memory);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    return register_piece("ncclCommRegister", comm, memory, bytes, false, "no-register", handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return deregister_piece("ncclCommDeregister", comm, handle);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags)
{
    if (flags != NCCL_WIN_COLL_SYMMETRIC)
        report("NCCL: a window that is not symmetric");
    return register_piece("ncclCommWindowRegister", comm, memory, bytes, true, "no-" /* window, register */,
                          reinterpret_cast<void **>(window));
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    return deregister_piece("ncclCommWindowDeregister", comm, window);
}
}
#else
bool emulation::is_of_nccl(const void *)
{
    return false;
}
#endif
