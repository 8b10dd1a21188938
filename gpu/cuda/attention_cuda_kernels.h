/* attention_cuda_kernels.h: ztrain's kernels for attention, for every shape and dtype, and the order of lse for cuDNN.
 *
 * Launchers in the sense of ops_cuda.h: they enqueue work on the stream and return. */
#ifndef ZTRAIN_GPU_CUDA_ATTENTION_CUDA_KERNELS_H
#define ZTRAIN_GPU_CUDA_ATTENTION_CUDA_KERNELS_H

#include "gpu/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops attention_fwd and attention_bwd of ops.h. */
void attention_own_fwd(struct stream *stream, const struct attention_fwd_args *args);
void attention_own_bwd(struct stream *stream, const struct attention_bwd_args *args);

/* lse (float) from the order of ops, (H, B * T), to the order of cuDNN, (B, H, T), and back. */
void attention_lse_by_sequence(struct stream *stream, float *by_sequence, const float *lse, int64_t B, int64_t H,
                               int64_t T);
void attention_lse_by_head(struct stream *stream, float *lse, const float *by_sequence, int64_t B, int64_t H,
                           int64_t T);

/* A part of the sequences of a ragged micro-batch, for cuDNN: the B sequences from `first` on. Those after the last one
 * of the micro-batch are empty. */
struct attention_part {
    const int32_t *seq_start; /* (num_seqs + 1) */
    int64_t M, num_seqs, first, B, H, T;
};

/* lengths (int32 (B)): the tokens of each sequence. offsets (int64 (count, pitch)): the B + 1 values of seq_start times
 * each of the strides. */
enum { ATTENTION_PART_STRIDES = 7 };
void attention_part_describe(struct stream *stream, const struct attention_part *part, int32_t *lengths,
                             int64_t *offsets, int64_t pitch, const int64_t *strides, int count);

/* lse (float) of the part, from the order of ops, (H, M), to (B, H, T), with 0 after the end of a sequence, and back.
 */
void attention_part_load_lse(struct stream *stream, const struct attention_part *part, float *by_sequence,
                             const float *lse);
void attention_part_store_lse(struct stream *stream, const struct attention_part *part, float *lse,
                              const float *by_sequence);

#ifdef __cplusplus
}
#endif

#endif
