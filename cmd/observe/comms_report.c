/* SPDX-License-Identifier: Apache-2.0 */
/* comms_report.c: see reports.h. Bandwidths as in NCCL's tests, without the wait for the last rank: the algorithm's is
 * the bytes of all ranks' slices over the time, the bus bandwidth (N-1)/N of it. */
#include "cmd/observe/reports.h"

#include "comm/comm_log.h"

static double comms_algorithm_bandwidth(int64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
}

static double comms_bus_bandwidth(int64_t bytes, double seconds, int world)
{
    return comms_algorithm_bandwidth(bytes, seconds) * (world - 1) / world;
}

static const char *comms_unit_name(const struct engine *t, int unit)
{
    return unit < 0 ? "-" : t->table.units[unit].name;
}

/* verbose: a line for each collective of rank 0. */
static void log_comms_op(void *context, const struct comm_log_row *op)
{
    const struct run *run = context;
    log_info("comm op: %s | for: %s | unit: %s | time (ms): %.3f | bytes: %" PRId64
             " | algbw (GB/s): %.3f | busbw (GB/s): %.3f",
             op->collective, comm_purpose_name(op->purpose), comms_unit_name(&run->engine, op->unit), 1e3 * op->seconds,
             op->bytes, comms_algorithm_bandwidth(op->bytes, op->seconds),
             comms_bus_bandwidth(op->bytes, op->seconds, run->boot->world));
}

/* prof_ops names a collective as PyTorch does: all_gather and all_gather_into_tensor are one. */
static bool is_wanted_collective(const struct run_spec *spec, const char *collective)
{
    const struct string_list *names = &spec->comms_logger.prof_ops;
    bool wanted = spec->comms_logger.prof_all;
    for (int i = 0; i < names->count; i++) wanted |= !strncmp(names->items[i], collective, strlen(collective));
    return wanted;
}

enum status comms_report_start(struct run *run, struct error *err)
{
    const struct run_spec *spec = run->spec;
    if (!spec->comms_logger.enabled) return STATUS_OK;
    if (run->boot->world == 1) {
        log_info("comms_logger: a single rank has no collectives");
        return STATUS_OK;
    }
    struct comm_log_config config = {.units = run->engine.table.num_units,
                                     .all_gather = is_wanted_collective(spec, "all_gather"),
                                     .reduce_scatter = is_wanted_collective(spec, "reduce_scatter"),
                                     .context = run};
    if (spec->comms_logger.verbose && run->boot->rank == 0) config.each = log_comms_op;
    run->comms_from = run->position.step;
    return run_agree(run, comm_log_start(run->comm, run->engine.device, &config, err), err);
}

struct comms {
    const struct comm_log_row *rows;
    const struct comm_log_rank *ranks;
    const struct engine *engine;
    int num_rows, world;
    int64_t skipped, steps;
};

/* Of a block, its experts or its frozen tensors. */
static bool is_block(const struct comms *c, const struct comm_log_row *row)
{
    const int owner = row->unit < 0 ? -1 : c->engine->table.units[row->unit].owner;
    return owner > 0 && owner < tensor_table_head(&c->engine->table);
}

/* Whether both rows are of blocks and of one collective for one purpose. */
static bool is_alike(const struct comms *c, const struct comm_log_row *a, const struct comm_log_row *b)
{
    return is_block(c, a) && is_block(c, b) && a->purpose == b->purpose && !strcmp(a->collective, b->collective);
}

/* Unless each is to be shown, rows of blocks that are alike are added up in the place of the first. */
static void log_table(const struct comms *c, bool each_block)
{
    log_info("collectives of %" PRId64
             " step%s; seconds of a rank, of them waited for the last one; bandwidths without the wait",
             c->steps, PLURAL(c->steps));
    log_info("%-14s  %-10s  %-10s %8s %12s %10s %10s %8s %8s", "collective", "for", "unit", "calls", "MB", "seconds",
             "waited", "algbw", "busbw");
    const struct comm_log_row *first = NULL;
    for (const struct comm_log_row *next = c->rows, *end = next + c->num_rows; next < end; next++) {
        const bool summed = !each_block && is_block(c, next);
        struct comm_log_row row = *next;
        if (summed && first && is_alike(c, first, next)) continue;
        if (summed) first = next;
        for (const struct comm_log_row *other = next + 1; summed && other < end; other++) {
            if (!is_alike(c, next, other)) continue;
            row.calls += other->calls;
            row.bytes += other->bytes;
            row.seconds += other->seconds;
            row.waited += other->waited;
        }
        const double moving = row.seconds - row.waited;
        log_info("%-14s  %-10s  %-10s %8" PRId64 " %12.4g %10.4f %10.4f %8.3f %8.3f", row.collective,
                 comm_purpose_name(row.purpose), summed ? "blocks" : comms_unit_name(c->engine, row.unit), row.calls,
                 (double)row.bytes / 1e6, row.seconds, row.waited, comms_algorithm_bandwidth(row.bytes, moving),
                 comms_bus_bandwidth(row.bytes, moving, c->world));
    }
}

enum status comms_report_finish(struct run *run, struct error *err)
{
    struct comms c = {.world = run->boot->world, .engine = &run->engine, .steps = run->position.step - run->comms_from};
    char path[FS_PATH_MAX];
    struct error why;
    TRY(comm_log_share(run->comm, true, err));
    c.num_rows = comm_log_read(run->comm, &c.rows, &c.ranks, &c.skipped);
    if (c.num_rows == 0 || run->boot->rank != 0) return STATUS_OK;
    console_break(&run->console);
    log_table(&c, run->spec->comms_logger.debug);
    int worst = 0;
    for (int r = 1; r < c.world; r++) worst = c.ranks[r].caused > c.ranks[worst].caused ? r : worst;
    const struct comm_log_rank *rank = &c.ranks[worst];
    log_info("the others waited longest for rank %d on %s: %.3f s each, in %" PRId64
             " collectives for which it was ready last; it waited %.3f s itself",
             worst, run->boot->places[worst].host, rank->caused, rank->last, rank->waited);
    if (c.skipped)
        log_info("%" PRId64 " further collectives were too many for a step and are not in the table", c.skipped);
    json_t *rows = json_array(), *ranks = json_array();
    for (const struct comm_log_row *row = c.rows; row < c.rows + c.num_rows; row++) {
        double moving = row->seconds - row->waited;
        json_array_append_new(rows,
                              json_pack("{sssssssIsIsfsfsfsf}", "collective", row->collective, "for",
                                        comm_purpose_name(row->purpose), "unit", comms_unit_name(c.engine, row->unit),
                                        "calls", (json_int_t)row->calls, "bytes", (json_int_t)row->bytes, "seconds",
                                        row->seconds, "waited_seconds", row->waited, "algbw_gb_per_s",
                                        comms_algorithm_bandwidth(row->bytes, moving), "busbw_gb_per_s",
                                        comms_bus_bandwidth(row->bytes, moving, c.world)));
    }
    for (int r = 0; r < c.world; r++)
        json_array_append_new(ranks, json_pack("{sisssIsfsf}", "rank", r, "host", run->boot->places[r].host, "last",
                                               (json_int_t)c.ranks[r].last, "caused_seconds", c.ranks[r].caused,
                                               "waited_seconds", c.ranks[r].waited));
    json_auto_t *root = json_pack("{sIsIsisisoso}", "steps", (json_int_t)c.steps, "skipped", (json_int_t)c.skipped,
                                  "world", c.world, "straggler", worst, "collectives", rows, "ranks", ranks);
    OWNED char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    ASSERT(text);
    if (fs_join(path, run->folder.path, "comms.json", STATUS_CHECKPOINT, &why) != STATUS_OK ||
        fs_write_file(path, text, strlen(text), STATUS_CHECKPOINT, &why) != STATUS_OK)
        log_warn("comms_logger: comms.json is not written: %s", why.text);
    return STATUS_OK;
}
