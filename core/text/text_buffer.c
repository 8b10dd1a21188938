#include "core/text/text_buffer.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64 };

void token_list_add(struct token_list *list, int32_t id)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : FIRST_ROOM;
        list->ids = memory_resize(list->ids, list->room * sizeof *list->ids);
    }
    list->ids[list->count++] = id;
}

void token_list_release(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

void text_add(struct text *text, const void *bytes, size_t count)
{
    if (text->count + count + 1 > text->room) {
        text->room = 2 * (text->count + count) + FIRST_ROOM;
        text->bytes = memory_resize(text->bytes, text->room);
    }
    if (count)
        memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    text->bytes[text->count] = 0;
}

void text_release(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}
