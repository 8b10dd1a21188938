/* SPDX-License-Identifier: Apache-2.0 */
/* choose.h: what the ranks decide together: devices, kernels of the CPU, multiprocessors for NCCL, CUDA graphs. */
#pragma once

#include "core/status.h"

struct engine;

/* Opens engine->device and attaches the communicator: one kind of device for all ranks, a GPU for each rank of a node.
 * train.device cuda: STATUS_DEVICE without a GPU, STATUS_USAGE with more ranks than GPUs; auto: all use the CPU if one
 * has no GPU, with the best kernels that all support. Collective. */
enum status choose_device(struct engine *engine, int threads, struct error *err);

/* A block of NCCL's kernels holds a multiprocessor until the collective has ended, and a product that counts on all
 * waits for it. So NCCL gets at most *ctas blocks: 16, or 24 if all GPUs have compute capability 10; cublasLt as many
 * multiprocessors fewer. 0: no limit (train.sm_count_target, the smallest GPU; auto: never with train.virtual_ranks).
 * Collective in a run. STATUS_USAGE, on all ranks: the key is true on the CPU or a GPU that is too small. */
enum status choose_sm_target(const struct engine *engine, int *ctas, struct error *err);

/* BY_BLOCK: gpu/model/block_graphs.h. BY_STEP: stepper.h. */
enum graph_mode { GRAPHS_NONE, GRAPHS_BY_BLOCK, GRAPHS_BY_STEP };

/* Sets engine->graphs by train.cuda_graphs: by step where possible, else by block; with auto only if launching a
 * micro-batch takes the host about as long as the GPU needs for it. STATUS_USAGE: true, but neither is possible. */
enum status choose_graphs(struct engine *engine, struct error *err);
