/* SPDX-License-Identifier: Apache-2.0 */
/* watched_run.h: a run folder as the report sees it: metrics.jsonl, spec, newest checkpoint. Nothing is changed. */
#pragma once

#include "cmd/report/run_metrics.h"
#include "core/core.h"
#include "core/spec/spec.h"

enum run_state {
    RUN_RUNNING,
    RUN_FINISHED,    /* it reached its last step */
    RUN_ENDED_EARLY, /* by train.early_stopping */
    RUN_STOPPED,     /* before its last step, by a request or a failure */
    RUN_UNKNOWN      /* it is over, and run.yaml does not give its length */
};
extern const char *const run_state_words[];

/* A metrics.jsonl.N. */
struct former_file {
    int number;
    int64_t last_step; /* 0: it has no step */
    bool same_history; /* it begins as metrics.jsonl does: a resume left it; else it is an earlier run's */
};

enum { WATCHED_FORMERS = 64 };

struct watched_run {
    char *folder, *name; /* owned; name: the last part of the path, or all of it where several runs have the same */
    struct run_metrics metrics;
    json_t *spec; /* owned: spec_pairs_read() */
    enum run_state state;
    int64_t total_steps;    /* 0: unknown */
    struct {                /* of the newest checkpoint */
        bool known, warned; /* warned: that the checkpoints cannot be listed */
        int64_t parameters;
        int world;
        char model_type[64], dtype[16];
        int64_t events; /* the checkpoints that the metrics had when it was read */
    } model;
    struct former_file formers[WATCHED_FORMERS];
    int num_formers;
};

/* STATUS_CHECKPOINT: no such folder, no metrics.jsonl, or no sound line in it. A missing run.yaml is a warning. */
enum status watched_run_open(struct watched_run *run, const char *folder, struct error *err);

/* Reads what was added; *changed: something was. */
enum status watched_run_refresh(struct watched_run *run, bool *changed, struct error *err);
void watched_run_close(struct watched_run *run);

/* Gives several runs names that tell them apart. */
void watched_runs_name(struct watched_run *runs, int count);

/* The keys in which the runs' specs differ, but for run.name and run.dir. The caller releases the list. */
struct string_list watched_runs_differences(const struct watched_run *runs, int count);
