/* gpu_binding.h: which of the GPUs that a rank sees is its own.
 *
 * What a rank sees depends on how it was started: all GPUs of the node (then the local rank chooses), only its own
 * (srun --gpus-per-task=1: then every rank's is number 0), or what CUDA_VISIBLE_DEVICES leaves. So GPUs are told apart
 * by an identity, never by their number: two ranks never get the same one, and every rank that could have one gets one.
 */
#ifndef ZTRAIN_COMM_GPU_BINDING_H
#define ZTRAIN_COMM_GPU_BINDING_H

#include "comm/bootstrap.h"

enum { GPU_VIEW_MAX = 32 /* GPUs that one rank sees */, GPU_UUID_BYTES = 16 };

/* What one rank sees. */
struct gpu_view {
    int rank;
    int count;
    uint64_t ids[GPU_VIEW_MAX]; /* (count) equal: the same GPU, or part of one (MIG) */
};

/* count: GPUs that the driver shows this process. uuids: of each of them (MIG devices have their own), or NULL where
 * they are not known: then the entries of `visible` (CUDA_VISIBLE_DEVICES: numbers, GPU-… and MIG-… names; NULL: not
 * set) tell them apart, or their numbers. */
enum status gpu_view_init(struct gpu_view *view, int rank, const char *visible, int count,
                          const unsigned char (*uuids)[GPU_UUID_BYTES], struct error *err);

/* views: of the ranks of one node (count), in rank order. *index: the GPU of views[self] among those it sees. In order
 * of ranks each gets the first that is free, so ranks that see the same GPUs get those of their local ranks.
 * STATUS_USAGE if one of them is left without (the same on all ranks of the node); the hint is a line of srun. */
enum status gpu_binding_choose(const struct gpu_view *views, int count, int self, const char *host, int *index,
                               struct error *err);

/* Collective: tells the others what this rank sees and chooses among the ranks of its node. */
enum status gpu_binding_find(struct bootstrap *bootstrap, const struct gpu_view *own, int *index, struct error *err);

#endif
