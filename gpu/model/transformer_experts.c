/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_experts.c: experts in the place of a layer's MLP:
 *
 *     x ─► router ─► weights, and the order of the tokens' choices by expert
 *     x ─► gather, by expert ─► gate | up ─► SwiGLU ─► down ─► combine, by token and weight ─► +
 *     x ─► gate | up ─► SwiGLU ─► down (─► · sigmoid(x · scale)) ──────────────────────────────┘ the shared expert
 *
 * M · k rows go through the experts' products, however they are split: no size depends on data, so neither does what is
 * gathered or launched. An expert without rows gets a gradient of 0. The shared expert's scale is a router that chooses
 * one of one.
 *
 * No row of C elements is kept. `routed` has the gathered rows and then the outputs of down, in backward the rows of dy
 * and then of x; `wide` has SwiGLU. With h = SwiGLU and y = w · (down · h), backward has downᵀ · dy first: times h that
 * is w's gradient, times w the gradient of h; down's is dy · (w · h)ᵀ.
 *
 * Experts that R ranks share: each rank computes what its own give for the tokens of all, R · M · k rows at most. The
 * ranks' inputs and choices are gathered before, and what the experts gave is added up after, whatever was chosen:
 *
 *     x, choices, weights ─► gather from R ranks ─► the above ─► (R · M, C) parts ─► sum over the ranks, of own tokens
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

static bool experts_shared(const struct transformer *t)
{
    return transformer_expert_ranks(t) > 1;
}

/* Tokens whose choices this rank's experts look at; an estimate has as many rows as it would be if loads were even. */
static int64_t experts_tokens(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    return experts_shared(t) && !t->config.estimates ? transformer_expert_ranks(t) * t->config.batch.max_tokens
                                                     : pass->M;
}

static int64_t experts_rows(const struct pass *pass)
{
    return experts_tokens(pass) * experts_of(pass->transformer)->per_token;
}

/* This rank's experts, and the first of them. */
static int64_t experts_here(const struct transformer *t)
{
    return experts_of(t)->count / transformer_expert_ranks(t);
}

static int64_t experts_first(const struct transformer *t)
{
    return experts_here(t) * t->config.expert_part;
}

/* Biases of all experts are in the block's unit. */
static const void *experts_bias(const struct transformer *t, const struct unit *unit, struct expert_product p)
{
    const char *bias = unit_param(t, unit, p.bias);
    return bias ? bias + (size_t)(experts_first(t) * p.N) * dtype_size(t->dtype) : NULL;
}

/* Their gradient here; the other experts' has to be 0. */
static float *experts_bias_grad(const struct pass *pass, const struct unit *unit, struct expert_product p)
{
    const struct transformer *t = pass->transformer;
    float *grad = unit_grad(t, unit, p.bias);
    if (grad && experts_shared(t) && !unit->to.adds)
        stream_fill_zero(pass->stream, grad, (size_t)(experts_of(t)->count * p.N) * sizeof *grad);
    return grad ? grad + experts_first(t) * p.N : NULL;
}

/* y = x · W of all experts. */
static struct grouped_linear_fwd_args grouped_of(const struct pass *pass, const struct unit *unit,
                                                 const struct block_buffers *b, struct expert_product p, void *y,
                                                 const void *x)
{
    const struct transformer *t = pass->transformer;
    return (struct grouped_linear_fwd_args){.dtype = t->dtype,
                                            .weights_in_out = experts_of(t)->interleaved,
                                            .M = experts_rows(pass),
                                            .N = p.N,
                                            .K = p.K,
                                            .E = experts_here(t),
                                            .y = y,
                                            .x = x,
                                            .w = unit_param(t, unit, p.weight),
                                            .bias = experts_bias(t, unit, p),
                                            .offsets = b->offsets};
}

static void grouped_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                            struct expert_product p, void *y, const void *x)
{
    const struct grouped_linear_fwd_args args = grouped_of(pass, unit, b, p, y, x);
    pass->transformer->device->ops->grouped_linear_fwd(pass->stream, &args);
    adapter_experts_forward(pass, unit, p.weight, &args);
}

/* The gradients of weight and bias, unless they are frozen. row_weights: of dy's rows, for the bias. */
static void grouped_weights(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                            struct expert_product p, const void *dy, const void *x, const float *row_weights)
{
    const struct transformer *t = pass->transformer;
    const bool sums = unit->to.matrix_sums[0] != NULL;
    const struct grouped_linear_bwd_weight_args weight = {.dtype = t->dtype,
                                                          .dw_dtype = sums ? DTYPE_BF16 : DTYPE_F32,
                                                          .weights_in_out = experts_of(t)->interleaved,
                                                          .M = experts_rows(pass),
                                                          .N = p.N,
                                                          .K = p.K,
                                                          .E = experts_here(t),
                                                          .dw = unit_matrix_grad(t, unit, p.weight),
                                                          .dbias = experts_bias_grad(pass, unit, p),
                                                          .dy = dy,
                                                          .x = x,
                                                          .offsets = b->offsets,
                                                          .accumulate = sums ? unit->to.matrix_adds : unit->to.adds,
                                                          .accumulate_dbias = unit->to.adds,
                                                          .row_weights = row_weights};
    if (weight.dw) t->device->ops->grouped_linear_bwd_weight(pass->stream, &weight);
    adapter_experts_weights(pass, unit, p.weight, &weight);
}

static struct grouped_linear_bwd_input_args grouped_input_args(const struct pass *pass, const struct unit *unit,
                                                               const struct block_buffers *b, struct expert_product p,
                                                               void *dx, const void *dy)
{
    const struct grouped_linear_fwd_args f = grouped_of(pass, unit, b, p, NULL, NULL);
    return (struct grouped_linear_bwd_input_args){f.dtype, f.weights_in_out, f.M,  f.N, f.K, f.E, dx, dy,
                                                  f.w,     f.offsets,        false};
}

/* Before the two gradients of a product, in any order: what its adapter computes once for both. */
static void grouped_begin_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                                   struct expert_product p, const void *dy)
{
    const struct grouped_linear_bwd_input_args input = grouped_input_args(pass, unit, b, p, NULL, dy);
    adapter_experts_dxa(pass, unit, p.weight, &input);
}

static void grouped_input(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                          struct expert_product p, void *dx, const void *dy)
{
    struct grouped_linear_bwd_input_args input = grouped_input_args(pass, unit, b, p, dx, dy);
    input.accumulate = adapter_experts_input(pass, unit, p.weight, &input);
    pass->transformer->device->ops->grouped_linear_bwd_input(pass->stream, &input);
}

int experts_products(const struct transformer *t, int64_t M, void *place,
                     struct grouped_linear_fwd_args all[EXPERT_PRODUCTS])
{
    const struct expert_product products[] = {gate_up_of(t), down_of(t)};
    const struct experts_desc *experts = experts_of(t);
    int count = 0;
    for (int i = 0; t->sparse_layers && !experts_shared(t) && i < 2; i++) {
        const int64_t N = products[i].N, K = products[i].K, rows = M * experts->per_token * transformer_expert_ranks(t);
        const struct grouped_linear_bwd_input_args input = {
            t->dtype, experts->interleaved, rows, N, K, experts_here(t), place, place, place, place, false};
        all[count++] = (struct grouped_linear_fwd_args){
            t->dtype, experts->interleaved, rows, N, K, experts_here(t), place, place, place, NULL, place, false};
        if (t->config.training) all[count++] = grouped_linear_of_bwd_input(&input);
    }
    return count;
}

/* x: of this rank's tokens, or of all whose experts are shared. */
static void experts_gather(const struct pass *pass, const struct block_buffers *b, const void *x)
{
    const struct transformer *t = pass->transformer;
    PASS_OP(pass, gather_tokens, t->dtype, experts_tokens(pass), experts_of(t)->per_token, t->C, t->routed, x,
            b->places);
}

/* y (+)= the rows of `from`, by token, times their weights (NULL: 1). */
static void combine_routed(const struct pass *pass, const struct block_buffers *b, void *y, const float *weights,
                           bool accumulate)
{
    const struct transformer *t = pass->transformer;
    PASS_OP(pass, combine_tokens, t->dtype, experts_tokens(pass), experts_of(t)->per_token, t->C, y, t->routed, weights,
            b->places, accumulate);
}

/* ---- exchanges ----------------------------------------------------------- */

/* width: elements of a token. */
static struct token_exchange exchange_of(const struct transformer *t, bool reduces, const void *send, void *recv,
                                         int64_t width, enum dtype dtype)
{
    return (struct token_exchange){.reduces = reduces,
                                   .send = send,
                                   .recv = recv,
                                   .inbox = t->token_inbox,
                                   .count = t->config.batch.max_tokens * width,
                                   .dtype = dtype};
}

/* Gathers rows (M, C) of all ranks. Those after a rank's tokens hold anything: nothing is chosen for them. */
static const void *experts_exchange(const struct pass *pass, const void *x)
{
    const struct transformer *t = pass->transformer;
    if (!experts_shared(t)) return x;
    const struct token_exchange tokens = exchange_of(t, false, x, t->all_tokens, t->C, t->dtype);
    pass->verbs->exchange(pass->verbs->self, &tokens, 1, pass->stream);
    return t->all_tokens;
}

/* The same with choices (integers are copied as they are) and weights. */
static const void *experts_exchange_choices(const struct pass *pass, const struct block_buffers *b, const void *x)
{
    const struct transformer *t = pass->transformer;
    const int64_t k = experts_of(t)->per_token, own = pass->M * k, room = t->config.batch.max_tokens * k;
    if (!experts_shared(t)) return x;
    if (own < room) stream_copy(pass->stream, b->choices + own, t->no_choices, (size_t)(room - own) * sizeof(int32_t));
    const struct token_exchange exchanges[] = {exchange_of(t, false, b->choices, t->all_choices, k, DTYPE_F32),
                                               exchange_of(t, false, b->weights, b->all_weights, k, DTYPE_F32),
                                               exchange_of(t, false, x, t->all_tokens, t->C, t->dtype)};
    pass->verbs->exchange(pass->verbs->self, exchanges, COUNT_OF(exchanges), pass->stream);
    return t->all_tokens;
}

/* y (M, C) (+)= what the experts of all ranks give for its tokens. weights: use them. */
static void experts_return(const struct pass *pass, const struct block_buffers *b, void *y, bool weights,
                           bool accumulate)
{
    const struct transformer *t = pass->transformer;
    if (!experts_shared(t)) {
        combine_routed(pass, b, y, weights ? b->weights : NULL, accumulate);
        return;
    }
    combine_routed(pass, b, t->all_tokens, weights ? b->all_weights : NULL, false);
    const struct token_exchange sums = exchange_of(t, true, t->all_tokens, t->token_sums, t->C, t->dtype);
    pass->verbs->exchange(pass->verbs->self, &sums, 1, pass->stream);
    if (pass->M > 0) accumulate_to(pass, pass->M * t->C, y, t->dtype, t->token_sums, DTYPE_F32, 1, accumulate);
}

/* From dweights of all ranks' tokens to those of this rank's, with the part of the biases of down. */
static const float *experts_own_dweights(const struct pass *pass, const struct unit *unit,
                                         const struct block_buffers *b, const void *dy)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    const bool shared = experts_shared(t);
    const struct token_exchange sums =
        exchange_of(t, true, t->dweights, t->own_dweights, experts->per_token, DTYPE_F32);
    const void *bias = unit_param(t, unit, ROLE_EXPERT_DOWN_B);
    float *dweights = shared ? t->own_dweights : t->dweights;
    if (shared) pass->verbs->exchange(pass->verbs->self, &sums, 1, pass->stream);
    if (bias && pass->M > 0)
        PASS_OP(pass, combine_bias_bwd, .dtype = t->dtype, .M = pass->M, .k = experts->per_token, .E = experts->count,
                .C = t->C, .dweights = dweights, .bias = bias, .dy = dy, .experts = b->choices);
    return dweights;
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
    if (pass->M == 0) return;
    linear_forward(pass, unit, router.product, t->router_logits, x, NULL);
    router.route.dtype = t->dtype;
    router.route.M = pass->M;
    router.route.logits = t->router_logits;
    t->device->ops->route(pass->stream, &router.route);
}

/* From dweights: adds to dx. */
static void router_backward(const struct pass *pass, const struct unit *unit, struct router router,
                            const float *dweights, void *dx, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    const struct route_args *r = &router.route;
    const bool aux = router.product == LINEAR_ROUTER && experts->has_aux, z = r->lse != NULL;
    const double counted = experts_counted(pass);
    if (pass->M == 0) return;
    PASS_OP(pass, route_bwd, .dtype = t->dtype, .M = pass->M, .E = r->E, .k = r->k, .sigmoid = r->sigmoid,
            .normalize = r->normalize, .scale = r->scale, .dlogits = t->router_logits, .probs = r->probs,
            .weights = r->weights, .dweights = dweights, .experts = r->experts, .counts = aux ? t->counts : NULL,
            .lse = r->lse, .counted = r->counted, .aux_scale = (float)(experts->aux_coef * experts_aux_factor(pass)),
            .z_scale = z && counted > 0 ? (float)(experts->z_coef * t->config.aux_share / counted) : 0,
            .loss_scale = pass->factor.scaler);
    const struct linear_bwd_weight_args weight =
        linear_bwd_weight_args(t, unit, router.product, pass->M, t->router_logits, x);
    linear_run_backward(pass, unit, router.product, 0, &weight,
                        linear_bwd_input_args(t, unit, router.product, pass->M, dx, t->router_logits, NULL), true);
}

/* ---- forward ------------------------------------------------------------- */

static bool has_shared_expert(const struct pass *pass, const struct block_buffers *b)
{
    return b->shared_inner && pass->M > 0;
}

void experts_again(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    if (!has_shared_expert(pass, b)) return;
    if (transformer_gates_again(t))
        PASS_OP(pass, swiglu_fwd, .dtype = t->dtype, .M = pass->M, .F = experts_of(t)->shared_size,
                .h = b->shared_hidden, .gate_up = b->shared_inner);
    if (b->shared_scale) linear_forward(pass, unit, LINEAR_DOWN, b->shared_out, b->shared_hidden, NULL);
}

void experts_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *x)
{
    const struct transformer *t = pass->transformer;
    router_forward(pass, unit, router_of(pass, unit, b), x);
    const void *tokens = experts_exchange_choices(pass, b, x);
    const int32_t *choices = experts_shared(t) ? t->all_choices : b->choices;
    PASS_OP(pass, permute_experts, .M = experts_tokens(pass), .E = experts_here(t), .k = experts_of(t)->per_token,
            .experts = choices, .offsets = b->offsets, .places = b->places, .first = experts_first(t));
    experts_gather(pass, b, tokens);
    grouped_forward(pass, unit, b, gate_up_of(t), b->inner, t->routed);
    if (b->shared_scale) router_forward(pass, unit, scale_of(t, b), x);
    if (has_shared_expert(pass, b)) linear_forward(pass, unit, LINEAR_UP, b->shared_inner, x, b->shared_hidden);
    experts_again(pass, unit, b);
}

void experts_combine(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *y)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    PASS_OP(pass, swiglu_fwd, .dtype = t->dtype, .M = experts_rows(pass), .F = experts->inner_size, .h = t->wide,
            .gate_up = b->inner, .interleaved = experts->interleaved, .limit = (float)experts->limit,
            .alpha = (float)experts->alpha, .rows = experts_shared(t) ? b->offsets + experts_here(t) : NULL);
    grouped_forward(pass, unit, b, down_of(t), t->routed, t->wide);
    if (has_shared_expert(pass, b) && b->shared_scale)
        PASS_OP(pass, combine_tokens, .dtype = t->dtype, .M = pass->M, .k = 1, .C = t->C, .y = y, .ye = b->shared_out,
                .weights = b->shared_scale);
    else if (has_shared_expert(pass, b))
        linear_forward(pass, unit, LINEAR_DOWN, y, b->shared_hidden, NULL);
    experts_return(pass, b, y, true, b->shared_inner != NULL);
}

/* ---- backward ------------------------------------------------------------ */

/* Writes dx. */
static void shared_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                            const void *dy, void *dx, const void *x)
{
    const struct transformer *t = pass->transformer;
    const void *dout = b->shared_scale ? b->shared_out : dy;
    if (b->shared_scale)
        PASS_OP(pass, scale_rows_bwd, .dtype = t->dtype, .M = pass->M, .C = t->C, .dx = b->shared_out, .dy = dy,
                .x = b->shared_out, .weights = b->shared_scale, .dweights = t->dweights);
    linear_backward(pass, unit, LINEAR_DOWN, t->wide, dout, b->shared_hidden, b->shared_inner);
    linear_backward(pass, unit, LINEAR_UP, dx, b->shared_inner, x, NULL);
    if (b->shared_scale) router_backward(pass, unit, scale_of(t, b), t->dweights, dx, x);
}

void experts_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *dy,
                      void *dx, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct experts_desc *experts = experts_of(t);
    ASSERT(dx != dy || pass->M == 0);
    if (has_shared_expert(pass, b)) shared_backward(pass, unit, b, dy, dx, x);
    experts_gather(pass, b, experts_exchange(pass, dy));
    grouped_begin_backward(pass, unit, b, down_of(t), t->routed);
    grouped_input(pass, unit, b, down_of(t), t->wide, t->routed);
    PASS_OP(pass, experts_swiglu_bwd, .dtype = t->dtype, .M = experts_rows(pass), .F = experts->inner_size,
            .dgate_up = b->inner, .h = t->wide, .dh = t->wide, .gate_up = b->inner, .interleaved = experts->interleaved,
            .limit = (float)experts->limit, .alpha = (float)experts->alpha,
            .weights = experts_shared(t) ? b->all_weights : b->weights, .dweights = t->dweights, .places = b->places,
            .row_weights = t->row_weights);
    grouped_weights(pass, unit, b, down_of(t), t->routed, t->wide, t->row_weights);
    const float *dweights = experts_own_dweights(pass, unit, b, dy);
    experts_gather(pass, b, experts_exchange(pass, x));
    grouped_begin_backward(pass, unit, b, gate_up_of(t), b->inner);
    grouped_weights(pass, unit, b, gate_up_of(t), b->inner, t->routed, NULL);
    grouped_input(pass, unit, b, gate_up_of(t), t->routed, b->inner);
    experts_return(pass, b, dx, false, b->shared_inner != NULL);
    router_backward(pass, unit, router_of(pass, unit, b), dweights, dx, x);
}

void transformer_add_theory(const struct transformer *t, int micro_batches, int64_t *gather_bytes,
                            int64_t *reduce_bytes)
{
    const int64_t k = experts_of(t)->per_token, row = t->C * (int64_t)dtype_size(t->dtype);
    const int64_t choices = row + k * (int64_t)(sizeof(int32_t) + sizeof(float)), weights = k * (int64_t)sizeof(float);
    const int64_t rows = (transformer_expert_ranks(t) - 1) * t->config.batch.max_tokens * micro_batches;
    for (int64_t l = 0; l < t->L; l++) {
        const bool again = l < t->L - 1 && t->config.settings.recompute == RECOMPUTE_BLOCK;
        if (!t->config.desc->layers[l].sparse) continue;
        *gather_bytes += rows * choices;
        *reduce_bytes += rows * row;
        if (l + 1 < t->first_trained) continue;
        *gather_bytes += rows * (2 * row + (again ? choices : 0));
        *reduce_bytes += rows * (weights + row);
    }
}

/* ---- a rank without tokens ----------------------------------------------- */

void experts_serve(const struct pass *pass, const struct unit *unit, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct block_buffers *b = &t->blocks[block];
    const enum recompute again = block == t->L - 1 ? RECOMPUTE_NONE : t->config.settings.recompute;
    void *none = t->delta;
    if (!experts_shared(t) || !t->config.desc->layers[block].sparse) return;
    if (unit->kind != PASS_BACKWARD) {
        experts_forward(pass, unit, b, none);
        experts_combine(pass, unit, b, none);
        return;
    }
    if (again == RECOMPUTE_BLOCK) experts_forward(pass, unit, b, none);
    experts_backward(pass, unit, b, none, none, none);
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
    const double scale = experts_of(t)->sigmoid ? 0 : experts_aux_factor(pass);
    PASS_OP(pass, sum_experts, .E = experts_of(t)->count, .scale = scale, .counts = t->counts,
            .prob_sums = t->prob_sums, .aux_sum = pass->expert_sums, .loads = pass->expert_sums + 1);
}
