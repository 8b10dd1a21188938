/* SPDX-License-Identifier: Apache-2.0 */
/* scratch_file.h: a file on a local disk for data that ends with the process. It loses its name as soon as it is made:
 * its space is free however the process ends (at worst an empty file stays), and jobs in one folder never meet. */
#pragma once

#include "core/status.h"

/* STATUS_DEVICE: it is no folder. ztrain makes none: below an empty mount point it would fill another disk. */
enum status scratch_folder_check(const char *folder, struct error *err);

struct scratch_file {
    int fd;
    char *path;    /* owned: the name that it had, for messages */
    bool direct;   /* opened with O_DIRECT: transfers bypass the page cache, and need ASYNC_IO_ALIGN */
    bool reserved; /* its space was reserved by fallocate(), or else by writing zeros */
};

/* Makes a file of reserved bytes, for direct I/O where that works. rank and name: for messages, and for the kernel's
 * list of open files. STATUS_DEVICE: the folder does not exist, or the disk is full or fails. */
enum status scratch_file_new(const char *folder, int rank, const char *name, int64_t bytes, struct scratch_file *file,
                             struct error *err);
/* Closes the file, and its space is free. All zero is allowed. */
void scratch_file_release(struct scratch_file *file);
