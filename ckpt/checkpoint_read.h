/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_read.h: an open checkpoint from inside. For the files of ckpt/. */
#pragma once

#include "ckpt/manifest.h"

/* checkpoint->private_. One caller at a time may read.
 *
 * A rank file is opened when it is first needed and stays open for the next ranges, as long as these files take no more
 * than half of the process's descriptors. */
struct checkpoint_reader {
    const char *folder;        /* borrowed */
    struct stat identity;      /* of the folder, before anything was read */
    struct manifest *manifest; /* owned */
    struct rankfile **files;   /* [world] owned; NULL: not open */
    int num_open, most_open;
    int newest; /* the one that was opened last, if it is open */
};

static inline struct checkpoint_reader *reader_of(const struct checkpoint *checkpoint)
{
    return checkpoint->private_;
}

/* They are opened anew when they are needed. */
void checkpoint_reader_close_files(struct checkpoint_reader *reader);

/* Looks at the files that checkpoint_verify_part() reads, without reading them. */
enum status checkpoint_check_part(const struct checkpoint *checkpoint, int part, int parts, struct error *err);
