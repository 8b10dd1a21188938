/* named_file.h: a file for output that a user names, which may be a link, a pipe or a device. */
#pragma once

#include "core/fsutil.h"

#include <stdbool.h>
#include <stddef.h>

/* Whether `path`, followed through links, names a pipe, a device or a folder. */
bool named_file_is_special(const char *path);

/* The name that `path` leads to: itself unless it is a link. The target of a link need not exist. */
enum status named_file_target(const char *path, char target[FS_PATH_MAX], enum status code, struct error *err);

/* Writes a whole file as fs_write_file() does; of a link it replaces the target; into a pipe or a device it writes. A
 * pipe that nobody reads is an error. */
enum status named_file_write(const char *path, const void *data, size_t size, enum status code, struct error *err);
