/* SPDX-License-Identifier: Apache-2.0 */
/* simulated_run.c: the transformer and ZeRO run on simulated devices and transports. A later step is measured. */
#include "cmd/engine/simulated_run.h"

#include "gpu/peaks.h"

double *simulated_machine_limit(const struct simulated_machine *machine, struct comm_link *link)
{
    return machine->world > link->per_node ? &link->network : &link->inside;
}

/* ---- the question -------------------------------------------------------- */

/* Parses a rate per second: "400Gbit", "450GB". The error begins with option and word. */
static enum status parse_rate(const char *option, const char *word, const char *text, double *bytes_per_s,
                              struct error *err)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"Gbit", 1e9 / 8}, {"GB", 1e9}, {"Mbit", 1e6 / 8}, {"MB", 1e6}};
    char *end;
    double value = strtod(text, &end);
    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (end != text && value > 0 && isfinite(value) && strcmp(end, units[i].unit) == 0) {
            *bytes_per_s = value * units[i].bytes;
            return STATUS_OK;
        }
    error_set(err, STATUS_USAGE, "--%s: %s'%s' is not a rate", option, word, text);
    return error_hint(err, "a number and Gbit or GB (per second), e.g. 400Gbit, 450GB");
}

/* Takes one word: of an overhead that is assumed away, or RATE=400GB. */
static enum status take_assumption(const char *word, struct assumed_gpu *settings, struct error *err)
{
#define KNOWN_WORD(name, word, text) ", " word
#define RATE_ROW(field, word, text) {word "=", offsetof(struct assumed_gpu, field)},
    static const char known[] = ASSUMPTIONS(KNOWN_WORD) ASSUMED_RATES(KNOWN_WORD);
    static const struct {
        const char *word;
        size_t offset;
    } rates[] = {ASSUMED_RATES(RATE_ROW)};
    for (int i = 0; i < ASSUMPTION_COUNT; i++)
        if (strcmp(assumption_words[i], word) == 0) {
            settings->assumptions |= 1u << i;
            return STATUS_OK;
        }
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        const size_t length = strlen(rates[i].word);
        if (strncmp(rates[i].word, word, length) == 0)
            return parse_rate("assume", rates[i].word, word + length,
                              (double *)(void *)((char *)settings + rates[i].offset), err);
    }
    return error_set(err, STATUS_USAGE, "--assume: '%s' is not known; hint: one of %s", word, known + 2);
}

/* A usual node has this many GPUs, each with a network card of this many bytes/s (400 Gbit/s). */
enum { NODE_RANKS = 8 };
static const double usual_network = 400e9 / 8;

/* Bytes/s of the host's memory: two Xeon of such a node have 16 channels of DDR5-4800, 614 GB/s, of which streams of
 * reads and writes reach about 480. Its ranks share it, and the threads of one rank reach about one socket's. */
static const double node_memory = 480e9, socket_memory = 200e9;

int simulated_node_ranks(int per_node, int world)
{
    const int most = per_node ? per_node : NODE_RANKS;
    return most < world ? most : world;
}

enum status simulated_machine_find(const struct machine_question *question, struct simulated_machine *machine,
                                   struct error *err)
{
    struct comm_link *link = &machine->link;
    bool tf32;
    *machine = (struct simulated_machine){.world = question->world};
    TRY(gpu_catalog_find(question->device ? question->device : gpu_catalog_usual, &machine->gpu, err));
    machine->settings.gpu = &machine->gpu;
    TRY(device_cuda_wants_tf32(&tf32, err));
    machine->gpu.flops[DTYPE_F32] = peaks_flops(machine->gpu.name, DTYPE_F32, tf32);
    for (const char *words = question->assume ? question->assume : ""; *words; words += *words == ',') {
        char word[64];
        const size_t length = strcspn(words, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        TRY(take_assumption(word, &machine->settings, err));
        words += length;
    }
    *link = (struct comm_link){.inside = machine->gpu.link, .network = usual_network, .per_node = question->per_node};
    link->per_node = simulated_node_ranks(question->per_node, question->world);
    if (question->world % link->per_node != 0)
        return error_set(err, STATUS_USAGE, "--world %d is not a multiple of the %d ranks of a node", question->world,
                         link->per_node);
    machine->settings.node_ranks = link->per_node;
    if (machine->settings.host_memory == 0)
        machine->settings.host_memory = fmin(node_memory / link->per_node, socket_memory);
    return question->link ? parse_rate("link", "", question->link, simulated_machine_limit(machine, link), err)
                          : STATUS_OK;
}

void simulated_run_release(struct simulated_run *w)
{
    engine_release(&w->engine);
    comm_close(w->comm);
}

enum status simulated_run_build(struct simulated_run *w, const struct simulated_machine *machine, struct run_spec *spec,
                                bool quiet, struct error *err)
{
    struct engine *t = &w->engine;
    *w = (struct simulated_run){.machine = machine, .engine.quiet = quiet};
    if (spec->data.packing != SPEC_PACKING_CUT && !quiet)
        log_info("data.packing is not true: the plan is for micro-batches of full length");
    w->comm = transport_simulated_open(machine->world, &machine->link);
    t->simulation.device = simulated_device_open_timed(&machine->settings);
    t->simulation.disk = simulated_device_disk(t->simulation.device);
    t->simulation.comm = w->comm;
    t->node_ranks = machine->link.per_node;
    return engine_build(t, spec, 0, machine->world, NULL, 1, err);
}

/* ---- walking through a step ---------------------------------------------- */

static enum status walk_step(struct simulated_run *w, int64_t micro_batches, struct error *err)
{
    struct batch batches[TRAIN_JOBS];
    struct train_job jobs[TRAIN_JOBS];
    struct zero_result result;
    int count = 0;
    for (struct engine *t = &w->engine; t; t = t->next) {
        const struct step_schedule schedule = {.base = w->steps};
        struct batch *batch = &batches[count++];
        *batch = (struct batch){.num_seqs = (int32_t)t->spec->train_micro_batch_size_per_gpu *
                                            preference_sequences(&t->spec->preference),
                                .max_seq = (int32_t)t->spec->data.seq_length};
        /* full samples; documents that are samples have a token less, and no room for more */
        batch->num_tokens =
            min64(batch->num_seqs * (int64_t)batch->max_seq, token_stream_limits(&t->train_config).max_tokens);
        zero_begin_step(t->zero, &schedule, t->compute);
        if (t->upload) {
            transformer_load(t->transformer, 0, batch, t->compute, input_upload_room(t->upload));
            input_upload_send(t->upload, t->compute);
        }
        stream_fill_zero(t->compute, t->loss_sum, engine_sums_bytes(t));
    }
    for (int64_t micro = 0; micro < micro_batches; micro++) {
        count = 0;
        for (struct engine *t = &w->engine; t; t = t->next, count++) {
            zero_begin_micro(t->zero, micro + 1 == micro_batches);
            jobs[count] = (struct train_job){.transformer = t->transformer,
                                             .batch = &batches[count],
                                             .factor = {.value = 1, .scaler = zero_loss_scale(t->zero)},
                                             .verbs = zero_verbs(t->zero),
                                             .loss_sum = t->loss_sum,
                                             .sequences = t->preference ? &t->preference->head : NULL,
                                             .expert_sums = engine_expert_sums(t, 0)};
        }
        TRY(transformer_train(jobs, count, w->engine.compute, err));
    }
    for (struct engine *t = &w->engine; t; t = t->next) {
        TRY(zero_finish_step(t->zero, t->loss_sum, t->compute, err));
        TRY(zero_end_step(t->zero, t->compute, err));
        TRY(zero_collect(t->zero, &result, err));
    }
    w->steps++;
    return STATUS_OK;
}

/* Walks through steps of this many micro-batches; the times are the last one's, which pays for those before. */
static enum status walk_steady_step(struct simulated_run *w, int64_t micro_batches, struct simulated_times *times,
                                    struct error *err)
{
    const int before = zero_uses_disk(&w->engine.spec->zero) ? 3 : 1;
    for (int i = 0; i < before; i++) TRY(walk_step(w, micro_batches, err));
    simulated_device_reset(w->engine.device);
    TRY(walk_step(w, micro_batches, err));
    simulated_device_times(w->engine.device, times);
    return STATUS_OK;
}

/* The micro-batches between first and last are alike, so a long step is extrapolated from two shorter ones. */
static enum status walk_long_step(struct simulated_run *w, struct simulated_times *times, struct error *err)
{
    enum { SHORT = 16, LONG = 32 };
    const int64_t micro_batches = w->engine.micros;
    struct simulated_times few;
    if (micro_batches <= LONG) return walk_steady_step(w, micro_batches, times, err);
    const double more = (double)(micro_batches - LONG) / (LONG - SHORT);
    TRY(walk_steady_step(w, SHORT, &few, err));
    TRY(walk_steady_step(w, LONG, times, err));
    for (int k = 0; k < TIME_KIND_COUNT; k++) {
        times->kinds[k].ceiling += more * (times->kinds[k].ceiling - few.kinds[k].ceiling);
        times->kinds[k].expected += more * (times->kinds[k].expected - few.kinds[k].expected);
        times->kinds[k].launches += llround(more * (double)(times->kinds[k].launches - few.kinds[k].launches));
    }
    times->enqueued += llround(more * (double)(times->enqueued - few.enqueued));
    times->communication += more * (times->communication - few.communication);
    times->ordered += more * (times->ordered - few.ordered);
    times->unordered += more * (times->unordered - few.unordered);
    times->disk += more * (times->disk - few.disk);
    times->seconds += more * (times->seconds - few.seconds);
    return STATUS_OK;
}

enum status simulated_run_step(struct simulated_run *w, unsigned assumptions, const struct comm_link *link,
                               struct simulated_times *times, struct error *err)
{
    struct assumed_gpu settings = w->machine->settings;
    struct comm_link used = *link;
    settings.assumptions |= assumptions;
    if (gpu_assumes(&settings, ASSUME_NO_COMMUNICATION)) used.inside = INFINITY;
    if (!w->started) { /* gives the run addresses */
        TRY(memory_plan_allocate(&w->engine, err));
        for (struct engine *t = &w->engine; t; t = t->next) {
            zero_set_position(t->zero, 0, &(struct loss_scaler){.scale = 1}, t->compute);
            transformer_replay(t->transformer, t->graphs == GRAPHS_BY_BLOCK);
        }
        w->started = true;
    }
    simulated_device_set(w->engine.device, &settings);
    transport_simulated_set_link(w->comm, &used);
    TRY(walk_long_step(w, times, err));
    if (w->machine->world == 1 || isinf(used.inside)) return STATUS_OK;
    /* A step waits for the slowest GPU. Spread: the standard deviation that explains what LLM.Q loses from one H100 to
     * eight, beside its transfers. The factor is about the expected maximum of as many normal numbers. */
    const double spread = 0.018, most = sqrt(2 * log(w->machine->world)) - 0.6;
    const double late = spread * most * (times->seconds - times->kinds[TIME_EXPOSED].expected);
    times->kinds[TIME_SLOWEST].expected += late;
    times->seconds += late;
    return STATUS_OK;
}

void attention_layers(const struct op_limits *limits, int shape, char text[ATTENTION_LAYERS])
{
    const struct attention_fwd_args *a = &limits->attention[shape].fwd;
    const int64_t count = limits->attention_layers[shape];
    char window[40] = "no window";
    if (a->window) snprintf(window, sizeof window, "window %" PRId64, a->window);
    snprintf(text, ATTENTION_LAYERS, " of %" PRId64 " layer%s (heads of %" PRId64 ", %s)", count, PLURAL(count), a->D,
             window);
}

void attention_price(struct simulated_run *walk, struct simulated_machine *machine, struct device *tried,
                     char text[ATTENTION_PRICE])
{
    struct error ignored;
    double seconds[2];
    *text = 0;
    machine->settings.tried = tried;
    for (int i = 0; i < 2; i++) {
        struct simulated_times times;
        machine->settings.attention_obstacle = i == 0  ? attention_without_obstacle
                                               : tried ? device_attention_obstacle
                                                       : NULL;
        if (simulated_run_step(walk, 0, &machine->link, &times, &ignored) != STATUS_OK) return;
        seconds[i] = times.seconds;
    }
    const double more = 100 * (seconds[1] / seconds[0] - 1);
    snprintf(text, ATTENTION_PRICE, more < 1 ? "less than 1 %%" : "about %.0f %%", more);
}

void simulated_machine_print_disk(const struct simulated_machine *machine)
{
    const struct assumed_gpu *s = &machine->settings;
    const int ranks = machine->link.per_node;
    const char *source = s->disk_read > 0 || s->disk_write > 0 ? "" : " (a usual SSD's data sheet)";
    printf("disk of each node, shared by %d rank%s: %.1f GB/s read, %.1f GB/s written%s\n", ranks, PLURAL(ranks),
           1e-9 * ranks * simulated_disk_rate(s, false), 1e-9 * ranks * simulated_disk_rate(s, true), source);
}

double simulated_run_tokens(const struct simulated_run *w)
{
    double tokens = 0;
    for (const struct run_spec *spec = w->engine.spec; spec; spec = spec->next)
        tokens +=
            (double)spec->train_batch_size * preference_sequences(&spec->preference) * (double)spec->data.seq_length;
    return tokens;
}

double simulated_run_mfu(const struct simulated_run *w, double seconds)
{
    const struct engine *t = &w->engine;
    double flops = transformer_flops_per_token(&t->desc, &t->table, t->spec->data.seq_length);
    return 100 * peaks_mfu(flops, simulated_run_tokens(w) / seconds, t->world, t->device->peak_flops[t->spec->dtype]);
}
