/* SPDX-License-Identifier: Apache-2.0 */
/* op_estimate.h: how long an op takes on a GPU that need not be here: estimated, never measured. At the ceiling: what
 * the fastest products and copies need for the op's work (op_cost.h), 80 % of the peak, 90 % of the memory's bandwidth.
 * Expected: by efficiencies calibrated for the H100 (op_estimate.c has the sources), scaled to other GPUs by their data
 * sheets. docs/plan-speed.md states the accuracy. */
#pragma once

#include "gpu/ops.h"
#include "gpu/simulate/gpu_catalog.h"

/* Where the time of a step goes. */
#define TIME_KINDS(X)                           \
    X(GEMM_FORWARD, "GEMM forward")             \
    X(GEMM_DGRAD, "GEMM dgrad")                 \
    X(GEMM_WGRAD, "GEMM wgrad")                 \
    X(BIAS, "bias gradients")                   \
    X(ATTENTION_FORWARD, "attention forward")   \
    X(ATTENTION_BACKWARD, "attention backward") \
    X(NORMS, "norms")                           \
    X(ROPE, "RoPE")                             \
    X(SWIGLU, "SwiGLU")                         \
    X(ROUTING, "expert routing")                \
    X(HEAD, "head GEMMs")                       \
    X(CROSS_ENTROPY, "cross-entropy")           \
    X(EMBEDDING, "embedding")                   \
    X(DEQUANTIZATION, "dequantization")         \
    X(OPTIMIZER, "optimizer")                   \
    X(GAPS, "launch gaps")                      \
    X(EXPOSED, "exposed transfers")             \
    X(SLOWEST, "the slowest GPU")

/* What a plan may assume about the step: the word that --assume takes, and the overhead that the assumption removes;
 * its gain is the cost of today's behaviour. */
#define ASSUMPTIONS(X)                                                                     \
    X(FAST_PRODUCTS, "fast-products", "matrix products below the ceiling")                 \
    X(FAST_ATTENTION, "fast-attention", "attention kernels below the ceiling")             \
    X(UNORDERED_ATTENTION, "unordered-attention", "attention's backward in a fixed order") \
    X(BF16_LOGITS, "bf16-logits", "fp32 logits")                                           \
    X(BF16_GRADIENTS, "bf16-gradients", "fp32 gradients")                                  \
    X(FUSED_BIAS, "fused-bias", "bias gradients as passes of their own")                   \
    X(FUSED_GELU, "fused-gelu", "GELU in the epilogues of products")                       \
    X(FUSED_SWIGLU, "fused-swiglu", "SwiGLU as passes of its own")                         \
    X(FAST_MEMORY, "fast-memory", "memory-bound kernels below 85 % of the bandwidth")      \
    X(NO_OPTIMIZER, "no-optimizer", "the optimizer's step")                                \
    X(NO_GAPS, "no-gaps", "gaps between launches")                                         \
    X(NO_COMMUNICATION, "no-communication", "communication that computation does not hide")

#define TIME_KIND_CONSTANT(name, text) TIME_##name,
enum time_kind { TIME_KINDS(TIME_KIND_CONSTANT) TIME_KIND_COUNT };
#define ASSUMPTION_CONSTANT(name, word, text) ASSUME_##name,
enum assumption { ASSUMPTIONS(ASSUMPTION_CONSTANT) ASSUMPTION_COUNT };

extern const char *const time_kind_names[TIME_KIND_COUNT];
extern const char *const assumption_words[ASSUMPTION_COUNT];     /* "bf16-logits" */
extern const char *const assumption_overheads[ASSUMPTION_COUNT]; /* "fp32 logits" */

/* As device_attention_obstacle(): never an obstacle. */
const char *attention_without_obstacle(struct device *tried, const struct attention_fwd_args *args, bool backward);

/* A GPU and the assumptions about the step: bit 1 << enum assumption. */
struct assumed_gpu {
    const struct gpu_model *gpu;
    unsigned assumptions;
    double host_link;             /* bytes/s between GPU and host, each way; 0: usual */
    double host_memory;           /* bytes/s that the host reads and writes for one rank; 0: usual */
    double disk_read, disk_write; /* bytes/s of the disk of a node, which its ranks share; 0: usual */
    int node_ranks;               /* that share it; 0: one */
    /* Attention with an obstacle is by ztrain's kernels, else by cuDNN, in 16 bits; NULL: as on that GPU. */
    const char *(*attention_obstacle)(struct device *tried, const struct attention_fwd_args *args, bool backward);
    struct device *tried;
};

/* The rates that --assume sets, "host-link=50GB": field, word, meaning. */
#define ASSUMED_RATES(X)                                                                                  \
    X(host_link, "host-link", "copies between a GPU and its host, each way (usual: 85 % of PCIe's rate)") \
    X(host_memory, "host-memory",                                                                         \
      "the host's memory, as one rank's AdamW reads and writes it (usual: 60GB with 8 ranks on a node)")  \
    X(disk_read, "disk-read",                                                                             \
      "a node's local disk, which its ranks share (usual: 6.5GB, one data-centre SSD on PCIe 4)")         \
    X(disk_write, "disk-write", "the same for writing (usual: 3.5GB)")

/* The rates for one rank, set or usual (op_estimate.c has the sources of the usual ones). */
double simulated_host_link(const struct assumed_gpu *settings);
double simulated_host_memory(const struct assumed_gpu *settings);

static inline bool gpu_assumes(const struct assumed_gpu *settings, enum assumption assumption)
{
    return (settings->assumptions >> assumption & 1) != 0;
}

/* Parts of an op: a kind's time at the ceiling and expected, in seconds, and the kernels that it launches. */
struct op_part {
    enum time_kind kind;
    double ceiling, expected;
    int launches;
};

enum { OP_PARTS_MAX = 2 };
struct op_estimate {
    struct op_part parts[OP_PARTS_MAX];
    int count;
};

/* What would compute attention; by padding: that or ztrain's kernels, whichever is faster. */
enum attention_way { ATTENTION_BY_CUDNN, ATTENTION_BY_PADDING, ATTENTION_BY_OWN };
enum attention_way op_estimate_attention_way(const struct assumed_gpu *settings, const struct attention_fwd_args *args,
                                             bool backward);

/* struct op_estimate op_estimate_<op>(settings, args), for every op. */
#define OP_ESTIMATE_DECLARE(op) \
    struct op_estimate op_estimate_##op(const struct assumed_gpu *settings, const struct op##_args *args);
OPS_LIST(OP_ESTIMATE_DECLARE)
#undef OP_ESTIMATE_DECLARE

/* Seconds that a product of M x N x K is expected to take; out_bytes: an output's bytes, with those read, in
 * `dtype`. */
double gemm_estimate(const struct gpu_model *gpu, enum dtype dtype, int64_t M, int64_t N, int64_t K, double out_bytes);

/* The same in tiles of 128 x 128, of cuDNN's products of experts. */
double grouped_estimate(const struct gpu_model *gpu, enum dtype dtype, int64_t M, int64_t N, int64_t K,
                        double out_bytes);
