/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_launch.h: lets a .cu file compile with nvcc, and with a host compiler for the emulation.
 *
 * The emulation (tests/emulation, -DZTRAIN_EMULATION) runs kernels on the host, whose compilers know neither <<<>>> nor
 * __shared__, so a .cu file
 *
 *   - includes this header, and neither cuda_runtime.h nor other device headers;
 *   - launches with CUDA_LAUNCH and declares shared memory with SHARED and DYN_SHARED;
 *   - uses no inline PTX without a plain equivalent that the emulation runs instead, no cub, wmma, cooperative groups
 *     or cuda_pipeline.h, no atomics on floats.
 *
 * With nvcc, every macro is the plain CUDA construct, at no cost. */
#pragma once

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stddef.h>
#include <stdint.h>

enum { WARP_SIZE = 32 };

#ifdef ZTRAIN_EMULATION

#include <cuda_emulation.h> /* of tests/emulation */

#else

/* CUDA_LAUNCH(what, kernel, grid, block, dynamic_bytes, stream, arguments…): enqueues a kernel, which the emulation
 * reports as `what` and the kernel's name, and returns a cudaError_t, which must be checked. A kernel with a comma is
 * put in parentheses: CUDA_LAUNCH("norm_fwd", (norm_fwd_kernel<T, 4>), …). */
#define CUDA_LAUNCH(what, kernel, grid, block, dynamic_bytes, stream, ...) \
    cuda_launch(kernel, grid, block, dynamic_bytes, stream, __VA_ARGS__)

template <typename... Parameters, typename... Arguments>
[[nodiscard]] inline cudaError_t cuda_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t dynamic_bytes,
                                             cudaStream_t stream, Arguments... arguments)
{
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel takes another number of arguments");
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = dynamic_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

/* SHARED(float, sums, [8][WARP_SIZE]); 16-byte aligned, not initialised; one variable per place in the source and
 * template instance, as __shared__ is. */
#define SHARED(type, name, dimensions) __shared__ __align__(16) type name dimensions

/* The launch's dynamic_bytes: DYN_SHARED(float, row) declares `float *row`; 16-byte aligned. Every DYN_SHARED of a
 * kernel is the same memory. */
#define DYN_SHARED(type, name)                     \
    extern __shared__ uint4 cuda_dynamic_shared[]; \
    type *const name = reinterpret_cast<type *>(cuda_dynamic_shared)

#endif

/* Each .cu file is a module of its own, which the driver loads, and for a GPU of a later kind compiles, when its first
 * kernel is used: ops_cuda_load() does that by this one, before the first launch. */
#define CUDA_MODULE(name, kernel)               \
    extern "C" const void *cuda_module_##name() \
    {                                           \
        return (const void *)(kernel);          \
    }

/* More than 48 KiB of dynamic shared memory must be allowed once per kernel before its first launch (up to 163 KiB on
 * sm_80, 227 KiB on sm_90 and later). */
#define CUDA_ALLOW_DYN_SHARED(kernel, bytes)                                                                  \
    cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, \
                         static_cast<int>(bytes))
