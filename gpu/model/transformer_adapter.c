/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_adapter.c: LoRA's products. For each matrix with adapters, x (M, K) its input and y (M, N) its output:
 *
 *     forward     xa = scale · drop(x) · Aᵀ          y += xa · Bᵀ
 *     backward    dB = dyᵀ · xa    dxa = scale · dy · B    dA = dxaᵀ · drop(x)    dx = drop(dxa · A)
 *
 * xa (M, r) is computed again in backward. Adapters of a fused group whose scales are equal are one *piece* if nothing
 * is dropped: their A are one matrix (adapter.h), so x is read once, and dx written once. Each adapter has a dropout
 * mask of its own: kind DROPOUT_LORA + its tensor's role, layer the unit. */
#include "gpu/model/transformer_adapter.h"

#include "core/memory.h"
#include "core/model/adapter.h"
#include "core/round_up.h"

/* The tensors that make up a matrix, in the order of its rows (y's columns); ROLE_COUNT ends them. */
static const enum tensor_role GROUPS[LINEAR_COUNT][4] = {
    [LINEAR_QKV] = {ROLE_QKV_W, ROLE_Q_W, ROLE_K_W, ROLE_V_W},
    [LINEAR_O] = {ROLE_O_W, ROLE_COUNT},
    [LINEAR_UP] = {ROLE_GATE_W, ROLE_UP_W, ROLE_SHARED_GATE_W, ROLE_SHARED_UP_W},
    [LINEAR_DOWN] = {ROLE_DOWN_W, ROLE_SHARED_DOWN_W, ROLE_COUNT},
    [LINEAR_ROUTER] = {ROLE_ROUTER_W, ROLE_COUNT},
    [LINEAR_SHARED_SCALE] = {ROLE_SHARED_SCALE_W, ROLE_COUNT},
    [LINEAR_DELTA_IN] = {ROLE_DELTA_QKV_W, ROLE_DELTA_Z_W, ROLE_DELTA_B_W, ROLE_DELTA_A_W},
    [LINEAR_DELTA_O] = {ROLE_DELTA_O_W, ROLE_COUNT},
    [LINEAR_LAYER_IN] = {ROLE_LAYER_IN_W, ROLE_COUNT},
    [LINEAR_IN_GATE] = {ROLE_IN_GATE_W, ROLE_COUNT},
    [LINEAR_IN_OUT] = {ROLE_IN_OUT_W, ROLE_COUNT},
    [LINEAR_HEAD] = {ROLE_LM_HEAD, ROLE_SCORE_W, ROLE_COUNT},
    [LINEAR_POOLER] = {ROLE_POOLER_W, ROLE_COUNT},
};

static void adapter_find_group(struct transformer *t, int unit, enum linear which)
{
    const struct tensor_table *table = t->config.table;
    struct linear_adapter *adapter = &t->adapters[unit * LINEAR_COUNT + (int)which];
    int64_t column = 0;
    for (int i = 0; i < 4 && GROUPS[which][i] != ROLE_COUNT; i++) {
        const enum tensor_role role = GROUPS[which][i];
        const struct tensor_info *base = transformer_tensor(t, unit, role);
        const struct tensor_info *a = tensor_find_part(table, unit, role, PART_LORA_A);
        const struct tensor_info *b = tensor_find_part(table, unit, role, PART_LORA_B);
        if (a) adapter->parts[adapter->count++] = (struct adapter_part){a, b, column};
        column += base ? base->numel / linear_of(t, unit, which)->K : 0;
    }
}

enum status adapter_find(struct transformer *t, struct error *err)
{
    const struct tensor_table *table = t->config.table;
    bool any = false;
    for (int i = 0; i < table->num_tensors; i++) any = any || table->tensors[i].part != PART_BASE;
    if (!any) return STATUS_OK;
    for (int i = 0; i < table->num_tensors; i++)
        if (table->tensors[i].part != PART_BASE && role_is_embedding(table->tensors[i].role) &&
            table->tensors[i].role != ROLE_WTE)
            return error_set(err, STATUS_USAGE,
                             "'peft.target_modules': '%s' of positions, types or inputs of layers is not supported; "
                             "hint: leave it out",
                             table->tensors[i].name);
    t->adapters = memory_zeroed((size_t)(t->L + 2) * LINEAR_COUNT, sizeof *t->adapters);
    for (int unit = 0; unit < t->L + 2; unit++)
        for (int which = 0; which < LINEAR_COUNT; which++) adapter_find_group(t, unit, (enum linear)which);
    t->embedding_adapter = (struct adapter_part){tensor_find_part(table, 0, ROLE_WTE, PART_LORA_A),
                                                 tensor_find_part(table, 0, ROLE_WTE, PART_LORA_B), 0};
    return STATUS_OK;
}

/* ---- pieces -------------------------------------------------------------- */

/* Adapters [begin, end) of a matrix, whose A are one. */
struct lora_piece {
    int begin, end;
    int64_t r;      /* of all */
    const void *in; /* (M, K) their input, after dropout */
};

static bool adapter_drops(const struct pass *pass)
{
    return pass->training && pass->transformer->config.lora_dropout > 0;
}

/* The piece from `begin` on. */
static struct lora_piece adapter_piece(const struct linear_adapter *adapter, int begin, bool drops)
{
    struct lora_piece piece = {.begin = begin, .end = begin};
    do piece.r += adapter->parts[piece.end++].a->shape[0];
    while (!drops && piece.end < adapter->count &&
           adapter->parts[piece.end].a->lora_scale == adapter->parts[begin].a->lora_scale);
    return piece;
}

static const char *adapter_param(const struct pass *pass, const struct unit *unit, const struct tensor_info *tensor)
{
    ASSERT(!tensor->frozen && pass->transformer->config.table->units[tensor->unit].owner == unit->index);
    return (const char *)unit->params.trained[role_part(tensor->role)] +
           (size_t)tensor->offset * dtype_size(pass->transformer->dtype);
}

static void *adapter_grad(const struct unit *unit, const struct tensor_info *tensor)
{
    const int part = role_part(tensor->role);
    return unit->to.matrix_sums[part]
               ? (void *)((char *)unit->to.matrix_sums[part] + (size_t)tensor->offset * dtype_size(DTYPE_BF16))
               : unit->to.grads[part] + tensor->offset;
}

/* The products of a tensor W (N, K): y = x · Wᵀ, its gradient from the rows of dy and x, and dx = dy · W. */
static struct linear_fwd_args lora_fwd(const struct pass *pass, const struct unit *unit, const struct tensor_info *w,
                                       int64_t M, void *y, const void *x)
{
    const enum dtype dtype = pass->transformer->dtype;
    return (struct linear_fwd_args){.dtype = dtype,
                                    .y_dtype = dtype,
                                    .M = M,
                                    .N = w->shape[0],
                                    .K = w->shape[1],
                                    .y = y,
                                    .x = x,
                                    .w = adapter_param(pass, unit, w)};
}

/* first: the row of the micro-batch at which dy and x begin. */
static struct linear_bwd_weight_args lora_bwd_weight(const struct pass *pass, const struct unit *unit,
                                                     const struct tensor_info *w, int64_t first, int64_t M,
                                                     const void *dy, const void *x)
{
    const bool sums = unit->to.matrix_sums[0];
    return (struct linear_bwd_weight_args){.dtype = pass->transformer->dtype,
                                           .dw_dtype = sums ? DTYPE_BF16 : DTYPE_F32,
                                           .M = M,
                                           .N = w->shape[0],
                                           .K = w->shape[1],
                                           .dw = adapter_grad(unit, w),
                                           .dy = dy,
                                           .x = x,
                                           .accumulate = first > 0 || (sums ? unit->to.matrix_adds : unit->to.adds)};
}

static struct linear_bwd_input_args lora_bwd_input(const struct pass *pass, const struct unit *unit,
                                                   const struct tensor_info *w, int64_t M, void *dx, const void *dy)
{
    return (struct linear_bwd_input_args){.dtype = pass->transformer->dtype,
                                          .M = M,
                                          .N = w->shape[0],
                                          .K = w->shape[1],
                                          .dx = dx,
                                          .dy = dy,
                                          .w = adapter_param(pass, unit, w)};
}

static void adapter_drop(const struct pass *pass, const struct tensor_info *a, int64_t first, int64_t M, void *y,
                         const void *x)
{
    const struct transformer *t = pass->transformer;
    const enum dropout_kind kind = (enum dropout_kind)(DROPOUT_LORA + (int)a->role);
    struct dropout_args args = {.dtype = t->dtype, .M = M, .C = a->shape[1], .y = y, .x = x};
    args.dropout = dropout_of(t->config.lora_dropout, t->config.dropout_seed, kind, a->unit);
    args.dropout.tokens = pass->batch.numbers ? pass->batch.numbers + first : NULL; /* a plan has none */
    if (!pass->announces) t->device->ops->dropout(pass->stream, &args);
}

static void adapter_scale(const struct pass *pass, void *rows, int64_t count, double scale)
{
    const struct transformer *t = pass->transformer;
    if (scale != 1 && !pass->announces)
        PASS_OP(pass, accumulate, t->dtype, t->dtype, .n = count, .dst = rows, .src = rows, .scale = (float)scale);
}

/* Fills lora_xa; the input after dropout is piece->in. */
static void adapter_down(const struct pass *pass, const struct unit *unit, const struct linear_adapter *adapter,
                         struct lora_piece *piece, int64_t first, int64_t M, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct tensor_info *a = adapter->parts[piece->begin].a;
    piece->in = x;
    if (adapter_drops(pass)) {
        adapter_drop(pass, a, first, M, t->lora_x, x);
        piece->in = t->lora_x;
    }
    struct linear_fwd_args product = lora_fwd(pass, unit, a, M, t->lora_xa, piece->in);
    product.N = piece->r;
    PASS_PRODUCT(pass, fwd, &product);
    adapter_scale(pass, t->lora_xa, M * piece->r, a->lora_scale);
}

void adapter_forward(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                     const struct linear_fwd_args *product)
{
    const struct transformer *t = pass->transformer;
    const struct linear_adapter *adapter = &t->adapters[unit->index * LINEAR_COUNT + (int)which];
    ASSERT(!product->accumulate || adapter->count == 1);
    for (int next = 0; next < adapter->count;) {
        struct lora_piece piece = adapter_piece(adapter, next, adapter_drops(pass));
        int64_t column = 0; /* of xa */
        adapter_down(pass, unit, adapter, &piece, first, product->M, product->x);
        for (; next < piece.end; next++) {
            const struct adapter_part *part = &adapter->parts[next];
            char *y = (char *)product->y + (size_t)part->column * dtype_size(product->y_dtype);
            struct linear_fwd_args up = lora_fwd(pass, unit, part->b, product->M, y, row_at(t, t->lora_xa, column, 1));
            up.y_dtype = product->y_dtype;
            up.ld_y = product->ld_y ? product->ld_y : product->N;
            up.ld_x = piece.r;
            up.accumulate = !product->accumulate;
            PASS_PRODUCT(pass, fwd, &up);
            column += part->b->shape[1];
        }
    }
}

/* dB and dxa of a piece. */
static void adapter_up_backward(const struct pass *pass, const struct unit *unit, const struct linear_adapter *adapter,
                                const struct lora_piece *piece, int64_t first,
                                const struct linear_bwd_weight_args *product)
{
    const struct transformer *t = pass->transformer;
    int64_t column = 0; /* of xa */
    for (int i = piece->begin; i < piece->end; i++) {
        const struct adapter_part *part = &adapter->parts[i];
        const void *dy = row_at(t, (void *)(uintptr_t)product->dy, part->column, 1);
        struct linear_bwd_weight_args weight =
            lora_bwd_weight(pass, unit, part->b, first, product->M, dy, row_at(t, t->lora_xa, column, 1));
        struct linear_bwd_input_args input =
            lora_bwd_input(pass, unit, part->b, product->M, row_at(t, t->lora_dxa, column, 1), dy);
        weight.ld_dy = input.ld_dy = product->ld_dy ? product->ld_dy : product->N;
        weight.ld_x = input.ld_dx = piece->r;
        PASS_PRODUCT(pass, bwd_weight, &weight);
        PASS_PRODUCT(pass, bwd_input, &input);
        column += part->b->shape[1];
    }
    adapter_scale(pass, t->lora_dxa, product->M * piece->r, adapter->parts[piece->begin].a->lora_scale);
}

/* dx of a piece, or dx += that. */
static void adapter_down_backward(const struct pass *pass, const struct unit *unit,
                                  const struct linear_adapter *adapter, const struct lora_piece *piece, int64_t first,
                                  int64_t M, void *dx, bool adds)
{
    const struct transformer *t = pass->transformer;
    const struct tensor_info *a = adapter->parts[piece->begin].a;
    const bool drops = adapter_drops(pass), apart = drops && adds;
    struct linear_bwd_input_args input = lora_bwd_input(pass, unit, a, M, apart ? t->lora_x : dx, t->lora_dxa);
    input.N = piece->r;
    input.accumulate = adds && !apart;
    PASS_PRODUCT(pass, bwd_input, &input);
    if (drops) adapter_drop(pass, a, first, M, input.dx, input.dx);
    if (apart && !pass->announces)
        PASS_OP(pass, add, .dtype = t->dtype, .n = M * a->shape[1], .y = dx, .a = dx, .b = input.dx);
}

void adapter_backward(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                      const struct linear_bwd_weight_args *product, void *dx, bool adds)
{
    const struct transformer *t = pass->transformer;
    const struct linear_adapter *adapter = &t->adapters[unit->index * LINEAR_COUNT + (int)which];
    for (int next = 0; next < adapter->count;) {
        struct lora_piece piece = adapter_piece(adapter, next, adapter_drops(pass));
        const struct tensor_info *a = adapter->parts[next].a;
        adapter_down(pass, unit, adapter, &piece, first, product->M, product->x);
        adapter_up_backward(pass, unit, adapter, &piece, first, product);
        struct linear_bwd_weight_args weight = lora_bwd_weight(pass, unit, a, first, product->M, t->lora_dxa, piece.in);
        weight.N = piece.r;
        PASS_PRODUCT(pass, bwd_weight, &weight);
        if (dx) adapter_down_backward(pass, unit, adapter, &piece, first, product->M, dx, adds || next > 0);
        next = piece.end;
    }
}

/* ---- experts ------------------------------------------------------------- */

static const struct tensor_info *experts_adapter(const struct pass *pass, const struct unit *unit,
                                                 enum tensor_role role, enum tensor_part part)
{
    const struct transformer *t = pass->transformer;
    return t->adapters ? tensor_find_part(t->config.table, unit->index, role, part) : NULL;
}

/* Fills lora_xa. product: of the experts' matrices; returned as that of A. */
static struct grouped_linear_fwd_args experts_down(const struct pass *pass, const struct unit *unit,
                                                   const struct tensor_info *a, struct grouped_linear_fwd_args product)
{
    const struct transformer *t = pass->transformer;
    product.weights_in_out = false;
    product.bias = NULL;
    product.N = a->shape[1];
    product.y = t->lora_xa;
    product.w = adapter_param(pass, unit, a);
    t->device->ops->grouped_linear_fwd(pass->stream, &product);
    adapter_scale(pass, t->lora_xa, product.M * product.N, a->lora_scale);
    return product;
}

void adapter_experts_forward(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                             const struct grouped_linear_fwd_args *product)
{
    const struct tensor_info *a = experts_adapter(pass, unit, role, PART_LORA_A);
    if (!a) return;
    struct grouped_linear_fwd_args up = experts_down(pass, unit, a, *product);
    up.K = up.N;
    up.N = product->N;
    up.x = up.y;
    up.y = product->y;
    up.w = adapter_param(pass, unit, experts_adapter(pass, unit, role, PART_LORA_B));
    up.accumulate = true;
    pass->transformer->device->ops->grouped_linear_fwd(pass->stream, &up);
}

void adapter_experts_dxa(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                         const struct grouped_linear_bwd_input_args *product)
{
    const struct transformer *t = pass->transformer;
    const struct tensor_info *b = experts_adapter(pass, unit, role, PART_LORA_B);
    struct grouped_linear_bwd_input_args input = *product;
    if (!b) return;
    input.weights_in_out = false;
    input.K = b->shape[2];
    input.dx = t->lora_dxa;
    input.w = adapter_param(pass, unit, b);
    t->device->ops->grouped_linear_bwd_input(pass->stream, &input);
    adapter_scale(pass, t->lora_dxa, input.M * input.K, b->lora_scale);
}

void adapter_experts_weights(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                             const struct grouped_linear_bwd_weight_args *product)
{
    const struct transformer *t = pass->transformer;
    const struct tensor_info *a = experts_adapter(pass, unit, role, PART_LORA_A);
    if (!a) return;
    const int64_t r = a->shape[1];
    const struct grouped_linear_fwd_args forward = {.dtype = t->dtype,
                                                    .M = product->M,
                                                    .K = product->K,
                                                    .E = product->E,
                                                    .x = product->x,
                                                    .offsets = product->offsets};
    struct grouped_linear_bwd_weight_args weight = *product;
    experts_down(pass, unit, a, forward);
    weight.weights_in_out = false;
    weight.dbias = NULL;
    weight.K = r;
    weight.dw = adapter_grad(unit, experts_adapter(pass, unit, role, PART_LORA_B));
    weight.x = t->lora_xa;
    t->device->ops->grouped_linear_bwd_weight(pass->stream, &weight);
    weight.N = r;
    weight.K = product->K;
    weight.dw = adapter_grad(unit, a);
    weight.dy = t->lora_dxa;
    weight.x = product->x;
    t->device->ops->grouped_linear_bwd_weight(pass->stream, &weight);
}

bool adapter_experts_input(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                           const struct grouped_linear_bwd_input_args *product)
{
    const struct transformer *t = pass->transformer;
    const struct tensor_info *a = experts_adapter(pass, unit, role, PART_LORA_A);
    struct grouped_linear_bwd_input_args input = *product;
    if (!a) return false;
    input.weights_in_out = false;
    input.N = a->shape[1];
    input.dy = t->lora_dxa;
    input.w = adapter_param(pass, unit, a);
    t->device->ops->grouped_linear_bwd_input(pass->stream, &input);
    return true;
}

/* ---- the embedding of tokens --------------------------------------------- */

/* xa = scale · A[tokens]: A (V, r) is an embedding of its own; what PEFT adds is multiplied as the embedding is. */
static void adapter_look_up(const struct pass *pass, const struct unit *unit, const struct tensor_info *a)
{
    const struct transformer *t = pass->transformer;
    if (!pass->announces)
        PASS_OP(pass, embedding_fwd, .dtype = t->dtype, .M = pass->M, .C = a->shape[1], .out = t->lora_xa,
                .tokens = pass->batch.tokens, .positions = pass->batch.positions, .wte = adapter_param(pass, unit, a),
                .scale = t->embedding_scale * (float)a->lora_scale);
}

void adapter_embed(const struct pass *pass, const struct unit *unit, void *out)
{
    const struct transformer *t = pass->transformer;
    const struct tensor_info *a = t->embedding_adapter.a, *b = t->embedding_adapter.b;
    if (!a) return;
    adapter_look_up(pass, unit, a);
    struct linear_fwd_args up = lora_fwd(pass, unit, b, pass->M, out, t->lora_xa);
    up.accumulate = true;
    PASS_PRODUCT(pass, fwd, &up);
}

void adapter_embed_backward(const struct pass *pass, const struct unit *unit, const void *dout)
{
    const struct transformer *t = pass->transformer;
    const struct model_desc *desc = t->config.desc;
    const struct tensor_info *a = t->embedding_adapter.a, *b = t->embedding_adapter.b;
    if (!a) return;
    adapter_look_up(pass, unit, a);
    const struct linear_bwd_weight_args weight = lora_bwd_weight(pass, unit, b, 0, pass->M, dout, t->lora_xa);
    const struct linear_bwd_input_args input = lora_bwd_input(pass, unit, b, pass->M, t->lora_dxa, dout);
    PASS_PRODUCT(pass, bwd_weight, &weight);
    PASS_PRODUCT(pass, bwd_input, &input);
    if (!pass->announces)
        PASS_OP(pass, embedding_bwd, .dtype = t->dtype, .M = pass->M, .C = a->shape[1], .V = t->V,
                .P = desc->max_positions, .dwte = adapter_grad(unit, a), .accumulate_wte = unit->to.adds,
                .dout = t->lora_dxa, .tokens = pass->batch.tokens, .positions = pass->batch.positions,
                .scale = t->embedding_scale * (float)a->lora_scale, .padding = model_desc_untrained_token(desc));
}

/* ---- memory -------------------------------------------------------------- */

void adapter_layout(struct transformer *t, struct arena *arena)
{
    int64_t most_r = t->embedding_adapter.a ? t->embedding_adapter.a->shape[1] : 0, most_in = 0;
    for (int i = 0; t->adapters && i < (int)(t->L + 2) * LINEAR_COUNT; i++) {
        int64_t r = 0;
        for (int p = 0; p < t->adapters[i].count; p++) r += t->adapters[i].parts[p].a->shape[0];
        most_r = max64(r, most_r);
        most_in = max64(r > 0 ? t->linears[i].K : 0, most_in);
    }
    int64_t most = most_r; /* elements for a token */
    for (int i = 0; t->adapters && i < t->config.table->num_tensors; i++) {
        const struct tensor_info *a = &t->config.table->tensors[i];
        if (a->part == PART_LORA_A && role_is_expert(a->role))
            most = max64(a->shape[1] * t->config.desc->experts.per_token, most);
    }
    if (most == 0) return;
    const bool training = t->config.training, drops = training && t->config.lora_dropout > 0;
    const size_t rows = (size_t)t->config.batch.max_tokens, size = dtype_size(t->dtype);
    t->lora_xa = arena_take(arena, MEM_ACTIVATIONS, rows * (size_t)most * size);
    t->lora_dxa = training ? arena_take(arena, MEM_ACTIVATIONS, rows * (size_t)most * size) : NULL;
    t->lora_x = drops ? arena_take(arena, MEM_ACTIVATIONS, rows * (size_t)most_in * size) : NULL;
    t->most_lora_rank = most_r;
}
