/* SPDX-License-Identifier: Apache-2.0 */
/* recompute.h: how much of a block's activations is computed again in backward instead of being kept since forward.
 * Each policy includes those before it. The bits are the same under every policy, except where a GPU computes SwiGLU
 * inside a matrix product: mlp and attention do not, and agree with the others to rounding. */
#pragma once

/* The policies by their names in the run spec:
 *
 *   none        everything is kept
 *   norms       the outputs of norms are computed again
 *   mlp         and the activation inside the MLP
 *   attention   and queries, keys and values, and the attention's output
 *   block       and everything else but the block's input */
#define RECOMPUTE_LIST(X)     \
    X(NONE, "none")           \
    X(NORMS, "norms")         \
    X(MLP, "mlp")             \
    X(ATTENTION, "attention") \
    X(BLOCK, "block")

#define RECOMPUTE_ENTRY(name, word) RECOMPUTE_##name,
enum recompute { RECOMPUTE_LIST(RECOMPUTE_ENTRY) RECOMPUTE_COUNT };
#undef RECOMPUTE_ENTRY

/* The policy's name in the run spec: "none", "norms", … */
static inline const char *recompute_name(enum recompute policy)
{
#define RECOMPUTE_NAME(name, word) word,
    static const char *const names[RECOMPUTE_COUNT] = {RECOMPUTE_LIST(RECOMPUTE_NAME)};
#undef RECOMPUTE_NAME
    return names[policy];
}
