/* choose.h: what the ranks of a job decide together before they compute: devices, kernels of the CPU, multiprocessors
 * that are left to NCCL; and whether steps are CUDA graphs. */
#pragma once

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"
#include "core/model/model_config.h"
#include "core/spec/spec.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

struct device_choice {
    enum device_kind kind;
    int index;      /* the GPU's number for device_open() */
    bool may_share; /* several ranks may use one GPU (ZTRAIN_SHARE_GPUS=1) */
};

/* One kind of device for all ranks, and a different GPU for each rank of a node. Collective. With train.device: cuda
 * STATUS_DEVICE if some rank has no GPU, and STATUS_USAGE if a node has more ranks than GPUs; with auto all ranks use
 * the CPU if some rank has no GPU, and a line reports that. */
enum status choose_device(const struct run_spec *spec, struct comm *comm, const struct bootstrap *boot,
                          struct device_choice *choice, struct error *err);

/* The best CPU kernels that all ranks support: otherwise replicas that each rank updates would drift apart. A run that
 * began with the kernels `before` (NULL: it begins now, or its checkpoint does not record them) keeps them as far as
 * they are available here. Rank 0 logs which kernels other ranks have to do without, and which rank is the cause.
 * Collective. STATUS_USAGE on all ranks: some rank's environment asks for kernels that it does not have. */
enum status choose_kernels(struct comm *comm, const struct bootstrap *boot, const struct cpu_kernels *before,
                           struct cpu_kernels *kernels, struct error *err);

/* A block of one of NCCL's kernels holds a multiprocessor until the collective has ended. A product that counts on all
 * of them then gives its tiles to multiprocessors that it does not get, and its last wave waits. So the communicator is
 * told the most blocks that it may use (maxCTAs), and cublasLt that the products have as many multiprocessors fewer
 * (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET), which is part of the key of the choices of kernels (gpu/autotune_cache.h).
 *
 * The blocks are what NCCL uses on Hopper for collectives through NVLink's switches: its own choice, held fixed. */
enum { SM_TARGET_CTAS = 16 };

/* *ctas: SM_TARGET_CTAS, or 0 where products are not limited, by train.sm_count_target: the same on all ranks, by the
 * smallest of their GPUs, because each rank computes the channels of their communicator from its own limit. Collective;
 * comm NULL: there is no other GPU. STATUS_USAGE, on all ranks: the key is true, but the device is the CPU or a rank's
 * GPU has too few multiprocessors. */
enum status choose_sm_target(const struct run_spec *spec, const struct device *device, int world, struct comm *comm,
                             const struct bootstrap *boot, int *ctas, struct error *err);

/* Limits the device's products, unless `ctas` is 0 or ranks share a GPU, whose collectives pass through host memory. To
 * be called after comm_attach_device(). Logs what it does if asked to. */
void apply_sm_target(const struct run_spec *spec, struct device *device, const struct comm *comm, int ctas, bool log);

/* BY_BLOCK: gpu/model/block_graphs.h. BY_STEP: stepper.h. */
enum graph_mode { GRAPHS_NONE, GRAPHS_BY_BLOCK, GRAPHS_BY_STEP };

struct graph_question {
    const struct run_spec *spec;
    const struct model_desc *desc;
    const struct device *device;
    const struct comm *comm; /* attached to the device; may be NULL */
    bool profile;            /* each op is timed */
    bool log_choice;
};

/* By train.cuda_graphs: by step where that is possible, else by block. With auto, graphs are used only if the host
 * takes about as long to launch a micro-batch as the GPU takes to compute it. STATUS_USAGE: the key is true, but
 * neither is possible. */
enum status choose_graphs(const struct graph_question *question, enum graph_mode *graphs, struct error *err);
