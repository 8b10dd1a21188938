/* SPDX-License-Identifier: Apache-2.0 */
/* attention_kernels.h: ztrain's kernels for attention, and what attention through cuDNN needs next to cuDNN's. */
#pragma once

#include "gpu/ops.h"

__BEGIN_DECLS

/* The ops attention_fwd and attention_bwd of ops.h, for every shape and dtype. */
void attention_own_fwd(struct stream *stream, const struct attention_fwd_args *args);
void attention_own_bwd(struct stream *stream, const struct attention_bwd_args *args);

/* The B sequences from `first` on of a micro-batch, for cuDNN; those after its last one are empty. */
struct attention_part {
    const int32_t *seq_start; /* (num_seqs + 1) */
    int64_t M, num_seqs, first, B, H, T;
};

/* lengths (int32 (B)): the tokens of each sequence. offsets (int64 (count, pitch)): seq_start (B + 1) by stride. */
enum { ATTENTION_PART_STRIDES = 7 };
void attention_part_describe(struct stream *stream, const struct attention_part *part, int32_t *lengths,
                             int64_t *offsets, int64_t pitch, const int64_t *strides, int count);

/* to_sequences: padded (B, H, T; float) = the part's lse (H, M; float), 0 after a sequence's end; else the reverse. */
void attention_part_lse(struct stream *stream, const struct attention_part *part, float *lse, float *padded, bool back);

/* to_padded: padded (B, T, width; 16 bits) = the part's rows, 0 after a sequence's end; else the reverse. width and ld:
 * multiples of 8. */
void attention_part_rows(struct stream *stream, const struct attention_part *part, void *rows, int64_t ld, void *padded,
                         int64_t width, bool to_padded);

/* kept (B, H, T, ld) in a 16-bit dtype: 1 for weights that dropout keeps, else 0. ld: a multiple of 8. Of each sequence
 * only the tiles of ATTENTION_KEPT_TILE queries and keys that have a visible pair are written. */
enum { ATTENTION_KEPT_TILE = 256 };
void attention_part_keep(struct stream *stream, const struct attention_part *part, const struct dropout *dropout,
                         enum dtype dtype, bool causal, void *kept, int64_t ld);

__END_DECLS
