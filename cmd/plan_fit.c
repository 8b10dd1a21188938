/* SPDX-License-Identifier: Apache-2.0 */
/* plan_fit.c: `ztrain plan --fit`.
 *
 *   every setting (memory_tunables.h): its bytes  ->  of those that fit, the two largest micro-batches with the same
 *   tunables: a simulated step (simulated_run.h)  ->  by time
 *
 * The time of a setting with offload counts as a little longer: its estimate is less certain (doubt). A setting that
 * rounds results differently than the spec asks for is listed, but is the best only if nothing else fits. NVMe is
 * slower and takes as much of the device: it is searched only where a node's memory is limited or the spec asks. */
#include "cmd/plan.h"

static const double same_time = 0.005; /* times that differ by this part are about the same */

struct fit_plan {
    struct run_spec spec; /* without train.memory_limit */
    struct simulated_machine machine;
    int64_t device_limit, node_limit; /* bytes; node_limit 0: none */
    struct memory_setting given;
    int64_t samples;               /* of a step on each rank */
    bool uses_disk;                /* NVMe is searched as well */
    struct memory_choice *fitting; /* owned */
    int fits, built;
    struct memory_choice least;      /* least device memory of all; device 0: none was built */
    struct memory_choice least_host; /* of those that fit on the device, the least host memory; device 0: none does */
};

static void fit_plan_release(struct fit_plan *p)
{
    free(p->fitting);
}

/* ---- the search ---------------------------------------------------------- */

/* Builds a setting, and with `timed` simulates its step. STATUS_USAGE: ztrain refuses the setting. */
static enum status try_setting(const struct fit_plan *p, struct memory_choice *c, bool timed, struct error *err)
{
    struct run_spec copy;
    RELEASED(simulated_run_release) struct simulated_run walk = {0};
    struct simulated_times times;
    memory_setting_apply(&c->setting, &p->spec, p->machine.world, &copy);
    TRY(simulated_run_build(&walk, &p->machine, &copy, true, err));
    c->device = memory_plan_device_bytes(&walk.engine.plan);
    c->node = memory_plan_node_bytes(&walk.engine);
    if (p->node_limit && c->node > (size_t)p->node_limit) c->node -= memory_plan_node_spare(&walk.engine);
    c->disk = 0;
    for (const struct engine *t = &walk.engine; t; t = t->next)
        c->disk += (size_t)p->machine.link.per_node * (size_t)zero_disk_bytes(t->zero);
    if (timed) {
        TRY(simulated_run_step(&walk, 0, &p->machine.link, &times, err));
        c->seconds = times.seconds;
        c->mfu = simulated_run_mfu(&walk, times.seconds);
    }
    return STATUS_OK;
}

static enum status find_fitting(struct fit_plan *p, struct error *err)
{
    struct memory_choice c = {.seconds = 0};
    while (memory_setting_next(&p->spec, p->machine.world, &c.setting)) {
        if (memory_setting_uses_disk(&c.setting) && !p->uses_disk) continue;
        enum status status = try_setting(p, &c, false, err);
        if (status == STATUS_USAGE) continue;
        TRY(status);
        p->built++;
        c.price = memory_setting_price(&c.setting, &p->given, p->samples);
        c.rounds = memory_setting_rounds(&c.setting, &p->given);
        if (!p->least.device || c.device < p->least.device) p->least = c;
        if (c.device > (size_t)p->device_limit) continue;
        if (!p->least_host.device || c.node < p->least_host.node) p->least_host = c;
        if (p->node_limit && c.node > (size_t)p->node_limit) continue;
        p->fitting = memory_grow(p->fitting, (size_t)p->fits, sizeof *p->fitting);
        p->fitting[p->fits++] = c;
    }
    return STATUS_OK;
}

/* Whether it is hardly the fastest: two larger micro-batches fit, or one that recomputes or offloads less. */
static bool is_hopeless(const struct fit_plan *p, const struct memory_choice *c)
{
    int larger = 0;
    for (int i = 0; i < p->fits; i++) {
        const struct memory_setting *other = &p->fitting[i].setting;
        bool less = other->micro == c->setting.micro, differs = false;
        for (int k = 0; k < TUNABLE_COUNT; k++) {
            const int difference = c->setting.values[k] - other->values[k];
            less &= difference == 0 || (difference > 0 && k != TUNABLE_STAGE && k != TUNABLE_STATES);
            differs |= difference != 0;
        }
        if (less && differs) return true;
        larger += !differs && other->micro > c->setting.micro;
    }
    return larger >= 2;
}

static bool is_given(const struct fit_plan *p, const struct memory_choice *c)
{
    return c->setting.micro == p->given.micro && c->price == 0;
}

static int plan_fit_by_seconds(const void *a, const void *b)
{
    const struct memory_choice *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return x->price - y->price;
}

static double judged_seconds(const struct memory_choice *c)
{
    return c->seconds * (1 + memory_setting_doubt(&c->setting));
}

/* ---- printing ------------------------------------------------------------ */

/* Whether another candidate is about as fast with fewer changes, at the same micro-batch, or with no more memory. */
static bool is_needless(const struct fit_plan *p, const struct memory_choice *c)
{
    const double equal = 1.0005;
    for (int i = 0; i < p->fits; i++) {
        const struct memory_choice *other = &p->fitting[i];
        if (other->price >= c->price || other->rounds > c->rounds || other->seconds > equal * c->seconds) continue;
        if (other->setting.micro == c->setting.micro || (other->device <= c->device && other->node <= c->node))
            return true;
    }
    return false;
}

/* The rows of the table: the best, then others by time, the spec's own among them if it fits. */
enum { FIT_ROWS = 12, FIT_ROWS_MOST = FIT_ROWS + 1 };

/* Columns of the tunables: with all columns a line has 99. */
static const int tunable_widths[TUNABLE_COUNT] = {[TUNABLE_STAGE] = 5, [TUNABLE_RECOMPUTE] = 9, [TUNABLE_OPTIMIZER] = 5,
                                                  [TUNABLE_PARAM] = 6, [TUNABLE_INPUTS] = 6,    [TUNABLE_STATES] = 5};

static void print_fit_row(const struct fit_plan *p, int number, const struct memory_choice *c)
{
    const int64_t tokens =
        p->spec.train_batch_size * preference_sequences(&p->spec.preference) * p->spec.data.seq_length;
    printf("%2d%c %8.1f %8.0f %5.1f %7.1f %7.1f", number,
           is_given(p, c) ? '='
           : c->rounds    ? '*'
                          : ' ',
           1e3 * c->seconds, (double)tokens / c->seconds, c->mfu, in_gib(c->device), in_gib(c->node));
    if (p->uses_disk) printf(" %7.1f", in_gib(c->disk));
    printf(" %5" PRId64, c->setting.micro);
    for (int k = 0; k < TUNABLE_COUNT; k++) {
        const int value = c->setting.values[k];
        printf(" %*s", tunable_widths[k], value < 0 ? "given" : memory_tunables[k].values[value].name);
    }
    putchar('\n');
}

static void print_fit_table(const struct fit_plan *p, const struct memory_choice *const *rows, int count)
{
    bool given = false, rounds = false;
    printf("\n%d settings were planned; first the simplest of about the fastest, then by time (GiB):\n\n", p->built);
    printf("%3s %8s %8s %5s %7s %7s", "row", "step, ms", "tokens/s", "MFU %", "GPU", "node");
    if (p->uses_disk) printf(" %7s", "disk");
    printf(" %5s", "micro");
    for (int k = 0; k < TUNABLE_COUNT; k++) printf(" %*s", tunable_widths[k], memory_tunables[k].title);
    putchar('\n');
    for (int i = 0; i < count; i++) {
        print_fit_row(p, i + 1, rows[i]);
        given |= is_given(p, rows[i]);
        rounds |= rows[i]->rounds && !is_given(p, rows[i]);
    }
    if (given) printf("  = this spec\n");
    if (rounds) printf("  * rounds differently\n");
}

/* Prints "a.b.c=v" as YAML below the open sections, those of the line before. ours: nvme_path is the table's. */
static void plan_fit_print_yaml(char *open, const char *line, bool ours)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    const char *equals = strchr(line, '='), *dot, *start = line;
    int level = 0;
    bool same = true;
    while ((dot = strchr(start, '.')) && dot < equals) {
        same = same && strncmp(open, line, (size_t)(dot + 1 - line)) == 0;
        if (!same) printf("%*s%.*s:\n", 2 * level, "", (int)(dot - start), start);
        start = dot + 1;
        level++;
    }
    printf("%*s%.*s: ", 2 * level, "", (int)(equals - start), start);
    if (equals[1 + strspn(equals + 1, plain)]) /* else a word, a number or a path */
        spec_write_string(stdout, equals + 1);
    else
        fputs(equals + 1, stdout);
    puts(ours && strncmp(start, "nvme_path=", 10) == 0 ? "   # change me: a folder on the node's disk" : "");
    memcpy(open, line, (size_t)(equals - line));
    open[equals - line] = 0;
}

/* The lines of a setting, sorted for the sections. */
static void print_fit_lines(const struct fit_plan *p, int row, const struct memory_choice *c)
{
    const bool ours = !p->spec.zero.offload_optimizer.nvme_path && !p->spec.zero.offload_param.nvme_path;
    char open[128] = "";
    RELEASED(string_list_release) struct string_list lines = {.count = 0};
    struct run_spec copy;
    memory_setting_apply(&c->setting, &p->spec, p->machine.world, &copy);
    for (int k = 0; k < TUNABLE_COUNT; k++) {
        const int value = c->setting.values[k];
        if (value > 0 || (value == 0 && p->given.values[k] != 0)) memory_tunable_lines(k, value, &copy, &lines);
    }
    string_list_sort(&lines);
    printf("\nrow %d's lines of the run spec, in place of its keys of these names:\n\n", row);
    printf("train_batch_size: %" PRId64 "\ntrain_micro_batch_size_per_gpu: %" PRId64
           "\ngradient_accumulation_steps: %" PRId64 "\n",
           p->spec.train_batch_size, c->setting.micro, copy.gradient_accumulation_steps);
    for (int i = 0; i < lines.count; i++) plan_fit_print_yaml(open, lines.items[i], ours);
}

static enum status refuse(const struct fit_plan *p, struct error *err)
{
    const bool host = p->least_host.device != 0;
    const struct memory_choice *c = host ? &p->least_host : &p->least;
    char lines[MEMORY_SETTING_TEXT];
    struct run_spec copy;
    memory_setting_apply(&c->setting, &p->spec, p->machine.world, &copy);
    memory_setting_text(&c->setting, &p->given, &copy, lines);
    error_set(err, STATUS_DEVICE,
              host ? "no setting fits: a node needs at least %s of host memory, with %s, and has %s"
                   : "no setting fits: a rank needs at least %s of device memory, with %s, and has %s",
              SIZE(round, (int64_t)(host ? c->node : c->device)), *lines ? lines : "this spec",
              SIZE(round, host ? p->node_limit : p->device_limit));
    return error_hint(err, "more ranks, a shorter data.seq_length or a smaller model take less");
}

/* ---- the plan ------------------------------------------------------------ */

enum status plan_size(const char *option, const char *text, int64_t *bytes, struct error *err)
{
    if (!text || size_parse(text, bytes)) return STATUS_OK;
    error_set(err, STATUS_USAGE, "--%s: '%s' is not a size", option, text);
    return error_hint(err, SIZE_FORMS);
}

/* Fills *p, all zeros before, and finds the best candidate. The caller frees p->fitting, after an error too. */
static enum status plan_fit_search(struct fit_plan *p, const struct machine_question *question,
                                   const struct run_spec *spec, const struct memory_choice **best, struct error *err)
{
    int64_t asked = spec->train.memory_limit;
    p->spec = *spec;
    p->spec.train.memory_limit = 0;
    TRY(simulated_machine_find(question, &p->machine, err));
    /* of a rank: --memory or train.memory_limit, but not more than the GPU has */
    const int64_t whole = (int64_t)(p->machine.gpu.memory_gib * (1 << 30));
    TRY(plan_size("memory", question->memory, &asked, err));
    p->device_limit = asked && asked < whole ? asked : whole;
    if (asked > whole)
        log_info("notice: %s %s is more than the GPU's %.1f GiB: the GPU's memory is the cap",
                 question->memory ? "--memory" : "train.memory_limit", SIZE(format, asked), p->machine.gpu.memory_gib);
    TRY(plan_size("node-memory", question->node_memory, &p->node_limit, err));
    memory_setting_of(&p->spec, &p->given);
    p->samples = spec->train_batch_size / p->machine.world;
    p->uses_disk = p->node_limit || memory_setting_uses_disk(&p->given);
    TRY(find_fitting(p, err));
    if (p->built == 0) /* the spec's own setting is refused too: a reason that none of the tunables removes */
        return STATUS_USAGE;
    if (p->fits == 0) return refuse(p, err);
    for (int i = 0; i < p->fits; i++) /* times the candidates that may be fast, drops the others, and sorts */
        if (is_given(p, &p->fitting[i]) || !is_hopeless(p, &p->fitting[i]))
            TRY(try_setting(p, &p->fitting[i], true, err));
    const int fits = p->fits;
    p->fits = 0;
    for (int i = 0; i < fits; i++)
        if (p->fitting[i].seconds > 0) p->fitting[p->fits++] = p->fitting[i];
    qsort(p->fitting, (size_t)p->fits, sizeof *p->fitting, plan_fit_by_seconds);
    /* the cheapest of about the fastest candidates that round as the spec asks for; of all, where none does */
    double fastest = INFINITY;
    bool exact = false;
    for (int i = 0; i < p->fits; i++) exact |= !p->fitting[i].rounds;
    for (int i = 0; i < p->fits; i++)
        if (!exact || !p->fitting[i].rounds) fastest = fmin(fastest, judged_seconds(&p->fitting[i]));
    *best = NULL;
    for (const struct memory_choice *c = p->fitting; c < p->fitting + p->fits; c++)
        if (!(exact && c->rounds) && judged_seconds(c) <= fastest * (1 + same_time) &&
            (!*best || c->price < (*best)->price))
            *best = c;
    return STATUS_OK;
}

enum status plan_fit(const struct machine_question *question, int row, const struct run_spec *spec, struct error *err)
{
    RELEASED(fit_plan_release) struct fit_plan p = {.built = 0};
    const struct memory_choice *best, *rows[FIT_ROWS_MOST];
    TRY(plan_fit_search(&p, question, spec, &best, err));
    int count = 0;
    rows[count++] = best;
    for (const struct memory_choice *c = p.fitting; c < p.fitting + p.fits; c++)
        if (c != best && ((count < FIT_ROWS && !is_needless(&p, c)) || is_given(&p, c))) rows[count++] = c;
    const struct simulated_machine *m = &p.machine;
    printf("fit plan, estimated and not measured: %d rank%s, %s, train_batch_size %" PRId64 "\n", m->world,
           PLURAL(m->world), dtype_name(spec->dtype), spec->train_batch_size);
    printf("GPU: %s, assumed\n", m->gpu.name);
    printf("memory: %.1f GiB of each GPU; of each node, with %d rank%s, %s\n", in_gib((uint64_t)p.device_limit),
           m->link.per_node, PLURAL(m->link.per_node), p.node_limit ? SIZE(round, p.node_limit) : "without a limit");
    if (p.uses_disk) simulated_machine_print_disk(m);
    print_fit_table(&p, rows, count);
    if (row > count) return error_set(err, STATUS_USAGE, "--row %d: the table has %d row%s", row, count, PLURAL(count));
    print_fit_lines(&p, row ? row : 1, rows[row ? row - 1 : 0]);
    return STATUS_OK;
}

enum status plan_fit_choose(const struct machine_question *question, const struct run_spec *spec,
                            struct memory_choice *choice, struct error *err)
{
    RELEASED(fit_plan_release) struct fit_plan p = {.built = 0};
    const struct memory_choice *best;
    TRY(plan_fit_search(&p, question, spec, &best, err));
    *choice = *best;
    return STATUS_OK;
}
