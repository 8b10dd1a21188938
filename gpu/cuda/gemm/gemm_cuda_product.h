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

#include "gpu/gemm_cache.h"
#include "gpu/ops.h"

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

/* `sums`: where the bias' gradient goes, or NULL. */
struct gemm_product gemm_product_fwd(const struct gemm_rules *rules, const struct linear_fwd_args *args);
struct gemm_product gemm_product_bwd_input(const struct gemm_rules *rules, const struct linear_bwd_input_args *args);
struct gemm_product gemm_product_bwd_weight(const struct gemm_rules *rules, const struct linear_bwd_weight_args *args,
                                            float *sums);

/* The same product without its epilogue. */
struct gemm_product gemm_product_without_epilogue(const struct gemm_product *product);
