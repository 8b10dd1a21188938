/* SPDX-License-Identifier: Apache-2.0 */
/* dynamic_map.h: the dynamic 8-bit data type (Dettmers 2015): 256 values in [-1, 1] or [0, 1], denser near 0, with the
 * bits of torchao's 8-bit optimizers and of bitsandbytes: one map, two ways of rounding; AdamW8bit's moments. */
#pragma once

#include "core/host_device.h"
#include "core/status.h"
#include <sys/cdefs.h>

__BEGIN_DECLS

enum { DYNAMIC_MAP_SIZE = 256 };

/* Fills the map, in rising order. The signed one begins at -0.993, as it has no -1. */
void dynamic_map_signed(float map[DYNAMIC_MAP_SIZE]);
void dynamic_map_unsigned(float map[DYNAMIC_MAP_SIZE]);

/* The code that torchao gives to x: that of the largest value that is not above x, or the next one if it is no farther
 * away. A NaN has code 0. The same function serves the host and device code (CUDA compiles this header too). */
HOST_DEVICE uint8_t dynamic_map_code(const float *map, float x)
{
    int code = 0;
    for (int bit = DYNAMIC_MAP_SIZE / 2; bit > 0; bit /= 2) code += x >= map[code + bit] ? bit : 0;
    const int up = code < DYNAMIC_MAP_SIZE - 1 ? code + 1 : code;
    return (uint8_t)(x - map[code] >= (map[up] - map[code]) * 0.5f ? up : code);
}

/* The same code for many values from -1 to 1. thresholds: the least x whose code is that one or more; starts: the code
 * of the least of the numbers that share sign and upper half of the bits, which one threshold parts at most. */
enum { DYNAMIC_LOOKUP_OCTAVES = 24, DYNAMIC_LOOKUP_KEYS = DYNAMIC_LOOKUP_OCTAVES * 128 + 1 };
struct dynamic_lookup {
    float thresholds[DYNAMIC_MAP_SIZE + 1];
    uint8_t starts[2][DYNAMIC_LOOKUP_KEYS];
};

void dynamic_lookup_init(struct dynamic_lookup *lookup, const float map[DYNAMIC_MAP_SIZE]);

static inline uint8_t dynamic_lookup_code(const struct dynamic_lookup *lookup, float x)
{
    const uint32_t bits = bits_of_float(x);
    const int32_t key = (int32_t)((bits & 0x7fffffff) >> 16) - ((127 - DYNAMIC_LOOKUP_OCTAVES) << 7);
    const int code = lookup->starts[bits >> 31][key > 0 ? key : 0];
    return (uint8_t)(code + (x >= lookup->thresholds[code + 1]));
}

/* The code that bitsandbytes' kernel for CPUs gives to x, which it first rounds to one of 65,536 values from -1 to 1.
 * x: a value times 1 / (absolute maximum of its block), that rounded to fp32. (A block of zeros has codes 0.) */
uint8_t dynamic_map_code_of_grid(const float map[DYNAMIC_MAP_SIZE], float x);

/* AdamW8bit's moments: 256 neighbouring values are codes, and their scale. */
enum {
    MOMENT_BLOCK = 256,                     /* values */
    MOMENT_BLOCK_WORDS = 65,                /* of 4 bytes: what a block takes, where fp32 takes MOMENT_BLOCK */
    MOMENT_LEAST_NUMEL = 16 * MOMENT_BLOCK, /* of a tensor whose moments are blocks; smaller ones keep fp32 */
};

struct moment_block {
    float scale; /* the largest absolute value, at least 1e-12; 0 before the first step */
    uint8_t codes[MOMENT_BLOCK];
};

__END_DECLS
