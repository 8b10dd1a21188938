/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_kernels.cuh: shared by the kernels of ops_cuda_*.cu: 16-byte accesses, conversions, grids, sums over threads.
 * Kernels are templates over the element type T (float, __nv_bfloat16, __half) and the elements V of one access: 16
 * bytes where every address allows it, else one element. Arithmetic is fp32. A thread reads what it overwrites first,
 * and nothing is __restrict__: outputs may lie over inputs (ops.h). The order of sums depends on shapes only. */
#pragma once

#include "core/round_up.h"
#include "gpu/cuda/cuda_launch.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/ops_cuda.h"

#include <algorithm>

/* Calls launch(T()) for the element type T of a dtype. */
template <typename Launch> void dispatch(enum dtype dtype, Launch launch)
{
    switch (dtype) {
    case DTYPE_F32: launch(float()); break;
    case DTYPE_BF16: launch(__nv_bfloat16()); break;
    case DTYPE_F16: launch(__half()); break;
    default: BUG("no kernel for the dtype %d", static_cast<int>(dtype));
    }
}

/* The same for gradients and states: fp32 or bf16. */
template <typename Launch> void dispatch_state(enum dtype dtype, Launch launch)
{
    if (dtype == DTYPE_F32)
        launch(float());
    else
        launch(__nv_bfloat16());
}

/* Launches a kernel without dynamic shared memory on a `struct stream`; `what` names it in errors. */
#define LAUNCH(stream, what, kernel, grid, block, ...) \
    cuda_check(cuda_device_of(stream),                 \
               CUDA_LAUNCH(what, kernel, grid, block, 0, cuda_stream_of(stream)->handle, __VA_ARGS__), what)

/* The same for a kernel with `bytes` of dynamic shared memory. */
#define LAUNCH_SHARED(stream, what, kernel, grid, block, bytes, ...)                                               \
    do {                                                                                                           \
        if (cuda_check(cuda_device_of(stream), CUDA_ALLOW_DYN_SHARED(kernel, bytes), what))                        \
            cuda_check(cuda_device_of(stream),                                                                     \
                       CUDA_LAUNCH(what, kernel, grid, block, bytes, cuda_stream_of(stream)->handle, __VA_ARGS__), \
                       what);                                                                                      \
    } while (0)

/* ---- elements ------------------------------------------------------------ */

/* Elements of a 16-byte access. */
template <typename T> constexpr int VECTOR = static_cast<int>(16 / sizeof(T));

template <typename T, int N> struct alignas(N * sizeof(T)) pack {
    T at[N];
};

__device__ __forceinline__ float to_float(float x)
{
    return x;
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

/* Rounds to nearest even. */
__device__ __forceinline__ void from_float(float x, float *to)
{
    *to = x;
}

__device__ __forceinline__ void from_float(float x, __nv_bfloat16 *to)
{
    *to = __float2bfloat16_rn(x);
}

__device__ __forceinline__ void from_float(float x, __half *to)
{
    *to = __float2half_rn(x);
}

template <typename T> __device__ __forceinline__ T rounded(float x)
{
    T y;
    from_float(x, &y);
    return y;
}

/* One access: N elements of at most 16 bytes, aligned to that. */
template <int N, typename T> __device__ __forceinline__ struct pack<T, N> load_pack(const T *from) {
    return *reinterpret_cast<const pack<T, N> *>(from);
}

template <int N, typename T>
__device__ __forceinline__ void store_pack(T *to, const struct pack<T, N> &from)
{
    *reinterpret_cast<pack<T, N> *>(to) = from;
}

/* Holds a vector that is used again in its 16 bytes: the compiler might hold each element in a register. */
template <int N, typename T> __device__ __forceinline__ void keep_packed(struct pack<T, N> *vector)
{
#ifdef __CUDA_ARCH__
    if constexpr (sizeof *vector == 16) {
        uint4 *words = reinterpret_cast<uint4 *>(vector);
        asm volatile("" : "+r"(words->x), "+r"(words->y), "+r"(words->z), "+r"(words->w));
    }
#else
    (void)vector;
#endif
}

/* Elements of one access where N elements are accessed in several. */
template <typename T, int N> constexpr int ACCESS = N < VECTOR<T> ? N : VECTOR<T>;

/* N elements, `from` aligned to min(16 bytes, N elements) */
template <int N, typename T> __device__ __forceinline__ void load(const T *from, float (&to)[N])
{
    constexpr int P = ACCESS<T, N>;
#pragma unroll
    for (int i = 0; i < N; i += P) {
        pack<T, P> part = load_pack<P>(from + i);
#pragma unroll
        for (int j = 0; j < P; j++) to[i + j] = to_float(part.at[j]);
    }
}

template <int N, typename T> __device__ __forceinline__ void store(T *to, const float (&from)[N])
{
    constexpr int P = ACCESS<T, N>;
#pragma unroll
    for (int i = 0; i < N; i += P) {
        pack<T, P> part;
#pragma unroll
        for (int j = 0; j < P; j++) from_float(from[i + j], &part.at[j]);
        store_pack(to + i, part);
    }
}

__device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* What gelu_tanh(x) = x · share multiplies x by, and its derivative. */
struct gelu_parts {
    float share, derivative;
};

__device__ __forceinline__ struct gelu_parts gelu_of(float x)
{
    constexpr float SCALE = 0.7978845608028654f, CUBIC = 0.044715f; /* sqrt(2 / pi) */
    const float t = tanhf(SCALE * fmaf(CUBIC * x * x, x, x)), inner = SCALE * fmaf(3.0f * CUBIC * x, x, 1.0f);
    const float share = 0.5f * (1.0f + t);
    return {share, share + 0.5f * x * (1.0f - t * t) * inner};
}

/* ---- grids --------------------------------------------------------------- */

static inline uintptr_t bits_of_address(const void *address)
{
    return reinterpret_cast<uintptr_t>(address);
}

static inline uintptr_t bits_of_address(int64_t bytes)
{
    return static_cast<uintptr_t>(bytes);
}

/* Whether all addresses (NULL counts as one) and all distances in bytes are multiples of 16. */
template <typename... Addresses> static inline bool aligned16(Addresses... addresses)
{
    return ((bits_of_address(addresses) | ...) & 15u) == 0;
}

/* Blocks for the work of `wanted` blocks: at least 1, at most per_sm for each multiprocessor (blocks loop). */
static inline unsigned grid_of(const struct stream *stream, int64_t wanted, int per_sm)
{
    int64_t most = static_cast<int64_t>(cuda_device_of(stream)->sm_count) * per_sm;
    return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* The smallest of 1, 2, 4 … 32, or else multiple of 32, that is not less than n. */
static inline unsigned threads_for(int64_t n)
{
    unsigned threads = 1;
    while (threads < WARP_SIZE && threads < n) threads *= 2;
    return threads < n ? static_cast<unsigned>(ceil_div(n, WARP_SIZE) * WARP_SIZE) : threads;
}

/* This thread's index in the grid, and the number of threads; along x. */
__device__ __forceinline__ int64_t grid_thread()
{
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t grid_threads()
{
    return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

/* The elements of n that whole vectors of V hold; `aligned`: vectors may be accessed. */
template <int V> static inline int64_t whole_vectors(int64_t n, bool aligned)
{
    return aligned ? n / V * V : 0;
}

template <int N> struct width {
    static constexpr int value = N;
};

/* Calls visit(width<V>, i) for each vector of V of the first `whole` elements, then visit(width<1>, i) for the rest. */
template <int V, typename Visit> __device__ __forceinline__ void each_element(int64_t n, int64_t whole, Visit visit)
{
    for (int64_t i = grid_thread() * V; i < whole; i += grid_threads() * V) visit(width<V>(), i);
    for (int64_t i = whole + grid_thread(); i < n; i += grid_threads()) visit(width<1>(), i);
}

/* Blocks of ELEMENT_THREADS threads for n elements in vectors of V. */
enum { ELEMENT_THREADS = 256 };
static inline unsigned grid_of_elements(const struct stream *stream, int64_t n, int V)
{
    return grid_of(stream, ceil_div(n, ELEMENT_THREADS * V), 8);
}

/* Launches a kernel of ELEMENT_THREADS threads that visits n elements by each_element<V>(): (args, whole). */
template <int V, typename Args>
void launch_elements(struct stream *stream, const char *what, void (*kernel)(Args, int64_t), const Args &args,
                     int64_t n, bool aligned)
{
    if (n > 0)
        LAUNCH(stream, what, kernel, grid_of_elements(stream, n, V), ELEMENT_THREADS, args,
               whole_vectors<V>(n, aligned));
}

template <int N> struct floats {
    float at[N];
};

template <int N, typename T> __device__ __forceinline__ struct floats<N> load_floats(const T *from) {
    floats<N> x;
    load(from, x.at);
    return x;
}

namespace
{
    template <int V, typename To, typename F, typename... From>
    __global__ void __launch_bounds__(ELEMENT_THREADS, 6)
        map_kernel(To * to, F f, int64_t n, int64_t whole, From... from)
    {
        each_element<V>(n, whole, [&](auto width, int64_t i) {
            constexpr int N = decltype(width)::value;
            float y[N];
            auto compute = [&](auto... x) {
#pragma unroll
                for (int v = 0; v < N; v++) y[v] = f(x.at[v]...);
            };
            compute(load_floats<N>(from + i)...);
            store(to + i, y);
        });
    }
} // namespace

/* to[i] = f(from[i]…), n elements; f computes in fp32. Vectors are 16 bytes of the narrowest type. */
template <typename To, typename F, typename... From>
void map_elements(struct stream *stream, const char *what, int64_t n, To *to, F f, const From *...from)
{
    constexpr int V = std::max({VECTOR<To>, VECTOR<From>...});
    if (n > 0)
        LAUNCH(stream, what, (map_kernel<V, To, F, const From *...>), grid_of_elements(stream, n, V), ELEMENT_THREADS,
               to, f, n, whole_vectors<V>(n, aligned16(to, from...)), from...);
}

struct sum_of {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

/* Calls visit(row, column) for each vector of V columns of a table; the grid's threads walk side by side, and only the
 * start divides. */
template <int V, typename Visit> __device__ __forceinline__ void each_in_table(int64_t rows, int64_t width, Visit visit)
{
    const int columns = static_cast<int>(width / V);
    const int64_t step_rows = grid_threads() / columns;
    const int step = static_cast<int>(grid_threads() - step_rows * columns);
    int64_t row = grid_thread() / columns;
    int column = static_cast<int>(grid_thread() - row * columns);
    while (row < rows) {
        visit(row, static_cast<int64_t>(column) * V);
        row += step_rows;
        column += step;
        if (column >= columns) {
            column -= columns;
            row++;
        }
    }
}

/* Launches the kernel for vectors of 16 bytes if they are aligned, else that for single elements, on a table of n
 * elements. */
template <typename T, typename Args>
void launch_table(struct stream *stream, const char *what, void (*vectors)(Args), void (*elements)(Args),
                  const Args &args, int64_t n, bool aligned)
{
    if (n > 0)
        LAUNCH(stream, what, (aligned ? vectors : elements), grid_of_elements(stream, n, aligned ? VECTOR<T> : 1),
               ELEMENT_THREADS, args);
}

/* ---- the stream's workspace ---------------------------------------------- */

struct cuda_scratch {
    char *next;
    size_t left;
};

static inline struct cuda_scratch cuda_scratch_of(const struct stream *stream)
{
    struct cuda_scratch scratch;
    scratch.next = static_cast<char *>(stream_workspace(stream, &scratch.left));
    return scratch;
}

/* n elements of T, 64-byte aligned at least */
template <typename T> static inline T *cuda_scratch_take(struct cuda_scratch *scratch, int64_t n)
{
    size_t bytes = cuda_scratch_size(static_cast<size_t>(n) * sizeof(T));
    ASSERT(bytes <= scratch->left); /* cuda_workspace_bytes() counts it */
    char *piece = scratch->next;
    scratch->next += bytes;
    scratch->left -= bytes;
    return reinterpret_cast<T *>(piece);
}

/* ---- sums over threads --------------------------------------------------- */

__device__ __forceinline__ int lane_of_warp()
{
    return static_cast<int>(threadIdx.x % WARP_SIZE);
}

/* Every lane gets the sum over its group of `lanes` neighbours (a power of two); whole warps call it. */
template <typename T> __device__ __forceinline__ T sum_over_lanes(T x, int lanes)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

/* Every thread of a block of THREADS gets the sum of x over it. */
template <int THREADS, typename T> __device__ __forceinline__ T block_sum(T x, T *slots)
{
    x = sum_over_lanes(x, WARP_SIZE);
    if (threadIdx.x % WARP_SIZE == 0) slots[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < THREADS / WARP_SIZE; warp++) x += slots[warp];
    return x;
}

__device__ __forceinline__ float max_over_lanes(float x)
{
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}
