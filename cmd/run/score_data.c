/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/score_data.h"

#include "cmd/run/stop_signal.h"
#include "comm/agree.h"
#include "core/data/logps_file.h"

enum { PART = 32 /* micro-batches of a rank */ };

/* ---- any result ---------------------------------------------------------- */

/* This rank's micro-batches of samples [first, first + count). */
static enum status score_part(struct engine *t, const struct score_job *job, int64_t first, int64_t count,
                              const struct row_results *rows, struct score_visit *visit, struct error *err)
{
    struct token_stream_config config = job->config;
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
        if (status == STATUS_OK && visit->done) status = visit->done(visit, err);
    }
    token_stream_close(stream);
    return status;
}

/* A vote of all ranks. */
static bool asked_to_stop(const struct engine *t)
{
    struct error err;
    double votes = stop_signal_pending() ? 1 : 0;
    return comm_sum(t->comm, &votes, 1, &err) != STATUS_OK || votes > 0;
}

enum status score_samples(struct engine *t, const struct score_job *job, int64_t done, const struct row_results *rows,
                          struct score_visit *visit, bool *complete, struct error *err)
{
    const int64_t samples = job->config.source.fit->samples;
    const int64_t part = PART * job->config.micro_batch_size * t->world * t->turns;
    TRY(comm_broadcast(t->comm, &done, sizeof done, 0, err));
    if (t->rank == 0 && done < samples)
        log_info("%s: scoring %" PRId64 " of %" PRId64 " samples", job->name, samples - done, samples);
    *complete = true;
    while (done < samples && *complete) {
        const int64_t count = samples - done < part ? samples - done : part;
        TRY(agree(t->comm, score_part(t, job, done, count, rows, visit, err), err));
        done += count;
        *complete = done == samples || !asked_to_stop(t);
    }
    return STATUS_OK;
}

/* ---- log-probabilities --------------------------------------------------- */

struct logps_visit {
    struct score_visit visit; /* first */
    const struct score_job *job;
    const float *row_losses;
    int fd;
};

static bool scores_mismatched(const struct score_job *job)
{
    return job->config.preference && job->config.preference->loss == PREFERENCE_KTO;
}

/* Writes a micro-batch's log-probabilities. Sequences of a sample lie side by side; KTO's second one is mismatched. */
static enum status write_logps(struct score_visit *visit, struct error *err)
{
    const struct logps_visit *v = (const struct logps_visit *)visit;
    const struct score_job *job = v->job;
    const struct first_fit *fit = job->config.source.fit;
    const struct batch *batch = &visit->batch;
    const int together = job->config.preference ? 2 : 1, sequences = batch->num_seqs - (batch->num_filler > 0);
    for (int i = 0; i < sequences; i++) {
        const bool mismatched = scores_mismatched(job) && i % 2;
        const int64_t place = fit->starts[visit->sample + i / together] + (scores_mismatched(job) ? 0 : i % together);
        double logp = 0;
        for (int row = batch->seq_start[i]; row < batch->seq_start[i + 1]; row++) logp -= (double)v->row_losses[row];
        TRY(logps_write(v->fd, job->path, token_set_documents(job->config.source.set), mismatched,
                        fit->documents[place], logp, err));
    }
    return STATUS_OK;
}

/* Rank 0 reads what there is, or begins a file. *done: the first samples that have numbers. */
static enum status begin_logps(const struct score_job *job, int64_t *done, struct error *err)
{
    const struct first_fit *fit = job->config.source.fit;
    const int64_t documents = token_set_documents(job->config.source.set);
    OWNED double *logps = NULL, *mismatched = NULL;
    struct logps_header header, wanted = {.data = job->data, .model = job->model};
    struct error unread;
    if (scores_mismatched(job)) {
        wanted.together = (int32_t)job->config.micro_batch_size;
        wanted.longest = (int32_t)job->config.data.seq_length;
    }
    const bool read = logps_read(job->path, documents, &header, &logps, &mismatched, &unread) == STATUS_OK &&
                      memcmp(&header, &wanted, sizeof header) == 0;
    for (int64_t i = 0; read && i < fit->starts[fit->samples]; i++) {
        const uint32_t document = fit->documents[i];
        if (isnan(logps[document]) || (mismatched && isnan(mismatched[document]))) break;
        *done += i + 1 == fit->starts[*done + 1];
    }
    if (read) return STATUS_OK;
    if (job->replaces || !fs_exists(job->path)) return logps_create(job->path, &wanted, documents, err);
    error_set(err, STATUS_USAGE, "'%s' is of other data or of another model, or no file of ztrain score", job->path);
    return error_hint(err, "remove it, or name a new one");
}

enum status score_data(struct engine *t, const struct score_job *job, double **logps, double **mismatched,
                       bool *complete, struct error *err)
{
    const struct row_results rows = {.losses = t->preference->head.row_losses};
    struct logps_visit visit = {.visit.done = write_logps, .job = job, .row_losses = rows.losses};
    struct logps_header header;
    int64_t done = 0;
    TRY(agree(t->comm, t->rank == 0 ? begin_logps(job, &done, err) : STATUS_OK, err));
    enum status status = agree(t->comm, fs_open_regular(job->path, O_WRONLY, STATUS_DATA, &visit.fd, NULL, err), err);
    if (status == STATUS_OK) status = score_samples(t, job, done, &rows, &visit.visit, complete, err);
    fs_close(&visit.fd);
    TRY(agree(t->comm, status, err)); /* all have written */
    if (!*complete) return STATUS_OK;
    return agree(t->comm,
                 logps_read(job->path, token_set_documents(job->config.source.set), &header, logps, mismatched, err),
                 err);
}
