/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_save_cache.h: what rank 0 reads once for all saves of a run. */
#pragma once

#include "ckpt/checkpoint_list.h"

enum { TOKENIZER_FILES_MAX = 32 };

struct tokenizer_file {
    char name[MANIFEST_NAME_MAX]; /* in a checkpoint */
    char *data;                   /* [bytes] owned */
    size_t bytes;
    uint64_t checksum; /* XXH3 of data */
};

struct checkpoint_save_cache {
    struct tokenizer_file files[TOKENIZER_FILES_MAX];
    int num_files;
    struct checkpoint_list known; /* as of the last save; empty before the first one */
};
