#include "core/text/pattern_program.h"
#include "core/text/unicode.h"
#include "core/text/utf8.h"

#include <stdlib.h>

/* A search gives up after so many characters for one match, and so many more for each byte of the text: an expression
 * of several repetitions in a row may need the square, or more, of the text's length. */
enum { STEPS = 10000000, STEPS_PER_BYTE = 64 };

struct matcher {
    const struct pattern *pattern;
    const char *text;
    size_t count;
    int64_t steps; /* left */
};

static bool has_item(const struct pattern_item *item, uint32_t point)
{
    bool has = item->space        ? unicode_is_space(point)
               : item->categories ? (item->categories >> unicode_category(point) & 1) != 0
                                  : point >= item->first && point <= item->last;
    return has != item->negated;
}

bool pattern_in_class(const struct pattern *pattern, const struct pattern_node *node, uint32_t point)
{
    for (int i = 0; i < node->items; i++)
        if (has_item(&pattern->items[node->first_item + i], point))
            return !node->negated;
    return node->negated;
}

/* The length of the character at `at` if it is in the class, else 0. */
static int step(const struct matcher *m, const struct pattern_node *node, size_t at)
{
    if (at >= m->count)
        return 0;
    unsigned char byte = (unsigned char)m->text[at];
    if (byte < 128)
        return (int)(node->ascii[byte >> 6] >> (byte & 63) & 1);
    int length;
    uint32_t point = utf8_at(m->text + at, &length);
    return pattern_in_class(m->pattern, node, point) ? length : 0;
}

static bool match(struct matcher *m, int index, size_t at, size_t *end);

/* As many characters as there are, then fewer, until the rest matches. */
static bool match_class(struct matcher *m, const struct pattern_node *node, size_t at, size_t *end)
{
    int32_t count = 0;
    for (int length; count < node->max && (length = step(m, node, at)) > 0; count++)
        at += (size_t)length;
    m->steps -= count + 1;
    if (count < node->min || m->steps < 0)
        return false;
    for (;; count--, at = utf8_back(m->text, at)) {
        if (match(m, node->next, at, end))
            return true;
        if (count == node->min || node->possessive || --m->steps < 0)
            return false;
    }
}

/* Whether the program from node `index` on matches at `at`; *end: where the match ends. */
static bool match(struct matcher *m, int index, size_t at, size_t *end)
{
    while (index >= 0) {
        const struct pattern_node *node = &m->pattern->nodes[index];
        size_t ignored;
        switch (node->kind) {
        case PATTERN_MATCH: *end = at; return true;
        case PATTERN_CLASS: return match_class(m, node, at, end);
        case PATTERN_FORK:
            if (node->other >= 0 && match(m, node->next, at, end))
                return true;
            index = node->other >= 0 ? node->other : node->next;
            break;
        case PATTERN_LOOK:
            if (match(m, node->other, at, &ignored) == node->negated)
                return false;
            index = node->next;
            break;
        }
        if (--m->steps < 0)
            return false;
    }
    return false;
}

static size_t after_character(const char *text, size_t count, size_t at)
{
    int length = 1;
    if (at < count)
        utf8_at(text + at, &length);
    return at + (size_t)length;
}

enum status pattern_next(const struct pattern *pattern, const char *text, size_t count, struct pattern_search *search,
                         size_t *start, size_t *end, struct error *err)
{
    struct matcher m = {.pattern = pattern, .text = text, .count = count};
    m.steps = STEPS + STEPS_PER_BYTE * (int64_t)count;
    for (size_t at = search->at; at <= count; at = after_character(text, count, at)) {
        bool matches = match(&m, pattern->start, at, end);
        if (m.steps < 0)
            return error_set(err, STATUS_DATA, "the pre-tokenizer's expression takes too long at byte %zu of the text",
                             at);
        if (!matches || (*end == at && search->found && search->last_end == at))
            continue;
        *search = (struct pattern_search){.at = *end, .last_end = *end, .found = true};
        *start = at;
        return STATUS_OK;
    }
    *start = count + 1;
    return STATUS_OK;
}

void pattern_free(struct pattern *pattern)
{
    free(pattern);
}
