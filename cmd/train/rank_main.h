/* rank_main.h: the life of a rank: it meets the others, prepares the run, trains, and ends together with them.
 *
 * A rank that fails alone informs the others (comm_abort), so that all end with its exit code; at points that all ranks
 * reach they agree (comm/agree.h). A rank ends with 0 or 75 only when all ranks have come that far. */
#pragma once

#include "cmd/run/run_state.h"

/* Runs this process as a rank (or the only one) of a connected job. Leaves the job in order if all ranks end alike. The
 * error is printed here. */
enum status rank_run(const struct rank_options *options, struct bootstrap *boot, struct run_spec *spec,
                     struct error *err);

/* Ends a rank that has no communicator, as the ranks did not all meet: prints the error (early_error_print()) and has
 * the launcher end the other ranks. */
void rank_end_unmet(struct bootstrap *boot, enum status status, struct error *err);
