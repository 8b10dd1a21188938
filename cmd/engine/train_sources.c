#include "cmd/engine/train_sources.h"

#include "core/log.h"
#include "core/printable.h"

#include <inttypes.h>
#include <math.h>
#include <xxhash.h>

_Static_assert((int)SPEC_MAX_SOURCES == (int)INTERLEAVE_SOURCES, "every source that a spec may have can be mixed");
static const double largest_epoch = 0x1p61; /* samples: interleave_init() */

/* ---- opening ------------------------------------------------------------- */

/* Opens source `index`: the whole list of data.train, or one entry of a mixture. */
static enum status open_source(const struct run_spec *spec, int index, int64_t vocab_size,
                               struct train_sources *sources, struct data_fingerprint *fingerprint, struct error *err)
{
    const struct string_list *train = &spec->data.train;
    const bool mixed = spec->data.amount != SPEC_AMOUNT_NONE;
    const char *const *patterns = (const char *const *)train->items + (mixed ? index : 0);
    TRY(token_set_open(patterns, mixed ? 1 : train->count, &sources->sets[index], err));
    TRY(token_set_check(sources->sets[index], vocab_size, fingerprint, err));
    if (spec->model.task == TASK_CAUSAL_LM)
        return STATUS_OK;
    TRY(label_set_open(sources->sets[index], &sources->labels[index], err));
    fingerprint->first = label_set_fingerprint(sources->labels[index], fingerprint->first);
    fingerprint->sampled = label_set_fingerprint(sources->labels[index], fingerprint->sampled);
    return STATUS_OK;
}

/* Compares a source with those before it. */
static enum status check_source(const struct run_spec *spec, const struct train_sources *sources, int index,
                                struct error *err)
{
    const char *name = spec->data.train.items[index];
    for (int i = 0; i < index; i++) {
        const char *shard = token_set_common(sources->sets[i], sources->sets[index]);
        if (shard)
            return error_set(
                err, STATUS_DATA,
                "'%s' is in two sources of data.train, '%s' and '%s'; hint: name each shard once, and give "
                "its source a larger weight or more epochs",
                shard, spec->data.train.items[i], name);
        if (!sources->labels[i])
            continue;
        const json_t *names = label_set_names(sources->labels[i]), *others = label_set_names(sources->labels[index]);
        if (names && others ? !json_equal(names, others) : names != others)
            return error_set(err, STATUS_DATA,
                             "the sources of data.train name their labels differently: '%s' is not like '%s'; hint: "
                             "scripts/tokenize.py --labels-from PREFIX gives further shards the labels of the first",
                             name, spec->data.train.items[i]);
    }
    return STATUS_OK;
}

/* Continues the hash of a mixture with that of a source and its weight or epochs. */
static uint64_t mix_hash(uint64_t hash, uint64_t source, double amount)
{
    hash = XXH64(&source, sizeof source, hash);
    return XXH64(&amount, sizeof amount, hash);
}

enum status train_sources_open(const struct run_spec *spec, int64_t vocab_size, struct train_sources *sources,
                               struct error *err)
{
    *sources = (struct train_sources){.count = spec->data.amount ? spec->data.train.count : 1};
    if (!spec->data.amount)
        return open_source(spec, 0, vocab_size, sources, &sources->fingerprint, err);
    struct data_fingerprint hash = {(uint64_t)spec->data.amount, (uint64_t)spec->data.amount};
    for (int i = 0; i < sources->count; i++) {
        struct data_fingerprint one;
        enum status status = open_source(spec, i, vocab_size, sources, &one, err);
        if (status != STATUS_OK) {
            error_prefix(err, "source '%s' of data.train", spec->data.train.items[i]);
            return status;
        }
        TRY(check_source(spec, sources, i, err));
        hash.first = mix_hash(hash.first, one.first, spec->data.amounts[i]);
        hash.sampled = mix_hash(hash.sampled, one.sampled, spec->data.amounts[i]);
    }
    sources->fingerprint = hash;
    return STATUS_OK;
}

void train_sources_release(struct train_sources *sources)
{
    for (int i = 0; i < sources->count; i++) {
        label_set_close(sources->labels[i]);
        first_fit_free(sources->fits[i]);
        token_set_close(sources->sets[i]);
    }
    *sources = (struct train_sources){.count = 0};
}

bool train_sources_probe_mask(const struct run_spec *spec)
{
    const struct string_list *train = &spec->data.train;
    const bool mixed = spec->data.amount != SPEC_AMOUNT_NONE;
    bool found = false;
    for (int i = 0; i < (mixed ? train->count : 1) && !found; i++) {
        struct error unread;
        struct token_set *set;
        const char *const *patterns = (const char *const *)train->items + i;
        found =
            token_set_open(patterns, mixed ? 1 : train->count, &set, &unread) == STATUS_OK && token_set_has_mask(set);
        token_set_close(set);
    }
    return found;
}

bool train_sources_have_mask(const struct train_sources *sources)
{
    for (int i = 0; i < sources->count; i++)
        if (token_set_has_mask(sources->sets[i]))
            return true;
    return false;
}

enum status train_sources_count_labels(const struct run_spec *spec, int64_t *labels, struct error *err)
{
    struct train_sources sources;
    enum status status = train_sources_open(spec, INT32_MAX, &sources, err);
    *labels = 0;
    for (int i = 0; status == STATUS_OK && i < sources.count; i++) {
        const int64_t its = label_set_classes(sources.labels[i]);
        *labels = its > *labels ? its : *labels;
    }
    train_sources_release(&sources);
    TRY(status);
    if (*labels < 2)
        return error_set(err, STATUS_DATA,
                         "all documents of data.train have the label 0: a classifier needs two labels or more; hint: "
                         "set model.num_labels if the others are rare");
    return STATUS_OK;
}

/* ---- mixing -------------------------------------------------------------- */

/* The samples that an epoch of the run takes of each source, which are their shares as well. */
static enum status count_epochs(const struct run_spec *spec, const struct mixture *mixture, int count, int64_t *amounts,
                                struct error *err)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        const double samples = rint(spec->data.amounts[i] * (double)mixture->sizes[i]);
        sum += samples;
        if (samples < 1 || sum > largest_epoch)
            return error_set(err, STATUS_DATA,
                             "source '%s' of data.train: %g epochs of its %" PRId64
                             " samples are %s; hint: set %s epochs",
                             spec->data.train.items[i], spec->data.amounts[i], mixture->sizes[i],
                             samples < 1 ? "not one sample" : "too many samples", samples < 1 ? "more" : "fewer");
        amounts[i] = (int64_t)samples;
    }
    return STATUS_OK;
}

enum status train_sources_mix(const struct train_sources *sources, const struct run_spec *spec,
                              const struct token_stream_config *config, struct mixture *mixture, struct error *err)
{
    int64_t amounts[SPEC_MAX_SOURCES];
    *mixture = (struct mixture){.seed = config->seed, .shuffle = config->shuffle};
    for (int i = 0; i < sources->count; i++) {
        struct token_source *source = &mixture->sources[i];
        *source = (struct token_source){.set = sources->sets[i], .labels = sources->labels[i], .fit = sources->fits[i]};
        mixture->sizes[i] = token_source_samples(config, source);
        if (mixture->sizes[i] < 1)
            return error_set(err, STATUS_DATA,
                             "source '%s' of data.train has %" PRId64
                             " tokens, too few for one sample (data.seq_length "
                             "%" PRId64 ", and one more); hint: leave it out, or set a smaller data.seq_length",
                             spec->data.train.items[i], token_set_tokens(source->set), config->seq_length);
    }
    if (spec->data.amount == SPEC_AMOUNT_EPOCHS)
        TRY(count_epochs(spec, mixture, sources->count, amounts, err));
    else
        interleave_weights(spec->data.amounts, sources->count, amounts);
    interleave_init(&mixture->order, amounts, sources->count);
    for (int i = 0; i < sources->count; i++)
        mixture->epoch_samples += spec->data.amount == SPEC_AMOUNT_EPOCHS ? amounts[i] : mixture->sizes[i];
    return STATUS_OK;
}

void train_sources_print(const struct run_spec *spec, const struct mixture *mixture)
{
    for (int i = 0; i < mixture->order.count; i++) {
        const double share = (double)mixture->order.shares[i] / (double)mixture->order.period;
        log_info("data.train: source '%s' has %" PRId64
                 " samples%s; its share of the run is %.4g %%, %.4g passes over it "
                 "an epoch",
                 PRINTABLE(spec->data.train.items[i]), mixture->sizes[i],
                 token_set_has_mask(mixture->sources[i].set) ? " and a loss mask" : "", 100 * share,
                 share * (double)mixture->epoch_samples / (double)mixture->sizes[i]);
    }
}
