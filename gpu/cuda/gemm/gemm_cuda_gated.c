/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_gated.c: which linear ops cuDNN may compute. */
#include "gpu/cuda/gemm/gemm_cuda_gated.h"

#include "core/log.h"

struct linear_fwd_args gemm_gated_half(const struct linear_fwd_args *a)
{
    struct linear_fwd_args half = *a;
    half.N = a->N / 2;
    half.ld_y = a->N;
    half.gated = NULL;
    return half;
}

enum { ALIGN = 16 }; /* bytes */

static bool is_aligned(const struct gated_product *p)
{
    for (int i = 0; i < GATED_POINTERS; i++)
        if ((uintptr_t)p->pointers[i] % ALIGN) return false;
    return true;
}

static void *gated_elements_after(const void *base, int64_t count)
{
    return (char *)(uintptr_t)base + count * (int64_t)sizeof(uint16_t);
}

/* Whether cuDNN may compute it: 16 bits, rows and columns in whole parts of 16 bytes, sizes that an int holds. */
static bool gated_fits(enum dtype dtype, int64_t M, int64_t F, int64_t K)
{
    return dtype != DTYPE_F32 && M > 0 && F > 0 && K > 0 && F % 8 == 0 && K % 8 == 0 && M <= INT32_MAX / (2 * F) &&
           M <= INT32_MAX / K && K <= INT32_MAX / (2 * F);
}

static bool product_of_fwd(const struct gemm_cuda *g, const struct linear_fwd_args *a, struct gated_product *p)
{
    const int64_t F = a->N / 2;
    ASSERT(!a->gated || (!a->gelu && a->y_dtype == a->dtype && (!a->ld_y || a->ld_y == a->N)));
    if (!a->gated || a->gated_gelu || a->bias || a->weights_in_out || !gated_fits(a->dtype, a->M, F, a->K))
        return false;
    struct linear_fwd_args up = gemm_gated_half(a);
    up.w = gated_elements_after(a->w, F * a->K);
    up.y = gated_elements_after(a->y, F);
    *p = (struct gated_product){.key = gemm_product_fwd(&g->rules, &up).key};
    p->key.epilogue = GEMM_SWIGLU;
    p->key.ld_aux = a->N;
    p->pointers[GATED_ROWS] = (void *)(uintptr_t)a->x;
    p->pointers[GATED_WEIGHTS] = (void *)(uintptr_t)up.w;
    p->pointers[GATED_GATE] = a->y;
    p->pointers[GATED_UP] = up.y;
    p->pointers[GATED_H] = a->gated;
    return true;
}

static bool product_of_bwd(const struct gemm_cuda *g, const struct linear_bwd_input_args *a, struct gated_product *p)
{
    const bool dense = !a->ld_dy || a->ld_dy % 8 == 0;
    ASSERT(!a->gate_up || (!a->gelu_aux && !a->dbias && !a->accumulate));
    if (!a->gate_up || a->gated_gelu || a->weights_in_out || !dense || !gated_fits(a->dtype, a->M, a->K, a->N))
        return false;
    *p = (struct gated_product){.key = gemm_product_bwd_input(&g->rules, a).key};
    p->key.epilogue = GEMM_DSWIGLU;
    p->key.ldd = p->key.ld_aux = 2 * a->K;
    p->pointers[GATED_ROWS] = (void *)(uintptr_t)a->dy;
    p->pointers[GATED_WEIGHTS] = (void *)(uintptr_t)a->w;
    p->pointers[GATED_GATE] = p->pointers[GATED_DGATE] = a->gate_up;
    p->pointers[GATED_UP] = p->pointers[GATED_DUP] = gated_elements_after(a->gate_up, a->K);
    return true;
}

static bool product_of_grouped(const struct gemm_cuda *g, const struct grouped_linear_fwd_args *a,
                               struct gated_product *p)
{
    if (a->bias || a->accumulate || !gated_fits(a->dtype, a->M, a->N, a->K) || a->E > INT32_MAX / (a->N * a->K))
        return false;
    *p = (struct gated_product){.key = {.m = a->N,
                                        .n = a->M,
                                        .k = a->K,
                                        .lda = a->weights_in_out ? a->N : a->K,
                                        .ldb = a->K,
                                        .ldd = a->N,
                                        .ld_aux = a->E,
                                        .transpose_a = !a->weights_in_out,
                                        .input = a->dtype,
                                        .output = a->dtype,
                                        .epilogue = GEMM_GROUPED,
                                        .workspace = (int64_t)g->rules.workspace}};
    p->pointers[GATED_ROWS] = (void *)(uintptr_t)a->x;
    p->pointers[GATED_WEIGHTS] = (void *)(uintptr_t)a->w;
    p->pointers[GATED_H] = a->y;
    p->pointers[GATED_OFFSETS] = (void *)(uintptr_t)a->offsets;
    return true;
}

bool gemm_gated_product(const struct gemm_cuda *g, const struct gemm_op *op, struct gated_product *p)
{
    const bool there_is_one = op->grouped ? product_of_grouped(g, op->grouped, p)
                              : op->fwd   ? product_of_fwd(g, op->fwd, p)
                                          : op->bwd_input && product_of_bwd(g, op->bwd_input, p);
    if (there_is_one) p->key.cudnn = g->cudnn ? g->cudnn->version : 0;
    return there_is_one && is_aligned(p);
}

bool gemm_gated_may_fuse(const struct gemm_cuda *g, const struct gemm_op *op)
{
    struct gated_product p;
    return !g->fixed && g->forced != GEMM_UNFUSED && gemm_gated_product(g, op, &p);
}

bool gemm_gated_wants_cudnn(const struct gemm_cuda *g, const struct linear_products *products)
{
    struct gemm_op op;
    for (int i = 0; (g->cache || g->forced == GEMM_FUSED) && gemm_op_at(products, i, &op); i++)
        if (gemm_gated_may_fuse(g, &op)) return true;
    return false;
}

const struct gemm_plan *gemm_gated_plan(struct gemm_cuda *g, const struct gemm_op *op, struct gated_product *p)
{
    const struct gemm_plan *plan = gemm_gated_product(g, op, p) ? gemm_plan_find(g, &p->key) : NULL;
    return plan && plan->cudnn && gemm_plan_is_taken(g, plan) ? plan : NULL;
}

void gemm_gated_log(struct gemm_cuda *g, const struct linear_products *products)
{
    struct gemm_op op;
    for (int i = 0; gemm_op_at(products, i, &op); i++) {
        struct gated_product p;
        char how[128] = "a kernel of its own", what[128];
        const struct linear_fwd_args *fwd = op.fwd && op.fwd->gated ? op.fwd : NULL;
        const struct linear_bwd_input_args *bwd = op.bwd_input && op.bwd_input->gate_up ? op.bwd_input : NULL;
        const struct grouped_linear_fwd_args *grouped = op.grouped;
        if (!fwd && !bwd && !grouped) continue;
        const struct gemm_plan *plan = gemm_gated_plan(g, &op, &p);
        const int version = plan ? g->cudnn->version : 0;
        if (plan)
            snprintf(how, sizeof how, "%scuDNN %d.%d.%d, engine %lld", grouped ? "" : "inside the matrix product, by ",
                     version / 10000, version / 100 % 100, version % 100, (long long)plan->cudnn->engine);
        if (grouped)
            snprintf(what, sizeof what, "a product of %lld experts, %s, %lld x %lld", (long long)grouped->E,
                     dtype_name(grouped->dtype), (long long)grouped->M, (long long)grouped->N);
        else
            snprintf(what, sizeof what, "%s %s, %s, %lld x %lld",
                     (fwd ? fwd->gated_gelu : bwd->gated_gelu) ? "GeGLU" : "SwiGLU", fwd ? "forward" : "backward",
                     dtype_name(fwd ? fwd->dtype : bwd->dtype), (long long)(fwd ? fwd->M : bwd->M),
                     (long long)(fwd ? fwd->N / 2 : bwd->K));
        log_detail("%s: %s", what, how);
    }
}
