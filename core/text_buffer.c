/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text_buffer.h"

#include "core/memory.h"

#include <xxhash.h>

enum { FIRST_ROOM = 64, FIRST_SLOTS = 1024 };

void token_list_add(struct token_list *list, int32_t id)
{
    list->ids = memory_grow(list->ids, list->count, sizeof *list->ids);
    list->ids[list->count++] = id;
}

void token_list_append(struct token_list *list, const struct token_list *more)
{
    for (size_t i = 0; i < more->count; i++) token_list_add(list, more->ids[i]);
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
    if (count) memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    text->bytes[text->count] = 0;
}

void text_release(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}

static struct text_entry *find_slot(const struct text_table *table, const void *text, size_t bytes)
{
    for (size_t slot = XXH3_64bits(text, bytes);; slot++) {
        struct text_entry *entry = &table->entries[slot & (table->slots - 1)];
        if (entry->value < 0 || (entry->bytes == bytes && memcmp(table->texts.bytes + entry->at, text, bytes) == 0))
            return entry;
    }
}

static void double_slots(struct text_table *table)
{
    struct text_entry *old = table->entries;
    const size_t old_slots = table->slots;
    table->slots = old_slots ? 2 * old_slots : FIRST_SLOTS;
    table->entries = memory_alloc(table->slots * sizeof *table->entries);
    for (size_t i = 0; i < table->slots; i++) table->entries[i].value = -1;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].value >= 0) *find_slot(table, table->texts.bytes + old[i].at, old[i].bytes) = old[i];
    free(old);
}

struct text_entry *text_table_add(struct text_table *table, const void *text, size_t bytes)
{
    ASSERT(bytes <= UINT32_MAX);
    if (2 * (table->count + 1) > table->slots) double_slots(table);
    struct text_entry *entry = find_slot(table, text, bytes);
    if (entry->value < 0) {
        *entry = (struct text_entry){.at = table->texts.count, .bytes = (uint32_t)bytes, .value = -1};
        text_add(&table->texts, text, bytes);
        table->count++;
    }
    return entry;
}

int32_t text_table_find(const struct text_table *table, const void *text, size_t bytes)
{
    return table->slots ? find_slot(table, text, bytes)->value : -1;
}

void text_table_release(struct text_table *table)
{
    text_release(&table->texts);
    free(table->entries);
    *table = (struct text_table){0};
}
