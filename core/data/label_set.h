/* label_set.h: the labels of a token set's documents, for classification.
 *
 * Beside PREFIX.bin and PREFIX.idx lie
 *
 *     PREFIX.labels        an int32 for each document: its label, from 0 on
 *     PREFIX.types         u8 for each token: its segment in a pair of texts, 0 … 0 1 … 1 in every document. The file
 * is absent if the documents are single texts. PREFIX.labels.json   {"id2label": {"0": NAME, …}}: the labels' names.
 * The file may be absent; then the names are those of transformers, LABEL_0, LABEL_1, …
 *
 * as scripts/tokenize.py --label writes them. A set is read when it is opened: 8 bytes for each document stay in
 * memory, and no file stays open. */
#pragma once

#include "core/data/token_set.h"

#include <jansson.h>

struct label_set;

/* Reads the labels of all documents of `tokens` (borrowed during the call). STATUS_DATA names the file and the byte: a
 * file is missing, has another size than the shard asks for, or holds a negative label or types that are no pair; the
 * shards name their labels differently; a document has no tokens. */
enum status label_set_open(const struct token_set *tokens, struct label_set **labels, struct error *err);
void label_set_close(struct label_set *labels); /* NULL: nothing */

/* The label of document `document` < token_set_documents(). */
int32_t label_set_label(const struct label_set *labels, int64_t document);

/* Tokens of the document's first text; all of them if it is a single text. */
int64_t label_set_first_text(const struct label_set *labels, int64_t document);

/* Documents that have a second text. */
int64_t label_set_pairs(const struct label_set *labels);

/* The number of classes: that of the names, else the largest label + 1. */
int64_t label_set_classes(const struct label_set *labels);

/* id2label as the shards have it (borrowed), or NULL. */
const json_t *label_set_names(const struct label_set *labels);

/* The document with the most tokens, and how many it has. */
int64_t label_set_longest(const struct label_set *labels, int64_t *document);

/* A hash of `before`, the labels and the types: continues those of token_set_check(). */
uint64_t label_set_fingerprint(const struct label_set *labels, uint64_t before);
