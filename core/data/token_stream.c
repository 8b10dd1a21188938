/* SPDX-License-Identifier: Apache-2.0 */
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
#include "core/data/sample_reader.h"

#define SLOTS 4

struct slot {
    struct batch batch;
    int32_t *tokens, *targets, *positions; /* (max_tokens) */
    int32_t *types;                        /* (max_tokens) classification, else NULL */
    int32_t *seq_start;                    /* (max_seqs + 1) */
    uint8_t *completion;                   /* (max_tokens) preferences, else NULL, as the next two */
    double *references;                    /* (max_seqs) */
    int32_t *labels;                       /* (max_seqs) */
    int32_t *teacher_ids;                  /* (max_tokens, K) owned, as the next; NULL: there is no teacher */
    float *teacher_logps;
    uint64_t *numbers;                        /* (max_tokens) */
    uint64_t first_number;                    /* of the sequence that is added */
    bool all;                                 /* targets are those that the mask leaves out, too */
    int64_t samples[INTERLEAVE_SOURCES];      /* of a mixture: source_samples of struct batch */
    int64_t step_targets[INTERLEAVE_SOURCES]; /* the same: source_targets */
};

/* What a mixture adds to a stream; used by the thread only. */
struct mixing {
    struct interleave_cursor begin, next; /* the first sample of stream->step; the next sample to take */
    int64_t samples[INTERLEAVE_SOURCES];  /* of stream->step: source_samples of struct batch */
    int64_t targets[INTERLEAVE_SOURCES];  /* the same: source_targets */
};

struct token_stream {
    struct token_stream_config config;
    struct mixing *mixing; /* owned; NULL: no mixture */
    int64_t samples;       /* of an epoch, or of the pass */
    int64_t steps_per_epoch;
    int64_t micros;      /* of a step, or of the pass, for each rank */
    int32_t *memory;     /* owned: the slots' arrays and the reader's tokens and ends */
    uint64_t *numbers;   /* owned: the slots' */
    uint8_t *completion; /* owned: the slots', as the next two */
    double *references;
    int32_t *labels;
    struct sample_reader reader; /* used by the thread only; its mask is owned */
    struct slot slots[SLOTS];

    int64_t step, micro;               /* used by the thread only: the micro-batch that it fills next */
    int64_t step_chosen_tokens;        /* the same as the next */
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

struct batch_limits token_stream_limits(const struct token_stream_config *config)
{
    const int64_t count =
        config->micro_batch_size * (config->preference ? preference_sequences(config->preference) : 1);
    const int64_t length = config->data.seq_length, multiple = config->token_multiple;
    const bool cuts = token_stream_cuts(config), masked = token_stream_masks(config);
    struct batch_limits limits = {.max_seq = (int32_t)length, .ragged = !cuts || masked};
    ASSERT(count > 0 && count < INT32_MAX && length > 0);
    if (masked && !config->classification && !config->preference) { /* a sequence has two tokens at least */
        const int64_t tokens = cuts ? length + 1 : length;
        limits.max_tokens = round_up(count * (config->last_tokens ? length : tokens - 1), multiple);
        limits.max_seqs = (int32_t)(count * (config->last_tokens ? tokens : tokens / 2) + (multiple > 1));
    } else if (cuts) {
        limits.max_tokens = count * length;
        limits.max_seqs = (int32_t)count;
    } else {
        /* `count` sequences of at most T tokens; a filler follows if the inputs may be no multiple of `multiple` */
        const bool whole = config->classification || config->last_tokens;
        const int64_t inputs = whole ? length : length - 1;
        const bool filler = multiple > 1 && (whole || length > 2 || count % multiple != 0);
        ASSERT(multiple > 0 && multiple <= length);
        limits.max_tokens = round_up(count * inputs, multiple);
        limits.max_seqs = (int32_t)count + filler;
    }
    return limits;
}

int64_t token_source_samples(const struct token_stream_config *config, const struct token_source *source)
{
    const int64_t tokens = token_set_tokens(source->set);
    const bool cuts = token_stream_cuts(config);
    if (source->fit) return source->fit->samples;
    if (cuts && token_stream_masks(config) && config->evaluation) /* the last sample may be shorter */
        return tokens < 2 ? 0 : (tokens - 2) / config->data.seq_length + 1;
    return token_set_samples(source->set, config->data.seq_length, cuts);
}

int64_t token_stream_samples(const struct token_stream_config *config)
{
    return config->mixture ? config->mixture->epoch_samples : token_source_samples(config, &config->source);
}

enum status token_stream_check(const struct token_stream_config *config, struct error *err)
{
    const int64_t samples = token_stream_samples(config);
    if (samples >= (config->evaluation ? 1 : config->batch_size)) return STATUS_OK;
    if (config->preference)
        return error_set(
            err, STATUS_DATA,
            "data.%s holds %lld samples whose documents have 2 to data.seq_length %lld tokens, fewer than %s"
            "; hint: set a larger data.seq_length, or a smaller train_batch_size",
            config->evaluation ? "validation" : "train", (long long)samples, (long long)config->data.seq_length,
            config->evaluation ? "one" : "one train_batch_size");
    if (config->evaluation)
        return error_set(err, STATUS_DATA,
                         "data.validation holds no whole sample of %lld tokens; hint: add validation data, or set a "
                         "shorter data.seq_length",
                         (long long)config->data.seq_length);
    return error_set(err, STATUS_DATA,
                     "data.train holds %lld samples%s, fewer than one train_batch_size of %lld; hint: add data, or set "
                     "a smaller train_batch_size or a shorter data.seq_length",
                     (long long)samples, config->mixture ? " an epoch" : "", (long long)config->batch_size);
}

int64_t token_stream_steps_per_epoch(const struct token_stream_config *config)
{
    ASSERT(config->batch_size > 0);
    return token_stream_samples(config) / config->batch_size;
}

static int64_t sample_at(const struct token_stream_config *config, int64_t samples, int64_t place, int64_t epoch)
{
    if (!config->data.shuffle) return place;
    return (int64_t)permute_index((uint64_t)place, (uint64_t)samples, config->seed, (uint64_t)epoch);
}

void token_stream_step_samples(const struct token_stream_config *config, int64_t step, int64_t *samples, int *sources)
{
    if (config->mixture) {
        struct interleave_cursor at;
        interleave_begin(&at, &config->mixture->order);
        interleave_seek(&at, (step - 1) * config->batch_size);
        for (int64_t i = 0; i < config->batch_size; i++) sources[i] = mixture_next(config->mixture, &at, &samples[i]);
        return;
    }
    const int64_t steps = token_stream_steps_per_epoch(config), all = token_stream_samples(config);
    const int64_t epoch = 1 + (step - 1) / steps, first = (step - 1) % steps * config->batch_size;
    for (int64_t i = 0; i < config->batch_size; i++) {
        samples[i] = sample_at(config, all, first + i, epoch);
        sources[i] = 0;
    }
}

/* ---- filling a batch (the thread) ---------------------------------------- */

static void token_stream_sequence_end(struct slot *slot, int64_t length)
{
    struct batch *batch = &slot->batch;
    batch->num_tokens += length;
    batch->num_seqs++;
    batch->max_seq = length > batch->max_seq ? (int32_t)length : batch->max_seq;
    slot->seq_start[batch->num_seqs] = (int32_t)batch->num_tokens;
}

/* Adds a sequence of `length` inputs, NULL: filler. Target i of `targets` counts if mask[i + 1] (NULL: all). */
static void add_sequence(struct slot *slot, const int32_t *tokens, const uint8_t *mask, int64_t length, int64_t targets)
{
    struct batch *batch = &slot->batch;
    int64_t start = batch->num_tokens;
    for (int64_t i = 0; i < length; i++) {
        const bool completes = i < targets && (!mask || mask[i + 1]), counts = completes || (i < targets && slot->all);
        if (slot->completion) slot->completion[start + i] = completes;
        slot->tokens[start + i] = tokens ? tokens[i] : 0;
        slot->targets[start + i] = counts ? tokens[i + 1] : -1;
        slot->positions[start + i] = (int32_t)i;
        slot->numbers[start + i] = slot->first_number + (uint64_t)i;
        batch->num_targets += counts;
    }
    slot->first_number += (uint64_t)length;
    token_stream_sequence_end(slot, length);
}

/* The token that has the label, among the reader's `length`. transformers' classifiers look for the last token
 * that is not padding in the same way, and take the first one if all are. */
static int64_t labelled_token(const struct token_stream *stream, int64_t length)
{
    int64_t last = stream->config.label_first ? 0 : length - 1;
    while (last > 0 && stream->reader.tokens[last] == stream->config.padding_token) last--;
    return last;
}

static void add_document(const struct token_stream *stream, struct slot *slot, int64_t number, int64_t length)
{
    struct batch *batch = &slot->batch;
    const struct label_set *labels = stream->reader.source->labels;
    ASSERT(number >= 0 && number < labels->documents);
    int64_t start = batch->num_tokens, first_text = labels->first_text[number];
    for (int64_t i = 0; i < length; i++) {
        slot->tokens[start + i] = stream->reader.tokens[i];
        slot->targets[start + i] = -1;
        slot->positions[start + i] = (int32_t)i;
        slot->numbers[start + i] = slot->first_number + (uint64_t)i;
        slot->types[start + i] = i >= first_text;
        if (slot->completion) slot->completion[start + i] = 0;
    }
    const int64_t labelled = start + labelled_token(stream, length);
    slot->targets[labelled] = slot->completion ? 0 : labels->labels[number];
    if (slot->completion) slot->completion[labelled] = 1; /* of a pair: the reward is the logit of the one label */
    slot->first_number += (uint64_t)length;
    batch->num_targets++;
    token_stream_sequence_end(slot, length);
}

static enum status take_document(const struct token_stream *stream, struct slot *slot, int64_t n, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    int64_t first, length;
    TRY(token_set_document(stream->reader.source->set, n, &first, &length, err));
    if (length < 1 || length > config->data.seq_length)
        return error_set(err, STATUS_DATA,
                         "document %lld has %lld tokens, expected 1 to data.seq_length %lld; hint: "
                         "ztrain-tokenize --max-length %lld cuts texts and keeps their special tokens",
                         (long long)n, (long long)length, (long long)config->data.seq_length,
                         (long long)config->data.seq_length);
    TRY(token_set_read(stream->reader.source->set, first, length, config->vocab_size, stream->reader.tokens, NULL,
                       err));
    add_document(stream, slot, n, length);
    return STATUS_OK;
}

/* A sample of a classifier, or a pair of a reward model's. */
static enum status take_labelled(const struct token_stream *stream, struct slot *slot, int64_t sample,
                                 struct error *err)
{
    const struct first_fit *fit = stream->reader.source->fit;
    for (int d = 0; d < (fit ? 2 : 1); d++)
        TRY(take_document(stream, slot, fit ? fit->documents[fit->starts[sample] + d] : sample, err));
    return STATUS_OK;
}

/* The number of the sample at a place of the epoch in the reader's source; a mixture's come one after the other. */
static int64_t training_sample(struct token_stream *stream, int64_t ordinal, int64_t epoch)
{
    const struct token_stream_config *config = &stream->config;
    if (stream->mixing) {
        int64_t sample;
        stream->reader.source =
            &config->mixture->sources[mixture_next(config->mixture, &stream->mixing->next, &sample)];
        return sample;
    }
    return sample_at(config, stream->samples, ordinal, epoch);
}

/* The next sample of a mixture is the one at `place` of stream->step. */
static void mix_from(struct token_stream *stream, int64_t place)
{
    struct mixing *mixing = stream->mixing;
    const int64_t first = (stream->step - 1) * stream->config.batch_size;
    if (mixing->next.place == first + place) /* after the micro-batch before this one */
        return;
    interleave_seek(&mixing->begin, first);
    mixing->next = mixing->begin;
    interleave_seek(&mixing->next, first + place);
}

/* What the two sequences of sample `number` are compared with. */
static enum status add_preference(const struct token_stream *stream, struct slot *slot, int64_t number,
                                  struct error *err)
{
    const struct token_source *source = stream->reader.source;
    const bool mismatched = stream->config.preference->loss == PREFERENCE_KTO;
    const uint32_t *documents = source->fit->documents + source->fit->starts[number];
    const int32_t *ends = stream->reader.ends;
    for (int s = 0; s < stream->reader.num_ends; s++) {
        const int begin = s ? ends[s - 1] : 0;
        if (memchr(stream->reader.mask + begin + 1, 1, (size_t)(ends[s] - begin - 1))) continue;
        return error_set(err, STATUS_DATA, "document %u has no %s", documents[mismatched ? 0 : s],
                         stream->reader.mask[begin] || (s && mismatched)
                             ? "prompt: its loss mask is 1 from the first token on"
                             : "completion: its loss mask is 0 everywhere");
    }
    for (int s = 0; s < 2; s++) {
        const int at = slot->batch.num_seqs + s;
        const uint32_t document = documents[mismatched ? 0 : s];
        slot->labels[at] = source->labels->labels[document];
        if (source->references)
            slot->references[at] = s && mismatched ? source->kl_references[document] : source->references[document];
    }
    return STATUS_OK;
}

/* Rows of the sequence that is added next: `length` from the reader's row `first` on. */
static enum status add_teacher(const struct token_stream *stream, struct slot *slot, int64_t first, int64_t length,
                               struct error *err)
{
    const struct teacher_file *teacher = stream->reader.source->teacher;
    const struct sample_reader *reader = &stream->reader;
    const int64_t start = slot->batch.num_tokens, K = teacher->header.K;
    for (int64_t i = 0; i + 1 < length; i++) {
        const int32_t *ids = reader->teacher_ids + (first + i) * K;
        const float *logps = reader->teacher_logps + (first + i) * K;
        bool good = ids[0] >= 0 && ids[K - 1] < stream->config.vocab_size && isfinite(logps[0]);
        for (int64_t k = 1; k < K; k++) good &= ids[k] > ids[k - 1] && isfinite(logps[k]);
        if (good || (reader->mask && !reader->mask[first + i + 1])) continue;
        return error_set(
            err, STATUS_DATA, "'%s' does not have what the teacher expects after a token; hint: %s", teacher->path,
            ids[0] < 0 ? "was it finished, and the document not left out?" : "ztrain score makes it again");
    }
    memcpy(slot->teacher_ids + start * K, reader->teacher_ids + first * K, (size_t)(length * K) * sizeof(int32_t));
    memcpy(slot->teacher_logps + start * K, reader->teacher_logps + first * K, (size_t)(length * K) * sizeof(float));
    return STATUS_OK;
}

static enum status add_sample(const struct token_stream *stream, struct slot *slot, struct error *err)
{
    const int64_t most = token_stream_cuts(&stream->config) ? stream->config.data.seq_length : INT64_MAX;
    for (int s = 0, begin = 0; s < stream->reader.num_ends; begin = stream->reader.ends[s++]) {
        const int64_t targets = stream->reader.ends[s] - begin - 1;
        const int64_t inputs = stream->config.last_tokens ? min64(targets + 1, most - begin) : targets;
        if (inputs <= 0) continue;
        if (slot->teacher_ids) TRY(add_teacher(stream, slot, begin, targets + 1, err));
        add_sequence(slot, stream->reader.tokens + begin, stream->reader.mask ? stream->reader.mask + begin : NULL,
                     inputs, targets);
    }
    return STATUS_OK;
}

static enum status sum_sample(struct token_stream *stream, int64_t sample, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    int64_t length = config->data.seq_length + 1, targets = config->data.seq_length;
    if (!token_stream_cuts(config) || stream->reader.mask || token_stream_masks(config)) {
        TRY(sample_read(&stream->reader, sample, false, &length, err));
        targets = config->classification || config->preference ? 1 : sample_targets(&stream->reader);
    }
    stream->step_tokens += token_stream_cuts(config) ? length - 1 : length;
    for (int i = 1; config->preference && stream->reader.mask && i < stream->reader.ends[0]; i++)
        stream->step_chosen_tokens += stream->slots->all || stream->reader.mask[i];
    stream->step_targets += targets;
    if (stream->mixing) stream->mixing->targets[stream->reader.source - config->mixture->sources] += targets;
    return STATUS_OK;
}

/* Computes the sums over the global batch of stream->step from the index and the mask, without reading tokens. */
static enum status sum_step(struct token_stream *stream, int64_t first_ordinal, int64_t epoch, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    struct mixing *mixing = stream->mixing;
    stream->step_targets = stream->step_tokens = config->batch_size * config->data.seq_length;
    if (token_stream_cuts(config) && !stream->reader.mask && !token_stream_masks(config) && !mixing) return STATUS_OK;
    stream->step_targets = stream->step_tokens = stream->step_chosen_tokens = 0;
    if (mixing) {
        memset(mixing->targets, 0, sizeof mixing->targets);
        mix_from(stream, 0);
    }
    for (int64_t i = 0; i < config->batch_size && !stream->stop; i++)
        TRY(sum_sample(stream, training_sample(stream, first_ordinal + i, epoch), err));
    if (mixing) memcpy(mixing->samples, mixing->next.taken, sizeof mixing->samples);
    return STATUS_OK;
}

static void copy_counts(const struct token_stream *stream, struct slot *slot)
{
    const struct mixing *mixing = stream->mixing;
    const size_t bytes = (size_t)stream->config.mixture->order.count * sizeof *slot->samples;
    memcpy(slot->samples, mixing->samples, bytes);
    memcpy(slot->step_targets, mixing->targets, bytes);
    slot->batch.source_samples = slot->samples;
    slot->batch.source_targets = slot->step_targets;
}

static int stream_turns(const struct token_stream_config *config)
{
    return config->turns ? config->turns : 1;
}

static int stream_virtual_world(const struct token_stream_config *config)
{
    return config->world * stream_turns(config);
}

/* The place of the micro-batch's first sample in the step or, of an evaluation, in the pass. */
static int64_t stream_place(const struct token_stream *stream)
{
    const struct token_stream_config *config = &stream->config;
    const int64_t count = config->micro_batch_size, virtual_world = stream_virtual_world(config);
    const int64_t own = stream->micro / stream_turns(config); /* of the virtual rank */
    const int64_t virtual_rank = stream->micro % stream_turns(config) * config->world + config->rank;
    if (config->evaluation || config->preference)
        return config->first_sample + (own * virtual_world + virtual_rank) * count;
    return config->batch_size / virtual_world * virtual_rank + own * count;
}

static void add_filler(struct slot *slot, int64_t multiple)
{
    struct batch *batch = &slot->batch;
    const int64_t filler = round_up(batch->num_tokens, multiple) - batch->num_tokens;
    if (filler > 0 && slot->types) memset(slot->types + batch->num_tokens, 0, (size_t)filler * sizeof *slot->types);
    if (filler > 0) add_sequence(slot, NULL, NULL, filler, 0);
    batch->num_filler = filler;
}

static enum status fill(struct token_stream *stream, struct slot *slot, struct error *err)
{
    const struct token_stream_config *config = &stream->config;
    struct batch *batch = &slot->batch;
    int64_t first_ordinal, count = config->micro_batch_size, number = 0; /* number: over all steps and ranks */
    *batch = (struct batch){.step = stream->step,
                            .epoch = 1,
                            .micro = stream->micro,
                            .last_micro = stream->micro == stream->micros - 1,
                            .tokens = slot->tokens,
                            .targets = slot->targets,
                            .positions = slot->positions,
                            .numbers = slot->numbers,
                            .types = slot->types,
                            .seq_start = slot->seq_start,
                            .completion = slot->completion,
                            .references = slot->references,
                            .labels = slot->labels,
                            .teacher_tokens = config->source.teacher ? config->source.teacher->header.K : 0,
                            .teacher_ids = slot->teacher_ids,
                            .teacher_logps = slot->teacher_logps};
    slot->seq_start[0] = 0;

    if (config->evaluation) {
        first_ordinal = stream_place(stream);
        int64_t left = stream->samples - first_ordinal;
        count = left < 0 ? 0 : left < count ? left : count;
    } else {
        batch->epoch += (stream->step - 1) / stream->steps_per_epoch;
        int64_t batch_start = (stream->step - 1) % stream->steps_per_epoch * config->batch_size;
        if (stream->micro == 0) TRY(sum_step(stream, batch_start, batch->epoch, err));
        batch->step_targets = stream->step_targets;
        batch->step_tokens = stream->step_tokens;
        batch->step_chosen_tokens = stream->step_chosen_tokens;
        const int64_t place = stream_place(stream);
        first_ordinal = batch_start + place;
        number = (stream->step - 1) * config->batch_size + place;
        if (stream->mixing) mix_from(stream, place);
        if (stream->mixing) copy_counts(stream, slot);
    }

    for (int64_t i = 0; i < count && !stream->stop; i++) {
        int64_t sample = first_ordinal + i, length;
        slot->first_number = (uint64_t)(number + i) * (uint64_t)(sample_reader_room(config) - 1);
        if (!config->evaluation) sample = training_sample(stream, sample, batch->epoch);
        if (config->classification) {
            TRY(take_labelled(stream, slot, sample, err));
            continue;
        }
        TRY(sample_read(&stream->reader, sample, true, &length, err));
        if (config->preference) TRY(add_preference(stream, slot, sample, err));
        TRY(add_sample(stream, slot, err));
    }
    if (config->preference) batch->num_targets = batch->num_seqs / 2;
    if (!token_stream_cuts(config) || token_stream_masks(config)) add_filler(slot, config->token_multiple);
    return STATUS_OK;
}

static void *token_stream_prefetch(void *argument)
{
    struct token_stream *stream = argument;
    LOCKED(&stream->mutex);
    for (;;) {
        while (!stream->stop && stream->head - stream->tail == SLOTS)
            pthread_cond_wait(&stream->changed, &stream->mutex);
        if (stream->stop) break;
        uint64_t head = stream->head;
        pthread_mutex_unlock(&stream->mutex);

        struct error error = {.code = STATUS_OK};
        bool end = stream->micro == stream->micros; /* only an evaluation's pass ends */
        if (!end && fill(stream, &stream->slots[head % SLOTS], &error) == STATUS_OK &&
            ++stream->micro == stream->micros && !stream->config.evaluation) {
            stream->micro = 0;
            stream->step++;
        }
        heartbeat_beat();

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
    return NULL;
}

/* ---- the caller's side --------------------------------------------------- */

/* Whether any source has a loss mask; with classification a label always counts. */
static bool has_mask(const struct token_stream_config *config)
{
    const struct mixture *mixture = config->mixture;
    bool has = !mixture && token_set_has_mask(config->source.set);
    for (int s = 0; mixture && s < mixture->order.count; s++) has |= token_set_has_mask(mixture->sources[s].set);
    return has && !config->classification;
}

/* Allocates one block for all arrays, so that the thread allocates nothing. */
static enum status allocate(struct token_stream *stream, struct error *err)
{
    const struct token_stream_config *c = &stream->config;
    struct batch_limits most;
    bool small = c->micro_batch_size < INT32_MAX && c->data.seq_length < INT32_MAX && c->token_multiple < INT32_MAX;
    if (small) most = token_stream_limits(c);
    if (!small || most.max_tokens > INT32_MAX)
        return error_set(err, STATUS_USAGE,
                         "a micro-batch of %lld sequences of %lld tokens is too large: it must stay below 2^31 "
                         "tokens; hint: a smaller train_micro_batch_size_per_gpu or data.seq_length",
                         (long long)c->micro_batch_size, (long long)c->data.seq_length);
    int64_t per_slot = (c->classification ? 4 : 3) * most.max_tokens + most.max_seqs + 1,
            all = SLOTS * per_slot + 2 * sample_reader_room(c);
    stream->memory = memory_alloc((size_t)all * sizeof *stream->memory);
    stream->numbers = memory_alloc((size_t)(SLOTS * most.max_tokens) * sizeof *stream->numbers);
    if (has_mask(c)) stream->reader.mask = memory_alloc((size_t)sample_reader_room(c));
    if (c->preference) {
        const size_t seqs = SLOTS * (size_t)most.max_seqs;
        stream->completion = memory_alloc((size_t)(SLOTS * most.max_tokens));
        if (c->mixture ? c->mixture->sources[0].references : c->source.references)
            stream->references = memory_zeroed(seqs, sizeof *stream->references);
        stream->labels = memory_zeroed(seqs, sizeof *stream->labels);
    }
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &stream->slots[i];
        slot->tokens = stream->memory + i * per_slot;
        slot->numbers = stream->numbers + i * most.max_tokens;
        slot->targets = slot->tokens + most.max_tokens;
        slot->positions = slot->targets + most.max_tokens;
        slot->types = c->classification ? slot->positions + most.max_tokens : NULL;
        slot->seq_start = slot->positions + (c->classification ? 2 : 1) * most.max_tokens;
        if (c->source.teacher) {
            const size_t rows = (size_t)(most.max_tokens + 1) * (size_t)c->source.teacher->header.K;
            slot->teacher_ids = memory_alloc(rows * sizeof *slot->teacher_ids);
            slot->teacher_logps = memory_alloc(rows * sizeof *slot->teacher_logps);
        }
        slot->all = c->preference && c->preference->loss == PREFERENCE_ORPO;
        if (c->preference) slot->completion = stream->completion + i * most.max_tokens;
        if (stream->references) slot->references = stream->references + (int64_t)i * most.max_seqs;
        if (c->preference) slot->labels = stream->labels + (int64_t)i * most.max_seqs;
    }
    stream->reader.tokens = stream->memory + SLOTS * per_slot;
    stream->reader.ends = stream->reader.tokens + sample_reader_room(c);
    if (c->source.teacher) {
        const size_t rows = (size_t)sample_reader_room(c) * (size_t)c->source.teacher->header.K;
        stream->reader.teacher_ids = memory_alloc(rows * sizeof(int32_t));
        stream->reader.teacher_logps = memory_alloc(rows * sizeof(float));
    }
    return STATUS_OK;
}

static void stream_free(struct token_stream *stream)
{
    if (!stream) return;
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->mutex);
    free(stream->memory);
    free(stream->numbers);
    free(stream->completion);
    free(stream->references);
    free(stream->labels);
    for (int i = 0; i < SLOTS; i++) {
        free(stream->slots[i].teacher_ids);
        free(stream->slots[i].teacher_logps);
    }
    free(stream->reader.teacher_ids);
    free(stream->reader.teacher_logps);
    free(stream->reader.mask);
    free(stream->mixing);
    free(stream);
}
RELEASER(stream_drop, struct token_stream, stream_free)

enum status token_stream_open(const struct token_stream_config *config, int64_t first_step,
                              struct token_stream **stream, struct error *err)
{
    ASSERT(!config->source.fit || !token_stream_cuts(config));
    ASSERT(config->mixture ? !config->source.set && !config->evaluation : config->source.set != NULL);
    ASSERT(config->data.seq_length > 0 && config->micro_batch_size > 0 && first_step >= 1);
    ASSERT(config->turns >= 0 && config->world > 0 && config->rank >= 0 && config->rank < config->world &&
           config->token_multiple > 0);
    ASSERT(config->vocab_size > 0 && config->vocab_size <= INT32_MAX);
    ASSERT(!config->classification || ((config->source.labels || config->mixture) && !token_stream_cuts(config)));
    ASSERT(!config->preference || (config->mixture ? config->mixture->sources->fit : config->source.fit));
    ASSERT(config->evaluation ? first_step == 1 && config->max_samples >= 0 : config->max_samples == 0);
    ASSERT(config->first_sample >= 0 && (config->evaluation || config->first_sample == 0));
    *stream = NULL;
    if (!token_stream_cuts(config) && config->data.seq_length < 2)
        return error_set(err, STATUS_USAGE,
                         "data.seq_length 1 leaves no target if data.packing is false; hint: 2 or more");
    RELEASED(stream_drop) struct token_stream *new = memory_zeroed(1, sizeof *new);
    pthread_mutex_init(&new->mutex, NULL);
    pthread_cond_init(&new->changed, NULL);
    new->config = *config;
    new->reader.config = &new->config;
    new->reader.source = &new->config.source;
    new->samples = token_stream_samples(config);
    new->step = first_step;
    const int64_t together = config->micro_batch_size * stream_virtual_world(config); /* micro-batches of one round */
    TRY(token_stream_check(config, err));
    TRY(allocate(new, err));
    if (config->mixture) {
        new->mixing = memory_zeroed(1, sizeof *new->mixing);
        interleave_begin(&new->mixing->begin, &config->mixture->order);
        new->mixing->next = new->mixing->begin;
    }
    if (config->evaluation) {
        if (config->max_samples > 0 && config->max_samples < new->samples) new->samples = config->max_samples;
        const int64_t left = new->samples > config->first_sample ? new->samples - config->first_sample : 0;
        new->micros = round_up(left, together) / together *stream_turns(config);
    } else {
        ASSERT(config->batch_size > 0 && config->batch_size % together == 0);
        new->micros = config->batch_size / together *stream_turns(config);
        new->steps_per_epoch = token_stream_steps_per_epoch(config);
    }
    int rc = thread_start(&new->thread, 0, token_stream_prefetch, new);
    if (rc != 0) return error_set(err, STATUS_DEVICE, "cannot start the thread that reads data: %s", strerror(rc));
    *stream = TAKEN(new);
    return STATUS_OK;
}

enum status token_stream_next(struct token_stream *stream, struct batch *batch, bool *end, struct error *err)
{
    enum status status = STATUS_OK;
    *end = false;
    LOCKED(&stream->mutex);
    if (stream->held) {
        stream->tail++;
        stream->held = false;
        pthread_cond_signal(&stream->changed);
    }
    while (stream->head == stream->tail && !stream->finished) pthread_cond_wait(&stream->changed, &stream->mutex);
    if (stream->head != stream->tail) {
        *batch = stream->slots[stream->tail % SLOTS].batch;
        stream->held = true;
    } else if (stream->error.code != STATUS_OK) {
        status = error_set(err, stream->error.code, "%s", stream->error.text);
    } else {
        *end = true;
    }
    return status;
}

void token_stream_close(struct token_stream *stream)
{
    if (!stream) return;
    pthread_mutex_lock(&stream->mutex);
    stream->stop = true;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
    stream_free(stream);
}

/* ---- copies -------------------------------------------------------------- */

static const void *copy_array(char **place, const void *array, size_t bytes)
{
    char *copy = *place;
    if (!array) return NULL;
    memcpy(copy, array, bytes);
    *place += bytes;
    return copy;
}

struct batch *batch_copy(const struct batch *batch)
{
    const size_t tokens = (size_t)batch->num_tokens, starts = (size_t)batch->num_seqs + 1;
    const size_t taught = batch->teacher_ids ? tokens * (size_t)batch->teacher_tokens : 0;
    const size_t bytes = tokens * (sizeof(uint64_t) + 4 * sizeof(int32_t) + 1) +
                         starts * (sizeof(double) + 2 * sizeof(int32_t)) + taught * (sizeof(int32_t) + sizeof(float));
    struct batch *copy = memory_alloc(sizeof *copy + bytes);
    char *place = (char *)(copy + 1);
    *copy = *batch;
    copy->numbers = copy_array(&place, batch->numbers, tokens * sizeof *batch->numbers); /* first: their alignment */
    copy->references = copy_array(&place, batch->references, (starts - 1) * sizeof *batch->references);
    copy->tokens = copy_array(&place, batch->tokens, tokens * sizeof *batch->tokens);
    copy->targets = copy_array(&place, batch->targets, tokens * sizeof *batch->targets);
    copy->positions = copy_array(&place, batch->positions, tokens * sizeof *batch->positions);
    copy->types = copy_array(&place, batch->types, tokens * sizeof *batch->types);
    copy->seq_start = copy_array(&place, batch->seq_start, starts * sizeof *batch->seq_start);
    copy->labels = copy_array(&place, batch->labels, (starts - 1) * sizeof *batch->labels);
    copy->teacher_ids = copy_array(&place, batch->teacher_ids, taught * sizeof *batch->teacher_ids);
    copy->teacher_logps = copy_array(&place, batch->teacher_logps, taught * sizeof *batch->teacher_logps);
    copy->completion = copy_array(&place, batch->completion, tokens);
    copy->source_samples = copy->source_targets = NULL;
    return copy;
}
