/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text/tokenizer_json.h"

enum { MAX_FILE = 256 << 20 };

static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
static const char WRITES_ONE[] = "transformers' AutoTokenizer.from_pretrained(…).save_pretrained(…) writes one";

/* What vocab.json and merges.txt do not say. */
struct tokenizer_class {
    const char *name;
    bool nfc;
    const char *words;     /* the expression that cuts words; NULL: GPT-2's */
    const char *defaults;  /* the special tokens that a folder does not name, as JSON */
    const char *models[2]; /* types of models that have it */
};

#define END "\"<|endoftext|>\""
static const char GPT2_TOKENS[] = "{\"bos_token\": " END ", \"eos_token\": " END ", \"unk_token\": " END "}";
static const struct tokenizer_class CLASSES[] = {
    {"GPT2Tokenizer", false, NULL, GPT2_TOKENS, {"gpt2"}},
    {"CodeGenTokenizer", false, NULL, GPT2_TOKENS, {NULL}},
    {"GPTNeoXTokenizer",
     true,
     NULL,
     "{\"bos_token\": " END ", \"eos_token\": " END ", \"unk_token\": " END ", \"pad_token\": \"<|padding|>\"}",
     {NULL}},
    {"Qwen2Tokenizer",
     true,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     "{\"eos_token\": " END ", \"unk_token\": " END ", \"pad_token\": " END "}",
     {"qwen2", "qwen3"}}};

/* ---- files --------------------------------------------------------------- */

/* An object of the folder; {}: there is no such file. */
static enum status read_folder_json(const char *folder, const char *name, size_t flags, json_t **out, struct error *err)
{
    char path[FS_PATH_MAX];
    *out = NULL;
    TRY(fs_join(path, folder, name, STATUS_DATA, err));
    if (!fs_exists(path)) {
        *out = json_object();
        return STATUS_OK;
    }
    TRY(fs_read_json(path, MAX_FILE, flags, out, err));
    if (json_is_object(*out)) return STATUS_OK;
    json_decref(TAKEN(*out));
    return error_set(err, STATUS_DATA, "'%s' is not a JSON object", PRINTABLE(path));
}

static enum status read_settings(struct tokenizer_folder *folder, struct error *err)
{
    json_auto_t *map = NULL;
    /* save_pretrained writes a model_max_length of 10^30, which is no integer of C */
    TRY(read_folder_json(folder->path, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL, &folder->values, err));
    TRY(read_folder_json(folder->path, "config.json", JSON_DECODE_INT_AS_REAL, &folder->model, err));
    folder->legacy = !json_object_get(folder->values, "added_tokens_decoder");
    if (!folder->legacy) return STATUS_OK;
    TRY(read_folder_json(folder->path, "special_tokens_map.json", JSON_DECODE_INT_AS_REAL, &map, err));
    json_object_update(folder->values, map);
    return STATUS_OK;
}

static enum status tokenizer_read_lines(const char *path, json_t **out, struct error *err)
{
    OWNED char *text = NULL;
    size_t bytes;
    TRY(fs_read_file(path, MAX_FILE, STATUS_DATA, &text, &bytes, err));
    json_auto_t *lines = json_array();
    for (char *rest = text; rest && *rest;) {
        char *line = strsep(&rest, "\n");
        line[strcspn(line, "\r")] = '\0';
        if (json_array_append_new(lines, json_string(line)))
            return error_set(err, STATUS_DATA, "'%s' is not UTF-8", path);
    }
    *out = TAKEN(lines);
    return STATUS_OK;
}

/* ---- classes ------------------------------------------------------------- */

static bool is_class(const struct tokenizer_class *class, const char *name, const char *model)
{
    const size_t length = strlen(class->name);
    if (name) return strncmp(name, class->name, length) == 0 && (!name[length] || strcmp(name + length, "Fast") == 0);
    for (size_t i = 0; model && i < COUNT_OF(class->models); i++)
        if (class->models[i] && strcmp(class->models[i], model) == 0) return true;
    return false;
}

/* The class that the folder names, or its model's; NULL: not known. *name, *model: what it was looked for by. */
static const struct tokenizer_class *find_class(const struct tokenizer_folder *folder, const char **name,
                                                const char **model)
{
    *name = json_string_value(json_object_get(folder->values, "tokenizer_class"));
    if (!*name) *name = json_string_value(json_object_get(folder->model, "tokenizer_class"));
    *model = json_string_value(json_object_get(folder->model, "model_type"));
    for (size_t i = 0; i < COUNT_OF(CLASSES); i++)
        if (is_class(&CLASSES[i], *name, *model)) return &CLASSES[i];
    return NULL;
}

/* A folder that names neither a class nor a model has GPT-2's. */
static enum status choose_class(struct tokenizer_folder *folder, struct error *err)
{
    const char *name, *model;
    folder->class = find_class(folder, &name, &model);
    if (!name && !model) folder->class = &CLASSES[0];
    if (folder->class) return STATUS_OK;
    return error_set(err, STATUS_USAGE,
                     "'%s' has vocab.json and merges.txt of a %s%.100s, and no tokenizer.json; hint: %s",
                     PRINTABLE(folder->path), name ? "" : "model of type ", PRINTABLE(name ? name : model), WRITES_ONE);
}

/* A tokenizer.json (new reference) of a vocabulary and merges, whose references it takes, and of the class. */
static json_t *make_parts(const struct tokenizer_folder *folder, json_t *vocabulary, json_t *merges)
{
    const struct tokenizer_class *class = folder->class;
    json_t *cut =
        json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                  json_is_true(json_object_get(folder->values, "add_prefix_space")), "use_regex", !class->words);
    if (class->words)
        cut = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                        "pattern", "Regex", class->words, "behavior", "Isolated", "invert", 0, cut);
    json_t *parts = json_pack("{s:{s:s, s:o, s:o}, s:o, s:{s:s}, s:[]}", "model", "type", "BPE", "vocab", vocabulary,
                              "merges", merges, "pre_tokenizer", cut, "decoder", "type", "ByteLevel", "added_tokens");
    json_auto_t *defaults = json_loads(class->defaults, 0, NULL);
    ASSERT(parts && defaults);
    if (class->nfc) json_object_set_new(parts, "normalizer", json_pack("{s:s}", "type", "NFC"));
    json_object_update_missing(folder->values, defaults);
    return parts;
}

/* Beside a tokenizer.json a class has its say about a space before a text; the file has all else. */
static void set_prefix_space(const struct tokenizer_folder *folder, json_t *parts)
{
    json_t *space = json_object_get(folder->values, "add_prefix_space"), *cut = json_object_get(parts, "pre_tokenizer");
    json_t *cuts = json_object_get(cut, "pretokenizers"), *item;
    const char *name, *model;
    size_t i;
    if (!json_is_boolean(space) || !find_class(folder, &name, &model)) return;
    if (json_object_get(cut, "add_prefix_space")) json_object_set(cut, "add_prefix_space", space);
    json_array_foreach (cuts, i, item)
        if (json_object_get(item, "add_prefix_space")) json_object_set(item, "add_prefix_space", space);
}

/* ---- special tokens ------------------------------------------------------ */

/* The text of a token, which may be given with its properties; NULL: it is none. */
static const char *folder_token_text(const json_t *token)
{
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    return text && *text ? text : NULL;
}

static void folder_add_special(json_t *tokens, json_t *token)
{
    const char *text = folder_token_text(token);
    if (text && !json_object_get(tokens, text)) json_object_set(tokens, text, token);
}

/* {text: token} of the named special tokens: NAMES first, then the model's own, then the list. New reference. */
static json_t *special_tokens(const struct tokenizer_folder *folder)
{
    json_t *tokens = json_object(), *value, *more = json_object_get(folder->values, "extra_special_tokens");
    const char *key;
    size_t i;
    for (i = 0; i < COUNT_OF(NAMES); i++) folder_add_special(tokens, json_object_get(folder->values, NAMES[i]));
    json_object_foreach (folder->values, key, value)
        if (fs_has_suffix(key, "_token")) folder_add_special(tokens, value);
    if (json_object_size(more) + json_array_size(more) == 0)
        more = json_object_get(folder->values, "additional_special_tokens");
    json_object_foreach (more, key, value) {
        folder_add_special(tokens, value);
    }
    json_array_foreach (more, i, value) {
        folder_add_special(tokens, value);
    }
    return tokens;
}

/* ---- added tokens -------------------------------------------------------- */

/* The "added_tokens" of a tokenizer.json, to which tokens are added. */
struct addition {
    json_t *items, *vocabulary; /* borrowed */
    json_t *by_text;            /* borrowed: {text: item} */
    json_int_t next;            /* the id of a token that is not in the vocabulary */
};

static void tokenizer_take_item(struct addition *addition, const char *text, json_t *item)
{
    const json_int_t id = json_integer_value(json_object_get(item, "id"));
    if (text) json_object_set(addition->by_text, text, item);
    if (id >= addition->next && id < INT32_MAX) addition->next = id + 1;
}

/* Adds a token, or gives one these properties. token: an object with some of them, or a text. Returns its id. */
static json_int_t add_token(struct addition *addition, const char *text, const json_t *token, bool special)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    json_t *item = json_object_get(addition->by_text, text);
    const json_t *normalized = json_object_get(token, "normalized"), *was = json_object_get(token, "special");
    if (!item) {
        const json_t *known = json_object_get(addition->vocabulary, text);
        item = json_pack("{s:s, s:I}", "content", text, "id", known ? json_integer_value(known) : addition->next);
        json_array_append_new(addition->items, item);
        tokenizer_take_item(addition, text, item);
    }
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        json_object_set_new(item, flags[i], json_boolean(json_is_true(json_object_get(token, flags[i]))));
    json_object_set_new(item, "special", json_boolean(special));
    json_object_set_new(
        item, "normalized",
        json_boolean(json_is_boolean(normalized) ? json_is_true(normalized) : !(was ? json_is_true(was) : special)));
    return json_integer_value(json_object_get(item, "id"));
}

/* A token to which the folder gives an id. */
struct declared {
    int64_t id;
    const char *text;    /* borrowed */
    const json_t *token; /* borrowed: its properties, or the id of added_tokens.json */
};

/* Of added_tokens_decoder, {"5": {"content": "<s>"}}, or of a legacy folder's added_tokens.json, {"<s>": 5}. */
static enum status read_declared(const struct tokenizer_folder *folder, const char *key, const json_t *value,
                                 struct declared *out, struct error *err)
{
    char *end = "";
    errno = 0;
    *out = folder->legacy ? (struct declared){json_integer_value(value), key, value}
                          : (struct declared){strtoll(key, &end, 10), folder_token_text(value), value};
    if (*end || errno || !out->text || !(folder->legacy ? json_is_integer(value) : json_is_object(value)))
        return error_set(err, STATUS_DATA, "the added tokens of '%s' are not ids with tokens: %s has '%.100s'",
                         PRINTABLE(folder->path), folder->legacy ? "added_tokens.json" : "added_tokens_decoder",
                         PRINTABLE(key));
    return STATUS_OK;
}

static enum status check_declared(const struct tokenizer_folder *folder, const struct declared *token, json_int_t id,
                                  struct error *err)
{
    if (token->id == id) return STATUS_OK;
    return error_set(err, STATUS_DATA,
                     "'%s' gives the token '%.100s' the id %lld, and after its vocabulary and the tokens before it the "
                     "next id is %lld",
                     PRINTABLE(folder->path), PRINTABLE(token->text), (long long)token->id, (long long)id);
}

static enum status add_declared(const struct tokenizer_folder *folder, json_t *from, const json_t *special,
                                struct addition *addition, struct error *err)
{
    OWNED struct declared *tokens = memory_zeroed(json_object_size(from) + 1, sizeof *tokens);
    const char *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach (from, key, value) {
        TRY(read_declared(folder, key, value, &tokens[count++], err));
    }
    qsort(tokens, count, sizeof *tokens, compare_int64);
    for (size_t i = 0; i < count; i++) {
        const char *text = tokens[i].text;
        const bool there = json_object_get(addition->by_text, text);
        if (folder->legacy && there) continue; /* the tokenizer.json has it, with its properties */
        const bool is_new = !there && !json_object_get(addition->vocabulary, text);
        const bool named = json_object_get(special, text) || json_is_true(json_object_get(tokens[i].token, "special"));
        const json_int_t id = add_token(addition, text, tokens[i].token, named);
        if (is_new) TRY(check_declared(folder, &tokens[i], id, err));
    }
    return STATUS_OK;
}

/* Appends the special token of a key to a template, if the folder has the flag. */
static void put_around(const struct tokenizer_folder *folder, const struct addition *addition, const char *key,
                       const char *flag, json_t *pieces, json_t *tokens)
{
    const char *text = folder_token_text(json_object_get(folder->values, key));
    if (!text || !json_is_true(json_object_get(folder->values, flag))) return;
    json_t *id = json_object_get(json_object_get(addition->by_text, text), "id");
    json_array_append_new(pieces, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0));
    json_object_set_new(tokens, text, json_pack("{s:s, s:[O], s:[s]}", "id", text, "ids", id, "tokens", text));
}

/* What a class puts before and after a text, as a post-processor. */
static void surround(const struct tokenizer_folder *folder, const struct addition *addition, json_t *parts)
{
    json_t *pieces = json_array(), *tokens = json_object();
    put_around(folder, addition, "bos_token", "add_bos_token", pieces, tokens);
    json_array_append_new(pieces, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    put_around(folder, addition, "eos_token", "add_eos_token", pieces, tokens);
    json_object_set_new(
        parts, "post_processor",
        json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", pieces, "special_tokens", tokens));
}

enum status tokenizer_folder_apply(const struct tokenizer_folder *folder, json_t *parts, struct error *err)
{
    json_t *vocabulary = json_object_get(json_object_get(parts, "model"), "vocab"), *token, *item;
    json_t *items = json_object_get(parts, "added_tokens");
    json_auto_t *from = NULL;
    const char *text;
    size_t i;
    if (!json_is_object(vocabulary) || (items && !json_is_null(items) && !json_is_array(items))) return STATUS_OK;
    if (!json_is_array(items)) json_object_set_new(parts, "added_tokens", items = json_array());
    if (folder->legacy)
        TRY(read_folder_json(folder->path, "added_tokens.json", 0, &from, err));
    else
        from = json_incref(json_object_get(folder->values, "added_tokens_decoder"));
    json_auto_t *special = special_tokens(folder), *by_text = json_object();
    struct addition addition = {items, vocabulary, by_text, (json_int_t)json_object_size(vocabulary)};
    json_array_foreach (items, i, item) {
        tokenizer_take_item(&addition, folder_token_text(item), item);
    }
    const enum status status = add_declared(folder, from, special, &addition, err);
    json_object_foreach (special, text, token)
        if (!json_object_get(addition.by_text, text)) add_token(&addition, text, token, true);
    if (folder->class)
        surround(folder, &addition, parts);
    else
        set_prefix_space(folder, parts);
    return status;
}

/* ---- opening ------------------------------------------------------------- */

static enum status read_pair(struct tokenizer_folder *folder, const char *vocabulary_path, const char *merges_path,
                             json_t **parts, struct error *err)
{
    json_auto_t *vocabulary = NULL;
    json_t *merges = NULL;
    TRY(choose_class(folder, err));
    TRY(fs_read_json(vocabulary_path, MAX_FILE, 0, &vocabulary, err));
    TRY(tokenizer_read_lines(merges_path, &merges, err));
    *parts = make_parts(folder, TAKEN(vocabulary), merges);
    return STATUS_OK;
}

/* The tokenizer.json that a folder has, or what its other files make. `file`: of what, for messages. */
static enum status read_parts(struct tokenizer_folder *folder, char file[FS_PATH_MAX], json_t **parts,
                              struct error *err)
{
    char merges[FS_PATH_MAX], pieces[FS_PATH_MAX];
    TRY(fs_join(file, folder->path, "tokenizer.json", STATUS_DATA, err));
    if (fs_exists(file)) return fs_read_json(file, MAX_FILE, 0, parts, err);
    TRY(fs_join(file, folder->path, "vocab.json", STATUS_DATA, err));
    TRY(fs_join(merges, folder->path, "merges.txt", STATUS_DATA, err));
    TRY(fs_join(pieces, folder->path, "tokenizer.model", STATUS_DATA, err));
    if (fs_exists(file) && fs_exists(merges)) return read_pair(folder, file, merges, parts, err);
    if (!fs_exists(pieces)) return error_set(err, STATUS_USAGE, "'%s' has no tokenizer.json", folder->path);
    return error_set(err, STATUS_USAGE, "'%s' has no tokenizer.json, and its tokenizer.model is not read; hint: %s",
                     folder->path, WRITES_ONE);
}

bool tokenizer_folder_has(const char *folder)
{
    static const char *const files[] = {"tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model"};
    char path[FS_PATH_MAX];
    struct error err;
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (fs_join(path, folder, files[i], STATUS_DATA, &err) == STATUS_OK && fs_exists(path)) return true;
    return false;
}

enum status tokenizer_folder_open(const char *path, struct tokenizer **out, struct error *err)
{
    char parent[FS_PATH_MAX], file[FS_PATH_MAX];
    const bool whole = fs_is_dir(path);
    json_auto_t *parts = NULL;
    fs_parent(path, parent);
    struct tokenizer_folder folder = {.path = whole ? path : parent};
    enum status status = read_settings(&folder, err);
    if (status == STATUS_OK)
        status = whole ? read_parts(&folder, file, &parts, err) : fs_read_json(path, MAX_FILE, 0, &parts, err);
    if (status == STATUS_OK) status = tokenizer_folder_apply(&folder, parts, err);
    if (status == STATUS_OK) status = tokenizer_from_json(parts, whole ? file : path, out, err);
    if (status == STATUS_OK)
        (*out)->splits_special = json_is_true(json_object_get(folder.values, "split_special_tokens"));
    json_decref(folder.values);
    json_decref(folder.model);
    return status;
}
