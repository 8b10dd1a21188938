/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_kernels.h: bias, GELU and sums of columns, where cublasLt has no epilogue for them. */
#pragma once

#include "core/dtype.h"
#include "gpu/cuda/device_cuda.h"

__BEGIN_DECLS

/* y (M, N; y_dtype; rows ld_y apart) += bias (N; dtype) unless NULL; with aux (M, N; dtype): aux = y, then y =
 * gelu_tanh(y), or gelu_erf(y). */
void cuda_bias_gelu(struct stream *stream, int64_t M, int64_t N, void *y, enum dtype y_dtype, int64_t ld_y,
                    const void *bias, void *aux, bool erf_form, enum dtype dtype);

/* dx (n; dtype) *= gelu_tanh'(aux (n; dtype)), or gelu_erf'(aux) */
void cuda_gelu_backward(struct stream *stream, int64_t n, void *dx, const void *aux, bool erf_form, enum dtype dtype);

/* dbias of linear_bwd_weight from dy, without the null columns. scratch: cuda_bias_sums_bytes(args), with room for a
 * product's epilogue to put the sums of all N columns. */
void cuda_bias_sums(struct stream *stream, const struct linear_bwd_weight_args *args, void *scratch);
size_t cuda_bias_sums_bytes(const struct linear_bwd_weight_args *args);

/* sums (N) (+)= sums of x (M, N; dtype; rows ld apart) over its rows, in an order that depends only on M and N; with
 * aux, whose rows are as far apart, x is first multiplied as cuda_gelu_backward() does. scratch:
 * cuda_column_sums_bytes(M, N) (gpu/cuda/cuda_workspace.h). */
void cuda_column_sums(struct stream *stream, int64_t M, int64_t N, void *x, int64_t ld, const void *aux, bool erf_form,
                      enum dtype dtype, float *sums, bool accumulate, void *scratch);

/* grouped_linear_fwd by ztrain's kernel (gpu/cuda/ops/ops_cuda_grouped.cu). */
void cuda_grouped_own(struct stream *stream, const struct grouped_linear_fwd_args *args);

/* sums (n) += x (n) */
void cuda_add_f32(struct stream *stream, int64_t n, float *sums, const float *x);

__END_DECLS
