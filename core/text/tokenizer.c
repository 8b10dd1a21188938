/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text/tokenizer.h"

#include "core/text/tokenizer_json.h"
#include "core/text/unicode.h"

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (!tokenizer) return;
    added_tokens_release(&tokenizer->added);
    for (int i = 0; i < tokenizer->cut_count; i++) pattern_free(tokenizer->cuts[i].pattern);
    bpe_release(&tokenizer->bpe);
    token_list_release(&tokenizer->before);
    token_list_release(&tokenizer->after);
    free(tokenizer);
}

struct encoder {
    const struct tokenizer *tokenizer;
    struct bpe_room room;
    struct text normal; /* the normal form of a part */
    struct token_list *out;
    struct error *err;
};

static enum status tokenizer_cut_text(struct encoder *encoder, int step, const char *text, size_t bytes);

/* Matches and the text between them go to the next step. */
static enum status tokenizer_cut_by_pattern(struct encoder *encoder, int step, const char *text, size_t bytes)
{
    const struct cut *cut = &encoder->tokenizer->cuts[step];
    struct pattern_search search = {0};
    size_t done = 0, start, end;
    for (;;) {
        TRY(pattern_next(cut->pattern, text, bytes, &search, &start, &end, encoder->err));
        const bool last = start > bytes;
        if (!cut->drop_others) TRY(tokenizer_cut_text(encoder, step + 1, text + done, (last ? bytes : start) - done));
        if (last) return STATUS_OK;
        if (!cut->drop_matches) TRY(tokenizer_cut_text(encoder, step + 1, text + start, end - start));
        done = end;
    }
}

static enum status tokenizer_prefix_space(struct encoder *encoder, int step, const char *text, size_t bytes)
{
    RELEASED(text_release) struct text longer = {0};
    if (text[0] != ' ') text_add(&longer, " ", 1);
    text_add(&longer, text, bytes);
    return tokenizer_cut_text(encoder, step + 1, longer.bytes, longer.count);
}

static enum status tokenizer_cut_text(struct encoder *encoder, int step, const char *text, size_t bytes)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (bytes && step < tokenizer->cut_count)
        return tokenizer->cuts[step].pattern ? tokenizer_cut_by_pattern(encoder, step, text, bytes)
                                             : tokenizer_prefix_space(encoder, step, text, bytes);
    bpe_encode(&tokenizer->bpe, text, bytes, &encoder->room, encoder->out);
    return STATUS_OK;
}

/* A text without tokens of the sets before `set`; between those of set 0 it is normalized, and searched for set 1. */
static enum status tokenizer_encode_text(struct encoder *encoder, const char *text, size_t bytes, int set)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    struct added_walk walk = {.text = text, .count = bytes, .set = set, .no_special = tokenizer->splits_special};
    struct added_part part;
    while (added_tokens_next(&tokenizer->added, &walk, &part)) {
        const char *between = text + part.start;
        size_t length = part.end - part.start;
        if (length && set == 0 && tokenizer->nfc) {
            encoder->normal.count = 0;
            unicode_nfc(between, length, &encoder->normal);
            between = encoder->normal.bytes;
            length = encoder->normal.count;
        }
        TRY(set == 0 ? tokenizer_encode_text(encoder, between, length, 1)
                     : tokenizer_cut_text(encoder, 0, between, length));
        if (part.token) token_list_add(encoder->out, part.token->id);
    }
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, bool add_special,
                             struct token_list *out, struct error *err)
{
    size_t valid = utf8_check(text, bytes);
    if (valid < bytes)
        return error_set(err, STATUS_USAGE, "the text is not UTF-8: byte %zu (0x%02x) belongs to no character", valid,
                         (unsigned char)text[valid]);
    if (bytes >= UINT32_MAX)
        return error_set(err, STATUS_USAGE, "the text has %zu bytes, which is more than 4 GiB", bytes);
    struct encoder encoder = {.tokenizer = tokenizer, .out = out, .err = err};
    if (add_special) token_list_append(out, &tokenizer->before);
    enum status status = tokenizer_encode_text(&encoder, text, bytes, 0);
    if (add_special) token_list_append(out, &tokenizer->after);
    bpe_room_release(&encoder.room);
    text_release(&encoder.normal);
    return status;
}

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Adds a byte, and moves what is complete, or can never be, to `out`. */
static void text_stream_take_byte(struct text_stream *stream, unsigned char byte, struct text *out)
{
    stream->waiting[stream->count++] = byte;
    while (stream->count > 0) {
        uint32_t point;
        int length = utf8_next(stream->waiting, (size_t)stream->count, &point);
        if (length == 0) return;
        if (length > 0)
            text_add(out, stream->waiting, (size_t)length);
        else
            text_add(out, REPLACEMENT, sizeof REPLACEMENT - 1);
        int used = length > 0 ? length : -length;
        stream->count -= used;
        memmove(stream->waiting, stream->waiting + used, (size_t)stream->count);
    }
}

void text_stream_push(struct text_stream *s, const struct tokenizer *t, int32_t id, bool skip_special, struct text *out)
{
    const struct added_token *added = added_tokens_by_id(&t->added, id);
    RELEASED(text_release) struct text bytes = {0};
    size_t length = 0;
    const char *token = added ? added->pattern : bpe_token(&t->bpe, id, &length);
    if (!token || (added && added->special && skip_special)) return;
    bpe_add_bytes(&bytes, token, added ? added->length : length);
    for (size_t i = 0; i < bytes.count; i++) text_stream_take_byte(s, (unsigned char)bytes.bytes[i], out);
}

void text_stream_end(struct text_stream *stream, struct text *out)
{
    if (stream->count > 0) text_add(out, REPLACEMENT, sizeof REPLACEMENT - 1);
    stream->count = 0;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special, struct text *out)
{
    struct text_stream stream = {0};
    for (size_t i = 0; i < count; i++) text_stream_push(&stream, t, ids[i], skip_special, out);
    text_stream_end(&stream, out);
}
