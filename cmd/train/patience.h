/* patience.h: trying again what a disk or a file server refuses for a while, all ranks together.
 *
 * Rank 0's clock decides; the ranks exchange what it says, and whether one of them was asked to stop, several times a
 * second. So all of them wait, and try again or give up, alike. */
#ifndef ZTRAIN_CMD_TRAIN_PATIENCE_H
#define ZTRAIN_CMD_TRAIN_PATIENCE_H

#include "cmd/train/deadline.h"
#include "comm/comm.h"

/* Seconds of patience, at most, for a disk that training can do without: that of a checkpoint which is not the run's
 * last, or of metrics.jsonl. */
enum { PATIENCE_INTERVAL = 30 };

struct patience {
    struct comm *comm;         /* borrowed */
    struct deadline *deadline; /* borrowed; rank 0's */
    double limit, last_limit;  /* seconds in all: usually, and where the run ends with it */
    bool last;                 /* it does; becomes true when a rank is asked to stop meanwhile */
    double began, pause;       /* seconds_now(), seconds */
};

/* The first attempt begins now. */
void patience_begin(struct patience *patience);

/* Seconds that attempts may go on, on rank 0: to the limit, but not past the job's end. */
double patience_left(const struct patience *patience);

/* Collective, after an attempt that failed on some rank: waits, longer each time, then says whether to try again. */
enum status patience_again(struct patience *patience, bool *again, struct error *err);

#endif
