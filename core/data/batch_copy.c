#include "core/data/batch_copy.h"

#include "core/memory.h"

#include <string.h>

/* Copies an array of the batch to *place, which moves on. Returns the copy; NULL of NULL. */
static const void *copy_array(char **place, const void *array, size_t bytes)
{
    char *copy = *place;
    if (!array)
        return NULL;
    memcpy(copy, array, bytes);
    *place += bytes;
    return copy;
}

struct batch *batch_copy(const struct batch *batch)
{
    const size_t tokens = (size_t)batch->num_tokens, starts = (size_t)batch->num_seqs + 1;
    const size_t bytes = tokens * (sizeof(uint64_t) + 4 * sizeof(int32_t)) + starts * sizeof(int32_t);
    struct batch *copy = memory_alloc(sizeof *copy + bytes);
    char *place = (char *)(copy + 1);
    *copy = *batch;
    copy->numbers = copy_array(&place, batch->numbers, tokens * sizeof *batch->numbers); /* first: its alignment */
    copy->tokens = copy_array(&place, batch->tokens, tokens * sizeof *batch->tokens);
    copy->targets = copy_array(&place, batch->targets, tokens * sizeof *batch->targets);
    copy->positions = copy_array(&place, batch->positions, tokens * sizeof *batch->positions);
    copy->types = copy_array(&place, batch->types, tokens * sizeof *batch->types);
    copy->seq_start = copy_array(&place, batch->seq_start, starts * sizeof *batch->seq_start);
    copy->source_samples = copy->source_targets = NULL;
    return copy;
}
