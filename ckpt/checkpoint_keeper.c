/* checkpoint_keeper.c: see checkpoint_keeper.h. */
#include "ckpt/checkpoint_keeper.h"

#include "core/memory.h"

#include <stdlib.h>
#include <xxhash.h>

/* The files of a tokenizer in a Hugging Face folder, and the settings of text generation; those that exist are copied.
 */
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
_Static_assert(COUNT_OF(tokenizer_files) == TOKENIZER_FILES_MAX, "the keeper has room for each file");

enum { TOKENIZER_MAX_BYTES = 1 << 30 };

enum status checkpoint_keeper_new(const char *tokenizer_dir, struct checkpoint_keeper **out, struct error *err)
{
    enum status status = STATUS_OK;
    struct checkpoint_keeper *keeper = memory_zeroed(1, sizeof *keeper);
    for (size_t i = 0; tokenizer_dir && i < COUNT_OF(tokenizer_files); i++) {
        struct tokenizer_file *file = &keeper->files[keeper->num_files];
        char path[FS_PATH_MAX];
        TRY_GOTO(fs_join(path, tokenizer_dir, tokenizer_files[i], STATUS_DATA, err));
        if (!fs_exists(path))
            continue;
        TRY_GOTO(fs_read_file(path, TOKENIZER_MAX_BYTES, STATUS_DATA, &file->data, &file->bytes, err));
        file->name = tokenizer_files[i];
        file->checksum = XXH3_64bits(file->data, file->bytes);
        keeper->num_files++;
    }
    *out = keeper;
    return STATUS_OK;
fail:
    checkpoint_keeper_free(keeper);
    return status;
}

void checkpoint_keeper_free(struct checkpoint_keeper *keeper)
{
    if (!keeper)
        return;
    for (int i = 0; i < keeper->num_files; i++)
        free(keeper->files[i].data);
    checkpoint_list_release(&keeper->known);
    free(keeper);
}
