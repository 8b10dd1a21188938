/* attention_cudnn_kernels.h: what attention through cuDNN needs next to cuDNN's kernels: the order of lse, the places
 * of ragged sequences, and the weights that dropout keeps.
 *
 * Launchers in the sense of ops_cuda.h: they enqueue work on the stream and return. */
#pragma once

#include "gpu/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* kept (B, H, T, ld) in dtype, a 16-bit one: 1 for the weights of the part that dropout keeps, 0 for the others. ld: a
 * multiple of 8. Of each sequence it writes whole tiles of ATTENTION_KEPT_TILE queries and keys, those that have a
 * visible pair. */
enum { ATTENTION_KEPT_TILE = 256 };
void attention_part_keep(struct stream *stream, const struct attention_part *part, const struct dropout *dropout,
                         enum dtype dtype, bool causal, void *kept, int64_t ld);

/* Fills `bytes` bytes, a multiple of 16, with NaN: what attention_part_keep() leaves out must not be read. */
void attention_part_spoil(struct stream *stream, void *kept, size_t bytes);

#ifdef __cplusplus
}
#endif
