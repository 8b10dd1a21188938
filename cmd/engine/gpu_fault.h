/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_fault.h: whose fault it is that work on this rank's GPU has failed: wrong kernels cause illegal addresses and
 * failed launches, and so do broken GPUs. The GPU is broken (STATUS_BROKEN: scripts leave out the node) only if NVML
 * has reported an Xid of the hardware or an ECC error since the start, or a self-test in a new process fails. Else it
 * is a fault of software: STATUS_PEER and FAILURE_SOFTWARE. */
#pragma once

#include "gpu/device.h"

/* From now on device_check() asks this file, for GPU `index` of those that this process sees. One device at a time. */
void gpu_fault_watch(struct device *device, int index);
void gpu_fault_unwatch(struct device *device); /* before it is closed; may be NULL, or another one */
