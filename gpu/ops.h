/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: the op table: every operation that training needs, declared once and implemented by each backend.
 *
 * Letters: M tokens of a micro-batch · C hidden size · F inner size of the MLP · H heads · KV key/value heads · D head
 * size · V vocabulary size · P positions. Matrices are row-major. `dt` is the op's compute dtype, args->dtype:
 * DTYPE_F32, DTYPE_BF16 or DTYPE_F16; arithmetic inside an op is fp32. Sums have an order that depends on shapes only,
 * so results repeat bit for bit.
 *
 * All pointers are device memory. Row 0 of a buffer is 64-byte aligned, others need not be. Buffers do not overlap,
 * except where an op's comment allows it. Parameter gradients are fp32; `accumulate` adds to the buffer, otherwise it
 * is overwritten.
 *
 * An op runs in stream order, allocates nothing, and may use the stream's workspace. With M, or a count, of 0 it does
 * nothing, but gradients which it would overwrite become 0. */
#pragma once

#include "core/dtype.h"
#include "core/model/model_config.h"
#include "core/model/state_slices.h"
#include "core/quantization/dequantize.h"
#include "core/training/dropout.h"
#include "core/training/loss_scaler.h"
#include "core/training/settings.h"
#include "core/training/stochastic_rounding.h"
#include "gpu/device.h"

#include <stdbool.h>
#include <stdint.h>

__BEGIN_DECLS

/* out[i] = scale · (wte[tokens[i]] + wpe[positions[i]] + wse[types[i]]) */
struct embedding_fwd_args {
    enum dtype dtype;
    int64_t M, C;
    void *out;                         /* dt (M, C) */
    const int32_t *tokens, *positions; /* (M) */
    const void *wte;                   /* dt (V, C) */
    const void *wpe;                   /* dt (P, C) or NULL */
    float scale;
    const int32_t *types; /* (M) with wse */
    const void *wse;      /* dt (S, C), of the types (segments) of tokens, or NULL */
};

/* dwte[tokens[i]] += scale · dout[i], unless tokens[i] is `padding`; the same for dwpe by positions and dwse by types,
 * in the order of i. */
struct embedding_bwd_args {
    enum dtype dtype;
    int64_t M, C, V, P;
    float *dwte; /* (V, C) or NULL */
    float *dwpe; /* (P, C) or NULL */
    bool accumulate_wte, accumulate_wpe;
    const void *dout; /* dt (M, C) */
    const int32_t *tokens, *positions;
    float scale;
    int64_t S;
    const int32_t *types; /* (M) with dwse */
    float *dwse;          /* (S, C) or NULL */
    bool accumulate_wse;
    int64_t padding; /* a token, or -1: none */
};

/* Residual add and norm in one pass, over rows of C: x_out = x + delta_scale · delta; y = norm(x_out) · (weight_offset
 * + weight) + bias. If delta is NULL, x_out is not written and x is normed. x_out may be x. */
struct norm_fwd_args {
    enum dtype dtype;
    enum norm_kind kind;
    int64_t M, C;
    float eps;
    void *y;                   /* dt (M, C) */
    void *x_out;               /* dt (M, C), with delta */
    const void *x;             /* dt (M, C) */
    const void *delta;         /* dt (M, C) or NULL */
    float delta_scale;         /* with delta */
    const void *weight, *bias; /* dt (C); bias NULL for RMS */
    float weight_offset;       /* added to the weights; 0, or 1 (Gemma) */
    float *mean, *rstd;        /* (M), written; mean: NORM_LAYER only, else NULL */
};

/* dx = dres + the gradient of the norm with respect to its input x, which is x_out of forward. dres NULL: 0. dx may be
 * dres. dweight and dbias are sums over rows, and so is dx_sums: of dx as it is stored, which is the gradient of the
 * bias of a layer whose output was added to x. */
struct norm_bwd_args {
    enum dtype dtype;
    enum norm_kind kind;
    int64_t M, C;
    void *dx;         /* dt (M, C) */
    const void *dres; /* dt (M, C) or NULL */
    const void *dy;   /* dt (M, C) */
    const void *x;    /* dt (M, C) */
    const void *weight;
    float weight_offset;
    const float *mean, *rstd;
    float *dweight, *dbias; /* (C) or NULL; dbias NULL for RMS */
    float *dx_sums;         /* (C) or NULL */
    bool accumulate;        /* dweight and dbias */
    bool accumulate_sums;   /* dx_sums */
};

/* y = x · W + bias. W is stored (N, K), as in torch.nn.Linear, or (K, N) with weights_in_out, as in GPT-2's Conv1D.
 * With `gelu`: aux = x · W + bias, y = gelu_tanh(aux), or with `gelu_erf` gelu_erf(aux) = aux · (1 + erf(aux /
 * sqrt(2))) / 2. With `gated`: gated = SwiGLU of y, or GeGLU (swiglu_fwd). With `accumulate`, what y holds is added to
 * x · W first. y_dtype is dt, or DTYPE_F32 (logits). */
struct linear_fwd_args {
    enum dtype dtype, y_dtype;
    bool weights_in_out;
    int64_t M, N, K;
    void *y;          /* y_dtype (M, N), rows ld_y apart */
    int64_t ld_y;     /* elements; 0: N */
    const void *x;    /* dt (M, K) */
    const void *w;    /* dt */
    const void *bias; /* dt (N) or NULL */
    bool gelu;
    void *aux;       /* dt (M, N) with gelu, else NULL */
    bool gelu_erf;   /* with gelu: in the form of erf */
    void *gated;     /* dt (M, N / 2) or NULL; not with gelu or ld_y, and y_dtype is dt */
    bool gated_gelu; /* with gated: GeGLU */
    bool accumulate; /* y; not with gated */
    int64_t ld_x;    /* elements between rows of x; 0: K */
};

/* dx (+)= dy · Wᵀ. With gelu_aux, which is dt (M, K), the aux of the layer before: dx = (dy · Wᵀ [+ dx]) ·
 * gelu_tanh'(gelu_aux), or gelu_erf'(gelu_aux). With dbias: dbias (+)= sum of dx, as it is stored, over rows, the
 * gradient of the bias of the layer before. With gate_up, the y of the layer before, whose `gated` was x: gate_up
 * becomes its own gradient (swiglu_bwd), and what dx holds then is undefined. */
struct linear_bwd_input_args {
    enum dtype dtype;
    bool weights_in_out;
    int64_t M, N, K;
    void *dx;       /* dt (M, K), rows ld_dx apart */
    const void *dy; /* dt (M, N), rows ld_dy apart */
    int64_t ld_dy;  /* elements; 0: N */
    const void *w;
    const void *gelu_aux; /* or NULL */
    bool accumulate;      /* dx */
    bool gelu_erf;        /* with gelu_aux: the layer before has gelu_erf */
    float *dbias;         /* (K) or NULL */
    bool accumulate_dbias;
    void *gate_up;   /* dt (M, 2K) or NULL; not with gelu_aux, dbias or accumulate */
    bool gated_gelu; /* with gate_up: the layer before has gated_gelu */
    int64_t ld_dx;   /* elements; 0: K, which it is with gelu_aux and gate_up */
};

/* dw (+)= dyᵀ · x, stored as W is; dbias (+)= sum of dy over rows. The sum in dw is computed in fp32 and rounded once.
 * Columns of dy that the caller knows to add up to 0 but for rounding are not added up: dbias (+)= 0. */
struct linear_bwd_weight_args {
    enum dtype dtype, dw_dtype; /* dw_dtype: DTYPE_F32, or bf16 where dt is bf16 */
    bool weights_in_out;
    int64_t M, N, K;
    void *dw;     /* dw_dtype (N, K), or (K, N) with weights_in_out */
    float *dbias; /* (N) or NULL */
    const void *dy;
    int64_t ld_dy;
    const void *x;
    bool accumulate;                /* dw */
    bool accumulate_dbias;          /* dbias */
    int64_t null_first, null_count; /* the columns of dy that add up to 0; null_count 0: none */
    int64_t ld_x;                   /* elements between rows of x; 0: K */
};

/* RMSNorm of every head, over D (or with heads 1 of all heads together, D being their elements): y[i, h] = x[i, h] ·
 * rstd · (weight_offset + weight), with gate times silu(gate). Rows of x are ld_x elements apart, rows of y ld_y. With
 * positions, rope() follows, without a gate. */
enum { GATED_MAX_DIM = 256 };
struct head_norm_fwd_args {
    enum dtype dtype;
    int64_t M, heads, D, ld_x, ld_y;
    float eps;
    void *y;            /* dt (M, heads, D) */
    const void *x;      /* dt (M, heads, D) */
    const void *weight; /* dt (D) */
    float weight_offset;
    float *rstd;      /* (M, heads) */
    const void *gate; /* dt (M, heads, D), rows ld_gate apart, or NULL; on a GPU, D is at most GATED_MAX_DIM */
    int64_t ld_gate;
    int64_t R; /* of rope_args, as the following */
    const int32_t *positions;
    const float *cos_table, *sin_table;
    bool pairs;
};

/* Whether one kernel of a GPU does both. */
static inline bool head_norm_turns(const struct head_norm_fwd_args *a)
{
    return a->positions && !a->pairs && a->R == a->D && a->D >= 32 && a->D <= 512 && (a->D & (a->D - 1)) == 0;
}

/* dx = dres + the gradient with respect to x; dx may be dy or dres. dweight (D) or NULL: sum over rows and heads. */
struct head_norm_bwd_args {
    enum dtype dtype;
    int64_t M, heads, D, ld_x, ld_dy, ld_dx;
    void *dx;
    const void *dy, *x, *weight;
    float weight_offset;
    const float *rstd;
    float *dweight;
    bool accumulate;
    const void *gate; /* as in forward, or NULL */
    void *dgate;      /* dt, with gate, in whose place it may be */
    int64_t ld_gate;  /* of both */
    const void *dres; /* dt (M, heads, D), rows ld_dx apart, or NULL, as with gate: 0 */
};

/* Rotary position embedding in place of the first R elements of every head: elements i and i + R/2 (rotate half), or
 * with `pairs` 2i and 2i + 1. The other elements stay. inverse: the transposed rotation, for backward. */
struct rope_args {
    enum dtype dtype;
    int64_t M, heads, D, ld;
    int64_t R;                          /* even, 2 … D */
    void *x;                            /* dt (M, heads, D), rows ld apart */
    const int32_t *positions;           /* (M) */
    const float *cos_table, *sin_table; /* (P, R/2) */
    bool inverse, pairs;
};

static inline struct rope_args rope_of_head_norm(const struct head_norm_fwd_args *a)
{
    struct rope_args rope = {a->dtype, a->M,         a->heads,     a->D,         a->ld_y, a->R,
                             a->y,     a->positions, a->cos_table, a->sin_table, false,   a->pairs};
    return rope;
}

/* y[i][b][a] = x[i][a][b], of D elements each: heads in another order. The `rest` elements after them are copied. */
struct swap_heads_args {
    enum dtype dtype;
    int64_t M, outer, inner, D, rest;
    void *y;       /* dt (M, inner · outer · D + rest) */
    const void *x; /* dt (M, outer · inner · D + rest) */
};

/* Attention within each sequence, without the full score matrix (online softmax over blocks of keys). Query head h uses
 * key/value head h / (H / KV). A query at position p sees the keys 0 … p; window > 0: the keys p-window+1 … p;
 * bidirectional: all keys of its sequence (then window is 0). softcap > 0: the softmax is of softcap · tanh(scale ·
 * score / softcap), as in Gemma 2. On a GPU, D is at most CUDA_MAX_HEAD_DIM: its tiles fill the shared memory. */
enum { CUDA_MAX_HEAD_DIM = 512 };
struct attention_fwd_args {
    enum dtype dtype;
    int64_t M, H, KV, D;
    int64_t ld_q, ld_k, ld_v, ld_o; /* elements between rows (tokens) */
    float scale;                    /* of the scores, as 1/sqrt(D) */
    float softcap;                  /* 0: none */
    int64_t window;
    int32_t num_seqs, max_seq;
    const int32_t *seq_start; /* (num_seqs + 1) */
    const void *q;            /* dt (M, H, D) */
    const void *k, *v;        /* dt (M, KV, D) */
    void *out;                /* dt (M, H, D) */
    float *lse;               /* (H, M): log of the sum of the exponentials of a row's scaled (and capped) scores */
    struct dropout dropout;   /* of the weights, after the softmax; lse is without it */
    bool bidirectional;
    bool ragged; /* the sequences may differ in length; without it a device may prepare only for equal ones */
};

struct attention_bwd_args {
    struct attention_fwd_args fwd; /* out and lse as it wrote them */
    int64_t ld_dq, ld_dk, ld_dv;   /* rows of dout are fwd.ld_o apart */
    const void *dout;
    void *dq, *dk, *dv; /* dt; overwritten */
    bool unordered; /* the sums of dq need not have a fixed order, so that the results need not repeat bit for bit */
};

/* A sink, a learned logit of each head, joins the softmax of a query as a key without a value does: the weights of the
 * other keys add up to less than 1 (gpt-oss). The op follows attention_fwd: out becomes out · exp(lse) / (exp(lse) +
 * exp(sink)), and lse becomes log(exp(lse) + exp(sink)). attention_bwd takes both as they are then. */
struct attention_sink_fwd_args {
    enum dtype dtype;
    int64_t M, H, D, ld_o;
    void *out;         /* dt (M, H, D), in place */
    float *lse;        /* (H, M), in place */
    const void *sinks; /* dt (H) */
};

/* dsinks = sum over tokens of -exp(sink - lse) · (out · dout); out and lse are what attention_bwd takes. */
struct attention_sink_bwd_args {
    enum dtype dtype;
    int64_t M, H, D, ld_o; /* of out and dout */
    const void *out, *dout;
    const float *lse;
    const void *sinks;
    float *dsinks; /* (H) */
    bool accumulate;
};

/* Whether M tokens of sequences fill enough of as many places of T tokens for cuDNN, which would compute all places, to
 * be faster than ztrain's kernels, which compute the sequences at about half of the speed. */
enum { ATTENTION_QUARTERS_FILLED = 3 };
static inline bool attention_fills_places(int64_t M, int64_t num_seqs, int64_t T)
{
    return 4 * M >= ATTENTION_QUARTERS_FILLED * num_seqs * T;
}

/* Attention of M new tokens of one sequence over the keys and values of all its tokens, which are kept in a cache: for
 * generation, without a gradient. The cache holds those of `start` tokens; k and v of the new ones, which have the
 * positions start … start + M - 1, are stored behind them. Then the query at position p sees the keys 0 … p, or with a
 * window those of p-window+1 … p. Without q, nothing but the storing is done. */
struct attention_decode_args {
    enum dtype dtype;
    int64_t M, H, KV, D;
    int64_t ld_q, ld_k, ld_v, ld_o; /* elements between rows (tokens) */
    float scale, softcap;           /* as in attention_fwd */
    int64_t window;
    int64_t start, capacity; /* tokens; start + M is at most capacity */
    const void *q;           /* dt (M, H, D), or NULL */
    const void *k, *v;       /* dt (M, KV, D) of the new tokens */
    void *k_cache, *v_cache; /* dt (KV, capacity, D) */
    void *out;               /* dt (M, H, D), with q */
    const void *sinks;       /* dt (H), that join the softmax as in attention_sink_fwd, or NULL */
};

/* y[t, c] = silu(sum of weight[c, j] · x[t - K + 1 + j, c]), a convolution of each channel over K (1 … CONV_TAPS)
 * tokens. Rows before a sequence are zeros, or with `state` those that it holds, the last K inputs so far; then it gets
 * the last ones of x. */
enum { CONV_TAPS = 4 };
struct causal_conv_fwd_args {
    enum dtype dtype;
    int64_t M, C, K;
    int64_t ld_x, ld_y; /* elements between rows */
    int64_t num_seqs;
    const int32_t *seq_start; /* (num_seqs + 1), from 0 to M */
    void *y;                  /* dt (M, C) */
    const void *x;            /* dt (M, C) */
    const void *weight;       /* dt (C, K) */
    void *state;              /* dt (num_seqs, K, C), or NULL */
};

/* Of a forward pass without state. dx is not dy. */
struct causal_conv_bwd_args {
    enum dtype dtype;
    int64_t M, C, K;
    int64_t ld_x, ld_dy, ld_dx;
    int64_t num_seqs;
    const int32_t *seq_start;
    void *dx;
    const void *dy, *x, *weight;
    float *dweight; /* (C, K) or NULL */
    bool accumulate;
};

/* The gated delta rule (Yang et al. 2024). q and k get length 1 (x / sqrt(sum of x² + 1e-6)), and q is divided by
 * sqrt(Dk). With beta = sigmoid(b) and g = -exp(a_log) · softplus(a + dt_bias), each value head has a state S (Dk, Dv),
 * and each token:
 *
 *     S = exp(g) S      S += k ⊗ beta (v - Sᵀ k)      out = Sᵀ q
 *
 * Value head h uses q and k of head h / (Hv / Hk). Chunks of DELTA_CHUNK tokens are computed at a time, all in fp32. S
 * is 0 at the start of a sequence, or what `state` holds, which becomes the last S. A forward pass saves nothing:
 * backward computes the states at chunks' starts again, in the workspace; kept, they would be 1/64 of Dk · Dv floats a
 * token and head, several times the activations. On a GPU, Dk and Dv are at most DELTA_MAX_DIM. */
enum { DELTA_CHUNK = 64, DELTA_MAX_DIM = 128 };
struct delta_rule_fwd_args {
    enum dtype dtype;
    int64_t M, Hk, Hv, Dk, Dv;
    int64_t ld_qkv, ld_ab, ld_o; /* elements between rows: of q, k and v; of a and b; of out */
    int64_t num_seqs, max_seq;
    const int32_t *seq_start;    /* (num_seqs + 1) */
    const void *q, *k;           /* dt (M, Hk, Dk) */
    const void *v;               /* dt (M, Hv, Dv) */
    const void *a, *b;           /* dt (M, Hv) */
    const void *a_log, *dt_bias; /* dt (Hv) */
    void *out;                   /* dt (M, Hv, Dv) */
    float *state;                /* (num_seqs, Hv, Dk, Dv), or NULL */
};

/* Gradients have the layout of what they belong to, dout that of out. */
struct delta_rule_bwd_args {
    struct delta_rule_fwd_args fwd; /* out and state NULL */
    const void *dout;
    void *dq, *dk, *dv, *da, *db; /* dt; overwritten */
    float *da_log, *ddt_bias;     /* (Hv) or NULL */
    bool accumulate;              /* da_log and ddt_bias */
};

/* h = silu(gate) · up, or with `gelu` h = gelu_tanh(gate) · up (GeGLU), or with a limit (gpt-oss) h = g · sigmoid(alpha
 * · g) · (u + 1), where g is min(gate, limit), and u is up, clamped to ±limit. A row of gate_up (M, 2F): F of gate, F
 * of up, or `interleaved` a gate and its up in turn. */
struct swiglu_fwd_args {
    enum dtype dtype;
    int64_t M, F;
    void *h;             /* dt (M, F) */
    const void *gate_up; /* dt (M, 2F) */
    bool gelu, interleaved;
    float limit, alpha;  /* limit 0: none; with one, not gelu; without, not interleaved */
    const int32_t *rows; /* how many of the M rows there are; NULL: all */
};

/* y = x · sigmoid(gate), or with `gelu` x · gelu_tanh(gate) */
struct gate_fwd_args {
    enum dtype dtype;
    int64_t M, C, ld_gate;
    void *y;
    const void *x, *gate; /* dt (M, C); rows of gate ld_gate apart */
    int64_t ld_x;         /* elements between rows of x; 0: C */
    bool gelu;
};

/* dx may be dy or x, dgate may be gate. */
struct gate_bwd_args {
    enum dtype dtype;
    int64_t M, C, ld_gate; /* of dgate too */
    void *dx, *dgate;
    const void *dy, *x, *gate;
    int64_t ld_x; /* of dx too, which then is not dy; 0: C */
    bool gelu;
};

/* The gradient of gate and up without a limit: a row has F of gate, then F of up. dgate_up may be gate_up. */
struct swiglu_bwd_args {
    enum dtype dtype;
    int64_t M, F;
    void *dgate_up;
    const void *dh, *gate_up;
    bool gelu;
};

/* The ops that compute `gated` from y of a linear_fwd, and the gradient in `gate_up` from dx of a linear_bwd_input. */
static inline struct swiglu_fwd_args linear_gate_fwd(const struct linear_fwd_args *a)
{
    struct swiglu_fwd_args gate = {a->dtype, a->M, a->N / 2, a->gated, a->y, a->gated_gelu, false, 0, 0, NULL};
    return gate;
}

static inline struct swiglu_bwd_args linear_gate_bwd(const struct linear_bwd_input_args *a)
{
    struct swiglu_bwd_args gate = {a->dtype, a->M, a->K, a->gate_up, a->dx, a->gate_up, a->gated_gelu};
    return gate;
}

/* Mixtures of experts: each token goes to k of E experts. An assignment is a token's choice j, number m · k + j. The
 * rows of an expert are those of its assignments, in their order; the rows of all experts have the places 0 … M · k
 * - 1. Only the device knows where those of each begin.
 *
 * probs = softmax(logits), or sigmoid(logits). The k experts with the largest probs + bias are chosen, the lower one of
 * two equal ones; the logits decide where there is neither a bias nor groups. Groups are E / groups neighbours each;
 * only experts of the top_groups groups whose two best add up to the most are candidates. weights = scale · probs of
 * the chosen, which `normalize` divides by their sum: after softmax, that is the softmax over the logits of the chosen
 * (gpt-oss, Granite). */
enum { ROUTE_MAX_EXPERTS = 512, ROUTE_MAX_GROUPS = 32 };
struct route_args {
    enum dtype dtype; /* of logits: dt, or fp32 */
    int64_t M, E, k;
    bool sigmoid, normalize;
    float scale;
    int64_t groups, top_groups; /* groups 0: none */
    const void *logits;         /* (M, E) */
    const float *bias;          /* (E) or NULL */
    float *probs;               /* (M, E) */
    int32_t *experts;           /* (M, k): the best first */
    float *weights;             /* (M, k) */
    float *lse;                 /* (M) or NULL: log of the sum of the exponentials of a token's logits */
    /* What the auxiliary loss needs is added to, for the first `counted` tokens: each expert's number of assignments,
     * and its sum of probs. */
    int64_t counted;
    int32_t *counts;   /* (E) or NULL */
    double *prob_sums; /* (E) or NULL */
};
static const float route_eps = 1e-20f; /* added to the sum of sigmoids (DeepSeek-V3) */

/* dlogits: the gradient of the weights, that of aux_scale · the sum of probs · counts, and that of z_scale · the sum of
 * lse² over the first `counted` tokens. *loss_scale, which dweights have, multiplies both. */
struct route_bwd_args {
    enum dtype dtype;
    int64_t M, E, k;
    bool sigmoid, normalize;
    float scale;
    void *dlogits; /* dt (M, E) */
    const float *probs, *weights, *dweights;
    const int32_t *experts, *counts; /* counts NULL: without that loss */
    const float *lse;                /* NULL: without that loss; only of softmax */
    int64_t counted;
    float aux_scale, z_scale;
    const float *loss_scale; /* NULL: 1 */
};

/* The end of a forward pass: *aux_sum += scale · the sum of counts · prob_sums, loads += counts. */
struct sum_experts_args {
    int64_t E;
    double scale;
    const int32_t *counts;   /* (E) */
    const double *prob_sums; /* (E) */
    double *aux_sum;
    double *loads; /* (E) */
};

/* The order of assignments by expert: expert first + e has the places offsets[e] … offsets[e + 1] - 1. */
struct permute_experts_args {
    int64_t M, E, k;
    const int32_t *experts; /* (M, k), or -1 */
    int32_t *offsets;       /* (E + 1) */
    int32_t *places;        /* (M · k): of each assignment; -1: its expert is another one */
    int64_t first;
};

/* xe[places[i]] = x[i / k]. An assignment of place -1 is left out, here and below. */
struct gather_tokens_args {
    enum dtype dtype;
    int64_t M, k, C;
    void *xe;              /* dt (M · k, C) */
    const void *x;         /* dt (M, C) */
    const int32_t *places; /* (M · k) */
};

/* y[m] (+)= the sum over j of weights[m, j] · ye[places[m · k + j]], in the order of j. It is
 * the gradient of gather_tokens if there are no weights. */
struct combine_tokens_args {
    enum dtype dtype;
    int64_t M, k, C;
    void *y;               /* dt (M, C) */
    const void *ye;        /* dt (M · k, C) */
    const float *weights;  /* (M, k) or NULL: 1 */
    const int32_t *places; /* NULL: assignment i has place i */
    bool accumulate;
};

/* The gradients of combine_tokens for k = 1 without places, y = weights · x: dx may be x. */
struct scale_rows_bwd_args {
    enum dtype dtype;
    int64_t M, C;
    void *dx;
    const void *dy, *x;
    const float *weights; /* (M) */
    float *dweights;      /* (M) */
};

/* dweights[m, j] += bias[experts[m, j]] · dy[m]: experts add biases to their outputs. */
struct combine_bias_bwd_args {
    enum dtype dtype;
    int64_t M, k, E, C;
    float *dweights;        /* (M, k) */
    const void *bias, *dy;  /* dt (E, C), (M, C) */
    const int32_t *experts; /* (M, k) */
};

/* SwiGLU (swiglu_fwd) in backward, before the products with the down matrices: y = weight · (down · SwiGLU), and row
 * places[i] of dh is the gradient of assignment i's SwiGLU without its weight, downᵀ · dy. Writes the gradient of gate
 * and up; h, weight · SwiGLU, what dy is multiplied with for the gradient of down; dweights, SwiGLU · dh, 0 for place
 * -1. dgate_up may be gate_up, h may be dh. */
struct experts_swiglu_bwd_args {
    enum dtype dtype;
    int64_t M, F; /* M: assignments */
    void *dgate_up, *h;
    const void *dh, *gate_up;
    bool interleaved;
    float limit, alpha;
    const float *weights; /* (M) */
    float *dweights;      /* (M) */
    const int32_t *places;
    float *row_weights; /* (M) by place, or NULL */
};

/* The products of linear_fwd, linear_bwd_input and linear_bwd_weight for each expert: its rows of x, y, dx and dy with
 * its matrix, offsets as from permute_experts. Rows from offsets[E] on are left alone; M is the number of all. */
struct grouped_linear_fwd_args {
    enum dtype dtype;
    bool weights_in_out;
    int64_t M, N, K, E;
    void *y;                /* dt (M, N) */
    const void *x;          /* dt (M, K) */
    const void *w;          /* dt (E, N, K), or (E, K, N) with weights_in_out */
    const void *bias;       /* dt (E, N) or NULL */
    const int32_t *offsets; /* (E + 1) */
    bool accumulate;        /* y += */
};

struct grouped_linear_bwd_input_args {
    enum dtype dtype;
    bool weights_in_out;
    int64_t M, N, K, E;
    void *dx;       /* dt (M, K) */
    const void *dy; /* dt (M, N) */
    const void *w;
    const int32_t *offsets;
    bool accumulate; /* dx += */
};

/* The same product. */
static inline struct grouped_linear_fwd_args grouped_linear_of_bwd_input(const struct grouped_linear_bwd_input_args *a)
{
    struct grouped_linear_fwd_args forward = {
        a->dtype, !a->weights_in_out, a->M, a->K, a->N, a->E, a->dx, a->dy, a->w, NULL, a->offsets, a->accumulate};
    return forward;
}

struct grouped_linear_bwd_weight_args {
    enum dtype dtype, dw_dtype; /* dw_dtype: DTYPE_F32, or bf16 where dt is bf16 */
    bool weights_in_out;
    int64_t M, N, K, E;
    void *dw;     /* dw_dtype, stored as w is */
    float *dbias; /* (E, N) or NULL */
    const void *dy, *x;
    const int32_t *offsets;
    bool accumulate, accumulate_dbias;
    const float *row_weights; /* (M) of dy's rows, for dbias only; NULL: 1 */
};

/* *loss_sum += the sum over rows with target >= 0 of the cross-entropy of softmax(z) and of the row's wanted
 * distribution q = (1 - smoothing) · onehot(target) + smoothing / V (torch's cross_entropy with label_smoothing), in
 * row order, in double. z is logit_scale · logits, with softcap softcap · tanh of that / softcap. With dlogits: dlogits
 * = scale · *step_scale · *loss_scale · (softmax - q) · dz/dlogits, 0 in rows without a target. dlogits (dt) may lie
 * over the logits, at the same address and row distance in bytes, even if it is narrower (fp32 to bf16). linear: a
 * row's loss is its target's -z instead, with the gradient -1.
 *
 * With a teacher (K > 0; without smoothing) a row's loss is (1 - alpha) · cross-entropy + alpha · T² · KL(t ||
 * softmax(z / T)). t are the teacher's probabilities at temperature T, over the K tokens of the row that it has, which
 * rise. */
struct cross_entropy_args {
    enum dtype dtype, logits_dtype;
    int64_t M, V, ld_logits, ld_dlogits;
    int64_t V_padded;   /* columns V … V_padded - 1 of dlogits become 0; V or less: none */
    const void *logits; /* logits_dtype (M, V) */
    void *dlogits;      /* dt (M, V) or NULL */
    const int32_t *targets;
    float logit_scale;
    float softcap; /* 0: none */
    float scale;
    float smoothing; /* of the labels, 0 … 1 */
    bool linear;
    int64_t K;
    const int32_t *teacher_ids; /* (M, K) */
    const float *teacher_logps; /* (M, K) log-probabilities */
    float temperature, alpha;   /* temperature above 0 */
    const float *step_scale;    /* device scalars that multiply `scale`, in this order; NULL: 1 */
    const float *loss_scale;
    const float *row_scale; /* (M) the same, of each row; NULL: 1 */
    float *row_losses;      /* (M) or NULL */
    double *loss_sum;
};

/* y = tanh(x), n elements. y may be x. */
struct tanh_fwd_args {
    enum dtype dtype;
    int64_t n;
    void *y;
    const void *x;
};

/* dx = dy · (1 - y²), n elements; y is the result of tanh_fwd. dx may be dy. */
struct tanh_bwd_args {
    enum dtype dtype;
    int64_t n;
    void *dx;
    const void *dy, *y;
};

/* y = factor · (a + b), n elements. y may be a or b. */
struct add_args {
    enum dtype dtype;
    int64_t n;
    void *y;
    const void *a, *b;  /* b NULL: 0 */
    const void *factor; /* dt (1); NULL: 1 */
};

/* y = x where an element is kept, times dropout.scale; else 0. Rows of C elements. y may be x. */
struct dropout_args {
    enum dtype dtype;
    int64_t M, C;
    void *y;       /* dt (M, C) */
    const void *x; /* dt (M, C) */
    struct dropout dropout;
};

/* dst = src, n elements, rounded to nearest even. The dtypes may be equal. */
struct cast_args {
    enum dtype dst_dtype, src_dtype;
    int64_t n;
    void *dst;
    const void *src;
};

/* dequantize: out = values stored in 4 or 8 bits (core/quantization/dequantize.h). `out` may begin at any element. */

/* dst = scale · src, or with accumulate (scale 1) dst + src; n elements, in fp32, rounded once, to nearest even. */
struct accumulate_args {
    enum dtype dst_dtype, src_dtype;
    int64_t n;
    void *dst;
    const void *src;
    float scale;
    bool accumulate;
};

/* out = (([out +] x_0) + x_1) + … over the contributions of ranks 0 … ranks - 1, n elements, added in fp32 in this
 * order: the bits of sum_ranks() of comm/sums.h. x_rank is `own`, which out may be if the dtype is fp32. */
struct sum_ranks_args {
    enum dtype dtype, out_dtype; /* out_dtype: fp32, or bf16, to which the sum is rounded */
    int64_t n, ranks, rank;
    void *out;
    const void *own;   /* dt (n) */
    const void *inbox; /* dt (ranks, n); that of `rank` is not read */
    bool accumulate;
};

/* *out = the sum of x[i]² in double, in an order that depends on n only. A non-finite x[i] makes it non-finite. */
struct sumsq_args {
    enum dtype dtype; /* DTYPE_F32 or DTYPE_BF16 */
    int64_t n;
    const void *x;
    double *out;
};

/* The outcome of an optimizer step, in device memory: decide_step writes it, adam reads it, and the host copies it
 * later. optimizer_step and scaler carry over from step to step; the other members describe the latest step. */
struct step_state {
    int64_t optimizer_step; /* updates made so far: t of Adam, k of the schedule */
    struct loss_scaler scaler;
    double loss_sum;  /* of all ranks */
    double grad_norm; /* unscaled, before clipping */
    double lr;
    double correction1, correction2; /* 1-β1^t, 1-β2^t, or 1 without bias correction */
    double beta1, beta2;
    float loss_scale;      /* the factor of the loss in the next backward */
    float used_loss_scale; /* the same in this step's backward */
    float grad_scale;      /* clip factor / used_loss_scale */
    int32_t skipped;       /* a gradient is not finite: adam updates nothing */
    int32_t bad_unit;      /* the first unit with gradients that are not finite; -1: none */
    int32_t bad_loss_rank; /* the first rank whose loss is not finite; -1: none */
};

/* What the schedule sets for one optimizer step: learning rate, Adam's bias corrections and decay rates. */
struct step_rates {
    double lr, correction1, correction2;
    double beta1, beta2; /* double: at β2 = 0.999, 1-β2 in fp32 has a relative error of 1e-5 */
};

/* The rates of a step, in device memory. The host enqueues a step before it knows whether the previous one was skipped,
 * so it provides the rates for either case. */
enum { STEP_RATES = 2 };
struct step_schedule {
    int64_t base;                        /* rates[i] belong to optimizer step base + 1 + i */
    struct step_rates rates[STEP_RATES]; /* state->optimizer_step - base is in 0 … STEP_RATES-1 */
};

/* Computes *state from all reports: norm² as a sum over units, and in a unit over ranks, in double; skipped if it is
 * not finite; the clip factor clip / (norm + 1e-6) if norm > clip > 0; the next loss scale; the rates. */
struct decide_step_args {
    int32_t world, units;
    int32_t turns;         /* rows of a real rank: N = world / turns ranks. The t-th row of rank r has the loss sum of
                              virtual rank t·N + r, and they are added in the order of virtual ranks */
    const double *reports; /* (world, units + 1): a rank's sum of squares for each unit, then a loss sum */
    double grad_factor;    /* the gradients are this times those of the scaled loss; > 0 */
    double clip;
    struct loss_scaler_rules scaler;
    const struct step_schedule *schedule;
    struct step_state *state;
};

/* If *enabled is not 0: *index = the smallest i with x[i] not finite, or n. Otherwise nothing is read or written. */
struct find_nonfinite_args {
    enum dtype dtype; /* DTYPE_F32 or DTYPE_BF16 */
    int64_t n;
    const void *x;
    const int32_t *enabled;
    int64_t *index;
};

/* Elements before `end` that no segment before it has. Segments of an op lie in the memory of its other operands; their
 * ends rise, are multiples of DECAY_ALIGN, and the last one is n or more. */
enum { DECAY_ALIGN = 8 };
struct decay_segment {
    int64_t end;
    float weight_decay;
};

/* Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019), n elements, one pass:
 *   g = grad · grad_scale;  adamw: w -= lr · weight_decay · w, else g += weight_decay · w;
 *   m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²;  w -= lr · (m / correction1) / (sqrt(v / correction2) + eps)
 * lr, grad_scale, the betas and the corrections come from *step. If step->skipped, nothing is read or written.
 * States in bf16 are rounded stochastically, keyed by step->optimizer_step and `rounding`
 * (core/training/stochastic_rounding.h). */
struct adam_args {
    int64_t n;
    void *master, *m, *v;
    enum dtype master_dtype, moment_dtype; /* fp32 both, or bf16 and either: then param is NULL */
    struct rounding_place rounding;        /* of element 0; used with states in bf16 */
    const void *grad;
    enum dtype grad_dtype; /* DTYPE_F32 or DTYPE_BF16 */
    const struct step_state *step;
    void *param; /* param_dtype (n), or NULL: gets the rounded master */
    enum dtype param_dtype;
    float eps, weight_decay;
    const struct decay_segment *segments; /* not NULL: they have the weight decay, and weight_decay is unused */
    bool adamw;
};

/* AdamW with moments in 8 bits, n elements, a multiple of MOMENT_BLOCK: block i of m and v has elements 256 i and those
 * after it. The bits of torchao's AdamW8bit (eager, on a CPU with FMA, square roots rounded correctly) at every level
 * of instructions; each operation rounds to fp32, and fma() once:
 *   g = grad · grad_scale;  m, v: map value · scale;  w -= (lr · weight_decay) · w;
 *   m = fma(1-β1, g - m, m);  v = fma(1-β2, g² - v, v), counted from the other end if 1-β is a half or more;
 *   w -= lr · (m / c1) / (sqrt(v) / sqrt(c2) + eps);  c = 1 - powf(β, t), or 1 if step->correction is 1;
 *   scale = max(1e-12, the largest |x| of a block);  code = dynamic_map_code(x / scale), v's in the unsigned map
 * If step->skipped, nothing is read or written. */
struct adam8_args {
    int64_t n;
    float *master;
    struct moment_block *m, *v;
    const void *grad;
    enum dtype grad_dtype; /* DTYPE_F32 or DTYPE_BF16 */
    const struct step_state *step;
    void *param; /* param_dtype (n), or NULL: gets the rounded master */
    enum dtype param_dtype;
    float eps, weight_decay;
    const struct decay_segment *segments; /* as in adam_args; all ends are multiples of MOMENT_BLOCK */
};

/* Optimizers with at most one moment, n elements, one pass; g = grad · grad_scale:
 *   Lion (Chen et al. 2023): w -= lr · weight_decay · w;  w -= lr · sign(β1 m + (1-β1) g);  m = β2 m + (1-β2) g
 *   SGD (as torch.optim.SGD): g += weight_decay · w;  m = g in the first update, then momentum · m + (1-dampening) g;
 *                             w -= lr · (nesterov ? g + momentum · m : m); without m: w -= lr · g
 * lr, grad_scale, betas and the count of updates are *step's. If step->skipped, nothing is read or written. sign(0) is
 * 0. */
struct momentum_args {
    enum optimizer_type rule; /* OPTIMIZER_LION or OPTIMIZER_SGD */
    int64_t n;
    float *master;
    float *m; /* NULL: SGD without momentum */
    const void *grad;
    enum dtype grad_dtype; /* DTYPE_F32 or DTYPE_BF16 */
    const struct step_state *step;
    void *param; /* param_dtype (n), or NULL: gets the rounded master */
    enum dtype param_dtype;
    float weight_decay, momentum, dampening;
    const struct decay_segment *segments; /* as in adam_args */
    bool nesterov;
};

/* Muon (Jordan et al. 2024; as torch.optim.Muon) takes three ops. The first one, n elements, any range of a matrix:
 *   g = grad · grad_scale;  m = momentum · m + (1-momentum) g;  update = nesterov ? momentum · m + (1-momentum) g : m
 * If step->skipped, nothing is read or written. */
struct muon_momentum_args {
    int64_t n;
    float *m;
    const void *grad;
    enum dtype grad_dtype; /* DTYPE_F32 or DTYPE_BF16 */
    const struct step_state *step;
    void *update; /* bf16 (n), rounded to nearest even */
    float momentum;
    bool nesterov;
};

/* The second one: y = a matrix near U Vᵀ, where x = U S Vᵀ, by Newton-Schulz iterations in bf16. With X (n, k) = x,
 * transposed if it has more rows than columns, divided by the larger of its Frobenius norm (rounded to bf16) and 1e-7,
 * each step computes, all but the sums of the products rounded to bf16,
 *   A = X Xᵀ;  B = -4.775 A + 2.0315 A A;  X = 3.4445 X + B X
 * The singular values of y lie between about 0.7 and 1.2. y may be x. */
struct orthogonalize_args {
    int64_t rows, cols;
    int32_t steps;    /* 1 or more */
    const void *x;    /* bf16 (rows, cols) */
    void *y;          /* bf16 (rows, cols) */
    float *product;   /* scratch (rows · cols) */
    void *iterate;    /* scratch, bf16 (rows · cols); not x or y */
    void *gram;       /* scratch, bf16 (n · n), n = min(rows, cols) */
    void *polynomial; /* scratch, bf16 (n · n) */
    double *sum;      /* scratch */
};
static const float orthogonalize_a = 3.4445f, orthogonalize_b = -4.775f, orthogonalize_c = 2.0315f;
static const float orthogonalize_eps = 1e-7f;

/* The third one, n elements, any range: w -= lr · lr_factor · weight_decay · w;  w -= lr · lr_factor · adjust · update
 * If step->skipped, nothing is read or written. */
struct muon_update_args {
    int64_t n;
    float *master;
    const void *update; /* bf16 (n): the orthogonal matrix */
    const struct step_state *step;
    void *param; /* param_dtype (n), or NULL: gets the rounded master */
    enum dtype param_dtype;
    float weight_decay;
    double lr_factor; /* of step->lr */
    double adjust;    /* by the shape of the matrix */
};

/* clang-format off */
#define OPS_LIST(X) \
    X(embedding_fwd) X(embedding_bwd) X(norm_fwd) X(norm_bwd) \
    X(linear_fwd) X(linear_bwd_input) X(linear_bwd_weight) X(head_norm_fwd) X(head_norm_bwd) \
    X(rope) X(swap_heads) X(attention_fwd) X(attention_bwd) X(attention_decode) \
    X(attention_sink_fwd) X(attention_sink_bwd) \
    X(causal_conv_fwd) X(causal_conv_bwd) X(delta_rule_fwd) X(delta_rule_bwd) \
    X(swiglu_fwd) X(swiglu_bwd) X(gate_fwd) X(gate_bwd) X(tanh_fwd) X(tanh_bwd) X(cross_entropy) X(add) \
    X(route) X(route_bwd) X(sum_experts) X(permute_experts) X(gather_tokens) X(combine_tokens) X(scale_rows_bwd) X(combine_bias_bwd) X(experts_swiglu_bwd) \
    X(grouped_linear_fwd) X(grouped_linear_bwd_input) X(grouped_linear_bwd_weight) \
    X(dropout) X(cast) X(dequantize) X(accumulate) X(sum_ranks) \
    X(sumsq) X(decide_step) X(find_nonfinite) X(adam) X(adam8) \
    X(momentum) X(muon_momentum) X(orthogonalize) X(muon_update)
/* clang-format on */

#define OPS_COUNT_ONE(name) +1
enum { OPS_COUNT = 0 OPS_LIST(OPS_COUNT_ONE) };

struct op_table {
#define OPS_MEMBER(name) void (*name)(struct stream * stream, const struct name##_args *args);
    OPS_LIST(OPS_MEMBER)
#undef OPS_MEMBER
};
STATIC_ASSERT(sizeof(struct op_table) == OPS_COUNT * sizeof(void (*)(void)), "every op has one entry");

/* Runs an op of a table with the named members of its arguments (in C). */
#define RUN_OP(ops, op, stream, ...) (ops)->op(stream, &(const struct op##_args){__VA_ARGS__})

/* Upper bounds of the sizes that a run's ops will be called with. */
enum { OPS_ATTENTION_SHAPES = 8 };
struct op_limits {
    enum dtype dtype;
    int64_t max_tokens; /* M */
    int64_t C, F, H, KV, D, V, P;
    int64_t max_head_norm;              /* the longest row of a head norm; 0: D */
    int64_t max_embedding;              /* the longest row of an embedding; 0: C */
    int64_t max_linear_k, max_linear_n; /* the largest K and N of a matrix product */
    int32_t max_seqs, max_seq;
    /* The attention of a full micro-batch, without pointers, in each shape that layers have, and the number of these
     * layers. A device that can compile kernels for a shape prepares them, also for an evaluation, without dropout. */
    struct attention_bwd_args attention[OPS_ATTENTION_SHAPES];
    int64_t attention_layers[OPS_ATTENTION_SHAPES];
    int num_attention;
    /* The sizes of a full micro-batch's delta rule, and of the convolution of its q, k and v; M 0: none. */
    struct delta_rule_fwd_args delta_rule;
    bool backward;           /* of attention and the delta rule is computed too */
    int64_t max_expert_rows; /* M · k of the most; 0: no experts */
};

/* The matrix products of a run. Only whether a pointer is NULL, and its alignment, matter. */
struct linear_products {
    struct linear_fwd_args *fwd;
    struct linear_bwd_input_args *bwd_input;
    struct linear_bwd_weight_args *bwd_weight;
    int num_fwd, num_bwd_input, num_bwd_weight;
    /* gradients of x as grouped_linear_of_bwd_input(); offsets[E] is M */
    const struct grouped_linear_fwd_args *grouped;
    int num_grouped;
};

/* Announces the matrix products of a run, before its memory is allocated: a device that chooses its kernels by
 * measuring (CUDA) does so now, on memory of its own. A product that was not announced is computed too. */
enum status ops_prepare(struct device *device, const struct linear_products *products, struct error *err);

/* Why no library computes this attention on any GPU; NULL: one may. */
const char *attention_own_reason(const struct attention_fwd_args *args);

/* After ops_prepare(): why slower kernels than it could have compute this attention, forward or backward: that reason,
 * or a library that is missing or refuses it. NULL: they do not; borrowed. */
const char *device_attention_obstacle(struct device *device, const struct attention_fwd_args *args, bool backward);

/* For every op within the limits: stream_set_workspace(). */
size_t ops_workspace_bytes(struct device *device, const struct op_limits *limits);

/* The bytes of workspace that are enough for sumsq and find_nonfinite on any device. */
enum { OPS_SUMS_WORKSPACE = 16 << 10 };

/* A line for the log on how ops are computed; empty where there is only one way. */
void ops_describe(struct device *device, char *text, size_t size);

__END_DECLS
