#include "core/env_switch.h"

#include <stdlib.h>
#include <string.h>

enum status env_switch(const char *name, const char *meaning, bool *on, struct error *err)
{
    const char *value = getenv(name);
    *on = value && !strcmp(value, "1");
    if (*on || !value || !*value || !strcmp(value, "0"))
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "%s is '%.60s'", name, value);
    return error_hint(err, "1 (%s) or 0", meaning);
}
