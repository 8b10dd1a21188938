/* SPDX-License-Identifier: Apache-2.0 */
/* simulated_device.h: a GPU that need not exist, in every build. It runs nothing; its properties are assumed. For a
 * memory plan it answers how much workspace the ops need. With clocks it simulates a step: each op advances the clock
 * of its stream by its estimated time (op_estimate.h), an event keeps the clock of its stream, a graph the estimates of
 * its ops. Memory has addresses, which must not be dereferenced. */
#pragma once

#include "core/storage/disk.h"
#include "gpu/device.h"
#include "gpu/ops.h"
#include "gpu/simulate/op_estimate.h"

/* A GPU of gpu_catalog.h (NULL: the usual one) for memory plans: nothing can be allocated or run. STATUS_USAGE lists
 * the GPUs that are known. */
enum status simulated_device_open(const char *option, struct device **device, struct error *err);

/* The GPU of `settings`, which are copied, with clocks. */
struct device *simulated_device_open_timed(const struct assumed_gpu *settings);

/* Time of the compute stream since simulated_device_reset(), in seconds, by kind. */
struct simulated_times {
    double seconds; /* the sum over kinds of what was expected */
    struct {
        int64_t launches;
        double ceiling, expected;
    } kinds[TIME_KIND_COUNT];
    int64_t enqueued;     /* launches by the host: a graph is one, whatever it contains */
    double communication; /* of the communication stream, hidden or not */
    double ordered;       /* of ordered reductions with their sums, hidden or not … */
    double unordered;     /* … and what NCCL's own reductions would take instead */
    double disk;          /* of the disk, hidden or not */
};
void simulated_device_times(struct device *device, struct simulated_times *times);
void simulated_device_reset(struct device *device);

/* The disk of its node, for state that is offloaded to nvme; lives as long as the device. It does one transfer after
 * the other, in the order of calls: where parameters and the optimizer's state share it, that is slower than a run, in
 * which the next forward's reads pass writes. */
const struct disk *simulated_device_disk(struct device *device);

/* Bytes/s of that disk for one rank, set or usual. */
double simulated_disk_rate(const struct assumed_gpu *settings, bool write);

/* From now on ops take the time that they have with these settings; its GPU stays. */
void simulated_device_set(struct device *device, const struct assumed_gpu *settings);

void simulated_device_communicate(struct stream *stream, double seconds);

/* An ordered reduction: the transfer, and then this sum, in place of NCCL's reduction of `unordered` seconds. */
void simulated_device_reduce_ordered(struct stream *s, double seconds, const struct sum_ranks_args *sum, double less);
