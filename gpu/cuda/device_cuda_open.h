/* device_cuda_open.h: how a CUDA device is found and opened, for gpu/open; needs no header of CUDA. Only in builds with
 * CUDA (ZTRAIN_CUDA). */
#ifndef ZTRAIN_GPU_CUDA_DEVICE_CUDA_OPEN_H
#define ZTRAIN_GPU_CUDA_DEVICE_CUDA_OPEN_H

#include "gpu/device.h"

/* device_cuda_available() and device_cuda_list() of gpu/open/device_open.h. */
bool device_cuda_probe(char *why);
int device_cuda_identify(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most);

/* device_open() and device_open_to_plan() for this kind. */
enum status device_cuda_open(int index, int threads, struct device **device, struct error *err);
enum status device_cuda_open_to_plan(struct device **device, struct error *err);

#endif
