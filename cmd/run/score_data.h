/* SPDX-License-Identifier: Apache-2.0 */
/* score_data.h: what documents are under the weights that an engine holds, computed part by part into a file that all
 * ranks write, so that what an interrupted job has computed stays. */
#pragma once

#include "cmd/engine/engine.h"

struct score_job {
    const char *name;     /* of the data, in the log */
    const char *path;     /* of the file */
    uint64_t data, model; /* logps_header */
    bool replaces;        /* a file of other data or of another model; else it is STATUS_USAGE */
    /* A stream of an evaluation without mixture and references; its source has a fit, and samples are documents or,
     * with preferences, pairs of documents, or documents and mismatched ones. */
    struct token_stream_config config;
};

/* A micro-batch that is evaluated, and the number of its first sample. */
struct score_visit {
    struct batch batch;
    int64_t sample;
    enum status (*done)(struct score_visit *visit, struct error *err); /* after it, or NULL; rows have their results */
};

/* Evaluates the samples from number `done` on, which rank 0 knows. *complete: no rank was asked to stop. Collective. */
enum status score_samples(struct engine *t, const struct score_job *job, int64_t done, const struct row_results *rows,
                          struct score_visit *visit, bool *complete, struct error *err);

/* Writes a teacher's file (teacher_file.h) of K tokens for distillation. Collective. */
enum status score_teacher(struct engine *t, const struct score_job *job, int32_t K, bool *complete, struct error *err);

/* Computes what a file of log-probabilities (logps_file.h) lacks. If it is *complete, all ranks have *logps and, with
 * KTO, *mismatched (documents), owned by the caller; NaN: of a document that is in no sample. The numbers do not depend
 * on the number of ranks. STATUS_DATA: the model gives one that is not finite. Collective. */
enum status score_data(struct engine *t, const struct score_job *job, double **logps, double **mismatched,
                       bool *complete, struct error *err);
