/* SPDX-License-Identifier: Apache-2.0 */
/* token_stream.h: the samples of this rank in order, as micro-batches that a prefetching thread builds.
 *
 * Sample i, packed: tokens i·T … i·T+T of the stream (T inputs, the same shifted by one as targets). packing false:
 * sample i is document i, its first L = min(length, T) tokens: inputs 1 … L-1, targets 2 … L (L < 2: no sequence).
 * Order: step k = 1, 2, … of an epoch takes samples perm[(k-1)·B … k·B-1], B = train_batch_size, perm a keyed
 * permutation of the epoch's samples (seed, epoch), identity without shuffle; rank r of N takes the r-th equal part,
 * micro-batch by micro-batch. So the order does not depend on the world size, and the position is the global step. An
 * epoch is floor(samples / B) steps.
 *
 * turns > 1: a rank stands for that many virtual ranks of N × turns, each with its own equal part. It takes their
 * micro-batches in turns: the first of each, the second of each, …; in turn t rank r is virtual rank t·N + r.
 *
 * A mixture (mixture.h) has taken (k-1)·B samples before global step k. Its epochs are floor(epoch_samples / B) steps.
 *
 * With document_mask each document of a sample is a sequence of its own, with positions from 0 and no target for its
 * last token. Evaluation, packed, has one more sample for the tokens after the last whole one.
 *
 * If there is a loss mask, target i+1 of a sample is -1 if the mask of its token is 0, and counts in no sum.
 *
 * With classification sample i is document i, whole: its L <= T tokens are inputs, and one has the document's label as
 * its target. A longer document is STATUS_DATA.
 *
 * With preferences (a loss mask, document_mask and first_fit's samples are needed) a sample is two sequences
 * (sample_reader.h), and a target in the sense of num_targets. Rank r's micro-batch m of a step is the (m · N + r)-th
 * of its samples.
 *
 * A micro-batch is a row of sequences without padding between them (M tokens in all). packing false: filler, one last
 * sequence of token 0 without targets, rounds M up to token_multiple.
 *
 *     tokens     | sequence 0 ......... | sequence 1 ... | sequence 2 ............. | filler |
 *     seq_start  0                      s1               s2                         s3       s4 */
#pragma once

#include "core/data/mixture.h"
#include "core/training/settings.h"

struct token_stream_config {
    struct data_settings data;                    /* seq_length is T; evaluation: without shuffle */
    const struct mixture *mixture;                /* borrowed; training: takes the place of source; may be NULL */
    struct token_source source;                   /* borrowed */
    const struct preference_settings *preference; /* borrowed; NULL: samples are text */
    bool classification;                          /* the targets are the documents' labels; packing must be false */
    bool label_first;      /* classification: a document's first token has the target, else its last one */
    bool last_tokens;      /* a document's last token is an input too, without a target: routers count it */
    int64_t padding_token; /* classification: the last token is the last one that is not this one; -1: none */
    int64_t vocab_size;    /* ids are checked against it as they are read */
    uint64_t seed;
    int rank, world;
    int turns;                /* 0: 1 */
    int64_t batch_size;       /* B, global */
    int64_t micro_batch_size; /* sequences of one micro-batch; B = micro × accumulation × world × turns */
    int64_t token_multiple;   /* sequences of any length: M is a multiple of it (1: no filler); at most T */
    int64_t max_samples;      /* evaluation: the most samples in all, 0: no limit; training: 0 */
    int64_t first_sample;     /* evaluation: the pass begins with this sample; all samples: it is over */
    bool evaluation;          /* one pass in file order over all whole samples; the (virtual) ranks get micro-batches in
                               * turn, all the same number of them, some possibly with fewer or no sequences */
};

struct batch {
    int64_t step;         /* training: global step from 1; evaluation: 1 */
    int64_t epoch;        /* from 1 */
    int64_t micro;        /* this rank's micro-batch of the step (training) or of the pass (evaluation), from 0 */
    bool last_micro;      /* of the step or of the pass */
    int32_t num_seqs;     /* sequences, filler included */
    int32_t max_seq;      /* length of the longest sequence */
    int64_t num_filler;   /* tokens of the filler, the last ones */
    int64_t num_tokens;   /* M = seq_start[num_seqs]; 0 possible in evaluation and for empty documents */
    int64_t num_targets;  /* targets >= 0 here */
    int64_t step_targets; /* training: of the global batch, the divisor of a mean; may be 0 */
    int64_t step_tokens;  /* training: of the global batch without filler: B·T packed, else the sum of min(length, T)
                           * of its documents */
    int64_t step_chosen_tokens; /* pairs, training: of the global batch's chosen sequences, the targets of NLL */
    const int32_t *tokens;      /* (M) */
    const int32_t *targets;     /* (M), -1: none */
    const int32_t *positions;   /* (M) position in its sequence */
    const uint64_t *numbers;  /* (M) training: of the tokens, unique in the run and the same at any world size and micro
                               * batch: ((step - 1) · B + place of the sample in the step) · T + place in the sample */
    const int32_t *types;     /* (M) classification: 1 in the second text of a pair, else 0; otherwise NULL */
    const int32_t *seq_start; /* (num_seqs + 1) */

    /* Preferences, else NULL: of each token whether its target is the completion's; of each sequence the
     * log-probability by the reference (NULL: there is none) and the label of its document. */
    const uint8_t *completion; /* (M) */
    const double *references;  /* (num_seqs) */
    const int32_t *labels;     /* (num_seqs) */

    /* With a teacher, else NULL: its best next tokens, which rise, and their log-probabilities. */
    int64_t teacher_tokens;     /* K */
    const int32_t *teacher_ids; /* (M, K) */
    const float *teacher_logps; /* (M, K) */

    /* A mixture (else NULL), (sources), of the global batch: samples since the start; targets that count now. */
    const int64_t *source_samples, *source_targets;
};

struct token_stream;

/* Whether a sample is T + 1 tokens wherever documents end; whether each document of a sample is a sequence. */
static inline bool token_stream_cuts(const struct token_stream_config *config)
{
    return config->data.packing == SPEC_PACKING_CUT;
}
static inline bool token_stream_masks(const struct token_stream_config *config)
{
    return config->data.document_mask == SPEC_ON;
}

/* The largest M, num_seqs and max_seq of any micro-batch. */
struct batch_limits {
    int64_t max_tokens;
    int32_t max_seqs, max_seq;
    bool ragged; /* sequences may differ in length */
};

/* Of a stream with this configuration and any data (config->source is not used). */
struct batch_limits token_stream_limits(const struct token_stream_config *config);

/* STATUS_DATA: fewer samples than a global batch (evaluation: none). */
enum status token_stream_check(const struct token_stream_config *config, struct error *err);

/* Starts prefetching at global step `first_step` (from 1; evaluation: 1). Errors: token_stream_check(); STATUS_USAGE: a
 * micro-batch of 2^31 tokens or more; packing false and T < 2. */
enum status token_stream_open(const struct token_stream_config *config, int64_t first_step,
                              struct token_stream **stream, struct error *err);

/* The next micro-batch; its arrays stay valid until the next call. Training streams never end (epoch after epoch);
 * an evaluation stream sets *end after its last one. Errors: STATUS_DATA with file and offset. */
enum status token_stream_next(struct token_stream *stream, struct batch *batch, bool *end, struct error *err);

void token_stream_close(struct token_stream *stream);

/* A copy of a micro-batch in one piece of memory, for free(). It has no counts of a mixture's sources. */
struct batch *batch_copy(const struct batch *batch);

/* Samples of the set as the configuration packs it; of a mixture's epoch. */
int64_t token_stream_samples(const struct token_stream_config *config);

/* Steps of one epoch: floor(samples / B). */
int64_t token_stream_steps_per_epoch(const struct token_stream_config *config);

/* Samples of one source, packed as the configuration says. */
int64_t token_source_samples(const struct token_stream_config *config, const struct token_source *source);

/* The numbers, from 0, of the samples of global step `step` over all ranks, without reading data. config: of a training
 * stream; rank and world have no effect. samples: (batch_size). sources: (batch_size), 0 without a mixture. */
void token_stream_step_samples(const struct token_stream_config *config, int64_t step, int64_t *samples, int *sources);
