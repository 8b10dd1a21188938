/* SPDX-License-Identifier: Apache-2.0 */
/* kept_files.h: the texts that a run was started with (run spec, DeepSpeed's configuration, config.json), kept by the
 * supervisor of local ranks, so that all ranks of all its starts read the same bytes.
 *
 * It reads each file once, into a memory file without a name, whose descriptor passes through fork and exec
 * (ZTRAIN_KEPT_FILES is its number).
 *
 *     | path bytes | text bytes | path | text | path bytes | …
 *
 * One thread, before others are started. */
#pragma once

#include "core/status.h"

/* Keeps a file, under the path as it stands; one that is kept already stays, and one that cannot be read is not kept.
 * Pipes are read to their end, or until they are too large. STATUS_DEVICE: no memory file. */
enum status kept_files_add(const char *path, struct error *err);

/* The text of a kept file, with a NUL after its *bytes bytes (for free()); NULL: it is not kept. */
char *kept_files_read(const char *path, size_t *bytes);

/* The text of a file of any kind (for free()); of one with more than `most` bytes a part that has more than `most`,
 * since a pipe cannot be read again. NULL, with errno: it cannot be read or, if not *opened, be opened. */
char *any_file_read(const char *path, size_t most, size_t *bytes, bool *opened);
