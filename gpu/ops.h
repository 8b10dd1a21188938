/* ops.h: every operation, once. The CPU backend and the CUDA backend each implement the whole list.
 *
 * Letters: M tokens of a micro-batch · C hidden · F MLP inner · H heads · KV key/value heads · D head size · V
 * vocabulary · P positions. Matrices are row-major; `dt` is the compute dtype of the op (a->dtype: DTYPE_F32,
 * DTYPE_BF16 or DTYPE_F16). Inside, ops compute in fp32 (sums over rows: fixed order, so that results repeat bit for
 * bit for one number of threads). Parameter gradients are fp32. `accumulate` true adds to what is there, false
 * overwrites it. All pointers are device memory. Ops run in the order of `stream`, allocate nothing, and may use the
 * stream's workspace. Buffers do not overlap unless an op says so. M, or a count, of 0 is allowed and does nothing (but
 * zero overwritten gradients). Buffers are 64-byte aligned at row 0 (arena, tensor table); rows need not be. */
#ifndef ZTRAIN_GPU_OPS_H
#define ZTRAIN_GPU_OPS_H

#include "core/dtype.h"
#include "core/loss_scaler.h"
#include "core/model.h"
#include "gpu/device.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = wte[tokens[i]] + wpe[positions[i]] */
struct embedding_fwd_args {
    enum dtype dtype;
    int64_t M, C;
    void *out;                         /* dt (M, C) */
    const int32_t *tokens, *positions; /* (M) */
    const void *wte;                   /* dt (V, C) */
    const void *wpe;                   /* dt (P, C) or NULL */
};

/* dwte[tokens[i]] += dout[i]; dwpe[positions[i]] += dout[i]; rows in the order of i; deterministic */
struct embedding_bwd_args {
    enum dtype dtype;
    int64_t M, C, V, P;
    float *dwte; /* (V, C) */
    float *dwpe; /* (P, C) or NULL */
    bool accumulate_wte, accumulate_wpe;
    const void *dout; /* dt (M, C) */
    const int32_t *tokens, *positions;
};

/* x_out = x + delta (delta NULL: x_out is not written, x is normed); y = norm(x_out) · weight + bias, over rows of C.
 * x_out may be x. Residual add and norm are one pass. */
struct norm_fwd_args {
    enum dtype dtype;
    enum norm_kind kind;
    int64_t M, C;
    float eps;
    void *y;                   /* dt (M, C) */
    void *x_out;               /* dt (M, C), with delta */
    const void *x;             /* dt (M, C) */
    const void *delta;         /* dt (M, C) or NULL */
    const void *weight, *bias; /* dt (C); bias NULL for RMS */
    float *mean, *rstd;        /* (M); mean only for NORM_LAYER (else NULL) */
};

/* dx = dres + gradient of the norm with respect to its input x (what x_out was in forward); dres NULL: none.
 * dx may be dres. dweight, dbias: sums over rows. */
struct norm_bwd_args {
    enum dtype dtype;
    enum norm_kind kind;
    int64_t M, C;
    void *dx;         /* dt (M, C) */
    const void *dres; /* dt (M, C) or NULL */
    const void *dy;   /* dt (M, C) */
    const void *x;    /* dt (M, C) */
    const void *weight;
    const float *mean, *rstd;
    float *dweight, *dbias; /* (C); dbias NULL for RMS */
    bool accumulate;
};

/* y = x · W + bias. W is (N, K) (y = x · Wᵀ, as torch.nn.Linear), or (K, N) with weights_in_out (GPT-2's Conv1D).
 * With `gelu`: aux = x · W + bias, y = gelu_tanh(aux). y_dtype may be DTYPE_F32 while dtype is DTYPE_BF16 (logits). */
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
    void *aux; /* dt (M, N) with gelu, else NULL */
};

/* dx (+)= dy · Wᵀ. With gelu_aux (dt (M, K): the aux of the layer before): dx = (dy · Wᵀ) · gelu_tanh'(gelu_aux). */
struct linear_bwd_input_args {
    enum dtype dtype;
    bool weights_in_out;
    int64_t M, N, K;
    void *dx;       /* dt (M, K) */
    const void *dy; /* dt (M, N), rows ld_dy apart */
    int64_t ld_dy;  /* elements; 0: N */
    const void *w;
    const void *gelu_aux; /* or NULL */
    bool accumulate;      /* not together with gelu_aux */
};

/* dw (+)= dyᵀ · x, in W's layout; dbias (+)= sum of dy over rows */
struct linear_bwd_weight_args {
    enum dtype dtype;
    bool weights_in_out;
    int64_t M, N, K;
    float *dw;    /* (N, K), or (K, N) with weights_in_out */
    float *dbias; /* (N) or NULL */
    const void *dy;
    int64_t ld_dy;
    const void *x;
    bool accumulate;
};

/* RMSNorm of every head: y[i, h] = x[i, h] · rstd · weight, over D. Rows of x and y are ld_x and ld_y elements apart.
 */
struct head_norm_fwd_args {
    enum dtype dtype;
    int64_t M, heads, D, ld_x, ld_y;
    float eps;
    void *y;            /* dt (M, heads, D) */
    const void *x;      /* dt (M, heads, D) */
    const void *weight; /* dt (D) */
    float *rstd;        /* (M, heads) */
};

/* dx = gradient; dx may be dy. dweight (D): sum over rows and heads */
struct head_norm_bwd_args {
    enum dtype dtype;
    int64_t M, heads, D, ld_x, ld_dy, ld_dx;
    void *dx;
    const void *dy, *x, *weight;
    const float *rstd;
    float *dweight;
    bool accumulate;
};

/* Rotary position embedding in place, "rotate half": pairs (i, i + D/2). inverse: the transposed rotation (backward).
 */
struct rope_args {
    enum dtype dtype;
    int64_t M, heads, D, ld;
    void *x;                            /* dt (M, heads, D), rows ld apart */
    const int32_t *positions;           /* (M) */
    const float *cos_table, *sin_table; /* (P, D/2) */
    bool inverse;
};

/* Causal attention within each sequence, without the full score matrix (online softmax over blocks of keys).
 * Query head h uses key/value head h / (H / KV). window > 0: a query at p sees keys p-window+1 … p. On a GPU D is at
 * most CUDA_MAX_HEAD_DIM: a tile of so many columns fills its registers. */
enum { CUDA_MAX_HEAD_DIM = 256 };
struct attention_fwd_args {
    enum dtype dtype;
    int64_t M, H, KV, D;
    int64_t ld_q, ld_k, ld_v, ld_o; /* elements between rows (tokens) */
    float scale;                    /* 1/sqrt(D) */
    int64_t window;
    int32_t num_seqs, max_seq;
    const int32_t *seq_start; /* (num_seqs + 1) */
    const void *q;            /* dt (M, H, D) */
    const void *k, *v;        /* dt (M, KV, D) */
    void *out;                /* dt (M, H, D) */
    float *lse;               /* (H, M): log of the sum of exponentials of a row's scaled scores, for backward */
};

struct attention_bwd_args {
    enum dtype dtype;
    int64_t M, H, KV, D;
    int64_t ld_q, ld_k, ld_v, ld_o; /* of q, k, v, out and dout */
    int64_t ld_dq, ld_dk, ld_dv;
    float scale;
    int64_t window;
    int32_t num_seqs, max_seq;
    const int32_t *seq_start;
    const void *q, *k, *v, *out, *dout;
    const float *lse;
    void *dq, *dk, *dv; /* dt; overwritten */
};

/* The forward op that a backward op belongs to; without out and lse, which it wrote. */
static inline struct attention_fwd_args attention_forward_of(const struct attention_bwd_args *a)
{
    struct attention_fwd_args forward = {a->dtype, a->M,    a->H,     a->KV,     a->D,        a->ld_q,    a->ld_k,
                                         a->ld_v,  a->ld_o, a->scale, a->window, a->num_seqs, a->max_seq, a->seq_start,
                                         a->q,     a->k,    a->v,     NULL,      NULL};
    return forward;
}

/* h = silu(gate) · up; gate_up (M, 2F): a row is F of gate, then F of up */
struct swiglu_fwd_args {
    enum dtype dtype;
    int64_t M, F;
    void *h;             /* dt (M, F) */
    const void *gate_up; /* dt (M, 2F) */
};

/* dgate_up may be gate_up */
struct swiglu_bwd_args {
    enum dtype dtype;
    int64_t M, F;
    void *dgate_up;
    const void *dh, *gate_up;
};

/* *loss_sum += sum over rows with target >= 0 of -log softmax(logits)[target]; rows in order, double.
 * With dlogits: dlogits = scale · *loss_scale · (softmax - onehot), zero rows where there is no target; dlogits (dt)
 * may start at the same address as logits with the same bytes between rows (in place, also from fp32 to bf16). */
struct cross_entropy_args {
    enum dtype dtype, logits_dtype;
    int64_t M, V, ld_logits, ld_dlogits;
    int64_t V_padded;   /* columns V … V_padded - 1 of dlogits become 0; none if it is not more than V */
    const void *logits; /* logits_dtype (M, V) */
    void *dlogits;      /* dt (M, V) or NULL */
    const int32_t *targets;
    float scale;
    const float *loss_scale; /* device scalar that multiplies `scale`; NULL: 1 */
    double *loss_sum;
};

/* y = a + b, n elements; y may be a or b */
struct add_args {
    enum dtype dtype;
    int64_t n;
    void *y;
    const void *a, *b;
};

/* dst = src, n elements, rounded to nearest even; dtypes may be equal */
struct cast_args {
    enum dtype dst_dtype, src_dtype;
    int64_t n;
    void *dst;
    const void *src;
};

/* *out = sum of x[i]², in double, in a fixed order that depends on n only. A non-finite x makes it non-finite. */
struct sumsq_args {
    int64_t n;
    const float *x;
    double *out;
};

/* What an optimizer step comes to, in device memory: decide_step writes it, adam obeys it, the host reads a copy when
 * it likes, so that nobody waits for the host inside a step. optimizer_step and scaler go on from step to step; all
 * else is of the last step. */
struct step_state {
    int64_t optimizer_step; /* updates made so far: t of Adam, k of the schedule */
    struct loss_scaler scaler;
    double loss_sum;  /* of all ranks */
    double grad_norm; /* unscaled, before clipping */
    double lr;
    double correction1, correction2; /* 1-β1^t, 1-β2^t, or 1 without bias correction */
    float loss_scale;                /* what the next backward multiplies the loss by */
    float used_loss_scale;           /* what this step's backward did */
    float grad_scale;                /* clip factor / used_loss_scale */
    int32_t skipped;                 /* a gradient was not finite: nothing is updated */
    int32_t bad_unit;                /* first unit whose gradients are not finite, -1: none */
    int32_t bad_loss_rank;           /* first rank whose own loss is not finite, -1: none */
};

/* Learning rate and bias corrections of one optimizer step. */
struct step_rates {
    double lr, correction1, correction2;
};

/* The host enqueues a step before it knows whether the one before was skipped: it gives rates for either case, in
 * device memory, as all that changes from step to step. */
enum { STEP_RATES = 2 };
struct step_schedule {
    int64_t base;                        /* rates[i] are of optimizer step base + 1 + i */
    struct step_rates rates[STEP_RATES]; /* state->optimizer_step - base must be one of 0 … STEP_RATES-1 */
};

/* *state from what all ranks report: norm² = sum over units, in each over ranks, in double; skipped if it is not
 * finite; the clip factor clip / (norm + 1e-6) where norm > clip > 0; the loss scale of the next step; the rates. */
struct decide_step_args {
    int32_t world, units;
    const double *reports; /* (world, units + 1): sums of squares of a rank's slices, then its loss sum */
    double clip;
    struct loss_scaler_rules scaler;
    const struct step_schedule *schedule;
    struct step_state *state;
};

/* Where *enabled is not 0: *index = the smallest i with x[i] not finite, n if there is none. Else nothing is done. */
struct find_nonfinite_args {
    int64_t n;
    const float *x;
    const int32_t *enabled;
    int64_t *index;
};

/* Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019), n elements, one pass:
 *   g = grad · grad_scale;  adamw: w -= lr · weight_decay · w, else g += weight_decay · w;
 *   m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²;  w -= lr · (m / correction1) / (sqrt(v / correction2) + eps)
 * with lr, grad_scale and the corrections of *step; where step->skipped, nothing is touched. */
struct adam_args {
    int64_t n;
    float *master, *m, *v;
    const float *grad;
    const struct step_state *step;
    void *param; /* param_dtype (n): master rounded, or NULL */
    enum dtype param_dtype;
    float eps, weight_decay;
    double beta1, beta2; /* double: 1-β2 in fp32 would be off by 2e-5 */
    bool adamw;
};

#define OPS_LIST(X)      \
    X(embedding_fwd)     \
    X(embedding_bwd)     \
    X(norm_fwd)          \
    X(norm_bwd)          \
    X(linear_fwd)        \
    X(linear_bwd_input)  \
    X(linear_bwd_weight) \
    X(head_norm_fwd)     \
    X(head_norm_bwd)     \
    X(rope)              \
    X(attention_fwd)     \
    X(attention_bwd)     \
    X(swiglu_fwd)        \
    X(swiglu_bwd)        \
    X(cross_entropy)     \
    X(add)               \
    X(cast)              \
    X(sumsq)             \
    X(decide_step)       \
    X(find_nonfinite)    \
    X(adam)

#define OPS_COUNT_ONE(name) +1
enum { OPS_COUNT = 0 OPS_LIST(OPS_COUNT_ONE) };

struct op_table {
#define OPS_MEMBER(name) void (*name)(struct stream * stream, const struct name##_args *args);
    OPS_LIST(OPS_MEMBER)
#undef OPS_MEMBER
};
STATIC_ASSERT(sizeof(struct op_table) == OPS_COUNT * sizeof(void (*)(void)), "every op has one entry");

/* The sizes that bound what ops will be asked for in a run. */
struct op_limits {
    enum dtype dtype;
    int64_t max_tokens; /* M */
    int64_t C, F, H, KV, D, V, P;
    int64_t max_linear_k, max_linear_n; /* largest K and N of a linear */
    int32_t max_seqs, max_seq;
    /* The attention of a full micro-batch as the ops will be asked for it (pointers are not looked at); M 0: none is
     * announced. A device that has a kernel for just this shape gets it ready; any other is computed all the same. */
    struct attention_fwd_args attention_fwd;
    struct attention_bwd_args attention_bwd;
};

/* The matrix products of a run, as the ops will be asked for them; of pointers only whether they are NULL, and their
 * alignment, count. A device that chooses kernels by measuring does it now, outside the steps (CUDA; on memory of its
 * own, so before the run's own is allocated). A product that was not announced is computed all the same. */
struct linear_products {
    const struct linear_fwd_args *fwd;
    const struct linear_bwd_input_args *bwd_input;
    const struct linear_bwd_weight_args *bwd_weight;
    int num_fwd, num_bwd_input, num_bwd_weight;
};
enum status ops_prepare(struct device *device, const struct linear_products *products, struct error *err);

/* Bytes of workspace that a stream needs so that every op within the limits runs. */
size_t ops_workspace_bytes(struct device *device, const struct op_limits *limits);

/* One line for people on which of several ways ops are computed; empty if there is but one. */
void ops_describe(struct device *device, char *text, size_t size);

/* Time and work by op since the last reset, for benchmarks and the profile. Off by default; while on, calls are timed
 * (the CPU device; CUDA synchronises, so profile runs are slower). */
struct op_profile {
    const char *name;
    int64_t calls;
    double seconds, flops, bytes;
};
void ops_profile_enable(struct device *device, bool on);
int ops_profile_read(struct device *device, struct op_profile *out, int max); /* entries filled; resets */

#ifdef __cplusplus
}
#endif

#endif
