#include "core/fsutil.h"
#include "core/memory.h"
#include "core/text/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 256 << 20 };

static enum status read_parts(const struct tokenizer_source *source, const json_t *json, struct tokenizer *out)
{
    if (!json_is_object(json))
        return tokenizer_damaged(source, "it is no JSON object");
    TRY(tokenizer_read_model(source, json_object_get(json, "model"), &out->bpe));
    TRY(tokenizer_read_normalizer(source, json_object_get(json, "normalizer"), &out->nfc));
    TRY(tokenizer_read_cuts(source, json_object_get(json, "pre_tokenizer"), &out->cutter));
    TRY(tokenizer_read_decoder(source, json_object_get(json, "decoder")));
    TRY(tokenizer_read_added(source, json_object_get(json, "added_tokens"), out));
    return tokenizer_read_processor(source, json_object_get(json, "post_processor"), out);
}

enum status tokenizer_from_json(const json_t *json, const char *where, struct tokenizer **out, struct error *err)
{
    struct tokenizer_source source = {.where = where, .err = err};
    struct tokenizer *tokenizer = memory_zeroed(1, sizeof *tokenizer);
    tokenizer->bos = tokenizer->eos = -1;
    enum status status = read_parts(&source, json, tokenizer);
    if (status == STATUS_OK)
        *out = tokenizer;
    else
        tokenizer_free(tokenizer);
    return status;
}

/* ---- files --------------------------------------------------------------- */

/* flags: of jansson. */
static enum status read_json(const char *path, size_t flags, json_t **out, struct error *err)
{
    char *text;
    size_t bytes;
    json_error_t fault;
    TRY(fs_read_file(path, MAX_FILE, STATUS_DATA, &text, &bytes, err));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | flags, &fault);
    free(text);
    if (!*out)
        return error_set(err, STATUS_DATA, "'%s' is not JSON: line %d: %s", path, fault.line, fault.text);
    return STATUS_OK;
}

static enum status open_json(const char *path, struct tokenizer **out, struct error *err)
{
    json_t *json;
    TRY(read_json(path, 0, &json, err));
    enum status status = tokenizer_from_json(json, path, out, err);
    json_decref(json);
    return status;
}

/* The lines of a merges.txt. */
static enum status read_lines(const char *path, json_t **out, struct error *err)
{
    char *text, *rest;
    size_t bytes;
    TRY(fs_read_file(path, MAX_FILE, STATUS_DATA, &text, &bytes, err));
    *out = json_array();
    rest = text;
    while (rest && *rest) {
        json_t *item = json_string(strsep(&rest, "\n"));
        if (!item) {
            json_decref(*out);
            free(text);
            return error_set(err, STATUS_DATA, "'%s' is not UTF-8", path);
        }
        json_array_append_new(*out, item);
    }
    free(text);
    return STATUS_OK;
}

/* What GPT-2's tokenizer is made of, in the words of tokenizer.json. */
static json_t *gpt2_parts(json_t *vocabulary, json_t *merges, bool prefix_space)
{
    static const char end_of_text[] = "<|endoftext|>";
    json_t *parts = json_pack("{s:{s:s,s:o,s:o}, s:{s:s,s:b,s:b}, s:{s:s}, s:[]}", "model", "type", "BPE", "vocab",
                              vocabulary, "merges", merges, "pre_tokenizer", "type", "ByteLevel", "add_prefix_space",
                              prefix_space, "use_regex", 1, "decoder", "type", "ByteLevel", "added_tokens");
    const json_t *id = json_object_get(vocabulary, end_of_text);
    if (parts && json_is_integer(id))
        json_array_append_new(
            json_object_get(parts, "added_tokens"),
            json_pack("{s:s, s:I, s:b}", "content", end_of_text, "id", json_integer_value(id), "special", 1));
    return parts;
}

/* vocab.json and merges.txt, without tokenizer.json. `config`: tokenizer_config.json, or NULL. */
static enum status open_pair(const char *vocabulary_path, const char *merges_path, const json_t *config,
                             struct tokenizer **out, struct error *err)
{
    json_t *vocabulary, *merges;
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    if (class && strcmp(class, "GPT2Tokenizer") != 0 && strcmp(class, "GPT2TokenizerFast") != 0)
        return error_set(err, STATUS_USAGE,
                         "'%s' is the vocabulary of a %.100s, and without a tokenizer.json only GPT2Tokenizer is known",
                         vocabulary_path, class);
    TRY(read_json(vocabulary_path, 0, &vocabulary, err));
    enum status status = read_lines(merges_path, &merges, err);
    if (status != STATUS_OK) {
        json_decref(vocabulary);
        return status;
    }
    json_t *parts = gpt2_parts(vocabulary, merges, json_is_true(json_object_get(config, "add_prefix_space")));
    status = tokenizer_from_json(parts, vocabulary_path, out, err);
    json_decref(parts);
    return status;
}

/* "bos_token": "<s>", or an object with "content". */
static int32_t named_token(const struct tokenizer *tokenizer, const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    const char *content = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    return content ? tokenizer_id(tokenizer, content) : -1;
}

static enum status open_folder(const char *folder, const json_t *config, struct tokenizer **out, struct error *err)
{
    char whole[FS_PATH_MAX], vocabulary[FS_PATH_MAX], merges[FS_PATH_MAX], pieces[FS_PATH_MAX];
    TRY(fs_join(whole, folder, "tokenizer.json", STATUS_DATA, err));
    TRY(fs_join(vocabulary, folder, "vocab.json", STATUS_DATA, err));
    TRY(fs_join(merges, folder, "merges.txt", STATUS_DATA, err));
    TRY(fs_join(pieces, folder, "tokenizer.model", STATUS_DATA, err));
    if (fs_exists(whole))
        return open_json(whole, out, err);
    if (fs_exists(vocabulary) && fs_exists(merges))
        return open_pair(vocabulary, merges, config, out, err);
    return error_set(err, STATUS_USAGE, "'%s' has no tokenizer.json%s", folder,
                     fs_exists(pieces) ? ", and its tokenizer.model (SentencePiece) is not read" : "");
}

enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *err)
{
    char folder[FS_PATH_MAX], config_path[FS_PATH_MAX];
    json_t *config = NULL;
    bool whole_folder = fs_is_dir(path);
    if (whole_folder)
        snprintf(folder, sizeof folder, "%s", path);
    else
        fs_parent(path, folder);
    TRY(fs_join(config_path, folder, "tokenizer_config.json", STATUS_DATA, err));
    if (fs_exists(config_path))
        /* save_pretrained writes a model_max_length of 10^30, which is no integer of C */
        TRY(read_json(config_path, JSON_DECODE_INT_AS_REAL, &config, err));
    enum status status = whole_folder ? open_folder(path, config, out, err) : open_json(path, out, err);
    if (status == STATUS_OK) {
        (*out)->bos = named_token(*out, config, "bos_token");
        (*out)->eos = named_token(*out, config, "eos_token");
    }
    json_decref(config);
    return status;
}
