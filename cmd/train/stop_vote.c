/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/train/rank_main.h"

#include "cmd/run/stop_signal.h"
#include "cmd/save/background_save.h"
#include "core/flight/flight.h"

static const double vote_seconds = 1; /* between two votes on stopping within a step, at least */

/* On rank 0: as many micro-batches until the next vote as take vote_seconds at the pace since the last one; at most
 * twice the last interval, as a host that is ahead of its device measures too little time. */
static double next_vote(struct vote *vote)
{
    double now = seconds_now(), most = 2 * (double)(vote->interval > 0 ? vote->interval : 1);
    int64_t done = vote->interval - vote->left;
    double each = done > 0 ? (now - vote->at) / (double)done : INFINITY;
    vote->at = now;
    return fmin(fmax(floor(vote_seconds / each), 1), most);
}

enum status stop_vote(struct run *run, struct error *err)
{
    bool leads = run->boot->rank == 0, near = leads && deadline_is_near(&run->deadline, seconds_now());
    double votes[3 + BACKGROUND_VOTES] = {stop_signal_pending() ? 1.0 : 0.0, near ? 1.0 : 0.0,
                                          leads ? next_vote(&run->vote) : 0};
    background_save_vote(run, &votes[3]);
    const uint64_t entry = flight_begin(FLIGHT_VOTE, -1, 0, -1);
    TRY(comm_sum(run->comm, votes, COUNT_OF(votes), err));
    flight_end(entry);
    run->deadline_near = votes[1] > 0;
    run->stop = votes[0] > 0 || run->deadline_near;
    run->vote.interval = run->vote.left = (int64_t)votes[2];
    return background_save_advance(run, &votes[3], err);
}
