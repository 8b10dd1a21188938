/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda_dequantize.cu: matrices that are stored in 4 or 8 bits. The memory is the limit: a thread reads the codes of
 * 8 neighbours in one access and writes their values in accesses of 16 bytes. Bits are those of the CPU
 * (core/quantization/dequantize.c): no product and sum becomes an FMA. */
#include "gpu/cuda/cuda_kernels.cuh"

namespace
{

constexpr int THREADS = ELEMENT_THREADS, TOGETHER = 8, CODES_OF_BYTE = 2;

__device__ __forceinline__ float dequantize_through(float x, enum dtype dtype)
{
    if (dtype == DTYPE_BF16) return to_float(rounded<__nv_bfloat16>(x));
    return dtype == DTYPE_F16 ? to_float(rounded<__half>(x)) : x;
}

/* NF4, or MXFP4. What the values of a block's codes are multiplied by, and then whether by 2. */
struct dequantize_scale {
    float factor;
    bool doubled;
};

template <bool NF4>
__device__ __forceinline__ struct dequantize_scale dequantize_scale_of(const struct dequantize_args &a, int64_t block)
{
    if constexpr (!NF4) {
        const uint32_t exponent = a.scale_codes[block], most = 254;
        const uint32_t least = 1u << 22; /* the bits of 2^-127 */
        return {float_of_bits(exponent == 0 ? least : (exponent < most ? exponent : most) << 23), exponent > most};
    }
    if (a.scales) return {a.scales[block], false};
    const uint32_t nested = static_cast<uint32_t>(block) / static_cast<uint32_t>(a.nested_block);
    return {__fadd_rn(__fmul_rn(a.map[a.scale_codes[block]], a.nested_scales[nested]), *a.offset), false};
}

/* Elements i … i + N - 1, which are of one block. */
template <typename T, bool NF4, int N>
__device__ __forceinline__ void dequantize_codes(const struct dequantize_args &a, const float *values, int shift,
                                                 int64_t i)
{
    constexpr int FIRST = NF4 ? 4 : 0; /* the lower bit of a byte's first code */
    constexpr int BYTES = N / CODES_OF_BYTE;
    const struct dequantize_scale scale = dequantize_scale_of<NF4>(a, i >> shift);
    const struct pack<uint8_t, BYTES> codes = load_pack<BYTES>(a.codes + i / CODES_OF_BYTE);
    float x[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int code = codes.at[j / 2] >> (j % 2 ? 4 - FIRST : FIRST) & 15;
        x[j] = __fmul_rn(values[code], scale.factor);
        if (!NF4 && scale.doubled) x[j] *= 2;
        if (NF4) x[j] = dequantize_through(x[j], a.through);
    }
    T *out = static_cast<T *>(a.out) + i;
    if constexpr (N == TOGETHER) {
        store(out, x);
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) out[j] = rounded<T>(x[j]);
    }
}

/* `whole` elements in vectors, then the rest of the n. A block has 1 << shift. */
template <typename T, bool NF4>
__global__ void __launch_bounds__(THREADS)
    dequantize_4bit_kernel(struct dequantize_args a, int64_t n, int64_t whole, int shift)
{
    SHARED(float, values, [NF4_VALUES]);
    const int code = static_cast<int>(threadIdx.x);
    if (code < NF4_VALUES) values[code] = NF4 ? nf4_value(code) : fp4_value(code);
    __syncthreads();
    for (int64_t i = grid_thread() * TOGETHER; i < whole; i += grid_threads() * TOGETHER)
        dequantize_codes<T, NF4, TOGETHER>(a, values, shift, i);
    for (int64_t i = whole + grid_thread() * CODES_OF_BYTE; i < n; i += grid_threads() * CODES_OF_BYTE)
        dequantize_codes<T, NF4, CODES_OF_BYTE>(a, values, shift, i);
}

template <typename T, int N> __global__ void __launch_bounds__(THREADS) dequantize_fp8_kernel(struct dequantize_args a)
{
    const int64_t across = (a.cols + FP8_BLOCK - 1) / FP8_BLOCK;
    each_in_table<N>(a.rows, a.cols, [&](int64_t row, int64_t j) {
        const int64_t at = row * a.cols + j;
        const float scale = a.scales[row / FP8_BLOCK * across + j / FP8_BLOCK];
        const struct pack<uint8_t, N> codes = load_pack<N>(a.codes + at);
        float x[N];
#pragma unroll
        for (int v = 0; v < N; v++) x[v] = __fmul_rn(fp8_value(codes.at[v]), scale);
        store(static_cast<T *>(a.out) + at, x);
    });
}

bool dequantize_aligned(const struct dequantize_args *a, int64_t bytes_together)
{
    return aligned16(a->out) && bits_of_address(a->codes) % static_cast<uintptr_t>(bytes_together) == 0;
}

template <typename T, bool NF4> void dequantize_4bit(struct stream *stream, const struct dequantize_args *a)
{
    const int64_t n = a->rows * a->cols, block = NF4 ? a->block : int64_t{MXFP4_BLOCK};
    int shift = 1;
    while (INT64_C(1) << shift < block) shift++;
    ASSERT(INT64_C(1) << shift == block && a->cols % 2 == 0 && a->num_scales <= UINT32_MAX);
    const bool together = block >= TOGETHER && dequantize_aligned(a, TOGETHER / CODES_OF_BYTE);
    LAUNCH(stream, "dequantize", (dequantize_4bit_kernel<T, NF4>),
           grid_of_elements(stream, n, together ? TOGETHER : CODES_OF_BYTE), THREADS, *a, n,
           whole_vectors<TOGETHER>(n, together), shift);
}

template <typename T> void dequantize_fp8(struct stream *stream, const struct dequantize_args *a)
{
    const bool together = a->cols % TOGETHER == 0 && dequantize_aligned(a, TOGETHER);
    LAUNCH(stream, "dequantize", (together ? dequantize_fp8_kernel<T, TOGETHER> : dequantize_fp8_kernel<T, 1>),
           grid_of_elements(stream, a->rows * a->cols, together ? TOGETHER : 1), THREADS, *a);
}

} // namespace

void cuda_dequantize(struct stream *stream, const struct dequantize_args *a)
{
    if (a->rows == 0 || a->cols == 0) return;
    dispatch(a->dtype, [&](auto type) {
        using T = decltype(type);
        switch (a->format) {
        case QUANTIZED_NF4: dequantize_4bit<T, true>(stream, a); break;
        case QUANTIZED_FP8: dequantize_fp8<T>(stream, a); break;
        case QUANTIZED_MXFP4: dequantize_4bit<T, false>(stream, a); break;
        default: BUG("no kernel for the format %d", static_cast<int>(a->format));
        }
    });
}
CUDA_MODULE(dequantize, (dequantize_4bit_kernel<__nv_bfloat16, true>))
