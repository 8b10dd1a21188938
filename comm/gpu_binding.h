/* gpu_binding.h: which of the GPUs that a rank sees is its own.
 *
 * What a rank sees depends on how it was started: all GPUs of the node (then the local rank chooses), only its own
 * (srun --gpus-per-task=1: then every rank's is number 0), or what CUDA_VISIBLE_DEVICES leaves. So GPUs are told apart
 * by an identity, never by their number: two ranks never get the same one, and every rank that could have one gets one.
 * Ranks that are to share GPUs, in tests, say so (gpu_view.share).
 *
 * All ranks tell all others what they see, so that they come to one conclusion. */
#ifndef ZTRAIN_COMM_GPU_BINDING_H
#define ZTRAIN_COMM_GPU_BINDING_H

#include "comm/comm.h"

enum { GPU_VIEW_MAX = 32 /* GPUs that one rank sees */ };

/* What one rank sees. */
struct gpu_view {
    int32_t rank;
    int32_t code; /* enum status: STATUS_OK; STATUS_DEVICE: it has no GPU to use; else the job cannot go on */
    char why[256];
    int32_t share; /* whether ranks may share GPUs */
    int32_t count;
    uint64_t ids[GPU_VIEW_MAX]; /* (count) equal: the same GPU */
};

/* count: GPUs that the driver shows this process, at least one. uuids: of each of them; where one is not known (zeros;
 * NULL: none is), and for MIG devices, the entries of `visible` (CUDA_VISIBLE_DEVICES: numbers, GPU-… and MIG-… names;
 * NULL: not set) tell them apart, or their numbers. */
enum status gpu_view_init(struct gpu_view *view, int rank, const char *visible, int count,
                          unsigned char (*uuids)[DEVICE_UUID_BYTES], struct error *err);

/* The same for a rank that cannot use any. */
void gpu_view_none(struct gpu_view *view, int rank, enum status code, const char *why);

/* How the ranks of a node were started, for messages. */
struct gpu_host {
    const char *name;
    bool supervised; /* by --local-gpus, not by a launcher */
};

/* views: of the ranks of one node (count), in rank order; each sees a GPU. *index: the GPU of views[self] among those
 * it sees. In order of ranks each gets the first that is free, so ranks that see the same GPUs get those of their local
 * ranks. STATUS_USAGE if one of them is left without (the same on all ranks of the node); the hint says how to start
 * them. */
enum status gpu_binding_choose(const struct gpu_view *views, int count, int self, const struct gpu_host *host,
                               int *index, struct error *err);

/* What the ranks of a job come to. */
struct gpu_binding {
    int blind;     /* the lowest rank that has no GPU to use (and its code is STATUS_DEVICE); -1: none */
    char why[256]; /* … why */
    int seeing;    /* ranks that have one */
    int index;     /* without a blind one: this rank's GPU among those it sees */
    bool may_share;
    int sharing, shared; /* ranks of this node that share its GPUs, and how many those are; 0: each has its own */
};

/* Collective: tells the others what this rank sees and chooses among the ranks of its node. boot->places is known. */
enum status gpu_binding_find(struct comm *comm, const struct bootstrap *boot, const struct gpu_view *own,
                             struct gpu_binding *binding, struct error *err);

#endif
