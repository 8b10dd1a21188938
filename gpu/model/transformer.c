/* SPDX-License-Identifier: Apache-2.0 */
/* transformer.c: runs the units in the order of a micro-batch.
 *
 *     training      embedding, block 1 … L (forward), head (forward and backward), block L … 1 (backward), embedding
 *     evaluation    embedding, block 1 … L, head
 *     generation    the same, with a cache of keys and values, and the logits of the last token alone
 *
 * In a micro-batch without tokens no op runs, but units are acquired and gradients handed over in the same order: other
 * ranks wait for these collectives. */
#include "gpu/model/transformer_experts.h"

void transformer_replay(struct transformer *t, bool on)
{
    t->replays = on && t->graphs;
}

static void load_array(const struct transformer *t, void *array, const void *data, size_t bytes, struct stream *stream,
                       char *packed)
{
    if (!packed)
        stream_copy(stream, array, data, bytes);
    else if (data) /* a plan has none */
        memcpy(packed + ((char *)array - t->input_memory), data, bytes);
}

void transformer_load(struct transformer *t, int number, struct batch *batch, struct stream *stream, void *packed)
{
    ASSERT(batch->num_tokens >= 0 && batch->num_tokens <= t->config.batch.max_tokens);
    ASSERT(batch->num_seqs <= t->config.batch.max_seqs && batch->max_seq <= t->config.batch.max_seq);
    ASSERT(number >= 0 && number < t->num_inputs);
    const struct input *input = &t->inputs[number];
    const size_t M = (size_t)batch->num_tokens, bytes = M * sizeof(int32_t);
    if (M > 0) {
        load_array(t, input->tokens, batch->tokens, bytes, stream, packed);
        load_array(t, input->targets, batch->targets, bytes, stream, packed);
        load_array(t, input->positions, batch->positions, bytes, stream, packed);
        load_array(t, input->seq_start, batch->seq_start, ((size_t)batch->num_seqs + 1) * sizeof(int32_t), stream,
                   packed);
        ASSERT(!input->types || batch->types || !batch->tokens); /* a plan has no data */
        if (input->types) load_array(t, input->types, batch->types, bytes, stream, packed);
        const size_t taught = bytes * (size_t)t->config.teacher_tokens;
        if (input->teacher_ids && batch->teacher_ids) {
            load_array(t, input->teacher_ids, batch->teacher_ids, taught, stream, packed);
            load_array(t, input->teacher_logps, batch->teacher_logps, taught, stream, packed);
        }
        if (input->numbers && batch->numbers)
            load_array(t, input->numbers, batch->numbers, M * sizeof *input->numbers, stream, packed);
    }
    batch->numbers = batch->numbers || !batch->tokens ? input->numbers : NULL; /* a plan has no data */
    const bool taught = batch->teacher_ids || !batch->tokens;                  /* the same */
    batch->teacher_ids = taught ? input->teacher_ids : NULL;
    batch->teacher_logps = taught ? input->teacher_logps : NULL;
    batch->tokens = input->tokens;
    batch->types = input->types;
    batch->targets = input->targets;
    batch->positions = input->positions;
    batch->seq_start = input->seq_start;
}

void *transformer_inputs(const struct transformer *t, size_t *bytes)
{
    *bytes = t->input_bytes;
    return t->input_memory;
}

static bool is_loaded(const struct transformer *t, const struct batch *batch)
{
    bool found = false;
    for (int i = 0; i < t->num_inputs && !found; i++) found = batch->tokens == t->inputs[i].tokens;
    return found;
}

static void pass_start(struct pass *pass, const struct batch *batch)
{
    struct transformer *t = pass->transformer;
    pass->M = batch->num_tokens;
    pass->batch = *batch;
    if (!is_loaded(t, batch)) transformer_load(t, 0, &pass->batch, pass->stream, NULL);
    experts_begin_pass(pass);
}

/* The passes go through the units side by side, so that each finds the base of a unit where the one before it left it.
 */
static enum status body_forward(const struct pass *passes, int count, enum param_pass kind)
{
    for (int unit = 0; unit <= passes->transformer->L; unit++) {
        struct span span = phase_begin(passes->stream, passes->training ? PHASE_FORWARD : PHASE_EVALUATION, unit);
        for (int i = 0; i < count; i++)
            TRY(unit > 0 ? block_forward(&passes[i], unit - 1, kind) : embedding_forward(&passes[i], kind));
        span_end(&span);
    }
    return STATUS_OK;
}

static enum status unit_backward(const struct pass *pass, int index)
{
    struct unit unit = {.index = index, .kind = PASS_BACKWARD};
    if (index >= pass->transformer->first_trained)
        return index > 0 ? block_backward(pass, index - 1) : embedding_backward(pass);
    TRY(unit_grads(pass, &unit)); /* backward has ended in a later unit: this one has nothing that is trained */
    return unit_ready(pass, &unit);
}

static enum status body_backward(const struct pass *passes, int count)
{
    for (int unit = (int)passes->transformer->L; unit >= 0; unit--) {
        struct span span = phase_begin(passes->stream, PHASE_BACKWARD, unit);
        for (int i = 0; i < count; i++) TRY(unit_backward(&passes[i], unit));
        span_end(&span);
    }
    return STATUS_OK;
}

static void pass_of_job(struct pass *pass, const struct train_job *job, struct stream *stream, struct error *err)
{
    *pass = (struct pass){.transformer = job->transformer,
                          .verbs = job->verbs,
                          .stream = stream,
                          .err = err,
                          .training = true,
                          .factor = job->factor,
                          .loss_sum = job->loss_sum,
                          .sequences = job->sequences,
                          .host_batch = job->batch,
                          .expert_sums = job->expert_sums};
    ASSERT(job->transformer->config.training);
    pass_start(pass, job->batch);
    ASSERT(!transformer_drops(job->transformer) || pass->batch.numbers || pass->M == 0 ||
           !job->batch->tokens); /* a plan has no data */
}

enum status transformer_train(const struct train_job *jobs, int count, struct stream *stream, struct error *err)
{
    struct pass passes[TRAIN_JOBS];
    ASSERT(count > 0 && count <= TRAIN_JOBS);
    struct span span = phase_begin(stream, PHASE_FORWARD, UNIT_NONE);
    for (int i = 0; i < count; i++) pass_of_job(&passes[i], &jobs[i], stream, err);
    TRY(body_forward(passes, count, PASS_FORWARD));
    for (int i = 0; i < count; i++) experts_end_forward(&passes[i]);
    span_end(&span);
    span = phase_begin(stream, PHASE_HEAD, UNIT_NONE);
    for (int i = 0; i < count; i++) TRY(head_train(&passes[i]));
    span_end(&span);
    span = phase_begin(stream, PHASE_BACKWARD, UNIT_NONE);
    TRY(body_backward(passes, count));
    span_end(&span);
    return STATUS_OK;
}

enum status transformer_evaluate(struct transformer *t, const struct batch *batch, const struct param_verbs *verbs,
                                 struct stream *stream, double *loss_sum, float *logits, const struct row_results *rows,
                                 struct error *err)
{
    struct pass pass = {.transformer = t,
                        .verbs = verbs,
                        .stream = stream,
                        .err = err,
                        .loss_sum = loss_sum,
                        .host_targets = batch->targets,
                        .host_logits = logits,
                        .rows = rows};
    struct span whole = phase_begin(stream, PHASE_EVALUATION, UNIT_NONE);
    pass_start(&pass, batch);
    TRY(body_forward(&pass, 1, PASS_EVALUATION));
    struct span head = phase_begin(stream, PHASE_EVALUATION, (int)t->L + 1);
    TRY(head_evaluate(&pass));
    span_end(&head);
    span_end(&whole);
    return STATUS_OK;
}

enum status transformer_continue(struct transformer *t, const struct batch *batch, const struct kv_cache *cache,
                                 const struct param_verbs *verbs, struct stream *stream, void *logits,
                                 struct error *err)
{
    struct pass pass = {.transformer = t, .verbs = verbs, .stream = stream, .err = err, .cache = cache};
    struct span span = phase_begin(pass.stream, PHASE_GENERATION, UNIT_NONE);
    pass_start(&pass, batch);
    TRY(body_forward(&pass, 1, PASS_EVALUATION));
    TRY(head_next(&pass, logits));
    span_end(&span);
    return STATUS_OK;
}
