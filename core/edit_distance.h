/* SPDX-License-Identifier: Apache-2.0 */
/* edit_distance.h: the distance between two names, for "did you mean …?" */
#pragma once

#include <stddef.h>

/* The number of insertions, deletions, replacements and swaps of neighbours that turn one name into the other, ignoring
 * case; 99 for names of more than 64 bytes. */
int edit_distance(const char *a, const char *b);

/* The largest distance at which another name is still suggested. */
int edit_distance_limit(const char *text);

/* The one of `names` whose spelling is nearest to `word`, if it is near enough to be meant; else NULL. Dashes before
 * and "=VALUE" after `word` do not count. */
const char *nearest_name(const char *word, const char *const *names, size_t count);
