/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/sample_reader.h"

/* Finds a sample, or a document of it, in the token set: first token and length, at most T (packed: T + 1). */
static enum status locate(const struct sample_reader *reader, int64_t number, int64_t *first, int64_t *length,
                          struct error *err)
{
    int64_t limit = reader->config->data.seq_length;
    if (token_stream_cuts(reader->config)) {
        const int64_t left = token_set_tokens(reader->source->set) - number * limit;
        *first = number * limit;
        *length = left < limit + 1 ? left : limit + 1;
        return STATUS_OK;
    }
    TRY(token_set_document(reader->source->set, number, first, length, err));
    *length = *length < limit ? *length : limit;
    return STATUS_OK;
}

static void add_end(struct sample_reader *reader, int64_t end)
{
    if (reader->num_ends == 0 || reader->ends[reader->num_ends - 1] < end)
        reader->ends[reader->num_ends++] = (int32_t)end;
}

static enum status sample_reader_document(const struct token_set *set, int64_t token, int64_t *n, struct error *err)
{
    int64_t low = 0, high = token_set_documents(set) - 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2, first, length;
        TRY(token_set_document(set, middle, &first, &length, err));
        if (first <= token)
            low = middle;
        else
            high = middle - 1;
    }
    *n = low;
    return STATUS_OK;
}

static enum status add_document_ends(struct sample_reader *reader, int64_t first, int64_t length, struct error *err)
{
    const struct token_set *set = reader->source->set;
    int64_t number, end = first;
    TRY(sample_reader_document(set, first, &number, err));
    for (; end < first + length && number < token_set_documents(set); number++) {
        int64_t start, count;
        TRY(token_set_document(set, number, &start, &count, err));
        end = start + count < first + length ? start + count : first + length;
        if (end > first) add_end(reader, end - first);
    }
    add_end(reader, length); /* tokens after the last document belong to none */
    return STATUS_OK;
}

static int64_t prompt_length(const uint8_t *mask, int64_t length)
{
    const uint8_t *completion = memchr(mask, 1, (size_t)length);
    return completion ? completion - mask : length;
}

/* Behind the document of *len tokens: its prompt with another's completion, cut to a sample's length. */
static enum status read_mismatched(struct sample_reader *reader, int64_t sample, bool read_tokens, int64_t *len,
                                   struct error *err)
{
    const struct token_stream_config *config = reader->config;
    const struct first_fit *fit = reader->source->fit;
    const int64_t together = config->micro_batch_size, begin = sample / together * together;
    const int64_t end = begin + together < fit->samples ? begin + together : fit->samples;
    const int64_t prompt = prompt_length(reader->mask, *len), limit = config->data.seq_length;
    int32_t *tokens = reader->tokens + 2 * limit;
    uint8_t *mask = reader->mask + 2 * limit;
    int64_t first, count;
    TRY(locate(reader, fit->documents[sample > begin ? sample - 1 : end - 1], &first, &count, err));
    TRY(token_set_read(reader->source->set, first, count, config->vocab_size, read_tokens ? tokens : NULL, mask, err));
    const int64_t skipped = prompt_length(mask, count), whole = prompt + count - skipped;
    const int64_t total = whole < limit ? whole : limit;
    memset(reader->mask + *len, 0, (size_t)prompt);
    memmove(reader->mask + *len + prompt, mask + skipped, (size_t)(total - prompt));
    if (read_tokens) {
        memcpy(reader->tokens + *len, reader->tokens, (size_t)prompt * sizeof *tokens);
        memmove(reader->tokens + *len + prompt, tokens + skipped, (size_t)(total - prompt) * sizeof *tokens);
    }
    *len += total;
    add_end(reader, *len);
    return STATUS_OK;
}

enum status sample_read(struct sample_reader *reader, int64_t sample, bool read_tokens, int64_t *len, struct error *err)
{
    const struct first_fit *fit = reader->source->fit;
    int64_t begin = fit ? fit->starts[sample] : sample, end = fit ? fit->starts[sample + 1] : sample + 1;
    const struct token_stream_config *config = reader->config;
    *len = 0;
    reader->num_ends = 0;
    for (int64_t i = begin; i < end; i++) {
        int64_t first, count;
        TRY(locate(reader, fit ? fit->documents[i] : i, &first, &count, err));
        ASSERT(!fit || config->preference || *len + count <= config->data.seq_length);
        TRY(token_set_read(reader->source->set, first, count, config->vocab_size,
                           read_tokens ? reader->tokens + *len : NULL, reader->mask ? reader->mask + *len : NULL, err));
        const struct teacher_file *teacher = reader->source->teacher;
        if (teacher && read_tokens)
            TRY(teacher_file_read(teacher, first, count, reader->teacher_ids + *len * teacher->header.K,
                                  reader->teacher_logps + *len * teacher->header.K, err));
        *len += count;
        if (token_stream_masks(config) && token_stream_cuts(config))
            TRY(add_document_ends(reader, first, count, err));
        else if (token_stream_masks(config) && count > 0)
            add_end(reader, *len);
    }
    if (!token_stream_masks(config) && *len > 0) add_end(reader, *len);
    const bool mismatched = config->preference && config->preference->loss == PREFERENCE_KTO;
    return mismatched ? read_mismatched(reader, sample, read_tokens, len, err) : STATUS_OK;
}

int64_t sample_targets(const struct sample_reader *reader)
{
    int64_t targets = 0;
    for (int s = 0, begin = 0; s < reader->num_ends; begin = reader->ends[s++]) {
        if (!reader->mask) targets += reader->ends[s] - begin - 1;
        for (int i = begin + 1; reader->mask && i < reader->ends[s]; i++) targets += reader->mask[i];
    }
    return targets;
}
