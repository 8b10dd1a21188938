#include "cmd/observe/flops_report.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/named_file.h"
#include "gpu/ops_profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 2 /* of modules: 0 the model, 1 embedding, blocks and head, 2 each unit */ };

/* What was done in a range of the step, for a module or for all of them. */
struct work {
    double seconds, flops;
};

struct module {
    const char *name;
    int64_t parameters;
    struct work forward, backward, optimizer;
};

struct step_profile {
    const struct run *run;
    int64_t step;
    double seconds, samples; /* of the step by the clock; samples of this rank */
    struct module *units;    /* (num_units) owned */
    struct module kinds[3];  /* embedding, blocks, head */
    struct module model;
    double other; /* seconds of ops outside of forward, backward and optimizer */
    FILE *out;
};

/* ---- ops ----------------------------------------------------------------- */

static double tera_per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds / 1e12 : 0;
}

/* "41.2%": the larger of the shares of the device's peak of FLOP/s and of bytes/s; "-" where they are unknown. */
static const char *share_of_peak(const struct engine *t, const struct op_profile *row, char text[16])
{
    const struct device *device = t->device;
    double flops = device->peak_flops[t->spec->dtype], bytes = device->peak_bytes, share = 0;
    if (flops > 0)
        share = row->flops / flops;
    if (bytes > 0)
        share = fmax(share, row->bytes / bytes);
    if (share > 0 && row->seconds > 0)
        snprintf(text, 16, "%.1f%%", 100 * share / row->seconds);
    else
        snprintf(text, 16, "-");
    return text;
}

static void print_ops(FILE *out, const struct engine *t, const struct op_profile *rows, int count)
{
    double total = 0;
    char peak[16];
    for (int i = 0; i < count; i++)
        total += rows[i].seconds;
    fprintf(out, "%-20s %8s %10s %7s %10s %8s %10s %8s %8s\n", "op", "calls", "seconds", "share", "GFLOP", "TFLOP/s",
            "GB", "GB/s", "of peak");
    for (int i = 0; i < count; i++)
        fprintf(out, "%-20s %8" PRId64 " %10.6f %6.1f%% %10.4g %8.3f %10.4g %8.2f %8s\n", rows[i].name, rows[i].calls,
                rows[i].seconds, total > 0 ? 100 * rows[i].seconds / total : 0, rows[i].flops / 1e9,
                tera_per_second(rows[i].flops, rows[i].seconds), rows[i].bytes / 1e9,
                1e3 * tera_per_second(rows[i].bytes, rows[i].seconds), share_of_peak(t, &rows[i], peak));
}

/* Logs each line of `text`, which it cuts up. */
static void log_text(struct run *run, char *text)
{
    console_break(&run->console);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        log_info("%s", line);
}

/* Ops since the last reading, added to those of the run. */
static int take_ops(struct run *run, struct op_profile rows[OPS_COUNT])
{
    int count = ops_profile_read(run->engine.device, rows, OPS_COUNT);
    for (int i = 0; i < count; i++) {
        int at = 0;
        while (at < run->num_profiled && strcmp(run->profiled[at].name, rows[i].name) != 0)
            at++;
        struct op_profile *sum = &run->profiled[at];
        if (at == run->num_profiled)
            run->profiled[run->num_profiled++] = (struct op_profile){.name = rows[i].name};
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
    char *text;
    size_t bytes;
    take_ops(run, rows);
    FILE *out = memory_stream(&text, &bytes);
    print_ops(out, &run->engine, run->profiled, run->num_profiled);
    fclose(out);
    log_text(run, text);
    free(text);
}

/* ---- modules ------------------------------------------------------------- */

static void add_work(struct work *sum, const struct module_profile *part)
{
    sum->seconds += part->work.seconds;
    sum->flops += part->work.flops;
}

/* The ops of a range belong to a unit, to its kind, and to the model. */
static void add_part(struct step_profile *p, const struct module_profile *part)
{
    const int unit = part->place.unit, head = tensor_table_head(&p->run->engine.table);
    struct module *of_unit = unit >= 0 ? &p->units[unit] : NULL;
    struct module *of_kind = !of_unit ? NULL : &p->kinds[unit == 0 ? 0 : unit < head ? 1 : 2];
    struct module *all[] = {&p->model, of_kind, of_unit};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (!all[i])
            continue;
        if (part->place.phase == PHASE_FORWARD)
            add_work(&all[i]->forward, part);
        else if (part->place.phase == PHASE_BACKWARD)
            add_work(&all[i]->backward, part);
        else if (part->place.phase == PHASE_OPTIMIZER)
            add_work(&all[i]->optimizer, part);
    }
    if (part->place.phase != PHASE_FORWARD && part->place.phase != PHASE_BACKWARD &&
        part->place.phase != PHASE_OPTIMIZER)
        p->other += part->work.seconds;
}

static int64_t unit_parameters(const struct tensor_table *table, int unit)
{
    const struct unit_info *info = &table->units[unit];
    int64_t count = 0;
    for (int i = 0; i < info->num_tensors; i++)
        count += table->tensors[info->first_tensor + i].numel;
    return count + (info->frozen ? unit_parameters(table, info->frozen) : 0);
}

static void take_modules(struct step_profile *p)
{
    static const char *const kinds[] = {"embedding", "blocks", "head"};
    const struct tensor_table *table = &p->run->engine.table;
    const struct module_profile *parts;
    const int units = tensor_table_head(table) + 1;
    p->units = memory_zeroed((size_t)units, sizeof *p->units);
    for (int i = 0; i < 3; i++)
        p->kinds[i].name = kinds[i];
    p->model.name = "model";
    for (int u = 0; u < units; u++) {
        p->units[u].name = table->units[u].name;
        p->units[u].parameters = unit_parameters(table, u);
        p->kinds[u == 0 ? 0 : u < units - 1 ? 1 : 2].parameters += p->units[u].parameters;
    }
    p->model.parameters = table->num_params;
    int count = ops_profile_modules(p->run->engine.device, &parts);
    for (int i = 0; i < count; i++)
        add_part(p, &parts[i]);
}

static void print_module(const struct step_profile *p, const struct module *m)
{
    double all = p->model.forward.seconds + p->model.backward.seconds + p->model.optimizer.seconds + p->other;
    double seconds = m->forward.seconds + m->backward.seconds + m->optimizer.seconds;
    fprintf(p->out, "%-12s %12" PRId64 " %11.4g %10.6f %8.3f %10.6f %8.3f %10.6f %6.1f%%\n", m->name, m->parameters,
            m->forward.flops / 2e9, m->forward.seconds, tera_per_second(m->forward.flops, m->forward.seconds),
            m->backward.seconds, tera_per_second(m->backward.flops, m->backward.seconds), m->optimizer.seconds,
            all > 0 ? 100 * seconds / all : 0);
}

static int depth_of(const struct step_profile *p)
{
    int64_t depth = p->run->spec->flops_profiler.module_depth;
    return depth < 0 || depth > DEPTH ? DEPTH : (int)depth;
}

static void print_modules(const struct step_profile *p)
{
    int depth = depth_of(p);
    if (depth == DEPTH && !p->run->spec->flops_profiler.detailed)
        depth = DEPTH - 1;
    fprintf(p->out, "%-12s %12s %11s %10s %8s %10s %8s %10s %7s\n", "module", "params", "fwd GMACs", "fwd s", "TFLOP/s",
            "bwd s", "TFLOP/s", "update s", "share");
    print_module(p, &p->model);
    for (int i = 0; depth == 1 && i < 3; i++)
        print_module(p, &p->kinds[i]);
    for (int u = 0; depth == DEPTH && u <= tensor_table_head(&p->run->engine.table); u++)
        print_module(p, &p->units[u]);
}

/* What modules are ranked by. */
static double rank_of(const struct module *m, int key)
{
    return key == 0 ? (double)m->parameters : key == 1 ? m->forward.flops / 2 : m->forward.seconds;
}

/* The `most` modules that come first, in order of the key, and of their names' order where it is equal. */
static void print_first(FILE *out, const struct module *modules, int count, int key, int64_t most)
{
    static const char *const formats[] = {" %s: %.0f", " %s: %.0f", " %s: %.6f"};
    bool *taken = memory_zeroed((size_t)count, sizeof *taken);
    for (int64_t n = 0; n < most && n < count; n++) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (!taken[i] && (best < 0 || rank_of(&modules[i], key) > rank_of(&modules[best], key)))
                best = i;
        taken[best] = true;
        fprintf(out, "%s", n ? "," : "");
        fprintf(out, key < 2 ? formats[0] : formats[2], modules[best].name, rank_of(&modules[best], key));
    }
    fprintf(out, "\n");
    free(taken);
}

static void print_top(const struct step_profile *p)
{
    static const char *const keys[] = {"params", "fwd MACs", "fwd latency"};
    const int64_t most = p->run->spec->flops_profiler.top_modules;
    for (int depth = 0; depth <= depth_of(p); depth++) {
        const struct module *modules = depth == 0 ? &p->model : depth == 1 ? p->kinds : p->units;
        int count = depth == 0 ? 1 : depth == 1 ? 3 : tensor_table_head(&p->run->engine.table) + 1;
        for (int key = 0; key < 3; key++) {
            fprintf(p->out, "depth %d: top %" PRId64 " in %s:", depth, most < count ? most : count, keys[key]);
            print_first(p->out, modules, count, key, most);
        }
    }
}

/* ---- a step -------------------------------------------------------------- */

/* The totals, with DeepSpeed's names. */
static void print_totals(const struct step_profile *p)
{
    const struct module *m = &p->model;
    const struct engine *t = &p->run->engine;
    double both = m->forward.seconds + m->backward.seconds, flops = m->forward.flops + m->backward.flops;
    fprintf(p->out, "flops_profiler: step %" PRId64 ", rank %d of %d; each op was timed by itself\n", p->step, t->rank,
            t->world);
    fprintf(p->out, "params of model:        %" PRId64 "\n", t->table.num_params);
    fprintf(p->out, "updated by this rank:   %" PRId64 " params\n",
            t->spec->zero.stage == 0 ? t->table.num_params - t->table.frozen_params : t->layout.trained_numel);
    fprintf(p->out, "fwd MACs:               %.6g GMACs\n", m->forward.flops / 2e9);
    fprintf(p->out, "fwd flops:              %.6g G\n", m->forward.flops / 1e9);
    fprintf(p->out, "fwd latency:            %.6f s\n", m->forward.seconds);
    fprintf(p->out, "fwd FLOPS:              %.3f TFLOPS\n", tera_per_second(m->forward.flops, m->forward.seconds));
    fprintf(p->out, "bwd flops:              %.6g G\n", m->backward.flops / 1e9);
    fprintf(p->out, "bwd latency:            %.6f s\n", m->backward.seconds);
    fprintf(p->out, "bwd FLOPS:              %.3f TFLOPS\n", tera_per_second(m->backward.flops, m->backward.seconds));
    fprintf(p->out, "fwd+bwd FLOPS:          %.3f TFLOPS\n", tera_per_second(flops, both));
    fprintf(p->out, "step latency:           %.6f s (the optimizer's)\n", m->optimizer.seconds);
    fprintf(p->out, "other latency:          %.6f s (ops outside of these)\n", p->other);
    fprintf(p->out, "iter latency:           %.6f s (all, with data, waiting and launches)\n", p->seconds);
    fprintf(p->out, "FLOPS:                  %.3f TFLOPS\n", tera_per_second(flops, p->seconds));
    fprintf(p->out, "samples/second:         %.3f\n", p->seconds > 0 ? p->samples / p->seconds : 0);
}

/* Writes the tables to output_file, or logs them. */
static void deliver(struct run *run, char *text, size_t bytes)
{
    const char *path = run->spec->flops_profiler.output_file;
    struct error err;
    if (path && named_file_write(path, text, bytes, STATUS_CHECKPOINT, &err) == STATUS_OK) {
        console_break(&run->console);
        log_info("flops_profiler: %s has the tables of step %" PRId64, path, run->spec->flops_profiler.profile_step);
        return;
    }
    if (path)
        log_warn("flops_profiler: the tables are logged: %s", err.text);
    log_text(run, text);
}

static void report_step(struct run *run, double seconds)
{
    const struct run_spec *spec = run->spec;
    struct op_profile rows[OPS_COUNT];
    struct step_profile p = {.run = run, .step = run->enqueued, .seconds = seconds};
    char *text;
    size_t bytes;
    int count = take_ops(run, rows);
    p.samples = (double)(spec->train_micro_batch_size_per_gpu * spec->gradient_accumulation_steps);
    take_modules(&p);
    p.out = memory_stream(&text, &bytes);
    print_totals(&p);
    print_ops(p.out, &run->engine, rows, count);
    print_modules(&p);
    print_top(&p);
    fclose(p.out);
    if (run->boot->rank == 0)
        deliver(run, text, bytes);
    free(text);
    free(p.units);
}

bool flops_report_is_due(const struct run *run)
{
    return run->spec->flops_profiler.enabled && run->enqueued + 1 == run->spec->flops_profiler.profile_step;
}

void flops_report_announce(const struct run *run)
{
    int64_t step = run->spec->flops_profiler.profile_step, first = run->position.step + 1,
            last = run->engine.total_steps;
    if (run->spec->flops_profiler.enabled && (step < first || step > last) && first <= last)
        log_warn("flops_profiler: profile_step %" PRId64 " is none of the steps %" PRId64 " to %" PRId64
                 " of this process, and nothing is profiled",
                 step, first, last);
}

void flops_report_begin(struct run *run)
{
    struct op_profile rows[OPS_COUNT];
    const struct module_profile *modules;
    struct engine *t = &run->engine;
    stream_sync(t->compute);
    stream_sync(zero_stream(t->zero));
    ops_profile_enable(t->device, true);
    take_ops(run, rows); /* of --profile, so far */
    ops_profile_modules(t->device, &modules);
    run->stepper.eager = true;
    run->profile_start = seconds_now();
}

void flops_report_end(struct run *run, bool broken_off)
{
    struct engine *t = &run->engine;
    run->stepper.eager = trace_file_is_on(run->trace);
    stream_sync(t->compute);
    stream_sync(zero_stream(t->zero));
    if (!broken_off)
        report_step(run, seconds_now() - run->profile_start);
    if (!t->profile)
        ops_profile_enable(t->device, false);
}
