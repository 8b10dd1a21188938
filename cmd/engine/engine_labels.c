#include "cmd/engine/engine_labels.h"

#include <inttypes.h>

enum status engine_count_labels(const struct run_spec *spec, int64_t *classes, struct error *err)
{
    struct train_sources sources;
    enum status status = train_sources_open(spec, INT32_MAX, &sources, err);
    if (status == STATUS_OK)
        *classes = train_sources_classes(&sources);
    train_sources_release(&sources);
    TRY(status);
    if (*classes < 2)
        return error_set(err, STATUS_DATA,
                         "all documents of data.train have the label 0: a classifier needs two labels or more; hint: "
                         "set model.num_labels if the others are rare");
    return STATUS_OK;
}

static enum status check_labels(const struct engine *t, const struct label_set *labels, struct error *err)
{
    int64_t document, length = label_set_longest(labels, &document), classes = label_set_classes(labels);
    if (classes > t->desc.num_labels)
        return error_set(err, STATUS_DATA,
                         "the data have %" PRId64 " labels, the model has %" PRId64
                         "; hint: set model.num_labels to %" PRId64 ", or check --label of scripts/tokenize.py",
                         classes, t->desc.num_labels, classes);
    if (t->desc.num_types == 1 && label_set_pairs(labels) > 0)
        return error_set(err, STATUS_DATA,
                         "the data hold pairs of texts, but the model has one token type (type_vocab_size 1); hint: "
                         "remove PREFIX.types, so that all tokens are of type 0");
    if (length > t->spec->data.seq_length)
        return error_set(err, STATUS_DATA,
                         "document %" PRId64 " of the data has %" PRId64 " tokens, more than data.seq_length %" PRId64
                         "; hint: scripts/tokenize.py --max-length %" PRId64
                         " cuts texts and keeps their special tokens",
                         document, length, t->spec->data.seq_length, t->spec->data.seq_length);
    return STATUS_OK;
}

enum status engine_take_labels(struct engine *t, const struct label_set *labels, struct error *err)
{
    TRY(check_labels(t, labels, err));
    if (label_set_names(labels))
        TRY(model_desc_name_labels(&t->desc, label_set_names(labels), err));
    return STATUS_OK;
}
