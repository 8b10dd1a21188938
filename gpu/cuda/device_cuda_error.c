/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda_error.c: the sticky error of a CUDA device. */
#include "gpu/cuda/device_cuda.h"

#include "core/core.h"

/* What a wrong kernel leads to, ours or a library's, and a GPU that computes wrong addresses. */
static const cudaError_t suspects[] = {
    cudaErrorIllegalAddress, cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
    cudaErrorInvalidPc,      cudaErrorIllegalInstruction, cudaErrorHardwareStackError,
    cudaErrorLaunchFailure,  cudaErrorLaunchTimeout,      cudaErrorAssert};

bool cuda_text_is_suspect(const char *text)
{
    for (size_t i = 0; i < COUNT_OF(suspects); i++)
        if (strstr(text, cudaGetErrorString(suspects[i]))) return true;
    return false;
}

/* Of a call that is wrong. */
/* clang-format off */
static const cudaError_t ours[] = {
    cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorInvalidConfiguration, cudaErrorInvalidDevice,
    cudaErrorInvalidDevicePointer, cudaErrorInvalidMemcpyDirection, cudaErrorInvalidDeviceFunction,
    cudaErrorInvalidResourceHandle, cudaErrorInvalidKernelImage, cudaErrorInvalidPtx, cudaErrorInvalidSource,
    cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilerNotFound,
    cudaErrorLaunchOutOfResources, cudaErrorHostMemoryAlreadyRegistered, cudaErrorHostMemoryNotRegistered,
    cudaErrorIllegalState, cudaErrorNotPermitted, cudaErrorNotSupported};
/* clang-format on */

/* The suspects leave it open whose fault it is. Every other code of an opened device (ECC errors, a GPU that fell off
 * the bus, codes that newer drivers add) means that the device or its driver has failed. */
enum status cuda_status_of(cudaError_t code)
{
    if (code == cudaSuccess || code == cudaErrorNotReady) return STATUS_DEVICE;
    if (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorCapturedEvent) return STATUS_DEVICE;
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        if (code == ours[i]) return STATUS_DEVICE;
    for (size_t i = 0; i < COUNT_OF(suspects); i++)
        if (code == suspects[i]) return STATUS_PEER;
    return STATUS_BROKEN;
}

static void keep_first_error(struct cuda_device *cuda, cudaError_t code, const char *text)
{
    LOCKED(&cuda->mutex);
    struct error *error = cuda->capturing ? &cuda->capture_error : &cuda->error;
    if (error->code == STATUS_OK)
        error_set(error, cuda_status_of(code), "GPU %d (%s): %s", cuda->index, cuda->device.name, text);
}

void cuda_fail(struct cuda_device *cuda, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* A library's own code does not tell a broken device from a refused call; CUDA's answer to any call does. */
    cuda_call_begin();
    keep_first_error(cuda, cuda_call_end(cuda->capturing ? cudaSuccess : cudaStreamQuery(NULL)), text);
}

void cuda_call_begin(void)
{
    heartbeat_device_begin();
}

cudaError_t cuda_call_end(cudaError_t code)
{
    heartbeat_device_end();
    return code;
}

bool cuda_check_code(struct cuda_device *cuda, cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return true;
    char text[1024];
    snprintf(text, sizeof text, "%s: %s (%s)%s", what, cudaGetErrorString(code), cudaGetErrorName(code),
             cuda->capturing ? ""
                             : "; hint: CUDA_LAUNCH_BLOCKING=1 in the environment makes the message name the call");
    keep_first_error(cuda, code, text);
    return false;
}

enum status cuda_device_check(struct device *device, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    pthread_mutex_lock(&cuda->mutex);
    struct error found = cuda->error;
    pthread_mutex_unlock(&cuda->mutex);
    if (found.code == STATUS_OK) return STATUS_OK;
    if (found.code == STATUS_PEER && device->examine) device->examine(device, &found);
    if (err) *err = found;
    return found.code;
}
