/* SPDX-License-Identifier: Apache-2.0 */
/* lr_schedule.h: the learning rate of optimizer step k = 1, 2, … (skipped steps do not advance it).
 *
 * ztrain's (start at step 1): warm-up lr·k/W for k <= W; then with x = (k - W) / (total - W), at most 1:
 *   Constant lr · Linear min + (lr - min)(1 - x) · Cosine min + (lr - min)·½(1 + cos πx)
 *   WSD      lr until step total - D; then with x = (k - (total - D)) / D, at most 1, lr falls to min: cosine and
 * linear as above, 1-sqrt min + (lr - min)(1 - √x) W is warmup_steps, or the ceiling of warmup_ratio × total, as in
 * transformers' Trainer.
 *
 * DeepSpeed's (DeepSpeed 0.19, runtime/lr_schedules.py):
 *   WarmupLR, WarmupDecayLR, WarmupCosineLR: step k uses schedule index k - 2, as in DeepSpeed's engine: steps 1 and 2
 *   both run at the minimum.
 *   OneCycle: with i = k - 1, from cycle_min_lr up to cycle_max_lr in cycle_first_step_size steps, back in
 *   cycle_second_step_size steps (flat stairs where a stair count is given); one step later than the cycle's end, lr is
 *   cycle_min_lr / (1 + decay_lr_rate · steps since then / decay_step_size). With cycle_momentum β1 moves against it.
 *   LRRangeTest: min · (1 + step_rate · i / step_size), with staircase the quotient's floor. */
#pragma once

#include "core/status.h"

/* With their names in the run spec. */
#define SCHEDULE_LIST(X)                  \
    X(CONSTANT, "Constant")               \
    X(LINEAR, "Linear")                   \
    X(COSINE, "Cosine")                   \
    X(WSD, "WSD")                         \
    X(WARMUP_LR, "WarmupLR")              \
    X(WARMUP_DECAY_LR, "WarmupDecayLR")   \
    X(WARMUP_COSINE_LR, "WarmupCosineLR") \
    X(ONE_CYCLE, "OneCycle")              \
    X(LR_RANGE_TEST, "LRRangeTest")

#define SCHEDULE_ENTRY(name, word) SCHEDULE_##name,
enum schedule_type { SCHEDULE_LIST(SCHEDULE_ENTRY) SCHEDULE_COUNT };

/* The shape of WSD's decay. */
enum decay_type { DECAY_COSINE, DECAY_LINEAR, DECAY_SQRT };

struct schedule_spec {
    enum schedule_type type;
    int64_t warmup_steps;                   /* ztrain's: 0 = none; DeepSpeed's warmup_num_steps: default 1000 */
    double warmup_ratio;                    /* the warm-up as a fraction of total_steps; 0: warmup_steps */
    int64_t total_steps;                    /* 0: the length of the run */
    double min_lr;                          /* Linear, Cosine, WSD */
    int64_t decay_steps;                    /* WSD: D */
    enum decay_type decay_type;             /* WSD */
    double warmup_min_lr, warmup_max_lr;    /* WarmupLR, WarmupDecayLR; warmup_max_lr < 0: the optimizer's lr */
    bool warmup_linear;                     /* warmup_type "linear"; else "log" */
    double warmup_min_ratio, cos_min_ratio; /* WarmupCosineLR */
    struct {
        double min_lr, max_lr, decay_lr_rate;
        int64_t first_steps, second_steps;   /* second_steps -1: first_steps */
        int64_t first_stairs, second_stairs; /* 0: none; second_stairs -1: first_stairs */
        int64_t decay_steps;                 /* the unit of decay_lr_rate; 0: no decay */
        bool momentum;                       /* β1 falls from max_momentum to min_momentum as lr rises */
        double min_momentum, max_momentum;
    } cycle; /* OneCycle */
    struct {
        double min_lr, step_rate;
        int64_t step_size;
        bool staircase;
    } range_test; /* LRRangeTest */
};

/* "Constant", "WarmupLR", … as in the run spec */
LISTED_NAMES(schedule_name, enum schedule_type, SCHEDULE_LIST)

/* Whether its rates depend on total_steps. */
bool schedule_needs_total(const struct schedule_spec *schedule);

/* The steps of the warm-up, once total_steps is known (of DeepSpeed's schedules: before they are raised to 2). */
int64_t schedule_warmup(const struct schedule_spec *schedule);

/* The learning rate of optimizer step k (from 1); lr is the optimizer's. */
double schedule_lr(const struct schedule_spec *schedule, double lr, int64_t k);

/* Whether the schedule sets Adam's betas too; then, those of optimizer step k. */
bool schedule_has_betas(const struct schedule_spec *schedule);
void schedule_betas(const struct schedule_spec *schedule, int64_t k, double *beta1, double *beta2);
