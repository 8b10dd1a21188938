/* SPDX-License-Identifier: Apache-2.0 */
/* spec_tree.h: the run spec as it was written: a tree of nodes with their places, in an arena. Only core/spec uses it.
 * Messages are collected, each with its place, and sorted at the end: a user sees all errors at once. */
#pragma once

#include "core/spec/spec.h"

enum {
    SPEC_MAX_BYTES = 4 << 20, /* size of a file */
    SPEC_MAX_DEPTH = 64,
    SPEC_MAX_NODES = 100000,
    SPEC_MAX_MAPPING = 1024, /* keys of one mapping: they are compared pairwise */
    SPEC_MAX_PROBLEMS = 200  /* lines printed; the others are counted */
};

/* Memory that is released as a whole. If there is none left, the process ends (core/memory.h). */
struct spec_arena {
    struct spec_block *blocks;
};
void *spec_arena_alloc(struct spec_arena *arena, size_t size); /* zeroed */
char *spec_arena_copy(struct spec_arena *arena, const char *text, size_t length);
char *spec_arena_text(struct spec_arena *arena, const char *text);
char *spec_arena_printf(struct spec_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *spec_arena_vprintf(struct spec_arena *arena, const char *format, va_list args);
void spec_arena_release(struct spec_arena *arena);

/* Copies an array of strings (NULL: none) into an arena; the same as JSON (new reference), NULL for an empty list. */
void spec_arena_list(struct spec_arena *arena, struct string_list *list, const json_t *array);
json_t *spec_list_json(const struct string_list *list);

/* A place in the sources. Source 0 is the run spec, 1 the DeepSpeed file, 2 + i the i-th --set. line 0: the whole
 * source ("file: message"); an override has no lines ("--set a.b.c: message"). */
struct spec_pos {
    int source, line, column;
};

enum spec_kind { NODE_NULL, NODE_BOOL, NODE_INT, NODE_REAL, NODE_STRING, NODE_LIST, NODE_MAPPING };

struct spec_node {
    enum spec_kind kind;
    struct spec_pos pos;     /* place of the value */
    struct spec_pos key_pos; /* place of its key, in a mapping */
    const char *key;         /* in a mapping; else NULL */
    const char *text;        /* of a scalar, as written, quotes and escapes removed */
    bool plain;              /* a scalar without quotes */
    bool finite;             /* NODE_REAL: false for NaN, infinity and numbers that overflow */
    bool removed;            /* an override has set a key of a file to null */
    bool was_auto;           /* the value takes the place of an "auto" */
    bool taken;              /* a rule of `ztrain convert` has read it */
    bool boolean;
    int64_t integer;
    double real; /* also of NODE_INT */
    int count;   /* children of a list or mapping */
    struct spec_node *first, *last, *next;
};

struct spec_problem {
    struct spec_pos pos;
    int order; /* in which it was found: breaks ties */
    const char *text;
};

struct spec_problems {
    struct spec_problem items[SPEC_MAX_PROBLEMS];
    int count, dropped;
};

/* Shared by all functions that read and check one spec. */
struct spec_context {
    struct spec_arena *arena;
    const char **sources; /* their names: a path, a path, "--set a.b.c", … */
    int num_sources;
    struct spec_problems errors, notices;
};

/* spec_error() returns NULL, what a reader of a value returns after an error. */
void *spec_error(struct spec_context *ctx, struct spec_pos pos, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void spec_notice(struct spec_context *ctx, struct spec_pos pos, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Below 0, 0 or above 0: the order of two places. */
int spec_pos_compare(struct spec_pos a, struct spec_pos b);

/* Moves a place over the text between two pointers; a column counts characters. */
void spec_pos_advance(struct spec_pos *pos, const char *from, const char *to);

/* "file:line:column", "file" or "--set a.b.c" */
const char *spec_pos_text(struct spec_context *ctx, struct spec_pos pos);

/* A user's text for a message: control characters escaped, cut at 60 bytes. */
const char *spec_show(struct spec_context *ctx, const char *text);

/* Sorts the collected lines by place and appends them to `lines`, each "place: text". */
void spec_problems_print(struct spec_context *ctx, struct spec_problems *problems, struct string_list *lines);

/* A whole file of at most SPEC_MAX_BYTES, with a NUL after it. NULL after an error. */
char *spec_read_file(struct spec_context *ctx, int source, size_t *size);

/* Parses YAML. NULL after an error that ends the reading; a key set twice is an error after which it goes on. */
struct spec_node *spec_parse_yaml(struct spec_context *ctx, int source, const char *text, size_t size);

/* Gives a scalar without quotes its kind: a NODE_STRING becomes null, a bool or a number if its text is one. */
void spec_yaml_plain(struct spec_node *node);

/* Parses JSON, or Hjson (spec_hjson.c). NULL as with YAML. */
struct spec_node *spec_parse_json(struct spec_context *ctx, int source, const char *text, size_t size);

/* The path that is the value of `key`, with HOME in the place of ~ at its beginning. NULL after an error. */
const char *spec_home_path(struct spec_context *ctx, const char *key, const struct spec_node *node);

/* Appends a child to a list or a mapping. A key that the mapping has is an error, after which reading goes on. */
void spec_attach(struct spec_context *ctx, struct spec_node *parent, struct spec_node *child);

/* A deep copy, without a next. */
struct spec_node *spec_copy(struct spec_context *ctx, const struct spec_node *node);

/* Takes a child out of a list or a mapping. */
void spec_unlink(struct spec_node *parent, const struct spec_node *child);

/* Whether one of the words, with blanks between them, is `word`, or its beginning before a star. */
bool spec_has_word(const char *words, const char *word);

/* Whether the value is this text; "auto"; a number, whose value is `real`. node may be NULL. */
bool spec_is_text(const struct spec_node *node, const char *text);
bool spec_is_auto(const struct spec_node *node);
bool spec_is_number(const struct spec_node *node);
bool spec_is_true(const struct spec_node *node); /* the truth value */

/* The items of a list, or a value in its place that is nobody's child. */
static inline const struct spec_node *spec_items(const struct spec_node *node)
{
    return node && node->kind == NODE_LIST ? node->first : node;
}

/* The child of a mapping with this key, or NULL (also if node is NULL or not a mapping). */
struct spec_node *spec_child(const struct spec_node *node, const char *key);

/* The node at a dotted path, or NULL. */
struct spec_node *spec_find(const struct spec_node *root, const char *path);

/* Moves the keys of `from` into `into`, section by section. Two values are an error, unless one is null or "auto". */
void spec_merge(struct spec_context *ctx, struct spec_node *into, struct spec_node *from);

/* Puts `value` (copied) at the path before the '=' of an override, "a.b.c=VALUE". Missing sections are created. */
void spec_override(struct spec_context *ctx, struct spec_node *root, const char *assignment,
                   const struct spec_node *value);
