/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_product.h: the linear ops as matrix products of cublasLt.
 *
 * cublasLt counts matrices column by column, so a row-major (rows, columns) matrix is its (columns, rows) one:
 *
 *     op                  D            =  A                 · B            epilogue
 *     linear_fwd          y  (N, M)    =  W (N, K)          · x  (K, M)    bias, GELU with its input kept
 *     linear_bwd_input    dx (K, M)    =  Wᵀ (K, N)         · dy (N, M)    derivative of GELU
 *     linear_bwd_weight   dw (K, N)    =  x (K, M)          · dyᵀ (M, N)   sums of B over M: the bias' gradient
 *       weights_in_out    dw (N, K)    =  dy (N, M)         · xᵀ (M, K)    sums of A over M */
#pragma once

#include "gpu/autotune_cache.h"
#include "gpu/ops.h"

/* What happens to a product before it is stored. */
enum gemm_epilogue {
    GEMM_PLAIN,
    GEMM_BIAS,          /* + a bias for each row */
    GEMM_GELU_AUX,      /* the product goes to aux, its GELU to D */
    GEMM_GELU_AUX_BIAS, /* both */
    GEMM_DGELU,         /* times the derivative of GELU at aux */
    GEMM_BGRADA,        /* also the sums of A over k */
    GEMM_BGRADB,        /* also the sums of B over k */
    GEMM_SWIGLU,        /* SiLU of a gate in memory times the product is stored as well: by cuDNN */
    GEMM_DSWIGLU,       /* the product is the gradient of SwiGLU, and that of gate and up is stored: by cuDNN */
    GEMM_GROUPED,       /* A has a matrix for each of ld_aux experts, by which the n columns are grouped: by cuDNN */
    GEMM_EPILOGUE_COUNT
};

/* How a product with an epilogue is computed. The numbers are those of the cache on disk. */
enum gemm_fusion {
    GEMM_UNTUNED, /* the two were not timed against each other, or there is no epilogue */
    GEMM_FUSED,   /* by the epilogue */
    GEMM_UNFUSED, /* by the product without it, and a kernel */
    GEMM_FUSION_COUNT
};

/* D (m, n) = op(A) · op(B), or D + op(A) · op(B); column-major. The best kernel depends on these members only. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldd, ld_aux;
    int64_t transpose_a, transpose_b;
    int64_t input, output; /* enum dtype of A and B, of D */
    int64_t epilogue;      /* enum gemm_epilogue */
    int64_t accumulate, tf32;
    int64_t workspace;                              /* bytes that the kernel may use */
    int64_t sm_target;                              /* multiprocessors that it may use; 0: all */
    int64_t align_a, align_b, align_d, align_extra; /* of the pointers, in bytes; 16 or more: 16 */
    int64_t cudnn; /* the version of cuDNN, 91900 for 9.19.0, with epilogues of cuDNN's; else 0 */
};
enum { GEMM_KEY_FIELDS = sizeof(struct gemm_key) / sizeof(int64_t) };
struct autotune_key gemm_autotune_key(const struct gemm_key *key);

/* One call of cublasLtMatmul. All pointers are borrowed device memory. */
struct gemm_product {
    struct gemm_key key; /* shape, types, epilogue, and the alignments of the pointers */
    const void *a, *b;
    void *d;
    void *vector; /* the bias that is read, or the sums that BGRADA and BGRADB leave; else NULL */
    void *aux;    /* GELU's input, written or read; else NULL */
};

/* What all products have in common. */
struct gemm_rules {
    bool tf32;        /* products of fp32 use TF32 */
    size_t workspace; /* bytes that a kernel may use */
    int sm_target;    /* multiprocessors that it may use; 0: all */
};

/* A linear op: one of the four. */
struct gemm_op {
    const struct linear_fwd_args *fwd;
    const struct linear_bwd_input_args *bwd_input;
    const struct linear_bwd_weight_args *bwd_weight;
    const struct grouped_linear_fwd_args *grouped;
};

/* The announced op of this number, from 0; false: no more. Pointers only count as NULL or not, and aligned. */
bool gemm_op_at(const struct linear_products *products, int number, struct gemm_op *op);

/* `sums`: where the bias' gradient goes, or NULL. */
struct gemm_product gemm_product_fwd(const struct gemm_rules *rules, const struct linear_fwd_args *args);
struct gemm_product gemm_product_bwd_input(const struct gemm_rules *rules, const struct linear_bwd_input_args *args);
struct gemm_product gemm_product_bwd_weight(const struct gemm_rules *rules, const struct linear_bwd_weight_args *args,
                                            float *sums);

/* The product of an announced op. A bias gradient that is accumulated is as aligned as the op's scratch memory. */
struct gemm_product gemm_product_of(const struct gemm_rules *rules, const struct gemm_op *op);

/* The same product without its epilogue. */
struct gemm_product gemm_product_without_epilogue(const struct gemm_product *product);
