#include "comm/agree.h"

#include "core/log.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* How it went for a rank. */
struct report {
    int32_t status;
    uint32_t unused;
    uint64_t text;        /* hash of the error's text */
    uint64_t fingerprint; /* agree_at_start() */
};

static struct report report_of(enum status status, const struct error *err)
{
    struct report own = {.status = (int32_t)status};
    if (status != STATUS_OK)
        own.text = XXH3_64bits(err->text, strlen(err->text));
    return own;
}

static int lowest_failed(const struct report *reports, int world)
{
    for (int r = 0; r < world; r++)
        if (reports[r].status != STATUS_OK)
            return r;
    return -1;
}

/* Some rank failed: this one's part in it. */
static enum status end_together(const struct report *reports, int rank, int failed, struct error *err)
{
    bool said = reports[rank].status == STATUS_OK;
    for (int r = 0; r < rank && !said; r++)
        said = reports[r].status != STATUS_OK && reports[r].text == reports[rank].text;
    err->code = (enum status)reports[failed].status;
    if (said) {
        if (reports[rank].status != STATUS_OK)
            log_debug("error: %s", err->text);
        else
            log_debug("rank %d has failed (%s)", failed, status_name(err->code));
        err->text[0] = 0;
    }
    return err->code;
}

enum status agree(struct comm *comm, enum status status, struct error *err)
{
    int world = comm_world(comm), rank = comm_rank(comm);
    if (world == 1)
        return status;
    struct report own = report_of(status, err), *reports = memory_alloc((size_t)world * sizeof *reports);
    struct error exchange = {.code = STATUS_OK};
    if (comm_exchange(comm, &own, sizeof own, reports, &exchange) != STATUS_OK) { /* a peer is gone */
        free(reports);
        if (status == STATUS_OK)
            *err = exchange;
        return status == STATUS_OK ? exchange.code : status;
    }
    int failed = lowest_failed(reports, world);
    enum status result = failed < 0 ? STATUS_OK : end_together(reports, rank, failed, err);
    free(reports);
    return result;
}

enum status agree_at_start(struct bootstrap *boot, uint64_t fingerprint, enum status status, struct error *err)
{
    if (boot->world == 1 || !boot->launcher)
        return status;
    struct report own = report_of(status, err), *reports = memory_zeroed((size_t)boot->world, sizeof *reports);
    own.fingerprint = fingerprint;
    struct error exchange = {.code = STATUS_OK};
    if (bootstrap_exchange(boot, "start", &own, sizeof own, reports, &exchange) != STATUS_OK) {
        free(reports);
        if (status == STATUS_OK)
            *err = exchange;
        return status == STATUS_OK ? exchange.code : status;
    }
    int failed = lowest_failed(reports, boot->world);
    for (int r = 1; r < boot->world && failed < 0; r++) {
        if (reports[r].fingerprint == reports[0].fingerprint)
            continue;
        failed = 0; /* all find it: rank 0 says it */
        error_set(err, STATUS_USAGE, "rank %d on %s has another run spec or other options than rank 0 on %s", r,
                  boot->places[r].host, boot->places[0].host);
        error_hint(err, "one run spec for all, on a file system that every node sees");
        for (int k = 0; k < boot->world; k++)
            reports[k] = report_of(STATUS_USAGE, err);
    }
    enum status result = failed < 0 ? STATUS_OK : end_together(reports, boot->rank, failed, err);
    free(reports);
    return result;
}
