/* text_buffer.h: lists of token ids and bytes of text, which grow. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Token ids. {0} is an empty list; owned by whoever has the struct. */
struct token_list {
    int32_t *ids;
    size_t count, room;
};
void token_list_add(struct token_list *list, int32_t id);
void token_list_release(struct token_list *list);

/* Bytes of text: UTF-8, and a NUL after them (which does not count) once anything was added. {0} is an empty text. */
struct text {
    char *bytes;
    size_t count, room;
};
void text_add(struct text *text, const void *bytes, size_t count);
void text_release(struct text *text);
