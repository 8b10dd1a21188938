/* checkpoint_stream.h: reads ranges of a checkpoint's state, one after the other, while threads read ahead; and the
 * rank files that are open. For checkpoint_open.c and checkpoint_read.c.
 *
 * A range of a unit may lie in the slices of several writers: element e of a unit is in file e / slice, at e % slice.
 * A rank file is opened when it is first needed and stays open for the next ranges, as long as these files take no more
 * than half of the process's descriptors. One caller at a time may read from a checkpoint, or one stream. */
#pragma once

#include "ckpt/manifest.h"
#include "ckpt/rankfile.h"
#include "core/retry.h"

#include <sys/stat.h>

/* The rank files of a checkpoint. */
struct checkpoint_files {
    const char *folder;              /* borrowed */
    const struct manifest *manifest; /* borrowed */
    struct rankfile **files;         /* [manifest->world] owned; NULL: not open */
    int num_open, most_open;
    int newest; /* the one that was opened last, if it is open */
};

void checkpoint_files_init(struct checkpoint_files *files, const char *folder, const struct manifest *manifest);
/* Closes those that are open; they are opened anew when they are needed. No stream may be reading. */
void checkpoint_files_close(struct checkpoint_files *files);
void checkpoint_files_release(struct checkpoint_files *files);

/* Elements [first, first + count) of a unit; count may be 0. */
struct checkpoint_range {
    int state, unit;
    int64_t first, count;
};

struct checkpoint_stream;

/* Begins to read `count` ranges (borrowed until checkpoint_stream_free()). A failing disk is retried by the rules of
 * `retry`, separately for each frame. */
enum status checkpoint_stream_new(struct checkpoint_files *files, const struct retry *retry,
                                  const struct checkpoint_range *ranges, int count, struct checkpoint_stream **stream,
                                  struct error *err);
/* The next range into `out`, which has room for all of its elements. An error ends the stream. */
enum status checkpoint_stream_next(struct checkpoint_stream *stream, float *out, struct error *err);
/* Share `part` of `parts` of the frames of all files in their order, which are divided into runs of equal length. Each
 * rank file has as many frames as the others. */
void checkpoint_part_frames(const struct manifest *manifest, int part, int parts, int64_t *first, int64_t *count);
/* Begins to verify such a share. The disk is not retried. */
enum status checkpoint_stream_new_part(struct checkpoint_files *files, int part, int parts,
                                       struct checkpoint_stream **stream, struct error *err);
/* Verifies every frame of the share. */
enum status checkpoint_stream_verify(struct checkpoint_stream *stream, struct error *err);
void checkpoint_stream_free(struct checkpoint_stream *stream); /* NULL is allowed */

/* An open checkpoint from inside: checkpoint->private_. */
struct reader {
    struct stat identity;      /* of the folder, before anything was read */
    struct manifest *manifest; /* owned */
    struct checkpoint_files files;
};

static inline struct reader *reader_of(const struct checkpoint *checkpoint)
{
    return checkpoint->private_;
}
