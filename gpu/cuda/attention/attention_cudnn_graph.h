/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_graph.h: attention, forward and backward, as cuDNN's operation graphs. */
#pragma once

#include "core/dtype.h"
#include "gpu/cuda/cudnn_graph.h"

enum attention_direction { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_DIRECTIONS };

/* B sequences of T (ragged: up to T) tokens, one after the other; else as in the ops' arguments. It has no padding:
 * shapes are compared byte by byte. */
struct attention_shape {
    int64_t dtype; /* DTYPE_BF16 or DTYPE_F16 */
    int64_t B, T, H, KV, D, window;
    int64_t ld_q, ld_k, ld_v, ld_o, ld_dq, ld_dk, ld_dv; /* ld_dq, ld_dk, ld_dv: 0 in forward */
    double scale;
    int64_t bidirectional, ragged, unordered; /* 0, 1; unordered: 0 in forward */
    int64_t dropout;                          /* of the weights: the threshold of core/training/dropout.h; 0: none */
    double softcap;                           /* 0: none; the last member, for the key of the choices */
};

/* The distances between rows that occur in the shape; ragged: with an array of offsets each. Returns their number. */
enum { ATTENTION_STRIDES = 7 };
int attention_strides(const struct attention_shape *shape, int64_t strides[ATTENTION_STRIDES]);

/* The tensors of the graphs in memory: ids for cudnn_plan_execute(). */
enum attention_pointer {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_LSE,   /* float (B, H, T), or where ops have it: (H, M) */
    ATTENTION_DELTA, /* float (B, H, T): scratch of backward */
    ATTENTION_DOUT,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_LENGTHS, /* ragged: int32 (B): tokens of each sequence */
    ATTENTION_OFFSETS, /* ragged: and the ids after it, int64 (B + 1): seq_start times a distance */
    ATTENTION_SUMS = ATTENTION_OFFSETS + ATTENTION_STRIDES, /* unordered: float (B, H, T, D), the sums of dq */
    ATTENTION_KEPT, /* dropout: (B, H, T, attention_kept_ld()) of dtype: 1 for a weight that is kept, else 0 */
    ATTENTION_POINTERS
};

/* Elements between the rows of ATTENTION_KEPT, which are aligned as those of the other tensors. */
int64_t attention_kept_ld(const struct attention_shape *shape);

/* Bytes that cuDNN's kernels need pointers and rows to be aligned to. */
enum { ATTENTION_ALIGN = 16 };

/* How the shape is computed: that many of its sequences at a time; plain: without what no GPU has confirmed, engines
 * that the heuristics do not propose and lse where ops have it. */
struct attention_form {
    int64_t sequences;
    bool plain;
};

/* Whether lse of the shape is where ops have it, else (B, H, T); whether an engine of backward is listed. */
bool attention_form_has_lse_of_op(const struct cudnn_target *target, const struct attention_shape *shape, bool plain);
bool attention_form_is_listed(const struct cudnn_target *target, enum attention_direction direction,
                              const struct attention_shape *shape);

/* At most `most` plans (cudnn_plans_new(); filter->unordered is the shape's), that of a known engine first. 0, with the
 * reason: this cuDNN cannot compute the shape, is known to compute it wrongly, or has no proposal that passes. A plan
 * whose graph has sums of dq uses ATTENTION_SUMS; if the shape is not unordered, they count as its workspace. */
int attention_graph_plans(const struct cudnn_target *target, enum attention_direction direction,
                          const struct attention_shape *shape, const struct attention_form *form,
                          const struct cudnn_filter *filter, struct cudnn_plan **plans, int most, struct error *err);
