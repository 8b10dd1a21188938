/* SPDX-License-Identifier: Apache-2.0 */
/* scratch_folder.h: a folder on a local disk for data that ends with the process: one for each run and rank.
 *
 *     PATH/ztrain-offload-00003-9f2c61d07be4a815/   of rank 3
 *         lock        held with flock() while the process lives; its text names the process for people
 *         NAME        a file of scratch_file_new()
 *
 * The last digits of the name are random, so jobs that share PATH never meet. scratch_folder_free() deletes the folder;
 * that of a process that was killed, whose lock is free, is deleted by the next process that makes a folder in PATH.
 * PATH has to be on a file system with locks. */
#pragma once

#include "core/status.h"

struct scratch_folder;

/* STATUS_DEVICE: PATH is no folder. It is never made: below an empty mount point it would fill another disk. */
enum status scratch_folder_check(const char *path, struct error *err);

/* Deletes abandoned folders in PATH and makes one. STATUS_DEVICE: PATH is no folder, or it cannot be made or locked. */
enum status scratch_folder_new(const char *path, int rank, struct scratch_folder **folder, struct error *err);
/* Deletes the folder and everything in it, with a warning if that fails; its files must be closed. May be NULL. */
void scratch_folder_free(struct scratch_folder *folder);
RELEASER(scratch_folder_drop, struct scratch_folder, scratch_folder_free)
const char *scratch_folder_path(const struct scratch_folder *folder);

struct scratch_file {
    int fd;
    char *path;    /* owned */
    bool direct;   /* opened with O_DIRECT: transfers bypass the page cache, and need ASYNC_IO_ALIGN */
    bool reserved; /* its space was reserved by fallocate(), or else by writing zeros */
};

/* Makes a file of reserved bytes, for direct I/O where that works. STATUS_DEVICE: the disk is full, or fails. */
enum status scratch_file_new(const struct scratch_folder *folder, const char *name, int64_t bytes,
                             struct scratch_file *file, struct error *err);
/* Closes the file; its folder deletes it. All zero is allowed. */
void scratch_file_release(struct scratch_file *file);
