/* SPDX-License-Identifier: Apache-2.0 */
#include "core/env_switch.h"

#include "core/memory.h"

#include <sodium.h>

void env_keep(const char *name, const void *data, size_t size)
{
    OWNED char *digits = memory_alloc(2 * size + 1);
    if (setenv(name, sodium_bin2hex(digits, 2 * size + 1, data, size), 1) != 0) memory_exhausted(0);
}

bool env_kept(const char *name, void *data, size_t size)
{
    const char *digits = getenv(name);
    size_t bytes = 0;
    return digits && !sodium_hex2bin(data, size, digits, strlen(digits), NULL, &bytes, NULL) && bytes == size;
}

enum status env_switch(const char *name, const char *meaning, bool *on, struct error *err)
{
    const char *value = getenv(name);
    *on = value && !strcmp(value, "1");
    if (*on || !value || !*value || !strcmp(value, "0")) return STATUS_OK;
    return error_set(err, STATUS_USAGE, "%s is '%.60s'; hint: 1 (%s) or 0", name, value, meaning);
}

enum status env_choice(const char *name, const char *const *words, int count, int *index, struct error *err)
{
    const char *value = getenv(name);
    char legal[256] = "";
    *index = -1;
    if (!value || !*value) return STATUS_OK;
    for (int i = 0; i < count; i++) {
        if (!strcmp(value, words[i])) {
            *index = i;
            return STATUS_OK;
        }
        size_t used = strlen(legal);
        snprintf(legal + used, sizeof legal - used, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " or ", words[i]);
    }
    return error_set(err, STATUS_USAGE, "%s must be %s, not '%.60s'", name, legal, value);
}
