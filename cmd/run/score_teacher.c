/* SPDX-License-Identifier: Apache-2.0 */
/* score_teacher.c: the K most probable next tokens after each token that a target follows. */
#include "cmd/run/score_data.h"
#include "comm/agree.h"

struct teacher_visit {
    struct score_visit visit; /* first */
    struct engine *engine;
    const struct score_job *job;
    const struct teacher_file *file;
    float *logits; /* row_results.logits */
};

struct expected {
    float z;
    int32_t id;
};

static int by_id(const void *a, const void *b)
{
    const int32_t x = ((const struct expected *)a)->id, y = ((const struct expected *)b)->id;
    return (x > y) - (x < y);
}

/* Whether a comes after b: less probable, or the larger one of equally probable ids. */
static bool is_worse(struct expected a, struct expected b)
{
    return a.z < b.z || (a.z == b.z && a.id > b.id);
}

/* The heap's root is the worst of the best. */
static void sift_down(struct expected *heap, int64_t count)
{
    for (int64_t at = 0, child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_worse(heap[child + 1], heap[child])) child++;
        if (!is_worse(heap[child], heap[at])) break;
        const struct expected kept = heap[at];
        heap[at] = heap[child];
        heap[child] = kept;
    }
}

/* The K best of V logits, by id, and their log-probabilities. */
static void best_of_row(const struct model_desc *desc, const float *logits, int64_t V, int64_t K, struct expected *best,
                        int32_t *ids, float *logps)
{
    double total = 0, highest = -INFINITY;
    const float scale = (float)desc->logit_multiplier, cap = (float)desc->logit_softcap;
    for (int64_t k = 0; k < K; k++) best[k] = (struct expected){-INFINITY, INT32_MAX};
    for (int64_t j = 0; j < V; j++) {
        const float x = logits[j] * scale, z = cap > 0 ? cap * tanhf(x / cap) : x;
        const struct expected one = {z, (int32_t)j};
        if ((double)z > highest) {
            total *= exp(highest - (double)z);
            highest = (double)z;
        }
        total += exp((double)z - highest);
        if (is_worse(one, best[0])) continue;
        best[0] = one;
        sift_down(best, K);
    }
    qsort(best, (size_t)K, sizeof *best, by_id);
    for (int64_t k = 0; k < K; k++) {
        ids[k] = best[k].id;
        logps[k] = (float)((double)best[k].z - highest - log(total));
    }
}

/* The first token of the document of a sequence, in the set. */
static enum status first_token(const struct teacher_visit *v, int sequence, int64_t *first, struct error *err)
{
    const struct token_source *source = &v->job->config.source;
    const uint32_t document = source->fit->documents[source->fit->starts[v->visit.sample + sequence]];
    int64_t length;
    return token_set_document(source->set, document, first, &length, err);
}

static enum status take_logits(void *context, int64_t first, int64_t rows, struct error *err)
{
    const struct teacher_visit *v = context;
    const struct batch *batch = &v->visit.batch;
    const struct engine *t = v->engine;
    const int64_t K = v->file->header.K, V = t->desc.vocab_size, ld = transformer_ld_logits(t->transformer);
    OWNED struct expected *best = memory_alloc((size_t)(rows * K) * sizeof *best);
    OWNED int32_t *ids = memory_alloc((size_t)(rows * K) * sizeof *ids);
    OWNED float *logps = memory_alloc((size_t)(rows * K) * sizeof *logps);
#pragma omp parallel for schedule(dynamic)
    for (int64_t r = 0; r < rows; r++)
        if (batch->targets[first + r] >= 0)
            best_of_row(&t->desc, v->logits + r * ld, V, K, best + r * K, ids + r * K, logps + r * K);
    int sequence = -1;
    int64_t begins = 0;
    for (int64_t r = 0; r < rows; r++) {
        while (sequence < 0 || first + r >= batch->seq_start[sequence + 1]) {
            sequence++;
            if (sequence < batch->num_seqs - (batch->num_filler > 0)) TRY(first_token(v, sequence, &begins, err));
        }
        if (batch->targets[first + r] >= 0)
            TRY(teacher_file_write(v->file, begins + first + r - batch->seq_start[sequence], ids + r * K, logps + r * K,
                                   err));
    }
    return STATUS_OK;
}

/* Whether a document's rows are there: those of all targets. */
static enum status is_done(const struct token_source *source, const struct teacher_file *file, uint32_t document,
                           bool *done, struct error *err)
{
    int64_t first, length;
    TRY(token_set_document(source->set, document, &first, &length, err));
    const size_t room = (size_t)length * (size_t)file->header.K;
    OWNED int32_t *ids = memory_alloc(room * sizeof *ids);
    OWNED float *logps = memory_alloc(room * sizeof *logps);
    OWNED uint8_t *mask = memory_alloc((size_t)length);
    memset(mask, 1, (size_t)length);
    TRY(teacher_file_read(file, first, length, ids, logps, err));
    if (token_set_has_mask(source->set)) TRY(token_set_read(source->set, first, length, INT32_MAX, NULL, mask, err));
    *done = true;
    for (int64_t row = 0; row + 1 < length; row++) *done &= !mask[row + 1] || ids[row * file->header.K] >= 0;
    return STATUS_OK;
}

/* The first samples that have their rows. */
static enum status count_done(const struct score_job *job, const struct teacher_file *file, int64_t *done,
                              struct error *err)
{
    const struct token_source *source = &job->config.source;
    bool there = true;
    for (*done = 0; *done < source->fit->samples; ++*done) {
        TRY(is_done(source, file, source->fit->documents[*done], &there, err));
        if (!there) return STATUS_OK;
    }
    return STATUS_OK;
}

/* Rank 0 makes the file, unless one of the same data, model, K and V is there. *done: the first samples that it has. */
static enum status begin_teacher(const struct engine *t, const struct score_job *job, int32_t K, int64_t *done,
                                 struct error *err)
{
    RELEASED(teacher_file_drop) struct teacher_file *file = NULL;
    const struct teacher_header wanted = {.data = job->data,
                                          .model = job->model,
                                          .tokens = token_set_tokens(job->config.source.set),
                                          .K = K,
                                          .V = (int32_t)t->desc.vocab_size};
    if (K > wanted.V)
        return error_set(err, STATUS_USAGE, "--top-k %d, and the model has %d tokens; hint: --top-k %d has all", K,
                         wanted.V, wanted.V);
    if (!fs_exists(job->path)) return teacher_file_create(job->path, wanted, err);
    TRY(teacher_file_open(job->path, false, &file, err));
    const size_t magic = sizeof wanted.magic;
    if (memcmp((char *)&file->header + magic, (const char *)&wanted + magic, sizeof wanted - magic) == 0)
        return count_done(job, file, done, err);
    return error_set(err, STATUS_USAGE,
                     "'%s' is of other data or of another model, or has other tokens; hint: name a new file",
                     job->path);
}

enum status score_teacher(struct engine *t, const struct score_job *job, int32_t K, bool *complete, struct error *err)
{
    const int64_t room = transformer_logit_rows(t->transformer) * transformer_ld_logits(t->transformer);
    RELEASED(teacher_file_drop) struct teacher_file *file = NULL;
    OWNED float *logits = memory_alloc((size_t)room * sizeof *logits);
    int64_t done = 0;
    TRY(agree(t->comm, t->rank == 0 ? begin_teacher(t, job, K, &done, err) : STATUS_OK, err));
    TRY(agree(t->comm, teacher_file_open(job->path, true, &file, err), err));
    struct teacher_visit visit = {.engine = t, .job = job, .file = file, .logits = logits};
    const struct row_results rows = {.logits = logits, .take = take_logits, .context = &visit};
    return score_samples(t, job, done, &rows, &visit.visit, complete, err);
}
