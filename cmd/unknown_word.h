/* unknown_word.h: errors for a word on the command line that ztrain does not know. */
#pragma once

#include "core/status.h"

#include <stddef.h>

/* The one of `names` whose spelling is nearest to `word`, if it is near enough to be meant; else NULL. Dashes at
 * the beginning and "=VALUE" at the end of `word` do not count. */
const char *nearest_name(const char *word, const char *const *names, size_t count);

/* Sets "unknown option 'WORD'", with the nearest of the command's options (names without dashes) as the hint, or else
 * "ztrain COMMAND --help" ("": ztrain's own). Returns STATUS_USAGE. */
enum status unknown_option(const char *command, const char *word, const char *const *names, size_t count,
                           struct error *err);
