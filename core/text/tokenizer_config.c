#include "core/text/tokenizer_config.h"

#include "core/fsutil.h"
#include "core/memory.h"
#include "core/printable.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 256 << 20 };

static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

/* What vocab.json and merges.txt do not say. */
struct tokenizer_class {
    const char *name;
    bool nfc;
    const char *words;    /* the expression that cuts words; NULL: GPT-2's */
    const char *defaults; /* the special tokens that a folder does not name, as JSON */
};

#define END "\"<|endoftext|>\""
static const char GPT2_TOKENS[] = "{\"bos_token\": " END ", \"eos_token\": " END ", \"unk_token\": " END "}";
static const struct tokenizer_class CLASSES[] = {
    {"GPT2Tokenizer", false, NULL, GPT2_TOKENS},
    {"CodeGenTokenizer", false, NULL, GPT2_TOKENS},
    {"GPTNeoXTokenizer", true, NULL,
     "{\"bos_token\": " END ", \"eos_token\": " END ", \"unk_token\": " END ", \"pad_token\": \"<|padding|>\"}"},
    {"Qwen2Tokenizer", true,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     "{\"eos_token\": " END ", \"unk_token\": " END ", \"pad_token\": " END "}"},
};

/* ---- files --------------------------------------------------------------- */

enum status tokenizer_read_file(const char *path, size_t flags, json_t **out, struct error *err)
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

/* An object of the folder; {}: there is no such file. */
static enum status read_object(const char *folder, const char *name, size_t flags, json_t **out, struct error *err)
{
    char path[FS_PATH_MAX];
    *out = NULL;
    TRY(fs_join(path, folder, name, STATUS_DATA, err));
    if (!fs_exists(path)) {
        *out = json_object();
        return STATUS_OK;
    }
    TRY(tokenizer_read_file(path, flags, out, err));
    if (json_is_object(*out))
        return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return error_set(err, STATUS_DATA, "'%s' is not a JSON object", PRINTABLE(path));
}

enum status tokenizer_config_read(const char *folder, struct tokenizer_config *config, struct error *err)
{
    json_t *map;
    *config = (struct tokenizer_config){.folder = folder};
    /* save_pretrained writes a model_max_length of 10^30, which is no integer of C */
    TRY(read_object(folder, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL, &config->values, err));
    TRY(read_object(folder, "config.json", JSON_DECODE_INT_AS_REAL, &config->model, err));
    config->legacy = !json_object_get(config->values, "added_tokens_decoder");
    if (!config->legacy)
        return STATUS_OK;
    TRY(read_object(folder, "special_tokens_map.json", JSON_DECODE_INT_AS_REAL, &map, err));
    json_object_update(config->values, map);
    json_decref(map);
    return STATUS_OK;
}

void tokenizer_config_release(struct tokenizer_config *config)
{
    json_decref(config->values);
    json_decref(config->model);
    *config = (struct tokenizer_config){0};
}

/* ---- vocab.json and merges.txt ------------------------------------------- */

static const struct tokenizer_class *find_class(const char *name)
{
    size_t length = name ? strlen(name) : 0;
    if (!name)
        return NULL;
    if (fs_has_suffix(name, "Fast"))
        length -= strlen("Fast");
    for (size_t i = 0; i < COUNT_OF(CLASSES); i++)
        if (strlen(CLASSES[i].name) == length && memcmp(name, CLASSES[i].name, length) == 0)
            return &CLASSES[i];
    return NULL;
}

/* The class of a model's tokenizer; NULL: not known. */
static const char *class_of_model(const char *type)
{
    static const char *const classes[][2] = {
        {"gpt2", "GPT2Tokenizer"}, {"qwen2", "Qwen2Tokenizer"}, {"qwen3", "Qwen2Tokenizer"}};
    for (size_t i = 0; i < COUNT_OF(classes); i++)
        if (strcmp(type, classes[i][0]) == 0)
            return classes[i][1];
    return NULL;
}

/* The name of the folder's class, or of its model's; `otherwise`: nothing names one. NULL: the model's is not known. */
static const char *class_name(const struct tokenizer_config *config, const char *otherwise)
{
    const json_t *name = json_object_get(config->values, "tokenizer_class");
    const char *type = json_string_value(json_object_get(config->model, "model_type"));
    if (!json_is_string(name))
        name = json_object_get(config->model, "tokenizer_class");
    return json_is_string(name) ? json_string_value(name) : type ? class_of_model(type) : otherwise;
}

enum status tokenizer_config_choose_class(struct tokenizer_config *config, struct error *err)
{
    const char *name = class_name(config, "GPT2Tokenizer");
    config->class_ = find_class(name);
    if (config->class_)
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "'%s' has vocab.json and merges.txt of a %s%.100s, and no tokenizer.json",
              PRINTABLE(config->folder), name ? "" : "model of type ",
              PRINTABLE(name ? name : json_string_value(json_object_get(config->model, "model_type"))));
    return error_hint(err, "transformers' AutoTokenizer.from_pretrained(…).save_pretrained(…) writes one");
}

json_t *tokenizer_config_parts(const struct tokenizer_config *config, json_t *vocabulary, json_t *merges)
{
    const struct tokenizer_class *class = config->class_;
    json_t *cut =
        json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                  json_is_true(json_object_get(config->values, "add_prefix_space")), "use_regex", !class->words);
    if (class->words)
        cut = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                        "pattern", "Regex", class->words, "behavior", "Isolated", "invert", 0, cut);
    json_t *parts = json_pack("{s:{s:s, s:o, s:o}, s:o, s:{s:s}, s:[]}", "model", "type", "BPE", "vocab", vocabulary,
                              "merges", merges, "pre_tokenizer", cut, "decoder", "type", "ByteLevel", "added_tokens");
    ASSERT(parts);
    if (class->nfc)
        json_object_set_new(parts, "normalizer", json_pack("{s:s}", "type", "NFC"));
    json_t *defaults = json_loads(class->defaults, 0, NULL);
    json_object_update_missing(config->values, defaults);
    json_decref(defaults);
    return parts;
}

/* Beside a tokenizer.json a class has its say about a space before a text; the file has all else. */
static void set_prefix_space(const struct tokenizer_config *config, json_t *parts)
{
    json_t *space = json_object_get(config->values, "add_prefix_space"), *cut = json_object_get(parts, "pre_tokenizer");
    json_t *cuts = json_object_get(cut, "pretokenizers"), *item;
    size_t i;
    if (!json_is_boolean(space) || !find_class(class_name(config, NULL)))
        return;
    if (json_object_get(cut, "add_prefix_space"))
        json_object_set(cut, "add_prefix_space", space);
    json_array_foreach(cuts, i, item) if (json_object_get(item, "add_prefix_space"))
        json_object_set(item, "add_prefix_space", space);
}

/* ---- special tokens ------------------------------------------------------ */

/* The text of a token, which may be given with its properties; NULL: it is none. */
static const char *text_of(const json_t *token)
{
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    return text && *text ? text : NULL;
}

const char *tokenizer_config_token(const struct tokenizer_config *config, const char *key)
{
    return text_of(json_object_get(config->values, key));
}

bool tokenizer_config_splits_special(const struct tokenizer_config *config)
{
    return json_is_true(json_object_get(config->values, "split_special_tokens"));
}

static void add_special(json_t *tokens, json_t *token)
{
    const char *text = text_of(token);
    if (text && !json_object_get(tokens, text))
        json_object_set(tokens, text, token);
}

/* {text: token} of the special tokens that are named: those of NAMES first, then the model's own, and the list of
 * others. New reference. */
static json_t *special_tokens(const struct tokenizer_config *config)
{
    json_t *tokens = json_object(), *value, *more = json_object_get(config->values, "extra_special_tokens");
    const char *key;
    size_t i;
    for (i = 0; i < COUNT_OF(NAMES); i++)
        add_special(tokens, json_object_get(config->values, NAMES[i]));
    json_object_foreach(config->values, key, value)
    {
        if (fs_has_suffix(key, "_token"))
            add_special(tokens, value);
    }
    if (json_object_size(more) + json_array_size(more) == 0)
        more = json_object_get(config->values, "additional_special_tokens");
    json_object_foreach(more, key, value)
    {
        add_special(tokens, value);
    }
    json_array_foreach(more, i, value)
    {
        add_special(tokens, value);
    }
    return tokens;
}

/* The "added_tokens" of a tokenizer.json, to which tokens are added. */
struct addition {
    json_t *items, *vocabulary; /* borrowed */
    json_t *by_text;            /* own: {text: item} */
    json_int_t next;            /* the id of a token that is not in the vocabulary */
};

static void take_id(struct addition *addition, json_int_t id)
{
    if (id >= addition->next && id < INT32_MAX)
        addition->next = id + 1;
}

static void begin_addition(json_t *items, json_t *vocabulary, struct addition *addition)
{
    json_t *item;
    size_t i;
    *addition = (struct addition){items, vocabulary, json_object(), (json_int_t)json_object_size(vocabulary)};
    json_array_foreach(items, i, item)
    {
        const char *text = text_of(item);
        if (text)
            json_object_set(addition->by_text, text, item);
        take_id(addition, json_integer_value(json_object_get(item, "id")));
    }
}

/* Adds a token, or gives one that is there these properties. token: an object with some of them, or a text. Returns the
 * id; *is_new: it is in neither the vocabulary nor the list. */
static json_int_t add_token(struct addition *addition, const char *text, const json_t *token, bool special,
                            bool *is_new)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    json_t *item = json_object_get(addition->by_text, text);
    const json_t *known = item ? json_object_get(item, "id") : json_object_get(addition->vocabulary, text);
    const json_t *normalized = json_object_get(token, "normalized"), *was = json_object_get(token, "special");
    const json_int_t id = known ? json_integer_value(known) : addition->next;
    *is_new = !known;
    if (!item) {
        item = json_pack("{s:s, s:I}", "content", text, "id", id);
        json_array_append_new(addition->items, item);
        json_object_set(addition->by_text, text, item);
        take_id(addition, id);
    }
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        json_object_set_new(item, flags[i], json_boolean(json_is_true(json_object_get(token, flags[i]))));
    json_object_set_new(item, "special", json_boolean(special));
    json_object_set_new(
        item, "normalized",
        json_boolean(json_is_boolean(normalized) ? json_is_true(normalized) : !(was ? json_is_true(was) : special)));
    return id;
}

/* ---- tokens with ids ----------------------------------------------------- */

struct declared {
    json_int_t id;
    const char *text;    /* borrowed */
    const json_t *token; /* borrowed: its properties, or the id of added_tokens.json */
};

static int by_id(const void *a, const void *b)
{
    const json_int_t left = ((const struct declared *)a)->id, right = ((const struct declared *)b)->id;
    return left < right ? -1 : left > right;
}

/* The tokens to which the folder gives an id, in the order of the ids. `from`: added_tokens_decoder, {"5": {"content":
 * "<s>"}}, or if `legacy` added_tokens.json, {"<s>": 5}. The caller frees *tokens (json_object_size(from)). */
static enum status read_declared(const struct tokenizer_config *config, const json_t *from, struct declared **tokens,
                                 struct error *err)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    *tokens = memory_zeroed(json_object_size(from) + 1, sizeof **tokens);
    json_object_foreach((json_t *)from, key, value)
    {
        struct declared *token = &(*tokens)[count++];
        char *end = "";
        errno = 0;
        *token = config->legacy ? (struct declared){json_integer_value(value), key, value}
                                : (struct declared){strtoll(key, &end, 10), text_of(value), value};
        if (*end || errno || !token->text || !(config->legacy ? json_is_integer(value) : json_is_object(value))) {
            free(*tokens);
            *tokens = NULL;
            return error_set(err, STATUS_DATA, "the added tokens of '%s' are not ids with tokens: %s has '%.100s'",
                             PRINTABLE(config->folder), config->legacy ? "added_tokens.json" : "added_tokens_decoder",
                             PRINTABLE(key));
        }
    }
    qsort(*tokens, count, sizeof **tokens, by_id);
    return STATUS_OK;
}

static enum status add_declared(const struct tokenizer_config *config, const json_t *from, const json_t *special,
                                struct addition *addition, struct error *err)
{
    struct declared *tokens;
    enum status status = STATUS_OK;
    TRY(read_declared(config, from, &tokens, err));
    for (size_t i = 0; i < json_object_size(from) && status == STATUS_OK; i++) {
        const struct declared *token = &tokens[i];
        bool is_new;
        if (config->legacy && json_object_get(addition->by_text, token->text))
            continue; /* the tokenizer.json has it, with its properties */
        const bool named = json_object_get(special, token->text);
        const json_int_t id = add_token(addition, token->text, token->token,
                                        named || json_is_true(json_object_get(token->token, "special")), &is_new);
        if (is_new && id != token->id)
            status = error_set(err, STATUS_DATA,
                               "'%s' gives the token '%.100s' the id %lld, and after its vocabulary and the tokens "
                               "before it the next id is %lld",
                               PRINTABLE(config->folder), PRINTABLE(token->text), (long long)token->id, (long long)id);
    }
    free(tokens);
    return status;
}

/* ---- all of it ----------------------------------------------------------- */

/* What a class puts before and after a text, as a post-processor. */
static void surround(const struct tokenizer_config *config, const struct addition *addition, json_t *parts)
{
    static const char *const keys[] = {"bos_token", NULL, "eos_token"}, *const wanted[] = {"add_bos_token", NULL,
                                                                                           "add_eos_token"};
    json_t *pieces = json_array(), *tokens = json_object();
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const char *text = keys[i] ? tokenizer_config_token(config, keys[i]) : NULL;
        if (!keys[i])
            json_array_append_new(pieces, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
        if (!text || !json_is_true(json_object_get(config->values, wanted[i])))
            continue;
        json_t *id = json_object_get(json_object_get(addition->by_text, text), "id");
        json_array_append_new(pieces, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0));
        json_object_set_new(tokens, text, json_pack("{s:s, s:[O], s:[s]}", "id", text, "ids", id, "tokens", text));
    }
    json_object_set_new(
        parts, "post_processor",
        json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", pieces, "special_tokens", tokens));
}

enum status tokenizer_config_apply(const struct tokenizer_config *config, json_t *parts, struct error *err)
{
    json_t *vocabulary = json_object_get(json_object_get(parts, "model"), "vocab"), *from, *token;
    json_t *items = json_object_get(parts, "added_tokens");
    struct addition addition;
    const char *text;
    if (!json_is_object(vocabulary) || (items && !json_is_null(items) && !json_is_array(items)))
        return STATUS_OK;
    if (!json_is_array(items))
        json_object_set_new(parts, "added_tokens", items = json_array());
    if (config->legacy)
        TRY(read_object(config->folder, "added_tokens.json", 0, &from, err));
    else
        from = json_incref(json_object_get(config->values, "added_tokens_decoder"));
    json_t *special = special_tokens(config);
    begin_addition(items, vocabulary, &addition);
    const enum status status = add_declared(config, from, special, &addition, err);
    bool is_new;
    json_object_foreach(special, text, token)
    {
        if (!json_object_get(addition.by_text, text))
            add_token(&addition, text, token, true, &is_new);
    }
    if (config->class_)
        surround(config, &addition, parts);
    else
        set_prefix_space(config, parts);
    json_decref(addition.by_text);
    json_decref(special);
    json_decref(from);
    return status;
}
