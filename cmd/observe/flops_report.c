/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/observe/reports.h"

struct work {
    double seconds, flops;
};

struct module {
    const char *name;
    int64_t parameters;
    struct work work[PHASE_COUNT]; /* of forward, backward and optimizer */
};

/* Modules by depth: 0 the model, 1 embedding, blocks and head, 2 each unit. */
enum { DEPTH = 2, FIRST_KIND = 1, KINDS = 3, FIRST_UNIT = FIRST_KIND + KINDS };

struct step_profile {
    const struct run *run;
    int64_t step;
    double seconds, samples; /* of the step by the clock; samples of this rank */
    struct module *modules;  /* (FIRST_UNIT + units) owned; in the order of depths */
    int units;
    double other; /* seconds of ops outside of forward, backward and optimizer */
    FILE *out;
};

static double tera_per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds / 1e12 : 0;
}

static void print_flops_of_ops(FILE *out, const struct engine *t, const struct op_profile *rows, int count)
{
    const double flops = t->device->peak_flops[t->spec->dtype], bytes = t->device->peak_bytes;
    double total = 0;
    for (int i = 0; i < count; i++) total += rows[i].seconds;
    fprintf(out, "%-20s %8s %10s %7s %10s %8s %10s %8s %8s\n", "op", "calls", "seconds", "share", "GFLOP", "TFLOP/s",
            "GB", "GB/s", "of peak");
    for (int i = 0; i < count; i++) {
        char peak[16] = "-"; /* the larger of the shares of the device's peaks of FLOP/s and of bytes/s, if known */
        const double share = fmax(flops > 0 ? rows[i].flops / flops : 0, bytes > 0 ? rows[i].bytes / bytes : 0);
        if (share > 0 && rows[i].seconds > 0) snprintf(peak, sizeof peak, "%.1f%%", 100 * share / rows[i].seconds);
        fprintf(out, "%-20s %8" PRId64 " %10.6f %6.1f%% %10.4g %8.3f %10.4g %8.2f %8s\n", rows[i].name, rows[i].calls,
                rows[i].seconds, total > 0 ? 100 * rows[i].seconds / total : 0, rows[i].flops / 1e9,
                tera_per_second(rows[i].flops, rows[i].seconds), rows[i].bytes / 1e9,
                1e3 * tera_per_second(rows[i].bytes, rows[i].seconds), peak);
    }
}

static void log_flops_text(struct run *run, char *text)
{
    console_break(&run->console);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) log_info("%s", line);
}

/* Ops since the last reading, added to those of the run. */
static int take_flops_rows(struct run *run, struct op_profile rows[OPS_COUNT])
{
    int count = ops_profiler_read(run->engine.profiler, rows, OPS_COUNT);
    for (int i = 0; i < count; i++) {
        int at = 0;
        while (at < run->num_profiled && strcmp(run->profiled[at].name, rows[i].name) != 0) at++;
        struct op_profile *sum = &run->profiled[at];
        if (at == run->num_profiled) run->profiled[run->num_profiled++] = (struct op_profile){.name = rows[i].name};
        sum->calls += rows[i].calls;
        sum->seconds += rows[i].seconds;
        sum->flops += rows[i].flops;
        sum->bytes += rows[i].bytes;
    }
    return count;
}

void flops_report_run(struct run *run)
{
    struct op_profile rows[OPS_COUNT];
    OWNED char *text = NULL;
    take_flops_rows(run, rows);
    FILE *out = memory_stream(&text, NULL);
    print_flops_of_ops(out, &run->engine, run->profiled, run->num_profiled);
    fclose(out);
    log_flops_text(run, text);
}

/* ---- modules ------------------------------------------------------------- */

static const struct module *modules_of(const struct step_profile *p, int depth, int *count)
{
    const int first[] = {0, FIRST_KIND, FIRST_UNIT}, counts[] = {1, KINDS, p->units};
    *count = counts[depth];
    return p->modules + first[depth];
}

static struct module *module_of(const struct step_profile *p, int depth, int unit)
{
    const int kind = unit == 0 ? 0 : unit < p->units - 1 ? 1 : 2;
    return &p->modules[depth == 0 ? 0 : depth == 1 ? FIRST_KIND + kind : FIRST_UNIT + unit];
}

static int64_t unit_parameters(const struct tensor_table *table, int unit)
{
    const struct unit_info *info = &table->units[unit];
    int64_t count = 0;
    for (int i = 0; i < info->num_tensors; i++) count += table->tensors[info->first_tensor + i].numel;
    count += info->frozen ? unit_parameters(table, info->frozen) : 0;
    return count + (info->next ? unit_parameters(table, info->next) : 0);
}

static void take_modules(struct step_profile *p)
{
    static const char *const names[FIRST_UNIT] = {"model", "embedding", "blocks", "head"};
    const struct tensor_table *table = &p->run->engine.table;
    const struct module_profile *parts;
    p->units = tensor_table_head(table) + 1;
    p->modules = memory_zeroed((size_t)(FIRST_UNIT + p->units), sizeof *p->modules);
    for (int i = 0; i < FIRST_UNIT; i++) p->modules[i].name = names[i];
    p->modules[0].parameters = table->num_params;
    for (int u = 0; u < p->units; u++) {
        struct module *unit = module_of(p, DEPTH, u);
        *unit = (struct module){.name = table->units[u].name, .parameters = unit_parameters(table, u)};
        module_of(p, 1, u)->parameters += unit->parameters;
    }
    int count = ops_profiler_modules(p->run->engine.profiler, &parts);
    for (int i = 0; i < count; i++) {
        const enum phase phase = parts[i].place.phase;
        const int unit = parts[i].place.unit, depths = unit < 0 ? 0 : DEPTH; /* the model's only, or also a unit's */
        const bool inside = phase == PHASE_FORWARD || phase == PHASE_BACKWARD || phase == PHASE_OPTIMIZER;
        p->other += inside ? 0 : parts[i].work.seconds;
        for (int depth = 0; inside && depth <= depths; depth++) {
            struct work *sum = &module_of(p, depth, unit)->work[phase];
            sum->seconds += parts[i].work.seconds;
            sum->flops += parts[i].work.flops;
        }
    }
}

static double module_seconds(const struct module *m)
{
    return m->work[PHASE_FORWARD].seconds + m->work[PHASE_BACKWARD].seconds + m->work[PHASE_OPTIMIZER].seconds;
}

static void print_module(const struct step_profile *p, const struct module *m)
{
    const struct work *forward = &m->work[PHASE_FORWARD], *backward = &m->work[PHASE_BACKWARD];
    const double all = module_seconds(p->modules) + p->other;
    fprintf(p->out, "%-12s %12" PRId64 " %11.4g %10.6f %8.3f %10.6f %8.3f %10.6f %6.1f%%\n", m->name, m->parameters,
            forward->flops / 2e9, forward->seconds, tera_per_second(forward->flops, forward->seconds),
            backward->seconds, tera_per_second(backward->flops, backward->seconds), m->work[PHASE_OPTIMIZER].seconds,
            all > 0 ? 100 * module_seconds(m) / all : 0);
}

static int depth_of(const struct step_profile *p)
{
    int64_t depth = p->run->spec->flops_profiler.module_depth;
    return depth < 0 || depth > DEPTH ? DEPTH : (int)depth;
}

static double profile_order(const struct module *m, int key)
{
    const struct work *forward = &m->work[PHASE_FORWARD];
    return key == 0 ? (double)m->parameters : key == 1 ? forward->flops / 2 : forward->seconds;
}

/* The `most` modules that come first, in order of the key, and of their names' order where it is equal. */
static void print_first(FILE *out, const struct module *modules, int count, int key, int64_t most)
{
    OWNED bool *taken = memory_zeroed((size_t)count, sizeof *taken);
    for (int64_t n = 0; n < most && n < count; n++) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (!taken[i] && (best < 0 || profile_order(&modules[i], key) > profile_order(&modules[best], key)))
                best = i;
        taken[best] = true;
        fprintf(out, "%s %s: %.*f", n ? "," : "", modules[best].name, key < 2 ? 0 : 6,
                profile_order(&modules[best], key));
    }
    fprintf(out, "\n");
}

/* ---- a step -------------------------------------------------------------- */

static void print_totals(const struct step_profile *p)
{
    const struct work *work = p->modules->work, *forward = &work[PHASE_FORWARD], *backward = &work[PHASE_BACKWARD];
    const struct engine *t = &p->run->engine;
    double both = forward->seconds + backward->seconds, flops = forward->flops + backward->flops;
    fprintf(p->out, "flops_profiler: step %" PRId64 ", rank %d of %d; ops are timed on the device\n", p->step, t->rank,
            t->world);
    fprintf(p->out, "params of model:        %" PRId64 "\n", t->table.num_params);
    fprintf(p->out, "updated by this rank:   %" PRId64 " params\n",
            t->spec->zero.stage == 0 ? t->table.num_params - t->table.frozen_params : t->layout.trained_numel);
    fprintf(p->out, "fwd MACs:               %.6g GMACs\n", forward->flops / 2e9);
    fprintf(p->out, "fwd flops:              %.6g G\n", forward->flops / 1e9);
    fprintf(p->out, "fwd latency:            %.6f s\n", forward->seconds);
    fprintf(p->out, "fwd FLOPS:              %.3f TFLOPS\n", tera_per_second(forward->flops, forward->seconds));
    fprintf(p->out, "bwd flops:              %.6g G\n", backward->flops / 1e9);
    fprintf(p->out, "bwd latency:            %.6f s\n", backward->seconds);
    fprintf(p->out, "bwd FLOPS:              %.3f TFLOPS\n", tera_per_second(backward->flops, backward->seconds));
    fprintf(p->out, "fwd+bwd FLOPS:          %.3f TFLOPS\n", tera_per_second(flops, both));
    fprintf(p->out, "step latency:           %.6f s (the optimizer's)\n", work[PHASE_OPTIMIZER].seconds);
    fprintf(p->out, "other latency:          %.6f s (ops outside of these)\n", p->other);
    fprintf(p->out, "iter latency:           %.6f s (all, with data, waiting and launches)\n", p->seconds);
    fprintf(p->out, "FLOPS:                  %.3f TFLOPS\n", tera_per_second(flops, p->seconds));
    fprintf(p->out, "samples/second:         %.3f\n", p->seconds > 0 ? p->samples / p->seconds : 0);
}

static void report_step(struct run *run, double seconds)
{
    const struct run_spec *spec = run->spec;
    const char *path = spec->flops_profiler.output_file;
    struct error err;
    struct op_profile rows[OPS_COUNT];
    struct step_profile p = {.run = run, .step = run->enqueued, .seconds = seconds};
    OWNED char *text = NULL;
    size_t bytes;
    int count = take_flops_rows(run, rows);
    p.samples = (double)(spec->train_micro_batch_size_per_gpu * run->engine.micros);
    take_modules(&p);
    p.out = memory_stream(&text, &bytes);
    print_totals(&p);
    print_flops_of_ops(p.out, &run->engine, rows, count);
    int depth = depth_of(&p), modules_shown;
    if (depth == DEPTH && !spec->flops_profiler.detailed) depth = DEPTH - 1;
    fprintf(p.out, "%-12s %12s %11s %10s %8s %10s %8s %10s %7s\n", "module", "params", "fwd GMACs", "fwd s", "TFLOP/s",
            "bwd s", "TFLOP/s", "update s", "share");
    print_module(&p, p.modules);
    const struct module *modules = modules_of(&p, depth, &modules_shown);
    for (int i = 0; depth > 0 && i < modules_shown; i++) print_module(&p, &modules[i]);
    static const char *const keys[] = {"params", "fwd MACs", "fwd latency"};
    const int64_t most = spec->flops_profiler.top_modules;
    for (depth = 0; depth <= depth_of(&p); depth++) {
        modules = modules_of(&p, depth, &modules_shown);
        for (int key = 0; key < 3; key++) {
            fprintf(p.out, "depth %d: top %" PRId64 " in %s:", depth, most < modules_shown ? most : modules_shown,
                    keys[key]);
            print_first(p.out, modules, modules_shown, key, most);
        }
    }
    fclose(p.out);
    const bool written =
        run->boot->rank == 0 && path && named_file_write(path, text, bytes, STATUS_CHECKPOINT, &err) == STATUS_OK;
    if (written) {
        console_break(&run->console);
        log_info("flops_profiler: %s has the tables of step %" PRId64, path, spec->flops_profiler.profile_step);
    } else if (run->boot->rank == 0) {
        if (path) log_warn("flops_profiler: the tables are logged: %s", err.text);
        log_flops_text(run, text);
    }
    free(p.modules);
}

void flops_report_announce(const struct run *run)
{
    int64_t step = run->spec->flops_profiler.profile_step, first = run->position.step + 1,
            last = run->engine.total_steps;
    if (run->spec->flops_profiler.enabled && (step < first || step > last) && first <= last)
        log_warn("flops_profiler: profile_step %" PRId64 " is not among the steps %" PRId64 " to %" PRId64
                 " of this process, and nothing is profiled",
                 step, first, last);
}

enum status flops_report_begin(struct run *run, struct error *err)
{
    struct op_profile rows[OPS_COUNT];
    const struct module_profile *modules;
    struct engine *t = &run->engine;
    stream_sync(t->compute);
    stream_sync(zero_stream(t->zero));
    if (!t->profiler) TRY(ops_profiler_new(t->device, &t->profiler, err));
    take_flops_rows(run, rows); /* of --profile, so far */
    ops_profiler_modules(t->profiler, &modules);
    run->stepper.eager = true;
    run->profile_start = seconds_now();
    return STATUS_OK;
}

void flops_report_end(struct run *run, bool broken_off)
{
    struct engine *t = &run->engine;
    run->stepper.eager = trace_file_is_on(run->trace);
    stream_sync(t->compute);
    stream_sync(zero_stream(t->zero));
    if (!broken_off) report_step(run, seconds_now() - run->profile_start);
    if (!t->profile) ops_profiler_free(TAKEN(t->profiler));
}
