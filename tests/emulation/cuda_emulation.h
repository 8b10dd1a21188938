/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_emulation.h: CUDA C++ for a host compiler, included by gpu/cuda/cuda_launch.h in the emulation.
 *
 * It has what nvcc gives a .cu file: the built-in variables, barriers, shuffles and votes, integer atomics, shared
 * memory, and the intrinsics that CUDA's headers lack on the host. The functions call the run time (emulation.h), where
 * a block's threads are fibers and work is queued on streams. Missing on purpose: atomics on floats (results would not
 * repeat), __activemask, inline PTX. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif

#define ZTRAIN_SM90A 1 /* the emulated GPUs have wgmma */

/* ---- what the run time offers -------------------------------------------- */

namespace emulation
{
/* The thread that runs now. */
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

/* A kernel's launch: its arguments by value, and the call of the kernel by one thread. */
struct launch {
    virtual ~launch() = default;
    virtual void run_thread() const = 0;
    size_t bytes; /* of the object: kernels may read their arguments in it */
};
/* Takes the launch over. */
cudaError_t launch_kernel(const char *what, const char *name, const void *kernel, launch *arguments, dim3 grid,
                          dim3 block, size_t dynamic_bytes, cudaStream_t stream);

enum barrier_kind { BARRIER_BLOCK, BARRIER_OR, BARRIER_AND, BARRIER_COUNT };
int barrier_block(barrier_kind kind, int predicate, const char *file, int line);
void barrier_warp(unsigned mask, const char *file, int line);
/* Every lane of `mask` contributes 8 bytes and gets those of `source(lane)`; as on the GPU, this is not a memory
 * barrier. */
enum exchange_kind { EXCHANGE_IDX, EXCHANGE_UP, EXCHANGE_DOWN, EXCHANGE_XOR };
uint64_t exchange(exchange_kind kind, unsigned mask, uint64_t value, int operand, int width, const char *file,
                  int line);
unsigned ballot(unsigned mask, int predicate, const char *file, int line);
void fence(void);

struct shared_place {
    const char *name, *file;
    int line;
    uint64_t serial; /* of the block that `memory` is of */
    void *memory;
};
void *shared_memory(shared_place *place, size_t bytes);
void *dynamic_shared_memory(void);
enum atomic_kind { ATOMIC_ADD, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_EXCHANGE, ATOMIC_MAX, ATOMIC_MIN, ATOMIC_CAS };
/* Returns the old value. `compare` is for ATOMIC_CAS. */
uint64_t atomic_update(atomic_kind kind, void *address, size_t bytes, bool is_signed, uint64_t value, uint64_t compare,
                       const char *file, int line);
void trap(const char *file, int line);

/* PTX's wgmma by its groups of four warps. `what` is an instruction: products wait in a queue of the thread, and the
 * wait for their group computes them, as late as the GPU might. */
extern char *shared_arena;
void wgmma(const char *what);
typedef void wgmma_compute(float *sum, uint64_t a, uint64_t b);
void wgmma_enqueue(wgmma_compute *compute, float *sum, uint64_t a, uint64_t b);

template <typename... Parameters> struct typed_launch final : launch {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
    template <typename... A>
    typed_launch(void (*k)(Parameters...), A &&...a) : kernel(k), arguments(static_cast<Parameters>(a)...)
    {
        bytes = sizeof *this;
    }
    void run_thread() const override
    {
        std::apply(kernel, arguments);
    }
};

template <typename... Parameters, typename... Arguments>
[[nodiscard]] inline cudaError_t launch_typed(const char *what, const char *name, void (*kernel)(Parameters...),
                                              dim3 grid, dim3 block, size_t dynamic_bytes, cudaStream_t stream,
                                              Arguments... arguments)
{
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel takes another number of arguments");
    return launch_kernel(what, name, reinterpret_cast<const void *>(kernel),
                         new typed_launch<Parameters...>(kernel, arguments...), grid, block, dynamic_bytes, stream);
}

template <typename T>
inline T exchange_typed(exchange_kind kind, unsigned mask, T value, int operand, int width, const char *file, int line)
{
    static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "no shuffle of this type on the GPU");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(kind, mask, bits, operand, width, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The place of an element in shared_arena by PTX's "Matrix Descriptor Format" and "Shared Memory Matrix Layout", of a
 * matrix of 16-bit elements whose k-rows have the other dimension side by side: "leading" lies between chunks of 128
 * bytes, "stride" between eight k-rows. The swizzle of 128 bytes exchanges bits 4-6 of an address by bits 7-9. */
inline size_t wgmma_address(uint64_t matrix, unsigned k, unsigned side)
{
    const size_t begin = (matrix & 0x3fff) << 4, leading = (matrix >> 16 & 0x3fff) << 4,
                 stride = (matrix >> 32 & 0x3fff) << 4;
    const size_t at = begin + side / 64 * leading + k / 8 * stride + k % 8 * 128 + side % 64 * 2;
    return at ^ (at >> 7 & 7) << 4;
}
template <typename T> inline T wgmma_element(uint64_t matrix, unsigned k, unsigned side)
{
    return *reinterpret_cast<const T *>(shared_arena + wgmma_address(matrix, k, side));
}
/* What a thread computes of m64n256k16: sum holds 64 columns of each of its two rows, two neighbours at a time. */
template <typename T> inline void wgmma_thread(float *sum, uint64_t a, uint64_t b)
{
    struct alignas(4) pair {
        T at[2];
    };
    const unsigned lane = thread_index.x % 32, row = thread_index.x / 32 % 4 * 16 + lane / 4;
    float top[16], bottom[16];
    for (unsigned k = 0; k < 16; k++) {
        top[k] = static_cast<float>(wgmma_element<T>(a, k, row));
        bottom[k] = static_cast<float>(wgmma_element<T>(a, k, row + 8));
    }
    for (unsigned j = 0; j < 64; j += 2) {
        float x0 = sum[j], x1 = sum[j + 1], y0 = sum[64 + j], y1 = sum[64 + j + 1];
        for (unsigned k = 0; k < 16; k++) {
            const pair right = wgmma_element<pair>(b, k, j / 2 * 8 + lane % 4 * 2);
            const float left = static_cast<float>(right.at[0]), next = static_cast<float>(right.at[1]);
            x0 = fmaf(top[k], left, x0), x1 = fmaf(top[k], next, x1);
            y0 = fmaf(bottom[k], left, y0), y1 = fmaf(bottom[k], next, y1);
        }
        sum[j] = x0, sum[j + 1] = x1, sum[64 + j] = y0, sum[64 + j + 1] = y1;
    }
}
template <typename T> inline void wgmma_product(float *sum, uint64_t a, uint64_t b)
{
    wgmma_enqueue(wgmma_thread<T>, sum, a, b);
}

template <typename T>
inline T atomic(const char *file, int line, atomic_kind kind, T *address, std::common_type_t<T> value,
                std::common_type_t<T> compare = 0)
{
    static_assert(std::is_integral<T>::value && sizeof(T) >= 4, "no atomics on floats: results would not repeat");
    return static_cast<T>(atomic_update(kind, address, sizeof *address, std::is_signed<T>::value,
                                        static_cast<uint64_t>(value), static_cast<uint64_t>(compare), file, line));
}
} // namespace emulation

/* ---- launches and shared memory: see gpu/cuda/cuda_launch.h -------------- */

#define CUDA_LAUNCH(what, kernel, grid, block, dynamic_bytes, stream, ...) \
    emulation::launch_typed(what, #kernel, kernel, grid, block, dynamic_bytes, stream, __VA_ARGS__)

#define SHARED(type, name, dimensions)                                                     \
    typedef type name##_shared_type dimensions;                                            \
    static emulation::shared_place name##_place = {#name, __FILE__, __LINE__, 0, nullptr}; \
    name##_shared_type &name =                                                             \
        *static_cast<name##_shared_type *>(emulation::shared_memory(&name##_place, sizeof(name##_shared_type)))

#define DYN_SHARED(type, name) type *const name = static_cast<type *>(emulation::dynamic_shared_memory())

/* ---- the language -------------------------------------------------------- */

#define threadIdx (emulation::thread_index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)
#define warpSize 32

#define __syncthreads() ((void)emulation::barrier_block(emulation::BARRIER_BLOCK, 0, __FILE__, __LINE__))
#define __syncthreads_or(predicate) emulation::barrier_block(emulation::BARRIER_OR, predicate, __FILE__, __LINE__)
#define __syncthreads_and(predicate) emulation::barrier_block(emulation::BARRIER_AND, predicate, __FILE__, __LINE__)
#define __syncthreads_count(predicate) emulation::barrier_block(emulation::BARRIER_COUNT, predicate, __FILE__, __LINE__)

namespace emulation
{
struct sync_warp_at {
    const char *file;
    int line;
    void operator()(unsigned mask = 0xffffffffu) const
    {
        barrier_warp(mask, file, line);
    }
};
#define EMULATION_SHUFFLE(name, kind)                                                              \
    template <typename T>                                                                          \
    inline T name(const char *file, int line, unsigned mask, T value, int operand, int width = 32) \
    {                                                                                              \
        return exchange_typed(kind, mask, value, operand, width, file, line);                      \
    }
EMULATION_SHUFFLE(shfl, EXCHANGE_IDX)
EMULATION_SHUFFLE(shfl_up, EXCHANGE_UP)
EMULATION_SHUFFLE(shfl_down, EXCHANGE_DOWN)
EMULATION_SHUFFLE(shfl_xor, EXCHANGE_XOR)
#undef EMULATION_SHUFFLE
} // namespace emulation

#define __syncwarp (emulation::sync_warp_at{__FILE__, __LINE__})
#define __shfl_sync(...) emulation::shfl(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emulation::shfl_up(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulation::shfl_down(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulation::shfl_xor(__FILE__, __LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) emulation::ballot(mask, (predicate) ? 1 : 0, __FILE__, __LINE__)
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0 ? 1 : 0)
#define __all_sync(mask, predicate) (__ballot_sync(mask, !(predicate)) == 0 ? 1 : 0)
#define __threadfence() emulation::fence()
#define __threadfence_block() ((void)0)
#define __cvta_generic_to_shared(p) static_cast<size_t>(reinterpret_cast<const char *>(p) - emulation::shared_arena)
#define __trap() emulation::trap(__FILE__, __LINE__)

#define EMULATION_ATOMIC(kind, ...) emulation::atomic(__FILE__, __LINE__, emulation::kind, __VA_ARGS__)
#define atomicAdd(address, value) EMULATION_ATOMIC(ATOMIC_ADD, address, value)
#define atomicAnd(address, value) EMULATION_ATOMIC(ATOMIC_AND, address, value)
#define atomicOr(address, value) EMULATION_ATOMIC(ATOMIC_OR, address, value)
#define atomicXor(address, value) EMULATION_ATOMIC(ATOMIC_XOR, address, value)
#define atomicExch(address, value) EMULATION_ATOMIC(ATOMIC_EXCHANGE, address, value)
#define atomicMax(address, value) EMULATION_ATOMIC(ATOMIC_MAX, address, value)
#define atomicMin(address, value) EMULATION_ATOMIC(ATOMIC_MIN, address, value)
#define atomicSub(address, value) EMULATION_ATOMIC(ATOMIC_ADD, address, -(value))
#define atomicCAS(address, compare, value) EMULATION_ATOMIC(ATOMIC_CAS, address, value, compare)

/* ---- intrinsics ---------------------------------------------------------- */

#define EMULATION_MIN_MAX(type)     \
    inline type min(type a, type b) \
    {                               \
        return b < a ? b : a;       \
    }                               \
    inline type max(type a, type b) \
    {                               \
        return a < b ? b : a;       \
    }
EMULATION_MIN_MAX(int)
EMULATION_MIN_MAX(unsigned)
EMULATION_MIN_MAX(long)
EMULATION_MIN_MAX(unsigned long)
EMULATION_MIN_MAX(long long)
EMULATION_MIN_MAX(unsigned long long)
#undef EMULATION_MIN_MAX
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
}

template <typename To, typename From> inline To emulation_bit_cast(From from)
{
    static_assert(sizeof(To) == sizeof(From), "another size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float x)
{
    return emulation_bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x)
{
    return emulation_bit_cast<unsigned>(x);
}
inline float __int_as_float(int x)
{
    return emulation_bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x)
{
    return emulation_bit_cast<float>(x);
}
inline long long __double_as_longlong(double x)
{
    return emulation_bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x)
{
    return emulation_bit_cast<double>(x);
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x)
{
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1 / sqrt(x);
}
#define EMULATION_UNARY(name, expression) \
    inline float name(float x)            \
    {                                     \
        return expression;                \
    }
EMULATION_UNARY(__expf, expf(x))
EMULATION_UNARY(__exp10f, powf(10, x))
EMULATION_UNARY(__logf, logf(x))
EMULATION_UNARY(__log2f, log2f(x))
EMULATION_UNARY(__sinf, sinf(x))
EMULATION_UNARY(__cosf, cosf(x))
EMULATION_UNARY(__tanhf, tanhf(x))
EMULATION_UNARY(__frcp_rn, 1 / x)
EMULATION_UNARY(__fsqrt_rn, sqrtf(x))
EMULATION_UNARY(__frsqrt_rn, 1 / sqrtf(x))
EMULATION_UNARY(__saturatef, fminf(fmaxf(x, 0), 1))
#undef EMULATION_UNARY
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
/* As with nvcc, products and sums of a kernel may become FMAs, but not those that these functions round. */
template <typename T> inline T emulation_rounded(T x)
{
    asm("" : "+x"(x));
    return x;
}
inline float __fadd_rn(float a, float b)
{
    return emulation_rounded(a) + emulation_rounded(b);
}
inline float __fsub_rn(float a, float b)
{
    return emulation_rounded(a) - emulation_rounded(b);
}
inline float __fmul_rn(float a, float b)
{
    return emulation_rounded(a * b);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline double __dadd_rn(double a, double b)
{
    return emulation_rounded(a) + emulation_rounded(b);
}
inline double __dmul_rn(double a, double b)
{
    return emulation_rounded(a * b);
}
inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
inline float __powf(float a, float b)
{
    return powf(a, b);
}
inline float __double2float_rn(double x)
{
    return static_cast<float>(x);
}
inline int __float2int_rn(float x)
{
    return static_cast<int>(rintf(x));
}
inline int __float2int_rz(float x)
{
    return static_cast<int>(x);
}
inline float __int2float_rn(int x)
{
    return static_cast<float>(x);
}

template <typename T> inline T __ldg(const T *address)
{
    return *address;
}
template <typename T> inline T __ldcg(const T *address)
{
    return *address;
}
template <typename T> inline T __ldcs(const T *address)
{
    return *address;
}
template <typename T> inline T __ldca(const T *address)
{
    return *address;
}
template <typename T> inline T __ldcv(const T *address)
{
    return *address;
}
template <typename T> inline void __stcs(T *address, T value)
{
    *address = value;
}
template <typename T> inline void __stcg(T *address, T value)
{
    *address = value;
}
template <typename T> inline void __stwt(T *address, T value)
{
    *address = value;
}
