#include "cmd/train/trainer_labels.h"

#include <inttypes.h>

enum status trainer_count_labels(const struct run_spec *spec, int64_t *classes, struct error *err)
{
    struct token_set *set;
    struct label_set *labels;
    TRY(token_set_open((const char *const *)spec->data.train.items, spec->data.train.count, &set, err));
    enum status status = label_set_open(set, &labels, err);
    token_set_close(set);
    TRY(status);
    *classes = label_set_classes(labels);
    label_set_close(labels);
    if (*classes < 2)
        return error_set(err, STATUS_DATA,
                         "all documents of data.train have the label 0: a classifier needs two labels or more; hint: "
                         "set model.num_labels if the others are rare");
    return STATUS_OK;
}

static enum status check_labels(const struct trainer *t, const struct label_set *labels, struct error *err)
{
    int64_t document, length = label_set_longest(labels, &document), classes = label_set_classes(labels);
    if (classes > t->desc.num_labels)
        return error_set(err, STATUS_DATA,
                         "the data have %" PRId64 " labels, the model has %" PRId64
                         "; hint: set model.num_labels to %" PRId64 ", or check --label of scripts/tokenize.py",
                         classes, t->desc.num_labels, classes);
    if (length > t->spec->data.seq_length)
        return error_set(err, STATUS_DATA,
                         "document %" PRId64 " of the data has %" PRId64 " tokens, more than data.seq_length %" PRId64
                         "; hint: scripts/tokenize.py --max-length %" PRId64
                         " cuts texts and keeps their special tokens",
                         document, length, t->spec->data.seq_length, t->spec->data.seq_length);
    return STATUS_OK;
}

enum status trainer_open_labels(struct trainer *t, const struct token_set *set, struct label_set **labels,
                                struct token_stream_config *config, struct error *err)
{
    TRY(label_set_open(set, labels, err));
    config->labels = *labels;
    TRY(check_labels(t, *labels, err));
    if (label_set_names(*labels))
        TRY(model_desc_name_labels(&t->desc, label_set_names(*labels), err));
    return STATUS_OK;
}

enum status trainer_labels_fingerprint(const struct run_spec *spec, const struct token_set *set, uint64_t *fingerprint,
                                       struct error *err)
{
    struct label_set *labels;
    if (spec->model.task == TASK_CAUSAL_LM)
        return STATUS_OK;
    TRY(label_set_open(set, &labels, err));
    *fingerprint = label_set_fingerprint(labels, *fingerprint);
    label_set_close(labels);
    return STATUS_OK;
}
