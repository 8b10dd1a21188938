/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/save/resume.h"

#include "comm/agree.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum order_kind { ORDER_VERIFY, ORDER_TAKE, ORDER_END };

struct order {
    int32_t kind; /* enum order_kind */
    char path[4096];
};

struct report {
    struct outcome outcome;
    int cause;       /* error_cause() */
    int32_t unknown; /* the rank has not seen the checkpoint: it could not open it */
    char host[256], text[1536];
};
_Static_assert(sizeof(struct report) <= COMM_EXCHANGE_MAX, "a report must fit in one exchange");

struct together {
    struct comm *comm;
    const char *host;
    const struct retry *retry;
    bool unseen; /* rank 0: another rank could not open a checkpoint that is there, which is not damage */
    struct error why;
};

/* Opens the folder that rank 0 has named, without verifying it: looks only at the files of this rank's share. */
static enum status open_named(const struct together *all, const char *path, struct checkpoint **checkpoint,
                              struct error *err)
{
    struct retry again = *all->retry;
    enum status status;
    do
        status = checkpoint_open_part(path, comm_rank(all->comm), comm_world(all->comm), checkpoint, err);
    while (retry_again(&again, &status, err));
    if (status == STATUS_OK)
        (*checkpoint)->retry = *all->retry;
    return status;
}

/* Verifies this rank's share, unless it has failed already, and exchanges the outcomes: all ranks have the error of the
 * lowest rank that failed. *unknown: that rank could not open the checkpoint. */
static enum status resume_verify_share(const struct together *all, const struct checkpoint *checkpoint,
                                       enum status status, bool *unknown, struct error *err)
{
    const int rank = comm_rank(all->comm), world = comm_world(all->comm);
    struct report own = {.unknown = status != STATUS_OK}, *reports = memory_zeroed((size_t)world, sizeof *reports);
    int lowest;
    if (status == STATUS_OK)
        status = checkpoint_verify_part(checkpoint, rank, world, err);
    if (status != STATUS_OK) {
        own.cause = err->cause;
        snprintf(own.text, sizeof own.text, "%.1500s", err->text);
    }
    snprintf(own.host, sizeof own.host, "%s", all->host ? all->host : "");
    status = agree_with(all->comm, &own.outcome, sizeof own, reports, status, &lowest, err);
    *unknown = lowest >= 0 && reports[lowest].unknown;
    if (lowest >= 0) {
        error_set(err, status, "%s", reports[lowest].text);
        error_cause(err, reports[lowest].cause);
        if (lowest > 0 && (*unknown || status != STATUS_CHECKPOINT || error_is_unreadable(err))) {
            error_prefix(err, "rank %d on %s", lowest, reports[lowest].host);
            error_blame(err, lowest, FAILURE_NONE);
        }
    }
    free(reports);
    return status;
}

/* Rank 0: has all ranks verify a checkpoint (checkpoint_verifier). */
static enum status resume_verify_together(void *context, const struct checkpoint *checkpoint, struct error *err)
{
    struct together *all = context;
    struct order order = {.kind = ORDER_VERIFY};
    bool unknown = false;
    snprintf(order.path, sizeof order.path, "%s", checkpoint->path);
    enum status status = comm_broadcast(all->comm, &order, sizeof order, 0, err);
    if (status == STATUS_OK)
        status = resume_verify_share(all, checkpoint, STATUS_OK, &unknown, err);
    if (status != STATUS_OK && comm_status(all->comm, NULL) != STATUS_OK)
        return error_cause(err, 0); /* a job that has failed is not a disk to be tried again */
    if (status != STATUS_CHECKPOINT || !unknown || error_is_unreadable(err) || checkpoint_is_gone(checkpoint))
        return status;
    all->unseen = true;
    all->why = *err;
    return STATUS_PEER; /* ends the search: an older checkpoint is not an answer to this */
}

/* Rank 0: opens the checkpoint, in a run folder the newest whose contents all ranks have verified. */
static enum status choose(struct together *all, const char *resume, struct checkpoint **checkpoint, struct error *err)
{
    checkpoint_verifier *verify = resume_names_run(resume) ? resume_verify_together : NULL;
    struct retry again = *all->retry;
    enum status status;
    do
        status = checkpoint_open_verified(resume, verify, all, checkpoint, err);
    while (retry_again(&again, &status, err));
    if (status == STATUS_OK)
        (*checkpoint)->retry = *all->retry;
    else if (status == STATUS_CHECKPOINT && !resume_names_run(resume) && !error_is_unreadable(err))
        error_hint(err, "--resume RUN, the run folder, takes its newest checkpoint that is whole");
    return status;
}

/* Rank 0: chooses, then tells the others what to take. */
static enum status lead(struct together *all, const char *resume, struct checkpoint **checkpoint, struct error *err)
{
    struct error failure;
    struct order order = {.kind = ORDER_END};
    enum status status = choose(all, resume, checkpoint, &failure);
    if (status == STATUS_OK) {
        order.kind = ORDER_TAKE;
        snprintf(order.path, sizeof order.path, "%s", (*checkpoint)->path);
    } else if (all->unseen) {
        failure = all->why;
        status = failure.code;
    }
    TRY(comm_broadcast(all->comm, &order, sizeof order, 0, err));
    if (status != STATUS_OK)
        *err = failure;
    return status;
}

static enum status resume_follow_rank0(struct together *all, struct checkpoint **checkpoint, struct error *err)
{
    struct order order;
    struct error ignored;
    for (;;) {
        TRY(comm_broadcast(all->comm, &order, sizeof order, 0, err));
        if (order.kind == ORDER_TAKE && *checkpoint && !strcmp((*checkpoint)->path, order.path))
            return STATUS_OK; /* as it was verified */
        checkpoint_close(*checkpoint);
        *checkpoint = NULL;
        if (order.kind == ORDER_END)
            return STATUS_OK;
        if (order.kind == ORDER_TAKE)
            return open_named(all, order.path, checkpoint, err);
        bool unknown;
        enum status status = open_named(all, order.path, checkpoint, &ignored);
        resume_verify_share(all, *checkpoint, status, &unknown, &ignored); /* the outcome is rank 0's to judge */
    }
}

enum status resume_open(struct comm *comm, const char *host, const char *resume, const struct retry *retry,
                        struct checkpoint **checkpoint, struct error *err)
{
    struct together all = {.comm = comm, .host = host, .retry = retry};
    *checkpoint = NULL;
    return comm_rank(comm) == 0 ? lead(&all, resume, checkpoint, err) : resume_follow_rank0(&all, checkpoint, err);
}
