/* SPDX-License-Identifier: Apache-2.0 */
/* comm_log.c: see comm_log.h. An operation is known by its number in the order of the data channel. A rank keeps the
 * seconds of operations that are over until all ranks have shared theirs. */
#include "comm/comm_log.h"

#include "comm/comm_internal.h"
#include "gpu/span_recorder.h"

enum {
    IN_FLIGHT = 1024, /* operations that the host may be ahead of the device */
    KEPT = 32768,     /* operations that not all ranks have compared, unless the caller chooses */
    SHARED_AT_ONCE = 256
};

/* An operation of this rank that is over. */
struct op_over {
    int row;
    float seconds;
    int64_t bytes;
};

/* What ranks exchange. */
struct share {
    int64_t over;                  /* operations that are over on this rank */
    float seconds[SHARED_AT_ONCE]; /* of those from `shared` on */
};

struct comm_log {
    struct comm_log_config config;
    struct comm *comm;
    struct span_recorder *recorder; /* owned */
    int64_t begun, over, shared;    /* operations that were begun; are over here; all ranks have compared */
    int64_t skipped;
    struct op_over *kept; /* (most): operation i is kept[i % most]; more are not recorded */
    int64_t most;
    struct share *shares;             /* (world) */
    struct comm_log_rank *ranks;      /* (world) */
    struct comm_log_row *rows, *read; /* (num_rows): all; for comm_log_read() */
    int num_rows;
};

const char *comm_purpose_name(enum comm_purpose purpose)
{
    static const char *const names[] = {
        [COMM_OTHER] = "other",     [COMM_PARAMETERS] = "parameters", [COMM_GRADIENTS] = "gradients",
        [COMM_UPDATES] = "updates", [COMM_TOKENS] = "tokens",         [COMM_REPORTS] = "reports"};
    _Static_assert(COUNT_OF(names) == COMM_PURPOSE_COUNT, "every purpose has a name");
    return names[purpose];
}

/* what: span.what */
static int row_of(const struct comm_log *log, int what, int unit)
{
    ASSERT(unit >= -1 && unit < log->config.units);
    return what * (log->config.units + 1) + unit + 1;
}

/* ---- recording ----------------------------------------------------------- */

static void comm_log_take_span(void *context, const struct span *span)
{
    struct comm_log *log = context;
    const int number = row_of(log, span->what, span->unit);
    struct comm_log_row op = log->rows[number];
    log->kept[log->over++ % log->most] =
        (struct op_over){.row = number, .seconds = (float)span->seconds, .bytes = span->bytes};
    op.calls = 1;
    op.bytes = span->bytes;
    op.seconds = span->seconds;
    op.waited = 0;
    if (log->config.each) log->config.each(log->config.context, &op);
}

static bool comm_log_wants_span(void *context, const struct span *span)
{
    struct comm_log *log = context;
    if (span->kind != SPAN_COLLECTIVE ||
        !(span->what < COMM_PURPOSE_COUNT ? log->config.all_gather : log->config.reduce_scatter))
        return false;
    if (log->begun - log->shared == log->most) { /* at the same operation on all ranks */
        log->skipped++;
        return false;
    }
    log->begun++;
    return true;
}

/* ---- life ---------------------------------------------------------------- */

enum status comm_log_start(struct comm *comm, struct device *device, const struct comm_log_config *config,
                           struct error *err)
{
    ASSERT(!comm->log && config->units > 0);
    if (comm->world == 1) return STATUS_OK;
    struct comm_log *log = memory_zeroed(1, sizeof *log);
    comm->log = log;
    log->comm = comm;
    log->config = *config;
    log->num_rows = 2 * COMM_PURPOSE_COUNT * (config->units + 1);
    log->most = config->most ? config->most : KEPT;
    log->kept = memory_zeroed((size_t)log->most, sizeof *log->kept);
    log->shares = memory_zeroed((size_t)comm->world + 1, sizeof *log->shares);
    log->ranks = memory_zeroed((size_t)comm->world, sizeof *log->ranks);
    log->rows = memory_zeroed((size_t)log->num_rows, sizeof *log->rows);
    log->read = memory_zeroed((size_t)log->num_rows, sizeof *log->read);
    for (int what = 0; what < 2 * COMM_PURPOSE_COUNT; what++)
        for (int unit = -1; unit < config->units; unit++)
            log->rows[row_of(log, what, unit)] =
                (struct comm_log_row){.collective = what < COMM_PURPOSE_COUNT ? "all_gather" : "reduce_scatter",
                                      .purpose = (enum comm_purpose)(what % COMM_PURPOSE_COUNT),
                                      .unit = unit};
    const struct span_recorder_config recorder = {
        .capacity = IN_FLIGHT, .wants = comm_log_wants_span, .deliver = comm_log_take_span, .context = log};
    enum status status = span_recorder_new(device, &recorder, &log->recorder, err);
    if (status != STATUS_OK) comm_log_stop(comm);
    return status;
}

void comm_log_stop(struct comm *comm)
{
    struct comm_log *log = comm ? comm->log : NULL;
    if (!log) return;
    span_recorder_free(log->recorder);
    free(log->kept);
    free(log->shares);
    free(log->ranks);
    free(log->rows);
    free(log->read);
    free(log);
    comm->log = NULL;
}

/* ---- comparing ----------------------------------------------------------- */

/* Adds operation number i of those in the shares to the rows and the ranks. */
static void compare(struct comm_log *log, int i, const struct op_over *own)
{
    struct comm_log_row *row = &log->rows[own->row];
    const struct share *shares = log->shares;
    const int world = log->comm->world;
    double sum = 0;
    int last = 0;
    for (int r = 0; r < world; r++) {
        sum += (double)shares[r].seconds[i];
        if (shares[r].seconds[i] < shares[last].seconds[i]) last = r;
    }
    double least = (double)shares[last].seconds[i], waited = sum - least * world;
    for (int r = 0; r < world; r++) log->ranks[r].waited += (double)shares[r].seconds[i] - least;
    log->ranks[last].last++;
    log->ranks[last].caused += waited / (world - 1);
    row->calls++;
    row->bytes += own->bytes;
    row->seconds += sum / world;
    row->waited += waited / world;
}

/* Compares up to SHARED_AT_ONCE operations; *more: others are over on all ranks as well. */
static enum status share_some(struct comm_log *log, bool *more, struct error *err)
{
    const int world = log->comm->world;
    struct share *own = &log->shares[world];
    memset(own, 0, sizeof *own);
    own->over = log->over;
    for (int64_t i = log->shared; i < log->over && i < log->shared + SHARED_AT_ONCE; i++)
        own->seconds[i - log->shared] = log->kept[i % log->most].seconds;
    TRY(comm_exchange(log->comm, own, sizeof *own, log->shares, err));
    int64_t over = own->over;
    for (int r = 0; r < world; r++) over = log->shares[r].over < over ? log->shares[r].over : over;
    const int64_t first = log->shared;
    for (; log->shared < over && log->shared < first + SHARED_AT_ONCE; log->shared++)
        compare(log, (int)(log->shared - first), &log->kept[log->shared % log->most]);
    *more = log->shared < over;
    return STATUS_OK;
}

enum status comm_log_share(struct comm *comm, bool wait, struct error *err)
{
    struct comm_log *log = comm->log;
    bool more = log != NULL;
    if (log) span_recorder_collect(log->recorder, wait);
    while (more) TRY(share_some(log, &more, err));
    return STATUS_OK;
}

int comm_log_read(struct comm *comm, const struct comm_log_row **rows, const struct comm_log_rank **ranks,
                  int64_t *skipped)
{
    const struct comm_log *log = comm->log;
    int count = 0;
    for (int i = 0; log && i < log->num_rows; i++)
        if (log->rows[i].calls) log->read[count++] = log->rows[i];
    *rows = log ? log->read : NULL;
    *ranks = log ? log->ranks : NULL;
    *skipped = log ? log->skipped : 0;
    return count;
}
