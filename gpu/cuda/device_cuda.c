/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda.c: an NVIDIA GPU as a device (gpu/device_backend.h): finding, opening and closing it, and the table of
 * its entries, which the device_cuda_*.c files implement. device_cuda.h lists the files. */
#include "gpu/cuda/device_cuda.h"

#include "core/core.h"
#include "gpu/cuda/attention/attention_cudnn.h"
#include "gpu/cuda/cuda_libraries.h"
#include "gpu/cuda/device_cuda_open.h"
#include "gpu/cuda/gemm/gemm_cuda.h"
#include "gpu/cuda/ops_cuda.h"
#include "gpu/peaks.h"

#ifdef _OPENMP
#include <omp.h>
#endif

void cuda_device_close(struct device *device)
{
    struct cuda_device *cuda = device->private_;
    gemm_cuda_free(cuda->gemm); /* first: it has plans of attention's cuDNN */
    attention_cudnn_free(cuda->attention);
    pthread_mutex_destroy(&cuda->mutex);
    free(cuda->ranges);
    free(cuda);
}

#define CUDA_BACKEND_MEMBER(type, name, parameters) .name = cuda_device_##name,
static const struct device_backend cuda_backend = {DEVICE_BACKEND_LIST(CUDA_BACKEND_MEMBER)};

/* ---- finding GPUs -------------------------------------------------------- */

/* The number of usable GPUs; 0: `err` gives the reason. */
static int cuda_count_gpus(struct error *err)
{
    int count = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) return count;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (driver == 0) {
        error_set(err, STATUS_DEVICE, "no NVIDIA driver (libcuda.so.1) on this machine");
    } else if (code == cudaErrorInsufficientDriver || driver / 1000 < runtime / 1000) {
        error_set(err, STATUS_DEVICE,
                  "the NVIDIA driver supports CUDA up to %d.%d, this build needs CUDA %d.%d; hint: update the driver, "
                  "or build with an older CUDA toolkit",
                  driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else if (code == cudaErrorNoDevice || code == cudaSuccess) {
        error_set(err, STATUS_DEVICE, "the NVIDIA driver shows no GPU%s%s%s",
                  visible ? " (CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "", visible ? "')" : "");
    } else {
        error_set(err, STATUS_DEVICE, "the NVIDIA driver does not start: %s (%s)", cudaGetErrorString(code),
                  cudaGetErrorName(code));
    }
    return 0;
}

static enum status cuda_check_capability(int index, const struct cudaDeviceProp *properties, struct error *err)
{
    if (10 * properties->major + properties->minor >= CUDA_CAPABILITY_LEAST) return STATUS_OK;
    return error_set(err, STATUS_DEVICE,
                     "GPU %d (%.60s) has compute capability %d.%d, ztrain needs %d.%d or higher (A100 and newer); "
                     "hint: choose another GPU with CUDA_VISIBLE_DEVICES, or set train.device to cpu",
                     index, properties->name, properties->major, properties->minor, CUDA_CAPABILITY_LEAST / 10,
                     CUDA_CAPABILITY_LEAST % 10);
}

bool device_cuda_probe(char *why)
{
    struct error err;
    struct cudaDeviceProp properties;
    bool usable = cuda_count_gpus(&err) > 0;
    if (usable) {
        cudaError_t code = cudaGetDeviceProperties(&properties, 0);
        if (code != cudaSuccess)
            error_set(&err, STATUS_DEVICE, "cannot read the properties of GPU 0: %s", cudaGetErrorString(code));
        usable = code == cudaSuccess && cuda_check_capability(0, &properties, &err) == STATUS_OK;
    }
    snprintf(why, 256, "%.255s", usable ? "" : err.text);
    return usable;
}

int device_cuda_identify(unsigned char (*uuids)[DEVICE_UUID_BYTES], int most)
{
    struct error err;
    struct cudaDeviceProp properties;
    int count = cuda_count_gpus(&err);
    _Static_assert(sizeof properties.uuid.bytes == DEVICE_UUID_BYTES, "device.h and CUDA agree on the size of a UUID");
    for (int i = 0; i < count && i < most; i++) {
        memset(uuids[i], 0, DEVICE_UUID_BYTES);
        if (cudaGetDeviceProperties(&properties, i) == cudaSuccess)
            memcpy(uuids[i], properties.uuid.bytes, DEVICE_UUID_BYTES);
    }
    return count;
}

/* ---- opening ------------------------------------------------------------- */

/* The driver's version, which is that of its kernel module; where it cannot be read, the CUDA version it supports. */
static void read_driver(int cuda_version, char *text, size_t size)
{
    FILE *file = fopen("/sys/module/nvidia/version", "re");
    bool known = file && fgets(text, (int)size, file);
    if (file) fclose(file);
    if (known)
        text[strcspn(text, "\n")] = 0;
    else
        snprintf(text, size, "for CUDA %d.%d", cuda_version / 1000, cuda_version % 1000 / 10);
}

/* Makes GPU `index` the thread's current one, with a context. *count: the usable GPUs. */
static enum status cuda_select_gpu(int index, int *count, struct cudaDeviceProp *properties, struct error *err)
{
    *count = cuda_count_gpus(err);
    if (*count == 0) {
        error_prefix(err, "cannot open a CUDA device");
        return error_hint(err, "set train.device to cpu or auto");
    }
    if (index >= *count)
        return error_set(err, STATUS_DEVICE, "cannot open GPU %d: this process sees %d", index, *count);
    cudaError_t code = cudaGetDeviceProperties(properties, index);
    if (code == cudaSuccess) TRY(cuda_check_capability(index, properties, err));
    if (code == cudaSuccess) code = cudaSetDevice(index);
    if (code == cudaSuccess) /* waits sleep: offload's AdamW and the threads that read data have the cores */
        code = cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    if (code == cudaSuccess) code = cudaFree(NULL); /* creates the context */
    if (code != cudaSuccess)
        return error_set(err, STATUS_DEVICE,
                         "cannot open GPU %d of %d: %s (%s); hint: nvidia-smi shows whether it is in use by others, in "
                         "exclusive mode, or out of order",
                         index, *count, cudaGetErrorString(code), cudaGetErrorName(code));
    return STATUS_OK;
}

static enum status open_gpu(struct cuda_device *cuda, int index, struct error *err)
{
    struct cudaDeviceProp properties;
    int count, driver = 0;
    SLOW("opening the GPU", NULL, -1); /* creating a context and loading libraries take long */
    TRY(cuda_select_gpu(index, &count, &properties, err));
    cuda->index = index;
    cuda->capability = 10 * properties.major + properties.minor;
    cuda->sm_count = cuda->device.multiprocessors = properties.multiProcessorCount;
    cuda->device.memory_bytes = properties.totalGlobalMem;
    snprintf(cuda->device.name, sizeof cuda->device.name, "%.127s", properties.name);
    for (size_t i = 0; i < sizeof properties.uuid.bytes; i++)
        snprintf(cuda->device.id + 2 * i, sizeof cuda->device.id - 2 * i, "%02x",
                 (unsigned)(unsigned char)properties.uuid.bytes[i]);
    snprintf(cuda->device.pci, sizeof cuda->device.pci, "%04x:%02x:%02x.0", (unsigned)properties.pciDomainID & 0xffff,
             (unsigned)properties.pciBusID & 0xff, (unsigned)properties.pciDeviceID & 0xff);
    cudaDriverGetVersion(&driver);
    snprintf(cuda->device.capability, sizeof cuda->device.capability, "%d.%d", properties.major, properties.minor);
    snprintf(cuda->device.runtime, sizeof cuda->device.runtime, "%d.%d", CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10);
    read_driver(driver, cuda->device.driver, sizeof cuda->device.driver);
    TRY(cublaslt_open(&cuda->cublaslt, err));
    struct cuda_library_info cublaslt;
    cuda_library_describe(CUDA_LIBRARY_CUBLASLT, &cublaslt);
    snprintf(cuda->device.detail, sizeof cuda->device.detail,
             "GPU %d of %d, compute capability %d.%d, %d SMs, %.1f GiB, driver for CUDA %d.%d, cublasLt %s",
             cuda->index, count, properties.major, properties.minor, cuda->sm_count,
             (double)cuda->device.memory_bytes / (1 << 30), driver / 1000, driver % 1000 / 10, cublaslt.version);
    TRY(gemm_cuda_new(cuda, &cuda->gemm, err));
    return attention_cudnn_new(cuda, &cuda->attention, err);
}

enum status device_cuda_open(int index, int threads, struct device **device, struct error *err)
{
    bool tf32 = false;
    enum status status;
    struct cuda_device *cuda = memory_zeroed(1, sizeof *cuda);
    pthread_mutex_init(&cuda->mutex, NULL);
    cuda->private_.backend = &cuda_backend;
    cuda->device.kind = DEVICE_CUDA;
    cuda->device.private_ = cuda;
    cuda->device.ops = &ops_cuda_table;
    cuda->device.threads = 1;
#ifdef _OPENMP
    if (threads > 0) /* for the host's work: initial weights, checkpoints */
        omp_set_num_threads(threads);
    cuda->device.threads = threads > 0 ? threads : omp_get_max_threads();
#else
    (void)threads;
#endif
    TRY_GOTO(open_gpu(cuda, index, err));
    TRY_GOTO(device_cuda_wants_tf32(&tf32, err));
    TRY_GOTO(ops_cuda_load(cuda, err));
    cuda->device.peak_bytes = peaks_bytes(cuda->device.name);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        cuda->device.peak_flops[dtype] = peaks_flops(cuda->device.name, (enum dtype)dtype, tf32);
    *device = &cuda->device;
    return STATUS_OK;
fail:
    cuda_device_close(&cuda->device);
    return status;
}
