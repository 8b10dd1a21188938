/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text/tokenizer_json.h"

#include "core/text/unicode.h"

/* What ByteLevel cuts by: GPT-2's expression. */
static const char GPT2_EXPRESSION[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* What Digits cuts by: a number of any kind, in the version of Unicode that Rust's library has (17). */
#define DIGIT "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]"

struct source {
    const char *where; /* the file */
    struct error *err;
};

/* ---- messages and members ------------------------------------------------ */

static enum status tokenizer_refuse_part(const struct source *source, const char *what, const char *name)
{
    return error_set(source->err, STATUS_USAGE,
                     "'%s' has the %s '%.100s', and only byte-level BPE as in GPT-2, Llama 3 and Qwen is read",
                     source->where, what, PRINTABLE(name));
}

__attribute__((format(printf, 2, 3))) static enum status damaged(const struct source *source, const char *format, ...)
{
    char text[512];
    WITH_ARGS(format, vsnprintf(text, sizeof text, format, args));
    return error_set(source->err, STATUS_DATA, "'%s' is no tokenizer: %s", source->where, PRINTABLE(text));
}

/* A member that is true or false; absent or null: `absent`. */
static enum status read_flag(const struct source *source, const json_t *object, const char *key, bool absent, bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_is_boolean(value) ? json_is_true(value) : absent;
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return damaged(source, "'%s' is neither true nor false", key);
    return STATUS_OK;
}

static const char *type_of(const json_t *component)
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
    return strcmp(type_of(component), type) == 0;
}

/* ---- model --------------------------------------------------------------- */

/* Members that change what BPE does, in ways that byte-level tokenizers do not use. */
static enum status check_settings(const struct source *source, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool fallback;
    TRY(read_flag(source, model, "byte_fallback", false, &fallback));
    if (fallback) return tokenizer_refuse_part(source, "model's setting", "byte_fallback");
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return tokenizer_refuse_part(source, "model's setting", "dropout");
    for (size_t i = 0; i < COUNT_OF(affixes); i++) {
        const char *affix = json_string_value(json_object_get(model, affixes[i]));
        if (affix && affix[0]) return tokenizer_refuse_part(source, "model's setting", affixes[i]);
    }
    return STATUS_OK;
}

static enum status read_vocabulary(const struct source *source, const json_t *vocabulary, struct bpe *bpe)
{
    const char *text;
    json_t *id;
    int32_t twice;
    if (!json_is_object(vocabulary)) return damaged(source, "the model has no 'vocab'");
    json_object_foreach ((json_t *)vocabulary, text, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > BPE_MAX_ID)
            return damaged(source, "the id of '%.100s' is no integer of 0 … %d", text, BPE_MAX_ID);
        bpe_add_token(bpe, text, strlen(text), (int32_t)json_integer_value(id));
    }
    return bpe_index(bpe, &twice) ? STATUS_OK : damaged(source, "two tokens have the id %d", twice);
}

/* Puts the parts of a merge, "a b" or ["a", "b"], one after the other into `whole`; *split: where the second begins. */
static bool join_parts(const json_t *merge, struct text *whole, size_t *split)
{
    const char *first = json_string_value(merge), *second = first ? strchr(first, ' ') : NULL;
    if (second) {
        *split = (size_t)(second++ - first);
        if (strchr(second, ' ')) return false;
    } else {
        first = json_string_value(json_array_get(merge, 0));
        second = json_string_value(json_array_get(merge, 1));
        if (!first || !second || json_array_size(merge) != 2) return false;
        *split = strlen(first);
    }
    whole->count = 0;
    text_add(whole, first, *split);
    text_add(whole, second, strlen(second));
    return true;
}

static enum status read_merge(const struct source *source, const json_t *merge, int32_t rank, struct text *whole,
                              struct bpe *bpe)
{
    size_t split;
    int32_t ids[3];
    if (!join_parts(merge, whole, &split)) return damaged(source, "merge %d does not have two parts", rank);
    const size_t places[3][2] = {{0, split}, {split, whole->count}, {0, whole->count}};
    for (int i = 0; i < 3; i++) {
        const char *text = whole->bytes + places[i][0];
        const size_t bytes = places[i][1] - places[i][0];
        ids[i] = text_table_find(&bpe->tokens, text, bytes);
        if (ids[i] < 0)
            return damaged(source, "merge %d needs the token '%.*s', which is not in the vocabulary", rank,
                           bytes < 100 ? (int)bytes : 100, text);
    }
    bpe_add_merge(bpe, ids[0], ids[1], ids[2]);
    return STATUS_OK;
}

static enum status read_merges(const struct source *source, const json_t *merges, struct bpe *bpe)
{
    const json_t *merge;
    size_t i;
    int32_t rank = 0;
    RELEASED(text_release) struct text whole = {0};
    if (!json_is_array(merges)) return damaged(source, "the model has no 'merges'");
    json_array_foreach ((json_t *)merges, i, merge) {
        const char *text = json_string_value(merge);
        if (text && strncmp(text, "#version", strlen("#version")) == 0) continue;
        TRY(read_merge(source, merge, rank++, &whole, bpe));
    }
    return STATUS_OK;
}

static enum status read_model(const struct source *source, const json_t *model, struct bpe *bpe)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model)) return damaged(source, "there is no 'model'");
    if (type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges")) /* old files do not name the type */
        return tokenizer_refuse_part(source, "model", type ? type : "?");
    TRY(check_settings(source, model));
    TRY(read_flag(source, model, "ignore_merges", false, &bpe->ignore_merges));
    TRY(read_flag(source, model, "fuse_unk", false, &bpe->fuse_unknown));
    TRY(read_vocabulary(source, json_object_get(model, "vocab"), bpe));
    TRY(read_merges(source, json_object_get(model, "merges"), bpe));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    bpe->unknown = unknown ? text_table_find(&bpe->tokens, unknown, strlen(unknown)) : -1;
    if (unknown && bpe->unknown < 0)
        return damaged(source, "the unknown token '%.100s' is not in the vocabulary", unknown);
    return STATUS_OK;
}

/* ---- normalizer, pre-tokenizer, decoder ---------------------------------- */

static enum status read_normalizer(const struct source *source, const json_t *normalizer, bool *nfc)
{
    const json_t *members = json_object_get(normalizer, "normalizers"), *member;
    size_t i;
    if (is_absent(normalizer)) return STATUS_OK;
    if (!has_type(normalizer, "Sequence")) {
        *nfc = true;
        return has_type(normalizer, "NFC") ? STATUS_OK
                                           : tokenizer_refuse_part(source, "normalizer", type_of(normalizer));
    }
    json_array_foreach ((json_t *)members, i, member) {
        TRY(read_normalizer(source, member, nfc));
    }
    return STATUS_OK;
}

static enum status add_cut(const struct source *source, struct tokenizer *out, struct cut cut)
{
    if (out->cut_count == CUT_STEPS) {
        pattern_free(cut.pattern);
        return tokenizer_refuse_part(source, "pre-tokenizer", "Sequence of more than 8");
    }
    out->cuts[out->cut_count++] = cut;
    return STATUS_OK;
}

static enum status add_pattern(const struct source *source, const char *text, struct cut cut, struct tokenizer *out)
{
    if (pattern_compile(text, &cut.pattern, source->err) != STATUS_OK)
        return error_prefix(source->err, "'%s'", source->where);
    return add_cut(source, out, cut);
}

static enum status read_split(const struct source *source, const json_t *split, struct tokenizer *out)
{
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    const char *expression = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    bool invert;
    TRY(read_flag(source, split, "invert", false, &invert));
    if (!behavior) return damaged(source, "a Split without a 'behavior'");
    if (!expression) return tokenizer_refuse_part(source, "pre-tokenizer", "Split without a Regex");
    bool removed = strcmp(behavior, "Removed") == 0;
    if (!removed && strcmp(behavior, "Isolated") != 0)
        return tokenizer_refuse_part(source, "behavior of a Split", behavior);
    return add_pattern(source, expression,
                       (struct cut){.drop_matches = removed && !invert, .drop_others = removed && invert}, out);
}

static enum status read_byte_level(const struct source *source, const json_t *component, struct tokenizer *out)
{
    bool prefix, expression;
    TRY(read_flag(source, component, "add_prefix_space", true, &prefix));
    TRY(read_flag(source, component, "use_regex", true, &expression));
    if (prefix) TRY(add_cut(source, out, (struct cut){0}));
    return expression ? add_pattern(source, GPT2_EXPRESSION, (struct cut){0}, out) : STATUS_OK;
}

/* *mapped: ByteLevel, after which words are no text any more, has come. */
static enum status read_cuts(const struct source *source, const json_t *component, bool *mapped, struct tokenizer *out)
{
    const json_t *members = json_object_get(component, "pretokenizers"), *member;
    size_t i;
    bool each;
    if (has_type(component, "Sequence")) {
        json_array_foreach ((json_t *)members, i, member) {
            TRY(read_cuts(source, member, mapped, out));
        }
        return STATUS_OK;
    }
    if (*mapped) return tokenizer_refuse_part(source, "pre-tokenizer after ByteLevel", type_of(component));
    if (has_type(component, "ByteLevel")) {
        *mapped = true;
        return read_byte_level(source, component, out);
    }
    if (has_type(component, "Split")) return read_split(source, component, out);
    if (!has_type(component, "Digits")) return tokenizer_refuse_part(source, "pre-tokenizer", type_of(component));
    TRY(read_flag(source, component, "individual_digits", false, &each));
    return add_pattern(source, each ? DIGIT : DIGIT "+", (struct cut){0}, out);
}

static enum status read_pre_tokenizer(const struct source *source, const json_t *component, struct tokenizer *out)
{
    bool mapped = false;
    if (is_absent(component)) return tokenizer_refuse_part(source, "pre-tokenizer", "null");
    TRY(read_cuts(source, component, &mapped, out));
    return mapped ? STATUS_OK : tokenizer_refuse_part(source, "pre-tokenizer without ByteLevel", type_of(component));
}

/* ---- added tokens -------------------------------------------------------- */

/* Checks the id against the one that `tokenizers` gives to a token, not the file's: the vocabulary's, or the next. */
static enum status check_id(const struct source *source, const struct tokenizer *tokenizer, const char *content,
                            json_int_t id, int32_t *next)
{
    const int32_t known = text_table_find(&tokenizer->bpe.tokens, content, strlen(content));
    const int32_t expected = known >= 0 ? known : *next;
    if (added_tokens_by_content(&tokenizer->added, content))
        return damaged(source, "the added token '%.100s' is there twice", content);
    if (id != expected)
        return damaged(source, "the added token '%.100s' has the id %lld, but %s %d", content, (long long)id,
                       known >= 0 ? "in the vocabulary" : "the next id is", expected);
    if (expected > BPE_MAX_ID)
        return damaged(source, "the added token '%.100s' has the id %d, and the largest is %d", content, expected,
                       BPE_MAX_ID);
    *next = expected >= *next ? expected + 1 : *next;
    return STATUS_OK;
}

static enum status read_added(const struct source *source, const json_t *item, int32_t *next, struct tokenizer *out)
{
    const char *content = json_string_value(json_object_get(item, "content"));
    const json_t *id = json_object_get(item, "id");
    struct added_token token = {0};
    struct text normal = {0};
    if (!content || !json_is_integer(id)) return damaged(source, "an added token without 'content' or 'id'");
    if (!content[0]) return STATUS_OK; /* matches nowhere */
    TRY(check_id(source, out, content, json_integer_value(id), next));
    TRY(read_flag(source, item, "special", false, &token.special));
    TRY(read_flag(source, item, "single_word", false, &token.single_word));
    TRY(read_flag(source, item, "lstrip", false, &token.lstrip));
    TRY(read_flag(source, item, "rstrip", false, &token.rstrip));
    TRY(read_flag(source, item, "normalized", !token.special, &token.normalized));
    token.id = (int32_t)json_integer_value(id);
    token.content = memory_text(content);
    if (token.normalized && out->nfc) unicode_nfc(content, strlen(content), &normal);
    token.pattern = normal.bytes ? normal.bytes : memory_text(content);
    token.length = strlen(token.pattern);
    added_tokens_add(&out->added, token);
    return STATUS_OK;
}

static enum status read_all_added(const struct source *source, const json_t *added, struct tokenizer *out)
{
    int32_t next = (int32_t)out->bpe.tokens.count;
    const json_t *item;
    size_t i;
    if (!is_absent(added) && !json_is_array(added)) return damaged(source, "'added_tokens' is no list");
    json_array_foreach ((json_t *)added, i, item) {
        TRY(read_added(source, item, &next, out));
    }
    return STATUS_OK;
}

/* ---- post-processor ------------------------------------------------------ */

static enum status add_special(const struct source *s, const json_t *form, const json_t *piece, struct token_list *out)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *token = json_object_get(json_object_get(form, "special_tokens"), name ? name : "");
    const json_t *ids = json_object_get(token, "ids"), *id;
    size_t i;
    if (!json_is_array(ids)) return damaged(s, "the template's token '%.100s' has no ids", name ? name : "?");
    json_array_foreach ((json_t *)ids, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > BPE_MAX_ID)
            return damaged(s, "an id of the template's token '%.100s'", name);
        token_list_add(out, (int32_t)json_integer_value(id));
    }
    return STATUS_OK;
}

/* What a template puts before and after the text, Sequence A, with what the processors before it have put there. */
static enum status read_template(const struct source *source, const json_t *template, struct tokenizer *out)
{
    const json_t *pieces = json_object_get(template, "single"), *piece;
    RELEASED(token_list_release) struct token_list before = out->before;
    size_t i;
    int texts = 0;
    out->before = (struct token_list){0};
    json_array_foreach ((json_t *)pieces, i, piece) {
        const json_t *special = json_object_get(piece, "SpecialToken");
        const char *text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (special)
            TRY(add_special(source, template, special, texts ? &out->after : &out->before));
        else if (text && strcmp(text, "A") == 0)
            texts++;
        else
            TRY(damaged(source, "a piece of the template is neither a SpecialToken nor Sequence A"));
    }
    token_list_append(&out->before, &before);
    return texts == 1 ? STATUS_OK : damaged(source, "the template has the text %d times", texts);
}

static enum status read_processor(const struct source *source, const json_t *processor, struct tokenizer *out)
{
    const json_t *members = json_object_get(processor, "processors"), *member;
    size_t i;
    if (is_absent(processor) || has_type(processor, "ByteLevel")) /* trims offsets, which are not kept */
        return STATUS_OK;
    if (has_type(processor, "TemplateProcessing")) return read_template(source, processor, out);
    if (!has_type(processor, "Sequence")) return tokenizer_refuse_part(source, "post-processor", type_of(processor));
    json_array_foreach ((json_t *)members, i, member) {
        TRY(read_processor(source, member, out));
    }
    return STATUS_OK;
}

enum status tokenizer_from_json(const json_t *json, const char *where, struct tokenizer **out, struct error *err)
{
    const struct source source = {.where = where, .err = err};
    const json_t *decoder = json_object_get(json, "decoder");
    RELEASED(tokenizer_drop) struct tokenizer *tokenizer = memory_zeroed(1, sizeof *tokenizer);
    if (!json_is_object(json)) return damaged(&source, "it is no JSON object");
    TRY(read_model(&source, json_object_get(json, "model"), &tokenizer->bpe));
    TRY(read_normalizer(&source, json_object_get(json, "normalizer"), &tokenizer->nfc));
    TRY(read_pre_tokenizer(&source, json_object_get(json, "pre_tokenizer"), tokenizer));
    if (!has_type(decoder, "ByteLevel"))
        return tokenizer_refuse_part(&source, "decoder", is_absent(decoder) ? "null" : type_of(decoder));
    TRY(read_all_added(&source, json_object_get(json, "added_tokens"), tokenizer));
    TRY(read_processor(&source, json_object_get(json, "post_processor"), tokenizer));
    *out = TAKEN(tokenizer);
    return STATUS_OK;
}
