/* plan_speed.c: `ztrain plan --speed`.
 *
 * The step itself is walked through: the transformer and ZeRO enqueue their ops on a device that counts their estimated
 * time instead of computing (gpu/plan/device_plan.h), with ranks that exist on paper (comm/comm_plan.h). The cost of an
 * overhead is the difference from a walk in which it is assumed away. The second step is measured, because the first
 * has no work left over from a step before. */
#include "cmd/plan_speed.h"

#include "cmd/train/trainer.h"
#include "comm/comm_plan.h"
#include "core/log.h"
#include "gpu/peaks.h"
#include "gpu/plan/device_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct speed_plan {
    const struct speed_question *question;
    struct trainer trainer;
    struct comm *comm;
    struct gpu_model gpu;
    struct plan_settings settings; /* its GPU is `gpu` */
    struct comm_link link;
    int64_t steps; /* walked so far */
};

/* Returns the link that limits the step: the network if there are several nodes, else the link inside the node. */
static double *limiting_link(const struct speed_plan *p, struct comm_link *link)
{
    return p->question->world > link->per_node ? &link->network : &link->inside;
}

/* ---- the question -------------------------------------------------------- */

/* Parses a rate per second: "400Gbit", "450GB". */
static enum status parse_rate(const char *text, double *bytes_per_s, struct error *err)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"Gbit", 1e9 / 8}, {"GB", 1e9}, {"Mbit", 1e6 / 8}, {"MB", 1e6}};
    char *end;
    double value = strtod(text, &end);
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (end != text && value > 0 && isfinite(value) && strcmp(end, units[i].unit) == 0) {
            *bytes_per_s = value * units[i].bytes;
            return STATUS_OK;
        }
    }
    error_set(err, STATUS_USAGE, "--link: '%s' is not a rate", text);
    return error_hint(err, "a number and Gbit or GB (per second), e.g. 400Gbit, 450GB");
}

/* Sets the bit of each of the comma-separated words. */
static enum status parse_assumptions(const char *words, unsigned *assumptions, struct error *err)
{
    while (*words) {
        size_t length = strcspn(words, ",");
        int found = -1;
        for (int i = 0; i < PLAN_ASSUMPTION_COUNT; i++)
            if (strlen(plan_assumption_words[i]) == length && strncmp(words, plan_assumption_words[i], length) == 0)
                found = i;
        if (found < 0) {
            char known[512] = "";
            for (int i = 0; i < PLAN_ASSUMPTION_COUNT; i++)
                snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                         plan_assumption_words[i]);
            error_set(err, STATUS_USAGE, "--assume: '%.*s' is not known", (int)length, words);
            return error_hint(err, "one of %s", known);
        }
        *assumptions |= 1u << found;
        words += length;
        words += *words == ',';
    }
    return STATUS_OK;
}

/* ---- walking through a step ---------------------------------------------- */

static enum status walk_step(struct speed_plan *p, int64_t micro_batches, struct error *err)
{
    struct trainer *t = &p->trainer;
    const struct step_schedule schedule = {.base = p->steps};
    struct batch batch = {.num_seqs = (int32_t)t->spec->train_micro_batch_size_per_gpu,
                          .max_seq = (int32_t)t->spec->data.seq_length};
    struct zero_result result;
    batch.num_tokens = batch.num_seqs * (int64_t)batch.max_seq;
    zero_begin_step(t->zero, &schedule, t->compute);
    stream_fill_zero(t->compute, t->loss_sum, sizeof *t->loss_sum);
    for (int64_t micro = 0; micro < micro_batches; micro++) {
        zero_begin_micro(t->zero, micro + 1 == micro_batches);
        TRY(transformer_train(t->transformer, &batch, 1, zero_loss_scale(t->zero), zero_verbs(t->zero), t->compute,
                              t->loss_sum, err));
    }
    TRY(zero_finish_step(t->zero, t->loss_sum, t->compute, err));
    TRY(zero_end_step(t->zero, t->compute, err));
    p->steps++;
    return zero_collect(t->zero, &result, err);
}

/* Walks through two steps of this many micro-batches; the times are those of the second one. */
static enum status walk_second_step(struct speed_plan *p, int64_t micro_batches, struct plan_times *times,
                                    struct error *err)
{
    TRY(walk_step(p, micro_batches, err));
    device_plan_reset(p->trainer.device);
    TRY(walk_step(p, micro_batches, err));
    device_plan_times(p->trainer.device, times);
    return STATUS_OK;
}

/* The micro-batches between first and last are alike, so a long step is extrapolated from two shorter ones. */
static enum status walk_long_step(struct speed_plan *p, struct plan_times *times, struct error *err)
{
    enum { SHORT = 16, LONG = 32 };
    const int64_t micro_batches = p->trainer.spec->gradient_accumulation_steps;
    struct plan_times few;
    if (micro_batches <= LONG)
        return walk_second_step(p, micro_batches, times, err);
    const double more = (double)(micro_batches - LONG) / (LONG - SHORT);
    TRY(walk_second_step(p, SHORT, &few, err));
    TRY(walk_second_step(p, LONG, times, err));
    for (int k = 0; k < PLAN_KIND_COUNT; k++) {
        times->kinds[k].ceiling += more * (times->kinds[k].ceiling - few.kinds[k].ceiling);
        times->kinds[k].expected += more * (times->kinds[k].expected - few.kinds[k].expected);
    }
    times->communication += more * (times->communication - few.communication);
    times->seconds += more * (times->seconds - few.seconds);
    return STATUS_OK;
}

/* Returns the times of a step over `link`, under these assumptions in addition to the plan's. */
static enum status walk(struct speed_plan *p, unsigned assumptions, const struct comm_link *link,
                        struct plan_times *times, struct error *err)
{
    struct plan_settings settings = p->settings;
    struct comm_link used = *link;
    settings.assumptions |= assumptions;
    if (plan_assumes(&settings, ASSUME_NO_COMMUNICATION))
        used.inside = INFINITY;
    device_plan_set(p->trainer.device, &settings);
    comm_plan_set_link(p->comm, &used);
    return walk_long_step(p, times, err);
}

static double tokens_of_step(const struct speed_plan *p)
{
    const struct run_spec *spec = p->trainer.spec;
    return (double)spec->train_batch_size * (double)spec->data.seq_length;
}

/* Returns the MFU, in percent, of a step that takes this many seconds. */
static double mfu_of(const struct speed_plan *p, double seconds)
{
    const struct trainer *t = &p->trainer;
    double flops = transformer_flops_per_token(&t->desc, t->spec->data.seq_length);
    return 100 * peaks_mfu(flops, tokens_of_step(p) / seconds, t->world, t->device->peak_flops[t->spec->dtype]);
}

/* ---- printing ------------------------------------------------------------ */

static void print_head(const struct speed_plan *p)
{
    const struct run_spec *spec = p->trainer.spec;
    printf("speed plan, estimated and not measured: %s, %d rank%s, ZeRO stage %d, %s\n", p->trainer.device->name,
           p->trainer.world, p->trainer.world == 1 ? "" : "s", spec->zero.stage, dtype_name(spec->dtype));
    if (p->trainer.world > p->link.per_node)
        printf("nodes of %d GPU%s\n", p->link.per_node, p->link.per_node == 1 ? "" : "s");
    printf("a step: %" PRId64 " micro-batch%s of %" PRId64 " x %" PRId64 " tokens on each rank%s\n",
           spec->gradient_accumulation_steps, spec->gradient_accumulation_steps == 1 ? "" : "es",
           spec->train_micro_batch_size_per_gpu, spec->data.seq_length,
           spec->activation_checkpointing ? ", recomputed in backward" : "");
    for (int i = 0; i < PLAN_ASSUMPTION_COUNT; i++)
        if (plan_assumes(&p->settings, (enum plan_assumption)i))
            printf("assumed: %s (without: %s)\n", plan_assumption_words[i], plan_assumption_overheads[i]);
}

static void print_kinds(const struct speed_plan *p, const struct plan_times *times)
{
    double ceiling = 0;
    printf("\n  %-24s %12s %12s %7s\n", "a step, ms", "at ceiling", "expected", "share");
    for (int k = 0; k < PLAN_KIND_COUNT; k++) {
        ceiling += times->kinds[k].ceiling;
        if (times->kinds[k].expected > 0)
            printf("  %-24s %12.3f %12.3f %5.1f %%\n", plan_kind_names[k], 1e3 * times->kinds[k].ceiling,
                   1e3 * times->kinds[k].expected, 100 * times->kinds[k].expected / times->seconds);
    }
    printf("  %-24s %12.3f %12.3f\n", "total", 1e3 * ceiling, 1e3 * times->seconds);
    printf("  %-24s %11.1f%% %11.1f%%\n", "MFU", mfu_of(p, ceiling), mfu_of(p, times->seconds));
    printf("  %-24s %12.0f %12.0f\n", "tokens/s", tokens_of_step(p) / ceiling, tokens_of_step(p) / times->seconds);
}

/* Prints the time of the same step over other links of the kind that limits it. */
static enum status print_links(struct speed_plan *p, struct error *err)
{
    enum { OTHERS = 4 };
    static const double inside[OTHERS] = {900e9, 450e9, 300e9, 64e9}; /* NVLink 5, 4, 3; PCIe 5 */
    static const double networks[OTHERS] = {800e9 / 8, 400e9 / 8, 200e9 / 8, 100e9 / 8};
    const bool network = p->trainer.world > p->link.per_node;
    const double planned = *limiting_link(p, &p->link);
    if (p->trainer.world == 1)
        return STATUS_OK;
    printf("\n  %-24s %12s %12s %12s %7s\n", network ? "network card of each GPU" : "link between GPUs", "busy, ms",
           "exposed, ms", "step, ms", "MFU");
    for (int i = -1; i < OTHERS; i++) {
        struct plan_times times;
        struct comm_link link = p->link;
        double rate = i < 0 ? planned : network ? networks[i] : inside[i];
        if (i >= 0 && rate == planned)
            continue;
        *limiting_link(p, &link) = rate;
        TRY(walk(p, 0, &link, &times, err));
        printf("  %5.0f %-18s %12.3f %12.3f %12.3f %5.1f %%\n", network ? rate * 8e-9 : rate * 1e-9,
               network ? "Gbit/s" : "GB/s", 1e3 * times.communication, 1e3 * times.kinds[PLAN_EXPOSED].expected,
               1e3 * times.seconds, mfu_of(p, times.seconds));
    }
    return STATUS_OK;
}

/* ---- the plan ------------------------------------------------------------ */

/* A usual node has this many GPUs, each with a network card of this many bytes/s (400 Gbit/s). */
enum { NODE_RANKS = 8 };
static const double usual_network = 400e9 / 8;

static enum status ask(struct speed_plan *p, struct error *err)
{
    const struct speed_question *question = p->question;
    bool tf32;
    TRY(gpu_model_find(question->device ? question->device : "h100", &p->gpu, err));
    p->settings.gpu = &p->gpu;
    TRY(device_cuda_wants_tf32(&tf32, err));
    p->gpu.flops[DTYPE_F32] = peaks_flops(p->gpu.name, DTYPE_F32, tf32);
    if (question->assume)
        TRY(parse_assumptions(question->assume, &p->settings.assumptions, err));
    p->link = (struct comm_link){.inside = p->gpu.link, .network = usual_network, .per_node = question->per_node};
    if (p->link.per_node == 0)
        p->link.per_node = NODE_RANKS;
    if (p->link.per_node > question->world)
        p->link.per_node = question->world;
    if (question->world % p->link.per_node != 0)
        return error_set(err, STATUS_USAGE, "--world %d is not a multiple of the %d ranks of a node", question->world,
                         p->link.per_node);
    return question->link ? parse_rate(question->link, limiting_link(p, &p->link), err) : STATUS_OK;
}

static void release(struct speed_plan *p)
{
    trainer_release(&p->trainer);
    comm_plan_free(p->comm);
}

static enum status build(struct speed_plan *p, struct error *err)
{
    struct trainer *t = &p->trainer;
    struct run_spec *spec = p->question->spec;
    if (!spec->data.packing)
        log_info("data.packing is false: the plan is for micro-batches of full length");
    TRY(comm_plan_new(p->question->world, &p->link, &p->comm, err));
    TRY(device_plan_open_timed(&p->settings, &t->planned, err));
    t->planned_comm = p->comm;
    TRY(trainer_build(t, spec, 0, p->question->world, NULL, 1, err));
    TRY(trainer_allocate(t, err));
    zero_set_position(t->zero, 0, &(struct loss_scaler){.scale = 1}, t->compute);
    return STATUS_OK;
}

/* ---- overheads ----------------------------------------------------------- */

struct overhead {
    const char *what, *option, *value; /* the overhead, and the option that removes it */
    double points;
};

static int by_size(const void *a, const void *b)
{
    double x = ((const struct overhead *)a)->points, y = ((const struct overhead *)b)->points;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Finds the points that the same step would gain if it kept all activations, however much memory that takes. */
static enum status recomputation_overhead(struct speed_plan *p, double seconds, double *points, struct error *err)
{
    struct speed_plan kept = {
        .question = p->question, .gpu = p->gpu, .settings = p->settings, .link = p->link, .trainer.quiet = true};
    struct run_spec *spec = p->question->spec;
    struct plan_times times;
    enum status status;
    *points = 0;
    if (!spec->activation_checkpointing)
        return STATUS_OK;
    spec->activation_checkpointing = false;
    TRY_END(build(&kept, err));
    TRY_END(walk(&kept, 0, &kept.link, &times, err));
    *points = mfu_of(&kept, times.seconds) - mfu_of(p, seconds);
end:
    spec->activation_checkpointing = true;
    release(&kept);
    return status;
}

static enum status print_overheads(struct speed_plan *p, double seconds, struct error *err)
{
    const double shown = 0.05;
    struct overhead overheads[PLAN_ASSUMPTION_COUNT + 1];
    for (int i = 0; i < PLAN_ASSUMPTION_COUNT; i++) {
        struct plan_times times;
        TRY(walk(p, 1u << i, &p->link, &times, err));
        overheads[i] = (struct overhead){plan_assumption_overheads[i], "--assume", plan_assumption_words[i],
                                         mfu_of(p, times.seconds) - mfu_of(p, seconds)};
    }
    overheads[PLAN_ASSUMPTION_COUNT] = (struct overhead){"blocks that are computed again in backward", "--set",
                                                         "activation_checkpointing.enabled=false", 0};
    TRY(recomputation_overhead(p, seconds, &overheads[PLAN_ASSUMPTION_COUNT].points, err));
    qsort(overheads, COUNT_OF(overheads), sizeof *overheads, by_size);
    printf("\n  overheads, in points of MFU, each removed alone\n");
    for (size_t i = 0; i < COUNT_OF(overheads) && overheads[i].points >= shown; i++)
        printf("  %6.1f  %-52s %s %s\n", overheads[i].points, overheads[i].what, overheads[i].option,
               overheads[i].value);
    return STATUS_OK;
}

enum status plan_speed(const struct speed_question *question, struct error *err)
{
    struct speed_plan p = {.question = question};
    struct plan_times times;
    enum status status;
    TRY(ask(&p, err));
    TRY_END(build(&p, err));
    TRY_END(walk(&p, 0, &p.link, &times, err));
    print_head(&p);
    print_kinds(&p, &times);
    TRY_END(print_overheads(&p, times.seconds, err));
    TRY_END(print_links(&p, err));
    if (p.trainer.plan.local.used > p.trainer.device->memory_bytes)
        printf("\n  this step does not fit: it needs %.1f GiB on each rank, %s has %.1f\n",
               (double)p.trainer.plan.local.used / (1 << 30), p.settings.gpu->name, p.settings.gpu->memory_gib);
end:
    release(&p);
    return status;
}
