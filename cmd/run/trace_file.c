/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/trace_file.h"

#include "cmd/engine/engine.h"
#include "gpu/span_recorder.h"

enum { ROW_HOST, ROW_COMPUTE, ROW_COMMUNICATION, ROW_OTHER, ROWS, STEPS = 3 };
enum { SPANS_AHEAD = 2048 /* that are not over yet */ };

struct trace_record {
    int64_t start, end; /* ns since the trace began */
    int64_t bytes, step;
    double flops;
    int32_t unit, row, kind;
    char name[36]; /* the struct has no padding */
};

struct trace_head {
    int64_t count, dropped;
    char host[64];
};

struct trace_file {
    const char *path;
    int64_t first, last; /* steps */
    bool on, done;
    struct engine *engine;
    struct event *base;                  /* owned; times of spans count from it */
    struct span_recorder *work, *phases; /* owned; of ops and collectives, of phases */
    double zero, late;            /* seconds_now() at the start for all ranks; how much later this rank's spans began */
    struct trace_record *records; /* owned */
    int64_t count, dropped;
};

enum status trace_steps_parse(const char *text, int64_t *first, int64_t *last, struct error *err)
{
    long long a = 0, b = 0;
    int end = 0, whole = 0;
    bool one = sscanf(text, "%15lld%n", &a, &end) == 1 && !text[end];
    bool two = !one && sscanf(text, "%15lld-%15lld%n", &a, &b, &whole) == 2 && !text[whole];
    *first = a;
    *last = one ? a : b;
    if ((!one && !two) || a < 1 || *last < a)
        return error_set(err, STATUS_USAGE, "--trace-steps must be a range of steps such as 10-12, not '%.60s'", text);
    return STATUS_OK;
}

struct trace_file *trace_file_new(const char *path, const char *steps, int64_t done, int64_t total)
{
    struct trace_file *t = memory_zeroed(1, sizeof *t);
    struct error err;
    t->path = path;
    t->last = total < done + 2 * STEPS - 1 ? total : done + 2 * STEPS - 1;
    t->first = t->last - STEPS + 1 > done ? t->last - STEPS + 1 : done + 1;
    if (steps) trace_steps_parse(steps, &t->first, &t->last, &err);
    return t;
}

static void stop_recording(struct trace_file *t)
{
    span_recorder_free(TAKEN(t->work));
    span_recorder_free(TAKEN(t->phases));
    event_free(TAKEN(t->base));
}

void trace_file_free(struct trace_file *t)
{
    if (!t) return;
    stop_recording(t);
    free(t->records);
    free(t);
}

bool trace_file_begins(const struct trace_file *t, int64_t step)
{
    return t && !t->on && !t->done && step >= t->first && step <= t->last;
}

bool trace_file_ends(const struct trace_file *t, int64_t step)
{
    return t && t->on && step >= t->last;
}

bool trace_file_is_on(const struct trace_file *t)
{
    return t && t->on;
}

/* ---- recording ----------------------------------------------------------- */

static void add_record(struct trace_file *t, struct trace_record record, const char *name)
{
    if (t->count == TRACE_RECORDS_MAX) {
        t->dropped++;
        return;
    }
    t->records = memory_grow(t->records, (size_t)t->count, sizeof *t->records);
    snprintf(record.name, sizeof record.name, "%s", name);
    t->records[t->count++] = record;
}

static int64_t trace_nanoseconds(double seconds)
{
    return seconds > 0 ? (int64_t)llround(1e9 * seconds) : 0;
}

static void take_span(void *context, const struct span *span)
{
    struct trace_file *t = context;
    const bool compute = span->stream == t->engine->compute,
               communication = span->stream == zero_stream(t->engine->zero);
    const struct trace_record record = {.start = trace_nanoseconds(t->late + span->start),
                                        .end = trace_nanoseconds(t->late + span->end),
                                        .bytes = span->bytes,
                                        .flops = span->flops,
                                        .unit = span->unit,
                                        .row = compute         ? ROW_COMPUTE
                                               : communication ? ROW_COMMUNICATION
                                                               : ROW_OTHER,
                                        .kind = (int32_t)span->kind};
    add_record(t, record, span->name);
}

void trace_file_host(struct trace_file *t, const char *name, double start, int64_t step)
{
    if (!trace_file_is_on(t) || start < t->zero) return;
    const struct trace_record record = {.start = trace_nanoseconds(start - t->zero),
                                        .end = trace_nanoseconds(seconds_now() - t->zero),
                                        .step = step,
                                        .unit = -1,
                                        .row = ROW_HOST,
                                        .kind = SPAN_COLLECTIVE};
    add_record(t, record, name);
}

static bool trace_wants_work(void *context, const struct span *span)
{
    (void)context;
    return span->kind != SPAN_PHASE;
}

static bool trace_wants_phase(void *context, const struct span *span)
{
    (void)context;
    return span->kind == SPAN_PHASE;
}

static enum status start_recording(struct trace_file *t, struct error *err)
{
    struct device *device = t->engine->device;
    TRY(event_new_timed(device, &t->base, err));
    struct span_recorder_config config = {.capacity = SPANS_AHEAD,
                                          .takes_ops = true,
                                          .wants = trace_wants_work,
                                          .deliver = take_span,
                                          .context = t,
                                          .zero = t->base};
    TRY(span_recorder_new(device, &config, &t->work, err));
    config.takes_ops = false;
    config.wants = trace_wants_phase;
    TRY(span_recorder_new(device, &config, &t->phases, err));
    stream_sync(t->engine->compute);
    event_record(t->base, t->engine->compute);
    event_sync(t->base);
    return STATUS_OK;
}

enum status trace_file_begin(struct trace_file *t, struct engine *engine, struct error *err)
{
    struct error why;
    OWNED double *all = memory_alloc((size_t)engine->world * sizeof *all);
    TRY(comm_barrier(engine->comm, err));
    const double now = seconds_now();
    TRY(comm_exchange(engine->comm, &now, sizeof now, all, err));
    t->zero = now; /* the first of the times that the ranks of a node, which share a clock, take at the barrier */
    for (int r = 0; r < engine->world; r++)
        if (engine->world == 1 || engine->boot->places[r].node == engine->boot->node) t->zero = fmin(t->zero, all[r]);
    t->engine = engine;
    stream_sync(zero_stream(engine->zero));
    t->on = start_recording(t, &why) == STATUS_OK;
    t->done = !t->on;
    t->late = seconds_now() - t->zero;
    if (!t->on) {
        stop_recording(t);
        log_warn("--trace: nothing is recorded: %s", why.text);
    }
    return STATUS_OK;
}

/* ---- the file ------------------------------------------------------------ */

/* Gets the records of `rank` on all ranks; rank 0 (out not NULL) writes them. */
static enum status pass_records(struct trace_file *t, int rank, FILE *out, int64_t *dropped, struct error *err)
{
    enum { AT_ONCE = COMM_EXCHANGE_MAX / sizeof(struct trace_record) };
    static const char *const rows[ROWS] = {"host", "compute stream", "communication stream", "other streams"};
    static const char *const kinds[] = {[SPAN_OP] = "op", [SPAN_PHASE] = "phase", [SPAN_COLLECTIVE] = "collective"};
    const struct engine *engine = t->engine;
    struct trace_head head = {.count = t->count, .dropped = t->dropped};
    OWNED struct trace_record *piece = memory_alloc(AT_ONCE * sizeof *piece);
    snprintf(head.host, sizeof head.host, "%.63s", engine->boot->host);
    TRY(comm_broadcast(engine->comm, &head, sizeof head, rank, err));
    if (out)
        fprintf(out,
                "%s\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d on "
                "%s\"}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_sort_index\",\"args\":{"
                "\"sort_index\":%d}}",
                rank ? "," : "", rank, rank, head.host, rank, rank);
    for (int row = 0; out && row < ROWS; row++)
        fprintf(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                rank, row, rows[row]);
    *dropped += head.dropped;
    for (int64_t at = 0; at < head.count; at += AT_ONCE) {
        size_t count = (size_t)(head.count - at < AT_ONCE ? head.count - at : AT_ONCE);
        if (engine->rank == rank) memcpy(piece, t->records + at, count * sizeof *piece);
        TRY(comm_broadcast(engine->comm, piece, count * sizeof *piece, rank, err));
        for (const struct trace_record *r = piece; out && r < piece + count; r++) {
            const bool known = r->unit >= 0 && r->unit < engine->table.num_units;
            const char *unit = known ? engine->table.units[r->unit].name : NULL;
            const int64_t length = r->end > r->start ? r->end - r->start : 0;
            fprintf(
                out,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64 ".%03d,\"name\":\"%s",
                rank, r->row, r->start / 1000, (int)(r->start % 1000), length / 1000, (int)(length % 1000), r->name);
            if (r->kind == SPAN_PHASE && unit)
                fprintf(out, " %s", unit);
            else if (r->step > 0)
                fprintf(out, " %" PRId64, r->step);
            fprintf(out, "\",\"cat\":\"%s\",\"args\":{", r->row == ROW_HOST ? "host" : kinds[r->kind]);
            if (unit) fprintf(out, "\"unit\":\"%s\"", unit);
            if (r->bytes > 0) fprintf(out, "%s\"bytes\":%" PRId64, unit ? "," : "", r->bytes);
            if (r->flops > 0) fprintf(out, "%s\"gflop\":%.6g", unit || r->bytes > 0 ? "," : "", r->flops / 1e9);
            fprintf(out, "}}");
        }
        heartbeat_beat();
    }
    return STATUS_OK;
}

static void close_file(const struct trace_file *t, FILE *out, int64_t dropped)
{
    struct stat info;
    fprintf(out, "\n]}\n");
    fflush(out);
    int code = ferror(out) ? errno : 0;
    const bool regular = fstat(fileno(out), &info) == 0 && S_ISREG(info.st_mode);
    if (fclose(out) != 0 && !code) code = errno;
    if (code) {
        log_warn("--trace: '%s' is not written: %s", t->path, strerror(code));
        if (regular) unlink(t->path);
        return;
    }
    log_info("--trace: %s has steps %" PRId64 " to %" PRId64 "; ui.perfetto.dev and chrome://tracing show it", t->path,
             t->first, t->last);
    if (dropped) log_warn("--trace: %" PRId64 " pieces of work were too many and are not in it", dropped);
}

enum status trace_file_end(struct trace_file *t, struct error *err)
{
    if (!trace_file_is_on(t)) return STATUS_OK;
    const struct engine *engine = t->engine;
    int64_t dropped = 0;
    span_recorder_collect(t->work, true);
    span_recorder_collect(t->phases, true);
    stop_recording(t);
    t->on = false;
    t->done = true;
    FILE *out = engine->rank == 0 ? memory_fopen(t->path, "we") : NULL;
    if (engine->rank == 0 && !out) log_warn("--trace: '%s' is not written: %s", t->path, strerror(errno));
    if (out) fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    enum status status = STATUS_OK;
    for (int rank = 0; status == STATUS_OK && rank < engine->world; rank++)
        status = pass_records(t, rank, out, &dropped, err);
    if (out) close_file(t, out, dropped);
    free(TAKEN(t->records));
    t->count = 0;
    return status;
}

void trace_file_check(const struct trace_file *t)
{
    if (t && !t->on && !t->done)
        log_warn("--trace: none of the steps %" PRId64 " to %" PRId64 " was run, and '%s' is not written", t->first,
                 t->last, t->path);
}
