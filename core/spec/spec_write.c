/* SPDX-License-Identifier: Apache-2.0 */
/* spec_write.c: writes the effective spec as YAML and as JSON. */
#include "core/spec/spec_keys.h"

#include <utf8proc.h>

/* The fewest digits that read back as the same double, with a '.' or 'e' so that they are not an integer. */
static void write_real(FILE *out, double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, out);
    if (!strpbrk(text, ".e")) fputs(".0", out);
}

static void write_quoted(FILE *out, const char *text)
{
    utf8proc_int32_t point;
    fputc('"', out);
    for (utf8proc_ssize_t length; *text; text += length) {
        length = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &point); /* jansson has checked it */
        if (point == '"' || point == '\\')
            fprintf(out, "\\%c", (int)point);
        else if (((point >= 0x20 && point < 0x7f) || point >= 0xa0) && point != 0x2028 && point != 0x2029 &&
                 point != 0xfeff && point != 0xfffe && point != 0xffff) /* not line breaks and marks */
            fwrite(text, 1, (size_t)length, out);
        else
            fprintf(out, "\\u%04x", (unsigned)point);
    }
    fputc('"', out);
}

void spec_write_string(FILE *out, const char *text)
{
    static const char *const words[] = {"true", "false", "null", "yes", "no",  "on",
                                        "off",  "y",     "n",    "inf", "nan", "infinity"};
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
    bool path = text[0] == '/' || strncmp(text, "./", 2) == 0 || strncmp(text, "../", 3) == 0;
    bool plain = (isalpha((unsigned char)text[0]) || path) && text[strspn(text, allowed)] == 0;
    for (size_t i = 0; i < COUNT_OF(words); i++) plain = plain && strcasecmp(text, words[i]) != 0;
    if (plain)
        fputs(text, out);
    else
        write_quoted(out, text);
}

static void write_flow(FILE *out, const json_t *value)
{
    const char *glue = "", *key;
    json_t *item;
    if (json_is_real(value)) {
        write_real(out, json_real_value(value));
    } else if (json_is_string(value)) {
        spec_write_string(out, json_string_value(value));
    } else if (json_is_array(value)) {
        fputc('[', out);
        for (size_t i = 0; i < json_array_size(value); i++, glue = ", ") {
            fputs(glue, out);
            write_flow(out, json_array_get(value, i));
        }
        fputc(']', out);
    } else if (json_is_object(value)) {
        fputc('{', out);
        json_object_foreach ((json_t *)value, key, item) {
            fputs(glue, out);
            write_quoted(out, key);
            fputs(": ", out);
            write_flow(out, item);
            glue = ", ";
        }
        fputc('}', out);
    } else {
        json_dumpf(value, out, JSON_ENCODE_ANY);
    }
}

/* Prints the headers of those sections of `path` that are not open yet. Returns the depth of `path`. */
static int spec_open_sections(FILE *out, const char *path, const char *previous)
{
    int level = 0;
    bool same = true;
    for (const char *part = path, *dot; (dot = strchr(part, '.')); part = dot + 1, level++) {
        size_t length = (size_t)(dot - path) + 1;
        same = same && previous && strncmp(previous, path, length) == 0;
        if (same) continue;
        fprintf(out, "%*s%.*s:\n", 2 * level, "", (int)(dot - part), part);
    }
    return level;
}

/* Whether the value is derived from the world size or the data; it is then printed as a comment. */
static bool writes_derived(const struct spec_full *full, const struct spec_key *key)
{
    const char *field = (const char *)full + key->offset;
    const struct run_spec *spec = &full->spec;
    return (field == (const char *)&spec->train_batch_size && !full->given_batch[0]) ||
           (field == (const char *)&spec->train_micro_batch_size_per_gpu && !full->given_batch[1]) ||
           (field == (const char *)&spec->gradient_accumulation_steps && !full->given_batch[2]) ||
           (field == (const char *)&spec->scheduler.total_steps && !full->given_total_steps) ||
           (field == (const char *)&spec->data.document_mask && full->auto_document_mask &&
            spec->data.document_mask != SPEC_AUTO) ||
           spec_auto_is_derived(full, key);
}

void spec_write_yaml(const struct run_spec *spec, FILE *out)
{
    const struct spec_full *full = spec_full(spec);
    const char *previous = NULL;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        /* DeepSpeed's schedules require total_num_steps, if only as "auto"; a size of the model stays "auto" */
        bool length = key->schedules & 1u << full->spec.scheduler.type && !full->given_total_steps &&
                      strcmp(key->path, "scheduler.params.total_num_steps") == 0;
        bool is_auto = key->size && (length || spec_auto_is_derived(full, key));
        json_auto_t *value = key->size ? spec_key_fetch(full, key) : NULL;
        if (!value && !is_auto) continue;
        int level = spec_open_sections(out, key->path, previous);
        previous = key->path;
        fprintf(out, "%*s%s%s: ", 2 * level, "", writes_derived(full, key) && !is_auto ? "# " : "",
                spec_key_leaf(key->path));
        const json_t *first = json_array_get(value, 0);
        const bool alone = json_is_string(first) && json_array_size(value) == 1 && key->type != KEY_MODULES;
        if (is_auto)
            fputs("auto", out);
        else
            write_flow(out, alone ? first : value);
        if (writes_derived(full, key) && value) {
            fputs(is_auto ? " # derived: " : " # derived", out);
            if (is_auto) write_flow(out, value);
        }
        fputc('\n', out);
    }
}

/* A list of texts or mappings, an item on each line; other values as write_flow(). */
static void write_block(FILE *out, int level, const struct spec_key *key, const json_t *value)
{
    const json_t *first = json_array_get(value, 0);
    if (!json_is_string(first) && !json_is_object(first)) {
        fputc(' ', out);
        write_flow(out, value);
        fputc('\n', out);
        return;
    }
    if (json_array_size(value) == 1 && json_is_string(first) && key->type != KEY_MODULES) {
        write_block(out, level, key, first);
        return;
    }
    fputc('\n', out);
    for (size_t i = 0; i < json_array_size(value); i++) {
        fprintf(out, "%*s- ", 2 * level + 2, "");
        write_flow(out, json_array_get(value, i));
        fputc('\n', out);
    }
}

void spec_write_values(const json_t *values, FILE *out)
{
    const char *previous = NULL;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        const json_t *value = json_object_get(values, key->path);
        if (!value) continue;
        const int level = spec_open_sections(out, key->path, previous);
        previous = key->path;
        fprintf(out, "%*s%s:", 2 * level, "", spec_key_leaf(key->path));
        write_block(out, level, key, value);
    }
}

json_t *spec_to_json(const struct run_spec *spec)
{
    const struct spec_full *full = spec_full(spec);
    json_t *json = json_object();
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        json_t *value = key->size ? spec_key_fetch(full, key) : NULL;
        if (value) json_object_set_new(json, key->path, value);
    }
    return json;
}
