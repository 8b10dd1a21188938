/* SPDX-License-Identifier: Apache-2.0 */
/* dropout.h: which elements dropout zeroes: a function of seed, place of the dropout in the model and number of the
 * token, so that recomputation, a resumed run, any stage, world size and micro-batch see the same ones.
 *
 * A token's number is unique in the run: ((step - 1) · train_batch_size + the sample's place in the step) · seq_length
 * + the token's place in the sample (token_stream.h). Philox gives 16 bits for each element; it is dropped if they are
 * below `threshold`. The others are multiplied by `scale`, so that the mean stays. A block of Philox serves eight
 * elements:
 *
 *     key      seed ^ DOMAIN ^ (layer << 8 | kind) << 32
 *     counter  the token's number, 64 bits | a | b
 *
 *     rows of activations     a = column / 8, b = 0                       element column % 8
 *     weights of attention    the number of the sequence's first token; query q and key k of the sequence, head h:
 *                             a = k / 4 | h % 1024 << 22, b = q / 2 | h / 1024 << 23     element q % 2 · 4 + k % 4
 *
 * The same functions serve the host and device code (CUDA compiles this header too). */
#pragma once

#include "core/training/philox.h"

enum { DROPOUT_BLOCK = 8, DROPOUT_QUERIES = 2, DROPOUT_KEYS = 4 };

/* Where a model drops. */
enum dropout_kind {
    DROPOUT_EMBEDDING,
    DROPOUT_ATTENTION,
    DROPOUT_ATTENTION_OUTPUT,
    DROPOUT_MLP_OUTPUT,
    DROPOUT_POOLED,
    DROPOUT_LORA /* of an adapter's input: + enum tensor_role */
};

struct dropout {
    const uint64_t *tokens; /* device (M): numbers of the tokens */
    uint32_t threshold;     /* of 65536; 0: nothing is dropped */
    float scale;
    uint32_t key[2];
};

HOST_DEVICE struct dropout dropout_of(double rate, uint64_t seed, enum dropout_kind kind, int64_t layer)
{
    const uint64_t domain = 0x64726f706f757421u, key = seed ^ domain;
    struct dropout dropout;
    dropout.tokens = 0;
    dropout.threshold = (uint32_t)(rate * 65536 + 0.5);
    dropout.scale = dropout.threshold < 65536 ? 65536 / (float)(65536 - dropout.threshold) : 0;
    dropout.key[0] = (uint32_t)key;
    dropout.key[1] = (uint32_t)(key >> 32) ^ ((uint32_t)layer << 8 | (uint32_t)kind);
    return dropout;
}

/* The counter's a and b of the block of query q and key k. */
HOST_DEVICE uint32_t dropout_key_block(int64_t k, int64_t head)
{
    return (uint32_t)(k / DROPOUT_KEYS) | (uint32_t)(head % 1024) << 22;
}

HOST_DEVICE uint32_t dropout_query_block(int64_t q, int64_t head)
{
    return (uint32_t)(q / DROPOUT_QUERIES) | (uint32_t)(head / 1024) << 23;
}

/* words = the random words of a block. */
HOST_DEVICE void dropout_words(const struct dropout *dropout, uint64_t token, uint32_t a, uint32_t b, uint32_t words[4])
{
    words[0] = (uint32_t)token;
    words[1] = (uint32_t)(token >> 32);
    words[2] = a;
    words[3] = b;
    philox_rounds(&words[0], &words[1], &words[2], &words[3], dropout->key[0], dropout->key[1]);
}

/* Whether an element of the block is kept. */
HOST_DEVICE int dropout_keeps(const struct dropout *dropout, const uint32_t words[4], int element)
{
    return (words[element / 2] >> (element % 2 ? 16 : 0) & 0xffffu) >= dropout->threshold;
}
