/* comm_log.c: see comm_log.h. An operation is known by its number in the order of the data channel, which is the same
 * on all ranks. A rank keeps the seconds of operations that are over until all ranks have shared theirs. */
#include "comm/comm_log.h"

#include "comm/comm_log_internal.h"
#include "gpu/spans.h"

#include <stdlib.h>
#include <string.h>

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
    struct spans *spans;
    int64_t begun, over, shared; /* operations that were begun; are over here; all ranks have compared */
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
    static const char *const names[] = {[COMM_OTHER] = "other",
                                        [COMM_PARAMETERS] = "parameters",
                                        [COMM_GRADIENTS] = "gradients",
                                        [COMM_UPDATES] = "updates",
                                        [COMM_REPORTS] = "reports"};
    _Static_assert(COUNT_OF(names) == COMM_PURPOSE_COUNT, "every purpose has a name");
    return names[purpose];
}

void comm_use(struct comm *comm, enum comm_purpose purpose, int unit)
{
    comm->purpose = purpose;
    comm->unit = unit;
}

/* ---- rows ---------------------------------------------------------------- */

static int row_of(const struct comm_log *log, enum op_kind kind, int purpose, int unit)
{
    const int units = log->config.units + 1;
    ASSERT(unit >= -1 && unit < log->config.units);
    return ((kind == OP_ALL_GATHER ? 0 : COMM_PURPOSE_COUNT) + purpose) * units + unit + 1;
}

static void name_rows(struct comm_log *log)
{
    static const enum op_kind kinds[] = {OP_ALL_GATHER, OP_REDUCE_SCATTER};
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (int purpose = 0; purpose < COMM_PURPOSE_COUNT; purpose++)
            for (int unit = -1; unit < log->config.units; unit++)
                log->rows[row_of(log, kinds[k], purpose, unit)] =
                    (struct comm_log_row){.collective = k ? "reduce_scatter" : "all_gather",
                                          .purpose = (enum comm_purpose)purpose,
                                          .unit = unit};
}

/* ---- recording ----------------------------------------------------------- */

/* A span that is over: its kind is the row. */
static void take_span(void *context, const struct span *span)
{
    struct comm_log *log = context;
    const struct comm_log_row *row = &log->rows[span->kind];
    log->kept[log->over++ % log->most] =
        (struct op_over){.row = span->kind, .seconds = (float)span->seconds, .bytes = span->bytes};
    const struct comm_log_op op = {.collective = row->collective,
                                   .purpose = row->purpose,
                                   .unit = row->unit,
                                   .bytes = span->bytes,
                                   .seconds = span->seconds};
    if (log->config.each)
        log->config.each(log->config.context, &op);
}

int comm_log_begin(struct comm_log *log, const struct data_op *op, struct stream *stream)
{
    if (!log || !(op->kind == OP_ALL_GATHER ? log->config.all_gather : log->config.reduce_scatter))
        return -1;
    if (log->begun - log->shared == log->most) { /* at the same operation on all ranks */
        log->skipped++;
        return -1;
    }
    const struct comm *comm = log->comm;
    struct span span = {.name = "", .kind = row_of(log, op->kind, comm->purpose, comm->unit), .unit = comm->unit};
    span.bytes = (int64_t)(op->count * dtype_size(op->dtype)) * comm->world;
    int number = spans_begin(log->spans, stream, &span);
    log->begun += number >= 0;
    return number;
}

void comm_log_end(struct comm_log *log, int number)
{
    if (log)
        spans_end(log->spans, number);
}

/* ---- life ---------------------------------------------------------------- */

enum status comm_log_start(struct comm *comm, struct device *device, const struct comm_log_config *config,
                           struct error *err)
{
    ASSERT(!comm->log && config->units > 0);
    if (comm->world == 1)
        return STATUS_OK;
    struct comm_log *log = calloc(1, sizeof *log);
    if (!log)
        return error_set(err, STATUS_DEVICE, "out of memory");
    comm->log = log;
    log->comm = comm;
    log->config = *config;
    log->num_rows = 2 * COMM_PURPOSE_COUNT * (config->units + 1);
    log->most = config->most ? config->most : KEPT;
    log->kept = calloc((size_t)log->most, sizeof *log->kept);
    log->shares = calloc((size_t)comm->world + 1, sizeof *log->shares);
    log->ranks = calloc((size_t)comm->world, sizeof *log->ranks);
    log->rows = calloc((size_t)log->num_rows, sizeof *log->rows);
    log->read = calloc((size_t)log->num_rows, sizeof *log->read);
    if (!log->kept || !log->shares || !log->ranks || !log->rows || !log->read) {
        comm_log_stop(comm);
        return error_set(err, STATUS_DEVICE, "out of memory");
    }
    name_rows(log);
    enum status status = spans_new(device, IN_FLIGHT, take_span, log, &log->spans, err);
    if (status != STATUS_OK)
        comm_log_stop(comm);
    return status;
}

void comm_log_stop(struct comm *comm)
{
    struct comm_log *log = comm ? comm->log : NULL;
    if (!log)
        return;
    spans_free(log->spans);
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
        if (shares[r].seconds[i] < shares[last].seconds[i])
            last = r;
    }
    double least = (double)shares[last].seconds[i], waited = sum - least * world;
    for (int r = 0; r < world; r++)
        log->ranks[r].waited += (double)shares[r].seconds[i] - least;
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
    for (int r = 0; r < world; r++)
        over = log->shares[r].over < over ? log->shares[r].over : over;
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
    if (log)
        spans_collect(log->spans, wait);
    while (more)
        TRY(share_some(log, &more, err));
    return STATUS_OK;
}

int comm_log_read(struct comm *comm, const struct comm_log_row **rows, const struct comm_log_rank **ranks,
                  int64_t *skipped)
{
    const struct comm_log *log = comm->log;
    int count = 0;
    for (int i = 0; log && i < log->num_rows; i++)
        if (log->rows[i].calls)
            log->read[count++] = log->rows[i];
    *rows = log ? log->read : NULL;
    *ranks = log ? log->ranks : NULL;
    *skipped = log ? log->skipped : 0;
    return count;
}
