/* SPDX-License-Identifier: Apache-2.0 */
/* memory_plan.h: the memory of a rank: three arenas, laid out dry for the plan, then in memory of that size. */
#pragma once

#include "core/status.h"
#include "gpu/arena.h"
#include "gpu/cuda/cuda_reserve.h"

#include <stdint.h>

struct memory_plan {
    struct arena local;          /* dry: the rank's own arena, workspace included */
    struct arena shared;         /* dry: its segment that peers read */
    struct arena host;           /* dry: host memory of offload and of a snapshot; no part of the device's memory */
    size_t workspace;            /* part of local */
    struct cuda_reserve reserve; /* of a GPU, outside of the arenas; estimated */
};

struct engine;

/* Parameters that are active for a token: all but those of the experts that it does not go to. */
int64_t memory_plan_active(const struct engine *engine);

/* Device memory that this rank takes by its plan: its arena, its shared segment, and a GPU's reserve. */
size_t memory_plan_device_bytes(const struct memory_plan *plan);

/* The device memory that a rank may take, in bytes: train.memory_limit or the GPU's memory, the smaller; 0: no cap. */
int64_t memory_plan_cap(const struct engine *engine);

/* Host memory that a node's ranks take by their plan: for offload and snapshots, on the CPU device everything. */
size_t memory_plan_node_bytes(const struct engine *engine);

/* The part of it that the run does without where memory is short: copies for checkpoints in the background. */
size_t memory_plan_node_spare(const struct engine *engine);

/* Host memory of this machine, where the plan is for it; else UINT64_MAX. */
uint64_t memory_plan_node_limit(const struct engine *engine);

/* Fills engine->plan, at the end of engine_build(), with a snapshot for checkpoints in the background or without
 * (checkpoint.writer.decoupled). Collective in a run. STATUS_DEVICE: there has to be one, and it does not fit. */
enum status memory_plan_make(struct engine *engine, struct error *err);

/* Lets the device load libraries and choose kernels (ops_prepare()): before memory_plan_allocate(), not in a plan. */
enum status engine_prepare_ops(struct engine *engine, struct error *err);

/* Allocates the plan's memory and lays all out, but for the snapshot. A shared segment: collective. */
enum status memory_plan_allocate(struct engine *engine, struct error *err);

/* Also after a failure; engine_release() calls it. */
void memory_plan_free(struct engine *engine);

/* "17.2 GiB on each rank, 21.8 % of …; 90.0 GiB of host memory on each node": the plan in a line. */
enum { MEMORY_SUMMARY = 384 };
void memory_plan_summary(const struct engine *engine, char text[MEMORY_SUMMARY]);

/* Logs the plan in GiB or bytes: of each rank in all, by kind, by place. Warns of what does not fit. */
void memory_plan_print(const struct engine *engine, bool bytes);

/* ---- the snapshot -------------------------------------------------------- */

/* The memory of a rank's copy of its slices, for checkpoints in the background: in the plan, outside of the arenas.
 * With checkpoint.writer.decoupled auto it is taken when a save is due, with true before the first step. */

/* The share of a node's memory that a plan with a snapshot may take with checkpoint.writer.decoupled auto. */
static const double memory_auto_share = 0.8;

/* Whether the node has room for all of its ranks' snapshots now, before any of them is taken. */
bool memory_snapshot_fits(const struct engine *engine);

/* Pins it, or allocates pinned memory, and gives it to ZeRO, with no step under way. STATUS_DEVICE: it is refused. */
enum status memory_snapshot_place(struct engine *engine, struct error *err);

/* Also where none was taken. ZeRO no longer uses it. */
void memory_snapshot_free(struct engine *engine);

/* ---- limits (memory_limit.c) --------------------------------------------- */

/* STATUS_DEVICE if a rank takes more than train.memory_limit, or, in a run, if its arenas take more than its GPU has;
 * the hint names settings that fit, or the least that any takes. Not collective; the same on all ranks. */
enum status memory_limit_check(const struct engine *engine, struct error *err);

/* STATUS_DEVICE if the planned host memory of this rank, or of all ranks of a supervisor, exceeds what the machine has
 * or its control group may use. Not collective, and machines may differ: the caller agrees. */
enum status memory_node_check(const struct engine *engine, struct error *err);

/* Before an arena is allocated, libraries loaded and communicators connected: STATUS_DEVICE if the arenas of the ranks
 * on this GPU take more than is free, with its other processes and settings that fit. Warns if little is left for
 * kernels and NVLS buffers. Collective; results may differ: the caller agrees. */
enum status memory_free_check(const struct engine *engine, struct error *err);
