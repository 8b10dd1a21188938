/* SPDX-License-Identifier: Apache-2.0 */
/* text_buffer.h: lists of token ids, bytes of text, and tables of texts, which grow. {0} is empty. */
#pragma once

#include "core/status.h"

struct token_list {
    int32_t *ids;
    size_t count;
};
void token_list_add(struct token_list *list, int32_t id);
void token_list_append(struct token_list *list, const struct token_list *more);
void token_list_release(struct token_list *list);

/* UTF-8, and a NUL after it (which does not count) once anything was added. */
struct text {
    char *bytes;
    size_t count, room;
};
void text_add(struct text *text, const void *bytes, size_t count);
void text_release(struct text *text);

/* Numbers (>= 0) by texts, of any bytes. Open-addressed; the number of slots is a power of two. */
struct text_entry {
    size_t at; /* of its text in `texts` */
    uint32_t bytes;
    int32_t value; /* -1: the slot is free */
};
struct text_table {
    struct text texts; /* one after the other */
    struct text_entry *entries;
    size_t slots, count;
};

/* The entry of a text; value -1: it is new, and the caller sets its value. Valid until the next one is added. */
struct text_entry *text_table_add(struct text_table *table, const void *text, size_t bytes);

/* The number of a text; -1: there is none. */
int32_t text_table_find(const struct text_table *table, const void *text, size_t bytes);

void text_table_release(struct text_table *table);
