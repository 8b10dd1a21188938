/* SPDX-License-Identifier: Apache-2.0 */
/* run_samples.c: the continuations of train.samples at an evaluation. */
#include "cmd/train/rank_main.h"
#include "gpu/model/sampler.h"

enum { TOKENS_OF_A_VOTE = 16 }; /* the ranks vote on a stop once in so many tokens */

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

RELEASER(sampler_drop, struct sampler, sampler_free)

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
