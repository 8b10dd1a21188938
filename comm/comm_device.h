/* comm_device.h: data operations on the memory of a GPU, which other processes cannot read. Private to the
 * communicator.
 *
 *   NCCL      each rank has its own GPU: the operation runs on the GPU, in the order of the communication stream
 *   staged    ranks share a GPU, in tests: piece by piece through pinned host memory and the host's operation */
#pragma once

#include "comm/comm_internal.h"

struct comm_device;

/* Chooses one of the two, the same on all ranks; nccl_ctas: see comm_attach_device(); *way describes it for the log.
 * Collective. */
enum status comm_device_new(struct comm *comm, struct device *device, bool may_share, int nccl_ctas,
                            struct comm_device **out, const char **way, struct error *err);
void comm_device_free(struct comm_device *gpu);

/* Whether operations may be captured in a graph: with NCCL only. */
bool comm_device_can_capture(const struct comm_device *gpu);
/* comm_takes_pieces() */
bool comm_device_takes_pieces(const struct comm_device *gpu);
void comm_device_launch(struct comm_device *gpu, struct graph *graph);

/* Puts the operation into the stream's order. */
void comm_device_submit(const struct data_op *op, struct stream *stream);
