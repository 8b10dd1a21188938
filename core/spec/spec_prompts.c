/* spec_prompts.c: train.samples, prompts as texts or as lists of token ids:
 *
 *     train:
 *       samples: ["Stocks rose on", [15496, 995]]
 *
 * The JSON form is the same list; one prompt may stand alone. */
#include "core/spec/spec_keys.h"

#include <string.h>

static json_t *wrong_prompt(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    spec_error(ctx, node->pos, "'%s' must be a list of prompts, each a text or a list of token ids", key->path);
    return NULL;
}

static json_t *convert_id(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const bool is_id = node->kind == NODE_INT && node->integer >= 0 && node->integer <= INT32_MAX;
    return is_id ? json_integer(node->integer) : wrong_prompt(ctx, key, node);
}

/* A text or a list of ids. */
static json_t *convert_prompt(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_STRING)
        return json_string(node->text);
    if (node->kind != NODE_LIST || !node->count)
        return wrong_prompt(ctx, key, node);
    return spec_convert_each(ctx, key, node, convert_id);
}

json_t *spec_prompts_convert(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    if (node->kind == NODE_STRING)
        return json_pack("[s]", node->text);
    if (node->kind != NODE_LIST)
        return wrong_prompt(ctx, key, node);
    return spec_convert_each(ctx, key, node, convert_prompt);
}

void spec_prompts_store(struct spec_full *full, const json_t *value)
{
    const size_t count = json_array_size(value);
    struct spec_prompt *prompts = spec_arena_alloc(&full->arena, (count + 1) * sizeof *prompts);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        const char *text = json_string_value(item);
        struct spec_prompt *prompt = &prompts[i];
        if (text)
            prompt->text = spec_arena_copy(&full->arena, text, strlen(text));
        prompt->count = text ? 0 : (int64_t)json_array_size(item);
        prompt->tokens = spec_arena_alloc(&full->arena, ((size_t)prompt->count + 1) * sizeof *prompt->tokens);
        for (int64_t k = 0; k < prompt->count; k++)
            prompt->tokens[k] = (int32_t)json_integer_value(json_array_get(item, (size_t)k));
    }
    full->spec.train.samples = prompts;
    full->spec.train.num_samples = (int)count;
}

json_t *spec_prompts_fetch(const struct spec_full *full)
{
    json_t *list = full->spec.train.num_samples ? json_array() : NULL;
    for (int i = 0; i < full->spec.train.num_samples; i++) {
        const struct spec_prompt *prompt = &full->spec.train.samples[i];
        json_t *item = prompt->text ? json_string(prompt->text) : json_array();
        for (int64_t k = 0; k < prompt->count; k++)
            json_array_append_new(item, json_integer(prompt->tokens[k]));
        json_array_append_new(list, item);
    }
    return list;
}
