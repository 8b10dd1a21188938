#include "core/text/tokenizer_json.h"

#include <string.h>

enum { MAX_SHOWN = 100 }; /* bytes of a token in a message */

/* Members that change what BPE does, in ways that byte-level tokenizers do not use. */
static enum status check_settings(const struct tokenizer_source *source, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool fallback;
    TRY(tokenizer_flag(source, model, "byte_fallback", false, &fallback));
    if (fallback)
        return tokenizer_refuse(source, "model's setting", "byte_fallback");
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return tokenizer_refuse(source, "model's setting", "dropout");
    for (size_t i = 0; i < COUNT_OF(affixes); i++) {
        const char *affix = json_string_value(json_object_get(model, affixes[i]));
        if (affix && affix[0])
            return tokenizer_refuse(source, "model's setting", affixes[i]);
    }
    return STATUS_OK;
}

static enum status read_vocabulary(const struct tokenizer_source *source, const json_t *vocabulary, struct bpe *bpe)
{
    const char *text;
    json_t *id;
    int32_t twice;
    if (!json_is_object(vocabulary))
        return tokenizer_damaged(source, "the model has no 'vocab'");
    json_object_foreach((json_t *)vocabulary, text, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > BPE_MAX_ID)
            return tokenizer_damaged(source, "the id of '%.100s' is no integer of 0 … %d", text, BPE_MAX_ID);
        bpe_add_token(bpe, text, strlen(text), (int32_t)json_integer_value(id));
    }
    return bpe_index(bpe, &twice) ? STATUS_OK : tokenizer_damaged(source, "two tokens have the id %d", twice);
}

/* The two parts of a merge: "a b" or ["a", "b"]. */
static bool merge_parts(const json_t *merge, const char *parts[2], size_t bytes[2])
{
    const char *text = json_string_value(merge);
    if (text) {
        const char *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' '))
            return false;
        parts[0] = text, bytes[0] = (size_t)(space - text);
        parts[1] = space + 1, bytes[1] = strlen(space + 1);
        return true;
    }
    for (size_t i = 0; i < 2; i++) {
        parts[i] = json_string_value(json_array_get(merge, i));
        if (!parts[i])
            return false;
        bytes[i] = strlen(parts[i]);
    }
    return json_array_size(merge) == 2;
}

static enum status missing_token(const struct tokenizer_source *source, int32_t rank, const char *text, size_t bytes)
{
    return tokenizer_damaged(source, "merge %d needs the token '%.*s', which is not in the vocabulary", rank,
                             bytes < MAX_SHOWN ? (int)bytes : MAX_SHOWN, text);
}

/* `whole` is room for the text of the two parts together. */
static enum status read_merge(const struct tokenizer_source *source, const json_t *merge, int32_t rank,
                              struct text *whole, struct bpe *bpe)
{
    const char *parts[2];
    size_t bytes[2];
    if (!merge_parts(merge, parts, bytes))
        return tokenizer_damaged(source, "merge %d does not have two parts", rank);
    whole->count = 0;
    text_add(whole, parts[0], bytes[0]);
    text_add(whole, parts[1], bytes[1]);
    int32_t left = text_table_find(&bpe->tokens, parts[0], bytes[0]),
            right = text_table_find(&bpe->tokens, parts[1], bytes[1]);
    int32_t result = text_table_find(&bpe->tokens, whole->bytes, whole->count);
    if (left < 0 || right < 0)
        return missing_token(source, rank, parts[left < 0 ? 0 : 1], bytes[left < 0 ? 0 : 1]);
    if (result < 0)
        return missing_token(source, rank, whole->bytes, whole->count);
    bpe_add_merge(bpe, left, right, result);
    return STATUS_OK;
}

static enum status read_merges(const struct tokenizer_source *source, const json_t *merges, struct bpe *bpe)
{
    const json_t *merge;
    size_t i;
    int32_t rank = 0;
    struct text whole = {0};
    enum status status = STATUS_OK;
    if (!json_is_array(merges))
        return tokenizer_damaged(source, "the model has no 'merges'");
    json_array_foreach((json_t *)merges, i, merge)
    {
        const char *text = json_string_value(merge);
        if (text && strncmp(text, "#version", strlen("#version")) == 0)
            continue;
        TRY_END(read_merge(source, merge, rank++, &whole, bpe));
    }
end:
    text_release(&whole);
    return status;
}

enum status tokenizer_read_model(const struct tokenizer_source *source, const json_t *model, struct bpe *bpe)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model))
        return tokenizer_damaged(source, "there is no 'model'");
    if (type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges")) /* old files do not name the type */
        return tokenizer_refuse(source, "model", type ? type : "?");
    TRY(check_settings(source, model));
    TRY(tokenizer_flag(source, model, "ignore_merges", false, &bpe->ignore_merges));
    TRY(tokenizer_flag(source, model, "fuse_unk", false, &bpe->fuse_unknown));
    TRY(read_vocabulary(source, json_object_get(model, "vocab"), bpe));
    TRY(read_merges(source, json_object_get(model, "merges"), bpe));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    bpe->unknown = unknown ? text_table_find(&bpe->tokens, unknown, strlen(unknown)) : -1;
    if (unknown && bpe->unknown < 0)
        return tokenizer_damaged(source, "the unknown token '%.100s' is not in the vocabulary", unknown);
    return STATUS_OK;
}
