/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/score_data.h"

#include "cmd/run/stop_signal.h"
#include "comm/agree.h"
#include "core/data/logps_file.h"

enum { PART = 32 /* micro-batches of a rank */ };

/* What is scored, in memory. */
struct scores {
    int64_t documents;
    double *values[2]; /* (documents): logps, mismatched (NULL: none) */
};

static void scores_release(struct scores *scores)
{
    free(scores->values[0]);
    free(scores->values[1]);
}

static bool scores_mismatched(const struct score_job *job)
{
    return job->config.preference && job->config.preference->loss == PREFERENCE_KTO;
}

/* The document that sequence s of a sample is of. */
static uint32_t scored_document(const struct score_job *job, int64_t sample, int s)
{
    const struct first_fit *fit = job->config.source.fit;
    return fit->documents[fit->starts[sample] + (scores_mismatched(job) ? 0 : s)];
}

/* Adds the log-probabilities of a micro-batch whose first sample is `sample`. */
static void add_scores(const struct score_job *job, const struct batch *batch, const float *row_losses, int64_t sample,
                       double *const values[2])
{
    const int together = job->config.preference ? 2 : 1, sequences = batch->num_seqs - (batch->num_filler > 0);
    for (int i = 0; i < sequences; i++) {
        const bool mismatched = scores_mismatched(job) && i % 2;
        double logp = 0;
        for (int row = batch->seq_start[i]; row < batch->seq_start[i + 1]; row++) logp -= (double)row_losses[row];
        values[mismatched][scored_document(job, sample + i / together, i % together)] = logp;
    }
}

enum status score_batches(struct engine *t, const struct token_stream_config *like, int64_t first, int64_t count,
                          const struct row_results *rows, struct score_visit *visit, struct error *err)
{
    struct token_stream_config config = *like;
    struct token_stream *stream = NULL;
    bool end = false;
    config.first_sample = first;
    config.max_samples = first + count;
    TRY(token_stream_open(&config, 1, &stream, err));
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        status = token_stream_next(stream, &visit->batch, &end, err);
        if (status != STATUS_OK || end) break;
        const int64_t turn = visit->batch.micro % t->turns, round = visit->batch.micro / t->turns;
        visit->sample = first + ((round * t->turns + turn) * t->world + t->rank) * config.micro_batch_size;
        status = transformer_evaluate(t->transformer, &visit->batch, zero_verbs(t->zero), t->compute, t->loss_sum, NULL,
                                      rows, err);
        stream_sync(t->compute);
        if (status == STATUS_OK) status = visit->done(visit, err);
    }
    token_stream_close(stream);
    return status;
}

struct score_sums {
    struct score_visit visit; /* first */
    const struct score_job *job;
    const float *row_losses;
    double *const *values;
};

static enum status add_visit(struct score_visit *visit, struct error *err)
{
    const struct score_sums *sums = (const struct score_sums *)visit;
    (void)err;
    add_scores(sums->job, &visit->batch, sums->row_losses, visit->sample, sums->values);
    return STATUS_OK;
}

/* Computes samples [first, first + count): values of this rank's, 0 of the others'. */
static enum status score_part(struct engine *t, const struct score_job *job, int64_t first, int64_t count,
                              double *const values[2], struct error *err)
{
    const struct row_results rows = {.losses = t->preference->head.row_losses};
    struct score_sums sums = {.visit.done = add_visit, .job = job, .row_losses = rows.losses, .values = values};
    return score_batches(t, &job->config, first, count, &rows, &sums.visit, err);
}

/* The documents of samples [first, first + count), from all ranks to all; adding zeros changes no bit. */
static enum status join_part(struct engine *t, const struct score_job *job, int64_t first, int64_t count,
                             double *const values[2], struct error *err)
{
    const int64_t most = COMM_EXCHANGE_MAX / (int64_t)sizeof(double);
    const struct first_fit *fit = job->config.source.fit;
    const int64_t begin = fit->starts[first], end = fit->starts[first + count];
    OWNED double *some = memory_alloc((size_t)most * sizeof *some);
    for (int kind = 0; kind < 2 && values[kind]; kind++)
        for (int64_t at = begin; at < end; at += most) {
            const int64_t n = end - at < most ? end - at : most;
            for (int64_t i = 0; i < n; i++) some[i] = values[kind][fit->documents[at + i]];
            TRY(comm_sum(t->comm, some, (int)n, err));
            for (int64_t i = 0; i < n; i++) values[kind][fit->documents[at + i]] = some[i];
        }
    return STATUS_OK;
}

/* Rank 0 writes the documents of samples [first, first + count). */
static enum status write_part(const struct score_job *job, int64_t first, int64_t count, const struct scores *scores,
                              struct error *err)
{
    const struct first_fit *fit = job->config.source.fit;
    RELEASED(fs_close) int fd = io_open(job->path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return error_system(err, STATUS_DATA, errno, "cannot open '%s'", job->path);
    for (int kind = 0; kind < 2 && scores->values[kind]; kind++)
        for (int64_t i = fit->starts[first]; i < fit->starts[first + count]; i++)
            if (io_pwrite(fd, &scores->values[kind][fit->documents[i]], sizeof(double),
                          logps_offset(scores->documents, kind, fit->documents[i])) != (ssize_t)sizeof(double))
                return error_system(err, STATUS_DATA, errno, "cannot write '%s'", job->path);
    return STATUS_OK;
}

/* Rank 0 reads what there is, or begins a file. *done: the first samples that have numbers. */
static enum status begin_scores(const struct score_job *job, struct scores *scores, int64_t *done, struct error *err)
{
    const struct first_fit *fit = job->config.source.fit;
    struct logps_header header, wanted = {.data = job->data, .model = job->model};
    struct error unread;
    if (scores_mismatched(job)) {
        wanted.together = (int32_t)job->config.micro_batch_size;
        wanted.longest = (int32_t)job->config.data.seq_length;
    }
    *done = 0;
    const bool read = logps_read(job->path, scores->documents, &header, &scores->values[0], &scores->values[1],
                                 &unread) == STATUS_OK &&
                      !memcmp(&header, &wanted, sizeof header);
    while (read && *done < fit->samples && !isnan(scores->values[0][fit->documents[fit->starts[*done + 1] - 1]]) &&
           !(scores->values[1] && isnan(scores->values[1][fit->documents[fit->starts[*done]]])))
        ++*done;
    if (!read && !job->replaces && fs_exists(job->path))
        return error_set(err, STATUS_USAGE,
                         "'%s' is of other data or of another model, or no file of ztrain score; hint: remove it, or "
                         "name a new one",
                         job->path);
    return read ? STATUS_OK : logps_create(job->path, &wanted, scores->documents, err);
}

/* All have rank 0's numbers of the samples that were done; 0 of others. */
static enum status share_scores(struct engine *t, const struct score_job *job, struct scores *scores, int64_t done,
                                struct error *err)
{
    for (int kind = 0; kind <= scores_mismatched(job); kind++) {
        double *const read = scores->values[kind];
        scores->values[kind] = memory_zeroed((size_t)scores->documents, sizeof(double));
        for (int64_t i = 0; read && i < job->config.source.fit->starts[done]; i++) {
            const uint32_t document = job->config.source.fit->documents[i];
            scores->values[kind][document] = read[document];
        }
        free(read);
    }
    return done ? join_part(t, job, 0, done, scores->values, err) : STATUS_OK;
}

static void forget_unscored(const struct score_job *job, struct scores *scores)
{
    const struct first_fit *fit = job->config.source.fit;
    for (int kind = 0; kind < 2 && scores->values[kind]; kind++) {
        OWNED double *kept = scores->values[kind];
        scores->values[kind] = memory_alloc((size_t)scores->documents * sizeof(double));
        for (int64_t d = 0; d < scores->documents; d++) scores->values[kind][d] = NAN;
        for (int64_t i = 0; i < fit->starts[fit->samples]; i++)
            scores->values[kind][fit->documents[i]] = kept[fit->documents[i]];
    }
}

bool score_stopped(void *context)
{
    const struct engine *t = context;
    struct error err;
    double votes = stop_signal_pending() ? 1 : 0;
    return comm_sum(t->comm, &votes, 1, &err) != STATUS_OK || votes > 0;
}

enum status score_data(struct engine *t, const struct score_job *job, double **logps, double **mismatched,
                       bool *complete, struct error *err)
{
    const int64_t samples = job->config.source.fit->samples;
    const int64_t part = PART * job->config.micro_batch_size * t->world * t->turns;
    RELEASED(scores_release) struct scores scores = {.documents = token_set_documents(job->config.source.set)};
    int64_t done = 0;
    enum status status = t->rank == 0 ? begin_scores(job, &scores, &done, err) : STATUS_OK;
    TRY(agree(t->comm, status, err));
    TRY(comm_broadcast(t->comm, &done, sizeof done, 0, err));
    TRY(share_scores(t, job, &scores, done, err));
    if (t->rank == 0 && done < samples)
        log_info("%s: scoring %" PRId64 " of %" PRId64 " samples", job->name, samples - done, samples);
    *complete = true;
    while (done < samples && *complete) {
        const int64_t count = samples - done < part ? samples - done : part;
        TRY(agree(t->comm, score_part(t, job, done, count, scores.values, err), err));
        TRY(join_part(t, job, done, count, scores.values, err));
        status = t->rank == 0 ? write_part(job, done, count, &scores, err) : STATUS_OK;
        TRY(agree(t->comm, status, err));
        done += count;
        *complete = done == samples || !job->stopped || !job->stopped(job->context);
    }
    forget_unscored(job, &scores);
    *logps = TAKEN(scores.values[0]);
    *mismatched = TAKEN(scores.values[1]);
    return STATUS_OK;
}
