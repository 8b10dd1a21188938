/* SPDX-License-Identifier: Apache-2.0 */
/* score_data.h: log-probabilities of documents under the weights that an engine holds, computed part by part into a
 * file (logps_file.h), so that what an interrupted job has computed stays. */
#pragma once

#include "cmd/engine/engine.h"

struct score_job {
    const char *name;     /* of the data, in the log */
    const char *path;     /* of the file; rank 0 writes it */
    uint64_t data, model; /* logps_header */
    bool replaces;        /* a file of other data or of another model; else it is STATUS_USAGE */
    /* A stream of an evaluation without mixture and references; its source has a fit, and samples are documents or,
     * with preferences, pairs of documents, or documents and mismatched ones. */
    struct token_stream_config config;
    bool (*stopped)(void *context); /* collective, between parts; NULL: it never is */
    void *context;
};

/* A vote of all ranks on a request to stop. context: the engine. */
bool score_stopped(void *context);

/* A micro-batch that is evaluated, and the number of its first sample. */
struct score_visit {
    struct batch batch;
    int64_t sample;
    enum status (*done)(struct score_visit *visit, struct error *err); /* after it; the results of rows are there */
};

/* Evaluates samples [first, first + count) of a stream like `config`: this rank's micro-batches one by one. */
enum status score_batches(struct engine *t, const struct token_stream_config *config, int64_t first, int64_t count,
                          const struct row_results *rows, struct score_visit *visit, struct error *err);

/* Writes a teacher's file (teacher_file.h) of K tokens for distillation: rows that are there already stay. The numbers
 * do not depend on the number of ranks. Collective. */
enum status score_teacher(struct engine *t, const struct score_job *job, int32_t K, bool *complete, struct error *err);

/* Computes what the file lacks, or all if it is absent or of other data. Then all ranks have *logps and, with KTO,
 * *mismatched (documents), owned by the caller; NaN: of a document that is in no sample. *complete: it was not stopped.
 * The numbers do not depend on the number of ranks. Collective. */
enum status score_data(struct engine *t, const struct score_job *job, double **logps, double **mismatched,
                       bool *complete, struct error *err);
