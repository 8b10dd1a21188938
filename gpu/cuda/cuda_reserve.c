/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_reserve.c: see cuda_reserve.h. The figures and their sources:
 *
 *   context   555 MiB on 188 multiprocessors (RTX PRO 6000) and 107 MiB on 24 (RTX 4060 Ti), as cudaMemGetInfo() took
 *             them (github.com/ggml-org/llama.cpp, pull request 23604): by a line through both 402 MiB on an H100's 132
 *             and 448 MiB on a B200's 148; rounded up
 *   kernels   cublasLt's, cuDNN's and ztrain's, which CUDA loads when they are first called. PyTorch's whole process
 *             has about 300 MiB outside of its allocator (github.com/pytorch/pytorch, issue 107667); assumed
 *   cuDNN     a backward pass that repeats bit for bit keeps dS, T x T for each head of a piece, in the compute dtype;
 *             an unordered one keeps the sums of dq, T x D in fp32; dropout of the weights needs T x T as dS does. A
 *             piece is chosen so that this is at most 1/256 of the GPU's memory, or it is one sequence
 *             (attention_cudnn_plan.c); where one sequence takes more than 1/16, ztrain's kernels compute it
 *
 *   NCCL      544 MiB with two ranks and 688 with more, on four A100 over NVLink with 24 channels
 *             (github.com/NVIDIA/nccl, issue 964); it does not grow with further nodes (issue 986)
 *   NVLS      256 MiB on eight H100, 384 on eight B200, up to 1 GiB on several nodes, by NCCL 2.30's sources: for sums
 *             and copies in NVSwitch, with more than two ranks on a node. Taken at the first collective that uses it
 *
 * None of them has been measured with ztrain yet. */
#include "gpu/cuda/cuda_reserve.h"

#include "core/round_up.h"

#define CUDA_RESERVE_NAME(name, text) text,
const char *const cuda_reserve_names[CUDA_RESERVE_PARTS] = {CUDA_RESERVE_LIST(CUDA_RESERVE_NAME)};

static const size_t mib = 1 << 20;
enum { CONTEXT_MIB = 450, KERNELS_MIB = 128, NCCL_TWO_MIB = 544, NCCL_MORE_MIB = 688 };

/* lse and delta are a float for each row of each head; a sequence has dS, or the sums of dq, and which weights dropout
 * keeps. */
static size_t reserve_cudnn_bytes(size_t memory, const struct attention_bwd_args *a)
{
    const size_t length = (size_t)a->fwd.max_seq, all = (size_t)a->fwd.H * length,
                 scores = all * length * dtype_size(a->fwd.dtype);
    const size_t sequence =
        (a->unordered ? all * (size_t)a->fwd.D * sizeof(float) : scores) + (a->fwd.dropout.threshold ? scores : 0);
    size_t most = (size_t)a->fwd.num_seqs;
    if (attention_own_reason(&a->fwd) || sequence > memory / 16) return 0;
    if (a->fwd.ragged && most > 2 * (((size_t)a->fwd.M + length - 1) / length))
        most = 2 * (((size_t)a->fwd.M + length - 1) / length);
    size_t piece = most;
    for (size_t fewer = most; --fewer > 0 && piece * sequence > memory / 256;)
        if (a->fwd.ragged || most % fewer == 0) piece = fewer;
    const size_t rows = (a->fwd.ragged ? piece : most) * length * (size_t)a->fwd.H;
    return 2 * rows * sizeof(float) + piece * sequence;
}

/* By the GPU's name: NVSwitch has SXM modules alone. */
static size_t nvls_bytes(const char *name, int world, int per_node)
{
    static const struct {
        const char *word;
        size_t node;
    } modules[] = {{"H100", 256}, {"H800", 256}, {"H200", 256}, {"H20", 256}, {"B200", 384}, {"B300", 384}};
    enum { SEVERAL_NODES = 1024 };
    if (per_node <= 2 || strstr(name, "PCIe") || strstr(name, " NVL")) return 0;
    for (size_t i = 0; i < COUNT_OF(modules); i++)
        if (strstr(name, modules[i].word)) return (world > per_node ? SEVERAL_NODES : modules[i].node) * mib;
    return 0;
}

void cuda_reserve_fill(struct cuda_reserve *reserve, const struct device *device, int world, int per_node,
                       const struct op_limits *limits, size_t workspace)
{
    *reserve = (struct cuda_reserve){.total = 0};
    if (device->kind != DEVICE_CUDA) return;
    reserve->parts[CUDA_RESERVE_CONTEXT] = CONTEXT_MIB * mib;
    reserve->parts[CUDA_RESERVE_KERNELS] = KERNELS_MIB * mib;
    const int shapes = limits->backward && !device->capability[0] ? limits->num_attention : 0; /* of a GPU elsewhere */
    size_t most = workspace;
    for (int i = 0; i < shapes; i++)
        most = max_size(most, reserve_cudnn_bytes(device->memory_bytes, &limits->attention[i]));
    reserve->parts[CUDA_RESERVE_CUDNN] = most - workspace;
    if (world > 1) reserve->parts[CUDA_RESERVE_NCCL] = (world == 2 ? NCCL_TWO_MIB : NCCL_MORE_MIB) * mib;
    reserve->parts[CUDA_RESERVE_NVLS] = nvls_bytes(device->name, world, per_node);
    for (int i = 0; i < CUDA_RESERVE_PARTS; i++) reserve->total += reserve->parts[i];
}
