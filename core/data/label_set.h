/* SPDX-License-Identifier: Apache-2.0 */
/* label_set.h: the labels of a token set's documents, for classification and preferences.
 *
 * Beside PREFIX.bin and PREFIX.idx lie, as ztrain-tokenize --label and --preference write them,
 *
 *     PREFIX.labels        an int32 for each document: its label, from 0 on
 *     PREFIX.types         u8 for each token: its segment in a pair of texts, 0 … 0 1 … 1 in every document; absent if
 *                          the documents are single texts
 *     PREFIX.labels.json   {"id2label": {"0": NAME, …}}: the labels' names; may be absent
 *
 * A set is read when it is opened: 8 bytes for each document stay in memory, and no file stays open. */
#pragma once

#include "core/data/token_set.h"

/* All of it is owned. */
struct label_set {
    int64_t documents;
    int32_t *labels;     /* (documents) */
    int32_t *first_text; /* (documents) tokens of the first text; all of them in a single text */
    json_t *names;       /* id2label as the shards have it; NULL: LABEL_0, LABEL_1, … as in transformers */
    int64_t classes;     /* the number of the names, else the largest label + 1 */
    int64_t longest, longest_document; /* the most tokens, and the document that has them */
    int64_t pairs;                     /* documents that have a second text */
};

/* Reads the labels of all documents of `tokens`, borrowed here. STATUS_DATA names file and byte: a file is missing or
 * has a wrong size, a negative label or types that are no pair; label names differ; a document has no tokens. */
enum status label_set_open(const struct token_set *tokens, struct label_set **labels, struct error *err);

/* The same, unless no shard has a file of labels: *labels NULL. */
enum status label_set_find(const struct token_set *tokens, struct label_set **labels, struct error *err);
void label_set_close(struct label_set *labels); /* NULL: nothing */
RELEASER(label_set_drop, struct label_set, label_set_close)

/* Whether they are pairs of answers, or answers with a label, by the names of ztrain-tokenize --preference. */
bool label_set_is_preference(const struct label_set *labels);

/* A hash of `before`, the labels and the types: continues those of token_set_check(). */
uint64_t label_set_fingerprint(const struct label_set *labels, uint64_t before);
