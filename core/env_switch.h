/* env_switch.h: switches in the environment, and choices between words. */
#ifndef ZTRAIN_CORE_ENV_SWITCH_H
#define ZTRAIN_CORE_ENV_SWITCH_H

#include "core/status.h"

#include <stdbool.h>

/* Whether the variable is 1; 0, nothing and not there are off, all else is STATUS_USAGE. `meaning`: of 1, for the hint.
 */
enum status env_switch(const char *name, const char *meaning, bool *on, struct error *err);

/* Which of `count` words the variable is, as an index; -1: it is not there, or empty. STATUS_USAGE: another word; the
 * hint names these. */
enum status env_choice(const char *name, const char *const *words, int count, int *index, struct error *err);

#endif
