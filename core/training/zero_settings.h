/* SPDX-License-Identifier: Apache-2.0 */
/* zero_settings.h: the run spec's settings of ZeRO and of its offload. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };

struct offload_settings {
    enum offload_device device;
    bool pin_memory; /* page-locked host memory, from and to which a GPU copies by itself */
    double ratio;    /* optimizer: the fraction of its state that is offloaded */
    char *nvme_path; /* a folder, or NULL; in the spec's arena */
    int64_t buffer_count;
    int64_t buffer_size;                /* parameters, nvme: elements of a buffer */
    int64_t max_in_cpu;                 /* parameters, nvme: elements that stay in host memory */
    bool pipeline_read, pipeline_write; /* optimizer */
};

struct zero_settings { /* DeepSpeed's zero_optimization */
    int stage;
    bool overlap_comm;
    /* elements: collectives are cut into pieces of at most this (at least SHARD_ALIGN × world); 0: no limit */
    int64_t reduce_bucket_size, allgather_bucket_size;
    struct offload_settings offload_optimizer, offload_param;
    int64_t
        sub_group_size; /* elements that an offloaded optimizer updates at a time, at most SUB_GROUP_MAX; 0: those */
};

/* Whether state is offloaded to nvme. */
static inline bool zero_uses_disk(const struct zero_settings *zero)
{
    return zero->offload_optimizer.device == OFFLOAD_NVME || zero->offload_param.device == OFFLOAD_NVME;
}

/* The most elements that the optimizer updates at a time where they pass through buffers. */
enum { SUB_GROUP_MAX = 1 << 21 };

/* Asynchronous I/O on the disk of nvme_path (core/storage/async_io.h). */
struct aio_settings {
    int64_t block_size;  /* bytes of a transfer, at least 1; rounded up to ASYNC_IO_ALIGN */
    int64_t queue_depth; /* transfers in flight, 1 … ASYNC_IO_DEPTH_MAX */
};
