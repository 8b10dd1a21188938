#include "cmd/report/spec_pairs.h"

#include "core/fsutil.h"
#include "core/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct walk {
    struct spec_pairs *pairs;
    yaml_parser_t parser;
    bool failed;
};

static void add_pair(struct spec_pairs *pairs, char *key, char *value)
{
    pairs->items = memory_resize(pairs->items, (size_t)(pairs->count + 1) * sizeof *pairs->items);
    pairs->items[pairs->count++] = (struct spec_pair){.key = key, .value = value};
}

/* The next event; a failure is an event of no type. */
static yaml_event_t next_event(struct walk *walk)
{
    yaml_event_t event;
    if (walk->failed || !yaml_parser_parse(&walk->parser, &event)) {
        walk->failed = true;
        memset(&event, 0, sizeof event);
    }
    return event;
}

static char *scalar_text(const yaml_event_t *event)
{
    return memory_printf("%.*s", (int)event->data.scalar.length, (const char *)event->data.scalar.value);
}

static bool ends(const struct walk *walk, const yaml_event_t *event)
{
    return walk->failed || event->type == YAML_MAPPING_END_EVENT || event->type == YAML_SEQUENCE_END_EVENT;
}

/* The text of a value that begins with `event`, on one line. */
static char *flow_text(struct walk *walk, const yaml_event_t *event, int depth)
{
    if (event->type == YAML_SCALAR_EVENT)
        return scalar_text(event);
    const bool list = event->type == YAML_SEQUENCE_START_EVENT;
    if ((!list && event->type != YAML_MAPPING_START_EVENT) || depth > SPEC_PAIRS_DEPTH) {
        walk->failed = true;
        return memory_text("");
    }
    char *text;
    size_t bytes;
    FILE *out = memory_stream(&text, &bytes);
    fputc(list ? '[' : '{', out);
    for (int i = 0;; i++) {
        yaml_event_t inner = next_event(walk);
        const bool end = ends(walk, &inner), value = !list && i % 2;
        char *part = end ? NULL : flow_text(walk, &inner, depth + 1);
        yaml_event_delete(&inner);
        if (end)
            break;
        fprintf(out, "%s%s", i == 0 ? "" : value ? ": " : ", ", part);
        free(part);
    }
    fputc(list ? ']' : '}', out);
    fclose(out);
    return text;
}

/* The members of a mapping whose start was read; prefix: its path, with a dot at its end, or "". */
static void walk_mapping(struct walk *walk, const char *prefix, int depth)
{
    for (;;) {
        yaml_event_t name = next_event(walk);
        const bool end = ends(walk, &name);
        if (!end &&
            (name.type != YAML_SCALAR_EVENT || depth > SPEC_PAIRS_DEPTH || walk->pairs->count == SPEC_PAIRS_MAX))
            walk->failed = true;
        if (end || walk->failed) {
            yaml_event_delete(&name);
            return;
        }
        char *leaf = scalar_text(&name), *key = memory_printf("%s%s", prefix, leaf);
        yaml_event_delete(&name);
        yaml_event_t value = next_event(walk);
        if (value.type == YAML_MAPPING_START_EVENT) {
            char *inner = memory_printf("%s.", key);
            walk_mapping(walk, inner, depth + 1);
            free(inner);
            free(key);
        } else if (!walk->failed) {
            add_pair(walk->pairs, key, flow_text(walk, &value, depth + 1));
        } else {
            free(key);
        }
        yaml_event_delete(&value);
        free(leaf);
    }
}

/* Reads on to the mapping that the document is. */
static bool find_mapping(struct walk *walk)
{
    for (;;) {
        yaml_event_t event = next_event(walk);
        const yaml_event_type_t type = event.type;
        yaml_event_delete(&event);
        if (type == YAML_MAPPING_START_EVENT)
            return true;
        if (type != YAML_STREAM_START_EVENT && type != YAML_DOCUMENT_START_EVENT)
            return false;
    }
}

enum status spec_pairs_read(struct spec_pairs *pairs, const char *path, struct error *err)
{
    char *text;
    size_t bytes;
    struct walk walk = {.pairs = pairs};
    *pairs = (struct spec_pairs){.count = 0};
    TRY(fs_read_file(path, SPEC_PAIRS_BYTES, STATUS_CHECKPOINT, &text, &bytes, err));
    if (!yaml_parser_initialize(&walk.parser))
        memory_exhausted(0);
    yaml_parser_set_input_string(&walk.parser, (const unsigned char *)text, bytes);
    if (find_mapping(&walk))
        walk_mapping(&walk, "", 0);
    else
        walk.failed = true;
    yaml_parser_delete(&walk.parser);
    free(text);
    if (!walk.failed)
        return STATUS_OK;
    spec_pairs_release(pairs);
    return error_set(err, STATUS_CHECKPOINT, "'%s' is not a run spec", path);
}

void spec_pairs_release(struct spec_pairs *pairs)
{
    for (int i = 0; i < pairs->count; i++) {
        free(pairs->items[i].key);
        free(pairs->items[i].value);
    }
    free(pairs->items);
    *pairs = (struct spec_pairs){.count = 0};
}

const char *spec_pairs_find(const struct spec_pairs *pairs, const char *key)
{
    for (int i = 0; i < pairs->count; i++)
        if (!strcmp(pairs->items[i].key, key))
            return pairs->items[i].value;
    return NULL;
}
