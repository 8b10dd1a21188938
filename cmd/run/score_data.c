/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/score_data.h"

#include "cmd/run/stop_signal.h"
#include "comm/agree.h"
#include "core/data/logps_file.h"

enum { PART = 32 /* micro-batches of a rank */, TELL_SECONDS = 10 };

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

enum status score_samples(struct engine *t, const struct score_job *job, int64_t done, const struct row_results *rows,
                          struct score_visit *visit, bool *complete, struct error *err)
{
    const int64_t samples = job->config.source.fit->samples;
    const int64_t part = PART * job->config.micro_batch_size * t->world * t->turns;
    TRY(comm_broadcast(t->comm, &done, sizeof done, 0, err));
    if (t->rank == 0 && done < samples)
        log_info("%s: scoring %" PRId64 " of %" PRId64 " samples", job->name, samples - done, samples);
    double told = seconds_now();
    *complete = true;
    while (done < samples && *complete) {
        const int64_t count = samples - done < part ? samples - done : part;
        TRY(agree(t->comm, score_part(t, job, done, count, rows, visit, err), err));
        done += count;
        double stops = stop_signal_pending() && done < samples ? 1 : 0;
        TRY(comm_sum(t->comm, &stops, 1, err));
        *complete = stops == 0;
        if (t->rank != 0 || seconds_now() < told + TELL_SECONDS) continue;
        told = seconds_now();
        log_info("%s: %" PRId64 " of %" PRId64 " samples are scored", job->name, done, samples);
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

static struct logps_header wanted_header(const struct score_job *job)
{
    const bool mismatched = scores_mismatched(job);
    return (struct logps_header){.data = job->data,
                                 .model = job->model,
                                 .together = mismatched ? (int32_t)job->config.micro_batch_size : 0,
                                 .longest = mismatched ? (int32_t)job->config.data.seq_length : 0};
}

/* *done: the first samples that have finite numbers. STATUS_USAGE: the file is another one. */
static enum status read_logps(const struct score_job *job, double **logps, double **mismatched, int64_t *done,
                              struct error *err)
{
    const struct first_fit *fit = job->config.source.fit;
    const struct logps_header wanted = wanted_header(job);
    struct logps_header header;
    *done = 0;
    if (logps_read(job->path, token_set_documents(job->config.source.set), &header, logps, mismatched, err) !=
            STATUS_OK ||
        memcmp(&header, &wanted, sizeof header) != 0) {
        error_set(err, STATUS_USAGE, "'%s' is of other data or of another model, or no file of ztrain score",
                  job->path);
        return error_hint(err, "remove it, or name a new one");
    }
    for (int64_t i = 0; i < fit->starts[fit->samples]; i++) {
        const uint32_t document = fit->documents[i];
        if (!isfinite((*logps)[document]) || (*mismatched && !isfinite((*mismatched)[document]))) break;
        *done += i + 1 == fit->starts[*done + 1];
    }
    return STATUS_OK;
}

/* Rank 0 reads what there is, or begins a file. */
static enum status begin_logps(const struct score_job *job, int64_t *done, struct error *err)
{
    const struct logps_header wanted = wanted_header(job);
    OWNED double *logps = NULL, *mismatched = NULL;
    const bool there = fs_exists(job->path);
    const enum status status = there ? read_logps(job, &logps, &mismatched, done, err) : STATUS_OK;
    if (there && (status == STATUS_OK || !job->replaces)) return status;
    *done = 0;
    return logps_create(job->path, &wanted, token_set_documents(job->config.source.set), err);
}

/* Another command may have begun the same file. */
static enum status open_logps(const struct score_job *job, int *fd, struct error *err)
{
    const struct logps_header wanted = wanted_header(job);
    TRY(fs_open_regular(job->path, O_RDWR, STATUS_DATA, fd, NULL, err));
    return logps_check(*fd, job->path, &wanted, err);
}

enum status score_data(struct engine *t, const struct score_job *job, double **logps, double **mismatched,
                       bool *complete, struct error *err)
{
    const struct row_results rows = {.losses = t->preference->head.row_losses};
    const struct first_fit *fit = job->config.source.fit;
    struct logps_visit visit = {.visit.done = write_logps, .job = job, .row_losses = rows.losses, .fd = -1};
    int64_t done = 0;
    TRY(agree(t->comm, t->rank == 0 ? begin_logps(job, &done, err) : STATUS_OK, err));
    enum status status = agree(t->comm, open_logps(job, &visit.fd, err), err);
    if (status == STATUS_OK) status = score_samples(t, job, done, &rows, &visit.visit, complete, err);
    fs_close(&visit.fd);
    TRY(agree(t->comm, status, err)); /* all have written */
    if (!*complete) return STATUS_OK;
    status = read_logps(job, logps, mismatched, &done, err);
    if (status == STATUS_OK && done < fit->samples)
        status = error_set(err, STATUS_DATA, "%s: the model gives document %u no finite log-probability", job->name,
                           fit->documents[fit->starts[done]]);
    return agree(t->comm, status, err);
}
