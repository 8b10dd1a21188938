/* SPDX-License-Identifier: Apache-2.0 */
/* fsutil.h: helpers for files and folders, for all code that reads outside data or publishes a file. `code` is the
 * status of a failure (STATUS_DATA for model files, STATUS_CHECKPOINT for checkpoints, …); messages have the path and
 * the text of errno. The functions keep no state; any thread may call them. */
#pragma once

#include "core/status.h"

#include <jansson.h>

enum { FS_PATH_MAX = 4096 };

/* out = "dir/name"; an error if it does not fit in FS_PATH_MAX bytes. */
enum status fs_join(char out[FS_PATH_MAX], const char *dir, const char *name, enum status code, struct error *err);

/* The folder of `path`, from its text: "." for a bare name. */
void fs_parent(const char *path, char out[FS_PATH_MAX]);

/* The last part of a path that may end with '/', and its length: "c" of "a/b/c/". For other paths: GNU's basename(). */
const char *fs_last_part(const char *path, size_t *length);

bool fs_has_suffix(const char *name, const char *suffix);

bool fs_exists(const char *path); /* any entry, including a dangling link */
bool fs_is_dir(const char *path);

/* Whether no entry has this name; false also where that cannot be known. */
bool fs_is_absent(const char *path);

/* Whether `path` is a folder. *there is false only where nothing has this name. An error: anything else of this name
 * (a file, a link to nothing), here or in place of a folder above it; a disk that does not answer. */
enum status fs_find_dir(const char *path, bool *there, enum status code, struct error *err);

/* Opens a regular file, with O_CLOEXEC and mode 0666; refuses others at once. *fd -1: an error. st: may be NULL. */
enum status fs_open_regular(const char *path, int flags, enum status code, int *fd, struct stat *st, struct error *err);

/* The same for reading. *bytes (may be NULL): the file's size. */
enum status fs_open_read(const char *path, enum status code, int *fd, int64_t *bytes, struct error *err);

/* Closes a descriptor that is not negative, and sets it to -1; also for RELEASED. */
void fs_close(int *fd);

/* The same as a stream, which the caller closes. */
enum status fs_open_stream(const char *path, enum status code, FILE **stream, struct error *err);

/* Reads a whole regular file of at most max_bytes; a NUL follows the *size bytes of *data (caller frees). */
enum status fs_read_file(const char *path, size_t most, enum status code, char **data, size_t *size, struct error *err);

/* Reads a file of JSON, with jansson's flags and no key twice. STATUS_DATA: "FILE:LINE:COLUMN: not valid JSON: …". */
enum status fs_read_json(const char *path, size_t most, size_t flags, json_t **json, struct error *err);

/* Reads exactly `count` bytes at `offset`; the error for a short file has the offset where it ends. Beats. */
enum status fs_pread(int fd, const char *path, void *data, size_t count, int64_t offset, enum status code,
                     struct error *err);

/* Writes exactly `count` bytes at the file's position. Beats. */
enum status fs_write(int fd, const char *path, const void *data, size_t count, enum status code, struct error *err);

enum status fs_mkdirs(const char *path, enum status code, struct error *err);

/* fsync of a folder, where its file system can: its renames are durable. Beats. */
enum status fs_sync_dir(const char *path, enum status code, struct error *err);

/* Writes a whole file: a temporary name next to it, fsync, rename, fsync of the folder. The other one appends zeros up
 * to `bytes`, without writing them. */
enum status fs_write_file(const char *path, const void *data, size_t size, enum status code, struct error *err);
enum status fs_make_file(const char *path, const void *data, size_t size, int64_t bytes, enum status code,
                         struct error *err);

/* Copies a regular file in the same way, with bounded memory. */
enum status fs_copy_file(const char *from, const char *to, enum status code, struct error *err);

/* Whether `path`, followed through links, names a pipe, a device or a folder. */
bool named_file_is_special(const char *path);

/* The name that `path` leads to: itself unless it is a link. The target of a link need not exist. */
enum status named_file_target(const char *path, char target[FS_PATH_MAX], enum status code, struct error *err);

/* fs_write_file() that replaces a link's target, and writes into a pipe, which has a reader, or a device. */
enum status named_file_write(const char *path, const void *data, size_t size, enum status code, struct error *err);
