/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.h: the state of this machine's GPUs as NVIDIA's management library (NVML) reports it: driver, memory, clocks,
 * throttling. The library belongs to the driver and is opened at run time, also in builds without CUDA. */
#pragma once

#include "core/status.h"

/* A number is 0 where the GPU does not report it. */
struct nvml_gpu {
    char name[96];
    uint64_t memory_total, memory_free; /* bytes */
    unsigned sm_mhz, sm_max_mhz, memory_mhz;
    unsigned celsius, milliwatts, limit_milliwatts;
    uint64_t throttle; /* a bit for each reason: nvml_throttle_text() */
};

/* Fills at most `max` entries of gpus and returns the number of GPUs; -1: NVML does not start, for the reason `why` (at
 * least 256 bytes). driver gets the driver's version, or "". file: NULL for the driver's library. */
int nvml_read(const char *file, struct nvml_gpu *gpus, int max, char *driver, size_t driver_size, char *why);

/* The reasons of a machine in trouble: hardware slowdown, heat (two kinds), power brake. The software's power cap is
 * not one: large products hold a healthy GPU at its power limit, also in a step. */
enum { NVML_THROTTLE_FAULTS = 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 };

/* A process that computes on a GPU. */
struct nvml_process {
    unsigned pid;   /* on the host: in a container it is another number than the process's own */
    uint64_t bytes; /* of the GPU's memory; 0: not known */
    char name[64];  /* of its program; "": not known */
};

/* Fills at most `max` entries with the processes that compute on a GPU, without this one; returns how many there are,
 * -1: NVML does not say. id: the GPU's UUID in hexadecimal digits (struct device); file: see nvml_read(). */
int nvml_processes(const char *file, const char *id, struct nvml_process *processes, int max);

/* The reasons of NVML_THROTTLE_FAULTS that hold now for a GPU; 0: none, or NVML does not say. id, file as above. */
uint64_t nvml_throttle_faults(const char *file, const char *id);

/* Watches one GPU for faults of its hardware from now on: NVML keeps no Xid for those who come later. id, file as
 * above. One GPU at a time. */
void nvml_watch_start(const char *file, const char *id);
void nvml_watch_stop(void);

enum nvml_finding { NVML_UNKNOWN, NVML_SOUND, NVML_FAULT };

/* What NVML has reported since; waits half a second for an event that is under way. NVML_FAULT: text = "Xid 79".
 * NVML_UNKNOWN: it has no events of this GPU. Any thread, one at a time. */
enum nvml_finding nvml_watch_look(char *text, size_t size);

/* "power cap, driver's heat limit", or "no" if no reason costs speed. Returns text. */
const char *nvml_throttle_text(uint64_t throttle, char *text, size_t size);
