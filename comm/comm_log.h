/* SPDX-License-Identifier: Apache-2.0 */
/* comm_log.h: bytes and time of the data operations by collective, purpose and unit, and which rank the others wait
 * for. Each rank times its operations by events on their stream, from its readiness to the end. As they end for all at
 * about the same time, the rank that was ready last has the shortest time, and the difference to it is another's wait.
 */
#pragma once

#include "comm/comm.h"

struct comm_log_row {
    const char *collective;
    enum comm_purpose purpose;
    int unit;
    int64_t calls, bytes; /* bytes of all ranks' slices together */
    double seconds;       /* from the readiness of a rank to the end, mean of the ranks */
    double waited;        /* of these, until the last rank was ready, mean of the ranks */
};

struct comm_log_config {
    int units;                       /* of the model */
    bool all_gather, reduce_scatter; /* which collectives are recorded */
    int most;                        /* operations that are kept between two calls of comm_log_share(); 0: 32768 */
    /* Called by comm_log_share() for each operation of this rank (calls 1, waited 0, seconds of this rank with its
     * waiting); NULL: not called. */
    void (*each)(void *context, const struct comm_log_row *op);
    void *context;
};

/* What a rank has cost the others. */
struct comm_log_rank {
    int64_t last;  /* operations for which this rank was ready last */
    double caused; /* seconds that each of the others has waited for it in them, on average */
    double waited; /* seconds that it has waited itself */
};

/* Begins to record, but for a single rank. The same on all ranks. Once, before comm_log_stop(). */
enum status comm_log_start(struct comm *comm, struct device *device, const struct comm_log_config *config,
                           struct error *err);
void comm_log_stop(struct comm *comm); /* before the device is closed; also if nothing is recorded */

/* Compares the operations that are over on all ranks. Collective; waits for the device only with `wait`. */
enum status comm_log_share(struct comm *comm, bool wait, struct error *err);

/* The rows that are not empty, by collective, purpose, unit, and the ranks (world), as of the last comm_log_share():
 * the same on all ranks. Borrowed until the next call. *skipped: operations that were too many to be kept. Returns the
 * number of rows; 0 if nothing is recorded. */
int comm_log_read(struct comm *comm, const struct comm_log_row **rows, const struct comm_log_rank **ranks,
                  int64_t *skipped);
