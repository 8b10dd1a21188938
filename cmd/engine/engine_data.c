/* SPDX-License-Identifier: Apache-2.0 */
/* engine_data.c: the data of a run, compared with its spec and its model. See engine.h. */
#include "cmd/engine/engine.h"
#include "core/data/document_fit.h"

#include <xxhash.h>

_Static_assert((int)SPEC_MAX_SOURCES == (int)INTERLEAVE_SOURCES, "every source that a spec may have can be mixed");
static const double largest_epoch = 0x1p61; /* samples: interleave_init() */

static int num_sources(const struct run_spec *spec)
{
    return spec->data.amount ? spec->data.train.count : 1;
}

/* Opens the tokens of source `index`: of the whole list of data.train, or of one entry of a mixture. */
static enum status open_tokens(const struct run_spec *spec, int index, struct token_set **set, struct error *err)
{
    const char *const *patterns = (const char *const *)spec->data.train.items + index;
    return token_set_open(patterns, spec->data.amount ? 1 : spec->data.train.count, set, err);
}

static enum status open_source(const struct run_spec *spec, int index, int64_t vocab_size,
                               struct train_sources *sources, struct data_fingerprint *fingerprint, struct error *err)
{
    TRY(open_tokens(spec, index, &sources->items[index].set, err));
    TRY(token_set_check(sources->items[index].set, vocab_size, fingerprint, err));
    sources->items[index].fingerprint = fingerprint->sampled;
    if (spec->model.task == TASK_CAUSAL_LM && spec->preference.loss == PREFERENCE_NONE) return STATUS_OK;
    TRY(label_set_open(sources->items[index].set, &sources->items[index].labels, err));
    fingerprint->first = label_set_fingerprint(sources->items[index].labels, fingerprint->first);
    fingerprint->sampled = label_set_fingerprint(sources->items[index].labels, fingerprint->sampled);
    return STATUS_OK;
}

static enum status engine_check_source(const struct run_spec *spec, const struct train_sources *sources, int index,
                                       struct error *err)
{
    const char *name = spec->data.train.items[index];
    for (int i = 0; i < index; i++) {
        const char *shard = token_set_common(sources->items[i].set, sources->items[index].set);
        if (shard)
            return error_set(
                err, STATUS_DATA,
                "'%s' is in two sources of data.train, '%s' and '%s'; hint: name each shard once, and give "
                "its source a larger weight or more epochs",
                shard, spec->data.train.items[i], name);
        if (!sources->items[i].labels) continue;
        const json_t *names = sources->items[i].labels->names, *others = sources->items[index].labels->names;
        if (names && others ? !json_equal(names, others) : names != others)
            return error_set(err, STATUS_DATA,
                             "the sources of data.train name their labels differently: '%s' is not like '%s'; hint: "
                             "ztrain-tokenize --labels-from PREFIX gives further shards the labels of the first",
                             name, spec->data.train.items[i]);
    }
    return STATUS_OK;
}

static uint64_t hash_data_mixture(uint64_t hash, uint64_t source, double amount)
{
    hash = XXH64(&source, sizeof source, hash);
    return XXH64(&amount, sizeof amount, hash);
}

enum status train_sources_open(const struct run_spec *spec, int64_t vocab_size, struct train_sources *sources,
                               struct error *err)
{
    *sources = (struct train_sources){.count = num_sources(spec)};
    if (!spec->data.amount) return open_source(spec, 0, vocab_size, sources, &sources->fingerprint, err);
    struct data_fingerprint hash = {(uint64_t)spec->data.amount, (uint64_t)spec->data.amount};
    for (int i = 0; i < sources->count; i++) {
        struct data_fingerprint one;
        if (open_source(spec, i, vocab_size, sources, &one, err) != STATUS_OK)
            return error_prefix(err, "source '%s' of data.train", spec->data.train.items[i]);
        TRY(engine_check_source(spec, sources, i, err));
        hash.first = hash_data_mixture(hash.first, one.first, spec->data.amounts[i]);
        hash.sampled = hash_data_mixture(hash.sampled, one.sampled, spec->data.amounts[i]);
    }
    sources->fingerprint = hash;
    return STATUS_OK;
}

static void close_source(struct token_source *source)
{
    free(source->references);
    free(source->kl_references);
    label_set_close(source->labels);
    first_fit_free(source->fit);
    token_set_close(source->set);
}

void train_sources_release(struct train_sources *sources)
{
    for (int i = 0; i < sources->count; i++) close_source(&sources->items[i]);
    *sources = (struct train_sources){.count = 0};
}

bool train_sources_have_mask(const struct train_sources *sources)
{
    bool found = false;
    for (int i = 0; i < sources->count; i++) found |= token_set_has_mask(sources->items[i].set);
    return found;
}

bool engine_probe_mask(const struct run_spec *spec)
{
    bool found = false;
    for (int i = 0; i < num_sources(spec) && !found; i++) {
        struct error unread;
        RELEASED(token_set_drop) struct token_set *set = NULL;
        found = open_tokens(spec, i, &set, &unread) == STATUS_OK && token_set_has_mask(set);
    }
    return found;
}

enum status engine_count_labels(const struct run_spec *spec, int64_t *labels, struct error *err)
{
    RELEASED(train_sources_release) struct train_sources sources = {0};
    *labels = 0;
    TRY(train_sources_open(spec, INT32_MAX, &sources, err));
    for (int i = 0; i < sources.count; i++) *labels = max64(*labels, sources.items[i].labels->classes);
    if (*labels < 2)
        return error_set(err, STATUS_DATA,
                         "all documents of data.train have the label 0: a classifier needs two labels or more; hint: "
                         "set model.num_labels if the others are rare");
    return STATUS_OK;
}

/* amounts: the samples that an epoch of the run takes of each source. */
static enum status count_data_epochs(const struct run_spec *spec, const struct mixture *mixture, int count,
                                     int64_t *amounts, struct error *err)
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

static enum status engine_mix_sources(const struct train_sources *sources, const struct run_spec *spec,
                                      const struct token_stream_config *config, struct mixture *mixture,
                                      struct error *err)
{
    int64_t amounts[SPEC_MAX_SOURCES];
    *mixture = (struct mixture){.seed = config->seed, .shuffle = config->data.shuffle};
    for (int i = 0; i < sources->count; i++) {
        mixture->sources[i] = sources->items[i];
        mixture->sizes[i] = token_source_samples(config, &mixture->sources[i]);
        if (mixture->sizes[i] < 1)
            return error_set(
                err, STATUS_DATA,
                "source '%s' of data.train has %" PRId64 " tokens, too few for one sample (data.seq_length "
                "%" PRId64 ", and one more); hint: leave it out, or set a smaller data.seq_length",
                spec->data.train.items[i], token_set_tokens(mixture->sources[i].set), config->data.seq_length);
    }
    if (spec->data.amount == SPEC_AMOUNT_EPOCHS)
        TRY(count_data_epochs(spec, mixture, sources->count, amounts, err));
    else
        interleave_weights(spec->data.amounts, sources->count, amounts);
    interleave_init(&mixture->order, amounts, sources->count);
    for (int i = 0; i < sources->count; i++)
        mixture->epoch_samples += spec->data.amount == SPEC_AMOUNT_EPOCHS ? amounts[i] : mixture->sizes[i];
    return STATUS_OK;
}

static void log_data_mixture(const struct run_spec *spec, const struct mixture *mixture)
{
    for (int i = 0; i < mixture->order.count; i++) {
        const double share = (double)mixture->order.shares[i] / (double)mixture->order.period;
        log_detail("data.train: source '%s' has %" PRId64
                   " samples%s; its share of the run is %.4g %%, %.4g passes over it "
                   "an epoch",
                   PRINTABLE(spec->data.train.items[i]), mixture->sizes[i],
                   token_set_has_mask(mixture->sources[i].set) ? " and a loss mask" : "", 100 * share,
                   share * (double)mixture->epoch_samples / (double)mixture->sizes[i]);
    }
}

/* ---- checks -------------------------------------------------------------- */

/* Where the run's length has changed since the checkpoint, the learning rates of a schedule that ends with it jump. */
static void report_data_stretch(const struct engine *t)
{
    static const char *const keys[SCHEDULE_COUNT] = {[SCHEDULE_LINEAR] = "total_steps",
                                                     [SCHEDULE_COSINE] = "total_steps",
                                                     [SCHEDULE_WSD] = "total_steps",
                                                     [SCHEDULE_WARMUP_DECAY_LR] = "total_num_steps",
                                                     [SCHEDULE_WARMUP_COSINE_LR] = "total_num_steps"};
    const struct schedule_spec *s = &t->spec->scheduler;
    const int64_t former = spec_former_steps(t->spec, t->steps_per_epoch);
    const char *key = keys[s->type]; /* of the schedule's length; NULL: it has none */
    char way[96] = "";
    if (!former || former == t->total_steps || !schedule_needs_total(s)) return;
    if (key) snprintf(way, sizeof way, "; scheduler.params.%s: %" PRId64 " keeps the schedule", key, former);
    log_info("scheduler: %s follows the run's length, which was %" PRId64 " steps in the checkpoint and is %" PRId64
             " now: the learning rate is another from here on%s",
             schedule_name(s->type), former, t->total_steps, way);
}

static enum status check_data_schedule(const struct engine *t, struct error *err)
{
    const struct schedule_spec *s = &t->spec->scheduler;
    const int64_t warmup = schedule_warmup(s);
    report_data_stretch(t);
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

/* key: names the token set in the log. */
static enum status pack_documents(const struct engine *t, const char *key, const struct token_set *set,
                                  struct first_fit **fit, struct error *err)
{
    const int64_t length = t->spec->data.seq_length;
    if (t->train_config.preference) return STATUS_OK;
    if (t->spec->data.packing != SPEC_PACKING_FIRST_FIT) return STATUS_OK;
    TRY(first_fit_new(set, length, fit, err));
    if (t->rank == 0 && !t->quiet && (*fit)->samples > 0)
        log_detail("%s: %" PRId64 " documents in %" PRId64 " samples, which they fill to %.1f %%", key,
                   token_set_documents(set), (*fit)->samples,
                   100.0 * (double)(*fit)->tokens / ((double)(*fit)->samples * (double)length));
    return STATUS_OK;
}

/* Rank 0 says what is lost where documents are cut; `training`: STATUS_DATA if no target is left. */
static enum status report_cuts(const struct engine *t, const char *key, const struct token_set *set, bool training,
                               struct error *err)
{
    const int64_t length = t->spec->data.seq_length;
    struct cut_count cut;
    const bool whole = t->desc.num_labels > 0 || t->train_config.preference; /* longer ones are refused, or left out */
    if (t->rank != 0 || t->quiet || t->spec->data.packing == SPEC_PACKING_CUT || whole) return STATUS_OK;
    TRY(cut_count(set, length, &cut, err));
    if (cut.documents == 0) return STATUS_OK;
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

/* Where the data have loss masks: says where data.document_mask comes from if it was auto, and if they are not used. */
static enum status check_data_masks(const struct engine *t, struct error *err)
{
    const bool leads = t->rank == 0 && !t->quiet, apart = t->spec->data.document_mask == SPEC_ON;
    const bool masked = train_sources_have_mask(&t->sources);
    if (t->probed && t->found_mask != masked)
        return error_set(err, STATUS_DATA,
                         "the loss masks of data.train appeared or vanished while the run began; hint: start it again "
                         "when the data are complete");
    if (!masked || !leads) return STATUS_OK;
    if (t->desc.num_labels > 1)
        log_warn(
            "the loss masks beside data.train are not used: with model.task sequence_classification a document has "
            "one target, its label");
    else if (spec_document_mask_was_auto(t->spec) && t->probed && apart)
        log_detail(
            "data.document_mask: true, as data.train has loss masks; false lets the documents of a sample attend to "
            "each other");
    else if (spec_document_mask_was_auto(t->spec) && !t->probed && t->spec->data.packing != SPEC_PACKING_NONE)
        log_detail("data.document_mask: %s, as the run began", apart ? "true" : "false");
    return STATUS_OK;
}

static enum status take_labels(struct engine *t, const struct label_set *labels, struct error *err)
{
    const int64_t length = labels->longest, classes = labels->classes;
    if (classes > t->desc.num_labels)
        return error_set(err, STATUS_DATA,
                         "the data have %" PRId64 " labels, the model has %" PRId64
                         "; hint: set model.num_labels to %" PRId64 ", or check --label of ztrain-tokenize",
                         classes, t->desc.num_labels, classes);
    if (t->desc.num_types == 1 && labels->pairs > 0)
        return error_set(err, STATUS_DATA,
                         "the data hold pairs of texts, but the model has one token type (type_vocab_size 1); hint: "
                         "remove PREFIX.types, so that all tokens are of type 0");
    if (length > t->spec->data.seq_length)
        return error_set(err, STATUS_DATA,
                         "document %" PRId64 " of the data has %" PRId64 " tokens, more than data.seq_length %" PRId64
                         "; hint: ztrain-tokenize --max-length %" PRId64 " cuts texts and keeps their special tokens",
                         labels->longest_document, length, t->spec->data.seq_length, t->spec->data.seq_length);
    return labels->names ? model_desc_name_labels(&t->desc, labels->names, err) : STATUS_OK;
}

/* ---- preferences --------------------------------------------------------- */

static enum status check_preference_labels(const struct token_source *source, enum preference_loss loss,
                                           const char *key, struct error *err)
{
    const bool pairs = loss != PREFERENCE_KTO;
    if (loss != PREFERENCE_REWARD && !token_set_has_mask(source->set)) {
        error_set(err, STATUS_DATA, "%s has no loss masks: preferences are of completions", key);
        return error_hint(err, "ztrain-tokenize --preference writes them");
    }
    for (int64_t i = 0; i < source->labels->documents; i++) {
        const int32_t label = source->labels->labels[i];
        if (pairs ? label == (i % 2 == 0) : label <= 1) continue;
        error_set(err, STATUS_DATA, "%s: document %" PRId64 " has the label %d, expected %s", key, i, label,
                  !pairs       ? "0 or 1"
                  : i % 2 == 0 ? "1, chosen, before its rejected one"
                               : "0, rejected, after its chosen one");
        return error_hint(err, pairs ? "ztrain-tokenize --preference writes pairs; preference.loss kto takes others"
                                     : "ztrain-tokenize --preference writes labels");
    }
    return STATUS_OK;
}

/* Makes pairs, or labelled documents, the samples of a source. key: names it in the log. */
static enum status take_preferences(const struct engine *t, const char *key, struct token_source *source,
                                    struct error *err)
{
    const struct preference_settings *settings = t->train_config.preference;
    if (!settings) return STATUS_OK;
    const int group = settings->loss == PREFERENCE_KTO ? 1 : 2;
    if (group == 1 && t->train_config.micro_batch_size < 2)
        return error_set(err, STATUS_USAGE,
                         "preference.loss kto compares an answer with another one's prompt; hint: "
                         "train_micro_batch_size_per_gpu: 2 or more");
    TRY(check_preference_labels(source, settings->loss, key, err));
    TRY(whole_fit_new(source->set, t->spec->data.seq_length, group, &source->fit, err));
    const int64_t all = source->labels->documents / group, dropped = all - source->fit->samples;
    if (t->rank == 0 && !t->quiet && dropped > 0)
        log_info("%s: %" PRId64 " of %" PRId64 " %s are left out, as they have documents of more than data.seq_length "
                 "%" PRId64 " tokens, or of fewer than two",
                 key, dropped, all, group == 2 ? "pairs" : "documents", t->spec->data.seq_length);
    return STATUS_OK;
}

/* Without `preference` a model learns the rejected answers as well as the chosen ones: it may have been forgotten. */
static void notice_preferences(const struct engine *t, const char *name, const struct token_set *set)
{
    RELEASED(label_set_drop) struct label_set *labels = NULL;
    struct error unread;
    if (t->rank != 0 || t->quiet || t->train_config.preference || t->spec->model.task != TASK_CAUSAL_LM) return;
    if (label_set_find(set, &labels, &unread) == STATUS_OK && labels && label_set_is_preference(labels))
        log_warn("%s holds preferred and rejected answers, and without preference.loss both are learned", name);
}

static enum status open_training_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const bool mixed = spec->data.amount != SPEC_AMOUNT_NONE;
    TRY(train_sources_open(spec, t->desc.vocab_size, &t->sources, err));
    TRY(check_data_masks(t, err));
    for (int i = 0; i < t->sources.count; i++) {
        const char *name = mixed ? PRINTABLE(spec->data.train.items[i]) : "data.train";
        TRY(pack_documents(t, name, t->sources.items[i].set, &t->sources.items[i].fit, err));
        TRY(report_cuts(t, name, t->sources.items[i].set, true, err));
        if (t->desc.num_labels > 1) TRY(take_labels(t, t->sources.items[i].labels, err));
        TRY(take_preferences(t, name, &t->sources.items[i], err));
        notice_preferences(t, name, t->sources.items[i].set);
    }
    struct token_source *first = &t->sources.items[0];
    const struct teacher_file *teacher = first->teacher = t->teacher;
    if (teacher && teacher->header.V != t->desc.vocab_size)
        return error_set(err, STATUS_USAGE, "'%s' is of a vocabulary of %d tokens, and the model has %" PRId64,
                         teacher->path, teacher->header.V, t->desc.vocab_size);
    if (teacher && spec->data.packing != SPEC_PACKING_NONE && !token_stream_masks(&t->train_config))
        return error_set(err, STATUS_USAGE,
                         "distill needs documents apart: a teacher expects no next document; hint: "
                         "data.document_mask: true, or data.packing: false");
    if (teacher &&
        (teacher->header.data != first->fingerprint || teacher->header.tokens != token_set_tokens(first->set))) {
        error_set(err, STATUS_DATA, "'%s' is of other data than data.train", teacher->path);
        return error_hint(err, "ztrain score TEACHER --data PREFIX --top-k %d makes it again", teacher->header.K);
    }
    if (!mixed) {
        t->train_config.source = *first;
        return STATUS_OK;
    }
    TRY(engine_mix_sources(&t->sources, spec, &t->train_config, &t->mixture, err));
    t->train_config.mixture = &t->mixture;
    if (t->rank == 0 && !t->quiet) log_data_mixture(spec, &t->mixture);
    return STATUS_OK;
}

static enum status open_validation_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    struct token_stream_config *config = &t->validation_config;
    TRY(token_set_open((const char *const *)spec->data.validation.items, spec->data.validation.count,
                       &t->validation.set, err));
    struct data_fingerprint tokens;
    TRY(token_set_check(t->validation.set, t->desc.vocab_size, &tokens, err));
    t->validation.fingerprint = tokens.sampled;
    const uint64_t facts[] = {tokens.first, (uint64_t)config->max_samples, (uint64_t)spec->data.seq_length,
                              (uint64_t)spec->data.packing};
    t->evaluation_data = XXH3_64bits(facts, sizeof facts);
    TRY(pack_documents(t, "data.validation", t->validation.set, &t->validation.fit, err));
    TRY(report_cuts(t, "data.validation", t->validation.set, false, err));
    if (t->desc.num_labels > 1 || config->preference)
        TRY(label_set_open(t->validation.set, &t->validation.labels, err));
    if (t->desc.num_labels > 1) TRY(take_labels(t, t->validation.labels, err));
    TRY(take_preferences(t, "data.validation", &t->validation, err));
    const uint64_t more[] = {t->evaluation_data, tokens.sampled, token_stream_masks(config),
                             t->validation.labels ? label_set_fingerprint(t->validation.labels, 0) : 0};
    t->evaluation_part_data = XXH3_64bits(more, sizeof more);
    config->source = t->validation;
    for (int i = 0; i < t->sources.count; i++) {
        const char *both = token_set_common(t->sources.items[i].set, t->validation.set);
        if (both)
            log_info("'%s' is in data.train and in data.validation: the evaluation's loss is not that of unseen text",
                     both);
    }
    return token_stream_check(config, err);
}

static enum status open_data(struct engine *t, struct error *err)
{
    TRY(open_training_data(t, err));
    TRY(token_stream_check(&t->train_config, err));
    t->steps_per_epoch = token_stream_steps_per_epoch(&t->train_config);
    t->total_steps = spec_resolve_steps(t->spec, t->steps_per_epoch);
    TRY(check_data_schedule(t, err));
    if (t->spec->data.validation.count) return open_validation_data(t, err);
    if (t->spec->train.eval_interval_steps)
        log_info("train.eval_interval_steps is set, but there is no data.validation: nothing is evaluated");
    if (t->samples && t->rank == 0)
        log_info("train.samples is set, but there is no data.validation: samples come with evaluations");
    return STATUS_OK;
}

enum status engine_open_scored(struct engine *t, struct error *err)
{
    struct token_source *source = &t->sources.items[0];
    TRY(train_sources_open(t->spec, t->desc.vocab_size, &t->sources, err));
    TRY(whole_fit_new(source->set, t->spec->data.seq_length, 1, &source->fit, err));
    t->train_config.source = *source;
    return STATUS_OK;
}

enum status engine_name_error(const struct engine *t, enum status status, struct error *err)
{
    return status != STATUS_OK && t->spec->run.group ? error_prefix(err, "%s", t->spec->run.name) : status;
}

enum status engine_open_data(struct engine *t, struct error *err)
{
    return engine_name_error(t, open_data(t, err), err);
}

void engine_close_data(struct engine *t)
{
    train_sources_release(&t->sources);
    close_source(&t->validation);
}
