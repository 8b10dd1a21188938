/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_libraries.h: NVIDIA's libraries, opened when they are needed, so that the binary runs without any of them. Each
 * library is a table of pointers to the functions that ztrain calls, typed by the library's own header, whose major
 * version it must have. It is opened once (gpu/library_places.h has the places) and stays open. A build without cuDNN's
 * or NCCL's header fails where it needs the library, with the message that it has none. */
#pragma once

#include "core/status.h"
#include "gpu/cuda/cuda_library_info.h"

#include <cublasLt.h>
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define ZTRAIN_HAVE_CUDNN 1
#else
#define ZTRAIN_HAVE_CUDNN 0
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#define ZTRAIN_HAVE_NCCL 1
#else
#define ZTRAIN_HAVE_NCCL 0
#endif

/* clang-format off */
#define CUBLASLT_FUNCTIONS(X) \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtGetStatusName) \
    X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate) \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) \
    X(cublasLtMatmulAlgoConfigGetAttribute) X(cublasLtMatmulAlgoCheck) X(cublasLtMatmul)

#define CUDNN_FUNCTIONS(X) \
    X(cudnnGetVersion) X(cudnnGetErrorString) X(cudnnGetLastErrorString) X(cudnnCreate) X(cudnnDestroy) \
    X(cudnnSetStream) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)

#define NCCL_FUNCTIONS(X) \
    X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) X(ncclCommInitRankConfig) \
    X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclAllGather) \
    X(ncclReduceScatter) X(ncclSend) X(ncclRecv) X(ncclGroupStart) X(ncclGroupEnd)

/* Of NCCL 2.19 and 2.27: NULL in an older library (comm/transport_nccl.c). */
#define NCCL_MEMORY_FUNCTIONS(X) \
    X(ncclMemAlloc) X(ncclMemFree) X(ncclCommRegister) X(ncclCommDeregister) X(ncclCommWindowRegister) \
    X(ncclCommWindowDeregister)
/* clang-format on */

#if ZTRAIN_HAVE_NCCL && NCCL_VERSION_CODE < 22700 /* as later headers declare them */
#define NCCL_WIN_COLL_SYMMETRIC 0x01
typedef struct ncclWindow *ncclWindow_t;
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
#endif

#define CUDA_LIBRARY_MEMBER(name) __typeof__(&name) name;
struct cublaslt_functions {
    CUBLASLT_FUNCTIONS(CUDA_LIBRARY_MEMBER)
};
#if ZTRAIN_HAVE_CUDNN
struct cudnn_functions {
    CUDNN_FUNCTIONS(CUDA_LIBRARY_MEMBER)
};
#endif
#if ZTRAIN_HAVE_NCCL
struct nccl_functions {
    NCCL_FUNCTIONS(CUDA_LIBRARY_MEMBER)
    NCCL_MEMORY_FUNCTIONS(CUDA_LIBRARY_MEMBER)
};
#endif
#undef CUDA_LIBRARY_MEMBER

/* The library's functions, borrowed for the life of the process. STATUS_DEVICE names the file that was needed and the
 * one that was found. Any thread. */
enum status cublaslt_open(const struct cublaslt_functions **functions, struct error *err);
#if ZTRAIN_HAVE_CUDNN
enum status cudnn_open(const struct cudnn_functions **functions, struct error *err);
#endif
#if ZTRAIN_HAVE_NCCL
enum status nccl_open(const struct nccl_functions **functions, struct error *err);
#endif
