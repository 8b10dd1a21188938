/* SPDX-License-Identifier: Apache-2.0 */
/* edit_distance.h: the distance between two names, for "did you mean …?" */
#pragma once

#include "core/status.h"

/* Insertions, deletions, replacements and swaps between two names, ignoring case; 99: one is above 64 bytes. */
int edit_distance(const char *a, const char *b);

/* The largest distance at which another name is still suggested. */
int edit_distance_limit(const char *text);

/* The nearest of `names` to `word`, without dashes before and "=VALUE" after it; NULL: none is near enough. */
const char *nearest_name(const char *word, const char *const *names, size_t count);
