/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_libraries.cc: the dynamic linker as the emulated machine has it: NVIDIA's libraries are this program itself.
 *
 * ZTRAIN_EMULATION_WITHOUT: the file name of a library that is missing (libnccl.so.2); ZTRAIN_EMULATION_LACKS: a function
 * that is missing in a library, as in an older version. ZTRAIN_EMULATION_NVML: emulation_nvml.cc. */
#include "emulation_queue.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

extern "C" {
void *__real_dlopen(const char *file, int flags);
void *__real_dlsym(void *handle, const char *symbol);
void *__wrap_dlopen(const char *file, int flags);
void *__wrap_dlsym(void *handle, const char *symbol);

void *__wrap_dlopen(const char *file, int flags)
{
    static const char *const here[] = {"libcublasLt.so." TEXT(CUBLAS_VER_MAJOR), "libnccl.so.2", "libcudnn.so.9"};
    const char *absent = getenv("ZTRAIN_EMULATION_WITHOUT");
    const char *slash = file ? strrchr(file, '/') : nullptr, *name = slash ? slash + 1 : file;
    if (name && !strncmp(name, "libnvidia-ml.", 13) && getenv("ZTRAIN_EMULATION_NVML"))
        return __real_dlopen(nullptr, flags);
    bool emulated = name && (!strncmp(name, "libcublasLt.", 12) || !strncmp(name, "libnccl.", 8) ||
                             !strncmp(name, "libcudnn.", 9));
    if (!emulated)
        return __real_dlopen(file, flags);
    emulation::be_slow(name);
    for (const char *there : here)
        if (!strcmp(name, there) && (!absent || strcmp(absent, there) != 0))
            return __real_dlopen(nullptr, flags);
    return __real_dlopen("/nowhere/of/the/emulated/machine", flags);
}

void *__wrap_dlsym(void *handle, const char *symbol)
{
    const char *lacks = getenv("ZTRAIN_EMULATION_LACKS");
    return lacks && !strcmp(lacks, symbol) ? nullptr : __real_dlsym(handle, symbol);
}
}
