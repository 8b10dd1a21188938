/* checkpoint_reader.h: an open checkpoint from inside. For checkpoint_open.c and checkpoint_read.c. */
#pragma once

#include "ckpt/checkpoint_stream.h"
#include "ckpt/manifest.h"

#include <sys/stat.h>

/* checkpoint->private_ */
struct reader {
    struct stat identity;      /* of the folder, before anything was read */
    struct manifest *manifest; /* owned */
    struct checkpoint_files files;
};

static inline struct reader *reader_of(const struct checkpoint *checkpoint)
{
    return checkpoint->private_;
}
