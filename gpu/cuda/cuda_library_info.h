/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_library_info.h: which of NVIDIA's libraries a build with CUDA finds, for `ztrain doctor` and messages. Their
 * functions are in cuda_libraries.h. */
#pragma once

#include <stdbool.h>

enum cuda_library { CUDA_LIBRARY_CUBLASLT, CUDA_LIBRARY_CUDNN, CUDA_LIBRARY_NCCL, CUDA_LIBRARY_COUNT };

struct cuda_library_info {
    const char *name; /* "cublasLt" */
    bool found;
    char version[32];    /* "13.0.1", if found */
    char built_with[32]; /* the header's */
    char path[512];      /* of the file, if found */
    char why[512];       /* if not found: the reason */
};

/* Whether this process has opened the library, and so may compute with it. */
bool cuda_library_is_open(enum cuda_library library);

/* Opens the library if it is not open yet. */
void cuda_library_describe(enum cuda_library library, struct cuda_library_info *info);
