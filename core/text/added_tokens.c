/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text/added_tokens.h"

#include "core/text/unicode.h"

void added_tokens_add(struct added_tokens *tokens, struct added_token token)
{
    const int32_t index = (int32_t)tokens->count;
    int32_t node = token.normalized;
    tokens->items = memory_grow(tokens->items, tokens->count, sizeof *tokens->items);
    tokens->items[tokens->count++] = token;
    text_table_add(&tokens->by_content, token.content, strlen(token.content))->value = index;
    text_table_add(&tokens->by_id, &token.id, sizeof token.id)->value = index;
    while (tokens->ends.count < 2) token_list_add(&tokens->ends, -1);
    for (size_t i = 0; i < token.length; i++) {
        const int32_t edge[] = {node, token.pattern[i]};
        struct text_entry *entry = text_table_add(&tokens->edges, edge, sizeof edge);
        if (entry->value < 0) {
            entry->value = (int32_t)tokens->ends.count;
            token_list_add(&tokens->ends, -1);
        }
        node = entry->value;
    }
    if (tokens->ends.ids[node] < 0) tokens->ends.ids[node] = index;
}

void added_tokens_release(struct added_tokens *tokens)
{
    for (size_t i = 0; i < tokens->count; i++) {
        free(tokens->items[i].content);
        free(tokens->items[i].pattern);
    }
    free(tokens->items);
    text_table_release(&tokens->by_content);
    text_table_release(&tokens->by_id);
    text_table_release(&tokens->edges);
    token_list_release(&tokens->ends);
    *tokens = (struct added_tokens){0};
}

static const struct added_token *item(const struct added_tokens *tokens, int32_t index)
{
    return index < 0 ? NULL : &tokens->items[index];
}

const struct added_token *added_tokens_by_id(const struct added_tokens *tokens, int32_t id)
{
    return item(tokens, text_table_find(&tokens->by_id, &id, sizeof id));
}

const struct added_token *added_tokens_by_content(const struct added_tokens *tokens, const char *content)
{
    return item(tokens, text_table_find(&tokens->by_content, content, strlen(content)));
}

static const struct added_token *token_here(const struct added_tokens *tokens, const struct added_walk *walk)
{
    int32_t node = walk->set, longest = -1; /* the roots are the numbers of the sets */
    for (size_t at = walk->at; at < walk->count; at++) {
        const int32_t edge[] = {node, walk->text[at]};
        node = text_table_find(&tokens->edges, edge, sizeof edge);
        if (node < 0) break;
        if (tokens->ends.ids[node] >= 0) longest = tokens->ends.ids[node];
    }
    return item(tokens, longest);
}

static bool inside_word(const struct added_walk *walk, size_t start, size_t end)
{
    int length;
    return (start > 0 && unicode_is_word(utf8_at(walk->text + utf8_back(walk->text, start), &length))) ||
           (end < walk->count && unicode_is_word(utf8_at(walk->text + end, &length)));
}

static bool is_space_at(const struct added_walk *walk, size_t at, int *length)
{
    return unicode_is_space(utf8_at(walk->text + at, length));
}

bool added_tokens_next(const struct added_tokens *tokens, struct added_walk *walk, struct added_part *part)
{
    int length;
    while (walk->at < walk->count) {
        const struct added_token *token = token_here(tokens, walk);
        size_t start = walk->at, end = walk->at += token ? token->length : 1;
        if (!token || (walk->no_special && token->special) || (token->single_word && inside_word(walk, start, end)))
            continue;
        while (token->lstrip && start > walk->done && is_space_at(walk, utf8_back(walk->text, start), &length))
            start = utf8_back(walk->text, start);
        while (token->rstrip && end < walk->count && is_space_at(walk, end, &length)) end += (size_t)length;
        *part = (struct added_part){walk->done, start > walk->done ? start : walk->done, token};
        walk->done = end;
        return true;
    }
    *part = (struct added_part){walk->done, walk->count, NULL};
    walk->done = walk->count;
    return part->start < part->end;
}
