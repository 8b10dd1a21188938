/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/model/transformer_layers.h"

#include "gpu/model/transformer_adapter.h"

struct linear_fwd_args linear_fwd_args(const struct transformer *t, const struct unit *unit, enum linear which,
                                       int64_t M, void *y, const void *x, void *aux)
{
    const struct linear_shape *linear = linear_of(t, unit->index, which);
    const bool gated = aux && transformer_gates(t), adapted = adapter_of(t, unit->index, which);
    return (struct linear_fwd_args){
        .dtype = t->dtype,
        .y_dtype = t->dtype,
        .weights_in_out = linear->in_out,
        .M = M,
        .N = linear->N,
        .K = linear->K,
        .y = y,
        .x = x,
        .w = unit_param(t, unit, linear->weight),
        .bias = unit_param(t, unit, linear->bias),
        .gelu = aux && !gated,
        .aux = gated ? NULL : aux,
        .gelu_erf = aux && t->config.desc->mlp == MLP_GELU_ERF,
        .gated = gated && !adapted && !transformer_gates_again(t) ? aux : NULL,
        .gated_gelu = gated && t->config.desc->mlp == MLP_GEGLU,
        .accumulate = adapted && aux && !gated,
    };
}

struct linear_bwd_weight_args linear_bwd_weight_args(const struct transformer *t, const struct unit *unit,
                                                     enum linear which, int64_t M, const void *dy, const void *x)
{
    const struct linear_shape *linear = linear_of(t, unit->index, which);
    const struct model_desc *desc = t->config.desc;
    const bool k_bias_free = which == LINEAR_QKV && t->k_bias_free;
    return (struct linear_bwd_weight_args){
        .dtype = t->dtype,
        .dw_dtype = unit->to.matrix_sums[0] ? DTYPE_BF16 : DTYPE_F32,
        .weights_in_out = linear->in_out,
        .M = M,
        .N = linear->N,
        .K = linear->K,
        .dw = unit_matrix_grad(t, unit, linear->weight),
        .dbias = t->bias_summed[which] ? NULL : unit_grad(t, unit, linear->bias),
        .dy = dy,
        .x = x,
        .accumulate = unit->to.matrix_sums[0] ? unit->to.matrix_adds : unit->to.adds,
        .accumulate_dbias = unit->to.adds,
        .null_first = k_bias_free ? t->H * desc->head_dim : 0,
        .null_count = k_bias_free ? desc->num_kv_heads * desc->head_dim : 0,
    };
}

struct row_sums bias_sums(const struct transformer *t, const struct unit *unit, enum linear which)
{
    float *gradient = unit_grad(t, unit, linear_of(t, unit->index, which)->bias);
    return (struct row_sums){t->bias_summed[which] ? gradient : NULL, unit->to.adds};
}

struct linear_bwd_input_args linear_bwd_input_args(const struct transformer *t, const struct unit *unit,
                                                   enum linear which, int64_t M, void *dx, const void *dy, void *aux)
{
    const struct linear_shape *linear = linear_of(t, unit->index, which);
    const bool gated = aux && transformer_gates(t), adapted = adapter_of(t, unit->index, which);
    const struct row_sums sums = aux && !gated ? bias_sums(t, unit, LINEAR_UP) : (struct row_sums){0};
    return (struct linear_bwd_input_args){
        .dtype = t->dtype,
        .weights_in_out = linear->in_out,
        .M = M,
        .N = linear->N,
        .K = linear->K,
        .dx = dx,
        .dy = dy,
        .w = unit_param(t, unit, linear->weight),
        .gelu_aux = gated ? NULL : aux,
        .gelu_erf = aux && t->config.desc->mlp == MLP_GELU_ERF,
        .dbias = sums.to,
        .accumulate_dbias = sums.accumulate,
        .gate_up = gated && !adapted ? aux : NULL,
        .gated_gelu = gated && t->config.desc->mlp == MLP_GEGLU,
    };
}

void linear_run(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                const struct linear_fwd_args *args)
{
    const bool adapted = adapter_of(pass->transformer, unit->index, which);
    if (args->accumulate) /* the product has a GELU: what is added to its sum goes first */
        adapter_forward(pass, unit, which, first, args);
    PASS_PRODUCT(pass, fwd, args);
    if (adapted && !args->accumulate) adapter_forward(pass, unit, which, first, args);
}

void linear_run_backward(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                         const struct linear_bwd_weight_args *weight, struct linear_bwd_input_args input, bool adds)
{
    const bool adapted = adapter_of(pass->transformer, unit->index, which);
    ASSERT(weight->dw || !weight->dbias);
    if (weight->dw) PASS_PRODUCT(pass, bwd_weight, weight);
    if (adapted) adapter_backward(pass, unit, which, first, weight, input.dx, adds);
    input.accumulate = adapted || adds;
    if (input.dx) PASS_PRODUCT(pass, bwd_input, &input);
}

void linear_forward(const struct pass *pass, const struct unit *unit, enum linear which, void *y, const void *x,
                    void *aux)
{
    const struct transformer *t = pass->transformer;
    struct linear_fwd_args args = linear_fwd_args(t, unit, which, pass->M, y, x, aux);
    linear_run(pass, unit, which, 0, &args);
    if (pass->announces || !aux || !transformer_gates(t) || transformer_gates_again(t)) return;
    if (!args.gated) { /* what adapters add comes before the gate */
        args.gated = aux;
        const struct swiglu_fwd_args gate = linear_gate_fwd(&args);
        t->device->ops->swiglu_fwd(pass->stream, &gate);
    }
}

void linear_backward(const struct pass *pass, const struct unit *unit, enum linear which, void *dx, const void *dy,
                     const void *x, void *aux)
{
    const struct transformer *t = pass->transformer;
    struct linear_bwd_weight_args weight = linear_bwd_weight_args(t, unit, which, pass->M, dy, x);
    struct linear_bwd_input_args input = linear_bwd_input_args(t, unit, which, pass->M, dx, dy, aux);
    linear_run_backward(pass, unit, which, 0, &weight, input, false);
    if (pass->announces || !dx || !aux || !transformer_gates(t)) return;
    if (!input.gate_up) {
        input.gate_up = aux;
        const struct swiglu_bwd_args gate = linear_gate_bwd(&input);
        t->device->ops->swiglu_bwd(pass->stream, &gate);
    }
}

struct dropout dropout_at(const struct pass *pass, enum dropout_kind kind, int64_t layer)
{
    const struct transformer_config *config = &pass->transformer->config;
    const double rate = kind == DROPOUT_EMBEDDING   ? config->dropout.embedding
                        : kind == DROPOUT_ATTENTION ? config->dropout.attention
                        : kind == DROPOUT_POOLED    ? config->dropout.pooled
                                                    : config->dropout.residual;
    struct dropout dropout = dropout_of(pass->training ? rate : 0, config->dropout_seed, kind, layer);
    dropout.tokens = pass->batch.numbers;
    return dropout;
}

const void *drop_rows(const struct pass *pass, enum dropout_kind kind, int64_t layer, int64_t first, int64_t rows,
                      void *y, const void *x)
{
    const struct transformer *t = pass->transformer;
    struct dropout_args args = {
        .dtype = t->dtype, .M = rows, .C = t->C, .y = y, .x = x, .dropout = dropout_at(pass, kind, layer)};
    if (!args.dropout.threshold) return x;
    if (args.dropout.tokens) /* a plan has none */
        args.dropout.tokens += first;
    t->device->ops->dropout(pass->stream, &args);
    return y;
}

const void *drop(const struct pass *pass, enum dropout_kind kind, int64_t layer, void *y, const void *x)
{
    return drop_rows(pass, kind, layer, 0, pass->M, y, x);
}

void norm_forward(const struct pass *pass, const struct unit *unit, struct norm norm, const void *x, const void *delta)
{
    const struct transformer *t = pass->transformer;
    PASS_OP(pass, norm_fwd, .dtype = t->dtype, .kind = t->config.desc->norm, .M = pass->M, .C = t->C, .eps = t->eps,
            .y = norm.y, .x_out = delta ? norm.res : NULL, .x = delta ? x : norm.res, .delta = delta,
            .delta_scale = (float)t->config.desc->residual_multiplier, .weight = unit_param(t, unit, norm.weight),
            .weight_offset = (float)t->config.desc->norm_offset, .bias = unit_param(t, unit, norm.bias),
            .mean = norm.mean, .rstd = norm.rstd);
}

void norm_backward(const struct pass *pass, const struct unit *unit, struct norm norm, void *dx, const void *dy,
                   const void *dres, struct row_sums sums)
{
    const struct transformer *t = pass->transformer;
    PASS_OP(pass, norm_bwd, .dtype = t->dtype, .kind = t->config.desc->norm, .M = pass->M, .C = t->C, .dx = dx,
            .dres = dres, .dy = dy, .x = norm.res,
            .weight = norm.weight_copy ? norm.weight_copy : unit_param(t, unit, norm.weight),
            .weight_offset = (float)t->config.desc->norm_offset, .mean = norm.mean, .rstd = norm.rstd,
            .dweight = unit_grad(t, unit, norm.weight), .dbias = unit_grad(t, unit, norm.bias), .dx_sums = sums.to,
            .accumulate = unit->to.adds, .accumulate_sums = sums.accumulate);
}

void accumulate_to(const struct pass *pass, int64_t n, void *dst, enum dtype dst_dtype, const void *src,
                   enum dtype src_dtype, float scale, bool adds)
{
    PASS_OP(pass, accumulate, dst_dtype, src_dtype, n, dst, src, scale, adds);
}

void add_rows(const struct pass *pass, void *y, const void *a, const void *b, const void *factor)
{
    const struct transformer *t = pass->transformer;
    PASS_OP(pass, add, .dtype = t->dtype, .n = pass->M * t->C, .y = y, .a = a, .b = b, .factor = factor);
}
