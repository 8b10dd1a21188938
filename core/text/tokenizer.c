#include "core/text/tokenizer.h"

#include "core/memory.h"
#include "core/text/byte_level.h"
#include "core/text/unicode.h"
#include "core/text/tokenizer_parts.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    added_tokens_release(&tokenizer->added);
    pre_tokenizer_release(&tokenizer->cutter);
    bpe_release(&tokenizer->bpe);
    token_list_release(&tokenizer->before);
    token_list_release(&tokenizer->after);
    free(tokenizer);
}

/* ---- text to ids --------------------------------------------------------- */

struct encoder {
    const struct tokenizer *tokenizer;
    struct bpe_room room;
    struct text normal; /* the normal form of a part */
    struct token_list *out;
    struct error *err;
};

static void take_word(void *context, const char *word, size_t bytes)
{
    struct encoder *encoder = context;
    bpe_encode(&encoder->tokenizer->bpe, word, bytes, &encoder->room, encoder->out);
}

/* A part without tokens of the first set: it is normalized, and then has those of the second. */
static enum status encode_part(struct encoder *encoder, const char *text, size_t bytes)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (tokenizer->nfc) {
        encoder->normal.count = 0;
        unicode_nfc(text, bytes, &encoder->normal);
        text = encoder->normal.bytes;
        bytes = encoder->normal.count;
    }
    struct added_walk walk = {.text = text, .count = bytes, .set = 1, .no_special = tokenizer->splits_special};
    struct added_part part;
    while (added_tokens_next(&tokenizer->added, &walk, &part)) {
        if (part.token)
            token_list_add(encoder->out, part.token->id);
        else
            TRY(pre_tokenizer_run(&tokenizer->cutter, text + part.start, part.end - part.start, take_word, encoder,
                                  encoder->err));
    }
    return STATUS_OK;
}

static enum status encode_text(struct encoder *encoder, const char *text, size_t bytes)
{
    struct added_walk walk = {.text = text, .count = bytes, .no_special = encoder->tokenizer->splits_special};
    struct added_part part;
    while (added_tokens_next(&encoder->tokenizer->added, &walk, &part)) {
        if (part.token)
            token_list_add(encoder->out, part.token->id);
        else
            TRY(encode_part(encoder, text + part.start, part.end - part.start));
    }
    return STATUS_OK;
}

static void add_all(struct token_list *out, const struct token_list *ids)
{
    for (size_t i = 0; i < ids->count; i++)
        token_list_add(out, ids->ids[i]);
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
    if (add_special)
        add_all(out, &tokenizer->before);
    enum status status = encode_text(&encoder, text, bytes);
    if (add_special)
        add_all(out, &tokenizer->after);
    bpe_room_release(&encoder.room);
    text_release(&encoder.normal);
    return status;
}

/* ---- ids to text --------------------------------------------------------- */

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Adds a byte, and moves what is complete, or can never be, to `out`. */
static void take_byte(struct text_stream *stream, unsigned char byte, struct text *out)
{
    stream->waiting[stream->count++] = byte;
    while (stream->count > 0) {
        uint32_t point;
        int length = utf8_next(stream->waiting, (size_t)stream->count, &point);
        if (length == 0)
            return;
        if (length > 0)
            text_add(out, stream->waiting, (size_t)length);
        else
            text_add(out, REPLACEMENT, sizeof REPLACEMENT - 1);
        int used = length > 0 ? length : -length;
        stream->count -= used;
        memmove(stream->waiting, stream->waiting + used, (size_t)stream->count);
    }
}

void text_stream_push(struct text_stream *stream, const struct tokenizer *tokenizer, int32_t id, bool skip_special,
                      struct text *out)
{
    const struct added_token *added = added_tokens_by_id(&tokenizer->added, id);
    struct text bytes = {0};
    size_t length = 0;
    const char *token = added ? added->pattern : bpe_token(&tokenizer->bpe, id, &length);
    if (!token || (added && added->special && skip_special))
        return;
    byte_level_unmap(token, added ? added->length : length, &bytes);
    for (size_t i = 0; i < bytes.count; i++)
        take_byte(stream, (unsigned char)bytes.bytes[i], out);
    text_release(&bytes);
}

void text_stream_end(struct text_stream *stream, struct text *out)
{
    if (stream->count > 0)
        text_add(out, REPLACEMENT, sizeof REPLACEMENT - 1);
    stream->count = 0;
}

void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                      struct text *out)
{
    struct text_stream stream = {0};
    for (size_t i = 0; i < count; i++)
        text_stream_push(&stream, tokenizer, ids[i], skip_special, out);
    text_stream_end(&stream, out);
}

/* ---- what else is known -------------------------------------------------- */

int32_t tokenizer_size(const struct tokenizer *tokenizer)
{
    int32_t size = tokenizer->bpe.size;
    for (size_t i = 0; i < tokenizer->added.count; i++)
        if (tokenizer->added.items[i].id >= size)
            size = tokenizer->added.items[i].id + 1;
    return size;
}

int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *content)
{
    for (size_t i = 0; i < tokenizer->added.count; i++)
        if (strcmp(tokenizer->added.items[i].content, content) == 0)
            return tokenizer->added.items[i].id;
    return bpe_find(&tokenizer->bpe, content, strlen(content));
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}
