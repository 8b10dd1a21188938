/* checkpoint_keeper.h: the tokenizer files and the list of checkpoints that rank 0 keeps from one save of a run to the
 * next. For checkpoint_save.c. */
#ifndef ZTRAIN_CKPT_CHECKPOINT_KEEPER_H
#define ZTRAIN_CKPT_CHECKPOINT_KEEPER_H

#include "ckpt/checkpoint_folders.h"

#include <stddef.h>
#include <stdint.h>

enum { TOKENIZER_FILES_MAX = 12 };

struct tokenizer_file {
    const char *name; /* static */
    char *data;       /* [bytes] owned */
    size_t bytes;
    uint64_t checksum; /* XXH3 of data */
};

struct checkpoint_keeper {
    struct tokenizer_file files[TOKENIZER_FILES_MAX];
    int num_files;
    struct checkpoint_list known; /* as of the last save; empty before the first one */
};

#endif
