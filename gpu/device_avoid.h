/* device_avoid.h: parts of a device that it can do without, slower: they are switched off where they compute something
 * else (cmd/engine/gpu_test.h). */
#pragma once

#include "gpu/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum device_part {
    DEVICE_EPILOGUES = 1 << 0, /* bias, GELU and bias gradients as epilogues of matrix products */
    DEVICE_GRAPHS = 1 << 1,    /* the caller launches none */
    DEVICE_PARTS_LAST = DEVICE_GRAPHS
};

/* "fused epilogues of matrix products" */
const char *device_part_name(unsigned part);

/* From now on the device does without these parts (bits of enum device_part). */
void device_avoid(struct device *device, unsigned parts);

/* Why the attention of the run's shapes is computed by slower kernels than it could be on this device: a library that
 * is missing, or that refuses them. NULL: it is not. To be called after ops_prepare(); borrowed. */
const char *device_attention_obstacle(struct device *device);

#ifdef __cplusplus
}
#endif
