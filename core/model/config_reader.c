/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/config_reader.h"

#include "core/edit_distance.h"

void reader_fail(struct config_reader *reader, enum status code, const char *format, ...)
{
    if (reader->status != STATUS_OK) return;
    char text[1024];
    WITH_ARGS(format, vsnprintf(text, sizeof text, format, args));
    if (reader->spec && code == STATUS_DATA) code = STATUS_USAGE;
    reader->status = error_set(reader->err, code, "%s: %s", reader->where, text);
}

static bool is_asked(const struct asked_keys *asked, const char *key)
{
    for (int i = 0; i < asked->count; i++)
        if (strcmp(asked->names[i], key) == 0) return true;
    return false;
}

const json_t *reader_get(const struct config_reader *reader, const char *key)
{
    if (!is_asked(reader->asked, key)) {
        ASSERT(reader->asked->count < MAX_ASKED);
        reader->asked->names[reader->asked->count++] = key;
    }
    const json_t *value = json_object_get(reader->object, key);
    return json_is_null(value) ? NULL : value;
}

const char *reader_show(const json_t *value, char out[64])
{
    OWNED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    snprintf(out, 64, "%.60s", text ? text : "?");
    return out;
}

/* Whether there is a value; one that is not `good` is a fault. */
static bool expect(struct config_reader *reader, const char *key, const json_t *value, bool good, const char *expected)
{
    char text[64];
    if (value && !good)
        reader_fail(reader, STATUS_DATA, "%s%s must be %s, not %s", reader->scope, key, expected,
                    reader_show(value, text));
    return value && good;
}

int64_t reader_int(struct config_reader *reader, const char *key, int64_t absent, int64_t min, int64_t max)
{
    const json_t *value = reader_get(reader, key);
    if (!expect(reader, key, value, json_is_integer(value), "an integer")) return absent;
    const int64_t n = json_integer_value(value);
    if (n >= min && n <= max) return n;
    reader_fail(reader, STATUS_DATA, "%s%s is %" PRId64 ", expected %" PRId64 " … %" PRId64, reader->scope, key, n, min,
                max);
    return absent;
}

double reader_positive(struct config_reader *reader, const char *key, double absent)
{
    const json_t *value = reader_get(reader, key);
    const double number = json_number_value(value);
    return expect(reader, key, value, number > 0, "a number above 0") ? number : absent;
}

bool reader_bool(struct config_reader *reader, const char *key, bool absent)
{
    const json_t *value = reader_get(reader, key);
    return expect(reader, key, value, json_is_boolean(value), "true or false") ? json_is_true(value) : absent;
}

const char *reader_string(struct config_reader *reader, const char *key, const char *absent)
{
    const json_t *value = reader_get(reader, key);
    return expect(reader, key, value, json_is_string(value), "a string") ? json_string_value(value) : absent;
}

void config_notice(struct model_desc *desc, const char *format, ...)
{
    char line[512];
    WITH_ARGS(format, vsnprintf(line, sizeof line, format, args));
    string_list_add(&desc->notices, line);
}

bool reader_value_is(const json_t *value, const char *wanted)
{
    json_auto_t *other = json_loads(wanted, JSON_DECODE_ANY, NULL);
    ASSERT(other);
    return json_is_number(value) && json_is_number(other) ? json_number_value(value) == json_number_value(other)
                                                          : json_equal(value, other);
}

bool reader_is_null(const struct config_reader *reader, const char *key)
{
    return json_is_null(json_object_get(reader->object, key));
}

/* The key of the object that is nearest to a wanted one, among those that were not asked for; NULL: none is similar.
 * Keys of other families and of other software are more than two letters away. */
static const char *misspelt(const struct config_reader *reader, const char *wanted)
{
    enum { MOST_LETTERS = 2 };
    const char *best = NULL, *key;
    int best_distance = MOST_LETTERS + 1;
    json_t *value;
    json_object_foreach ((json_t *)reader->object, key, value) {
        if (llabs((long long)strlen(key) - (long long)strlen(wanted)) > MOST_LETTERS || is_asked(reader->asked, key))
            continue;
        int distance = edit_distance(key, wanted);
        if (distance < best_distance && distance <= edit_distance_limit(key)) {
            best = key;
            best_distance = distance;
        }
    }
    return best;
}

/* In a run spec the error replaces one that it may have caused, and --set may have added it beside the right key. */
void reader_check_spelling(struct config_reader *reader, struct model_desc *desc)
{
    for (int i = 0; i < reader->asked->count; i++) {
        const char *key = reader->asked->names[i], *scope = reader->scope;
        const char *close = misspelt(reader, key);
        if (!close || (json_object_get(reader->object, key) && !reader->spec)) continue;
        char text[256];
        snprintf(text, sizeof text, "'%s%.70s' is not a key of a %s config; hint: did you mean '%s%s'?", scope, close,
                 reader->family, scope, key);
        if (!reader->spec) {
            config_notice(desc, "%s", text);
            continue;
        }
        reader->status = STATUS_OK;
        reader_fail(reader, STATUS_USAGE, "%s", text);
        return;
    }
}
