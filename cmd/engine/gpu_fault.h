/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_fault.h: whose fault it is that work on this rank's GPU has failed. An illegal address, a misaligned one, a
 * failed launch and their like come from wrong kernels, ours or a library's, and from broken GPUs. The GPU is broken
 * only if NVML has reported an Xid of the hardware or an ECC error since the start, or if a self-test in a new process
 * fails: STATUS_BROKEN, after which scripts leave out the node. Else it is a fault of software: STATUS_PEER and
 * FAILURE_SOFTWARE. */
#pragma once

#include "gpu/device.h"

/* From now on device_check() asks this file, for GPU `index` of those that this process sees. One device at a time. */
void gpu_fault_watch(struct device *device, int index);
void gpu_fault_unwatch(struct device *device); /* before it is closed; may be NULL, or another one */
