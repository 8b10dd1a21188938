/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h: the regular expressions of pre-tokenizers, with the meaning that Oniguruma gives them, matched by PCRE2.
 *
 * Known: alternatives, groups (?:…) and (…), (?i:…) for ASCII letters, lookahead (?=…) and (?!…), character classes,
 * \p{…} by general category, \s \S \d \D, escapes, and the quantifiers ? * + {n} {n,} {n,m} after a single character or
 * class (also possessive: ?+ *+ ++), and ? after a group. All else is refused by its name. PCRE2 gets sets by their
 * members, also those that it may be too old to know (unicode.h); only \p{C}, and \P{…} in a class, take its word. */
#pragma once

#include "core/status.h"

struct pattern;

/* STATUS_USAGE: something that this reader does not know; STATUS_DATA: no regular expression. */
enum status pattern_compile(const char *expression, struct pattern **out, struct error *err);
void pattern_free(struct pattern *pattern); /* NULL: nothing */
RELEASER(pattern_drop, struct pattern, pattern_free)

/* Where a search in `text` (UTF-8) goes on. {0} is the start. */
struct pattern_search {
    size_t at;       /* the next match begins here or later */
    size_t last_end; /* of the match before */
    bool found;      /* there was one */
};

/* Finds the next match [*start, *end) in text[0, count), and moves on. *start == count + 1: there is none. A match may
 * be empty, but not at the end of the one before. STATUS_DATA: it takes too long. Any thread may search. */
enum status pattern_next(const struct pattern *pattern, const char *text, size_t count, struct pattern_search *search,
                         size_t *start, size_t *end, struct error *err);
