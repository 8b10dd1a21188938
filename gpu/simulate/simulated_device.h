/* simulated_device.h: a GPU that need not exist, for plans, in every build. It runs nothing. Its properties are assumed,
 * which its name states.
 *
 * For a memory plan it answers how much workspace the ops need. For a plan of speed it counts: what a step enqueues is
 * walked through, every stream has a clock that each op advances by its estimated time (op_estimate.h), and an event
 * keeps the clock of the stream that recorded it, so that a stream that waits for it is set forward. Memory has
 * addresses, which must not be dereferenced. A graph keeps the estimates of its ops, which a launch adds up. */
#pragma once

#include "core/training/offload_settings.h"
#include "gpu/device.h"
#include "gpu/simulate/op_estimate.h"

/* A GPU of gpu_catalog.h (NULL: the usual one) for memory plans: ops_workspace_bytes() and layouts in dry arenas work,
 * but nothing can be allocated or run. STATUS_USAGE lists the GPUs that are known. */
enum status device_plan_open(const char *option, struct device **device, struct error *err);

/* The GPU of `settings`, which are copied, for plans of speed. */
enum status device_plan_open_timed(const struct plan_settings *settings, struct device **device, struct error *err);

/* Time of the compute stream since device_plan_reset(), in seconds, by kind. */
struct plan_times {
    double seconds; /* the sum over kinds of what was expected */
    struct {
        int64_t launches;
        double ceiling, expected;
    } kinds[PLAN_KIND_COUNT];
    int64_t enqueued;     /* launches by the host: a graph is one, whatever it contains */
    double communication; /* of the communication stream, hidden or not */
    double disk;          /* of the disk, hidden or not */
};
void device_plan_times(struct device *device, struct plan_times *times);
void device_plan_reset(struct device *device);

/* The disk of a plan of speed, for state that is offloaded to nvme; lives as long as the device. */
const struct paper_disk *device_plan_disk(struct device *device);

/* From now on ops take the time that they have with these settings; its GPU stays. */
void device_plan_set(struct device *device, const struct plan_settings *settings);

/* Adds the time of a collective, which is not an op, to the communication stream. */
void device_plan_communicate(struct stream *stream, double seconds);
