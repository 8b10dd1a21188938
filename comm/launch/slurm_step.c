/* slurm_step.c: see slurm_step.h. */
#include "comm/launch/slurm_step.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLURM_MAX_NORMAL_STEP_ID UINT64_C(0xfffffff0) /* batch, extern and interactive steps have larger numbers */

static const char *set_variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Whether the id is that of a step that srun started. */
static bool is_normal(const char *step)
{
    char *end;
    unsigned long long id = strtoull(step, &end, 10);
    return end != step && !*end && id < SLURM_MAX_NORMAL_STEP_ID;
}

bool slurm_step_is_task(void)
{
    const char *step = set_variable("SLURM_STEP_ID");
    return step && set_variable("SLURM_PROCID") && is_normal(step);
}

bool slurm_step_is_set(void)
{
    const char *step = set_variable("SLURM_STEP_ID");
    return step ? is_normal(step) : set_variable("SLURM_STEP_NUM_TASKS") || set_variable("SLURM_STEP_TASKS_PER_NODE");
}

bool slurm_step_is_script(void)
{
    const char *step = set_variable("SLURM_STEP_ID");
    return step && !is_normal(step);
}

int slurm_task_count(const char *list)
{
    long long total = 0;
    for (const char *at = list;;) {
        char *end;
        long long tasks = strtoll(at, &end, 10), nodes = 1;
        if (end == at || tasks < 0 || tasks > INT32_MAX)
            return -1;
        if (!strncmp(end, "(x", 2)) {
            at = end + 2;
            nodes = strtoll(at, &end, 10);
            if (end == at || *end++ != ')' || nodes < 1 || nodes > INT32_MAX)
                return -1;
        }
        total += tasks * nodes;
        if (total > INT32_MAX || (*end && *end != ','))
            return -1;
        if (!*end)
            return (int)total;
        at = end + 1;
    }
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
