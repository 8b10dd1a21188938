/* transformer_prepare.c: announces the matrix products of a step, for devices that choose kernels by measuring them.
 *
 * The products are those of a full micro-batch. Those that backward computes again are those of forward. The head's
 * products come in chunks of rows, of which the last may be shorter. Memory is not allocated yet: one aligned address
 * stands for all buffers. */
#include "gpu/model/transformer_head.h"
#include "gpu/model/transformer_layers.h"

enum { ROW_COUNTS = 2, MAX_SHAPES = LINEAR_HEAD + 2 * ROW_COUNTS };

/* Stands for any buffer of the arena: not NULL, and aligned. */
static void *somewhere(void)
{
    return (void *)(uintptr_t)ARENA_ALIGN;
}

struct products {
    struct linear_fwd_args fwd[MAX_SHAPES];
    struct linear_bwd_input_args bwd_input[MAX_SHAPES];
    struct linear_bwd_weight_args bwd_weight[2 * MAX_SHAPES];
    int num_fwd, num_bwd_input, num_bwd_weight;
};

/* Unless it is frozen. */
static void add_weight(struct products *p, struct linear_bwd_weight_args args)
{
    if (args.dw)
        p->bwd_weight[p->num_bwd_weight++] = args;
}

static void add_block(struct products *p, const struct transformer *t, const struct unit *unit, enum linear which)
{
    int64_t M = t->config.max_tokens;
    void *up_aux = which == LINEAR_UP ? somewhere() : NULL, *down_aux = which == LINEAR_DOWN ? somewhere() : NULL;
    p->fwd[p->num_fwd++] = linear_fwd_args(t, unit, which, M, somewhere(), somewhere(), up_aux);
    p->bwd_input[p->num_bwd_input++] = linear_bwd_input_args(t, unit, which, M, somewhere(), somewhere(), down_aux);
    add_weight(p, linear_bwd_weight_args(t, unit, which, M, somewhere(), somewhere()));
}

static void add_head(struct products *p, const struct transformer *t, const struct unit *unit, int64_t rows)
{
    p->fwd[p->num_fwd++] = head_fwd_args(t, unit, rows, somewhere());
    p->bwd_input[p->num_bwd_input++] = head_bwd_input_args(t, unit, rows, somewhere());
    add_weight(p, head_bwd_weight_args(t, unit, rows, somewhere()));
    if (!t->config.desc->pooler)
        return;
    p->fwd[p->num_fwd++] = linear_fwd_args(t, unit, LINEAR_POOLER, rows, somewhere(), somewhere(), NULL);
    p->bwd_input[p->num_bwd_input++] =
        linear_bwd_input_args(t, unit, LINEAR_POOLER, rows, somewhere(), somewhere(), NULL);
    add_weight(p, linear_bwd_weight_args(t, unit, LINEAR_POOLER, rows, somewhere(), somewhere()));
}

enum status transformer_prepare(const struct transformer *t, bool accumulates, bool matrix_sums, struct error *err)
{
    struct products p = {0};
    struct unit unit = {.index = 1,
                        .params = {somewhere(), somewhere()},
                        .to = {.grads = somewhere(), .matrix_sums = matrix_sums ? somewhere() : NULL}};
    int64_t M = t->config.max_tokens, last = M % t->chunk;
    for (int which = 0; which < LINEAR_HEAD; which++)
        add_block(&p, t, &unit, (enum linear)which);
    const int weights = p.num_bwd_weight; /* of blocks */
    unit.index = t->config.desc->tied ? 0 : (int)t->L + 1;
    unit.to.matrix_sums = NULL;
    add_head(&p, t, &unit, t->chunk);
    if (last)
        add_head(&p, t, &unit, last);
    int once = p.num_bwd_weight;
    for (int i = 0; i < once; i++) { /* the head's first chunk may overwrite its gradient, later chunks add to it */
        bool head = i >= weights;
        if (!accumulates && !(head && M > t->chunk))
            continue;
        struct linear_bwd_weight_args *more = &p.bwd_weight[p.num_bwd_weight++];
        *more = p.bwd_weight[i];
        more->accumulate = true;
        more->accumulate_dbias = more->dw_dtype == DTYPE_F32; /* beside sums in bf16 biases are in the bucket */
    }
    struct linear_products products = {
        .fwd = p.fwd,
        .bwd_input = p.bwd_input,
        .bwd_weight = p.bwd_weight,
        .num_fwd = p.num_fwd,
        .num_bwd_input = t->config.training ? p.num_bwd_input : 0,
        .num_bwd_weight = t->config.training ? p.num_bwd_weight : 0,
    };
    return ops_prepare(t->device, &products, err);
}
