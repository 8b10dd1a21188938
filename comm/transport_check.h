/* transport_check.h: a first operation of each kind and type between GPUs, compared with its result. Private to the
 * communicator.
 *
 * It runs before memory is planned against what the GPU has free: NCCL connects the ranks and loads its kernels, both
 * of which take memory of the GPU. And a library, GPU or link that computes wrong sums ends the run here. */
#pragma once

#include "comm/transport_gpu.h"

/* Gathers in fp32 and reduces in each type, 64 elements a rank, then in fp32 8 MiB in all. STATUS_DEVICE if a result is
 * wrong; the job's failure if it has failed. Collective, but ranks may return different results: the caller agrees. */
enum status transport_check(struct comm *comm, struct transport_gpu *gpu, struct device *device, struct error *err);
