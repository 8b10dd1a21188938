/* SPDX-License-Identifier: Apache-2.0 */
/* moment_block.h: AdamW8bit's moments: 256 neighbouring values are codes of a dynamic 8-bit map, and their scale. */
#pragma once

#include <stdint.h>

enum {
    MOMENT_BLOCK = 256,                     /* values */
    MOMENT_BLOCK_WORDS = 65,                /* of 4 bytes: what a block takes, where fp32 takes MOMENT_BLOCK */
    MOMENT_LEAST_NUMEL = 16 * MOMENT_BLOCK, /* of a tensor whose moments are blocks; smaller ones keep fp32 */
};

struct moment_block {
    float scale; /* the largest absolute value, at least 1e-12; 0 before the first step */
    uint8_t codes[MOMENT_BLOCK];
};
