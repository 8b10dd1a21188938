/* SPDX-License-Identifier: Apache-2.0 */
/* stochastic_rounding.h: rounds fp32 to one of the two neighbouring bf16 values, to either with the probability that
 * makes the mean exact: x between a and b becomes b with probability (x - a) / (b - a), in steps of 2^-16.
 *
 * The random bits are a function of seed, optimizer step, state (enum state_kind), unit and the element's place in it,
 * whatever the stage and world size. A block of Philox serves eight neighbouring elements:
 *
 *     key      seed ^ DOMAIN (the initial weights use the seed itself)
 *     counter  place / 8, 48 bits | step, bits 32 to 47 | unit, 24 bits | state, 8 bits | step, bits 0 to 31
 *     words    word 0: elements 0 (low half) and 1; word 1: elements 2 and 3; …
 *
 * The same functions serve the host and device code (CUDA compiles this header too). */
#pragma once

#include "core/training/philox.h"

enum { ROUNDING_BLOCK = 8 };

/* Where the elements of an array are in the model: element i has the place `place` + i in the unit. */
struct rounding_place {
    uint64_t seed;
    int32_t unit;
    int64_t place;
};

struct rounding_counter {
    uint32_t key[2], words[4]; /* words[0] and the low half of words[1]: the block */
};

/* The counter of block 0. */
HOST_DEVICE struct rounding_counter rounding_counter(struct rounding_place at, int64_t step, int state)
{
    const uint64_t domain = 0x73746f6368617374u, key = at.seed ^ domain, steps = (uint64_t)step;
    struct rounding_counter counter;
    counter.key[0] = (uint32_t)key;
    counter.key[1] = (uint32_t)(key >> 32);
    counter.words[0] = 0;
    counter.words[1] = (uint32_t)(steps >> 32) << 16;
    counter.words[2] = (uint32_t)state << 24 | (uint32_t)at.unit;
    counter.words[3] = (uint32_t)steps;
    return counter;
}

/* words = the random words of a block. */
HOST_DEVICE void rounding_words(const struct rounding_counter *counter, uint64_t block, uint32_t words[4])
{
    words[0] = (uint32_t)block;
    words[1] = counter->words[1] | (uint32_t)(block >> 32);
    words[2] = counter->words[2];
    words[3] = counter->words[3];
    philox_rounds(&words[0], &words[1], &words[2], &words[3], counter->key[0], counter->key[1]);
}

/* The 16 random bits of an element of the block. */
HOST_DEVICE uint32_t rounding_bits(const uint32_t words[4], int element)
{
    return words[element / 2] >> (element % 2 ? 16 : 0) & 0xffffu;
}

/* The bits of an fp32 value rounded to bf16 by 16 random bits. A NaN becomes a quiet NaN; infinity stays. */
HOST_DEVICE uint16_t bf16_round_stochastically(uint32_t x, uint32_t random)
{
    if ((x & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(x >> 16 | 0x40u);
    return (uint16_t)((x + random) >> 16);
}
