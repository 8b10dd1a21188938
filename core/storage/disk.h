/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h: the disk below record_file.h: a run's (local_disk.c), or a simulation's (gpu/simulate/simulated_device.h). */
#pragma once

#include "core/storage/async_io.h"

/* An open file; the first member of an implementation. Transfers name neither a descriptor nor a path. */
struct disk_file {
    void (*submit)(struct disk_file *file, struct io_request *request, const struct io_transfer *transfer);
    enum status (*wait)(struct disk_file *file, struct io_request *request, struct error *err);
    void (*close)(struct disk_file *file); /* no transfer is in flight */
};

struct disk_file_config {
    const char *name;   /* of the file, and in the log */
    const char *folder; /* nvme_path */
    int rank;
    int64_t bytes;
    struct aio_settings io;
};

struct disk {
    /* Makes a file of this size with its space reserved. STATUS_DEVICE: the disk is full, or fails. */
    enum status (*open)(const struct disk *disk, const struct disk_file_config *config, struct disk_file **file,
                        struct error *err);
};

/* Files that end with the process (scratch_file.h), by asynchronous I/O (async_io.h). */
extern const struct disk local_disk;
