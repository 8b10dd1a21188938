/* SPDX-License-Identifier: Apache-2.0 */
/* csv_monitor.h: a file for each tag as DeepSpeed's: "Train_Samples_lr.csv", heading "step,lr", a row a value. */
#pragma once

#include "core/metrics/metrics.h"

struct csv_monitor;

/* The first steps that a resumed run repeats: of tags that begin with "Eval", and of all others. */
struct csv_history {
    int64_t first_train, first_eval;
};

/* Creates `folder`. Rows of the steps that the run repeats are cut from its files. STATUS_CHECKPOINT: cannot. */
enum status csv_monitor_open(const char *folder, const struct csv_history *history, struct csv_monitor **out,
                             struct error *err);

/* A row in the file of each scalar that is finite. STATUS_CHECKPOINT: cannot write. */
enum status csv_monitor_scalars(struct csv_monitor *m, int64_t step, const struct scalar *scalars, int count,
                                struct error *err);

void csv_monitor_close(struct csv_monitor *m); /* NULL is allowed */
