/* choose.h: what the ranks of a job decide together before they compute: devices, kernels of the CPU, multiprocessors
 * that are left to NCCL; and whether steps are CUDA graphs. */
#pragma once

#include "core/status.h"

struct engine;

/* Opens engine->device and attaches the communicator to it. One kind of device for all ranks, and a different GPU for
 * each rank of a node: with train.device: cuda STATUS_DEVICE if some rank has no GPU, and STATUS_USAGE if a node has
 * more ranks than GPUs; with auto all ranks use the CPU if some rank has no GPU, and a line reports that. On the CPU
 * the ranks compute with the best kernels that all of them support; rank 0 logs which others have to do without, and
 * because of whom. Collective. */
enum status choose_device(struct engine *engine, int threads, struct error *err);

/* A block of one of NCCL's kernels holds a multiprocessor until the collective has ended. A product that counts on all
 * of them then gives its tiles to multiprocessors that it does not get, and its last wave waits. So the communicator is
 * told the most blocks that it may use (maxCTAs), and cublasLt that the products have as many multiprocessors fewer
 * (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET), which is part of the key of the choices of kernels (gpu/autotune_cache.h).
 *
 * The blocks are what NCCL uses on Hopper for collectives through NVLink's switches: its own choice, held fixed. */
enum { SM_TARGET_CTAS = 16 };

/* *ctas: SM_TARGET_CTAS, or 0 where products are not limited, by train.sm_count_target: the same on all ranks, by the
 * smallest of their GPUs, because each rank computes the channels of their communicator from its own limit. Collective
 * in a run. STATUS_USAGE, on all ranks: the key is true, but the device is the CPU or a rank's GPU has too few
 * multiprocessors. */
enum status choose_sm_target(const struct engine *engine, int *ctas, struct error *err);

/* BY_BLOCK: gpu/model/block_graphs.h. BY_STEP: stepper.h. */
enum graph_mode { GRAPHS_NONE, GRAPHS_BY_BLOCK, GRAPHS_BY_STEP };

/* Sets engine->graphs by train.cuda_graphs: by step where that is possible, else by block. With auto, graphs are used
 * only if the host takes about as long to launch a micro-batch as the GPU takes to compute it. STATUS_USAGE: the key is
 * true, but neither is possible. */
enum status choose_graphs(struct engine *engine, struct error *err);
