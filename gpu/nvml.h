/* nvml.h: what NVIDIA's management library tells of the GPUs of this machine: driver, memory, clocks, throttling. The
 * library belongs to the driver and is opened at run time; builds without CUDA can ask it too. */
#ifndef ZTRAIN_GPU_NVML_H
#define ZTRAIN_GPU_NVML_H

#include <stddef.h>
#include <stdint.h>

/* 0 in a number: the GPU does not tell. */
struct nvml_gpu {
    char name[96];
    uint64_t memory_total, memory_free; /* bytes */
    unsigned sm_mhz, sm_max_mhz, memory_mhz;
    unsigned celsius, milliwatts, limit_milliwatts;
    uint64_t throttle; /* reasons, a bit each: nvml_throttle_text() */
};

/* Fills at most `max` GPUs and returns how many there are; -1: NVML does not open or start, `why` (of at least 256
 * bytes) says why. driver: its version, or "". `file`: NULL for the driver's library. */
int nvml_read(const char *file, struct nvml_gpu *gpus, int max, char *driver, size_t driver_size, char *why);

/* "power cap, hot": what keeps the clocks down; "no" if nothing that costs speed does. Returns text. */
const char *nvml_throttle_text(uint64_t throttle, char *text, size_t size);

#endif
