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

/* By bytes, a token before those that it begins, equal ones in order. */
static int by_pattern(const void *a, const void *b, void *items)
{
    const struct added_token *left = (struct added_token *)items + *(const size_t *)a;
    const struct added_token *right = (struct added_token *)items + *(const size_t *)b;
    const size_t common = left->length < right->length ? left->length : right->length;
    const int order = memcmp(left->pattern, right->pattern, common);
    if (order)
        return order;
    if (left->length != right->length)
        return left->length < right->length ? -1 : 1;
    return left < right ? -1 : left > right;
}

static void index_set(struct added_tokens *tokens, int set)
{
    size_t *order = memory_alloc((tokens->count + 1) * sizeof *order), count = 0, next = 0;
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->items[i].normalized == (set == 1) && tokens->items[i].length > 0)
            order[count++] = i;
    qsort_r(order, count, sizeof *order, by_pattern, tokens->items);
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

/* The first of the tokens from `low` to `high` - 1, which agree in their first `depth` bytes, whose next byte is at
 * least `byte`; a token that ends there comes before all others. */
static size_t first_with(const struct added_tokens *tokens, int set, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct added_token *token = &tokens->items[tokens->order[set][middle]];
        if (token->length <= depth || (unsigned char)token->pattern[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that begins at `at`. Two binary searches for each byte of the text narrow the tokens that are left,
 * until none is. */
static const struct added_token *token_at(const struct added_tokens *tokens, const struct added_walk *walk, size_t at)
{
    const int first = (unsigned char)walk->text[at];
    size_t low = tokens->first[walk->set][first], high = tokens->first[walk->set][first + 1];
    const struct added_token *longest = NULL;
    for (size_t depth = 1; low < high; depth++) {
        const struct added_token *token = &tokens->items[tokens->order[walk->set][low]];
        if (token->length == depth)
            longest = token;
        if (at + depth == walk->count)
            break;
        const int byte = (unsigned char)walk->text[at + depth];
        low = first_with(tokens, walk->set, low, high, depth, byte);
        high = first_with(tokens, walk->set, low, high, depth, byte + 1);
    }
    return longest;
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
        if ((walk->no_special && token->special) ||
            (token->single_word && inside_word(walk, walk->pending_start, walk->pending_end)))
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
