/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_libraries.c: opens the libraries of cuda_libraries.h, and says what is wrong with one that is missing. */
#include "gpu/cuda/cuda_libraries.h"

#include "core/core.h"
#include "gpu/library_places.h"

#include <dlfcn.h>

#define NUMBER_TEXT_(n) #n
#define NUMBER_TEXT(n) NUMBER_TEXT_(n)
#define LIBRARY_SYMBOL(function) #function,

static const char *const cublaslt_symbols[] = {CUBLASLT_FUNCTIONS(LIBRARY_SYMBOL)};
static struct cublaslt_functions cublaslt;
#if ZTRAIN_HAVE_CUDNN
static const char *const cudnn_symbols[] = {CUDNN_FUNCTIONS(LIBRARY_SYMBOL)};
static struct cudnn_functions cudnn;
#endif
#if ZTRAIN_HAVE_NCCL
static const char *const nccl_symbols[] = {NCCL_FUNCTIONS(LIBRARY_SYMBOL) NCCL_MEMORY_FUNCTIONS(LIBRARY_SYMBOL)};
#define LIBRARY_COUNT(function) +1
static struct nccl_functions nccl;
#endif

/* One library: its names, and the functions that it must have. */
struct library {
    const char *name;
    const char *file;       /* the soname: its number is that of the headers */
    const char *built_with; /* version of the headers; NULL: built without them */
    const char *other[2];   /* sonames of other major versions, for a message that names the one found */
    const char *const *symbols;
    int count, optional; /* the last `optional` of them are NULL where the library lacks them */
    void **functions;    /* (count) */
    bool tried, found;
    struct error error;
};

static struct library libraries[CUDA_LIBRARY_COUNT] = {
    [CUDA_LIBRARY_CUBLASLT] = {.name = "cublasLt",
                               .file = "libcublasLt.so." NUMBER_TEXT(CUBLAS_VER_MAJOR),
                               .built_with = NUMBER_TEXT(CUBLAS_VER_MAJOR) "." NUMBER_TEXT(
                                   CUBLAS_VER_MINOR) "." NUMBER_TEXT(CUBLAS_VER_PATCH),
                               .other = {"libcublasLt.so.12", "libcublasLt.so.13"},
                               .symbols = cublaslt_symbols,
                               .count = (int)COUNT_OF(cublaslt_symbols),
                               .functions = (void **)&cublaslt},
#if ZTRAIN_HAVE_CUDNN
    [CUDA_LIBRARY_CUDNN] = {.name = "cuDNN",
                            .file = "libcudnn.so." NUMBER_TEXT(CUDNN_MAJOR),
                            .built_with =
                                NUMBER_TEXT(CUDNN_MAJOR) "." NUMBER_TEXT(CUDNN_MINOR) "." NUMBER_TEXT(CUDNN_PATCHLEVEL),
                            .other = {"libcudnn.so.8", "libcudnn.so.9"},
                            .symbols = cudnn_symbols,
                            .count = (int)COUNT_OF(cudnn_symbols),
                            .functions = (void **)&cudnn},
#else
    [CUDA_LIBRARY_CUDNN] = {.name = "cuDNN"},
#endif
#if ZTRAIN_HAVE_NCCL
    [CUDA_LIBRARY_NCCL] = {.name = "NCCL",
                           .file = "libnccl.so." NUMBER_TEXT(NCCL_MAJOR),
                           .built_with =
                               NUMBER_TEXT(NCCL_MAJOR) "." NUMBER_TEXT(NCCL_MINOR) "." NUMBER_TEXT(NCCL_PATCH),
                           .symbols = nccl_symbols,
                           .count = (int)COUNT_OF(nccl_symbols),
                           .optional = 0 NCCL_MEMORY_FUNCTIONS(LIBRARY_COUNT),
                           .functions = (void **)&nccl},
#else
    [CUDA_LIBRARY_NCCL] = {.name = "NCCL"},
#endif
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects `libraries` */

static enum status bind_library(struct library *library)
{
    char why[512];
    void *handle = library_places_open(library->file, why, sizeof why);
    if (!handle) {
        error_set(&library->error, STATUS_DEVICE, "cannot open %s %s: %s", library->name, library->file, why);
        for (size_t i = 0; i < COUNT_OF(library->other); i++) {
            const char *other = library->other[i];
            if (!other || !strcmp(other, library->file) || !(handle = library_places_open(other, why, sizeof why)))
                continue;
            dlclose(handle);
            error_set(&library->error, STATUS_DEVICE, "cannot open %s %s: this machine has another version, %s",
                      library->name, library->file, other);
        }
        return error_hint(&library->error, "install %s %s, or name the folder of %s in ZTRAIN_CUDA_LIBRARIES",
                          library->name, library->built_with, library->file);
    }
    for (int i = 0; i < library->count; i++) {
        library->functions[i] = dlsym(handle, library->symbols[i]);
        if (!library->functions[i] && i < library->count - library->optional) {
            error_set(&library->error, STATUS_DEVICE, "%s %s lacks the function %s: it is older than ztrain needs",
                      library->name, library->file, library->symbols[i]);
            dlclose(handle);
            return error_hint(&library->error, "install %s %s or newer", library->name, library->built_with);
        }
    }
    return STATUS_OK;
}

static enum status library_open(enum cuda_library which, struct error *err)
{
    struct library *library = &libraries[which];
    LOCKED(&mutex);
    if (!library->tried) {
        library->tried = true;
        if (library->built_with) {
            SLOW("loading", library->name, -1); /* some libraries are large, on network disks */
            library->found = bind_library(library) == STATUS_OK;
        } else {
            error_set(&library->error, STATUS_DEVICE, "this build of ztrain has no %s: it was built without its header",
                      library->name);
        }
    }
    return library->found ? STATUS_OK : error_set(err, library->error.code, "%s", library->error.text);
}

bool cuda_library_is_open(enum cuda_library library)
{
    LOCKED(&mutex);
    return libraries[library].found;
}

enum status cublaslt_open(const struct cublaslt_functions **functions, struct error *err)
{
    *functions = &cublaslt;
    return library_open(CUDA_LIBRARY_CUBLASLT, err);
}

#if ZTRAIN_HAVE_CUDNN
enum status cudnn_open(const struct cudnn_functions **functions, struct error *err)
{
    *functions = &cudnn;
    return library_open(CUDA_LIBRARY_CUDNN, err);
}
#endif

#if ZTRAIN_HAVE_NCCL
enum status nccl_open(const struct nccl_functions **functions, struct error *err)
{
    *functions = &nccl;
    return library_open(CUDA_LIBRARY_NCCL, err);
}
#endif

/* "major.minor.patch", by the library's own function. */
static void describe_version(enum cuda_library which, char *text, size_t size)
{
    long version = 0;
    if (which == CUDA_LIBRARY_CUBLASLT) version = (long)cublaslt.cublasLtGetVersion();
#if ZTRAIN_HAVE_CUDNN
    if (which == CUDA_LIBRARY_CUDNN) version = (long)cudnn.cudnnGetVersion();
#endif
#if ZTRAIN_HAVE_NCCL
    int number;
    if (which == CUDA_LIBRARY_NCCL && nccl.ncclGetVersion(&number) == ncclSuccess) version = number;
#endif
    snprintf(text, size, "%ld.%ld.%ld", version / 10000, version / 100 % 100, version % 100);
}

void cuda_library_describe(enum cuda_library which, struct cuda_library_info *info)
{
    const struct library *library = &libraries[which];
    struct error err;
    *info = (struct cuda_library_info){.name = library->name};
    snprintf(info->built_with, sizeof info->built_with, "%s", library->built_with ? library->built_with : "none");
    info->found = library_open(which, &err) == STATUS_OK;
    if (!info->found) {
        snprintf(info->why, sizeof info->why, "%.*s", (int)sizeof info->why - 1, err.text);
        return;
    }
    Dl_info place;
    if (dladdr(library->functions[0], &place) && place.dli_fname)
        snprintf(info->path, sizeof info->path, "%.*s", (int)sizeof info->path - 1, place.dli_fname);
    describe_version(which, info->version, sizeof info->version);
}
