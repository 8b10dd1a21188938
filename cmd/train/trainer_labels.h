/* trainer_labels.h: the labels of a classifier's data. */
#ifndef ZTRAIN_CMD_TRAIN_TRAINER_LABELS_H
#define ZTRAIN_CMD_TRAIN_TRAINER_LABELS_H

#include "cmd/train/trainer.h"

/* *classes = the number of labels of data.train. */
enum status trainer_count_labels(const struct run_spec *spec, int64_t *classes, struct error *err);

/* Opens the labels of `set` for a stream, checks them and the documents' lengths, and gives the model their names.
 * STATUS_DATA: a label that the model does not have, a document longer than data.seq_length. */
enum status trainer_open_labels(struct trainer *t, const struct token_set *set, struct label_set **labels,
                                struct token_stream_config *config, struct error *err);

/* Continues the fingerprint of a token set of documents with labels (STATUS_OK for a language model's, unchanged). */
enum status trainer_labels_fingerprint(const struct run_spec *spec, const struct token_set *set, uint64_t *fingerprint,
                                       struct error *err);

#endif
