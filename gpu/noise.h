/* SPDX-License-Identifier: Apache-2.0 */
/* noise.h: the values of stream_fill_noise(), for the host and for device code (CUDA compiles this header too). */
#pragma once

#include "core/host_device.h"

/* In [-1, 1), by a hash of the place with good avalanche: the finalizer of MurmurHash3. */
HOST_DEVICE float noise_value(uint32_t seed, uint64_t place)
{
    uint32_t x = (uint32_t)place ^ (uint32_t)(place >> 32) ^ seed * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return (float)(int32_t)(x ^ x >> 16) * 0x1p-31f;
}
