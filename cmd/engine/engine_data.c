/* engine_data.c: opens the data of a run, and compares them with its spec and its model. See engine.h. */
#include "cmd/engine/engine.h"
#include "core/data/cut_count.h"
#include "core/log.h"
#include "core/printable.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

/* The key that sets the length of a schedule whatever the run's; NULL: it has none. */
static const char *length_key(enum schedule_type type)
{
    switch (type) {
    case SCHEDULE_LINEAR:
    case SCHEDULE_COSINE:
    case SCHEDULE_WSD: return "total_steps";
    case SCHEDULE_WARMUP_DECAY_LR:
    case SCHEDULE_WARMUP_COSINE_LR: return "total_num_steps";
    default: return NULL;
    }
}

/* A schedule that ends with the run, whose length has changed since the checkpoint: its learning rates jump. */
static void report_stretch(const struct engine *t)
{
    const struct schedule_spec *s = &t->spec->scheduler;
    const int64_t former = spec_former_steps(t->spec, t->steps_per_epoch);
    const char *key = length_key(s->type);
    char way[96] = "";
    if (!former || former == t->total_steps || !schedule_needs_total(s))
        return;
    if (key)
        snprintf(way, sizeof way, "; scheduler.params.%s: %" PRId64 " keeps the schedule", key, former);
    log_info("scheduler: %s follows the run's length, which was %" PRId64 " steps in the checkpoint and is %" PRId64
             " now: the learning rate is another from here on%s",
             schedule_name(s->type), former, t->total_steps, way);
}

/* The schedule against the run's length, which is known now. */
static enum status check_schedule(const struct engine *t, struct error *err)
{
    const struct schedule_spec *s = &t->spec->scheduler;
    const int64_t warmup = schedule_warmup(s);
    report_stretch(t);
    if (s->type != SCHEDULE_CONSTANT && warmup > t->total_steps)
        log_info("the run's %" PRId64 " steps end within the warm-up of %" PRId64
                 " (scheduler.params): the full learning rate is not reached",
                 t->total_steps, warmup);
    if (s->type == SCHEDULE_WSD && warmup + s->decay_steps > s->total_steps)
        return error_set(err, STATUS_USAGE,
                         "scheduler.params: WSD's warm-up of %" PRId64 " steps and decay of %" PRId64
                         " are more than its %" PRId64 " steps; hint: set a smaller decay_steps",
                         warmup, s->decay_steps, s->total_steps);
    return STATUS_OK;
}

/* data.packing first_fit: packs the documents of a token set, which `key` names in the log. */
static enum status pack_documents(const struct engine *t, const char *key, const struct token_set *set,
                                  struct first_fit **fit, struct error *err)
{
    const int64_t length = t->spec->data.seq_length;
    if (t->spec->data.packing != SPEC_PACKING_FIRST_FIT)
        return STATUS_OK;
    TRY(first_fit_new(set, length, fit, err));
    if (t->rank == 0 && !t->quiet && (*fit)->samples > 0)
        log_info("%s: %" PRId64 " documents in %" PRId64 " samples, which they fill to %.1f %%", key,
                 token_set_documents(set), (*fit)->samples,
                 100.0 * (double)(*fit)->tokens / ((double)(*fit)->samples * (double)length));
    return STATUS_OK;
}

/* Whether a document may be longer than a sample; a classifier refuses such documents when it reads them. */
static bool cuts_documents(const struct engine *t)
{
    return t->spec->data.packing != SPEC_PACKING_CUT && t->desc.num_labels == 0;
}

/* Rank 0 says what is lost where documents are cut; `training`: STATUS_DATA if no target is left. */
static enum status report_cuts(const struct engine *t, const char *key, const struct token_set *set, bool training,
                               struct error *err)
{
    const int64_t length = t->spec->data.seq_length;
    struct cut_count cut;
    if (t->rank != 0 || t->quiet || !cuts_documents(t))
        return STATUS_OK;
    TRY(cut_count(set, length, &cut, err));
    if (cut.documents == 0)
        return STATUS_OK;
    if (cut.targets > 0 && !cut.target_left && training)
        return error_set(err, STATUS_DATA,
                         "%s: data.seq_length %" PRId64 " cuts every target off: %" PRId64 " of %" PRId64
                         " documents are longer, and their %" PRId64
                         " targets are beyond it; hint: set a larger data.seq_length, or data.packing: true",
                         key, length, cut.documents, token_set_documents(set), cut.targets);
    log_info("%s: %" PRId64 " of %" PRId64 " documents are longer than data.seq_length %" PRId64
             " and are cut, which loses %" PRId64 " targets%s",
             key, cut.documents, token_set_documents(set), length, cut.targets,
             cut.target_left ? "" : ", and leaves none");
    return STATUS_OK;
}

/* Says where data.document_mask comes from if it was auto and the data have masks, and that masks are not used if so.
 */
static enum status check_masks(const struct engine *t, struct error *err)
{
    const bool leads = t->rank == 0 && !t->quiet, masked = train_sources_have_mask(&t->sources);
    const bool apart = t->spec->data.document_mask == SPEC_ON;
    if (t->probed && t->found_mask != masked)
        return error_set(err, STATUS_DATA,
                         "the loss masks of data.train appeared or vanished while the run began; hint: start it again "
                         "when the data are complete");
    if (!masked || !leads)
        return STATUS_OK;
    if (t->desc.num_labels > 0)
        log_warn(
            "the loss masks beside data.train are not used: with model.task sequence_classification a document has "
            "one target, its label");
    else if (spec_document_mask_was_auto(t->spec) && t->probed && apart)
        log_info(
            "data.document_mask: true, as data.train has loss masks; false lets the documents of a sample attend to "
            "each other");
    else if (spec_document_mask_was_auto(t->spec) && !t->probed && t->spec->data.packing != SPEC_PACKING_NONE)
        log_info("data.document_mask: %s, as the run began", apart ? "true" : "false");
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

/* Checks labels and the lengths of their documents, and gives the model the labels' names, if they have some. */
static enum status take_labels(struct engine *t, const struct label_set *labels, struct error *err)
{
    TRY(check_labels(t, labels, err));
    if (label_set_names(labels))
        TRY(model_desc_name_labels(&t->desc, label_set_names(labels), err));
    return STATUS_OK;
}

/* Opens data.train: one stream of shards, or a mixture of several. */
static enum status open_training_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const bool mixed = spec->data.amount != SPEC_AMOUNT_NONE;
    TRY(train_sources_open(spec, t->desc.vocab_size, &t->sources, err));
    TRY(check_masks(t, err));
    for (int i = 0; i < t->sources.count; i++) {
        const char *name = mixed ? PRINTABLE(spec->data.train.items[i]) : "data.train";
        TRY(pack_documents(t, name, t->sources.sets[i], &t->sources.fits[i], err));
        TRY(report_cuts(t, name, t->sources.sets[i], true, err));
        if (t->desc.num_labels > 0)
            TRY(take_labels(t, t->sources.labels[i], err));
    }
    if (!mixed) {
        t->train_config.set = t->sources.sets[0];
        t->train_config.labels = t->sources.labels[0];
        t->train_config.fit = t->sources.fits[0];
        return STATUS_OK;
    }
    TRY(train_sources_mix(&t->sources, spec, &t->train_config, &t->mixture, err));
    t->train_config.mixture = &t->mixture;
    if (t->rank == 0 && !t->quiet)
        train_sources_print(spec, &t->mixture);
    return STATUS_OK;
}

static enum status open_validation_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    struct token_stream_config *config = &t->validation_config;
    TRY(token_set_open((const char *const *)spec->data.validation.items, spec->data.validation.count,
                       &t->validation_set, err));
    struct data_fingerprint tokens;
    TRY(token_set_check(t->validation_set, t->desc.vocab_size, &tokens, err));
    const uint64_t facts[] = {tokens.first, (uint64_t)config->max_samples, (uint64_t)spec->data.seq_length,
                              (uint64_t)spec->data.packing};
    t->evaluation_data = XXH3_64bits(facts, sizeof facts);
    TRY(pack_documents(t, "data.validation", t->validation_set, &t->validation_fit, err));
    TRY(report_cuts(t, "data.validation", t->validation_set, false, err));
    if (t->desc.num_labels > 0) {
        TRY(label_set_open(t->validation_set, &t->validation_labels, err));
        TRY(take_labels(t, t->validation_labels, err));
    }
    const uint64_t more[] = {t->evaluation_data, tokens.sampled, config->document_mask,
                             t->validation_labels ? label_set_fingerprint(t->validation_labels, 0) : 0};
    t->evaluation_part_data = XXH3_64bits(more, sizeof more);
    config->set = t->validation_set;
    config->labels = t->validation_labels;
    config->fit = t->validation_fit;
    for (int i = 0; i < t->sources.count; i++) {
        const char *both = token_set_common(t->sources.sets[i], t->validation_set);
        if (both)
            log_info("'%s' is in data.train and in data.validation: the evaluation's loss is not that of unseen text",
                     both);
    }
    if (token_stream_samples(config) < 1)
        return error_set(err, STATUS_DATA,
                         "data.validation holds no whole sample of %" PRId64
                         " tokens; hint: add validation data, or set a shorter data.seq_length",
                         spec->data.seq_length);
    return STATUS_OK;
}

enum status engine_open_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    TRY(open_training_data(t, err));
    t->steps_per_epoch = token_stream_steps_per_epoch(&t->train_config);
    if (t->steps_per_epoch < 1)
        return error_set(err, STATUS_DATA,
                         "data.train holds %" PRId64 " samples%s, fewer than one train_batch_size of %" PRId64
                         "; hint: add data, or set a smaller train_batch_size or a shorter data.seq_length",
                         token_stream_samples(&t->train_config), t->train_config.mixture ? " an epoch" : "",
                         spec->train_batch_size);
    t->total_steps = spec_resolve_steps(t->spec, t->steps_per_epoch);
    TRY(check_schedule(t, err));
    if (spec->data.validation.count)
        return open_validation_data(t, err);
    if (spec->train.eval_interval_steps)
        log_info("train.eval_interval_steps is set, but there is no data.validation: nothing is evaluated");
    if (t->samples && t->rank == 0)
        log_info("train.samples is set, but there is no data.validation: samples come with evaluations");
    return STATUS_OK;
}
