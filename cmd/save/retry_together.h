/* retry_together.h: all ranks together repeat an operation that a disk or a file server refuses for a while.
 *
 * Rank 0's clock decides: several times a second the ranks exchange its decision, and whether one of them was asked to
 * stop. So all of them wait, try again or give up at the same time. */
#pragma once

#include "cmd/run/deadline.h"
#include "comm/comm.h"

/* Seconds of patience, at most, for a disk that training can do without: that of a checkpoint which is not the run's
 * last, or of metrics.jsonl. */
enum { PATIENCE_INTERVAL = 30 };

struct retry_together {
    struct comm *comm;         /* borrowed */
    struct deadline *deadline; /* borrowed; rank 0's */
    double limit, last_limit;  /* seconds in all: usually, and if the run ends with this attempt */
    bool last;                 /* the run ends with this; becomes true when a rank is asked to stop meanwhile */
    double began, pause;       /* seconds_now(), seconds */
};

/* To be called before the first attempt. */
void retry_together_begin(struct retry_together *patience);

/* On rank 0: seconds for which attempts may continue, to the limit, but not past the job's end. */
double retry_together_left(const struct retry_together *patience);

/* Collective, after an attempt that failed on some rank: waits, longer each time. *again: whether to try again. */
enum status retry_together_again(struct retry_together *patience, bool *again, struct error *err);
