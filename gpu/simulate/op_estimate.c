/* SPDX-License-Identifier: Apache-2.0 */
/* op_estimate.c: the time of every op except matrix products (gemm_estimate.c), from its bytes and FLOPs.
 *
 * Efficiencies are those of an H100 (3.35 TB/s, 989 TFLOP/s in bf16). Whole steps measured 2 to 9 % less MFU
 * (docs/gpu-log.md).
 *
 * Memory-bound kernels: the share of the bandwidth that their accesses and registers allow, judged from compiled code.
 *
 * Attention: the published figures of cuDNN 9 and FlashAttention-3 for causal attention. A backward pass in a fixed
 * order moves T x T values per head through memory, on a B200 none (1157 of 1332 TFLOP/s on a GB200). With a soft cap,
 * or in fp32, ztrain's kernels compute it at half of that speed, as FlashAttention-2, whose instructions they use, next
 * to FlashAttention-3 (Shah and others 2024: 1.5 to 2.0 times).
 *
 * Dropout of the weights: a kernel writes which are kept, 16 bits each (14 instructions a weight), and cuDNN reads
 * them. ztrain's kernels compute them in 18 instructions a weight and pass: one forward, three backward, with eight
 * products instead of seven. Instructions: 128 a clock of 1.7 GHz and multiprocessor.
 *
 * Epilogues of products: the ways that are taken where nothing is measured (gpu/cuda/gemm/gemm_cuda_plan.h). A bias
 * gradient and SwiGLU count as passes of their own; ASSUME_FUSED_BIAS and ASSUME_FUSED_SWIGLU are the other end.
 *
 * As a whole the model was compared with LLM.Q's published speed (tests/program/test_plan_speed.py). */
#include "gpu/simulate/op_estimate.h"

#include "core/round_up.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/op_cost.h"

#define KIND_NAME(name, text) text,
const char *const time_kind_names[TIME_KIND_COUNT] = {TIME_KINDS(KIND_NAME)};
#define ASSUMPTION_WORD(name, word, text) word,
const char *const assumption_words[ASSUMPTION_COUNT] = {ASSUMPTIONS(ASSUMPTION_WORD)};
#define ASSUMPTION_OVERHEAD(name, word, text) text,
const char *const assumption_overheads[ASSUMPTION_COUNT] = {ASSUMPTIONS(ASSUMPTION_OVERHEAD)};

static const double ceiling_flops = 0.8, ceiling_bytes = 0.9; /* of the data sheet's: the best that is reached */
static const double fast_bytes = 0.85;                        /* of the bandwidth, with ASSUME_FAST_MEMORY */

/* Shares of the memory's bandwidth: estimated from accesses and registers, not measured. */
static const double share_norm_fwd = 0.79, share_norm_bwd = 0.686, share_head_norm = 0.6, share_rope = 0.746,
                    share_pointwise = 0.805, share_loss = 0.716, share_embedding = 0.45, share_optimizer = 0.746,
                    share_columns = 0.805;

static double at_ceiling(const struct assumed_gpu *s, enum dtype dtype, struct op_cost work)
{
    double flops = work.flops / (fmax(ceiling_flops, s->gpu->rates.sustained) * s->gpu->flops[dtype]);
    return fmax(flops, work.bytes / (ceiling_bytes * s->gpu->bytes));
}

static struct op_estimate one_part(enum time_kind kind, double ceiling, double expected, int launches)
{
    return (struct op_estimate){.parts = {{kind, ceiling, fmax(ceiling, expected), launches}}, .count = 1};
}

/* An op that moves bytes; `again`: bytes that it moves a second time. */
static struct op_estimate memory_bound(const struct assumed_gpu *s, enum time_kind kind, struct op_cost work,
                                       double again, double share, int starts)
{
    double bandwidth = s->gpu->bytes;
    share *= s->gpu->rates.memory;
    if (gpu_assumes(s, ASSUME_FAST_MEMORY) && share < fast_bytes) share = fast_bytes;
    return one_part(kind, work.bytes / (ceiling_bytes * bandwidth), (work.bytes + again) / (share * bandwidth), starts);
}

/* ---- matrix products ----------------------------------------------------- */

/* `extra`: seconds of the epilogue. */
static struct op_estimate product(const struct assumed_gpu *s, enum time_kind kind, enum dtype dtype,
                                  struct op_cost work, double gemm, double extra)
{
    double ceiling = at_ceiling(s, dtype, work);
    bool fast = gpu_assumes(s, ASSUME_FAST_PRODUCTS);
    return one_part(kind, ceiling, fast ? ceiling : gemm + extra, 1);
}

/* Seconds of the GELU of erf, which no epilogue has: a kernel that moves a matrix of so many bytes three times. */
static double gelu_pass(const struct assumed_gpu *s, double bytes)
{
    return 3 * bytes / (share_pointwise * s->gpu->bytes);
}

static double epilogue_seconds(const struct assumed_gpu *s, double read, double written)
{
    return (read / 0.6 + written * 0.6) / s->gpu->bytes;
}

static void add_gate(const struct assumed_gpu *s, struct op_estimate *estimate, struct op_cost work)
{
    estimate->parts[estimate->count++] = memory_bound(s, TIME_SWIGLU, work, 0, share_pointwise, 1).parts[0];
}

/* A bias gradient that is a pass of its own over a matrix (M, N): partial sums, then their sums. */
static void add_column_sums(const struct assumed_gpu *s, struct op_estimate *e, enum dtype dtype, int64_t M, int64_t N)
{
    const struct op_cost sums = {0, (double)M * (double)N * cost_size_of(dtype)};
    if (!gpu_assumes(s, ASSUME_FUSED_BIAS))
        e->parts[e->count++] = memory_bound(s, TIME_BIAS, sums, 0, share_columns, 2).parts[0];
}

/* Rows that are apart are those of logits, unless the other matrix has such rows too or is added to: an adapter's. */
static enum time_kind estimate_product_kind(int64_t row_distance, bool adapter, enum time_kind otherwise)
{
    return row_distance && !adapter ? TIME_HEAD : otherwise;
}

struct op_estimate op_estimate_linear_fwd(const struct assumed_gpu *s, const struct linear_fwd_args *a)
{
    struct linear_fwd_args args = *a;
    if (gpu_assumes(s, ASSUME_BF16_LOGITS)) args.y_dtype = a->dtype;
    const bool fused = a->gated && gpu_assumes(s, ASSUME_FUSED_SWIGLU);
    const int products = fused ? 2 : 1; /* gate, then up with the epilogue */
    double out = cost_size_of(args.y_dtype) * (a->accumulate ? 2 : 1);
    double gemm = products * gemm_estimate(s->gpu, a->dtype, a->M, a->N / products, a->K, out);
    double matrix = (double)a->M * (double)a->N * cost_size_of(a->dtype), aux = a->gelu ? matrix : 0;
    double extra = a->gelu_erf ? gelu_pass(s, aux) : epilogue_seconds(s, 0, aux); /* stored next to y */
    if (gpu_assumes(s, ASSUME_FUSED_GELU)) extra = 0;
    if (fused) extra = epilogue_seconds(s, matrix / 2, matrix / 2);
    struct op_estimate estimate = product(s, estimate_product_kind(a->ld_y, a->accumulate, TIME_GEMM_FORWARD), a->dtype,
                                          op_cost_linear_fwd(&args), gemm, extra);
    estimate.parts[0].launches = products;
    const struct swiglu_fwd_args gate = linear_gate_fwd(a);
    if (a->gated && !fused) add_gate(s, &estimate, op_cost_swiglu_fwd(&gate));
    return estimate;
}

struct op_estimate op_estimate_linear_bwd_input(const struct assumed_gpu *s, const struct linear_bwd_input_args *a)
{
    double size = cost_size_of(a->dtype);
    double gemm = gemm_estimate(s->gpu, a->dtype, a->M, a->K, a->N, size * (a->accumulate ? 2 : 1));
    const bool fused = a->gate_up && gpu_assumes(s, ASSUME_FUSED_SWIGLU);
    double matrix = (double)a->M * (double)a->K * size, aux = a->gelu_aux ? matrix : 0; /* read by older kernels */
    double extra = a->gelu_erf ? gelu_pass(s, aux) : epilogue_seconds(s, aux, 0);
    if (gpu_assumes(s, ASSUME_FUSED_GELU)) extra = 0;
    if (fused) extra = epilogue_seconds(s, 2 * matrix, matrix);
    const bool adapter = a->accumulate || a->ld_dx;
    struct op_estimate estimate = product(s, estimate_product_kind(a->ld_dy, adapter, TIME_GEMM_DGRAD), a->dtype,
                                          op_cost_linear_bwd_input(a), gemm, extra);
    if (a->gelu_aux && a->gelu_erf) /* the pass over GELU's matrices gives the sums as well, but for their last step */
        estimate.parts[0].launches += a->dbias ? 2 : 1;
    else if (a->dbias)
        add_column_sums(s, &estimate, a->dtype, a->M, a->K);
    const struct swiglu_bwd_args gate = linear_gate_bwd(a);
    if (a->gate_up && !fused) add_gate(s, &estimate, op_cost_swiglu_bwd(&gate));
    return estimate;
}

struct op_estimate op_estimate_linear_bwd_weight(const struct assumed_gpu *s, const struct linear_bwd_weight_args *a)
{
    bool narrow = gpu_assumes(s, ASSUME_BF16_GRADIENTS);
    double size = cost_size_of(narrow ? a->dtype : a->dw_dtype);
    double gemm = gemm_estimate(s->gpu, a->dtype, a->N, a->K, a->M, size * (a->accumulate ? 2 : 1));
    struct op_estimate estimate = product(s, estimate_product_kind(a->ld_dy, a->ld_x != 0, TIME_GEMM_WGRAD), a->dtype,
                                          op_cost_linear_bwd_weight(a), gemm, 0);
    if (a->dbias) add_column_sums(s, &estimate, a->dtype, a->M, a->N - a->null_count);
    if (a->dbias && gpu_assumes(s, ASSUME_FUSED_BIAS)) /* an epilogue overwrites, so its sums are added by a kernel */
        estimate.parts[0].launches +=
            (a->accumulate_dbias ? 1 : 0) + (a->null_count ? 1 : 0); /* and null ones cleared */
    return estimate;
}

/* ---- attention ----------------------------------------------------------- */

/* FLOP/s of causal attention: the rate of very long sequences, approached as T / (T + half), as a share of the peak. */
struct attention_rate {
    double narrow, wide; /* heads of up to 64, and larger ones */
    double half;         /* tokens at which half of that rate is reached */
};
static const struct attention_rate forward_rate = {0.367, 0.617, 600}, backward_rate = {0.455, 0.607, 300};

/* Backward in a fixed order: up to this length a workspace of T x T values a head goes through memory, longer sequences
 * wait for their turn instead. */
enum { ORDERED_BY_WORKSPACE = 2048 };
static const double share_workspace = 0.686, share_of_turns = 0.745, share_ordered_b200 = 0.869;

/* ztrain's kernels next to cuDNN's. Those of heads above 256 have half as many rows in a tile, so that they read the
 * other side twice as often: not measured. */
static const double share_of_own = 0.5, share_of_shared_rows = 0.25;

/* Kernels of a backward pass: cuDNN's sums of out x dout, gradients, and the conversion of dq, ztrain's two. */
enum { cudnn_backward = 3, own_backward = 2 };

static bool is_b200(const struct gpu_model *gpu)
{
    return strcmp(gpu->option, "b200") == 0;
}

const char *attention_without_obstacle(struct device *tried, const struct attention_fwd_args *args, bool backward)
{
    (void)tried, (void)args, (void)backward;
    return NULL;
}

/* The kernel is chosen by the op, unless the settings choose it. What cuDNN has no plan for: backward, ragged
 * sequences, heads above 128 and soft caps on most GPUs (tests/emulation/cudnn_plans.c). */
enum attention_way op_estimate_attention_way(const struct assumed_gpu *s, const struct attention_fwd_args *a, bool bwd)
{
    const bool hopper = s->gpu->hopper;
    if (s->attention_obstacle) return s->attention_obstacle(s->tried, a, bwd) ? ATTENTION_BY_OWN : ATTENTION_BY_CUDNN;
    if (attention_own_reason(a) || (bwd && (a->D > 256 || (!hopper && (a->D > 128 || a->softcap > 0)) ||
                                            (a->D > 128 && a->ragged && a->dropout.threshold))))
        return ATTENTION_BY_OWN;
    if (!bwd || !a->ragged || hopper || (is_b200(s->gpu) && !a->dropout.threshold)) return ATTENTION_BY_CUDNN;
    return a->bidirectional || a->dropout.threshold || a->num_seqs == 0 ||
                   !attention_fills_places(a->M, a->num_seqs, a->max_seq)
               ? ATTENTION_BY_OWN
               : ATTENTION_BY_PADDING;
}

static double attention_flops(const struct assumed_gpu *s, const struct attention_rate *rate, enum dtype dtype,
                              int64_t D, int32_t T, bool own)
{
    if (!own && dtype == DTYPE_F32) dtype = DTYPE_BF16; /* cuDNN's, if it computed it */
    double share = (D <= 64 ? rate->narrow : rate->wide) * (double)T / ((double)T + rate->half);
    if (own) share *= D > 256 ? share_of_shared_rows : share_of_own;
    return share * s->gpu->rates.attention * s->gpu->flops[dtype];
}

/* ---- dropout of the weights ---------------------------------------------- */

static const double usual_clock = 1.7e9;
static const double own_instructions = 18, kept_instructions = 14; /* for a weight */
static const double own_products = 8.0 / 7;                        /* of backward, to those without dropout */

static double instruction_seconds(const struct assumed_gpu *s, double instructions)
{
    const double lanes = 128;
    return instructions / (lanes * usual_clock * s->gpu->sms);
}

/* A kernel that writes which weights are kept, in tiles of 256 queries and keys, and the reads of these by cuDNN. */
static double kept_seconds(const struct assumed_gpu *s, const struct attention_fwd_args *a, double weights)
{
    const double tile = 256, T = a->max_seq, bandwidth = share_pointwise * s->gpu->bytes, size = 2;
    const double keys = a->bidirectional ? T : fmin(T, (T + tile) / 2), kept = (double)(a->M * a->H) * keys;
    return fmax(size * kept / bandwidth, instruction_seconds(s, kept_instructions * kept)) + size * weights / bandwidth;
}

/* `weights`: those of visible keys; `passes`: times that ztrain's kernels need the numbers. */
static double dropout_seconds(const struct assumed_gpu *s, const struct attention_fwd_args *a, double weights,
                              int passes, bool own)
{
    if (!a->dropout.threshold || gpu_assumes(s, ASSUME_FAST_ATTENTION)) return 0;
    return own ? instruction_seconds(s, own_instructions * passes * weights) : kept_seconds(s, a, weights);
}

struct op_estimate op_estimate_attention_fwd(const struct assumed_gpu *s, const struct attention_fwd_args *a)
{
    struct op_cost work = op_cost_attention_fwd(a);
    double ceiling = at_ceiling(s, a->dtype, work);
    const bool own = op_estimate_attention_way(s, a, false) == ATTENTION_BY_OWN;
    double expected = work.flops / attention_flops(s, &forward_rate, a->dtype, a->D, a->max_seq, own);
    if (gpu_assumes(s, ASSUME_FAST_ATTENTION)) expected = 0;
    expected += dropout_seconds(s, a, work.flops / (4 * (double)a->D), 1, own);
    return one_part(TIME_ATTENTION_FORWARD, ceiling, expected, own || !a->dropout.threshold ? 1 : 2);
}

static struct op_estimate attention_bwd_by(const struct assumed_gpu *s, const struct attention_bwd_args *a, bool own)
{
    struct op_cost work = op_cost_attention_bwd(a);
    double bandwidth = s->gpu->bytes, ceiling = at_ceiling(s, a->fwd.dtype, work);
    double expected = work.flops / attention_flops(s, &backward_rate, a->fwd.dtype, a->fwd.D, a->fwd.max_seq, own);
    if (own && a->fwd.dropout.threshold) expected *= own_products;
    double workspace = (double)a->fwd.M * (double)a->fwd.max_seq * (double)a->fwd.H * cost_size_of(a->fwd.dtype);
    if (gpu_assumes(s, ASSUME_FAST_ATTENTION)) expected = ceiling;
    if (!own && !a->unordered && !gpu_assumes(s, ASSUME_UNORDERED_ATTENTION)) {
        if (is_b200(s->gpu)) {
            expected /= share_ordered_b200;
        } else if (a->fwd.max_seq <= ORDERED_BY_WORKSPACE) {
            ceiling += workspace / (ceiling_bytes * bandwidth);
            expected += workspace / (share_workspace * bandwidth);
        } else {
            expected /= share_of_turns;
        }
    }
    expected += dropout_seconds(s, &a->fwd, work.flops / (10 * (double)a->fwd.D), 3, own);
    return one_part(TIME_ATTENTION_BACKWARD, ceiling, expected,
                    own ? own_backward : cudnn_backward + (a->fwd.dropout.threshold != 0));
}

struct op_estimate op_estimate_attention_bwd(const struct assumed_gpu *s, const struct attention_bwd_args *a)
{
    const enum attention_way way = op_estimate_attention_way(s, &a->fwd, true);
    const struct op_estimate own = attention_bwd_by(s, a, true);
    if (way == ATTENTION_BY_OWN) return own;
    struct op_estimate cudnn = attention_bwd_by(s, a, false);
    if (way == ATTENTION_BY_CUDNN) return cudnn;
    const double places = (double)(a->fwd.num_seqs * a->fwd.max_seq) / (double)a->fwd.M; /* copied there and back */
    cudnn.parts[0].expected =
        places * (cudnn.parts[0].expected + 2 * op_cost_attention_bwd(a).bytes / (share_pointwise * s->gpu->bytes));
    cudnn.parts[0].launches += 8;
    return cudnn.parts[0].expected < own.parts[0].expected ? cudnn : own;
}

/* One block of threads for each query and head reads the cache, so that a short sequence of few heads leaves
 * multiprocessors idle; keys and values that several heads share come from the L2 cache the second time. */
struct op_estimate op_estimate_attention_decode(const struct assumed_gpu *s, const struct attention_decode_args *a)
{
    const double blocks = (double)(a->M * a->H), sms = (double)s->gpu->sms;
    const double use = a->q && blocks > 0 && blocks < sms ? blocks / sms : 1;
    return memory_bound(s, TIME_ATTENTION_FORWARD, op_cost_attention_decode(a), 0, share_head_norm * use, a->q ? 2 : 1);
}

/* ---- experts' products --------------------------------------------------- */

/* y = x · W and its gradient of x in 16 bits: by cuDNN, whose kernels for them have tiles of 128 x 128
 * (tests/emulation/cudnn_plans.c), as a dense product of as many tiles. The rest: by ztrain's kernel
 * (ops_cuda_grouped.cu) in tiles of 128 x 256. Each expert leaves half a tile of rows empty, or of k. Not measured:
 *
 *   - With mma.sync, a quarter is taken for waiting, and a Hopper has 0.629 of its FLOPs (Luo and others, arXiv
 *     2402.13499).
 *   - A weight's gradient on a Hopper is by wgmma. Triton's matmul_kernel (tutorial 09: the same tile, instructions and
 *     copies) had 0.61 of the data sheet's FLOPs in fp8, 0.95 of cuBLAS's (github.com/triton-lang/triton/pull/5461),
 *     and in fp16 with K = 512 and its stores 0.76 of cuBLAS's (pull/5726). */
enum { GROUPED_TILE = 128, MMA_DEPTH = 32, WGMMA_DEPTH = 64 };
static const double share_of_mma = 0.75, hopper_mma = 0.629 * 4096; /* FLOPs a clock of a multiprocessor */
static const double share_of_wgmma = 0.6;

static double grouped_own(const struct assumed_gpu *s, enum dtype dtype, double rows, int64_t columns, double K,
                          bool wgmma)
{
    const int64_t width = 2 * GROUPED_TILE;
    const double flops = 2 * rows * (double)(ceil_div(columns, width) * width) * K;
    if (dtype == DTYPE_F32) return flops / (share_of_own * s->gpu->flops[dtype]);
    if (wgmma) return flops / (share_of_wgmma * s->gpu->flops[dtype]);
    return flops / (share_of_mma * fmin(s->gpu->flops[dtype], hopper_mma * usual_clock * s->gpu->sms));
}

static struct op_estimate grouped_rows(const struct assumed_gpu *s, enum time_kind kind,
                                       const struct grouped_linear_fwd_args *a)
{
    const int64_t rows = a->M + a->E * GROUPED_TILE / 2;
    const double size = cost_size_of(a->dtype), bandwidth = share_pointwise * s->gpu->bytes;
    const bool own = a->dtype == DTYPE_F32 || a->bias || a->accumulate || a->N % 8 || a->K % 8;
    const struct op_cost work = op_cost_grouped_linear_fwd(a);
    const double seconds = own ? grouped_own(s, a->dtype, (double)rows, a->N, (double)a->K, false) +
                                     (double)(a->M * a->N) * size / bandwidth
                               : grouped_estimate(s->gpu, a->dtype, rows, a->N, a->K, size);
    return product(s, kind, a->dtype, work, fmax(seconds, work.bytes / bandwidth), 0);
}

struct op_estimate op_estimate_grouped_linear_fwd(const struct assumed_gpu *s, const struct grouped_linear_fwd_args *a)
{
    return grouped_rows(s, TIME_GEMM_FORWARD, a);
}

struct op_estimate op_estimate_grouped_linear_bwd_input(const struct assumed_gpu *s,
                                                        const struct grouped_linear_bwd_input_args *a)
{
    const struct grouped_linear_fwd_args product = grouped_linear_of_bwd_input(a);
    return grouped_rows(s, TIME_GEMM_DGRAD, &product);
}

struct op_estimate op_estimate_grouped_linear_bwd_weight(const struct assumed_gpu *s,
                                                         const struct grouped_linear_bwd_weight_args *a)
{
    const bool narrow = gpu_assumes(s, ASSUME_BF16_GRADIENTS);
    const double out = cost_size_of(narrow ? a->dtype : a->dw_dtype) * (a->accumulate ? 2 : 1);
    const double rows = (double)(ceil_div(a->N, GROUPED_TILE) * GROUPED_TILE);
    const bool wgmma = s->gpu->hopper && a->dtype != DTYPE_F32;
    const double K = (double)(a->M + a->E * (wgmma ? WGMMA_DEPTH : MMA_DEPTH) / 2);
    const double seconds = grouped_own(s, a->dtype, rows, a->K, K, wgmma) +
                           (double)(a->E * a->N * a->K) * out / (share_pointwise * s->gpu->bytes);
    struct op_estimate estimate =
        product(s, TIME_GEMM_WGRAD, a->dtype, op_cost_grouped_linear_bwd_weight(a), seconds, 0);
    const struct op_cost sums = {0, (double)a->M * (double)a->N * cost_size_of(a->dtype)};
    if (a->dbias) estimate.parts[estimate.count++] = memory_bound(s, TIME_BIAS, sums, 0, share_columns, 1).parts[0];
    return estimate;
}

/* ---- delta rule ---------------------------------------------------------- */

/* Its kernels multiply in fp32, without tensor cores, at about a quarter of that rate, because their operands come from
 * shared memory; a block of threads has DELTA_SLICE columns of a head's state. */
static struct op_estimate delta_estimate(const struct assumed_gpu *s, enum time_kind kind, struct op_cost work,
                                         int64_t heads, int64_t Dv, int launches)
{
    const double blocks = (double)heads * (((double)Dv + DELTA_SLICE - 1) / DELTA_SLICE);
    const double share = 0.25, sms = (double)s->gpu->sms, use = blocks > 0 && blocks < sms ? blocks / sms : 1;
    const double flops = work.flops / (share * use * s->gpu->flops[DTYPE_F32]);
    return one_part(kind, at_ceiling(s, DTYPE_F32, work), fmax(flops, work.bytes / (share_pointwise * s->gpu->bytes)),
                    launches);
}

struct op_estimate op_estimate_delta_rule_fwd(const struct assumed_gpu *s, const struct delta_rule_fwd_args *a)
{
    return delta_estimate(s, TIME_ATTENTION_FORWARD, op_cost_delta_rule_fwd(a), a->num_seqs * a->Hv, a->Dv, 1);
}

struct op_estimate op_estimate_delta_rule_bwd(const struct assumed_gpu *s, const struct delta_rule_bwd_args *a)
{
    return delta_estimate(s, TIME_ATTENTION_BACKWARD, op_cost_delta_rule_bwd(a), a->fwd.num_seqs * a->fwd.Hv, a->fwd.Dv,
                          4);
}

/* ---- ops that move bytes ------------------------------------------------- */

struct op_estimate op_estimate_head_norm_fwd(const struct assumed_gpu *s, const struct head_norm_fwd_args *a)
{
    const struct rope_args rope = rope_of_head_norm(a);
    struct op_estimate e = memory_bound(s, TIME_NORMS, op_cost_head_norm_fwd(a), 0, share_head_norm, 1);
    if (a->positions && !head_norm_turns(a)) e.parts[e.count++] = op_estimate_rope(s, &rope).parts[0];
    return e;
}

#define MEMORY_BOUND(op, kind, share, launches)                                                 \
    struct op_estimate op_estimate_##op(const struct assumed_gpu *s, const struct op##_args *a) \
    {                                                                                           \
        return memory_bound(s, kind, op_cost_##op(a), 0, share, launches);                      \
    }
MEMORY_BOUND(embedding_fwd, TIME_EMBEDDING, share_embedding, 1)
MEMORY_BOUND(norm_fwd, TIME_NORMS, share_norm_fwd, 1)
MEMORY_BOUND(norm_bwd, TIME_NORMS, share_norm_bwd, 2)
MEMORY_BOUND(head_norm_bwd, TIME_NORMS, share_head_norm, 2)
MEMORY_BOUND(rope, TIME_ROPE, share_rope, 1)
MEMORY_BOUND(swap_heads, TIME_ROPE, share_pointwise, 1)
MEMORY_BOUND(swiglu_fwd, TIME_SWIGLU, share_pointwise, 1)
MEMORY_BOUND(swiglu_bwd, TIME_SWIGLU, share_pointwise, 1)
MEMORY_BOUND(causal_conv_fwd, TIME_NORMS, share_head_norm, 1)
MEMORY_BOUND(causal_conv_bwd, TIME_NORMS, share_head_norm, 2)
MEMORY_BOUND(gate_fwd, TIME_ATTENTION_FORWARD, share_pointwise, 1)
MEMORY_BOUND(gate_bwd, TIME_ATTENTION_BACKWARD, share_pointwise, 1)
MEMORY_BOUND(attention_sink_fwd, TIME_ATTENTION_FORWARD, share_pointwise, 1)
MEMORY_BOUND(attention_sink_bwd, TIME_ATTENTION_BACKWARD, share_head_norm, 2)
MEMORY_BOUND(route, TIME_ROUTING, share_head_norm, a->prob_sums ? 2 : 1)
MEMORY_BOUND(route_bwd, TIME_ROUTING, share_head_norm, 1)
MEMORY_BOUND(sum_experts, TIME_ROUTING, share_head_norm, 1)
MEMORY_BOUND(permute_experts, TIME_ROUTING, share_embedding, 4)
MEMORY_BOUND(gather_tokens, TIME_ROUTING, share_pointwise, 1)
MEMORY_BOUND(combine_tokens, TIME_ROUTING, share_pointwise, 1)
MEMORY_BOUND(scale_rows_bwd, TIME_ROUTING, share_pointwise, 1)
MEMORY_BOUND(combine_bias_bwd, TIME_ROUTING, share_pointwise, 1)
MEMORY_BOUND(experts_swiglu_bwd, TIME_SWIGLU, share_pointwise, 1)
MEMORY_BOUND(tanh_fwd, TIME_HEAD, share_pointwise, 1)
MEMORY_BOUND(tanh_bwd, TIME_HEAD, share_pointwise, 1)
MEMORY_BOUND(add, TIME_NORMS, share_pointwise, 1)
MEMORY_BOUND(dropout, TIME_NORMS, share_pointwise, 1)
MEMORY_BOUND(dequantize, TIME_DEQUANTIZATION, share_pointwise, 1)
MEMORY_BOUND(sum_ranks, TIME_EXPOSED, share_pointwise, 1) /* a part of a reduction */

/* Kernels that add M rows to a table by keys below `keys`: three for each digit that they are sorted by, two for the
 * sums; and the fill of a table that is not added to. */
static int estimate_embedding_launches(const float *table, int64_t keys, bool accumulates)
{
    int digits = 1;
    if (!table) return 0;
    while (keys > (int64_t)1 << (digits * CUDA_SORT_BITS)) digits++;
    return 3 * digits + 2 + !accumulates;
}

struct op_estimate op_estimate_embedding_bwd(const struct assumed_gpu *s, const struct embedding_bwd_args *a)
{
    const int launches = estimate_embedding_launches(a->dwte, a->V, a->accumulate_wte) +
                         estimate_embedding_launches(a->dwpe, a->P, a->accumulate_wpe) +
                         estimate_embedding_launches(a->dwse, a->S, a->accumulate_wse);
    return memory_bound(s, TIME_EMBEDDING, op_cost_embedding_bwd(a), 0, share_embedding, launches);
}

#define OPTIMIZER(op, launches)                                                                 \
    struct op_estimate op_estimate_##op(const struct assumed_gpu *s, const struct op##_args *a) \
    {                                                                                           \
        struct op_estimate none = {.count = 0};                                                 \
        if (gpu_assumes(s, ASSUME_NO_OPTIMIZER)) return none;                                   \
        return memory_bound(s, TIME_OPTIMIZER, op_cost_##op(a), 0, share_optimizer, launches);  \
    }
OPTIMIZER(cast, 1)
OPTIMIZER(sumsq, 2)
OPTIMIZER(decide_step, 1)
OPTIMIZER(find_nonfinite, 2)
OPTIMIZER(adam, 1)
OPTIMIZER(adam8, 1)
OPTIMIZER(momentum, 1)
OPTIMIZER(muon_momentum, 1)
OPTIMIZER(muon_update, 1)

/* Parameters' gradients change their dtype; the model's own sums and multiples have one. */
struct op_estimate op_estimate_accumulate(const struct assumed_gpu *s, const struct accumulate_args *a)
{
    const bool of_model = a->dst_dtype == a->src_dtype;
    if (!of_model && gpu_assumes(s, ASSUME_NO_OPTIMIZER)) return (struct op_estimate){.count = 0};
    return memory_bound(s, of_model ? TIME_NORMS : TIME_OPTIMIZER, op_cost_accumulate(a), 0, share_optimizer, 1);
}

/* Three products a step, and the kernels that round these: 14 bytes an element of the n x n ones, 8 of the n x k. */
struct op_estimate op_estimate_orthogonalize(const struct assumed_gpu *s, const struct orthogonalize_args *a)
{
    const bool tall = a->rows > a->cols;
    const int64_t n = tall ? a->cols : a->rows, k = tall ? a->rows : a->cols;
    struct op_estimate none = {.count = 0};
    if (gpu_assumes(s, ASSUME_NO_OPTIMIZER)) return none;
    const double ceiling = at_ceiling(s, DTYPE_BF16, op_cost_orthogonalize(a));
    const double products = gemm_estimate(s->gpu, DTYPE_BF16, n, n, k, sizeof(float)) +
                            gemm_estimate(s->gpu, DTYPE_BF16, n, n, n, sizeof(float)) +
                            gemm_estimate(s->gpu, DTYPE_BF16, n, k, n, sizeof(float));
    const double rounded =
        (14.0 * (double)n * (double)n + 8.0 * (double)n * (double)k) / (share_pointwise * s->gpu->bytes);
    return one_part(TIME_OPTIMIZER, ceiling, a->steps * (products + rounded), 3 + 6 * a->steps);
}

/* Bytes of each row that ops_cuda_loss.cu reads a second time for dlogits: what its blocks do not keep in shared
 * memory, unless it fits half of L2. */
static double logits_read_again(const struct gpu_model *gpu, double row)
{
    const double own = 2048, narrow = 112 * 1024; /* of a block's shared memory; rows that two blocks share */
    const int blocks = row <= narrow ? 2 : 1;
    const double rest = fmax(0, row - (gpu->shared_kib * 1024.0 / blocks - own));
    return rest * blocks * gpu->sms > gpu->l2_mib * 1048576 / 2 ? rest : 0;
}

struct op_estimate op_estimate_cross_entropy(const struct assumed_gpu *s, const struct cross_entropy_args *a)
{
    struct cross_entropy_args args = *a;
    if (gpu_assumes(s, ASSUME_BF16_LOGITS)) args.logits_dtype = a->dtype;
    const double row = (double)a->V * cost_size_of(args.logits_dtype);
    const double again = a->dlogits ? logits_read_again(s->gpu, row) * (double)a->M : 0;
    return memory_bound(s, TIME_CROSS_ENTROPY, op_cost_cross_entropy(&args), again, share_loss, 2);
}

/* Pinned copies reach 55 of PCIe 5 x 16's 64 GB/s on H100 hosts (NVIDIA's nvbandwidth). */
double simulated_host_link(const struct assumed_gpu *settings)
{
    const double share = 0.85;
    return settings->host_link > 0 ? settings->host_link : share * settings->gpu->host_link;
}

double simulated_host_memory(const struct assumed_gpu *settings)
{
    const double usual = 60e9;
    return settings->host_memory > 0 ? settings->host_memory : usual;
}
