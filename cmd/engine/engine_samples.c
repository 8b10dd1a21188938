/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/engine.h"

static enum status read_prompt(const struct engine *t, int i, struct error *err)
{
    const struct run_spec *spec = t->spec;
    struct engine_samples *s = t->samples;
    const struct spec_prompt *prompt = &spec->train.samples[i];
    struct token_list *tokens = &s->prompts[i];
    for (int64_t k = 0; k < prompt->count; k++) token_list_add(tokens, prompt->tokens[k]);
    if (prompt->text) TRY(tokenizer_encode(s->tokenizer, prompt->text, strlen(prompt->text), true, tokens, err));
    if (tokens->count == 0 && s->ends.begin >= 0 && s->ends.begin <= INT32_MAX)
        token_list_add(tokens, (int32_t)s->ends.begin);
    if (tokens->count == 0)
        return error_set(err, STATUS_USAGE,
                         "it is empty, and the model has no bos_token_id to begin from; hint: give it a text");
    for (size_t k = 0; k < tokens->count; k++)
        if (tokens->ids[k] >= t->desc.vocab_size)
            return error_set(err, STATUS_USAGE,
                             "token %" PRId32 " is not in the model's vocabulary: ids are 0 to %" PRId64,
                             tokens->ids[k], t->desc.vocab_size - 1);
    if ((int64_t)tokens->count >= spec->data.seq_length)
        return error_set(err, STATUS_USAGE,
                         "%zu tokens leave no room in data.seq_length %" PRId64 "; hint: shorten the prompt",
                         tokens->count, spec->data.seq_length);
    const int64_t room = spec->data.seq_length - (int64_t)tokens->count;
    const int64_t whole = (int64_t)tokens->count + (s->max_tokens < room ? s->max_tokens : room);
    s->capacity = whole > s->capacity ? whole : s->capacity;
    return STATUS_OK;
}

enum status engine_read_samples(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    if (!spec->train.num_samples) return STATUS_OK;
    if (t->desc.num_labels > 0 || t->desc.bidirectional)
        return error_set(err, STATUS_USAGE, "train.samples needs a causal language model; hint: remove the key");
    struct engine_samples *s = t->samples = memory_zeroed(1, sizeof *s);
    s->count = spec->train.num_samples;
    s->max_tokens = spec->train.sample_tokens;
    s->prompts = memory_zeroed((size_t)s->count, sizeof *s->prompts);
    bool text = false;
    for (int i = 0; i < s->count; i++) text = text || spec->train.samples[i].text;
    if (text && !spec->model.tokenizer_folder) {
        error_set(err, STATUS_USAGE, "train.samples has a text, and the model has no tokenizer");
        return error_hint(err, "set model.tokenizer, or give prompts as lists of token ids, [[1, 2, 3]]");
    }
    if (text && tokenizer_folder_open(spec->model.tokenizer_folder, &s->tokenizer, err) != STATUS_OK) {
        error_prefix(err, "train.samples");
        return err->code == STATUS_USAGE ? error_hint(err, "give prompts as lists of token ids, [[1, 2, 3]]")
                                         : err->code;
    }
    TRY(end_tokens_read(spec->model.folder, t->desc.source, &s->ends, err));
    for (int i = 0; i < s->count; i++)
        if (read_prompt(t, i, err) != STATUS_OK) return error_prefix(err, "train.samples: prompt %d", i + 1);
    return STATUS_OK;
}

void engine_samples_free(struct engine_samples *s)
{
    if (!s) return;
    for (int i = 0; i < s->count; i++) token_list_release(&s->prompts[i]);
    generator_free(s->generator);
    tokenizer_free(s->tokenizer);
    free(s->prompts);
    free(s);
}
