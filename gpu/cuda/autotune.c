/* SPDX-License-Identifier: Apache-2.0 */
/* autotune.c: verifies, times, picks and keeps kernels. Scratch memory:
 *
 *     | workspace of the op | operands and results | samples of the reference's results | of a candidate's first run |
 */
#include "gpu/cuda/autotune.h"

#include "core/core.h"
#include "gpu/arena.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/device_cuda.h"
#include "gpu/cuda/nvml.h"
#include "gpu/op_operands.h"

enum { FINALISTS = 6, ROUNDS = 3, REPEATS = 4, SAMPLES = 3 };
enum kept { OF_REFERENCE, OF_FIRST_RUN, KEPT };

/* A problem on scratch memory. */
struct trial {
    struct autotuner *tuner;
    const struct autotune_problem *problem;
    char *kept[KEPT][AUTOTUNE_TENSORS]; /* samples of the results on the GPU */
    char *host[2];                      /* owned: a sample each */
};

/* ---- the tuner ----------------------------------------------------------- */

enum status autotuner_open(struct autotuner *t, struct device *device, struct autotune_cache *cache, struct error *err)
{
    *t = (struct autotuner){.device = device, .cache = cache, .since = seconds_now()};
    TRY(stream_new(device, STREAM_COMPUTE, &t->stream, err));
    TRY(event_new_timed(device, &t->start, err));
    return event_new_timed(device, &t->end, err);
}

void autotuner_close(struct autotuner *t)
{
    if (t->start) event_free(t->start);
    if (t->end) event_free(t->end);
    if (t->stream) stream_free(t->stream);
    device_free(t->device, t->memory, t->bytes);
}

void autotuner_finish(struct autotuner *t, enum autotune_op op)
{
    static const struct {
        const char *measured, *kernels, *things, *kept;
    } words[AUTOTUNE_OPS] = {{"", "kernels", "matrix products", "their kernels"},
                             {"cuDNN's engines for ", "engines", "shapes of attention", "the fastest"}};
    char text[128];
    const uint64_t throttle = t->tuned[op] ? t->throttle | nvml_throttle_faults(NULL, t->device->id) : 0;
    if (throttle) {
        log_warn("the GPU is throttled (%s): the %s chosen for %d %s are not kept, and measured again next time",
                 nvml_throttle_text(throttle, text, sizeof text), words[op].kernels, t->tuned[op], words[op].things);
        autotune_cache_discard(t->cache, op);
    } else if (t->tuned[op]) {
        log_detail("measured %s%d %s in %.1f s; %s are kept in %s", words[op].measured, t->tuned[op], words[op].things,
                   seconds_now() - t->since, words[op].kept, autotune_cache_path(t->cache));
    }
    t->throttle = 0;
    t->since = seconds_now();
}

/* ---- memory -------------------------------------------------------------- */

void autotune_add(struct autotune_problem *p, void *pointer, enum dtype dtype, int64_t rows, int64_t ld)
{
    p->tensors[p->num_tensors++] = (struct autotune_tensor){.pointer = pointer, .dtype = dtype, .rows = rows, .ld = ld};
}

void autotune_add_operands(struct autotune_problem *p, int op, void *args)
{
    const struct op_operands operands = op_operands(op);
    for (const struct operand *o = operands.all; o < operands.all + operands.count; o++) {
        if (!operand_element(o, args) || !operand_exists(o, args)) continue;
        const int64_t rows = operand_rows(o, args);
        struct autotune_tensor *tensor = &p->tensors[p->num_tensors];
        autotune_add(p, operand_pointer(o, args), operand_dtype(o, args), rows, operand_numel(o, args, true) / rows);
        tensor->width = operand_numel(o, args, false) / rows;
        tensor->part = operand_part(o, args);
        if (o->use & OPERAND_WRITTEN) tensor->name = o->name;
    }
}

static size_t row_bytes(const struct autotune_tensor *tensor)
{
    return (size_t)tensor->ld * dtype_size(tensor->dtype);
}

static int64_t sample_rows(const struct autotune_tensor *tensor)
{
    return tensor->sampled < tensor->rows ? tensor->sampled : tensor->rows;
}

static int samples_of(const struct autotune_tensor *tensor)
{
    return !tensor->name || tensor->rows == 0 ? 0 : tensor->rows > tensor->sampled ? SAMPLES : 1;
}

static size_t sample_bytes(const struct autotune_tensor *tensor)
{
    return (size_t)sample_rows(tensor) * row_bytes(tensor);
}

/* The first row of a sample. */
static int64_t sample_row(const struct autotune_tensor *tensor, int sample)
{
    return sample * (tensor->rows - sample_rows(tensor)) / (SAMPLES - 1);
}

static char *memory_of(const struct autotune_tensor *tensor)
{
    char *memory;
    memcpy(&memory, tensor->pointer, sizeof memory);
    return memory;
}

static void lay_out_trial(struct trial *t, struct arena *arena)
{
    const struct autotune_problem *p = t->problem;
    const size_t workspace = p->workspace + CUDA_SCRATCH_ALIGN;
    stream_set_workspace(t->tuner->stream, arena_take(arena, MEM_WORKSPACE, workspace), arena->base ? workspace : 0);
    for (int i = 0; i < p->num_tensors; i++) {
        const struct autotune_tensor *tensor = &p->tensors[i];
        char *memory = arena_take(arena, MEM_DATA, (size_t)tensor->rows * row_bytes(tensor) + 16);
        for (int k = 0; k < KEPT; k++)
            t->kept[k][i] = arena_take(arena, MEM_DATA, (size_t)samples_of(tensor) * sample_bytes(tensor));
        if (!arena->base) continue;
        memory += (uintptr_t)memory_of(tensor) % 16;
        memcpy(tensor->pointer, &memory, sizeof memory);
    }
}

/* Finds memory for the problem; false: there is too little. */
static bool trial_open(struct trial *t)
{
    struct autotuner *tuner = t->tuner;
    struct arena arena;
    struct error ignored;
    size_t largest = 1;
    for (int i = 0; i < t->problem->num_tensors; i++)
        if (t->problem->tensors[i].name && sample_bytes(&t->problem->tensors[i]) > largest)
            largest = sample_bytes(&t->problem->tensors[i]);
    t->host[0] = malloc(largest);
    t->host[1] = malloc(largest);
    arena_init_dry(&arena);
    lay_out_trial(t, &arena);
    const size_t bytes = arena.used;
    if (bytes > tuner->bytes) {
        device_free(tuner->device, tuner->memory, tuner->bytes);
        tuner->memory = NULL;
        tuner->bytes = 0;
        if (device_alloc(tuner->device, bytes, (void **)&tuner->memory, &ignored) != STATUS_OK) return false;
        tuner->bytes = bytes;
    }
    arena_init(&arena, tuner->memory, bytes);
    lay_out_trial(t, &arena);
    return t->host[0] && t->host[1];
}

/* ---- verifying ----------------------------------------------------------- */

static const char *autotune_run_once(const struct trial *t, int candidate)
{
    return t->problem->run(t->problem->op, t->tuner->stream, candidate);
}

/* Runs on random values, which are the same each time. */
static const char *autotune_run_afresh(const struct trial *t, int candidate)
{
    const struct autotune_problem *p = t->problem;
    for (int i = 0; i < p->num_tensors; i++) {
        const struct autotune_tensor *tensor = &p->tensors[i];
        stream_fill_noise(t->tuner->stream, memory_of(tensor), tensor->dtype, (size_t)(tensor->rows * tensor->ld),
                          (uint32_t)i);
    }
    if (p->prepare) p->prepare(p->op, t->tuner->stream, candidate);
    return autotune_run_once(t, candidate);
}

static void autotune_keep_samples(const struct trial *t, enum kept which)
{
    for (int i = 0; i < t->problem->num_tensors; i++) {
        const struct autotune_tensor *tensor = &t->problem->tensors[i];
        const size_t bytes = sample_bytes(tensor);
        for (int s = 0; s < samples_of(tensor); s++)
            stream_copy(t->tuner->stream, t->kept[which][i] + (size_t)s * bytes,
                        memory_of(tensor) + (size_t)sample_row(tensor, s) * row_bytes(tensor), bytes);
    }
}

/* Of `rows` rows of `width` values from `first` on. */
static double root_mean_square(const struct autotune_tensor *tensor, const char *values, int64_t first, int64_t rows,
                               int64_t width)
{
    double squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < width; j++) {
            const double value = (double)dtype_load(values, first + i * tensor->ld + j, tensor->dtype);
            squares += value * value;
        }
    }
    return sqrt(squares / (double)(rows * width));
}

/* The first element of a sample that is not close to the expected one, or -1. Gaps between rows must be equal. A value
 * is measured against its part of the row as well: the keys of the first queries have large gradients. */
static int64_t find_difference(const struct autotune_tensor *tensor, const char *values, const char *expected)
{
    const int64_t rows = sample_rows(tensor), ld = tensor->ld;
    const double least = tensor->tolerance / 8 * root_mean_square(tensor, expected, 0, rows, tensor->width);
    for (int64_t row = 0; row < rows * ld; row += ld) {
        for (int64_t part = row; part < row + tensor->width; part += tensor->part) {
            const double near = root_mean_square(tensor, expected, part, 1, tensor->part);
            for (int64_t i = part; i < part + tensor->part; i++) {
                const double x = (double)dtype_load(values, i, tensor->dtype),
                             y = (double)dtype_load(expected, i, tensor->dtype);
                if (!(fabs(x - y) <= tensor->tolerance * (fabs(y) + near) + least)) return i;
            }
        }
        for (int64_t i = row + tensor->width; i < row + ld; i++)
            if (dtype_load(values, i, tensor->dtype) != dtype_load(expected, i, tensor->dtype)) return i;
    }
    return -1;
}

/* Compares the samples of a result with those that were kept: with the first run's bit for bit. */
static void compare_tensor(const struct trial *t, int result, enum kept which, struct autotune_candidate *c)
{
    const struct autotune_tensor *tensor = &t->problem->tensors[result];
    const size_t bytes = sample_bytes(tensor);
    for (int s = 0; s < samples_of(tensor) && c->failure == AUTOTUNE_GOOD; s++) {
        const int64_t row = sample_row(tensor, s);
        stream_copy(t->tuner->stream, t->host[0], memory_of(tensor) + (size_t)row * row_bytes(tensor), bytes);
        stream_copy(t->tuner->stream, t->host[1], t->kept[which][result] + (size_t)s * bytes, bytes);
        stream_sync(t->tuner->stream);
        heartbeat_beat();
        c->result = tensor->name;
        if (which == OF_FIRST_RUN) {
            c->failure = memcmp(t->host[0], t->host[1], bytes) == 0 ? AUTOTUNE_GOOD : AUTOTUNE_RESTLESS;
            continue;
        }
        const int64_t at = find_difference(tensor, t->host[0], t->host[1]);
        if (at < 0) continue;
        c->failure = AUTOTUNE_WRONG;
        c->at = row * tensor->ld + at;
        c->value = (double)dtype_load(t->host[0], at, tensor->dtype);
        c->expected = (double)dtype_load(t->host[1], at, tensor->dtype);
    }
}

static void compare_all(const struct trial *t, enum kept which, struct autotune_candidate *c)
{
    for (int i = 0; i < t->problem->num_tensors; i++) compare_tensor(t, i, which, c);
}

static void autotune_verify(const struct trial *t, int candidate, struct autotune_candidate *c)
{
    const char *refusal = autotune_run_afresh(t, candidate);
    const bool verified = t->problem->reference != REFERENCE_NONE, twice = verified && t->problem->repeats;
    if (!refusal && twice) {
        autotune_keep_samples(t, OF_FIRST_RUN);
        refusal = autotune_run_afresh(t, candidate);
    }
    stream_sync(t->tuner->stream);
    if (refusal) {
        cudaGetLastError(); /* of the refusal: the next launch shall not find it */
        c->failure = AUTOTUNE_REFUSED;
        snprintf(c->reason, sizeof c->reason, "%s", refusal);
        return;
    }
    if (twice) compare_all(t, OF_FIRST_RUN, c);
    if (verified) compare_all(t, OF_REFERENCE, c);
}

static enum status autotune_try(const struct trial *t, int candidate, struct autotune_candidate *c, struct error *err)
{
    char name[256];
    const struct autotune_problem *p = t->problem;
    c->failure = AUTOTUNE_GOOD;
    c->seconds = 0;
    p->describe(p->op, candidate, name, sizeof name);
    autotune_cache_note(t->tuner->cache, &p->key, &c->config, name);
    autotune_verify(t, candidate, c);
    const enum status status = device_check(t->tuner->device, err);
    if (status == STATUS_OK) {
        autotune_cache_note_done(t->tuner->cache);
        return STATUS_OK;
    }
    error_prefix(err, "%s, on trial (start again: it is left out then)", name);
    return status;
}

/* ---- timing -------------------------------------------------------------- */

/* The mean of `repeats` runs. Failures show in device_check(). */
static double autotune_runs(const struct trial *t, int candidate, int repeats)
{
    struct autotuner *tuner = t->tuner;
    double seconds = INFINITY;
    event_record(tuner->start, tuner->stream);
    for (int i = 0; i < repeats; i++)
        if (autotune_run_once(t, candidate)) return INFINITY;
    event_record(tuner->end, tuner->stream);
    event_sync(tuner->end);
    event_elapsed(tuner->start, tuner->end, &seconds);
    heartbeat_beat();
    return seconds / repeats;
}

static void autotune_warm_up(const struct trial *t, int candidate)
{
    const double warm_up_seconds = 0.1, begin = seconds_now();
    while (!t->tuner->warm && seconds_now() - begin < warm_up_seconds) autotune_runs(t, candidate, REPEATS);
    if (!t->tuner->warm) t->tuner->throttle = nvml_throttle_faults(NULL, t->tuner->device->id);
    t->tuner->warm = true;
}

static int autotune_by_seconds(const void *a, const void *b)
{
    const struct autotune_candidate *x = *(struct autotune_candidate *const *)a,
                                    *y = *(struct autotune_candidate *const *)b;
    return x->seconds != y->seconds ? (x->seconds > y->seconds) - (x->seconds < y->seconds) : (x > y) - (x < y);
}

/* Times the good candidates, and the reference if it competes: its seconds are *reference. */
static void autotune_time(const struct trial *t, struct autotune_candidate *candidates, int count, double *reference)
{
    struct autotune_candidate *runners[AUTOTUNE_CANDIDATES];
    int n = 0;
    for (int i = 0; i < count; i++)
        if (candidates[i].failure == AUTOTUNE_GOOD) runners[n++] = &candidates[i];
    if (n == 0) return;
    autotune_warm_up(t, (int)(runners[0] - candidates));
    for (int i = 0; i < n && n > FINALISTS; i++)
        runners[i]->seconds = autotune_runs(t, (int)(runners[i] - candidates), 1);
    qsort(runners, (size_t)n, sizeof *runners, autotune_by_seconds);
    for (int i = 0; i < n; i++) runners[i]->seconds = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < n && i < FINALISTS; i++)
            runners[i]->seconds = fmin(runners[i]->seconds, autotune_runs(t, (int)(runners[i] - candidates), REPEATS));
        if (t->problem->reference == REFERENCE_COMPETES)
            *reference = fmin(*reference, autotune_runs(t, AUTOTUNE_REFERENCE, REPEATS));
    }
}

/* ---- the choice ---------------------------------------------------------- */

/* Keeps the config of the fastest, among equals of the reference or the first. Returns which one it is. */
static int keep_best(const struct trial *t, const struct autotune_candidate *candidates, int count, double reference)
{
    const struct autotune_problem *p = t->problem;
    int best = p->reference == REFERENCE_COMPETES && !t->tuner->fixed ? AUTOTUNE_REFERENCE : AUTOTUNE_NONE;
    double least = best == AUTOTUNE_REFERENCE ? reference : INFINITY;
    for (int i = 0; i < count; i++) {
        if (candidates[i].failure != AUTOTUNE_GOOD || !(candidates[i].seconds < least)) continue;
        best = i;
        least = candidates[i].seconds;
    }
    if (best == AUTOTUNE_NONE) return best;
    struct autotune_config config = best == AUTOTUNE_REFERENCE ? p->reference_config : candidates[best].config;
    config.microseconds = isinf(least) ? 0 : 1e6 * least;
    autotune_cache_put(t->tuner->cache, &p->key, &config);
    return best;
}

enum status autotune(struct autotuner *tuner, const struct autotune_problem *p, struct autotune_candidate *candidates,
                     int count, int *best, struct error *err)
{
    struct trial t = {.tuner = tuner, .problem = p};
    const bool timed = !tuner->fixed && (count > 1 || p->reference != REFERENCE_VERIFIES);
    double reference = INFINITY;
    enum status status = STATUS_OK;
    int tried = 0;
    ASSERT(count <= AUTOTUNE_CANDIDATES && p->num_tensors <= AUTOTUNE_TENSORS);
    *best = AUTOTUNE_NO_MEMORY;
    if (trial_open(&t)) {
        if (p->reference != REFERENCE_NONE) {
            autotune_run_afresh(&t, AUTOTUNE_REFERENCE);
            autotune_keep_samples(&t, OF_REFERENCE);
        }
        for (bool found = false; tried < count && !found && status == STATUS_OK; tried++) {
            status = autotune_try(&t, tried, &candidates[tried], err);
            found = tuner->fixed && candidates[tried].failure == AUTOTUNE_GOOD;
        }
        if (status == STATUS_OK && timed) autotune_time(&t, candidates, count, &reference);
        if (status == STATUS_OK) status = device_check(tuner->device, err);
        if (status == STATUS_OK) *best = keep_best(&t, candidates, tried, reference);
        tuner->tuned[p->key.op] += timed && *best >= AUTOTUNE_REFERENCE;
    } else if (tuner->fixed) {
        status =
            error_set(err, STATUS_DEVICE,
                      "the GPU has too little memory to verify kernels, and with train.virtual_ranks their choice must "
                      "not depend on that; hint: which other processes use it, nvidia-smi shows");
    }
    stream_sync(tuner->stream);
    stream_set_workspace(tuner->stream, NULL, 0);
    free(t.host[0]);
    free(t.host[1]);
    return status;
}
