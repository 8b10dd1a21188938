/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/checkpoint_save_cache.h"

#include <xxhash.h>

/* The files of a tokenizer, and at the end the model's settings of generation; those that exist are copied. */
static const char *const tokenizer_files[] = {"tokenizer.json",
                                              "tokenizer_config.json",
                                              "special_tokens_map.json",
                                              "added_tokens.json",
                                              "vocab.json",
                                              "merges.txt",
                                              "vocab.txt",
                                              "tokenizer.model",
                                              "spiece.model",
                                              "chat_template.jinja",
                                              "chat_template.json",
                                              "generation_config.json"};
_Static_assert(COUNT_OF(tokenizer_files) < TOKENIZER_FILES_MAX, "the cache has room for each file");

enum { TOKENIZER_MAX_BYTES = 1 << 30 };

/* Reads dir/name; `prefix` and `name` are its name in a checkpoint. */
static enum status add_file(struct checkpoint_save_cache *cache, const char *dir, const char *prefix, const char *name,
                            struct error *err)
{
    struct tokenizer_file *file = &cache->files[cache->num_files];
    char path[FS_PATH_MAX];
    TRY(fs_join(path, dir, name, STATUS_DATA, err));
    if (cache->num_files == TOKENIZER_FILES_MAX || strlen(prefix) + strlen(name) >= sizeof file->name) {
        error_set(err, STATUS_DATA, "cannot keep '%s' in checkpoints: %s", path,
                  cache->num_files == TOKENIZER_FILES_MAX ? "there are too many templates" : "its name is too long");
        return error_hint(err, "delete or rename chat templates that the model does not need");
    }
    TRY(fs_read_file(path, TOKENIZER_MAX_BYTES, STATUS_DATA, &file->data, &file->bytes, err));
    snprintf(file->name, sizeof file->name, "%s%s", prefix, name);
    file->checksum = XXH3_64bits(file->data, file->bytes);
    cache->num_files++;
    return STATUS_OK;
}

static int cached_by_name(const void *a, const void *b)
{
    return strcmp(((const struct tokenizer_file *)a)->name, ((const struct tokenizer_file *)b)->name);
}

/* Adds the files of `dir` whose names begin with `begin`; `prefix` goes before them in a checkpoint. */
static enum status add_templates(struct checkpoint_save_cache *cache, const char *dir, const char *begin,
                                 const char *prefix, struct error *err)
{
    enum status status = STATUS_OK;
    OWNED_DIR *listing = memory_opendir(dir);
    if (!listing)
        return errno == ENOENT ? STATUS_OK : error_system(err, STATUS_DATA, errno, "cannot list folder '%s'", dir);
    int first = cache->num_files;
    for (struct dirent *item; status == STATUS_OK && (item = readdir(listing));)
        if (*item->d_name != '.' && !strncmp(item->d_name, begin, strlen(begin)) &&
            fs_has_suffix(item->d_name, ".jinja"))
            status = add_file(cache, dir, prefix, item->d_name, err);
    qsort(&cache->files[first], (size_t)(cache->num_files - first), sizeof *cache->files, cached_by_name);
    return status;
}

enum status checkpoint_save_cache_new(const char *tokenizer_dir, const char *model_dir,
                                      struct checkpoint_save_cache **out, struct error *err)
{
    static const char prefix[] = TEMPLATES_FOLDER "-";
    char folder[FS_PATH_MAX];
    bool there;
    RELEASED(save_cache_drop) struct checkpoint_save_cache *cache = memory_zeroed(1, sizeof *cache);
    for (size_t i = 0; i < COUNT_OF(tokenizer_files); i++) {
        const char *dir = i == COUNT_OF(tokenizer_files) - 1 ? model_dir : tokenizer_dir;
        char path[FS_PATH_MAX];
        if (!dir) continue;
        TRY(fs_join(path, dir, tokenizer_files[i], STATUS_DATA, err));
        if (fs_exists(path)) TRY(add_file(cache, dir, "", tokenizer_files[i], err));
    }
    if (tokenizer_dir) {
        TRY(fs_join(folder, tokenizer_dir, TEMPLATES_FOLDER, STATUS_DATA, err));
        TRY(fs_find_dir(folder, &there, STATUS_DATA, err));
        TRY(there ? add_templates(cache, folder, "", prefix, err)
                  : add_templates(cache, tokenizer_dir, prefix, "", err));
    }
    *out = TAKEN(cache);
    return STATUS_OK;
}

void checkpoint_save_cache_free(struct checkpoint_save_cache *cache)
{
    if (!cache) return;
    for (int i = 0; i < cache->num_files; i++) free(cache->files[i].data);
    checkpoint_list_release(&cache->known);
    free(cache);
}
