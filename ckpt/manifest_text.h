/* manifest_text.h: the form of manifest.json, for manifest_write.c and manifest_read.c.
 *
 *     {
 *      "format": "ztrain-checkpoint",
 *      …
 *      "files": [
 *       {"name": "rank-00000.zst", …}
 *      ],
 *      "checksum": "0123456789abcdef"
 *     } */
#pragma once

#include "ckpt/manifest.h"

#include <stddef.h>

#define FORMAT "ztrain-checkpoint"
#define CHECKSUM_HEAD ",\n \"checksum\": \""
#define CHECKSUM_TAIL "\"\n}\n"

/* The integer members of "position", for both directions. */
static const struct {
    const char *name;
    size_t offset;
} position_fields[] = {
    {"step", offsetof(struct train_position, step)},
    {"optimizer_step", offsetof(struct train_position, optimizer_step)},
    {"epoch", offsetof(struct train_position, epoch)},
    {"step_in_epoch", offsetof(struct train_position, step_in_epoch)},
    {"skipped_in_row", offsetof(struct train_position, skipped_in_row)},
    {"epoch_targets", offsetof(struct train_position, epoch_targets)},
    {"tokens", offsetof(struct train_position, tokens)},
};
