/* checkpoint_new_file.h: small files of a checkpoint that is being written, and how the disk's errors read. */
#pragma once

#include "core/status.h"

#include <stddef.h>

/* "cannot WHAT 'path': …", of errno, which is the error's cause. A full disk gets a hint. Returns STATUS_CHECKPOINT. */
enum status checkpoint_io_error(const char *what, const char *path, struct error *err);

/* Creates folder/name with all of its bytes, and fsyncs it. The name must not exist. Ticks progress. */
enum status checkpoint_put_file(const char *folder, const char *name, const void *data, size_t bytes,
                                struct error *err);

/* Drops the cached pages of a file that is on disk, so that the next read comes from there. If that does not work, the
 * read at least verifies the cached pages. */
enum status checkpoint_reads_from_disk(const char *path, struct error *err);
