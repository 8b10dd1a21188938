/* SPDX-License-Identifier: Apache-2.0 */
/* run_state.h: the state of a run on one rank: prepare.c builds it, rank_main.c releases it. Every decision is the same
 * on all ranks: its grounds (a loss, a norm, a stop signal) are summed over the ranks first. */
#pragma once

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_save_cache.h"
#include "cmd/engine/engine.h"
#include "cmd/run/console.h"
#include "cmd/run/deadline.h"
#include "cmd/run/monitor.h"
#include "cmd/run/restart.h"
#include "cmd/run/run_folder.h"
#include "cmd/run/stepper.h"
#include "cmd/run/trace_file.h"
#include "core/metrics/metrics.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/ops_profile.h"

/* A step that was given to the device and whose results are not collected yet. */
struct pending_step {
    struct step_metrics metrics;                     /* as far as they are known */
    struct source_metrics sources[SPEC_MAX_SOURCES]; /* of a mixture: metrics.sources */
    int64_t targets, tokens;
    double start; /* seconds */
};

/* The most seconds of patience for a disk that training can do without: a checkpoint, metrics.jsonl. */
enum { PATIENCE_INTERVAL = 30 };

/* The ranks vote on a stop after each step, and in it after `interval` micro-batches, which rank 0 chooses. */
struct vote {
    int64_t interval, left; /* micro-batches */
    double at;              /* rank 0: seconds; time of the last vote */
};

/* What the command line adds to the run spec. */
struct rank_options {
    const char *resume;              /* --resume DIR (borrowed) or "auto", or NULL */
    const char *resumed_at_first;    /* by the first start, where this is a restart; else NULL */
    bool profile;                    /* --profile */
    const char *trace, *trace_steps; /* --trace, --trace-steps (borrowed), or NULL */
    int max_restarts;                /* --max-restarts K: a supervisor may have started the ranks again */
    const char *replay;              /* of ztrain replay: the run's folder (borrowed); NULL: training */
    int64_t replay_step;             /* with it: the last step */
    const char *score;               /* of ztrain score: the file to write (borrowed); NULL: training */
    int64_t score_together;          /* with it: --mismatched M, or 0 */
    int64_t score_top_k;             /* with it: --top-k K, or 0 */
    bool score_lines, score_base;    /* --per-document, --adapter-off */
};

/* Of several adapters each has a run, with a run folder and checkpoints of its own. */
struct run {
    /* Given. */
    struct run *first; /* of the process, which has its communicator, log and flight record; may be this one */
    struct run *next;  /* of the next adapter, or NULL */
    const struct rank_options *options; /* borrowed */
    const char *resume;            /* --resume DIR (borrowed), or NULL; never "auto" once the run folder is found */
    char resume_path[FS_PATH_MAX]; /* of one of several adapters: run_resume_of() */
    struct restart restart; /* the failure after which a supervisor has started the ranks again; number 0: none */
    struct run_spec *spec;  /* borrowed */
    struct bootstrap *boot; /* borrowed */
    struct comm *comm;      /* owned by rank_main.c */
    double started_at;      /* seconds; when this process began to prepare the run */

    /* Built by run_prepare(). */
    struct checkpoint *checkpoint; /* to resume from, while it prepares; NULL: none */
    bool found;                    /* the run folder existed, and is open */
    struct engine engine;
    struct stepper stepper;
    struct replay *replay; /* owned; NULL: training */
    struct run_home home;
    struct run_folder folder;
    struct metrics *metrics;                  /* owned; rank 0, else NULL */
    struct monitor *monitor;                  /* owned; rank 0 where the spec enables one, else NULL */
    struct checkpoint_save_cache *save_cache; /* owned; rank 0, else NULL */
    struct console console;
    struct trace_file *trace; /* owned; NULL without --trace */
    struct deadline deadline; /* rank 0's */
    struct token_stream *stream;
    json_t *spec_json, *machine; /* owned; as checkpoints record them */
    json_t *adapter;             /* the same: adapter_config.json; NULL: the run has none */
    json_t *evaluation_part; /* owned: of an evaluation that was broken off (core/metrics/eval_part.h); NULL: none */
    char *kernel_choices;    /* owned; rank 0's, for a resume: run_kernels.c; else NULL */
    char *kernels_changed; /* owned; with virtual ranks, how the bits may be others from here on; NULL: they are not */
    struct cpu_kernels kernels_before; /* that computed the checkpoint to resume from, if it records them */

    /* The loop's. */
    struct train_position position; /* after the last step that was collected */
    int64_t enqueued;               /* the last step that was given to the device */
    struct pending_step pending[ZERO_STEPS];
    double collected_at;      /* seconds; when the last step was collected */
    struct comm_stats volume; /* sent by this rank in a step: the newest step whose operations were counted */
    struct comm_stats moved;  /* over the network since the start of this process */
    struct op_profile profiled[OPS_COUNT]; /* --profile: the ops so far (reports.h) */
    int num_profiled;
    double profile_start; /* seconds; of the step that flops_profiler profiles */
    int64_t comms_from;   /* the last step before those whose collectives are recorded (reports.h) */
    struct vote vote;
    bool stop;          /* some rank was asked to stop, or the job's end is near; the same on all ranks */
    bool deadline_near; /* the job's end is near; the same on all ranks */

    /* The checkpoints'. */
    struct background_save *background; /* owned: background_save.h */
    int checkpoints_lost;               /* could not be written */
    double checkpoint_seconds;          /* stalled in checkpoints since the last step's line */
    int64_t newest_step;                /* of the newest checkpoint in the run's folder; -1: none */
    int64_t saved_step; /* of the newest checkpoint in the run's folder, if it is known to be there; else -1 */

    bool agreed; /* the first one's: all ranks know that all of them end with an error */
};

/* The messages of this thread name the adapter from now on, if it is one of several; NULL: none. */
void run_speaks(const struct run *run);

/* agree() (comm/agree.h) on the outcome so far. */
enum status run_agree(struct run *run, enum status status, struct error *err);

/* STATUS_DIVERGED where a run that ends here has no use: no step has changed the model, or the loss is not finite. */
enum status run_check_history(const struct train_position *position, struct error *err);

/* The value; a NaN that would print as "-nan" as NAN. */
double run_number(double value);

/* The mean loss of `targets` targets; NaN (null in metrics.jsonl) if there are none. */
double run_mean_loss(double sum, double targets);

/* The bytes that this rank has moved since the last call, approximate; run->moved, their sum, is exact. */
void run_read_volume(struct run *run, struct comm_stats *volume);
