/* gemm_cpu.h: which routine multiplies matrices on the CPU, and oneDNN's part of it.
 *
 * The built-in product (gemm_cpu_product.h) is within a tenth of the FMA peak with AVX2 and AVX-512, and with AVX-512's
 * bf16 instructions; it has a kernel for AMX too. oneDNN is needed where a CPU has only the baseline instruction set
 * (fp32). Which of the two it is, struct cpu_kernels says. C (m, n) (+)= op(A) (m, k) · op(B)
 * (k, n) + bias; everything is row-major. */
#ifndef ZTRAIN_GPU_CPU_GEMM_ONEDNN_H
#define ZTRAIN_GPU_CPU_GEMM_ONEDNN_H

#include "core/dtype.h"
#include "core/status.h"
#include "gpu/cpu/cpu_kernels.h"

#include <stdbool.h>
#include <stdint.h>

struct gemm_onednn;

/* Opens oneDNN if it is to compute products. STATUS_DEVICE: it cannot be used. */
enum status gemm_onednn_new(const struct cpu_kernels *kernels, struct gemm_onednn **gemm, struct error *err);
void gemm_onednn_free(struct gemm_onednn *gemm);

/* oneDNN's version ("2.6.3") and the instruction set that it computes with, as it counts them (0: it does not say).
 * STATUS_DEVICE: it is not here, or cannot be used. */
enum status gemm_onednn_version(char *version, size_t size, uint32_t *isa, struct error *err);

/* Whether products of this dtype go to gemm_onednn_multiply(); else the caller uses the built-in product. */
bool gemm_onednn_wants(const struct gemm_onednn *gemm, enum dtype dtype);

/* A is stored (k, m) if transpose_a, B (n, k) if transpose_b. ld: elements between stored rows. */
struct gemm_args {
    enum dtype dtype, c_dtype; /* of A, B and bias; of C */
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
    GEMM_UNSUPPORTED, /* nothing was computed: use the built-in product */
    GEMM_FAILED       /* oneDNN failed while it computed */
};
/* The first call with a new shape prepares it (milliseconds, and memory of the library's own). */
enum gemm_result gemm_onednn_multiply(struct gemm_onednn *gemm, const struct gemm_args *args);

#endif
