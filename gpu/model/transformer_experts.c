/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_experts.c: experts in the place of a layer's MLP:
 *
 *     x ─► router ─► weights, and the order of the tokens' choices by expert
 *     x ─► gather, by expert ─► gate | up ─► SwiGLU ─► down ─► combine, by token and weight ─► +
 *     x ─► gate | up ─► SwiGLU ─► down (─► · sigmoid(x · scale)) ──────────────────────────────┘ the shared expert
 *
 * M · k rows go through the experts' products, however they are split: no size depends on data, so neither does what is
 * gathered or launched. An expert without rows gets a gradient of 0. `routed` has the gathered rows and then, in their
 * place, the outputs of down; backward gathers again. The shared expert's scale is a router that chooses one of one.
 *
 * The auxiliary loss is of all layers together (transformers' load_balancing_loss_func): E · Σ f[e] p[e] with f the
 * share of the rows of all layers that chose e, p the mean of its probability; so backward needs the counts of all
 * layers. */
#include "gpu/model/transformer_experts.h"

#include "gpu/model/transformer_adapter.h"
#include "gpu/model/transformer_layers.h"

static const struct experts_desc *experts_of(const struct transformer *t)
{
    return &t->config.desc->experts;
}

/* Rows of the auxiliary losses: of the tokens that are not filler, in all layers with experts. */
static double experts_counted(const struct pass *pass)
{
    return (double)(pass->M - pass->batch.num_filler) * (double)pass->transformer->sparse_layers;
}

/* The part of the mean over micro-batches that a sum of counts · prob_sums makes. */
static double experts_aux_factor(const struct pass *pass)
{
    const double rows = experts_counted(pass);
    return rows > 0 ? (double)experts_of(pass->transformer)->count / (rows * rows) * pass->transformer->config.aux_share
                    : 0;
}

/* ---- products ------------------------------------------------------------ */

struct expert_product {
    enum tensor_role weight, bias;
    int64_t N, K;
};

static struct expert_product gate_up_of(const struct transformer *t)
{
    return (struct expert_product){ROLE_EXPERT_GATE_W, ROLE_EXPERT_GATE_B, 2 * experts_of(t)->inner_size, t->C};
}

static struct expert_product down_of(const struct transformer *t)
{
    return (struct expert_product){ROLE_EXPERT_DOWN_W, ROLE_EXPERT_DOWN_B, t->C, experts_of(t)->inner_size};
}

static int64_t experts_rows(const struct pass *pass)
{
    return pass->M * experts_of(pass->transformer)->per_token;
}

static void grouped_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                            struct expert_product p, void *y, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct grouped_linear_fwd_args args = {.dtype = t->dtype,
                                                 .weights_in_out = experts_of(t)->interleaved,
                                                 .M = experts_rows(pass),
                                                 .N = p.N,
                                                 .K = p.K,
                                                 .E = experts_of(t)->count,
                                                 .y = y,
                                                 .x = x,
                                                 .w = unit_param(t, unit, p.weight),
                                                 .bias = unit_param(t, unit, p.bias),
                                                 .offsets = b->offsets};
    t->device->ops->grouped_linear_fwd(pass->stream, &args);
    adapter_experts_forward(pass, unit, p.weight, &args);
}

/* The gradients of weight and bias, unless they are frozen, then dx. */
static void grouped_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                             struct expert_product p, void *dx, const void *dy, const void *x)
{
    const struct transformer *t = pass->transformer;
    const bool sums = unit->to.matrix_sums != NULL;
    const struct grouped_linear_bwd_weight_args weight = {.dtype = t->dtype,
                                                          .dw_dtype = sums ? DTYPE_BF16 : DTYPE_F32,
                                                          .weights_in_out = experts_of(t)->interleaved,
                                                          .M = experts_rows(pass),
                                                          .N = p.N,
                                                          .K = p.K,
                                                          .E = experts_of(t)->count,
                                                          .dw = unit_matrix_grad(t, unit, p.weight),
                                                          .dbias = unit_grad(t, unit, p.bias),
                                                          .dy = dy,
                                                          .x = x,
                                                          .offsets = b->offsets,
                                                          .accumulate = sums ? unit->to.matrix_adds : unit->to.adds,
                                                          .accumulate_dbias = unit->to.adds};
    if (weight.dw) t->device->ops->grouped_linear_bwd_weight(pass->stream, &weight);
    const bool adapted = adapter_experts_backward(pass, unit, p.weight, &weight, dx);
    const struct grouped_linear_bwd_input_args input = {.dtype = t->dtype,
                                                        .weights_in_out = weight.weights_in_out,
                                                        .M = weight.M,
                                                        .N = p.N,
                                                        .K = p.K,
                                                        .E = weight.E,
                                                        .dx = dx,
                                                        .dy = dy,
                                                        .w = unit_param(t, unit, p.weight),
                                                        .offsets = b->offsets,
                                                        .accumulate = adapted};
    t->device->ops->grouped_linear_bwd_input(pass->stream, &input);
}

int experts_products(const struct transformer *t, int64_t M, void *place,
                     struct grouped_linear_fwd_args all[EXPERT_PRODUCTS])
{
    const struct expert_product products[] = {gate_up_of(t), down_of(t)};
    const struct experts_desc *experts = experts_of(t);
    int count = 0;
    for (int i = 0; t->sparse_layers && i < 2; i++) {
        const int64_t N = products[i].N, K = products[i].K, rows = M * experts->per_token;
        const struct grouped_linear_bwd_input_args input = {
            t->dtype, experts->interleaved, rows, N, K, experts->count, place, place, place, place, false};
        all[count++] = (struct grouped_linear_fwd_args){
            t->dtype, experts->interleaved, rows, N, K, experts->count, place, place, place, NULL, place, false};
        if (t->config.training) all[count++] = grouped_linear_of_bwd_input(&input);
    }
    return count;
}

static void experts_gather(const struct pass *pass, const struct block_buffers *b, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct gather_tokens_args args = {t->dtype, pass->M, experts_of(t)->per_token, t->C, b->routed, x, b->rows};
    t->device->ops->gather_tokens(pass->stream, &args);
}

/* y (+)= the rows of `from`, by token, times their weights; NULL: 1. k 1: of the shared expert. */
static void combine(const struct pass *pass, void *y, const void *from, int64_t k, const float *weights,
                    const int32_t *places, bool accumulate)
{
    const struct transformer *t = pass->transformer;
    const struct combine_tokens_args args = {t->dtype, pass->M, k, t->C, y, from, weights, places, accumulate};
    t->device->ops->combine_tokens(pass->stream, &args);
}

/* rows: the outputs that were combined, which become their gradients. */
static void combine_backward(const struct pass *pass, const void *dy, void *rows, int64_t k, const float *weights,
                             const int32_t *places)
{
    const struct transformer *t = pass->transformer;
    const struct combine_tokens_bwd_args args = {t->dtype, pass->M, k,       t->C,        rows,
                                                 dy,       rows,    weights, t->dweights, places};
    t->device->ops->combine_tokens_bwd(pass->stream, &args);
}

/* ---- routing ------------------------------------------------------------- */

/* The router of a layer, or the scale of its shared expert. */
struct router {
    enum linear product;
    struct route_args route; /* without M and logits */
};

static struct router router_of(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    const bool counts = pass->training && unit->kind == PASS_FORWARD;
    return (struct router){LINEAR_ROUTER,
                           {.E = experts->count,
                            .k = experts->per_token,
                            .sigmoid = experts->sigmoid,
                            .normalize = experts->normalize,
                            .scale = (float)experts->scale,
                            .groups = experts->groups > 1 ? experts->groups : 0,
                            .top_groups = experts->top_groups,
                            .bias = experts->sigmoid ? t->correction + (b - t->blocks) * experts->count : NULL,
                            .probs = b->probs,
                            .experts = b->choices,
                            .weights = b->weights,
                            .lse = b->router_lse,
                            .counted = pass->M - pass->batch.num_filler,
                            .counts = counts ? t->counts : NULL,
                            .prob_sums = counts && !experts->sigmoid ? t->prob_sums : NULL}};
}

static struct router scale_of(const struct transformer *t, const struct block_buffers *b)
{
    return (struct router){LINEAR_SHARED_SCALE,
                           {.E = 1,
                            .k = 1,
                            .sigmoid = true,
                            .scale = 1,
                            .probs = b->shared_scale,
                            .experts = t->first_choice,
                            .weights = b->shared_scale}};
}

static void router_forward(const struct pass *pass, const struct unit *unit, struct router router, const void *x)
{
    const struct transformer *t = pass->transformer;
    linear_forward(pass, unit, router.product, t->router_logits, x, NULL);
    router.route.dtype = t->dtype;
    router.route.M = pass->M;
    router.route.logits = t->router_logits;
    t->device->ops->route(pass->stream, &router.route);
}

/* From dweights: adds to dx. */
static void router_backward(const struct pass *pass, const struct unit *unit, struct router router, void *dx,
                            const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    const struct route_args *r = &router.route;
    const bool aux = router.product == LINEAR_ROUTER && experts->has_aux, z = r->lse != NULL;
    const double counted = experts_counted(pass);
    const struct route_bwd_args args = {
        .dtype = t->dtype,
        .M = pass->M,
        .E = r->E,
        .k = r->k,
        .sigmoid = r->sigmoid,
        .normalize = r->normalize,
        .scale = r->scale,
        .dlogits = t->router_logits,
        .probs = r->probs,
        .weights = r->weights,
        .dweights = t->dweights,
        .experts = r->experts,
        .counts = aux ? t->counts : NULL,
        .lse = r->lse,
        .counted = r->counted,
        .aux_scale = (float)(experts->aux_coef * experts_aux_factor(pass)),
        .z_scale = z && counted > 0 ? (float)(experts->z_coef * t->config.aux_share / counted) : 0,
        .loss_scale = pass->factor.scaler};
    t->device->ops->route_bwd(pass->stream, &args);
    const struct linear_bwd_weight_args weight =
        linear_bwd_weight_args(t, unit, router.product, pass->M, t->router_logits, x);
    linear_weight_gradient(pass, &weight);
    if (adapter_of(t, unit->index, router.product)) adapter_backward(pass, unit, router.product, 0, &weight, dx, true);
    struct linear_bwd_input_args input =
        linear_bwd_input_args(t, unit, router.product, pass->M, dx, t->router_logits, NULL);
    input.accumulate = true;
    t->device->ops->linear_bwd_input(pass->stream, &input);
}

/* ---- forward ------------------------------------------------------------- */

static struct swiglu_fwd_args experts_swiglu(const struct pass *pass, const struct block_buffers *b)
{
    const struct experts_desc *experts = experts_of(pass->transformer);
    return (struct swiglu_fwd_args){.dtype = pass->transformer->dtype,
                                    .M = experts_rows(pass),
                                    .F = experts->inner_size,
                                    .h = b->hidden,
                                    .gate_up = b->inner,
                                    .interleaved = experts->interleaved,
                                    .limit = (float)experts->limit,
                                    .alpha = (float)experts->alpha};
}

void experts_hidden(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct swiglu_fwd_args args = experts_swiglu(pass, b);
    t->device->ops->swiglu_fwd(pass->stream, &args);
    grouped_forward(pass, unit, b, down_of(t), b->routed, b->hidden);
    const struct swiglu_fwd_args shared = {.dtype = t->dtype,
                                           .M = pass->M,
                                           .F = experts_of(t)->shared_size,
                                           .h = b->shared_hidden,
                                           .gate_up = b->shared_inner};
    if (b->shared_inner && transformer_gates_again(t)) t->device->ops->swiglu_fwd(pass->stream, &shared);
    if (b->shared_scale) linear_forward(pass, unit, LINEAR_DOWN, b->shared_out, b->shared_hidden, NULL);
}

void experts_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    router_forward(pass, unit, router_of(pass, unit, b), x);
    const struct permute_experts_args order = {pass->M,    experts->count, experts->per_token, b->choices,
                                               b->offsets, b->rows,        b->places};
    t->device->ops->permute_experts(pass->stream, &order);
    experts_gather(pass, b, x);
    grouped_forward(pass, unit, b, gate_up_of(t), b->inner, b->routed);
    if (b->shared_scale) router_forward(pass, unit, scale_of(t, b), x);
    if (b->shared_inner) linear_forward(pass, unit, LINEAR_UP, b->shared_inner, x, b->shared_hidden);
    experts_hidden(pass, unit, b);
}

void experts_combine(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *y)
{
    const struct transformer *t = pass->transformer;
    if (b->shared_scale)
        combine(pass, y, b->shared_out, 1, b->shared_scale, t->own_places, false);
    else if (b->shared_inner)
        linear_forward(pass, unit, LINEAR_DOWN, y, b->shared_hidden, NULL);
    combine(pass, y, b->routed, experts_of(t)->per_token, b->weights, b->places, b->shared_inner != NULL);
}

/* ---- backward ------------------------------------------------------------ */

/* Writes dx. */
static void shared_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                            const void *dy, void *dx, const void *x)
{
    const struct transformer *t = pass->transformer;
    const void *dout = b->shared_scale ? b->shared_out : dy;
    if (b->shared_scale) combine_backward(pass, dy, b->shared_out, 1, b->shared_scale, t->own_places);
    linear_backward(pass, unit, LINEAR_DOWN, t->wide, dout, b->shared_hidden, b->shared_inner);
    linear_backward(pass, unit, LINEAR_UP, dx, b->shared_inner, x, NULL);
    if (b->shared_scale) router_backward(pass, unit, scale_of(t, b), dx, x);
}

void experts_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *dy,
                      void *dx, const void *x)
{
    const struct transformer *t = pass->transformer;
    const int64_t k = experts_of(t)->per_token;
    const struct swiglu_fwd_args forward = experts_swiglu(pass, b);
    ASSERT(dx != dy);
    if (b->shared_inner) shared_backward(pass, unit, b, dy, dx, x);
    combine_backward(pass, dy, b->routed, k, b->weights, b->places);
    grouped_backward(pass, unit, b, down_of(t), t->wide, b->routed, b->hidden);
    const struct swiglu_bwd_args gate = {.dtype = t->dtype,
                                         .M = forward.M,
                                         .F = forward.F,
                                         .dgate_up = b->inner,
                                         .dh = t->wide,
                                         .gate_up = b->inner,
                                         .interleaved = forward.interleaved,
                                         .limit = forward.limit,
                                         .alpha = forward.alpha};
    t->device->ops->swiglu_bwd(pass->stream, &gate);
    experts_gather(pass, b, x);
    grouped_backward(pass, unit, b, gate_up_of(t), b->routed, b->inner, b->routed);
    combine(pass, dx, b->routed, k, NULL, b->places, b->shared_inner != NULL);
    router_backward(pass, unit, router_of(pass, unit, b), dx, x);
}

void transformer_set_correction(struct transformer *t, int64_t layer, const float *bias, struct stream *stream)
{
    const int64_t E = experts_of(t)->count;
    stream_copy(stream, t->correction + layer * E, bias, (size_t)E * sizeof *bias);
    stream_sync(stream);
}

/* ---- sums ---------------------------------------------------------------- */

void experts_begin_pass(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    if (!t->sparse_layers || !pass->training) return;
    stream_fill_zero(pass->stream, t->counts, (size_t)experts_of(t)->count * sizeof *t->counts);
    stream_fill_zero(pass->stream, t->prob_sums, (size_t)experts_of(t)->count * sizeof *t->prob_sums);
}

void experts_end_forward(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    if (!t->sparse_layers || !pass->expert_sums || pass->M == 0) return;
    const struct sum_experts_args args = {.E = experts_of(t)->count,
                                          .scale = experts_of(t)->sigmoid ? 0 : experts_aux_factor(pass),
                                          .counts = t->counts,
                                          .prob_sums = t->prob_sums,
                                          .aux_sum = pass->expert_sums,
                                          .loads = pass->expert_sums + 1};
    t->device->ops->sum_experts(pass->stream, &args);
}
