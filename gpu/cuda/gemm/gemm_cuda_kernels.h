/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_kernels.h: bias, GELU and sums of columns, where cublasLt has no epilogue for them. */
#pragma once

#include "core/dtype.h"
#include "gpu/cuda/device_cuda.h"

__BEGIN_DECLS

/* What follows a product that had no epilogue. linear_fwd: y += bias unless NULL; with aux: aux = y, then y is its
 * GELU. linear_bwd_input: dx *= GELU's derivative at gelu_aux. */
void cuda_bias_gelu(struct stream *stream, const struct linear_fwd_args *args);
void cuda_gelu_backward(struct stream *stream, const struct linear_bwd_input_args *args);

/* dbias of linear_bwd_weight from dy, without the null columns. scratch: cuda_bias_sums_bytes(args), with room for a
 * product's epilogue to put the sums of all N columns. */
void cuda_bias_sums(struct stream *stream, const struct linear_bwd_weight_args *args, void *scratch);
size_t cuda_bias_sums_bytes(const struct linear_bwd_weight_args *args);

/* dbias of linear_bwd_input, in an order that depends only on M and K; with gelu_aux, cuda_gelu_backward() in the same
 * pass. scratch: cuda_column_sums_bytes(M, K) (gpu/cuda/cuda_workspace.h). */
void cuda_column_sums(struct stream *stream, const struct linear_bwd_input_args *args, void *scratch);

/* grouped_linear_fwd by ztrain's kernel (gpu/cuda/ops/ops_cuda_grouped.cu). */
void cuda_grouped_own(struct stream *stream, const struct grouped_linear_fwd_args *args);

__END_DECLS
