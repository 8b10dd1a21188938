/* SPDX-License-Identifier: Apache-2.0 */
/* plan_speed.c: `ztrain plan --speed`. An overhead costs the difference from a walk that assumes it away. */
#include "cmd/command_line.h"
#include "cmd/plan.h"
#include "gpu/simulate/published_speed.h"

static void print_attention(struct simulated_run *p, struct simulated_machine *machine)
{
    static const char *const ways[] = {"cuDNN", "cuDNN with padding, or ztrain's kernels", "ztrain's kernels"};
    STATIC_ASSERT(ATTENTION_BY_PADDING == 1 && ATTENTION_BY_OWN == 2, "in the enum's order");
    char layers[ATTENTION_LAYERS] = "", price[ATTENTION_PRICE];
    struct op_limits limits;
    bool own = false;
    transformer_op_limits(p->engine.transformer, &limits);
    for (int i = 0; i < limits.num_attention; i++) {
        const struct attention_fwd_args *args = &limits.attention[i].fwd;
        const enum attention_way forward = op_estimate_attention_way(&machine->settings, args, false);
        const enum attention_way backward = op_estimate_attention_way(&machine->settings, args, true);
        const char *why = attention_own_reason(args);
        if (!why && backward == ATTENTION_BY_OWN) why = "cuDNN has no plan of it on this GPU";
        if (limits.num_attention > 1) attention_layers(&limits, i, layers);
        printf("attention%s: forward by %s, backward by %s%s%s\n", layers, ways[forward], ways[backward],
               why ? ": " : "", why ? why : "");
        own = own || forward == ATTENTION_BY_OWN || backward == ATTENTION_BY_OWN;
    }
    if (!own) return;
    attention_price(p, machine, NULL, price);
    if (*price) printf("ztrain's kernels for attention: a step takes %s longer than with cuDNN's\n", price);
}

static void print_speed_head(struct simulated_run *p, struct simulated_machine *machine)
{
    const struct run_spec *spec = p->engine.spec;
    const int64_t micros = p->engine.micros;
    printf("speed plan, estimated and not measured: %s, %d rank%s, ZeRO stage %d, %s\n", p->engine.device->name,
           p->engine.world, PLURAL(p->engine.world), spec->zero.stage, dtype_name(spec->dtype));
    if (p->engine.world > p->machine->link.per_node)
        printf("nodes of %d GPU%s\n", p->machine->link.per_node, PLURAL(p->machine->link.per_node));
    printf("a step: %" PRId64 " micro-batch%s of %" PRId64 " x %s%" PRId64 " tokens on each rank", micros,
           micros == 1 ? "" : "es", spec->train_micro_batch_size_per_gpu,
           preference_sequences(&spec->preference) > 1 ? "2 x " : "", spec->data.seq_length);
    if (spec->transformer.recompute != RECOMPUTE_NONE)
        printf(", recomputed in backward (%s)", recompute_name(spec->transformer.recompute));
    putchar('\n');
    print_attention(p, machine);
    if (zero_uses_disk(&spec->zero)) simulated_machine_print_disk(p->machine);
    for (int i = 0; i < ASSUMPTION_COUNT; i++)
        if (gpu_assumes(&p->machine->settings, (enum assumption)i))
            printf("assumed: %s (without: %s)\n", assumption_words[i], assumption_overheads[i]);
}

static void print_speed_kinds(const struct simulated_run *p, const struct simulated_times *times)
{
    static const char *const graphs[] = {[GRAPHS_NONE] = "no CUDA graphs",
                                         [GRAPHS_BY_BLOCK] = "CUDA graphs by block",
                                         [GRAPHS_BY_STEP] = "CUDA graphs by step"};
    double ceiling = 0;
    int64_t launches = 0;
    printf("\n  %-24s %12s %12s %7s\n", "a step, ms", "at ceiling", "expected", "share");
    for (int k = 0; k < TIME_KIND_COUNT; k++) {
        ceiling += times->kinds[k].ceiling;
        launches += times->kinds[k].launches;
        if (times->kinds[k].expected > 0)
            printf("  %-24s %12.3f %12.3f %5.1f %%\n", time_kind_names[k], 1e3 * times->kinds[k].ceiling,
                   1e3 * times->kinds[k].expected, 100 * times->kinds[k].expected / times->seconds);
    }
    printf("  %-24s %12.3f %12.3f\n", "total", 1e3 * ceiling, 1e3 * times->seconds);
    printf("  %-24s %12s %12" PRId64 "\n", "launches", "", launches);
    printf("  %-24s %12s %12" PRId64 " (%s)\n", "launches by the host", "",
           p->engine.graphs == GRAPHS_BY_STEP ? 1 : times->enqueued, graphs[p->engine.graphs]);
    if (times->ordered > 0)
        printf("  ordered sums: %.3f ms of each step's reductions, hidden or not, instead of %.3f ms by NCCL\n",
               1e3 * times->ordered, 1e3 * times->unordered);
    if (times->disk > 0) printf("  the disk is busy for %.3f ms\n", 1e3 * times->disk);
    printf("  %-24s %11.1f%% %11.1f%%\n", "MFU", simulated_run_mfu(p, ceiling), simulated_run_mfu(p, times->seconds));
    printf("  %-24s %12.0f %12.0f\n", "tokens/s", simulated_run_tokens(p) / ceiling,
           simulated_run_tokens(p) / times->seconds);
    const struct published_speed nearest = published_speed_nearest(
        &p->machine->gpu, (double)memory_plan_active(&p->engine), p->engine.desc.experts.count > 0, p->engine.world);
    printf("  %-24s %12s %12.0f (tokens/s, measured: %s, %s on %d x %s; %s)\n", "nearest published", "", nearest.tokens,
           nearest.program, nearest.model, nearest.gpus, nearest.gpu, nearest.source);
}

/* price: of a GPU's hour; 0: not known. */
static void print_speed_of_run(struct simulated_run *p, double seconds, double price)
{
    struct error unknown = {.code = STATUS_OK};
    int64_t steps = 0; /* they follow from data that cannot be read */
    p->engine.quiet = true;
    if (engine_open_data(&p->engine, &unknown) == STATUS_OK)
        steps = p->engine.total_steps;
    else if (p->engine.spec->train.epochs <= 0)
        steps = p->engine.spec->train.max_steps;
    if (!steps) {
        printf("\n  the whole run: its steps are not known: %s\n", PRINTABLE(unknown.text));
        return;
    }
    const double hours = (double)steps * seconds / 3600, gpu_hours = hours * p->engine.world;
    struct reference reference;
    const bool scores = engine_find_reference(&p->engine, &reference, &unknown) == STATUS_OK &&
                        (reference.kind == REFERENCE_START || reference.kind == REFERENCE_FOLDER);
    printf("\n  %-24s %" PRId64 " steps, %.*f hours, %.*f GPU hours; evaluations%s and checkpoints come on top\n",
           "the whole run", steps, hours < 1 ? 4 : 1, hours, gpu_hours < 1 ? 4 : 1, gpu_hours,
           scores ? ", scoring the reference (about a third of an epoch)" : "");
    if (price > 0) printf("  %-24s %.2f, at %g a GPU hour\n", "its cost", price * gpu_hours, price);
}

/* The time of the same step over other links of the kind that limits it. */
static enum status print_speed_over_links(struct simulated_run *p, struct error *err)
{
    enum { OTHERS = 4 };
    static const double inside[OTHERS] = {900e9, 450e9, 300e9, 64e9}; /* NVLink 5, 4, 3; PCIe 5 */
    static const double networks[OTHERS] = {800e9 / 8, 400e9 / 8, 200e9 / 8, 100e9 / 8};
    const bool network = p->engine.world > p->machine->link.per_node;
    struct comm_link link = p->machine->link;
    const double planned = *simulated_machine_limit(p->machine, &link);
    if (p->engine.world == 1) return STATUS_OK;
    printf("\n  %-24s %12s %12s %12s %7s\n", network ? "network card of each GPU" : "link between GPUs", "busy, ms",
           "exposed, ms", "step, ms", "MFU");
    for (int i = -1; i < OTHERS; i++) {
        struct simulated_times times;
        double rate = i < 0 ? planned : network ? networks[i] : inside[i];
        if (i >= 0 && rate == planned) continue;
        *simulated_machine_limit(p->machine, &link) = rate;
        TRY(simulated_run_step(p, 0, &link, &times, err));
        printf("  %5.0f %-18s %12.3f %12.3f %12.3f %5.1f %%\n", network ? rate * 8e-9 : rate * 1e-9,
               network ? "Gbit/s" : "GB/s", 1e3 * times.communication, 1e3 * times.kinds[TIME_EXPOSED].expected,
               1e3 * times.seconds, simulated_run_mfu(p, times.seconds));
    }
    return STATUS_OK;
}

/* The cost of a step under a policy, however much memory it takes. */
struct policy_cost {
    size_t activations; /* bytes on each rank */
    double seconds;
};

struct overhead {
    const char *what, *option, *value; /* option, value: that remove it */
    double points;
};

static int speed_overhead_by_size(const void *a, const void *b)
{
    double x = ((const struct overhead *)a)->points, y = ((const struct overhead *)b)->points;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* kept: the cost of the step that keeps all activations. */
static enum status print_speed_overheads(struct simulated_run *p, double seconds, const struct policy_cost *kept,
                                         struct error *err)
{
    const double shown = 0.05;
    struct overhead overheads[ASSUMPTION_COUNT + 1];
    for (int i = 0; i < ASSUMPTION_COUNT; i++) {
        struct simulated_times times;
        TRY(simulated_run_step(p, 1u << i, &p->machine->link, &times, err));
        overheads[i] = (struct overhead){assumption_overheads[i], "--assume", assumption_words[i],
                                         simulated_run_mfu(p, times.seconds) - simulated_run_mfu(p, seconds)};
    }
    const double points = simulated_run_mfu(p, kept->seconds) - simulated_run_mfu(p, seconds);
    overheads[ASSUMPTION_COUNT] = (struct overhead){"activations that are computed again in backward", "--set",
                                                    "activation_checkpointing.policy=none", points};
    qsort(overheads, COUNT_OF(overheads), sizeof *overheads, speed_overhead_by_size);
    printf("\n  overheads, in points of MFU, removed one at a time\n");
    for (size_t i = 0; i < COUNT_OF(overheads) && overheads[i].points >= shown; i++)
        printf("  %6.1f  %-52s %s %s\n", overheads[i].points, overheads[i].what, overheads[i].option,
               overheads[i].value);
    return STATUS_OK;
}

enum status plan_speed(const struct machine_question *question, const char *price_text, struct run_spec *spec,
                       struct error *err)
{
    struct simulated_machine machine;
    RELEASED(simulated_run_release) struct simulated_run p = {.machine = NULL};
    struct policy_cost costs[RECOMPUTE_COUNT];
    const struct policy_cost *none = &costs[RECOMPUTE_NONE];
    const double mib = 1048576;
    struct simulated_times times;
    double price = 0; /* not known */
    if (option_real("price", price_text, "a number above 0, and at most 1e9", DBL_MIN, 1e9, &price, err) != STATUS_OK)
        return error_hint(err, "what a GPU costs an hour, without a currency: --price 2.5");
    TRY(simulated_machine_find(question, &machine, err));
    TRY(simulated_run_build(&p, &machine, spec, false, err));
    TRY(simulated_run_step(&p, 0, &machine.link, &times, err));
    print_speed_head(&p, &machine);
    print_speed_kinds(&p, &times);
    for (int i = 0; i < RECOMPUTE_COUNT; i++) {
        struct run_spec copy = *spec;
        RELEASED(simulated_run_release) struct simulated_run other = {.machine = NULL};
        struct simulated_times its;
        copy.transformer.recompute = (enum recompute)i;
        TRY(simulated_run_build(&other, &machine, &copy, true, err));
        TRY(simulated_run_step(&other, 0, &machine.link, &its, err));
        costs[i] = (struct policy_cost){other.engine.plan.local.by_kind[MEM_ACTIVATIONS], its.seconds};
    }
    printf("\n  %-24s %12s %12s %12s %12s %7s\n", "recomputation, by policy", "MiB", "saved, MiB", "step, ms",
           "paid, ms", "MFU");
    for (int i = 0; i < RECOMPUTE_COUNT; i++)
        printf("  %-24s %12.1f %12.1f %12.3f %12.3f %5.1f %%\n", recompute_name((enum recompute)i),
               (double)costs[i].activations / mib, ((double)none->activations - (double)costs[i].activations) / mib,
               1e3 * costs[i].seconds, 1e3 * (costs[i].seconds - none->seconds),
               simulated_run_mfu(&p, costs[i].seconds));
    TRY(print_speed_overheads(&p, times.seconds, &costs[RECOMPUTE_NONE], err));
    TRY(print_speed_over_links(&p, err));
    if (memory_plan_device_bytes(&p.engine.plan) > p.engine.device->memory_bytes)
        printf(
            "\n  this step does not fit: it needs %.1f GiB on each rank, %.1f of them the reserve, and %s has %.1f\n",
            in_gib(memory_plan_device_bytes(&p.engine.plan)), in_gib(p.engine.plan.reserve.total), machine.gpu.name,
            machine.gpu.memory_gib);
    print_speed_of_run(&p, times.seconds, price);
    return STATUS_OK;
}
