/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.c: the loss of the model on the validation data, and what it continues train.samples with. */
#include "cmd/save/background_save.h"
#include "cmd/train/rank_main.h"
#include "core/flight/flight.h"
#include "core/metrics/eval_part.h"
#include "gpu/model/sampler.h"

/* What an evaluation adds up, over the batches of a rank and then over all ranks. */
struct evaluation {
    double *losses; /* owned (turns) */
    double *all;    /* owned (world · turns): by gather() */
    double *sums;   /* owned (num_sums): targets, then the counts */
    int num_sums;   /* 1 of a language model, 1 + CLASS_COUNT_ROWS · classes of a classifier, 1 + PREFERENCE_SUMS */
    double *counts; /* (CLASS_COUNT_ROWS, classes) of eval_metric.h, in sums; NULL: a language model */
    float *logits;  /* owned (max_seqs, classes) of a batch; NULL: a language model */
    int64_t classes;
    int64_t first_sample; /* those before it were counted before a stop broke the evaluation off */
    int64_t batches;      /* that are counted since */
};

/* Adds up losses on the device, targets and predictions in e. A stop leaves the rest to the resumed run. */
static enum status evaluate_stream(struct run *run, struct token_stream *stream, struct evaluation *e,
                                   struct error *err)
{
    struct engine *t = &run->engine;
    for (;;) {
        const struct row_results rows = {.losses = t->preference ? t->preference->head.row_losses : NULL};
        struct batch batch;
        bool end = false;
        int64_t sample = 0;
        TRY(token_stream_next(stream, &batch, &end, err));
        if (end) return STATUS_OK;
        if (run->stop && e->batches % t->turns == 0) {
            run->position.evaluation_due = true;
            return STATUS_OK;
        }
        TRY(transformer_evaluate(t->transformer, &batch, zero_verbs(t->zero), t->compute,
                                 t->loss_sum + e->batches % t->turns, e->logits, t->preference ? &rows : NULL, err));
        e->sums[0] += (double)batch.num_targets;
        if (t->preference) stream_sync(t->compute);
        if (t->preference) TRY(preference_steps_add(t->preference, &batch, (int)(e->batches % t->turns), err));
        if (e->counts) stream_sync(t->compute); /* the logits are on their way to the host */
        for (int64_t i = 0; e->counts && i < batch.num_tokens; i++)
            if (batch.targets[i] >= 0)
                class_counts_add(e->counts, e->classes, e->logits + e->classes * sample++, batch.targets[i]);
        e->batches++;
        TRY(stop_vote(run, err));
    }
}

/* Puts the result into the position, the same on all ranks; rank 0 logs it. Without targets it does nothing. */
static enum status report(struct run *run, const struct evaluation *e, struct error *err)
{
    struct train_position *position = &run->position;
    struct class_scores scores = {.accuracy = NAN, .f1 = NAN};
    double preference[PREFERENCE_VALUES];
    for (int i = 0; i < PREFERENCE_VALUES; i++) preference[i] = NAN;
    double sum = 0;
    for (int v = 0; v < run->engine.world * run->engine.turns; v++) sum += e->all[v];
    const struct preference_settings *settings = run->engine.train_config.preference;
    const double loss = run_mean_loss(sum, e->sums[0]) + (settings ? preference_nll(settings, e->sums + 1) : 0);
    if (e->counts) scores = class_scores_of(e->counts, e->classes);
    if (settings) preference_means(settings, e->sums + 1, preference);
    const double values[EVAL_METRIC_COUNT] = {[EVAL_METRIC_LOSS] = loss,
                                              [EVAL_METRIC_ACCURACY] = scores.accuracy,
                                              [EVAL_METRIC_F1] = scores.f1,
                                              [EVAL_METRIC_REWARDS] = preference[PREFERENCE_REWARDS_ACCURACIES]};
    position->scores = (struct eval_scores){.known = e->sums[0] > 0, .data = run->engine.evaluation_data};
    for (int i = 0; i < EVAL_METRIC_COUNT; i++) position->scores.values[i] = isfinite(values[i]) ? values[i] : NAN;
    if (!run->metrics) return STATUS_OK;
    TRY(metrics_eval(run->metrics, position->step, position->epoch, loss, (int64_t)e->sums[0],
                     e->counts ? &scores : NULL, settings ? preference : NULL, err));
    monitor_evaluation(run->monitor, position->step, &position->scores);
    console_break(&run->console);
    if (e->counts)
        log_info("step %" PRId64 "  eval_loss %.4f  accuracy %.4f  f1 %.4f  (%.0f samples)", position->step, loss,
                 scores.accuracy, scores.f1, e->sums[0]);
    else if (settings)
        log_info(
            "step %" PRId64 "  eval_loss %.4f  rewards/margins %.4f  %s %.4f  (%.0f samples)", position->step, loss,
            preference[PREFERENCE_REWARDS_MARGINS], settings->loss == PREFERENCE_KTO ? "kl" : "rewards/accuracies",
            preference[settings->loss == PREFERENCE_KTO ? PREFERENCE_KL : PREFERENCE_REWARDS_ACCURACIES], e->sums[0]);
    else
        log_info("step %" PRId64 "  eval_loss %.4f  perplexity %.2f  (%.0f targets)", position->step, loss, exp(loss),
                 e->sums[0]);
    return STATUS_OK;
}

/* Adds up what the ranks have: e->all = the losses in the order of virtual ranks, e->sums = the sums. */
static enum status gather(const struct run *run, struct evaluation *e, struct error *err)
{
    const int world = run->engine.world, turns = run->engine.turns;
    const int most = COMM_EXCHANGE_MAX / (int)sizeof *e->sums; /* that comm_sum() takes at a time */
    OWNED double *of_ranks = memory_zeroed((size_t)(world * turns), sizeof *of_ranks);
    TRY(comm_exchange(run->comm, e->losses, (size_t)turns * sizeof *e->losses, of_ranks, err));
    for (int v = 0; v < world * turns; v++) e->all[v] = of_ranks[v % world * turns + v / world];
    for (int at = 0; at < e->num_sums; at += most)
        TRY(comm_sum(run->comm, e->sums + at, e->num_sums - at < most ? e->num_sums - at : most, err));
    return STATUS_OK;
}

static int64_t evaluation_samples(const struct engine *t)
{
    const struct token_stream_config *config = &t->validation_config;
    const int64_t samples = token_stream_samples(config);
    return config->max_samples > 0 && config->max_samples < samples ? config->max_samples : samples;
}

/* With as many (virtual) ranks as before each continues its own sum of losses; otherwise rank 0 continues them all. */
static void start_from(struct run *run, const struct eval_part *part, struct evaluation *e)
{
    const struct engine *t = &run->engine;
    const int64_t all = evaluation_samples(t);
    const bool leads = t->rank == 0, same = part->world == t->world * t->turns;
    if (part->data != t->evaluation_part_data || part->num_counts != e->num_sums || part->samples > all) {
        if (leads)
            log_info("the evaluation after step %" PRId64 " begins anew: the validation data are others than when it "
                     "was broken off",
                     run->position.step);
        return;
    }
    if (leads)
        log_info("the evaluation after step %" PRId64 " continues: %" PRId64 " of %" PRId64 " samples are done",
                 run->position.step, part->samples, all);
    e->first_sample = part->samples;
    for (int turn = 0; same && turn < t->turns; turn++) e->losses[turn] = part->losses[turn * t->world + t->rank];
    for (int r = 0; leads && !same && r < part->world; r++) e->losses[0] += part->losses[r];
    if (leads) memcpy(e->sums, part->counts, (size_t)part->num_counts * sizeof *part->counts);
}

/* Keeps what is done of an evaluation, for its checkpoint. Without it (a loss is not finite) all is done again. */
static enum status keep_part(struct run *run, struct evaluation *e, struct error *err)
{
    const struct token_stream_config *config = &run->engine.validation_config;
    const int64_t all = evaluation_samples(&run->engine),
                  done = e->first_sample + e->batches * config->micro_batch_size * config->world;
    struct eval_part part = {.samples = done < all ? done : all,
                             .data = run->engine.evaluation_part_data,
                             .world = config->world * config->turns,
                             .losses = e->all,
                             .num_counts = e->num_sums,
                             .counts = e->sums};
    if (!done) return STATUS_OK;
    TRY(gather(run, e, err));
    run->evaluation_part = eval_part_to_json(&part);
    if (run->evaluation_part && run->boot->rank == 0)
        log_info("the evaluation after step %" PRId64 " is broken off: %" PRId64 " of %" PRId64 " samples are done",
                 run->position.step, part.samples, all);
    return STATUS_OK;
}

static enum status evaluate(struct run *run, struct evaluation *e, struct error *err)
{
    struct engine *t = &run->engine;
    struct token_stream *stream = NULL;
    if (run->evaluation_part) {
        RELEASED(eval_part_release) struct eval_part part = {.samples = 0};
        TRY(eval_part_from_json(run->evaluation_part, "the checkpoint", &part, err));
        start_from(run, &part, e);
        json_decref(TAKEN(run->evaluation_part));
    }
    struct token_stream_config rest = t->validation_config;
    rest.first_sample = e->first_sample;
    const size_t bytes = (size_t)t->turns * sizeof *e->losses;
    stream_copy(t->compute, t->loss_sum, e->losses, bytes);
    stream_sync(t->compute);
    struct preference_steps *preference = t->preference; /* its losses add up on the host */
    if (preference) {
        preference_steps_begin(preference);
        memcpy(preference->losses, e->losses, bytes);
    }
    TRY(token_stream_open(&rest, 1, &stream, err));
    enum status status = evaluate_stream(run, stream, e, err);
    token_stream_close(stream);
    TRY(status);
    stream_copy(t->compute, e->losses, t->loss_sum, bytes);
    stream_sync(t->compute);
    if (preference) memcpy(e->losses, preference->losses, bytes);
    for (int i = 0; preference && i < preference->turns * PREFERENCE_SUMS; i++)
        e->sums[1 + i % PREFERENCE_SUMS] += preference->sums[i];
    if (run->position.evaluation_due) return keep_part(run, e, err);
    TRY(gather(run, e, err));
    return report(run, e, err);
}

enum status run_evaluate(struct run *run, struct error *err)
{
    const struct engine *t = &run->engine;
    struct evaluation e = {.classes = t->preference ? 0 : t->desc.num_labels};
    flight_phase(FLIGHT_EVALUATION);
    e.losses = memory_zeroed((size_t)t->turns, sizeof *e.losses);
    e.all = memory_zeroed((size_t)(t->world * t->turns), sizeof *e.all);
    e.num_sums = 1 + CLASS_COUNT_ROWS * (int)e.classes + (t->preference ? PREFERENCE_SUMS : 0);
    e.sums = memory_zeroed((size_t)e.num_sums, sizeof *e.sums);
    if (e.classes) {
        const int32_t max_seqs = token_stream_limits(&t->validation_config).max_seqs;
        e.logits = memory_zeroed((size_t)max_seqs * (size_t)e.classes, sizeof *e.logits);
        e.counts = e.sums + 1;
    }
    const enum status status = evaluate(run, &e, err);
    free(e.losses);
    free(e.all);
    free(e.sums);
    free(e.logits);
    return status;
}

/* ---- train.samples ------------------------------------------------------- */

enum { TOKENS_OF_A_VOTE = 16 }; /* tokens between two votes of the ranks on stopping */

static enum status report_sample(struct run *run, int number, const struct token_list *tokens, struct error *err)
{
    const struct engine_samples *s = run->engine.samples;
    const struct spec_prompt *prompt = &run->spec->train.samples[number];
    RELEASED(text_release) struct text text = {0};
    if (!run->metrics) return STATUS_OK;
    text_add(&text, "", 0);
    if (prompt->text) tokenizer_decode(s->tokenizer, tokens->ids, tokens->count, true, &text);
    for (size_t i = 0; i < text.count; i++) /* a line of metrics.jsonl has no NUL */
        text.bytes[i] = text.bytes[i] ? text.bytes[i] : ' ';
    const struct sample_metrics line = {.number = number + 1,
                                        .prompt = prompt->text,
                                        .text = !prompt->text ? NULL
                                                : text.bytes  ? text.bytes
                                                              : "",
                                        .prompt_tokens = s->prompts[number].ids,
                                        .num_prompt = (int64_t)s->prompts[number].count,
                                        .tokens = tokens->ids,
                                        .num_tokens = (int64_t)tokens->count};
    const enum status status = metrics_sample(run->metrics, run->position.step, run->position.epoch, &line, err);
    console_break(&run->console);
    enum { SHOWN = 60, SHOWN_IDS = 10 };
    char shown[PRINTABLE_SIZE] = "";
    size_t used = 0;
    if (line.text) {
        snprintf(shown, sizeof shown, "%.*s", SHOWN, line.text);
        for (char *c = shown; *c; c++) *c = *c == '\n' ? ' ' : *c;
        used = strlen(shown);
        while (line.text[used] && used > 0 && ((unsigned char)line.text[used] & 0xc0) == 0x80) /* half a character */
            shown[--used] = '\0';
    }
    for (int64_t i = 0; !line.text && i < line.num_tokens && i < SHOWN_IDS; i++)
        used += (size_t)snprintf(shown + used, sizeof shown - used, "%s%" PRId32, i ? "," : "", line.tokens[i]);
    const bool cut = line.text ? line.text[used] != '\0' : line.num_tokens > SHOWN_IDS;
    log_info("step %" PRId64 "  sample %d: %s%s", run->position.step, line.number, PRINTABLE(shown), cut ? "…" : "");
    return status;
}

/* Appends the continuation of a prompt to `tokens`. A stop breaks it off. */
static enum status continue_run_sample(struct run *run, int number, struct sampler *sampler, struct token_list *tokens,
                                       struct error *err)
{
    struct engine *t = &run->engine;
    struct engine_samples *s = t->samples;
    const struct token_list *prompt = &s->prompts[number];
    const struct param_verbs *verbs = zero_verbs(t->zero);
    float *logits;
    const int64_t room = run->spec->data.seq_length - (int64_t)prompt->count;
    const int64_t most = s->max_tokens < room ? s->max_tokens : room;
    generator_reset(s->generator);
    TRY(generator_feed(s->generator, prompt->ids, (int64_t)prompt->count, verbs, t->compute, &logits, err));
    while (!run->stop) {
        int64_t token = sampler_choose(sampler, logits, 0);
        TRY(comm_broadcast(run->comm, &token, sizeof token, 0, err));
        if (token < 0) {
            if (run->boot->rank == 0)
                log_warn("sample %d ends early: the model's logits are not finite numbers", number + 1);
            return STATUS_OK;
        }
        const int32_t next = (int32_t)token;
        token_list_add(tokens, next);
        if (end_tokens_have(&s->ends, token) || (int64_t)tokens->count == most) return STATUS_OK;
        TRY(generator_feed(s->generator, &next, 1, verbs, t->compute, &logits, err));
        if (tokens->count % TOKENS_OF_A_VOTE == 0) TRY(stop_vote(run, err));
    }
    return STATUS_OK;
}

enum status run_samples(struct run *run, struct error *err)
{
    const struct sampler_settings greedy = {.temperature = 0, .top_p = 1};
    if (!run->engine.samples) return STATUS_OK;
    RELEASED(sampler_drop) struct sampler *sampler = sampler_new(&greedy, run->engine.desc.vocab_size);
    int reported = 0;
    while (reported < run->engine.samples->count && !run->stop) {
        RELEASED(token_list_release) struct token_list tokens = {0};
        TRY(continue_run_sample(run, reported, sampler, &tokens, err));
        if (run->stop) break;
        TRY(report_sample(run, reported++, &tokens, err));
        TRY(stop_vote(run, err));
    }
    if (run->stop && run->boot->rank == 0 &&
        reported < run->engine.samples->count) /* the next evaluation has newer ones */
        log_info("step %" PRId64 ": the stop leaves out the samples %d to %d", run->position.step, reported + 1,
                 run->engine.samples->count);
    return STATUS_OK;
}
