/* slurm_step.c: see slurm_step.h. */
#include "comm/slurm_step.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLURM_MAX_NORMAL_STEP_ID UINT64_C(0xfffffff0) /* batch, extern, interactive steps have numbers above */

bool slurm_step_is_task(void)
{
    const char *step = getenv("SLURM_STEP_ID"), *rank = getenv("SLURM_PROCID");
    if (!step || !*step || !rank || !*rank)
        return false;
    char *end;
    unsigned long long id = strtoull(step, &end, 10);
    return end != step && !*end && id < SLURM_MAX_NORMAL_STEP_ID;
}

static bool is_name_character(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.';
}

bool slurm_first_node(const char *list, char *out, size_t size)
{
    size_t length = 0;
    const char *at = list;
    while (*at && *at != ',') {
        const char *end;
        if (*at == '[') { /* the first number of the first range, up to '-', ',' or ']' */
            at++;
            size_t digits = strspn(at, "0123456789");
            end = strchr(at, ']');
            if (!digits || !end || !strchr("-,]", at[digits]))
                return false;
            if (length + digits >= size)
                return false;
            memcpy(out + length, at, digits);
            length += digits;
            at = end + 1;
        } else {
            if (!is_name_character(*at) || length + 1 >= size)
                return false;
            out[length++] = *at++;
        }
    }
    if (!length)
        return false;
    out[length] = 0;
    return true;
}
