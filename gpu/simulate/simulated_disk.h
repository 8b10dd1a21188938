/* SPDX-License-Identifier: Apache-2.0 */
/* simulated_disk.h: the disk of a simulated GPU's node, for state that is offloaded to nvme. It does one transfer after
 * the other, in the order of calls: where parameters and the optimizer's state share it, that is slower than a run, in
 * which the next forward's reads pass writes. */
#pragma once

#include "core/storage/disk.h"
#include "gpu/simulate/op_estimate.h"

struct simulated_disk {
    struct disk disk;                   /* first */
    const struct assumed_gpu *settings; /* borrowed */
    double *host_clock;                 /* of the host function that is running; NULL: none is */
    double clock;                       /* when what was submitted so far is done */
    double seconds;                     /* of all transfers */
};

/* Bytes/s for one rank, set or usual. */
double simulated_disk_rate(const struct assumed_gpu *settings, bool write);

void simulated_disk_init(struct simulated_disk *disk, const struct assumed_gpu *settings);
