/* transformer_internal.h: what the files of the transformer share: its state, its activations, its linears.
 *
 *   transformer.c         creation, the order of units in a micro-batch, embedding, times, FLOPs
 *   transformer_layout.c  where activations live (the picture is there), RoPE tables, limits
 *   transformer_block.c   one block, forward and backward
 *   transformer_head.c    final norm, logits and loss in chunks of rows
 *   transformer_prepare.c tells the device which matrix products will come
 *
 * Letters as in ops.h; W = (H + 2 KV) D is the width of a row of q | k | v. dt is the compute dtype. */
#ifndef ZTRAIN_GPU_MODEL_TRANSFORMER_INTERNAL_H
#define ZTRAIN_GPU_MODEL_TRANSFORMER_INTERNAL_H

#include "gpu/model/transformer.h"
#include "gpu/stopwatch.h"

/* The matrices. q, k, v are one, and so are gate and up (fused groups of the tensor table). */
enum linear { LINEAR_QKV, LINEAR_O, LINEAR_UP, LINEAR_DOWN, LINEAR_HEAD, LINEAR_COUNT };

struct linear_shape {
    enum tensor_role weight, bias; /* of the first tensor of the group; the bias may be absent */
    int64_t N, K;
    bool in_out;
};

/* Elements: rows of logits start at whole cache lines and whole tiles of a GPU's products; see pad_vocabulary(). */
enum { VOCABULARY_ALIGN = 128 };

/* What the stopwatch tells apart. */
enum { LANE_FORWARD, LANE_BACKWARD };

/* Fills shapes[LINEAR_COUNT]. */
void transformer_linear_shapes(const struct model_desc *desc, struct linear_shape *shapes);

/* What one block keeps for its backward. All pointers into the arena. */
struct block_buffers {
    void *res1;           /* dt (M, C) residual stream at the block's input, what norm1 sees */
    void *norm1;          /* dt (M, C) */
    float *mean1, *rstd1; /* (M); mean: LayerNorm only, else NULL */
    void *qkv;            /* dt (M, W) with biases; after RoPE unless qk_norm */
    void *qk;             /* dt (M, (H + KV) D) normed heads after RoPE; qk_norm only, else NULL */
    float *q_rstd;        /* (M, H); qk_norm only, else NULL */
    float *k_rstd;        /* (M, KV) */
    void *att;            /* dt (M, H D) */
    float *lse;           /* (H, M) */
    void *res2;           /* dt (M, C) residual stream after attention, what norm2 sees */
    void *norm2;          /* dt (M, C) */
    float *mean2, *rstd2; /* (M) */
    void *inner;          /* dt (M, F) before GELU, or (M, 2F) gate | up */
    void *hidden;         /* dt (M, F) what the down matrix sees */
};

/* A micro-batch on the device: (max_tokens) each, seq_start (max_seqs + 1). */
struct input {
    int32_t *tokens, *targets, *positions, *seq_start;
};

struct transformer {
    struct transformer_config config;
    struct device *device; /* ops are called through device->ops, which the profile may change between steps */
    enum dtype dtype;
    int64_t C, F, H, KV, D, V, L, W;
    bool qk_norm;
    float eps;
    int64_t offset[ROLE_COUNT]; /* element of its unit where a role's tensor starts; -1: the model has none */
    struct linear_shape linears[LINEAR_COUNT];

    struct block_buffers *blocks; /* [L] owned; without training, or with recompute, they name shared memory */
    void *delta;                  /* dt (M, max(C, H D)) forward: what is added to the residual stream next;
                                   * backward: gradients of norm outputs and of att */
    void *wide;                   /* dt (M, max(W, F)) backward: gradients of qkv, inner, hidden; training only */
    void *dres;                   /* dt (M, C) gradient of the residual stream; training only */
    void *final_res, *final_norm; /* dt (M, C) around the final norm */
    float *final_mean, *final_rstd;
    void *logits; /* fp32 (chunk, ld_logits), gradients in place */
    int64_t chunk, ld_logits;
    float *rope_cos, *rope_sin; /* (max_position, D / 2), or NULL */
    struct input *inputs;       /* [num_inputs] owned; its arrays in the arena */
    int num_inputs;

    struct stopwatch *stopwatch; /* owned */
};

/* One pass over the units: what its steps have in common. M is batch.num_tokens. */
struct pass {
    struct transformer *transformer;
    struct batch batch; /* its arrays are on the device */
    int64_t M;
    const struct param_verbs *verbs;
    struct stream *stream;
    struct error *err;
    float grad_scale;
    const float *loss_scale; /* device, or NULL */
    double *loss_sum;        /* device */
};

/* A unit in use, between unit_acquire and unit_release (and unit_ready). */
struct unit {
    int index;
    enum param_pass kind;
    const void *params; /* dt, the unit's flat range */
    float *grads;       /* of unit_grads; else NULL */
    bool accumulate;
};

enum status unit_acquire(const struct pass *pass, struct unit *unit, int index, enum param_pass kind);
void unit_release(const struct pass *pass, const struct unit *unit);
/* Where gradients go. Without tokens there will be no op: zeroes them if they would be overwritten. */
enum status unit_grads(const struct pass *pass, struct unit *unit);
enum status unit_ready(const struct pass *pass, const struct unit *unit);

/* The unit's tensor of that role, NULL if the model has none. */
const void *unit_param(const struct transformer *t, const struct unit *unit, enum tensor_role role);
float *unit_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role);

/* The address of a row: base + row · width elements of dt. */
static inline void *row_at(const struct transformer *t, void *base, int64_t row, int64_t width)
{
    return (char *)base + (size_t)(row * width) * dtype_size(t->dtype);
}

/* A norm of the residual stream: its tensors and what it keeps. */
struct norm {
    enum tensor_role weight, bias;
    void *res, *y;      /* dt (M, C) input and output */
    float *mean, *rstd; /* (M) */
};

/* transformer_block.c. res = x + delta, y = norm(res); without delta, res is there already */
void norm_forward(const struct pass *pass, const struct unit *unit, struct norm norm, const void *x, const void *delta);
/* transformer.dres = dres (NULL: none) + gradient through the norm, whose output's gradient is dy */
void norm_backward(const struct pass *pass, const struct unit *unit, struct norm norm, const void *dy,
                   const void *dres);

/* transformer_block.c. Forward: the residual stream comes as x + delta (delta NULL: block 0, whose res1 holds the
 * embeddings); afterwards it is res2 + transformer.delta. Backward: dres in place. */
enum status block_forward(const struct pass *pass, int64_t block, enum param_pass kind);
enum status block_backward(const struct pass *pass, int64_t block);

/* transformer_block.c. Arguments of a matrix product forward and backward, for M rows of x and y. */
struct linear_fwd_args linear_fwd_args(const struct transformer *t, const struct unit *unit, enum linear which,
                                       int64_t M, void *y, const void *x, void *aux);
struct linear_bwd_weight_args linear_bwd_weight_args(const struct transformer *t, const struct unit *unit,
                                                     enum linear which, int64_t M, const void *dy, const void *x);
struct linear_bwd_input_args linear_bwd_input_args(const struct transformer *t, const struct unit *unit,
                                                   enum linear which, int64_t M, void *dx, const void *dy,
                                                   const void *gelu_aux);

/* transformer_block.c. Arguments of attention without its pointers. */
struct attention_fwd_args attention_fwd_sizes(const struct transformer *t, int64_t M, int32_t num_seqs,
                                              int32_t max_seq);
struct attention_bwd_args attention_bwd_sizes(const struct transformer *t, int64_t M, int32_t num_seqs,
                                              int32_t max_seq);

/* transformer_head.c. Arguments of the matrix products of a chunk of logits, whose rows are ld_logits and ld_dlogits()
 * apart. */
struct linear_fwd_args head_fwd_args(const struct transformer *t, const struct unit *unit, int64_t M, const void *x);
struct linear_bwd_weight_args head_bwd_weight_args(const struct transformer *t, const struct unit *unit, int64_t M,
                                                   const void *x);
struct linear_bwd_input_args head_bwd_input_args(const struct transformer *t, const struct unit *unit, int64_t M,
                                                 void *dx);

/* transformer_head.c. Training: from the last block's residual stream to dres. */
enum status head_evaluate(const struct pass *pass);
enum status head_train(const struct pass *pass);

#endif
