/* checkpoint_save_cache.c: see checkpoint_save_cache.h. */
#include "ckpt/checkpoint_save_cache.h"

#include "core/memory.h"

#include <stdlib.h>
#include <xxhash.h>

/* The files of a tokenizer in a Hugging Face folder, and the settings of generation; those that exist are copied. */
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
_Static_assert(COUNT_OF(tokenizer_files) == TOKENIZER_FILES_MAX, "the cache has room for each file");

enum { TOKENIZER_MAX_BYTES = 1 << 30 };

enum status checkpoint_save_cache_new(const char *tokenizer_dir, struct checkpoint_save_cache **out, struct error *err)
{
    enum status status = STATUS_OK;
    struct checkpoint_save_cache *cache = memory_zeroed(1, sizeof *cache);
    for (size_t i = 0; tokenizer_dir && i < COUNT_OF(tokenizer_files); i++) {
        struct tokenizer_file *file = &cache->files[cache->num_files];
        char path[FS_PATH_MAX];
        TRY_GOTO(fs_join(path, tokenizer_dir, tokenizer_files[i], STATUS_DATA, err));
        if (!fs_exists(path))
            continue;
        TRY_GOTO(fs_read_file(path, TOKENIZER_MAX_BYTES, STATUS_DATA, &file->data, &file->bytes, err));
        file->name = tokenizer_files[i];
        file->checksum = XXH3_64bits(file->data, file->bytes);
        cache->num_files++;
    }
    *out = cache;
    return STATUS_OK;
fail:
    checkpoint_save_cache_free(cache);
    return status;
}

void checkpoint_save_cache_free(struct checkpoint_save_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < cache->num_files; i++)
        free(cache->files[i].data);
    checkpoint_list_release(&cache->known);
    free(cache);
}
