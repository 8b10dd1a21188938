/* SPDX-License-Identifier: Apache-2.0 */
/* token_set.h: one or more shard files, of Megatron-LM or llm.c (token_set.c), as one stream of tokens and documents.
 *
 * A file PREFIX.mask beside PREFIX.bin is the shard's loss mask: a byte for each token, 1 if its prediction counts for
 * the loss, else 0. If a set has a mask, every token of a shard without one counts.
 *
 * The files of a shard that ztrain-tokenize wrote must be of one run, and every file must stay as it was when it
 * was opened (shard_file.h). Several threads may read a set. */
#pragma once

#include "core/core.h"

struct token_set;

/* Opens shard files as one stream in the order of `patterns`: a Megatron prefix with or without .bin or .idx, an llm.c
 * .bin, or a glob, whose matches that end in .bin or .idx are sorted, a shard that has both once; a shard named by two
 * patterns is refused. Reads headers, checks sizes and compares some blocks with the set's digests. An index of up to
 * TOKEN_INDEX_CHECKED bytes is checked as a whole; in a larger one, the ends are checked here and each document when it
 * is looked up. STATUS_DATA names file and offset; a shard that does not exist has the cause ENOENT. */
#define TOKEN_INDEX_CHECKED (INT64_C(64) << 20)

enum status token_set_open(const char *const *patterns, int num_patterns, struct token_set **set, struct error *err);
void token_set_close(struct token_set *set); /* NULL is allowed */
RELEASER(token_set_drop, struct token_set, token_set_close)
int64_t token_set_tokens(const struct token_set *set);
int64_t token_set_documents(const struct token_set *set); /* an llm.c file counts as one document */

bool token_set_has_mask(const struct token_set *set);

/* Reads `count` tokens from token `first` of the stream on, and their loss mask of 1 and 0 (ids, mask: (count), or
 * NULL); first + count <= token_set_tokens(). Ids outside [0, vocab_size), other bytes of a mask: STATUS_DATA with the
 * file, the byte offset and the value. */
enum status token_set_read(const struct token_set *set, int64_t first, int64_t count, int64_t vocab_size, int32_t *ids,
                           uint8_t *mask, struct error *err);

/* Shows whether data were replaced: hashes of the shards' sizes, tokens and loss masks in order. 0: not known. */
struct data_fingerprint {
    uint64_t first;   /* of the first tokens of each shard */
    uint64_t sampled; /* of blocks from anywhere in each shard; shards of few tokens count whole */
};

/* Whether what is known of both is equal: checkpoints of earlier versions have no `sampled`. */
bool data_fingerprint_equal(const struct data_fingerprint *a, const struct data_fingerprint *b);

/* Reads the first tokens of every shard, and blocks at places that a keyed permutation chooses: a set for another
 * vocabulary is refused early. *fingerprint (may be NULL): of what was read. Errors as for token_set_read(). */
enum status token_set_check(const struct token_set *set, int64_t vocab_size, struct data_fingerprint *fingerprint,
                            struct error *err);

/* The path of a shard that is in both sets, as written; NULL: none. */
const char *token_set_common(const struct token_set *a, const struct token_set *b);

/* The path of shard `index`'s .bin (borrowed), and how many documents and tokens it has; NULL after the last shard. */
const char *token_set_shard(const struct token_set *set, int index, int64_t *documents, int64_t *tokens);

/* The place of document `index` < token_set_documents() in the stream, read from the index. length may be 0. */
enum status token_set_document(const struct token_set *set, int64_t i, int64_t *first, int64_t *len, struct error *err);

/* Number of samples of a set: (tokens - 1) / T packed, else documents. */
int64_t token_set_samples(const struct token_set *set, int64_t seq_length, bool packing);
