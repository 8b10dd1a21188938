/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert.h: other trainers' configurations as a run spec, for `ztrain convert`. */
#pragma once

#include "core/status.h"
#include "core/string_list.h"

#include <stdio.h>

struct convert_request {
    const char *const *files; /* arguments of Trainer or TRL, of axolotl or LLaMA-Factory; later files win */
    int num_files;
    const char *deepspeed; /* a DeepSpeed configuration, or NULL: the one that the files name */
    const char *out;       /* a file that must be none of those that are read; NULL: none */
    int world;             /* ranks, for train_batch_size; 0: it is left out */
};

/* Writes the run spec as YAML, and to `notes` what the user has to know: keys that are left out, files that are absent,
 * commands that make data. STATUS_USAGE: a file cannot be read, is `out`, or is of no known kind; nothing is written,
 * and `errors` has a line for each mistake but the one in err. */
enum status spec_convert(const struct convert_request *request, FILE *out, struct string_list *notes,
                         struct string_list *errors, struct error *err);
