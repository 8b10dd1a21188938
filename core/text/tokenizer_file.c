#include "core/fsutil.h"
#include "core/memory.h"
#include "core/text/tokenizer_config.h"
#include "core/text/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 256 << 20 };

static enum status open_json(const char *path, const struct tokenizer_config *config, struct tokenizer **out,
                             struct error *err)
{
    json_t *json;
    TRY(tokenizer_read_file(path, 0, &json, err));
    enum status status = tokenizer_config_apply(config, json, err);
    if (status == STATUS_OK)
        status = tokenizer_from_json(json, path, out, err);
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
        char *line = strsep(&rest, "\n");
        line[strcspn(line, "\r")] = '\0';
        json_t *item = json_string(line);
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

/* vocab.json and merges.txt, without tokenizer.json. */
static enum status open_pair(const char *vocabulary_path, const char *merges_path, struct tokenizer_config *config,
                             struct tokenizer **out, struct error *err)
{
    json_t *vocabulary, *merges;
    TRY(tokenizer_config_choose_class(config, err));
    TRY(tokenizer_read_file(vocabulary_path, 0, &vocabulary, err));
    enum status status = read_lines(merges_path, &merges, err);
    if (status != STATUS_OK) {
        json_decref(vocabulary);
        return status;
    }
    json_t *parts = tokenizer_config_parts(config, vocabulary, merges);
    status = tokenizer_config_apply(config, parts, err);
    if (status == STATUS_OK)
        status = tokenizer_from_json(parts, vocabulary_path, out, err);
    json_decref(parts);
    return status;
}

static int32_t named_token(const struct tokenizer *tokenizer, const struct tokenizer_config *config, const char *key)
{
    const char *content = tokenizer_config_token(config, key);
    return content ? tokenizer_id(tokenizer, content) : -1;
}

static enum status open_folder(const char *folder, struct tokenizer_config *config, struct tokenizer **out,
                               struct error *err)
{
    char whole[FS_PATH_MAX], vocabulary[FS_PATH_MAX], merges[FS_PATH_MAX], pieces[FS_PATH_MAX];
    TRY(fs_join(whole, folder, "tokenizer.json", STATUS_DATA, err));
    TRY(fs_join(vocabulary, folder, "vocab.json", STATUS_DATA, err));
    TRY(fs_join(merges, folder, "merges.txt", STATUS_DATA, err));
    TRY(fs_join(pieces, folder, "tokenizer.model", STATUS_DATA, err));
    if (fs_exists(whole))
        return open_json(whole, config, out, err);
    if (fs_exists(vocabulary) && fs_exists(merges))
        return open_pair(vocabulary, merges, config, out, err);
    error_set(err, STATUS_USAGE, "'%s' has no tokenizer.json%s", folder,
              fs_exists(pieces) ? ", and its tokenizer.model is not read" : "");
    return fs_exists(pieces) ? error_hint(err, "transformers' AutoTokenizer.from_pretrained(…).save_pretrained(…) "
                                               "writes one")
                             : STATUS_USAGE;
}

bool tokenizer_is_there(const char *folder)
{
    static const char *const files[] = {"tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model"};
    char path[FS_PATH_MAX];
    struct error err;
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (fs_join(path, folder, files[i], STATUS_DATA, &err) == STATUS_OK && fs_exists(path))
            return true;
    return false;
}

enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *err)
{
    char folder[FS_PATH_MAX];
    struct tokenizer_config config;
    bool whole_folder = fs_is_dir(path);
    if (whole_folder)
        snprintf(folder, sizeof folder, "%s", path);
    else
        fs_parent(path, folder);
    enum status status = tokenizer_config_read(folder, &config, err);
    if (status == STATUS_OK)
        status = whole_folder ? open_folder(path, &config, out, err) : open_json(path, &config, out, err);
    if (status == STATUS_OK) {
        (*out)->bos = named_token(*out, &config, "bos_token");
        (*out)->eos = named_token(*out, &config, "eos_token");
        (*out)->splits_special = tokenizer_config_splits_special(&config);
    }
    tokenizer_config_release(&config);
    return status;
}
