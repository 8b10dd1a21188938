/* engine_labels.h: the labels of a classifier's data. */
#pragma once

#include "cmd/engine/engine.h"

/* *classes = the number of labels of data.train. */
enum status engine_count_labels(const struct run_spec *spec, int64_t *classes, struct error *err);

/* Checks labels and the lengths of their documents, and gives the model the labels' names, if they have some.
 * STATUS_DATA: a label that the model does not have, a document longer than data.seq_length. */
enum status engine_take_labels(struct engine *t, const struct label_set *labels, struct error *err);
