/* SPDX-License-Identifier: Apache-2.0 */
/* flight_recorder.h: keeps this rank's flight record (core/flight/flight.h) in the run folder:
 * flight/START/rank-00003.ring, where START is a start of the run (core/flight/flight_file.h).
 *
 * Recording only writes to the node's shared memory. A thread copies that into the file once a second (at most 64 files
 * a second in all), at SIGQUIT and stop signals, when the job fails, and when a step takes five times as long as usual:
 * a file server that hangs delays no step. Neighbours write the record of a rank that is killed or stopped.
 *
 * A run that ends in order deletes its records, unless a SIGQUIT or a slow step asked for them. The next start deletes
 * what is half made, and all records but the newest. */
#pragma once

#include "cmd/run/run_state.h"

/* From now on SIGQUIT does not end the process: the recorder writes the record, once it runs. */
void flight_recorder_take_quits(void);

/* Collective, once the run folder is open. Only a peer's failure is an error. */
enum status flight_recorder_start(struct run *run, struct error *err);

/* The job has failed: writes this rank's record, and those of neighbours whose processes are gone or stopped; waits two
 * seconds at most. Any thread. Nothing happens if no recorder runs, here and below. */
void flight_recorder_fail(enum status status, const struct error *err);

/* The step had a non-finite loss or gradient. first: the one before had none; rank: whose it was, -1: unknown. */
void flight_recorder_bad_step(int64_t step, bool first, int rank, const char *tensor);

/* Ends the thread; waits a second for it at most. After a failure the record stays. */
void flight_recorder_stop(void);
