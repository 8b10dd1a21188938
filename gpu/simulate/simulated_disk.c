/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/simulate/simulated_disk.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

struct simulated_file {
    struct disk_file base; /* first */
    struct simulated_disk *disk;
};

/* Bytes/s of one rank. The usual rates: Samsung announced the PM9A3 (U.2, PCIe 4 x 4), a usual data-centre SSD, with up
 * to 6,500 MB/s read and 3,500 MB/s written in sequence (Open Compute Summit, May 2020). */
double simulated_disk_rate(const struct assumed_gpu *s, bool write)
{
    const double set = write ? s->disk_write : s->disk_read, usual = write ? 3.5e9 : 6.5e9;
    return (set > 0 ? set : usual) / (s->node_ranks > 0 ? s->node_ranks : 1);
}

static void simulated_transfer(struct disk_file *file, struct io_request *request, const struct io_transfer *transfer)
{
    struct simulated_disk *disk = ((struct simulated_file *)file)->disk;
    const double seconds = (double)transfer->bytes / simulated_disk_rate(disk->settings, transfer->write);
    ASSERT(disk->host_clock && disk->settings->gpu);
    disk->clock = fmax(disk->clock, *disk->host_clock) + seconds;
    disk->seconds += seconds;
    request->active = true;
    request->done_at = disk->clock;
}

static enum status simulated_wait(struct disk_file *file, struct io_request *request, struct error *err)
{
    double *host_clock = ((struct simulated_file *)file)->disk->host_clock;
    (void)err;
    if (request->active && host_clock) /* else the file is being closed */
        *host_clock = fmax(*host_clock, request->done_at);
    request->active = false;
    return STATUS_OK;
}

static void simulated_file_close(struct disk_file *file)
{
    free(file);
}

static enum status simulated_file_open(const struct disk *disk, const struct disk_file_config *config,
                                       struct disk_file **out, struct error *err)
{
    (void)config, (void)err;
    struct simulated_file *file = memory_zeroed(1, sizeof *file);
    file->base = (struct disk_file){simulated_transfer, simulated_wait, simulated_file_close};
    file->disk = (struct simulated_disk *)(uintptr_t)disk;
    *out = &file->base;
    return STATUS_OK;
}

void simulated_disk_init(struct simulated_disk *disk, const struct assumed_gpu *settings)
{
    *disk = (struct simulated_disk){.disk = {.open = simulated_file_open}, .settings = settings};
}
