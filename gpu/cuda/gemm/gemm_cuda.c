/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda.c: the linear ops over cublasLt.
 *
 *     gemm_cuda_product.c     an op's arguments -> the product that cublasLt computes
 *     gemm_cuda_plan.c        a product -> its descriptors and algorithm
 *     gemm_cuda_autotune.c    before the first step: the fastest algorithm of each announced product, and whether its
 *                             epilogue is faster than a kernel of its own
 *     gemm_cuda_gated.c       SwiGLU inside products, and products of experts, by cuDNN
 *     gemm_cuda_kernels.cu    bias, GELU and sums of columns where cublasLt cannot fuse them
 *
 * Where the library has no algorithm with the epilogue, or a slower one, the product is computed without it. A bias
 * gradient that is accumulated goes to scratch memory first, because the epilogue overwrites. The stream's workspace:
 * | cublasLt | sums of columns |. */
#include "gpu/cuda/gemm/gemm_cuda.h"

#include "core/env_switch.h"
#include "core/memory.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"
#include "gpu/cuda/gemm/gemm_cuda_plan.h"
#include "gpu/cuda/ops_cuda.h"

enum status gemm_cuda_new(struct cuda_device *cuda, struct gemm_cuda **gemm, struct error *err)
{
    struct gemm_cuda *g = *gemm = memory_zeroed(1, sizeof *g);
    g->cuda = cuda;
    g->lt = cuda->cublaslt;
    g->rules.workspace = cuda_gemm_workspace(cuda->device.memory_bytes);
    enum status status;
    TRY_GOTO(device_cuda_wants_tf32(&g->rules.tf32, err));
    static const char *const words[] = {"again"}, *const fusions[] = {"fused", "unfused"};
    int again, fusion;
    TRY_GOTO(env_choice("ZTRAIN_GEMM_MEASURE", words, COUNT_OF(words), &again, err));
    g->again = again == 0;
    TRY_GOTO(env_choice("ZTRAIN_GEMM_EPILOGUES", fusions, COUNT_OF(fusions), &fusion, err));
    g->forced = fusion < 0 ? GEMM_UNTUNED : fusion == 0 ? GEMM_FUSED : GEMM_UNFUSED;
    cublasStatus_t code = g->lt->cublasLtCreate(&g->handle);
    if (code != CUBLAS_STATUS_SUCCESS) {
        status =
            error_set(err, STATUS_DEVICE, "cannot open cublasLt on GPU %d: %s; hint: is its memory full (nvidia-smi)?",
                      cuda->index, cuda->cublaslt->cublasLtGetStatusName(code));
        goto fail;
    }
    g->cache = autotune_cache_open(cuda->device.name, g->lt->cublasLtGetVersion(), false);
    if (g->again) autotune_cache_tune_again(g->cache);
    return STATUS_OK;
fail:
    free(g);
    *gemm = NULL;
    return status;
}

static struct gemm_cuda *gemm_of(const struct device *device)
{
    return ((const struct cuda_device *)device->private_)->gemm;
}

void cuda_device_avoid(struct device *device, unsigned parts)
{
    if (parts & DEVICE_EPILOGUES) gemm_of(device)->forced = GEMM_UNFUSED;
}

void cuda_device_leave_multiprocessors(struct device *device, int count)
{
    ASSERT(count > 0 && count < device->multiprocessors);
    device->multiprocessors_left = count;
    gemm_of(device)->rules.sm_target = device->multiprocessors - count;
}

enum status cuda_device_fix_kernels(struct device *device, struct error *err)
{
    struct gemm_cuda *g = gemm_of(device);
    if (g->again)
        return error_set(
            err, STATUS_USAGE,
            "ZTRAIN_GEMM_MEASURE is 'again', but with train.virtual_ranks no kernel is measured; hint: unset it");
    g->fixed = true;
    autotune_cache_close(g->cache);
    g->cache = autotune_cache_open(device->name, g->lt->cublasLtGetVersion(), true);
    return STATUS_OK;
}

char *cuda_device_choices(struct device *device)
{
    return autotune_cache_export(gemm_of(device)->cache);
}

void cuda_device_take_choices(struct device *device, const char *text, bool complete)
{
    autotune_cache_import(gemm_of(device)->cache, text, complete);
}

void gemm_cuda_free(struct gemm_cuda *g)
{
    if (!g) return;
    gemm_plans_free(g);
    g->lt->cublasLtDestroy(g->handle);
    autotune_cache_close(g->cache);
    free(g);
}

/* ---- the ops ------------------------------------------------------------- */

/* `bytes` bytes of scratch memory for partial sums of columns; they follow the workspace of products. */
static float *gemm_sums_scratch(struct stream *stream, size_t bytes)
{
    const size_t products = cuda_device_of(stream)->gemm->rules.workspace;
    return (float *)((char *)gemm_workspace_of(stream, products + bytes) + products);
}

/* False: it has to be computed without its epilogue, or the library has no algorithm for it. */
static bool run_linear_product(struct stream *stream, const struct gemm_product *p, const char *op)
{
    struct cuda_device *cuda = cuda_device_of(stream);
    struct gemm_cuda *g = cuda->gemm;
    if (g->forced == GEMM_UNFUSED && p->key.epilogue != GEMM_PLAIN) return false;
    const struct gemm_plan *plan = gemm_plan_get(g, &p->key);
    if (!gemm_plan_is_taken(g, plan)) return false;
    const cublasStatus_t code = gemm_plan_run(plan, &plan->algorithm, p, stream);
    if (code != CUBLAS_STATUS_SUCCESS)
        cuda_fail(cuda, "%s: cublasLtMatmul: %s", op, g->lt->cublasLtGetStatusName(code));
    return true;
}

/* Enqueues a product without its epilogue, for which the library must have an algorithm. */
static void run_linear_plain(struct stream *stream, const struct gemm_product *p, const char *op)
{
    const struct gemm_product plain = gemm_product_without_epilogue(p);
    if (!run_linear_product(stream, &plain, op))
        cuda_fail(cuda_device_of(stream),
                  "%s: cublasLt has no deterministic algorithm for m %lld, n %lld, k %lld in %s", op,
                  (long long)p->key.m, (long long)p->key.n, (long long)p->key.k, dtype_name((enum dtype)p->key.input));
}

static void gemm_linear_fwd(struct stream *stream, const struct linear_fwd_args *a)
{
    ASSERT(!a->accumulate || !a->gated);
    if (a->M == 0 || a->N == 0) return;
    struct gemm_product p = gemm_product_fwd(&cuda_device_of(stream)->gemm->rules, a);
    struct linear_fwd_args rest = *a; /* that is still to be done */
    if (!a->gelu) rest.aux = NULL;
    if (run_linear_product(stream, &p, "linear_fwd")) {
        rest.bias = NULL;
        if (!a->gelu_erf) rest.aux = NULL;
    } else {
        run_linear_plain(stream, &p, "linear_fwd");
    }
    if (rest.bias || rest.aux) cuda_bias_gelu(stream, &rest);
}

static void gemm_linear_bwd_input(struct stream *stream, const struct linear_bwd_input_args *a)
{
    ASSERT(!a->gate_up || !a->accumulate);
    ASSERT(!a->ld_dx || a->ld_dx == a->K || (!a->gelu_aux && !a->gate_up));
    if (a->M == 0 || a->K == 0) {
        if (a->dbias && !a->accumulate_dbias) stream_fill_zero(stream, a->dbias, (size_t)a->K * sizeof *a->dbias);
        return;
    }
    struct gemm_product p = gemm_product_bwd_input(&cuda_device_of(stream)->gemm->rules, a);
    struct linear_bwd_input_args rest = *a; /* that is still to be done */
    if (!run_linear_product(stream, &p, "linear_bwd_input"))
        run_linear_plain(stream, &p, "linear_bwd_input");
    else if (!a->gelu_erf)
        rest.gelu_aux = NULL;
    if (rest.dbias)
        cuda_column_sums(stream, &rest, gemm_sums_scratch(stream, cuda_column_sums_bytes(a->M, a->K)));
    else if (rest.gelu_aux)
        cuda_gelu_backward(stream, &rest);
}

void cuda_linear_bwd_weight(struct stream *stream, const struct linear_bwd_weight_args *a)
{
    if (a->M == 0) {
        if (!a->accumulate) stream_fill_zero(stream, a->dw, (size_t)(a->N * a->K) * dtype_size(a->dw_dtype));
        if (a->dbias && !a->accumulate_dbias) stream_fill_zero(stream, a->dbias, (size_t)a->N * sizeof *a->dbias);
        return;
    }
    float *scratch = a->dbias ? gemm_sums_scratch(stream, cuda_bias_sums_bytes(a)) : NULL;
    float *sums = a->dbias && a->accumulate_dbias ? scratch : a->dbias;
    struct gemm_product p = gemm_product_bwd_weight(&cuda_device_of(stream)->gemm->rules, a, sums);
    if (p.key.epilogue != GEMM_PLAIN && run_linear_product(stream, &p, "linear_bwd_weight")) {
        if (a->null_count) stream_fill_zero(stream, sums + a->null_first, (size_t)a->null_count * sizeof *sums);
        const struct accumulate_args add = {DTYPE_F32, DTYPE_F32, a->N, a->dbias, sums, .scale = 1, .accumulate = true};
        if (sums != a->dbias) cuda_accumulate(stream, &add);
        return;
    }
    run_linear_plain(stream, &p, "linear_bwd_weight");
    if (a->dbias) cuda_bias_sums(stream, a, scratch);
}

const char *gemm_op_run(struct stream *stream, const struct gemm_op *op)
{
    struct gated_product inside;
    struct gemm_cuda *g = cuda_device_of(stream)->gemm;
    const struct linear_fwd_args *fwd = op->fwd && op->fwd->gated ? op->fwd : NULL;
    const struct linear_bwd_input_args *bwd = op->bwd_input && op->bwd_input->gate_up ? op->bwd_input : NULL;
    const struct gemm_plan *plan = fwd || bwd || op->grouped ? gemm_gated_plan(g, op, &inside) : NULL;
    if (fwd && plan) {
        const struct linear_fwd_args gate = gemm_gated_half(fwd);
        gemm_linear_fwd(stream, &gate);
    } else if (op->fwd) {
        gemm_linear_fwd(stream, op->fwd);
    } else if (op->bwd_input && !plan) {
        gemm_linear_bwd_input(stream, op->bwd_input);
    } else if (op->bwd_weight) {
        cuda_linear_bwd_weight(stream, op->bwd_weight);
    } else if (op->grouped && !plan) {
        cuda_grouped_own(stream, op->grouped);
    }
    if (plan)
        return cudnn_plan_execute(plan->cudnn, cuda_stream_of(stream)->handle, inside.pointers, GATED_POINTERS,
                                  gemm_workspace_of(stream, g->rules.workspace));
    if (fwd) {
        const struct swiglu_fwd_args gate = linear_gate_fwd(fwd);
        cuda_swiglu_fwd(stream, &gate);
    } else if (bwd) {
        const struct swiglu_bwd_args gate = linear_gate_bwd(bwd);
        cuda_swiglu_bwd(stream, &gate);
    }
    return NULL;
}

static void run_linear_op(struct stream *stream, const struct gemm_op *op, const char *name)
{
    const char *failed = gemm_op_run(stream, op);
    if (failed) cuda_fail(cuda_device_of(stream), "%s: cuDNN: %s", name, failed);
}

void cuda_linear_fwd(struct stream *stream, const struct linear_fwd_args *a)
{
    run_linear_op(stream, &(struct gemm_op){.fwd = a}, "linear_fwd");
}

void cuda_linear_bwd_input(struct stream *stream, const struct linear_bwd_input_args *a)
{
    run_linear_op(stream, &(struct gemm_op){.bwd_input = a}, "linear_bwd_input");
}

void cuda_grouped_linear_fwd(struct stream *stream, const struct grouped_linear_fwd_args *a)
{
    run_linear_op(stream, &(struct gemm_op){.grouped = a}, "grouped_linear_fwd");
}

void cuda_grouped_linear_bwd_input(struct stream *stream, const struct grouped_linear_bwd_input_args *a)
{
    const struct grouped_linear_fwd_args product = grouped_linear_of_bwd_input(a);
    run_linear_op(stream, &(struct gemm_op){.grouped = &product}, "grouped_linear_bwd_input");
}
