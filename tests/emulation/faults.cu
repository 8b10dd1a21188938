/* SPDX-License-Identifier: Apache-2.0 */
/* faults.cu: programs with one planted mistake each, which the emulation must catch: faults NAME [--right].
 *
 * With --right the same program runs without the mistake and must succeed, which proves that the mistake is what is
 * caught. The names and the expected messages are in test_faults.py. */
#include "gpu/cuda/cuda_launch.h"

extern "C" {
#include "gpu/arena.h"
}
#include "tests/emulation/emulation_traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vector>

namespace
{
enum { N = 256 };
bool fault;
std::vector<float> host(N);

void check(cudaError_t code)
{
    if (code != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(code));
        exit(1);
    }
}

#define LAUNCH(kernel, stream, ...) check(CUDA_LAUNCH("fault", kernel, 2, N, 0, stream, __VA_ARGS__))

float *device_floats(size_t n, bool clear = true)
{
    void *p = nullptr;
    check(cudaMalloc(&p, n * sizeof(float)));
    if (clear)
        check(cudaMemset(p, 0, n * sizeof(float)));
    check(cudaDeviceSynchronize());
    return static_cast<float *>(p);
}

cudaStream_t new_stream(void)
{
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* ---- kernels ------------------------------------------------------------- */

__global__ void set(float *p, float value)
{
    if (blockIdx.x == 0)
        p[threadIdx.x] = value;
}

__global__ void add_one(float *p, const float *from)
{
    if (blockIdx.x == 0)
        p[threadIdx.x] = from[threadIdx.x] + 1;
}

/* to = from + 1; a bad kernel reads and writes everything twice, a barrier apart. */
__global__ void add_one_twice(float *to, const float *from, bool bad)
{
    for (int times = bad ? 2 : 1; times > 0; times--) {
        if (blockIdx.x == 0)
            to[threadIdx.x] = from[threadIdx.x] + 1;
        __syncthreads();
    }
}

__global__ void block_reverse(float *p, bool bad)
{
    SHARED(float, row, [N]);
    row[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (!bad)
        __syncthreads();
    if (blockIdx.x == 0)
        p[threadIdx.x] = row[N - 1 - threadIdx.x];
}

/* The second round's write comes without a barrier after the first round's reads. */
__global__ void block_rounds(float *p, bool bad)
{
    SHARED(float, row, [N]);
    for (int round = 0; round < 2; round++) {
        row[threadIdx.x] = static_cast<float>(round);
        __syncthreads();
        if (blockIdx.x == 0)
            p[threadIdx.x] = row[(threadIdx.x + 32) % N];
        if (!bad)
            __syncthreads();
    }
}

__global__ void warp_reverse(float *p, bool bad)
{
    SHARED(float, row, [N]);
    row[threadIdx.x] = 1;
    if (!bad)
        __syncwarp();
    if (blockIdx.x == 0)
        p[threadIdx.x] = row[threadIdx.x ^ 31];
}

__global__ void divergent(float *p, bool bad)
{
    if (!bad || threadIdx.x < N / 2)
        __syncthreads();
    if (blockIdx.x == 0)
        p[threadIdx.x] = 1;
}

__global__ void divergent_branches(float *p, bool bad)
{
    if (bad && threadIdx.x % 64 < 32) {
        p[threadIdx.x] = 1;
        __syncthreads();
    } else {
        __syncthreads();
    }
}

__global__ void shuffle_after_exit(float *p, bool bad)
{
    if (bad && threadIdx.x % 32 == 5)
        return;
    float x = __shfl_xor_sync(0xffffffffu, static_cast<float>(threadIdx.x), 1);
    if (blockIdx.x == 0)
        p[threadIdx.x] = x;
}

__global__ void global_index(float *p, int n)
{
    int i = static_cast<int>(blockIdx.x * N + threadIdx.x);
    if (i <= n)
        p[i] = 1;
}

__global__ void shared_index(float *p, int shift)
{
    SHARED(float, before, [N]);
    SHARED(float, row, [N]);
    float *shifted = row + shift;
    before[threadIdx.x] = 0;
    shifted[threadIdx.x] = before[threadIdx.x];
    if (blockIdx.x == 0)
        p[threadIdx.x] = 0;
}

__global__ void dynamic_index(float *p, int shift)
{
    DYN_SHARED(float, row);
    row[static_cast<int>(threadIdx.x) + shift] = 1;
    if (blockIdx.x == 0)
        p[threadIdx.x] = 0;
}

__global__ void between_blocks(float *p, bool bad)
{
    if (bad || blockIdx.x == 0)
        p[threadIdx.x] = 1;
}

__global__ void misaligned(float *p, int shift)
{
    if (blockIdx.x == 0 && threadIdx.x < 8)
        reinterpret_cast<float4 *>(p + shift)[threadIdx.x] = reinterpret_cast<const float4 *>(p + 64)[threadIdx.x];
}

__global__ void counted(float *p, unsigned *count, bool bad)
{
    if (bad)
        *count = *count + 1;
    else
        atomicAdd(count, 1u);
    if (blockIdx.x == 0)
        p[threadIdx.x] = 0;
}

/* ---- programs: p is device memory of N zeroed floats --------------------- */

void run_barrier(float *p)
{
    LAUNCH(block_reverse, nullptr, p, fault);
}

void run_barrier_rounds(float *p)
{
    LAUNCH(block_rounds, nullptr, p, fault);
}

void run_warp_barrier(float *p)
{
    LAUNCH(warp_reverse, nullptr, p, fault);
}

void run_divergent(float *p)
{
    LAUNCH(divergent, nullptr, p, fault);
}

void run_divergent_branches(float *p)
{
    check(CUDA_LAUNCH("fault", divergent_branches, 1, N, 0, nullptr, p, fault));
}

void run_shuffle_after_exit(float *p)
{
    LAUNCH(shuffle_after_exit, nullptr, p, fault);
}

void run_global_index(float *p)
{
    LAUNCH(global_index, nullptr, p, fault ? N : N - 1);
}

void run_arena_index(float *p)
{
    struct arena arena;
    arena_init(&arena, p, N * sizeof(float));
    float *piece = static_cast<float *>(arena_take(&arena, MEM_DATA, 32 * sizeof(float)));
    LAUNCH(global_index, nullptr, piece, fault ? 32 : 31);
    check(cudaDeviceSynchronize());
    arena_init(&arena, p, N * sizeof(float)); /* the earlier red zones are gone */
    LAUNCH(set, nullptr, p, 1.0f);
}

void run_shared_index(float *p)
{
    LAUNCH(shared_index, nullptr, p, fault ? 1 : 0);
}

void run_dynamic_index(float *p)
{
    check(CUDA_LAUNCH("fault", dynamic_index, 2, N, N * sizeof(float), nullptr, p, fault ? -1 : 0));
}

void run_between_blocks(float *p)
{
    LAUNCH(between_blocks, nullptr, p, fault);
}

void run_misaligned(float *p)
{
    LAUNCH(misaligned, nullptr, p, fault ? 1 : 0);
}

void run_no_atomic(float *p)
{
    unsigned *count;
    check(cudaMalloc(reinterpret_cast<void **>(&count), sizeof *count));
    check(cudaMemset(count, 0, sizeof *count));
    LAUNCH(counted, nullptr, p, count, fault);
    check(cudaFree(count));
}

void run_host_pointer(float *p)
{
    LAUNCH(add_one, nullptr, p, fault ? host.data() : p);
}

void run_host_touch(float *p)
{
    LAUNCH(set, nullptr, p, 1.0f);
    check(cudaDeviceSynchronize());
    if (fault) {
        volatile float got = p[3];
        host[0] = got;
    }
}

void run_uninitialised(float *p)
{
    float *fresh = device_floats(N, !fault);
    LAUNCH(add_one, nullptr, p, fresh);
    check(cudaFree(fresh));
}

void run_freed(float *p)
{
    float *from = device_floats(N);
    if (fault)
        check(cudaFree(from));
    LAUNCH(add_one, nullptr, p, from);
    if (!fault)
        check(cudaFree(from));
}

/* One stream writes what another reads. */
void run_event(float *p)
{
    cudaStream_t a = new_stream(), b = new_stream();
    float *q = device_floats(N);
    cudaEvent_t written;
    check(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    LAUNCH(set, a, q, 1.0f);
    check(cudaEventRecord(written, a));
    if (!fault)
        check(cudaStreamWaitEvent(b, written, 0));
    LAUNCH(add_one, b, p, q);
    check(cudaStreamSynchronize(b));
    check(cudaFree(q));
    check(cudaEventDestroy(written));
    check(cudaStreamDestroy(a));
    check(cudaStreamDestroy(b));
}

/* One stream overwrites what another one still reads. */
void run_event_overwrite(float *p)
{
    cudaStream_t a = new_stream(), b = new_stream();
    float *q = device_floats(N);
    cudaEvent_t read;
    check(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    LAUNCH(add_one, a, p, q);
    check(cudaEventRecord(read, a));
    if (!fault)
        check(cudaStreamWaitEvent(b, read, 0));
    check(cudaMemsetAsync(q, 1, N * sizeof(float), b));
    check(cudaDeviceSynchronize());
    check(cudaFree(q));
    check(cudaEventDestroy(read));
    check(cudaStreamDestroy(a));
    check(cudaStreamDestroy(b));
}

/* The event is recorded before the work that it should mark. */
void run_event_early(float *p)
{
    cudaStream_t a = new_stream(), b = new_stream();
    float *q = device_floats(N);
    cudaEvent_t written;
    check(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    if (fault)
        check(cudaEventRecord(written, a));
    LAUNCH(set, a, q, 1.0f);
    if (!fault)
        check(cudaEventRecord(written, a));
    check(cudaStreamWaitEvent(b, written, 0));
    check(cudaMemcpyAsync(p, q, N * sizeof(float), cudaMemcpyDeviceToDevice, b));
    check(cudaDeviceSynchronize());
    check(cudaFree(q));
    check(cudaEventDestroy(written));
    check(cudaStreamDestroy(a));
    check(cudaStreamDestroy(b));
}

/* ---- graphs: two streams, q between them --------------------------------- */

struct capturing {
    cudaStream_t a, b;
    cudaEvent_t forked, joined;
    float *q;
};

struct capturing begin_capture(void)
{
    struct capturing c = {new_stream(), new_stream(), nullptr, nullptr, device_floats(N)};
    check(cudaEventCreateWithFlags(&c.forked, cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&c.joined, cudaEventDisableTiming));
    check(cudaStreamBeginCapture(c.a, cudaStreamCaptureModeThreadLocal));
    return c;
}

void join(const struct capturing *c)
{
    check(cudaEventRecord(c->joined, c->b));
    check(cudaStreamWaitEvent(c->a, c->joined, 0));
}

cudaGraphExec_t launch_twice(const struct capturing *c)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamEndCapture(c->a, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    check(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++)
        check(cudaGraphLaunch(executable, c->a));
    return executable;
}

void release(const struct capturing *c, cudaGraphExec_t executable)
{
    check(cudaDeviceSynchronize());
    check(cudaGraphExecDestroy(executable));
    check(cudaFree(c->q));
    check(cudaEventDestroy(c->forked));
    check(cudaEventDestroy(c->joined));
    check(cudaStreamDestroy(c->a));
    check(cudaStreamDestroy(c->b));
}

void end_capture(const struct capturing *c)
{
    release(c, launch_twice(c));
}

/* The other stream joins the capture before the work that it should come after. */
void run_graph_event(float *p)
{
    struct capturing c = begin_capture();
    if (fault)
        check(cudaEventRecord(c.forked, c.a));
    LAUNCH(set, c.a, c.q, 1.0f);
    if (!fault)
        check(cudaEventRecord(c.forked, c.a));
    check(cudaStreamWaitEvent(c.b, c.forked, 0));
    LAUNCH(add_one, c.b, p, c.q);
    join(&c);
    end_capture(&c);
}

void run_graph_unjoined(float *p)
{
    struct capturing c = begin_capture();
    LAUNCH(set, c.a, c.q, 1.0f);
    check(cudaEventRecord(c.forked, c.a));
    check(cudaStreamWaitEvent(c.b, c.forked, 0));
    LAUNCH(add_one, c.b, p, c.q);
    if (!fault)
        join(&c);
    end_capture(&c);
}

/* Work outside the graph that is not ordered with its launch. */
void run_graph_outside(float *p)
{
    struct capturing c = begin_capture();
    LAUNCH(set, c.a, c.q, 1.0f);
    cudaGraphExec_t executable = launch_twice(&c);
    if (!fault) {
        check(cudaEventRecord(c.forked, c.a));
        check(cudaStreamWaitEvent(c.b, c.forked, 0));
    }
    LAUNCH(add_one, c.b, p, c.q);
    release(&c, executable);
}

/* An event that was recorded before the capture. */
void run_graph_isolation(float *p)
{
    struct capturing c = begin_capture();
    check(cudaEventRecord(c.forked, c.b));
    if (fault)
        check(cudaStreamWaitEvent(c.a, c.forked, 0));
    LAUNCH(set, c.a, p, 1.0f);
    end_capture(&c);
}

void run_graph_waits(float *p)
{
    struct capturing c = begin_capture();
    LAUNCH(set, c.a, p, 1.0f);
    if (fault)
        check(cudaStreamSynchronize(c.a));
    end_capture(&c);
}

void *pinned_page(void)
{
    void *p;
    check(cudaHostAlloc(&p, 8192, cudaHostAllocDefault));
    memset(p, 0, 8192);
    return p;
}

void run_pinned_read_early(float *p)
{
    cudaStream_t a = new_stream();
    float *big = device_floats(2048), *pinned = static_cast<float *>(pinned_page());
    check(cudaMemcpyAsync(pinned, big, 8192, cudaMemcpyDeviceToHost, a));
    if (!fault)
        check(cudaStreamSynchronize(a));
    host[0] = pinned[7];
    check(cudaStreamSynchronize(a));
    LAUNCH(set, nullptr, p, host[0]);
    check(cudaFreeHost(pinned));
    check(cudaFree(big));
    check(cudaStreamDestroy(a));
}

/* Memory of the host through which values pass from one copy to the next. */
void run_pinned_between_copies(float *p)
{
    (void)p;
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t down;
    check(cudaEventCreateWithFlags(&down, cudaEventDisableTiming));
    float *big = device_floats(2048), *pinned = static_cast<float *>(pinned_page());
    check(cudaMemcpyAsync(pinned, big, 8192, cudaMemcpyDeviceToHost, a));
    check(cudaEventRecord(down, a));
    if (!fault)
        check(cudaStreamWaitEvent(b, down, 0));
    check(cudaMemcpyAsync(big, pinned, 8192, cudaMemcpyHostToDevice, b));
    check(cudaDeviceSynchronize());
    check(cudaEventDestroy(down));
    check(cudaFreeHost(pinned));
    check(cudaFree(big));
    check(cudaStreamDestroy(a));
    check(cudaStreamDestroy(b));
}

void run_pinned_written_early(float *p)
{
    cudaStream_t a = new_stream();
    float *big = device_floats(2048), *pinned = static_cast<float *>(pinned_page());
    check(cudaMemcpyAsync(big, pinned, 8192, cudaMemcpyHostToDevice, a));
    if (!fault)
        check(cudaStreamSynchronize(a));
    pinned[7] = 1;
    check(cudaStreamSynchronize(a));
    LAUNCH(set, nullptr, p, 1.0f);
    check(cudaFreeHost(pinned));
    check(cudaFree(big));
    check(cudaStreamDestroy(a));
}

void run_pageable_written_early(float *p)
{
    cudaStream_t a = new_stream();
    check(cudaMemcpyAsync(p, host.data(), N * sizeof(float), cudaMemcpyHostToDevice, a));
    if (!fault)
        check(cudaStreamSynchronize(a));
    host[0] = 5;
    check(cudaStreamSynchronize(a));
    check(cudaStreamDestroy(a));
}

/* The value that is read too early is not the final one. */
void run_pageable_read_early(float *p)
{
    cudaStream_t a = new_stream();
    check(cudaMemcpyAsync(host.data(), p, N * sizeof(float), cudaMemcpyDeviceToHost, a));
    if (!fault)
        check(cudaStreamSynchronize(a));
    if (!(host[0] == 0)) {
        fprintf(stderr, "the result is not a number\n");
        _exit(98);
    }
    check(cudaStreamSynchronize(a));
    check(cudaStreamDestroy(a));
}

void touch_device(void *p)
{
    *static_cast<volatile float *>(p) = 1;
}

void touch_host(void *)
{
    host[0] = 1;
}

void run_host_function_touches(float *p)
{
    check(cudaLaunchHostFunc(nullptr, fault ? touch_device : touch_host, p));
}

void call_cuda(void *p)
{
    cudaFree(p);
}

void run_host_function_calls(float *)
{
    check(cudaLaunchHostFunc(nullptr, fault ? call_cuda : touch_host, nullptr));
}

void run_leak(float *)
{
    float *q = device_floats(N);
    if (!fault)
        check(cudaFree(q));
}

void run_copy_too_long(float *p)
{
    std::vector<float> from(N + 1);
    check(cudaMemcpy(p, from.data(), (N + (fault ? 1 : 0)) * sizeof(float), cudaMemcpyHostToDevice));
}

/* Not a mistake that ends a program by itself: the bytes that are counted show it. */
void run_bytes_twice(float *p)
{
    const double floor = 2.0 * N * sizeof(float);
    struct emulation_traffic traffic;
    float *q = device_floats(N);
    emulation_traffic_begin();
    LAUNCH(add_one_twice, nullptr, q, p, fault);
    check(cudaDeviceSynchronize());
    emulation_traffic_end(&traffic);
    check(cudaFree(q));
    if (traffic.moved == 0) /* the build without a shadow counts nothing */
        return;
    fprintf(stderr, "moved %g, touched %g, shared %g\n", traffic.moved / floor, traffic.touched / floor,
            traffic.shared / floor);
    if (traffic.moved != floor)
        exit(1);
}

struct program {
    const char *name;
    void (*run)(float *p);
};
const program programs[] = {
    {"barrier", run_barrier},
    {"barrier-rounds", run_barrier_rounds},
    {"warp-barrier", run_warp_barrier},
    {"divergent", run_divergent},
    {"divergent-branches", run_divergent_branches},
    {"shuffle-after-exit", run_shuffle_after_exit},
    {"global-index", run_global_index},
    {"arena-index", run_arena_index},
    {"shared-index", run_shared_index},
    {"dynamic-index", run_dynamic_index},
    {"between-blocks", run_between_blocks},
    {"misaligned", run_misaligned},
    {"no-atomic", run_no_atomic},
    {"host-pointer", run_host_pointer},
    {"host-touch", run_host_touch},
    {"uninitialised", run_uninitialised},
    {"freed", run_freed},
    {"event", run_event},
    {"event-overwrite", run_event_overwrite},
    {"event-early", run_event_early},
    {"graph-event", run_graph_event},
    {"graph-unjoined", run_graph_unjoined},
    {"graph-outside", run_graph_outside},
    {"graph-isolation", run_graph_isolation},
    {"graph-waits", run_graph_waits},
    {"pinned-read-early", run_pinned_read_early},
    {"pinned-written-early", run_pinned_written_early},
    {"pinned-between-copies", run_pinned_between_copies},
    {"pageable-read-early", run_pageable_read_early},
    {"pageable-written-early", run_pageable_written_early},
    {"host-function-touches", run_host_function_touches},
    {"host-function-calls", run_host_function_calls},
    {"leak", run_leak},
    {"copy-too-long", run_copy_too_long},
    {"bytes-twice", run_bytes_twice},
};
} // namespace

int main(int argc, char **argv)
{
    for (const program &program : programs) {
        if (argc < 2 || strcmp(program.name, argv[1]) != 0)
            continue;
        fault = argc == 2;
        float *p = device_floats(N);
        program.run(p);
        check(cudaDeviceSynchronize());
        check(cudaFree(p));
        return 0;
    }
    for (const program &program : programs)
        puts(program.name);
    return 2;
}
