/* data.h: from token shards to micro-batches.
 *
 * token_set: one or more shard files as one stream of tokens and documents, opened and checked by their headers only.
 *   Megatron-LM: PREFIX.bin (tokens) + PREFIX.idx ("MMIDIDX\0\0", version 1, dtype code 8 uint16 | 4 int32, sizes,
 *   pointers, document index); llm.c: one .bin with a 1024-byte header (magic 20240520 uint16, 20240801 uint32).
 * token_stream: the samples of this rank in order, built by a prefetching thread.
 *
 * Sample i, packed: tokens i·T … i·T+T of the stream (T inputs, the same shifted by one as targets). packing false:
 * sample i is document i, its first L = min(length, T) tokens: inputs are tokens 1 … L-1, targets tokens 2 … L (token L
 * has no target and nothing attends to it, so it is not computed; a document with L < 2 gives no sequence).
 * Order: step k = 1, 2, … of an epoch takes samples perm[(k-1)·B … k·B-1], B = train_batch_size, perm a
 * keyed permutation of the epoch's samples (seed, epoch), identity without shuffle; rank r of N takes the r-th equal
 * part, micro-batch by micro-batch. So the order never depends on the world size, and the position is (epoch, step in
 * the epoch): both follow from the global step. An epoch is floor(samples / B) steps, the permutation is new in each.
 *
 * A micro-batch is a row of sequences without padding between them (M tokens in all):
 *
 *     tokens     | sequence 0 ......... | sequence 1 ... | sequence 2 ............. | filler |
 *     seq_start  0                      s1               s2                         s3       s4
 *
 * packing false: sequences have L-1 tokens, and filler (one last sequence of token 0 without targets) rounds M up to
 * token_multiple. Packed: every sequence has T tokens. */
#ifndef ZTRAIN_CORE_DATA_H
#define ZTRAIN_CORE_DATA_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct token_set;

/* Opens shard files: `patterns` as the spec has them (Megatron prefix with or without .bin/.idx, llm.c .bin, glob; a
 * glob's matches sorted), one stream in the order given. Of a glob's matches those ending in .bin or .idx are taken, a
 * shard matched by both once; a shard named by two patterns is refused. Reads headers and checks sizes, never all
 * tokens; an index up to TOKEN_INDEX_CHECKED bytes is checked as a whole, of a larger one the ends now and each
 * document when it is looked up. Errors (STATUS_DATA) name file and offset. A set may be read by several threads. */
#define TOKEN_INDEX_CHECKED (INT64_C(64) << 20)

enum status token_set_open(const char *const *patterns, int num_patterns, struct token_set **set, struct error *err);
void token_set_close(struct token_set *set);
int64_t token_set_tokens(const struct token_set *set);
int64_t token_set_documents(const struct token_set *set); /* of Megatron files; an llm.c file counts as one */

/* Reads `count` tokens from token `first` of the stream on into out (count); first + count <= token_set_tokens().
 * Ids outside [0, vocab_size): STATUS_DATA with file, byte offset, id and vocabulary size. */
enum status token_set_read(const struct token_set *set, int64_t first, int64_t count, int64_t vocab_size, int32_t *out,
                           struct error *err);

/* Reads the first tokens of every shard, so that a set which was made for another vocabulary is found out before
 * anything is computed. *fingerprint, unless NULL: of these and of the shards' sizes, in order, by which data that were
 * replaced are known; not by their names. Errors as token_set_read(). */
enum status token_set_check(const struct token_set *set, int64_t vocab_size, uint64_t *fingerprint, struct error *err);

/* The path of a file that both sets were opened with, as written; NULL: none. */
const char *token_set_common(const struct token_set *a, const struct token_set *b);

/* Where document `index` < token_set_documents() lies in the stream, from the index alone. length may be 0. */
enum status token_set_document(const struct token_set *set, int64_t index, int64_t *first, int64_t *length,
                               struct error *err);

/* Number of samples of a set: (tokens - 1) / T packed, else documents. */
int64_t token_set_samples(const struct token_set *set, int64_t seq_length, bool packing);

struct token_stream_config {
    struct token_set *set; /* borrowed */
    int64_t seq_length;    /* T */
    int64_t vocab_size;    /* ids are checked against it as they are read */
    bool shuffle, packing;
    uint64_t seed;
    int rank, world;
    int64_t batch_size;       /* B, global */
    int64_t micro_batch_size; /* sequences of one micro-batch of one rank; B = micro × accumulation × world */
    int64_t token_multiple;   /* packing false: M is a multiple of it (1: no filler); at most T: filler is no longer
                               * than a sequence may be */
    int64_t max_samples;      /* evaluation: at most so many samples in all, the last batch may be partial (0: all);
                               * training: must be 0, whole batches only */
    bool evaluation; /* one pass in file order over all whole samples; the ranks get micro-batches in turn, all the
                      * same number of them, some possibly with fewer or no sequences (num_tokens 0) */
};

struct batch {
    int64_t step;        /* training: global step from 1; evaluation: 1 */
    int64_t epoch;       /* from 1 */
    int64_t micro;       /* micro-batch of the step (training) or of the pass (evaluation), from 0 */
    bool last_micro;     /* of the step or of the pass */
    int32_t num_seqs;    /* sequences, filler included */
    int32_t max_seq;     /* longest of them */
    int64_t num_tokens;  /* M = seq_start[num_seqs]; 0 possible in evaluation and for empty documents */
    int64_t num_targets; /* targets >= 0 here */
    int64_t
        step_targets; /* training: of the whole global batch (all ranks, all micro-batches), what a mean divides by */
    int64_t step_tokens;      /* training: tokens of the whole global batch without filler: B·T packed, else the sum of
                               * min(length, T) of its documents */
    const int32_t *tokens;    /* (M) */
    const int32_t *targets;   /* (M), -1: none */
    const int32_t *positions; /* (M) position in its sequence */
    const int32_t *seq_start; /* (num_seqs + 1) */
};

struct token_stream;

/* Largest M and num_seqs that a stream with this configuration can produce, whatever the data (for the memory plan;
 * config->set is not looked at). */
void token_stream_limits(const struct token_stream_config *config, int64_t *max_tokens, int32_t *max_seqs);

/* Starts the prefetching thread at global step `first_step` (1: the beginning; evaluation: always 1), in constant time.
 * Too few samples for one global batch (evaluation: none): STATUS_DATA. A micro-batch of 2^31 tokens or more, or
 * packing false with T < 2: STATUS_USAGE. */
enum status token_stream_open(const struct token_stream_config *config, int64_t first_step,
                              struct token_stream **stream, struct error *err);

/* The next micro-batch; its arrays stay valid until the next call. Training streams never end (epoch after epoch);
 * an evaluation stream sets *end instead after its last one. Errors: STATUS_DATA with file and offset. */
enum status token_stream_next(struct token_stream *stream, struct batch *batch, bool *end, struct error *err);

void token_stream_close(struct token_stream *stream);

/* Steps of one epoch: floor(samples / B). */
int64_t token_stream_steps_per_epoch(const struct token_stream_config *config);

/* Keyed permutation of [0, n): a bijection computed per index (Feistel network with cycle walking), nothing stored.
 * Checkpoints rely on it: a resumed run goes on in the same order, so its values never change. index < n. */
uint64_t permute_index(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch);

#endif
