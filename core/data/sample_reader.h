/* SPDX-License-Identifier: Apache-2.0 */
/* sample_reader.h: reads one sample at a time, as the documents or windows that its sequences are made of.
 *
 *     tokens   | document ... | document ..... | document . |
 *     mask     | 0 0 1 1 ...  | ...
 *     ends                    ^ 0              ^ 1          ^ 2
 *
 * Without document_mask there is one end. With preferences a sample has two: of a chosen and a rejected document or,
 * for KTO, of a document and a mismatched one, its prompt with the completion of the sample before it among those that
 * a micro-batch holds in file order. Only the thread of the token stream uses a reader. */
#pragma once

#include "core/data/token_stream.h"

struct sample_reader {
    const struct token_stream_config *config; /* borrowed */
    const struct token_source *source;        /* borrowed; of the sample that is read */
    int32_t *tokens;                          /* (sample_reader_room()) borrowed */
    uint8_t *mask;                            /* the same: the loss mask; NULL: every target counts */
    int32_t *ends;                            /* the same: where the sequences end, one or one a document */
    int num_ends;
    int32_t *teacher_ids; /* (sample_reader_room(), K) owned by the stream, as the next; NULL: there is no teacher */
    float *teacher_logps;
};

/* Tokens that a reader has room for: T + 1; with preferences those of three documents. */
static inline int64_t sample_reader_room(const struct token_stream_config *config)
{
    return (config->preference ? 3 : 1) * config->data.seq_length + 1;
}

/* Reads a sample's documents: *length tokens; notes where sequences end. read_tokens false: mask and ends only. */
enum status sample_read(struct sample_reader *reader, int64_t sample, bool read_tokens, int64_t *length,
                        struct error *err);

/* The targets that count in the sample that was read last. The first token of each of its sequences is not a target. */
int64_t sample_targets(const struct sample_reader *reader);
