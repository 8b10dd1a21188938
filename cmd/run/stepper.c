/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/stepper.h"

#include "cmd/run/trace_file.h"
#include "comm/zero/zero_check.h"
#include "core/faults.h"
#include "core/flight/flight.h"

/* A collective is in every rank's graph or in none. */
static enum status stepper_all_say(struct comm *comm, bool own, bool *all, struct error *err)
{
    double yes = own;
    TRY(comm_sum(comm, &yes, 1, err));
    *all = (int)yes == comm_world(comm);
    return STATUS_OK;
}

enum status stepper_init(struct stepper *s, struct engine *t, struct error *err)
{
    *s = (struct stepper){.engine = t, .graphs = t->graphs == GRAPHS_BY_STEP, .blocks = t->graphs == GRAPHS_BY_BLOCK};
    for (size_t i = 0; i < COUNT_OF(s->looks); i++) TRY(event_new(t->device, &s->looks[i], err));
    for (size_t i = 0; i < TIMED_STEPS; i++) {
        TRY(event_new_timed(t->device, &s->began[i], err));
        TRY(event_new_timed(t->device, &s->ended[i], err));
    }
    TRY(stepper_all_say(t->comm, s->graphs, &s->graphs, err));
    if (s->graphs) s->batches = memory_zeroed((size_t)t->micros, sizeof *s->batches);
    return STATUS_OK;
}

void stepper_release(struct stepper *s)
{
    if (s->graph) stream_sync(s->engine->compute);
    graph_free(s->graph);
    free(s->batches);
    for (size_t i = 0; i < COUNT_OF(s->looks); i++) event_free(s->looks[i]);
    for (size_t i = 0; i < TIMED_STEPS; i++) {
        event_free(s->began[i]);
        event_free(s->ended[i]);
    }
}

/* ---- op by op ------------------------------------------------------------ */

static enum status next_batch(struct train_step *step, struct error *err)
{
    bool end = false;
    double start = seconds_now();
    const uint64_t entry = flight_begin(FLIGHT_DATA, -1, 0, -1);
    TRY(token_stream_next(step->stream, &step->last, &end, err));
    flight_end(entry);
    ASSERT(!end);
    step->data_seconds += seconds_now() - start;
    trace_file_host(step->stepper->trace, "wait for data", start, 0);
    return STATUS_OK;
}

/* A step's loss is the mean over its targets. */
static float stepper_loss_scale(const struct batch *batch)
{
    return batch->step_targets ? (float)(1.0 / (double)batch->step_targets) : 0.0f;
}

/* Forward and backward of a micro-batch; losses are added to its turn's. loaded: load_all() has the scale in memory. */
static struct train_job stepper_job(struct engine *t, const struct batch *batch, bool loaded)
{
    faults_delay(t->rank, batch->step);
    zero_begin_micro(t->zero, batch->last_micro);
    return (struct train_job){.transformer = t->transformer,
                              .batch = batch,
                              .factor = {.value = loaded ? 1 : stepper_loss_scale(batch),
                                         .step = loaded ? t->grad_scale : NULL,
                                         .scaler = zero_loss_scale(t->zero)},
                              .verbs = zero_verbs(t->zero),
                              .loss_sum = t->loss_sum + batch->micro % t->turns,
                              .sequences = t->preference ? &t->preference->head : NULL,
                              .expert_sums = engine_expert_sums(t, batch->micro % t->turns)};
}

void stepper_keep_up(struct stepper *s)
{
    if (s->num_looks > 0) event_sync(s->looks[(s->num_looks - 1) % 2]);
    event_record(s->looks[s->num_looks++ % 2], s->engine->compute);
}

/* What a loss of preferences has added up on the host goes where other losses have added up on the device. */
static void put_preference_sums(const struct engine *t)
{
    const struct preference_steps *sums = t->preference;
    if (!sums) return;
    stream_copy(t->compute, t->loss_sum, sums->losses, (size_t)t->turns * sizeof *sums->losses);
    for (int turn = 0; turn < t->turns; turn++)
        stream_copy(t->compute, t->loss_sum + t->turns + turn * t->extra_sums + engine_preference_at(t),
                    sums->sums + turn * PREFERENCE_SUMS, PREFERENCE_SUMS * sizeof *sums->sums);
    stream_sync(t->compute); /* the next step clears them */
}

/* Enqueues each micro-batch as soon as its tokens are loaded, those of several steps side by side. kept (micros): has
 * batches of the stream, and keeps those that it lacks; NULL: nothing is kept. */
static enum status run_micros(struct train_step *steps, int count, struct batch **kept, struct error *err)
{
    int64_t most = 0;
    bool stop = false;
    for (int i = 0; i < count; i++) {
        struct engine *t = steps[i].stepper->engine;
        stream_fill_zero(t->compute, t->loss_sum, engine_sums_bytes(t));
        if (t->preference) preference_steps_begin(t->preference);
        most = t->micros > most ? t->micros : most;
    }
    for (int64_t micro = 0; micro < most && !stop; micro++) {
        struct train_job jobs[TRAIN_JOBS];
        int num_jobs = 0;
        flight_micro(micro + 1);
        for (int i = 0; i < count; i++) {
            struct engine *t = steps[i].stepper->engine;
            if (micro >= t->micros) continue;
            if (!kept || !kept[micro]) TRY(next_batch(&steps[i], err));
            if (kept && !kept[micro]) kept[micro] = batch_copy(&steps[i].last);
            jobs[num_jobs++] = stepper_job(t, kept ? kept[micro] : &steps[i].last, false);
        }
        TRY(transformer_train(jobs, num_jobs, steps->stepper->engine->compute, err));
        for (int i = 0; i < count && micro + 1 < most; i++)
            TRY(steps[i].stepper->calls.look(steps[i].stepper->calls.context, &stop, err));
    }
    for (int i = 0; i < count; i++) put_preference_sums(steps[i].stepper->engine);
    for (int i = 0; i < count && stop; i++) {
        struct engine *t = steps[i].stepper->engine;
        steps[i].broken_off = true;
        stream_sync(t->compute);
        stream_sync(zero_stream(t->zero));
        TRY(comm_status(t->comm, err));
        TRY(device_check(t->device, err));
    }
    return STATUS_OK;
}

/* ---- twice --------------------------------------------------------------- */

static enum status run_twice(struct train_step *step, struct error *err)
{
    struct stepper *s = step->stepper;
    struct engine *t = s->engine;
    const size_t bytes = (size_t)t->turns * sizeof *t->loss_sum;
    struct batch **kept = memory_zeroed((size_t)t->micros, sizeof *kept);
    double *losses = memory_zeroed(2, bytes); /* (2, turns) */
    enum status status = STATUS_OK;
    step->counted = false; /* twice the collectives */
    for (int pass = 0; pass < 2 && !step->broken_off; pass++) {
        TRY_END(zero_check_pass(t->zero, pass, s->checked, t->compute, err));
        TRY_END(run_micros(step, 1, kept, err));
        stream_copy(t->compute, losses + pass * t->turns, t->loss_sum, bytes);
        stream_sync(t->compute);
    }
    if (step->broken_off)
        zero_check_drop(t->zero);
    else
        status = s->calls.compare(s->calls.context, losses, err);
end:
    if (status != STATUS_OK) stream_sync(t->compute); /* it may still read them */
    for (int64_t i = 0; i < t->micros; i++) free(kept[i]);
    free(losses);
    free(kept);
    return status;
}

/* ---- as a graph ---------------------------------------------------------- */

static enum status load_all(struct train_step *step, struct error *err)
{
    struct stepper *s = step->stepper;
    struct engine *t = s->engine;
    void *packed = input_upload_room(t->upload);
    for (int i = 0; i < (int)t->micros; i++) {
        TRY(next_batch(step, err));
        s->batches[i] = step->last;
        transformer_load(t->transformer, i, &s->batches[i], t->compute, packed);
        if (s->graph) /* packed steps are alike */
            ASSERT(s->batches[i].num_tokens == s->tokens);
    }
    input_upload_send(t->upload, t->compute);
    const float scale = stepper_loss_scale(&step->last);
    stream_copy(t->compute, t->grad_scale, &scale, sizeof scale);
    return STATUS_OK;
}

static enum status run_loaded(struct stepper *s, struct error *err)
{
    struct engine *t = s->engine;
    stream_fill_zero(t->compute, t->loss_sum, engine_sums_bytes(t));
    for (int64_t i = 0; i < t->micros; i++) {
        flight_micro(i + 1);
        const struct train_job job = stepper_job(t, &s->batches[i], true);
        TRY(transformer_train(&job, 1, t->compute, err));
    }
    return zero_finish_step(t->zero, t->loss_sum, t->compute, err);
}

/* Captures the loaded step. If that fails, leaves s->graph NULL; from the next step on blocks are graphs. */
static enum status capture(struct stepper *s, struct error *err)
{
    struct engine *t = s->engine;
    struct stream *streams[] = {t->compute, zero_stream(t->zero)};
    struct error why = {.code = STATUS_OK};
    bool all;
    if (graph_begin(streams, COUNT_OF(streams), &s->graph, &why) == STATUS_OK) {
        enum status status = run_loaded(s, err);
        if (graph_end(s->graph, &why) != STATUS_OK) s->graph = NULL;
        TRY(status);
    }
    TRY(stepper_all_say(t->comm, s->graph != NULL, &all, err));
    s->tokens = s->batches[0].num_tokens;
    if (all) return STATUS_OK;
    graph_free(TAKEN(s->graph));
    s->graphs = false;
    s->blocks = true;
    zero_rewind_step(t->zero);
    if (why.code == STATUS_OK) error_set(&why, STATUS_DEVICE, "a graph cannot be captured on another rank");
    if (t->spec->train.cuda_graphs == SPEC_ON) {
        *err = why;
        return error_hint(err, "train.cuda_graphs: false");
    }
    log_warn("CUDA graphs: by block, not by step: %s", why.text);
    return STATUS_OK;
}

static enum status run_as_graph(struct train_step *step, struct error *err)
{
    struct stepper *s = step->stepper;
    TRY(load_all(step, err));
    step->counted = !s->graph;
    if (!s->graph) TRY(capture(s, err));
    if (!s->graph) return run_loaded(s, err);
    step->untimed = true;
    const uint64_t entry = flight_begin(FLIGHT_GRAPH, -1, 0, -1);
    comm_launch(s->engine->comm, s->graph);
    flight_end(entry);
    return STATUS_OK;
}

/* ---- a step -------------------------------------------------------------- */

static struct step_rates stepper_rates(const struct run_spec *spec, int64_t k)
{
    double beta1 = spec->optimizer.beta1, beta2 = spec->optimizer.beta2;
    if (schedule_has_betas(&spec->scheduler)) schedule_betas(&spec->scheduler, k, &beta1, &beta2);
    return (struct step_rates){.lr = schedule_lr(&spec->scheduler, optimizer_base_lr(&spec->optimizer), k),
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .correction1 = spec->optimizer.bias_correction ? 1.0 - pow(beta1, (double)k) : 1.0,
                               .correction2 = spec->optimizer.bias_correction ? 1.0 - pow(beta2, (double)k) : 1.0};
}

enum status stepper_enqueue(struct train_step *steps, int count, struct error *err)
{
    const struct stepper *s = steps->stepper;
    const bool loaded = s->graphs && s->warm && !s->eager && !s->checked;
    for (struct train_step *step = steps; step < steps + count; step++) {
        struct stepper *own = step->stepper;
        struct engine *t = own->engine;
        struct step_schedule schedule = {.base = step->made};
        for (int i = 0; i < STEP_RATES; i++) schedule.rates[i] = stepper_rates(t->spec, step->made + 1 + i);
        step->counted = true;
        event_record(own->began[own->num_ended % TIMED_STEPS], t->compute);
        transformer_replay(t->transformer, own->blocks && !own->eager && !own->checked);
        zero_begin_step(t->zero, &schedule, t->compute);
    }
    TRY(s->checked ? run_twice(steps, err) : loaded ? run_as_graph(steps, err) : run_micros(steps, count, NULL, err));
    for (struct train_step *step = steps; step < steps + count; step++) {
        struct stepper *own = step->stepper;
        struct engine *t = own->engine;
        own->warm = true;
        if (step->broken_off) continue;
        if (!loaded) TRY(zero_finish_step(t->zero, t->loss_sum, t->compute, err)); /* a graph has the update as well */
        TRY(zero_end_step(t->zero, t->compute, err));
        event_record(own->ended[own->num_ended++ % TIMED_STEPS], t->compute);
    }
    return STATUS_OK;
}

double stepper_seconds(struct stepper *s, bool after_pause)
{
    ASSERT(s->num_timed < s->num_ended && s->num_ended - s->num_timed < TIMED_STEPS);
    const int64_t step = s->num_timed++;
    struct event *from = after_pause || step == 0 ? s->began[step % TIMED_STEPS] : s->ended[(step - 1) % TIMED_STEPS];
    double seconds;
    return event_elapsed(from, s->ended[step % TIMED_STEPS], &seconds) ? seconds : NAN;
}
