#include "core/text/tokenizer_json.h"

#include "core/memory.h"
#include "core/printable.h"
#include "core/text/unicode.h"
#include "core/text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What ByteLevel cuts by: GPT-2's expression. */
static const char GPT2_EXPRESSION[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- messages and members ------------------------------------------------ */

enum status tokenizer_refuse(const struct tokenizer_source *source, const char *what, const char *name)
{
    return error_set(source->err, STATUS_USAGE,
                     "'%s' has the %s '%.100s', and only byte-level BPE as in GPT-2, Llama 3 and Qwen is read",
                     source->where, what, PRINTABLE(name));
}

enum status tokenizer_damaged(const struct tokenizer_source *source, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(source->err, STATUS_DATA, "'%s' is no tokenizer: %s", source->where, PRINTABLE(text));
}

enum status tokenizer_flag(const struct tokenizer_source *source, const json_t *object, const char *key, bool absent,
                           bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_is_boolean(value) ? json_is_true(value) : absent;
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return tokenizer_damaged(source, "'%s' is neither true nor false", key);
    return STATUS_OK;
}

const char *tokenizer_type(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type ? type : "?";
}

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static bool has_type(const json_t *component, const char *type)
{
    return strcmp(tokenizer_type(component), type) == 0;
}

/* ---- normalizer, pre-tokenizer, decoder ---------------------------------- */

enum status tokenizer_read_normalizer(const struct tokenizer_source *source, const json_t *normalizer, bool *nfc)
{
    if (is_absent(normalizer))
        return STATUS_OK;
    if (has_type(normalizer, "NFC")) {
        *nfc = true;
        return STATUS_OK;
    }
    if (!has_type(normalizer, "Sequence"))
        return tokenizer_refuse(source, "normalizer", tokenizer_type(normalizer));
    const json_t *members = json_object_get(normalizer, "normalizers"), *member;
    size_t i;
    json_array_foreach((json_t *)members, i, member)
    {
        if (!has_type(member, "NFC"))
            return tokenizer_refuse(source, "normalizer", tokenizer_type(member));
        *nfc = true;
    }
    return STATUS_OK;
}

static enum status add_cut(const struct tokenizer_source *source, struct pre_tokenizer *cutter, struct cut cut)
{
    if (cutter->count == CUT_STEPS) {
        pattern_free(cut.pattern);
        return tokenizer_refuse(source, "pre-tokenizer", "Sequence of more than 8");
    }
    cutter->cuts[cutter->count++] = cut;
    return STATUS_OK;
}

static enum status add_pattern(const struct tokenizer_source *source, const char *expression, struct cut cut,
                               struct pre_tokenizer *cutter)
{
    enum status status = pattern_compile(expression, &cut.pattern, source->err);
    if (status != STATUS_OK)
        return error_prefix(source->err, "'%s'", source->where);
    cut.kind = CUT_BY_PATTERN;
    return add_cut(source, cutter, cut);
}

static enum status read_split(const struct tokenizer_source *source, const json_t *split, struct pre_tokenizer *cutter)
{
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    const char *expression = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    bool invert;
    TRY(tokenizer_flag(source, split, "invert", false, &invert));
    if (!behavior)
        return tokenizer_damaged(source, "a Split without a 'behavior'");
    if (!expression)
        return tokenizer_refuse(source, "pre-tokenizer", "Split without a Regex");
    bool removed = strcmp(behavior, "Removed") == 0;
    if (!removed && strcmp(behavior, "Isolated") != 0)
        return tokenizer_refuse(source, "behavior of a Split", behavior);
    return add_pattern(source, expression,
                       (struct cut){.drop_matches = removed && !invert, .drop_others = removed && invert}, cutter);
}

static enum status read_byte_level(const struct tokenizer_source *source, const json_t *component,
                                   struct pre_tokenizer *cutter)
{
    bool prefix, expression;
    TRY(tokenizer_flag(source, component, "add_prefix_space", true, &prefix));
    TRY(tokenizer_flag(source, component, "use_regex", true, &expression));
    if (prefix)
        TRY(add_cut(source, cutter, (struct cut){.kind = CUT_PREFIX}));
    return expression ? add_pattern(source, GPT2_EXPRESSION, (struct cut){0}, cutter) : STATUS_OK;
}

/* A component other than a Sequence; *mapped: ByteLevel, after which words are no text any more, has come. */
static enum status read_cut(const struct tokenizer_source *source, const json_t *component, bool *mapped,
                            struct pre_tokenizer *cutter)
{
    bool each;
    if (*mapped)
        return tokenizer_refuse(source, "pre-tokenizer after ByteLevel", tokenizer_type(component));
    if (has_type(component, "ByteLevel")) {
        *mapped = true;
        return read_byte_level(source, component, cutter);
    }
    if (has_type(component, "Split"))
        return read_split(source, component, cutter);
    if (!has_type(component, "Digits"))
        return tokenizer_refuse(source, "pre-tokenizer", tokenizer_type(component));
    TRY(tokenizer_flag(source, component, "individual_digits", false, &each));
    return add_cut(source, cutter, (struct cut){.kind = CUT_DIGITS, .each_digit = each});
}

enum status tokenizer_read_cuts(const struct tokenizer_source *source, const json_t *component,
                                struct pre_tokenizer *cutter)
{
    bool mapped = false;
    if (is_absent(component))
        return tokenizer_refuse(source, "pre-tokenizer", "null");
    if (has_type(component, "Sequence")) {
        const json_t *members = json_object_get(component, "pretokenizers"), *member;
        size_t i;
        json_array_foreach((json_t *)members, i, member) TRY(read_cut(source, member, &mapped, cutter));
    } else {
        TRY(read_cut(source, component, &mapped, cutter));
    }
    return mapped ? STATUS_OK : tokenizer_refuse(source, "pre-tokenizer without ByteLevel", tokenizer_type(component));
}

enum status tokenizer_read_decoder(const struct tokenizer_source *source, const json_t *decoder)
{
    if (is_absent(decoder))
        return tokenizer_refuse(source, "decoder", "null");
    return has_type(decoder, "ByteLevel") ? STATUS_OK : tokenizer_refuse(source, "decoder", tokenizer_type(decoder));
}

/* ---- added tokens -------------------------------------------------------- */

/* What the added tokens were given so far. */
struct added_ids {
    struct bpe seen; /* a table of their contents */
    int32_t next;    /* of a token that is not in the vocabulary */
};

/* The id that `tokenizers` gives to a token: the vocabulary's, or the next one. It ignores the file's. */
static enum status check_id(const struct tokenizer_source *source, const struct bpe *vocabulary, const char *content,
                            json_int_t id, struct added_ids *ids)
{
    const size_t bytes = strlen(content);
    const int32_t known = bpe_find(vocabulary, content, bytes), expected = known >= 0 ? known : ids->next;
    if (bpe_find(&ids->seen, content, bytes) >= 0)
        return tokenizer_damaged(source, "the added token '%.100s' is there twice", content);
    if (id != expected)
        return tokenizer_damaged(source, "the added token '%.100s' has the id %lld, but %s %d", content, (long long)id,
                                 known >= 0 ? "in the vocabulary" : "the next id is", expected);
    if (expected > BPE_MAX_ID)
        return tokenizer_damaged(source, "the added token '%.100s' has the id %d, and the largest is %d", content,
                                 expected, BPE_MAX_ID);
    bpe_add_token(&ids->seen, content, bytes, expected);
    ids->next = expected >= ids->next ? expected + 1 : ids->next;
    return STATUS_OK;
}

static enum status read_added(const struct tokenizer_source *source, const json_t *item, struct added_ids *ids,
                              struct tokenizer *out)
{
    const char *content = json_string_value(json_object_get(item, "content"));
    const json_t *id = json_object_get(item, "id");
    struct added_token token = {0};
    if (!content || !json_is_integer(id))
        return tokenizer_damaged(source, "an added token without 'content' or 'id'");
    if (!content[0])
        return STATUS_OK; /* matches nowhere */
    TRY(check_id(source, &out->bpe, content, json_integer_value(id), ids));
    TRY(tokenizer_flag(source, item, "special", false, &token.special));
    TRY(tokenizer_flag(source, item, "single_word", false, &token.single_word));
    TRY(tokenizer_flag(source, item, "lstrip", false, &token.lstrip));
    TRY(tokenizer_flag(source, item, "rstrip", false, &token.rstrip));
    TRY(tokenizer_flag(source, item, "normalized", !token.special, &token.normalized));
    token.id = (int32_t)json_integer_value(id);
    token.content = memory_text(content);
    struct text normal = {0};
    if (token.normalized && out->nfc)
        unicode_nfc(content, strlen(content), &normal);
    token.pattern = normal.bytes ? normal.bytes : memory_text(content);
    token.length = strlen(token.pattern);
    added_tokens_add(&out->added, token);
    return STATUS_OK;
}

enum status tokenizer_read_added(const struct tokenizer_source *source, const json_t *added, struct tokenizer *out)
{
    if (!is_absent(added) && !json_is_array(added))
        return tokenizer_damaged(source, "'added_tokens' is no list");
    struct added_ids ids = {.next = (int32_t)out->bpe.entry_count};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(added) && status == STATUS_OK; i++)
        status = read_added(source, json_array_get(added, i), &ids, out);
    bpe_release(&ids.seen);
    TRY(status);
    added_tokens_index(&out->added);
    return STATUS_OK;
}

/* ---- post-processor ------------------------------------------------------ */

/* Appends the ids of a special token of a template. */
static enum status add_special(const struct tokenizer_source *source, const json_t *template, const json_t *piece,
                               struct token_list *out)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *token = json_object_get(json_object_get(template, "special_tokens"), name ? name : "");
    const json_t *ids = json_object_get(token, "ids"), *id;
    size_t i;
    if (!json_is_array(ids))
        return tokenizer_damaged(source, "the template's token '%.100s' has no ids", name ? name : "?");
    json_array_foreach((json_t *)ids, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > BPE_MAX_ID)
            return tokenizer_damaged(source, "an id of the template's token '%.100s'", name);
        token_list_add(out, (int32_t)json_integer_value(id));
    }
    return STATUS_OK;
}

/* What comes before and after the text, Sequence A. */
static enum status read_template(const struct tokenizer_source *source, const json_t *template,
                                 struct token_list *before, struct token_list *after)
{
    const json_t *pieces = json_object_get(template, "single"), *piece;
    size_t i;
    int texts = 0;
    json_array_foreach((json_t *)pieces, i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken");
        const char *text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (special)
            TRY(add_special(source, template, special, texts ? after : before));
        else if (text && strcmp(text, "A") == 0)
            texts++;
        else
            return tokenizer_damaged(source, "a piece of the template is neither a SpecialToken nor Sequence A");
    }
    return texts == 1 ? STATUS_OK : tokenizer_damaged(source, "the template has the text %d times", texts);
}

static void append_ids(struct token_list *out, const struct token_list *ids)
{
    for (size_t i = 0; i < ids->count; i++)
        token_list_add(out, ids->ids[i]);
}

/* A template around what the processors before it have put around the text. */
static enum status wrap(const struct tokenizer_source *source, const json_t *template, struct tokenizer *out)
{
    struct token_list before = {0}, after = {0};
    enum status status = read_template(source, template, &before, &after);
    if (status == STATUS_OK) {
        append_ids(&before, &out->before);
        append_ids(&out->after, &after);
        token_list_release(&out->before);
        out->before = before;
        before = (struct token_list){0};
    }
    token_list_release(&before);
    token_list_release(&after);
    return status;
}

static enum status read_one_processor(const struct tokenizer_source *source, const json_t *processor,
                                      struct tokenizer *out)
{
    if (has_type(processor, "ByteLevel")) /* trims offsets, which are not kept */
        return STATUS_OK;
    if (has_type(processor, "TemplateProcessing"))
        return wrap(source, processor, out);
    return tokenizer_refuse(source, "post-processor", tokenizer_type(processor));
}

enum status tokenizer_read_processor(const struct tokenizer_source *source, const json_t *processor,
                                     struct tokenizer *out)
{
    if (is_absent(processor))
        return STATUS_OK;
    if (!has_type(processor, "Sequence"))
        return read_one_processor(source, processor, out);
    const json_t *members = json_object_get(processor, "processors"), *member;
    size_t i;
    json_array_foreach((json_t *)members, i, member) TRY(read_one_processor(source, member, out));
    return STATUS_OK;
}
