/* save_parts.h: what the two writers of a run's checkpoints share: the one that training waits for (save.h) and the one
 * beside it (background_save.h). */
#pragma once

#include "cmd/run/run_state.h"

struct checkpoint_keep save_keep_of(const struct run *run);

/* A writer of the run's checkpoints; borrows from the run. */
struct checkpoint_writer save_writer_of(struct run *run);

/* Whether a save failed because of the disk: another attempt may succeed, and training can continue without the
 * checkpoint. Other causes are fatal: a folder that is gone (RUN_LOCK_GONE) or that another run has taken over
 * (STATUS_USAGE), memory, a peer. */
bool save_is_disk_error(const struct error *err);

/* A checkpoint that is complete. */
struct saved {
    const char *name;
    int64_t step, bytes;
    double stalled, seconds; /* that training waited; from the begin of the save to its end */
};

/* Notes a complete checkpoint in the run's state, on rank 0 also in the metrics and the log. */
enum status save_report(struct run *run, const struct saved *saved, struct error *err);
