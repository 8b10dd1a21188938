/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_binding.h: chooses one of the GPUs that a rank sees. That may be all of the node, only its own (srun
 * --gpus-per-task=1: each is number 0), or those of CUDA_VISIBLE_DEVICES. So GPUs are told apart by an identity: two
 * ranks never get the same one, unless tests let them (gpu_view.share). All ranks exchange what they see, so that they
 * reach the same conclusion. */
#pragma once

#include "comm/comm.h"

enum { GPU_VIEW_MAX = 32 /* GPUs that one rank sees */ };

/* The i-th entry of CUDA_VISIBLE_DEVICES, *length bytes; false: there is none. Like CUDA, stops at the first invalid
 * entry, such as -1. */
bool gpu_visible_entry(const char *visible, int i, const char **entry, size_t *length);

/* The GPUs that one rank sees. */
struct gpu_view {
    int32_t rank;
    int32_t code; /* enum status: STATUS_OK; STATUS_DEVICE: it has no GPU to use; else the job must end */
    char why[256];
    int32_t share; /* whether ranks may share GPUs */
    int32_t count;
    uint64_t ids[GPU_VIEW_MAX]; /* (count) equal: the same GPU */
};

/* count: GPUs that the driver shows this process, at least one. uuids: one for each. Where a UUID is unknown (zeros;
 * NULL: all are), and for MIG devices, identities come from `visible` (CUDA_VISIBLE_DEVICES: numbers, GPU-… and MIG-…
 * names; NULL: not set), or are the numbers. */
enum status gpu_view_init(struct gpu_view *view, int rank, const char *visible, int count,
                          unsigned char (*uuids)[DEVICE_UUID_BYTES], struct error *err);

/* The view of a rank that cannot use any GPU. */
void gpu_view_none(struct gpu_view *view, int rank, enum status code, const char *why);

/* How the ranks of a node were started, for messages. */
struct gpu_host {
    const char *name;
    bool supervised; /* by --local-gpus, not by a launcher */
};

/* views: (count) the ranks of one node, in rank order. *index: the GPU of views[self] among those that it sees; that of
 * its local rank if all see the same. STATUS_USAGE, on all ranks of the node, if one is left without. */
enum status gpu_binding_choose(const struct gpu_view *views, int count, int self, const struct gpu_host *host,
                               int *index, struct error *err);

/* The result for the ranks of a job. */
struct gpu_binding {
    int blind;     /* the lowest rank that has no GPU to use (and its code is STATUS_DEVICE); -1: none */
    char why[256]; /* the reason of rank `blind` */
    int seeing;    /* number of ranks that see a GPU */
    int index;     /* if no rank is blind: this rank's GPU among those that it sees */
    bool may_share;
    int sharing, shared; /* this many ranks of this node share this many GPUs; 0: each rank has its own */
};

/* Collective. boot->places must be known. */
enum status gpu_binding_find(struct comm *comm, const struct bootstrap *boot, const struct gpu_view *own,
                             struct gpu_binding *binding, struct error *err);
