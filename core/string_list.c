/* SPDX-License-Identifier: Apache-2.0 */
#include "core/string_list.h"

#include "core/memory.h"

void string_list_add(struct string_list *list, const char *text)
{
    list->items = memory_grow(list->items, (size_t)list->count, sizeof *list->items);
    list->items[list->count++] = memory_text(text);
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void string_list_sort(struct string_list *list)
{
    if (list->count) qsort(list->items, (size_t)list->count, sizeof *list->items, compare_strings);
}

void string_list_release(struct string_list *list)
{
    for (int i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (struct string_list){0};
}
