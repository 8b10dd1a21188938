/* scratch_folder.h: a folder on a local disk for data that ends with the process: one for each run and rank.
 *
 *     PATH/ztrain-offload-00003-9f2c61d07be4a815/   of rank 3
 *         lock        held with flock() while the process lives; its text names the process for people
 *         NAME        a file of scratch_file_new()
 *
 * The last digits of the name are random, so jobs that share PATH never meet.
 * scratch_folder_free() deletes the folder. The kernel drops the lock of a process that was killed, and the next
 * process that makes a folder in PATH deletes every one whose lock is free. PATH has to be on a file system with locks:
 * without them an abandoned folder could not be told from one in use. */
#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct scratch_folder;

/* Whether PATH is a folder. STATUS_DEVICE: it is not. It is never made, because below an empty mount point it would
 * fill another disk. */
enum status scratch_folder_check(const char *path, struct error *err);

/* Deletes abandoned folders in PATH, which has to exist, and makes a folder for this process. STATUS_DEVICE: PATH is no
 * folder, or none can be made or locked in it. */
enum status scratch_folder_new(const char *path, int rank, struct scratch_folder **folder, struct error *err);
/* Deletes the folder and everything in it, with a warning if that fails; its files must be closed. May be NULL. */
void scratch_folder_free(struct scratch_folder *folder);
const char *scratch_folder_path(const struct scratch_folder *folder);

struct scratch_file {
    int fd;
    char *path;    /* owned */
    bool direct;   /* opened with O_DIRECT: transfers bypass the page cache, and need ASYNC_IO_ALIGN */
    bool reserved; /* its space was reserved by fallocate(), or else by writing zeros */
};

/* Makes a file of `bytes` bytes in the folder, all of them reserved, so that a full disk is an error here and not
 * later. It is opened for direct I/O where the file system takes that. STATUS_DEVICE: the disk is full, or fails.
 */
enum status scratch_file_new(const struct scratch_folder *folder, const char *name, int64_t bytes,
                             struct scratch_file *file, struct error *err);
/* Closes the file; its folder deletes it. All zero is allowed. */
void scratch_file_release(struct scratch_file *file);
