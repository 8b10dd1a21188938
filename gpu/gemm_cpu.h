/* gemm_cpu.h: matrix products on the CPU: C (m, n) (+)= op(A) (m, k) · op(B) (k, n), all row-major. */
#ifndef ZTRAIN_GPU_GEMM_CPU_H
#define ZTRAIN_GPU_GEMM_CPU_H

#include "core/dtype.h"
#include "core/status.h"
#include "gpu/cpuid.h"

#include <stdbool.h>
#include <stdint.h>

struct gemm;

/* Opens the library. ZTRAIN_CPU_GEMM=builtin|onednn chooses; unset: oneDNN where it is installed. */
enum status gemm_new(const struct cpu_features *features, int threads, struct gemm **gemm, struct error *err);
void gemm_free(struct gemm *gemm);

/* "oneDNN 2.6.3" or "builtin" */
const char *gemm_description(const struct gemm *gemm);

/* A is stored (k, m) if transpose_a, B (n, k) if transpose_b. ld: elements between stored rows. */
struct gemm_f32_args {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool accumulate;
};
void gemm_f32(struct gemm *gemm, const struct gemm_f32_args *args);

#endif
