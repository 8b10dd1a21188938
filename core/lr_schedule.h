/* lr_schedule.h: the learning rate of optimizer step k = 1, 2, … (skipped steps do not advance it).
 *
 * ztrain's (start at step 1): warm-up lr·k/W for k <= W; then with x = (k - W) / (total - W), at most 1:
 *   Constant lr · Linear min + (lr - min)(1 - x) · Cosine min + (lr - min)·½(1 + cos πx)
 * DeepSpeed's (WarmupLR, WarmupDecayLR, WarmupCosineLR): step k uses schedule index k - 2, as in DeepSpeed's engine:
 * steps 1 and 2 both run at the minimum (DeepSpeed 0.19, runtime/lr_schedules.py). */
#ifndef ZTRAIN_CORE_LR_SCHEDULE_H
#define ZTRAIN_CORE_LR_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum schedule_type {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_WARMUP_LR,
    SCHEDULE_WARMUP_DECAY_LR,
    SCHEDULE_WARMUP_COSINE_LR,
    SCHEDULE_COUNT
};

struct schedule_spec {
    enum schedule_type type;
    int64_t warmup_steps;                   /* ztrain's: 0 = none; DeepSpeed's warmup_num_steps: default 1000 */
    int64_t total_steps;                    /* 0: the length of the run */
    double min_lr;                          /* Linear, Cosine */
    double warmup_min_lr, warmup_max_lr;    /* WarmupLR, WarmupDecayLR; warmup_max_lr < 0: the optimizer's lr */
    bool warmup_linear;                     /* warmup_type "linear"; else "log" */
    double warmup_min_ratio, cos_min_ratio; /* WarmupCosineLR */
};

/* "Constant", "WarmupLR", … as in the run spec */
const char *schedule_name(enum schedule_type type);

/* The learning rate of optimizer step k (from 1); lr is the optimizer's. */
double schedule_lr(const struct schedule_spec *schedule, double lr, int64_t k);

#endif
