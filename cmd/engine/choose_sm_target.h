/* choose_sm_target.h: how many of a GPU's multiprocessors matrix products leave to NCCL, by train.sm_count_target.
 *
 * A block of one of NCCL's kernels holds a multiprocessor until the collective has ended. A product that counts on all
 * of them then gives its tiles to multiprocessors that it does not get, and its last wave waits. So the communicator is
 * told the most blocks that it may use (maxCTAs), and cublasLt that the products have as many multiprocessors fewer
 * (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET), which is part of the key of the choices of kernels (gpu/autotune_cache.h). */
#pragma once

#include "comm/comm.h"
#include "core/spec/spec.h"
#include "gpu/device.h"

/* What NCCL uses on Hopper for collectives through NVLink's switches: its own choice, held fixed. */
enum { SM_TARGET_CTAS = 16 };

/* *ctas: SM_TARGET_CTAS, or 0 where products are not limited: the same on all ranks, by the smallest of their GPUs,
 * because each rank computes the channels of their communicator from its own limit. Collective, unless comm is NULL:
 * a plan, which has no boot either. STATUS_USAGE, on all ranks: train.sm_count_target is true, but the device is the
 * CPU or a rank's GPU has too few multiprocessors. */
enum status choose_sm_target(const struct run_spec *spec, const struct device *device, int world, struct comm *comm,
                             const struct bootstrap *boot, int *ctas, struct error *err);

/* Limits the device's products, unless `ctas` is 0, comm is NULL (a plan), or ranks share a GPU, whose collectives pass
 * through host memory. To be called after comm_attach_device(). Logs what it does if asked to. */
void apply_sm_target(const struct run_spec *spec, struct device *device, const struct comm *comm, int ctas, bool log);
