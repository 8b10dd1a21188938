#include "core/text/added_tokens.h"

#include "core/memory.h"
#include "core/text/unicode.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>

void added_tokens_add(struct added_tokens *tokens, struct added_token token)
{
    if (tokens->count == tokens->room) {
        tokens->room = tokens->room ? 2 * tokens->room : 16;
        tokens->items = memory_resize(tokens->items, tokens->room * sizeof *tokens->items);
    }
    tokens->items[tokens->count++] = token;
}

static int by_first_byte(const void *a, const void *b, void *items)
{
    const struct added_token *left = (struct added_token *)items + *(const size_t *)a;
    const struct added_token *right = (struct added_token *)items + *(const size_t *)b;
    unsigned char first = (unsigned char)left->pattern[0], second = (unsigned char)right->pattern[0];
    if (first != second)
        return first < second ? -1 : 1;
    if (left->length != right->length)
        return left->length > right->length ? -1 : 1;
    return left < right ? -1 : 1;
}

static void index_set(struct added_tokens *tokens, int set)
{
    size_t *order = memory_alloc((tokens->count + 1) * sizeof *order), count = 0, next = 0;
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->items[i].normalized == (set == 1) && tokens->items[i].length > 0)
            order[count++] = i;
    qsort_r(order, count, sizeof *order, by_first_byte, tokens->items);
    for (int byte = 0; byte <= 256; byte++) {
        while (next < count && (unsigned char)tokens->items[order[next]].pattern[0] < byte)
            next++;
        tokens->first[set][byte] = next;
    }
    tokens->order[set] = order;
}

static int by_id(const void *a, const void *b, void *items)
{
    int32_t left = ((struct added_token *)items)[*(const size_t *)a].id;
    int32_t right = ((struct added_token *)items)[*(const size_t *)b].id;
    return left < right ? -1 : left > right;
}

void added_tokens_index(struct added_tokens *tokens)
{
    ASSERT(!tokens->by_id);
    index_set(tokens, 0);
    index_set(tokens, 1);
    tokens->by_id = memory_alloc((tokens->count + 1) * sizeof *tokens->by_id);
    for (size_t i = 0; i < tokens->count; i++)
        tokens->by_id[i] = i;
    qsort_r(tokens->by_id, tokens->count, sizeof *tokens->by_id, by_id, tokens->items);
}

void added_tokens_release(struct added_tokens *tokens)
{
    for (size_t i = 0; i < tokens->count; i++) {
        free(tokens->items[i].content);
        free(tokens->items[i].pattern);
    }
    free(tokens->items);
    free(tokens->order[0]);
    free(tokens->order[1]);
    free(tokens->by_id);
    *tokens = (struct added_tokens){0};
}

const struct added_token *added_tokens_by_id(const struct added_tokens *tokens, int32_t id)
{
    size_t low = 0, high = tokens->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (tokens->items[tokens->by_id[middle]].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    const struct added_token *token = low < tokens->count ? &tokens->items[tokens->by_id[low]] : NULL;
    return token && token->id == id ? token : NULL;
}

/* ---- the search ---------------------------------------------------------- */

/* The longest token that begins at `at`. */
static const struct added_token *token_at(const struct added_tokens *tokens, const struct added_walk *walk, size_t at)
{
    unsigned char byte = (unsigned char)walk->text[at];
    const size_t *first = tokens->first[walk->set];
    for (size_t i = first[byte]; i < first[byte + 1]; i++) {
        const struct added_token *token = &tokens->items[tokens->order[walk->set][i]];
        if (token->length <= walk->count - at && memcmp(token->pattern, walk->text + at, token->length) == 0)
            return token;
    }
    return NULL;
}

static bool inside_word(const struct added_walk *walk, size_t start, size_t end)
{
    int length;
    return (start > 0 && unicode_is_word(utf8_at(walk->text + utf8_back(walk->text, start), &length))) ||
           (end < walk->count && unicode_is_word(utf8_at(walk->text + end, &length)));
}

/* The token's place with the white space that belongs to it. */
static void take_spaces(struct added_walk *walk)
{
    int length;
    while (walk->pending->lstrip && walk->pending_start > walk->done) {
        size_t before = utf8_back(walk->text, walk->pending_start);
        if (!unicode_is_space(utf8_at(walk->text + before, &length)))
            break;
        walk->pending_start = before;
    }
    while (walk->pending->rstrip && walk->pending_end < walk->count) {
        if (!unicode_is_space(utf8_at(walk->text + walk->pending_end, &length)))
            break;
        walk->pending_end += (size_t)length;
    }
}

/* Finds the next token. false: there is none up to the end. */
static bool find_token(const struct added_tokens *tokens, struct added_walk *walk)
{
    while (walk->at < walk->count) {
        const struct added_token *token = token_at(tokens, walk, walk->at);
        if (!token) {
            walk->at++;
            continue;
        }
        walk->pending_start = walk->at;
        walk->pending_end = walk->at += token->length;
        if (token->single_word && inside_word(walk, walk->pending_start, walk->pending_end))
            continue;
        walk->pending = token;
        take_spaces(walk);
        return true;
    }
    return false;
}

bool added_tokens_next(const struct added_tokens *tokens, struct added_walk *walk, struct added_part *part)
{
    if (!walk->pending && !find_token(tokens, walk)) {
        *part = (struct added_part){NULL, walk->done, walk->count};
        walk->done = walk->count;
        return part->end > part->start;
    }
    if (walk->done < walk->pending_start) {
        *part = (struct added_part){NULL, walk->done, walk->pending_start};
        walk->done = walk->pending_start;
        return true;
    }
    *part = (struct added_part){walk->pending, walk->pending_start, walk->pending_end};
    walk->done = walk->pending_end;
    walk->pending = NULL;
    return true;
}
