/* SPDX-License-Identifier: Apache-2.0 */
/* absent_driver.c: the part of NVIDIA's driver library that cuDNN needs to make plans where there is no GPU.
 *
 * Built as libcuda.so.1, for cudnn_plans.c. cuDNN compiles its kernels and loads them before a plan is complete: here
 * loading succeeds and does nothing, and the name of the last kernel is kept: it tells for which GPUs cuDNN made it.
 * Calls that ask for a GPU, or for work on one, fail because there is none. The header is not included: its macros
 * rename some of these functions. */
#include <stddef.h>
#include <stdio.h>

enum { SUCCESS = 0, NO_DEVICE = 100 };

/* Functions that cuDNN looks up, but must not need. */
#define ABSENT_FUNCTIONS(X)               \
    X(cuInit)                             \
    X(cuDeviceGetCount)                   \
    X(cuDeviceGet)                        \
    X(cuCtxGetCurrent)                    \
    X(cuCtxGetLimit)                      \
    X(cuCtxPopCurrent)                    \
    X(cuCtxPushCurrent)                   \
    X(cuStreamGetCtx)                     \
    X(cuLinkCreate)                       \
    X(cuLinkAddData)                      \
    X(cuLinkComplete)                     \
    X(cuLinkDestroy)                      \
    X(cuLibraryLoadFromFile)              \
    X(cuKernelGetAttribute)               \
    X(cuOccupancyMaxPotentialClusterSize) \
    X(cuLaunchKernel)                     \
    X(cuLaunchKernelEx)                   \
    X(cuLaunchCooperativeKernel)
#define ABSENT(name)      \
    int name(void);       \
    int name(void)        \
    {                     \
        return NO_DEVICE; \
    }
ABSENT_FUNCTIONS(ABSENT)

int cuDriverGetVersion(int *version);
int cuGetErrorName(int error, const char **name);
int cuGetErrorString(int error, const char **text);
int cuLibraryLoadData(void **library, const void *code, void *jit_options, void **jit_values, unsigned num_jit_options,
                      void *options, void **values, unsigned num_options);
int cuLibraryUnload(void *library);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuKernelGetFunction(void **function, void *kernel);
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuFuncGetAttribute(int *value, int attribute, void *function);

const char *absent_driver_kernel(void); /* the last one that was asked for; "" before */

static char something; /* any address will do: nothing reads there */
static char last_kernel[256];

const char *absent_driver_kernel(void)
{
    return last_kernel;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_NO_DEVICE";
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == SUCCESS ? "no error" : "there is no GPU";
    return SUCCESS;
}

int cuLibraryLoadData(void **library, const void *code, void *jit_options, void **jit_values, unsigned num_jit_options,
                      void *options, void **values, unsigned num_options)
{
    (void)code, (void)jit_options, (void)jit_values, (void)num_jit_options, (void)options, (void)values;
    (void)num_options;
    *library = &something;
    return SUCCESS;
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library;
    snprintf(last_kernel, sizeof last_kernel, "%s", name);
    *kernel = &something;
    return SUCCESS;
}

int cuKernelGetFunction(void **function, void *kernel)
{
    (void)kernel;
    *function = &something;
    return SUCCESS;
}

int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)attribute, (void)function;
    *value = 0;
    return SUCCESS;
}
