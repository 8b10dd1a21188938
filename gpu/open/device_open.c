/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/open/device_open.h"

#include "core/heartbeat.h"
#include "gpu/cpu/device_cpu.h"
#include "gpu/cpu/ops_cpu.h"
#if ZTRAIN_CUDA
#include "gpu/cuda/device_cuda_open.h"
#endif

#if ZTRAIN_CUDA

bool device_cuda_is_built(void)
{
    return true;
}

bool device_cuda_available(char *why)
{
    SLOW("starting the GPU driver", NULL, -1); /* one that no process uses initialises every GPU of the machine */
    return device_cuda_probe(why);
}

int device_cuda_list(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most)
{
    return device_cuda_identify(uuids, most);
}

#else

bool device_cuda_is_built(void)
{
    return false;
}

bool device_cuda_available(char *why)
{
    snprintf(why, 256, "this build of ztrain has no CUDA backend");
    return false;
}

int device_cuda_list(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most)
{
    (void)uuids, (void)most;
    return 0;
}

static enum status device_cuda_open(int index, int threads, struct device **device, struct error *err)
{
    (void)index, (void)threads, (void)device;
    error_set(err, STATUS_DEVICE, "cannot open a CUDA device: this build of ztrain has no CUDA backend");
    return error_hint(err, "build it where nvcc is installed, or set train.device to cpu");
}

#endif

enum status device_open(enum device_kind kind, int index, int threads, struct device **device, struct error *err)
{
    ASSERT(index >= 0);
    *device = NULL;
    struct cpu_kernels kernels;
    switch (kind) {
    case DEVICE_CPU:
        TRY(cpu_kernels_detect(&kernels, err));
        TRY(cpu_kernels_choose_products(&kernels, NULL, false, err));
        return device_cpu_open(&kernels, threads, device, err);
    case DEVICE_CUDA:
        TRY(cpu_kernels_detect(&kernels, err));
        TRY(device_cuda_open(index, threads, device, err));
        (*device)->host_ops = &ops_cpu_of(kernels.isa)->table;
        return STATUS_OK;
    }
    BUG("device kind %d", (int)kind);
}

enum status device_open_cpu(const struct cpu_kernels *kernels, int threads, struct device **device, struct error *err)
{
    *device = NULL;
    return device_cpu_open(kernels, threads, device, err);
}
