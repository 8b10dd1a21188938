/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_product.c: the products of linear ops. cublasLt's GELU is that of tanh; the other one has a kernel. */
#include "gpu/cuda/gemm/gemm_cuda_product.h"

#include "gpu/cuda/cuda_workspace.h"

_Static_assert((int)GEMM_KEY_FIELDS <= (int)AUTOTUNE_KEY_FIELDS && (int)GEMM_FUSION_COUNT == (int)AUTOTUNE_FUSIONS,
               "the cache has room for them");

struct autotune_key gemm_autotune_key(const struct gemm_key *key)
{
    struct autotune_key whole = {.op = AUTOTUNE_GEMM};
    memcpy(whole.fields, key, sizeof *key);
    return whole;
}

bool gemm_op_at(const struct linear_products *products, int number, struct gemm_op *op)
{
    *op = (struct gemm_op){.fwd = NULL};
    if (number < products->num_fwd)
        op->fwd = &products->fwd[number];
    else if ((number -= products->num_fwd) < products->num_bwd_input)
        op->bwd_input = &products->bwd_input[number];
    else if ((number -= products->num_bwd_input) < products->num_bwd_weight)
        op->bwd_weight = &products->bwd_weight[number];
    else if ((number -= products->num_bwd_weight) < products->num_grouped)
        op->grouped = &products->grouped[number];
    else
        return false;
    return true;
}

static int64_t product_alignment(const void *pointer)
{
    uintptr_t bits = (uintptr_t)pointer | 16;
    return (int64_t)(bits & -bits);
}

static void set_alignments(struct gemm_product *p)
{
    p->key.align_a = product_alignment(p->a);
    p->key.align_b = product_alignment(p->b);
    p->key.align_d = product_alignment(p->d);
    p->key.align_extra = product_alignment((void *)((uintptr_t)p->vector | (uintptr_t)p->aux));
}

/* With what all products of these rules and this dtype have in common. */
static struct gemm_product completed(const struct gemm_rules *rules, const struct gemm_product *product,
                                     enum dtype dtype)
{
    struct gemm_product p = *product;
    p.key.input = dtype;
    p.key.tf32 = rules->tf32 && dtype == DTYPE_F32;
    p.key.workspace = (int64_t)rules->workspace;
    p.key.sm_target = rules->sm_target;
    set_alignments(&p);
    return p;
}

struct gemm_product gemm_product_fwd(const struct gemm_rules *rules, const struct linear_fwd_args *a)
{
    const bool gelu = a->gelu && !a->gelu_erf;
    struct gemm_product p = {
        .a = a->w, .b = a->x, .d = a->y, .vector = (void *)(uintptr_t)a->bias, .aux = gelu ? a->aux : NULL};
    p.key = (struct gemm_key){.m = a->N,
                              .n = a->M,
                              .k = a->K,
                              .lda = a->weights_in_out ? a->N : a->K,
                              .ldb = a->ld_x ? a->ld_x : a->K,
                              .ldd = a->ld_y ? a->ld_y : a->N,
                              .ld_aux = gelu ? a->N : 0,
                              .transpose_a = !a->weights_in_out,
                              .output = a->y_dtype};
    p.key.epilogue = gelu ? (a->bias ? GEMM_GELU_AUX_BIAS : GEMM_GELU_AUX) : a->bias ? GEMM_BIAS : GEMM_PLAIN;
    p.key.accumulate = a->accumulate;
    return completed(rules, &p, a->dtype);
}

struct gemm_product gemm_product_bwd_input(const struct gemm_rules *rules, const struct linear_bwd_input_args *a)
{
    const void *aux = a->gelu_erf ? NULL : a->gelu_aux;
    struct gemm_product p = {.a = a->w, .b = a->dy, .d = a->dx, .aux = (void *)(uintptr_t)aux};
    p.key = (struct gemm_key){.m = a->K,
                              .n = a->M,
                              .k = a->N,
                              .lda = a->weights_in_out ? a->N : a->K,
                              .ldb = a->ld_dy ? a->ld_dy : a->N,
                              .ldd = a->ld_dx ? a->ld_dx : a->K,
                              .ld_aux = aux ? a->K : 0,
                              .transpose_a = a->weights_in_out,
                              .output = a->dtype,
                              .epilogue = aux ? GEMM_DGELU : GEMM_PLAIN,
                              .accumulate = a->accumulate};
    return completed(rules, &p, a->dtype);
}

struct gemm_product gemm_product_bwd_weight(const struct gemm_rules *rules, const struct linear_bwd_weight_args *a,
                                            float *sums)
{
    const int64_t ld_dy = a->ld_dy ? a->ld_dy : a->N, ld_x = a->ld_x ? a->ld_x : a->K;
    struct gemm_product p = {.a = a->weights_in_out ? a->dy : a->x, .b = a->weights_in_out ? a->x : a->dy, .d = a->dw};
    p.vector = a->dw_dtype == DTYPE_F32 ? sums : NULL; /* an epilogue's sums have the type of D */
    p.key = (struct gemm_key){.m = a->weights_in_out ? a->N : a->K,
                              .n = a->weights_in_out ? a->K : a->N,
                              .k = a->M,
                              .lda = a->weights_in_out ? ld_dy : ld_x,
                              .ldb = a->weights_in_out ? ld_x : ld_dy,
                              .ldd = a->weights_in_out ? a->N : a->K,
                              .transpose_b = true,
                              .output = a->dw_dtype,
                              .accumulate = a->accumulate};
    p.key.epilogue = !p.vector ? GEMM_PLAIN : a->weights_in_out ? GEMM_BGRADA : GEMM_BGRADB;
    return completed(rules, &p, a->dtype);
}

struct gemm_product gemm_product_of(const struct gemm_rules *rules, const struct gemm_op *op)
{
    if (op->fwd) return gemm_product_fwd(rules, op->fwd);
    if (op->bwd_input) return gemm_product_bwd_input(rules, op->bwd_input);
    const struct linear_bwd_weight_args *a = op->bwd_weight;
    float *scratch = a->dbias ? (float *)(uintptr_t)CUDA_SCRATCH_ALIGN : NULL;
    return gemm_product_bwd_weight(rules, a, a->accumulate_dbias ? scratch : a->dbias);
}

struct gemm_product gemm_product_without_epilogue(const struct gemm_product *p)
{
    struct gemm_product plain = *p;
    plain.vector = plain.aux = NULL;
    plain.key.epilogue = GEMM_PLAIN;
    plain.key.ld_aux = 0;
    set_alignments(&plain);
    return plain;
}
