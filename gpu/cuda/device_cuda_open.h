/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda_open.h: finding and opening a CUDA device, for gpu/open, in builds with CUDA (ZTRAIN_CUDA). */
#pragma once

#include "gpu/device.h"

/* They implement device_cuda_available() and device_cuda_list() of gpu/open/device_open.h. */
bool device_cuda_probe(char *why);
int device_cuda_identify(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most);

/* Implements device_open() for DEVICE_CUDA. */
enum status device_cuda_open(int index, int threads, struct device **device, struct error *err);
