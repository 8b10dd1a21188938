/* SPDX-License-Identifier: Apache-2.0 */
/* host_device.h: functions that serve the host and device code, in headers that CUDA compiles too. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ inline
#else
#define HOST_DEVICE static inline __attribute__((always_inline, unused))
#endif

HOST_DEVICE float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

HOST_DEVICE uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
