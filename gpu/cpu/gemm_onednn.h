/* gemm_onednn.h: matrix products by oneDNN.
 *
 * struct cpu_kernels decides, for each dtype, between oneDNN and the built-in product (gemm_cpu_product.h). The
 * built-in product reaches nine tenths of the FMA peak with AVX2, AVX-512 and AVX-512's bf16 instructions, and has a
 * kernel for AMX; oneDNN is needed for fp32 on CPUs that have the baseline instruction set only. */
#pragma once

#include "core/dtype.h"
#include "core/status.h"
#include "gpu/cpu/cpu_kernels.h"

#include <stdbool.h>
#include <stdint.h>

struct gemm_onednn;

/* Opens oneDNN if `kernels` use it for any dtype; gemm_onednn_free() releases it (NULL is allowed). STATUS_DEVICE:
 * oneDNN cannot be used. */
enum status gemm_onednn_new(const struct cpu_kernels *kernels, struct gemm_onednn **gemm, struct error *err);
void gemm_onednn_free(struct gemm_onednn *gemm);

/* Returns oneDNN's version ("2.6.3") and its number of the instruction set that it uses (0: unknown). STATUS_DEVICE: it
 * is not installed, or cannot be used. */
enum status gemm_onednn_version(char *version, size_t size, uint32_t *isa, struct error *err);

/* Whether products of this dtype go to gemm_onednn_multiply(); else the caller uses the built-in product. */
bool gemm_onednn_wants(const struct gemm_onednn *gemm, enum dtype dtype);

/* C (m, n) (+)= op(A) (m, k) · op(B) (k, n) + bias, all row-major. A is stored (k, m) if transpose_a, B (n, k) if
 * transpose_b. lda, ldb, ldc: elements between stored rows. */
struct gemm_args {
    enum dtype dtype, c_dtype; /* dtype of A, B and bias; of C */
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb;
    void *c;
    int64_t ldc;
    const void *bias; /* (n) or NULL; bf16 only */
    bool accumulate;
    void *scratch; /* 64-byte aligned */
    size_t scratch_bytes;
};

enum gemm_result {
    GEMM_DONE,
    GEMM_UNSUPPORTED, /* nothing was computed: the caller uses the built-in product */
    GEMM_FAILED       /* oneDNN failed while it computed */
};
/* Computes a product. The first call with a new shape prepares it, which takes milliseconds and allocates memory in the
 * library. */
enum gemm_result gemm_onednn_multiply(struct gemm_onednn *gemm, const struct gemm_args *args);
