/* SPDX-License-Identifier: Apache-2.0 */
/* local_disk.c: files of this machine, each a scratch file with an engine of asynchronous I/O of its own. */
#include "core/core.h"
#include "core/storage/disk.h"
#include "core/storage/scratch_file.h"

struct local_file {
    struct disk_file base; /* first */
    struct async_io *io;
    struct scratch_file scratch;
};

static void local_submit(struct disk_file *base, struct io_request *request, const struct io_transfer *transfer)
{
    const struct local_file *file = (const struct local_file *)base;
    struct io_transfer whole = *transfer;
    whole.fd = file->scratch.fd;
    whole.path = file->scratch.path;
    async_io_submit(file->io, request, &whole);
}

static enum status local_wait(struct disk_file *base, struct io_request *request, struct error *err)
{
    return async_io_wait(((struct local_file *)base)->io, request, err);
}

static void local_close(struct disk_file *base)
{
    struct local_file *file = (struct local_file *)base;
    async_io_free(file->io);
    scratch_file_release(&file->scratch);
    free(file);
}

static enum status local_open(const struct disk *disk, const struct disk_file_config *config, struct disk_file **out,
                              struct error *err)
{
    enum status status;
    char size[SIZE_TEXT_MAX];
    (void)disk;
    struct local_file *file = memory_zeroed(1, sizeof *file);
    file->base = (struct disk_file){.submit = local_submit, .wait = local_wait, .close = local_close};
    file->scratch.fd = -1;
    TRY_GOTO(async_io_new(&config->io, &file->io, err));
    TRY_GOTO(scratch_file_new(config->folder, config->rank, config->name, config->bytes, &file->scratch, err));
    log_detail("%s: %s in '%s', %s", config->name, size_round(config->bytes, size), config->folder,
               async_io_engine(file->io));
    if (!file->scratch.direct)
        log_info("notice: the file system of '%s' refuses direct I/O, so %s pass through the page cache",
                 config->folder, config->name);
    *out = &file->base;
    return STATUS_OK;
fail:
    local_close(&file->base);
    return status;
}

const struct disk local_disk = {local_open};
