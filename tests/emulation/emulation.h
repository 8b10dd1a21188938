/* SPDX-License-Identifier: Apache-2.0 */
/* emulation.h: the run time of the emulated GPU: its files, and the functions that they share.
 *
 *     emulation_cudart.cc     the functions of the CUDA run time that ztrain calls
 *     emulation_queue.{h,cc}  streams, events, the order of execution, vector clocks
 *     emulation_graph.cc      captures and graphs
 *     emulation_memory.cc     device memory, pinned memory, the handler of bad accesses
 *     emulation_block.cc      a block's threads as fibers; barriers, shuffles, votes, shared memory
 *     emulation_shadow.cc     last writer and reader of every two bytes of memory: races, bad indices, uninitialised reads
 *     emulation_traffic.cc    the bytes that kernels move, counted
 *     emulation_arena.cc      red zones between the pieces of an arena
 *     emulation_cublaslt.cc   matrix products as plain loops
 *     emulation_cudnn.cc      operation graphs, operation by operation
 *     emulation_nccl.cc       collectives between processes, in shared memory
 *     emulation_nvml.cc       NVML's answers
 *     emulation_libraries.cc  a dynamic linker that finds those libraries in the program
 *
 * Work is queued by the cuda… calls and runs later: inside a call that waits, in an order that the program's events and
 * synchronisation allow but a real GPU would hardly choose, or, if the host makes no call for a while, on a thread of
 * the emulation. One lock guards everything, so at most one kernel runs at any time, on one host thread. A mistake of
 * the program ends the process: report() prints the mistake, its place and the operations involved, and exits with
 * EXIT_REPORT.
 *
 * Environment: ZTRAIN_EMULATION_ORDER = lazy, starve, random or eager (default: lazy) and ZTRAIN_EMULATION_SEED;
 * ZTRAIN_EMULATION_GPUS: the number of GPUs of the machine (1), of which CUDA_VISIBLE_DEVICES (numbers) selects some; a
 * process computes on one of them. ZTRAIN_EMULATION_MEMORY: MiB of each, ZTRAIN_EMULATION_REFUSES=LEAST-MOST: sizes of
 * allocations that fail, ZTRAIN_EMULATION_PINS: bytes that cudaHostRegister() pins; ZTRAIN_EMULATION_MAJOR: the first number of their compute capability (9); ZTRAIN_EMULATION_SMS: the number of their multiprocessors (4);
 * ZTRAIN_EMULATION_STATS=1: counts at exit;
 * ZTRAIN_EMULATION_DRIVER: the CUDA that the driver supports, as 12080 (0: no driver);
 * ZTRAIN_EMULATION_FAILS=CODE@N: from the Nth kernel on, calls return this error of CUDA's, as those of a failed GPU do;
 * ZTRAIN_EMULATION_NO_CAPTURE=1: captures fail, =steps: those of several streams; ZTRAIN_EMULATION_SLOW=NAME or
 * NAME@N,NAME@N,…: the first or Nth call of a function, or opening of a library, takes two seconds; ZTRAIN_EMULATION_FORGETS=FILE:LINE: an event of comm/zero that is left out
 * (forgetful_wait.h). */
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stddef.h>
#include <stdint.h>
#include <string>
#include <vector>

namespace emulation
{
enum { EXIT_REPORT = 98, MAX_STREAMS = 16 };

/* Ends the process with a message, to which the place of the running kernel's thread is added, if a kernel runs. */
[[noreturn]] void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "gpu/x.cu:12" of a code address, as far as it can be found. */
std::string source_line(const void *address);

uint64_t random_bits(void); /* derived from the seed */

/* The identity of the GPU that is current on this thread: its index among the machine's GPUs and the machine's name. */
enum { GPU_ID_BYTES = 16 };
void current_gpu(char id[GPU_ID_BYTES]);
int multiprocessors(void); /* of each GPU */

/* ---- memory (emulation_memory.cc) ---------------------------------------- */

/* All device memory lies in one range of addresses. Programs see it at `base`, where the host may not access it.
 * `alias` is the same memory for the run time itself, always accessible. */
struct device_memory {
    char *base, *alias;
    size_t reserved, total, used;
};
extern device_memory memory;
inline bool is_device(const void *p)
{
    return static_cast<size_t>(static_cast<const char *>(p) - memory.base) < memory.reserved;
}
/* A device address as the run time may access it; host addresses are returned unchanged. */
template <typename T> inline T *open_alias(T *p)
{
    return is_device(p) ? reinterpret_cast<T *>(memory.alias + (reinterpret_cast<uintptr_t>(p) -
                                                                reinterpret_cast<uintptr_t>(memory.base)))
                        : p;
}
cudaError_t memory_new(void **p, size_t bytes);
cudaError_t memory_free(void *p);
/* Memory that a communicator keeps registered for the collectives of graphs must not be freed before the communicator. */
void memory_register(const void *communicator, const void *p);
void memory_unregister(const void *communicator);
void memory_open(void); /* for kernels, until memory_close() */
void memory_close(void);
bool is_of_nccl(const void *p); /* memory of ncclMemAlloc */
/* "byte 12 of allocation 3 (4096 bytes)" */
std::string describe_address(const void *p);
/* Ends the process unless the whole range is device memory of one allocation. */
void check_range(const char *what, const void *p, size_t bytes);

cudaError_t pinned_new(void **p, size_t bytes);
cudaError_t pinned_register(void *p, size_t bytes);
cudaError_t pinned_free(void *p, bool registered);
bool is_pinned(const void *p);
bool crosses_pinned(const void *p, size_t bytes); /* its ends are not in one piece of pinned memory, or in none */
/* A copy between [p, p + bytes) and the device is queued / has been waited for. */
void pinned_close(const void *p, size_t bytes, bool host_may_read);
void pinned_open(const void *p, size_t bytes);
/* The same memory, always accessible. */
void *pinned_alias(void *p);
/* Ends the process unless the operation comes after all earlier ones that conflict with it in pinned memory. */
struct operation;
struct range;
void pinned_order(const operation &op, const range &range);
void copy_bytes(void *to, const void *from, size_t bytes); /* sanitizers do not check it */
uint64_t hash_bytes(const void *p, size_t bytes);

/* ---- blocks (emulation_block.cc) ----------------------------------------- */

struct launch;
void run_grid(const char *name, const launch *arguments, dim3 grid, dim3 block, size_t dynamic_bytes);
extern __thread bool kernel_is_running; /* on this thread */
inline bool kernel_running(void)
{
    return kernel_is_running;
}
std::string describe_thread(void);
bool in_kernel_memory(const void *p); /* a fiber's stack or the launch's arguments */
struct shared_range {
    const char *name;
    char *begin, *end;
};
extern char *shared_arena;
enum { SHARED_ARENA = 1 << 19 };
const std::vector<shared_range> &shared_ranges(void);

/* ---- streams (emulation_queue.cc) ---------------------------------------- */

/* For each stream, the number of its last operation that comes before. */
struct clock_vector {
    uint32_t at[MAX_STREAMS] = {};
    void join(const clock_vector &other);
};

/* A range that an operation reads or writes, for the check of races. Kernels have none: each access is checked. */
struct range {
    const void *p;
    size_t bytes;
    bool write;
};

struct stream_state;
struct operation {
    std::string name;
    int stream;
    uint32_t number;    /* in its stream, from 1 */
    clock_vector after; /* the operations that come before it, and itself */
    std::vector<range> ranges;
    std::function<void()> run;
    std::function<void(std::vector<range> &)> more_ranges; /* called before run(): those that depend on device memory */
    bool kernel = false; /* device memory must be open */
    /* run() is called without the lock, on the thread of host functions, or if `collective` on that of collectives */
    bool on_host_thread = false;
    bool collective = false;
    /* of a captured operation: queues it again, where that takes more than run() */
    std::function<void(std::unique_lock<std::mutex> &lock, stream_state *stream)> again;
};

extern std::mutex big_lock;
typedef std::unique_lock<std::mutex> guard;

/* ---- shadow (emulation_shadow.cc) ---------------------------------------- */

void shadow_allocated(const void *p, size_t bytes, size_t slack); /* uninitialised; the slack after it is out of bounds */
void shadow_freed(const void *p, size_t bytes);
void shadow_red_zone(const void *p, size_t bytes, bool on); /* within an allocation */
/* Later accesses belong to this operation; to its next block; to the time after its next barrier. */
void shadow_operation(const operation &op);
void shadow_block(void);
void shadow_barrier(void);
void shadow_warp_barrier(unsigned warp);
void shadow_fence(void);
void shadow_atomic(const void *p, size_t bytes);
void shadow_range(const operation &op, const range &range);
void shadow_shared(const void *p, size_t bytes); /* uninitialised in this block */
extern unsigned current_thread;                  /* in its block */

/* ---- counts -------------------------------------------------------------- */
struct counts {
    uint64_t kernels, copies, products, waits, host_functions, collectives, checked;
    /* NCCL's: registrations; collectives in windows, on copy engines; groups of several, and collectives in them; bytes
       that ncclSend has sent */
    uint64_t registered, deregistered, in_windows, on_engines, groups, in_groups, to_peers;
};
extern counts stats;
} // namespace emulation
