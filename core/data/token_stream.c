/* token_stream.c: a thread reads the samples of one rank ahead, in order, as micro-batches.
 *
 *     thread:   fill slot head % SLOTS ──► head++          caller:  tail++ (gives back) ──► slot tail % SLOTS
 *
 * SLOTS micro-batches form a ring in one block of memory that is allocated at open. The caller holds slot tail % SLOTS
 * from one token_stream_next() to the next; the thread fills the slots after it, so up to SLOTS - 1 are ready ahead.
 * head and tail are guarded by the mutex; a slot's contents belong to the thread until head passes it and to the
 * caller afterwards. The thread ends at the first error or at the end of a pass, which the caller sees when it has
 * taken every batch before it. The stream's position is (step, micro); everything else is computed from it. */
#include "core/data/token_stream.h"

#include "core/data/permute.h"
#include "core/liveness.h"
#include "core/round_up.h"
#include "core/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 4

struct slot {
    struct batch batch;
    int32_t *tokens, *targets, *positions; /* (max_tokens) */
    int32_t *seq_start;                    /* (max_seqs + 1) */
};

struct token_stream {
    struct token_stream_config config;
    int64_t samples; /* of an epoch, or of the pass */
    int64_t steps_per_epoch;
    int64_t micros;   /* of a step, or of the pass, for each rank */
    int32_t *memory;  /* owned: the slots' arrays and scratch */
    int32_t *scratch; /* (T + 1) the sample that was read last */
    struct slot slots[SLOTS];

    int64_t step, micro;               /* used by the thread only: the micro-batch that it fills next */
    int64_t step_targets, step_tokens; /* used by the thread only: totals of `step` */

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t head, tail; /* under mutex: batches filled, batches given back */
    bool held;           /* used by the caller only: it holds slot tail % SLOTS */
    bool finished;       /* under mutex: the thread fills no more */
    atomic_bool stop;    /* set under mutex; also read between samples */
    struct error error;  /* the reason why it finished; code STATUS_OK: the end of the pass */
};

/* ---- sizes --------------------------------------------------------------- */

void token_stream_limits(const struct token_stream_config *config, int64_t *max_tokens, int32_t *max_seqs)
{
    int64_t count = config->micro_batch_size, length = config->seq_length, multiple = config->token_multiple;
    ASSERT(count > 0 && count < INT32_MAX && length > 0);
    if (config->packing) {
        *max_tokens = count * length;
        *max_seqs = (int32_t)count;
        return;
    }
    ASSERT(multiple > 0 && multiple <= length);
    /* `count` sequences of at most T tokens have count to count · (T - 1) inputs; a filler sequence follows them if any
     * such number is not a multiple of `multiple` */
    bool filler = multiple > 1 && (length > 2 || count % multiple != 0);
    *max_tokens = round_up(count * (length - 1), multiple);
    *max_seqs = (int32_t)count + filler;
}

int64_t token_stream_steps_per_epoch(const struct token_stream_config *config)
{
    ASSERT(config->batch_size > 0);
    return token_set_samples(config->set, config->seq_length, config->packing) / config->batch_size;
}

/* ---- filling a batch (the thread) ---------------------------------------- */

static void add_sequence(struct slot *slot, const int32_t *tokens, const int32_t *targets, int64_t length)
{
    struct batch *batch = &slot->batch;
    int64_t start = batch->num_tokens;
    for (int64_t i = 0; i < length; i++) {
        slot->tokens[start + i] = tokens ? tokens[i] : 0;
        slot->targets[start + i] = targets ? targets[i] : -1;
        slot->positions[start + i] = (int32_t)i;
    }
    batch->num_tokens += length;
    batch->num_targets += targets ? length : 0;
    batch->num_seqs++;
    batch->max_seq = length > batch->max_seq ? (int32_t)length : batch->max_seq;
    slot->seq_start[batch->num_seqs] = (int32_t)batch->num_tokens;
}

/* Finds sample `sample` in the token set: its first token and its length, which is at most T (packed: T + 1). */
static enum status locate(const struct token_stream *stream, int64_t sample, int64_t *first, int64_t *length,
                          struct error *err)
{
    int64_t limit = stream->config.seq_length;
    if (stream->config.packing) {
        *first = sample * limit;
        *length = limit + 1;
        return STATUS_OK;
    }
    TRY(token_set_document(stream->config.set, sample, first, length, err));
    *length = *length < limit ? *length : limit;
    return STATUS_OK;
}

static int64_t training_sample(const struct token_stream *stream, int64_t ordinal, int64_t epoch)
{
    const struct token_stream_config *config = &stream->config;
    if (!config->shuffle)
        return ordinal;
    return (int64_t)permute_index((uint64_t)ordinal, (uint64_t)stream->samples, config->seed, (uint64_t)epoch);
}

/* Computes the sums over the global batch of stream->step from the index, without reading tokens. */
static enum status sum_step(struct token_stream *stream, int64_t first_ordinal, int64_t epoch, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    stream->step_targets = stream->step_tokens = config->batch_size * config->seq_length;
    if (config->packing)
        return STATUS_OK;
    stream->step_targets = stream->step_tokens = 0;
    for (int64_t i = 0; i < config->batch_size && !stream->stop; i++) {
        int64_t first, length;
        TRY(locate(stream, training_sample(stream, first_ordinal + i, epoch), &first, &length, err));
        stream->step_tokens += length;
        stream->step_targets += length > 0 ? length - 1 : 0;
    }
    return STATUS_OK;
}

/* Fills the slot with micro-batch (step, micro) of this rank. */
static enum status fill(struct token_stream *stream, struct slot *slot, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    struct batch *batch = &slot->batch;
    int64_t first_ordinal, count = config->micro_batch_size;
    *batch = (struct batch){.step = stream->step,
                            .epoch = 1,
                            .micro = stream->micro,
                            .last_micro = stream->micro == stream->micros - 1,
                            .tokens = slot->tokens,
                            .targets = slot->targets,
                            .positions = slot->positions,
                            .seq_start = slot->seq_start};
    slot->seq_start[0] = 0;

    if (config->evaluation) {
        first_ordinal = (stream->micro * config->world + config->rank) * count;
        int64_t left = stream->samples - first_ordinal;
        count = left < 0 ? 0 : left < count ? left : count;
    } else {
        batch->epoch += (stream->step - 1) / stream->steps_per_epoch;
        int64_t batch_start = (stream->step - 1) % stream->steps_per_epoch * config->batch_size;
        if (stream->micro == 0)
            TRY(sum_step(stream, batch_start, batch->epoch, err));
        batch->step_targets = stream->step_targets;
        batch->step_tokens = stream->step_tokens;
        first_ordinal = batch_start + config->batch_size / config->world * config->rank + stream->micro * count;
    }

    for (int64_t i = 0; i < count && !stream->stop; i++) {
        int64_t sample = first_ordinal + i, first, length;
        if (!config->evaluation)
            sample = training_sample(stream, sample, batch->epoch);
        TRY(locate(stream, sample, &first, &length, err));
        if (length < 2)
            continue;
        TRY(token_set_read(config->set, first, length, config->vocab_size, stream->scratch, err));
        add_sequence(slot, stream->scratch, stream->scratch + 1, length - 1);
    }
    int64_t filler = config->packing ? 0 : round_up(batch->num_tokens, config->token_multiple) - batch->num_tokens;
    if (filler > 0)
        add_sequence(slot, NULL, NULL, filler);
    return STATUS_OK;
}

static void advance(struct token_stream *stream)
{
    stream->micro++;
    if (!stream->config.evaluation && stream->micro == stream->micros) {
        stream->micro = 0;
        stream->step++;
    }
}

static void *prefetch(void *argument)
{
    struct token_stream *stream = argument;
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (!stream->stop && stream->head - stream->tail == SLOTS)
            pthread_cond_wait(&stream->changed, &stream->mutex);
        if (stream->stop)
            break;
        uint64_t head = stream->head;
        pthread_mutex_unlock(&stream->mutex);

        struct error error = {.code = STATUS_OK};
        bool end = stream->micro == stream->micros; /* only an evaluation's pass ends */
        if (!end && fill(stream, &stream->slots[head % SLOTS], &error) == STATUS_OK)
            advance(stream);
        liveness_tick();

        pthread_mutex_lock(&stream->mutex);
        if (end || error.code != STATUS_OK) {
            stream->error = error;
            break;
        }
        stream->head++;
        pthread_cond_signal(&stream->changed);
    }
    stream->finished = true;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

/* ---- the caller's side --------------------------------------------------- */

static enum status check_samples(const struct token_stream *stream, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    int64_t needed = config->evaluation ? 1 : config->batch_size;
    if (stream->samples >= needed)
        return STATUS_OK;
    long long samples = stream->samples, tokens = token_set_tokens(config->set), length = config->seq_length;
    if (config->evaluation)
        return error_set(err, STATUS_DATA,
                         "the validation data has %lld tokens, too few for one sample (data.seq_length %lld, and one "
                         "more); hint: more data, or a smaller data.seq_length",
                         tokens, length);
    return error_set(err, STATUS_DATA,
                     "the training data has %lld samples (%lld tokens, data.seq_length %lld), fewer than one global "
                     "batch of %lld; hint: more data, or a smaller train_batch_size or data.seq_length",
                     samples, tokens, length, (long long)config->batch_size);
}

/* Allocates one block for all arrays, so that the thread allocates nothing. */
static enum status allocate(struct token_stream *stream, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    int64_t max_tokens;
    int32_t max_seqs;
    bool small =
        config->micro_batch_size < INT32_MAX && config->seq_length < INT32_MAX && config->token_multiple < INT32_MAX;
    if (small)
        token_stream_limits(config, &max_tokens, &max_seqs);
    if (!small || max_tokens > INT32_MAX)
        return error_set(err, STATUS_USAGE,
                         "a micro-batch of %lld sequences of %lld tokens is too large: it must stay below 2^31 "
                         "tokens; hint: a smaller train_micro_batch_size_per_gpu or data.seq_length",
                         (long long)config->micro_batch_size, (long long)config->seq_length);
    int64_t per_slot = 3 * max_tokens + max_seqs + 1, all = SLOTS * per_slot + config->seq_length + 1;
    stream->memory = malloc((size_t)all * sizeof *stream->memory);
    if (!stream->memory)
        return error_set(err, STATUS_DEVICE,
                         "out of memory: cannot allocate %lld bytes for micro-batches of %lld tokens",
                         (long long)all * 4, (long long)max_tokens);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &stream->slots[i];
        slot->tokens = stream->memory + i * per_slot;
        slot->targets = slot->tokens + max_tokens;
        slot->positions = slot->targets + max_tokens;
        slot->seq_start = slot->positions + max_tokens;
    }
    stream->scratch = stream->memory + SLOTS * per_slot;
    return STATUS_OK;
}

enum status token_stream_open(const struct token_stream_config *config, int64_t first_step,
                              struct token_stream **stream, struct error *err)
{
    ASSERT(config->set && config->seq_length > 0 && config->micro_batch_size > 0 && first_step >= 1);
    ASSERT(config->world > 0 && config->rank >= 0 && config->rank < config->world && config->token_multiple > 0);
    ASSERT(config->vocab_size > 0 && config->vocab_size <= INT32_MAX);
    ASSERT(config->evaluation ? first_step == 1 && config->max_samples >= 0 : config->max_samples == 0);
    enum status status;
    *stream = NULL;
    if (!config->packing && config->seq_length < 2)
        return error_set(err, STATUS_USAGE,
                         "data.seq_length 1 leaves no target if data.packing is false; hint: 2 or more");
    struct token_stream *new = calloc(1, sizeof *new);
    if (!new)
        return error_set(err, STATUS_DEVICE, "out of memory while opening a token stream");
    new->config = *config;
    new->samples = token_set_samples(config->set, config->seq_length, config->packing);
    new->step = first_step;
    TRY_GOTO(check_samples(new, err));
    TRY_GOTO(allocate(new, err));
    if (config->evaluation) {
        if (config->max_samples > 0 && config->max_samples < new->samples)
            new->samples = config->max_samples;
        int64_t batches = (new->samples - 1) / config->micro_batch_size + 1;
        new->micros = (batches - 1) / config->world + 1;
    } else {
        int64_t together = config->micro_batch_size * config->world;
        ASSERT(config->batch_size > 0 && config->batch_size % together == 0);
        new->micros = config->batch_size / together;
        new->steps_per_epoch = token_stream_steps_per_epoch(config);
    }
    pthread_mutex_init(&new->mutex, NULL);
    pthread_cond_init(&new->changed, NULL);
    int rc = thread_start(&new->thread, 0, prefetch, new);
    if (rc != 0) {
        pthread_cond_destroy(&new->changed);
        pthread_mutex_destroy(&new->mutex);
        status = error_set(err, STATUS_DEVICE, "cannot start the thread that reads data: %s", strerror(rc));
        goto fail;
    }
    *stream = new;
    return STATUS_OK;
fail:
    free(new->memory);
    free(new);
    return status;
}

enum status token_stream_next(struct token_stream *stream, struct batch *batch, bool *end, struct error *err)
{
    enum status status = STATUS_OK;
    *end = false;
    pthread_mutex_lock(&stream->mutex);
    if (stream->held) {
        stream->tail++;
        stream->held = false;
        pthread_cond_signal(&stream->changed);
    }
    while (stream->head == stream->tail && !stream->finished)
        pthread_cond_wait(&stream->changed, &stream->mutex);
    if (stream->head != stream->tail) {
        *batch = stream->slots[stream->tail % SLOTS].batch;
        stream->held = true;
    } else if (stream->error.code != STATUS_OK) {
        status = error_set(err, stream->error.code, "%s", stream->error.text);
    } else {
        *end = true;
    }
    pthread_mutex_unlock(&stream->mutex);
    return status;
}

void token_stream_close(struct token_stream *stream)
{
    if (!stream)
        return;
    pthread_mutex_lock(&stream->mutex);
    stream->stop = true;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->mutex);
    free(stream->memory);
    free(stream);
}
