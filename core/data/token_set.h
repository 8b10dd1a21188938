/* token_set.h: one or more shard files as one stream of tokens and documents, opened and checked by their headers only.
 *
 * Megatron-LM: PREFIX.bin (tokens) and PREFIX.idx ("MMIDIDX\0\0", version 1, dtype code 8 uint16 | 4 int32, sizes,
 * pointers, document index). llm.c: one .bin with a header of 1024 bytes (magic 20240520 uint16, 20240801 uint32). */
#ifndef ZTRAIN_CORE_DATA_TOKEN_SET_H
#define ZTRAIN_CORE_DATA_TOKEN_SET_H

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

#endif
