/* metrics_line.c: metrics.jsonl may have a million lines of 400 bytes, so the line of a step has a reader of its own,
 * which takes a fifth of the time of a general one. What it does not know it leaves to that. */
#include "cmd/report/metrics_line.h"

#include "core/status.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *object, *member;
    bool null_is_bad;
} fields[] = {
#define STEP_ROW(name, object, member, bad) {object, member, bad},
    STEP_SERIES(STEP_ROW)
#undef STEP_ROW
};
STATIC_ASSERT(COUNT_OF(fields) == STEP_SERIES_COUNT, "each series has a row");

const char *step_series_name(enum step_series series)
{
    return fields[series].member;
}

static void line_clear(struct step_line *line)
{
    *line = (struct step_line){.step = -1, .targets = -1};
    for (int s = 0; s < STEP_SERIES_COUNT; s++)
        line->values[s] = NAN;
}

/* A loss without targets is absent, not infinite. */
static bool line_is_step(struct step_line *line, bool has_loss)
{
    if (line->targets == 0 && isnan(line->values[STEP_LOSS]))
        line->present &= ~(1ULL << STEP_LOSS);
    return has_loss && line->step >= 0;
}

/* ---- the quick reader ---------------------------------------------------- */

struct cursor {
    const char *at, *end;
    int next; /* the series that is expected next */
};

struct word {
    const char *text;
    size_t length;
};

static bool word_is(struct word word, const char *text)
{
    return strlen(text) == word.length && !memcmp(text, word.text, word.length);
}

static bool take(struct cursor *c, char wanted)
{
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_text(struct cursor *c, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n))
        return false;
    c->at += n;
    return true;
}

/* "name": without escapes. */
static bool take_name(struct cursor *c, struct word *name)
{
    if (!take(c, '"'))
        return false;
    name->text = c->at;
    while (c->at < c->end && (isalnum((unsigned char)*c->at) || *c->at == '_'))
        c->at++;
    name->length = (size_t)(c->at - name->text);
    return take(c, '"') && take(c, ':');
}

/* A number as JSON has it. *whole: it has neither a fraction nor an exponent. */
static bool take_number(struct cursor *c, double *value, bool *whole)
{
    char text[40], *end;
    size_t n = 0;
    while (c->at + n < c->end && n < sizeof text - 1 && strchr("+-.0123456789Ee", c->at[n]) && c->at[n])
        n++;
    memcpy(text, c->at, n);
    text[n] = 0;
    const char *digits = text + (text[0] == '-'), *dot = strchr(text, '.');
    if (!isdigit((unsigned char)digits[0]) || (digits[0] == '0' && isdigit((unsigned char)digits[1])))
        return false;
    *value = strtod(text, &end);
    if (dot && !isdigit((unsigned char)dot[1]))
        return false;
    *whole = !strpbrk(text, ".eE");
    c->at += n;
    return !*end && isfinite(*value);
}

static int find_series(const struct cursor *c, const char *object, struct word name)
{
    for (int i = 0; i < STEP_SERIES_COUNT; i++) {
        int s = (c->next + i) % STEP_SERIES_COUNT;
        if (!strcmp(fields[s].object, object) && *fields[s].member && word_is(name, fields[s].member))
            return s;
    }
    return -1;
}

/* A member that is a number, null, true or false. */
static bool take_scalar(struct cursor *c, const char *object, struct word name, struct step_line *line)
{
    double value = NAN;
    bool whole = false;
    bool yes = take_text(c, "true"), is_null = !yes && take_text(c, "null");
    bool is_number = !yes && !is_null && !take_text(c, "false");
    if (is_number && !take_number(c, &value, &whole))
        return false;
    int s = find_series(c, object, name);
    if (s >= 0) {
        c->next = s + 1;
        line->values[s] = value;
        if (is_number || (is_null && fields[s].null_is_bad))
            line->present |= 1ULL << s;
    } else if (!*object && whole && fabs(value) < 9e15) {
        if (word_is(name, "step"))
            line->step = (int64_t)value;
        else if (word_is(name, "epoch"))
            line->epoch = (int64_t)value;
        else if (word_is(name, "targets"))
            line->targets = (int64_t)value;
    } else if (!*object && word_is(name, "skipped")) {
        line->skipped = yes;
    }
    return true;
}

/* {"name":number,…} */
static bool take_object(struct cursor *c, const char *object, struct step_line *line)
{
    struct word name;
    if (!take(c, '{'))
        return false;
    do {
        if (!take_name(c, &name) || !take_scalar(c, object, name, line))
            return false;
    } while (take(c, ','));
    return take(c, '}');
}

bool quick_step_line(const char *text, size_t bytes, struct step_line *line)
{
    struct cursor c = {.at = text, .end = text + bytes};
    struct word name;
    bool has_loss = false;
    line_clear(line);
    if (!take(&c, '{'))
        return false;
    do {
        if (!take_name(&c, &name))
            return false;
        const char *object = word_is(name, "memory_bytes") ? "memory_bytes" : word_is(name, "seconds") ? "seconds" : "";
        if (*object ? !take_object(&c, object, line) : !take_scalar(&c, "", name, line))
            return false;
        has_loss = has_loss || word_is(name, "loss");
    } while (take(&c, ','));
    return take(&c, '}') && c.at == c.end && line_is_step(line, has_loss);
}

/* ---- the general reader -------------------------------------------------- */

bool json_step_line(const json_t *object, struct step_line *line)
{
    line_clear(line);
    const json_t *step = json_object_get(object, "step"), *targets = json_object_get(object, "targets");
    line->step = json_is_integer(step) ? json_integer_value(step) : -1;
    line->epoch = json_integer_value(json_object_get(object, "epoch"));
    line->targets = json_is_integer(targets) ? json_integer_value(targets) : -1;
    line->skipped = json_is_true(json_object_get(object, "skipped"));
    for (int s = 0; s < STEP_SERIES_COUNT; s++) {
        const json_t *parent = *fields[s].object ? json_object_get(object, fields[s].object) : object;
        const json_t *value = *fields[s].member ? json_object_get(parent, fields[s].member) : NULL;
        if (json_is_number(value))
            line->values[s] = json_number_value(value);
        if (json_is_number(value) || (json_is_null(value) && fields[s].null_is_bad))
            line->present |= 1ULL << s;
    }
    return line_is_step(line, json_object_get(object, "loss"));
}
