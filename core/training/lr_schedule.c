/* SPDX-License-Identifier: Apache-2.0 */
#include "core/training/lr_schedule.h"

bool schedule_needs_total(const struct schedule_spec *s)
{
    switch (s->type) {
    case SCHEDULE_CONSTANT:
    case SCHEDULE_WARMUP_LR: return s->warmup_ratio > 0;
    case SCHEDULE_ONE_CYCLE:
    case SCHEDULE_LR_RANGE_TEST: return false;
    default: return true;
    }
}

int64_t schedule_warmup(const struct schedule_spec *s)
{
    return s->warmup_ratio > 0 ? (int64_t)ceil(s->warmup_ratio * (double)s->total_steps) : s->warmup_steps;
}

/* ztrain's: warm-up to lr over W steps, then lr, then a decay to min_lr that begins after step `from`. */
static double own_lr(const struct schedule_spec *s, double lr, int64_t k)
{
    const int64_t warmup = schedule_warmup(s),
                  from = s->type == SCHEDULE_WSD ? s->total_steps - s->decay_steps : warmup;
    if (k <= warmup) return lr * (double)k / (double)warmup;
    if (s->type == SCHEDULE_CONSTANT || (s->type == SCHEDULE_WSD && k <= from)) return lr;
    enum decay_type decay = s->type == SCHEDULE_LINEAR   ? DECAY_LINEAR
                            : s->type == SCHEDULE_COSINE ? DECAY_COSINE
                                                         : s->decay_type;
    double span = (double)(s->total_steps - from);
    double x = span > 0 ? fmin(1.0, (double)(k - from) / span) : 1.0;
    const double left = decay == DECAY_COSINE   ? 0.5 * (1.0 + cos(M_PI * x))
                        : decay == DECAY_LINEAR ? 1.0 - x
                                                : 1.0 - sqrt(x);
    return s->min_lr + (lr - s->min_lr) * left;
}

static double deepspeed_lr(const struct schedule_spec *s, double lr, int64_t k)
{
    const int64_t given = schedule_warmup(s), warmup = given < 2 ? 2 : given; /* DeepSpeed takes at least 2 */
    const int64_t i = k - 2;
    const bool cosine = s->type == SCHEDULE_WARMUP_COSINE_LR;
    const double span = fmax(1.0, (double)(s->total_steps - warmup)), least = s->warmup_min_ratio;
    if (i < 0) return cosine ? 0.0 : s->warmup_min_lr; /* 0 whatever warmup_min_ratio is */
    double gamma = i >= warmup        ? 1.0 /* the warm-up's factor: "log", ln(i + 1) / ln(N), or "linear", i / N */
                   : s->warmup_linear ? (double)i / (double)warmup
                                      : log((double)i + 1.0) / log((double)warmup);
    if (cosine && i < warmup) return lr * (least + (1.0 - least) * gamma);
    if (cosine) {
        const double x = fmin(1.0, (double)(i - warmup + 1) / span);
        return lr * fmax(0.0, s->cos_min_ratio + (1.0 - s->cos_min_ratio) * ((1.0 + cos(M_PI * x)) / 2.0));
    }
    if (s->type == SCHEDULE_WARMUP_DECAY_LR && i >= warmup) gamma = fmax(0.0, (double)(s->total_steps - i) / span);
    const double low = s->warmup_min_lr, high = s->warmup_max_lr < 0 ? lr : s->warmup_max_lr;
    return low + (high - low) * gamma;
}

/* OneCycle's position between the minimum (0) and the maximum (1) after i batches. */
static double cycle_height(const struct schedule_spec *s, int64_t i)
{
    const int64_t first = s->cycle.first_steps, second = s->cycle.second_steps < 0 ? first : s->cycle.second_steps;
    const int64_t at = i % (first + second);
    const bool rises = at <= first;
    const int64_t stairs = rises || s->cycle.second_stairs < 0 ? s->cycle.first_stairs : s->cycle.second_stairs;
    const int64_t distance = rises ? at : first + second - at, half = rises ? first : second;
    if (stairs > 0) return floor((double)(distance * stairs) / (double)half) / (double)stairs;
    return (double)distance / (double)half;
}

/* Steps since the end of the cycle, as DeepSpeed counts them; 0: the cycle still runs. */
static int64_t steps_after_cycle(const struct schedule_spec *s, int64_t k)
{
    const int64_t first = s->cycle.first_steps,
                  total = first + (s->cycle.second_steps < 0 ? first : s->cycle.second_steps);
    return k - 2 < total ? 0 : k - 1 - total;
}

static double one_cycle_lr(const struct schedule_spec *s, int64_t k)
{
    const int64_t after = steps_after_cycle(s, k);
    if (!after) return s->cycle.min_lr + (s->cycle.max_lr - s->cycle.min_lr) * cycle_height(s, k - 1);
    if (!s->cycle.decay_steps) return s->cycle.min_lr;
    return s->cycle.min_lr / (1.0 + s->cycle.decay_lr_rate * ((double)after / (double)s->cycle.decay_steps));
}

static double range_test_lr(const struct schedule_spec *s, int64_t k)
{
    const double steps = (double)(k - 1) / (double)s->range_test.step_size;
    return s->range_test.min_lr * (1.0 + s->range_test.step_rate * (s->range_test.staircase ? floor(steps) : steps));
}

double schedule_lr(const struct schedule_spec *schedule, double lr, int64_t k)
{
    ASSERT(k >= 1);
    switch (schedule->type) {
    case SCHEDULE_CONSTANT:
    case SCHEDULE_LINEAR:
    case SCHEDULE_COSINE:
    case SCHEDULE_WSD: return own_lr(schedule, lr, k);
    case SCHEDULE_ONE_CYCLE: return one_cycle_lr(schedule, k);
    case SCHEDULE_LR_RANGE_TEST: return range_test_lr(schedule, k);
    default: return deepspeed_lr(schedule, lr, k);
    }
}

bool schedule_has_betas(const struct schedule_spec *schedule)
{
    return schedule->type == SCHEDULE_ONE_CYCLE && schedule->cycle.momentum;
}

void schedule_betas(const struct schedule_spec *s, int64_t k, double *beta1, double *beta2)
{
    ASSERT(schedule_has_betas(s) && k >= 1);
    const double span = s->cycle.max_momentum - s->cycle.min_momentum;
    /* DeepSpeed's engine starts at the minimum, where its formula has the maximum */
    *beta1 = k == 1                    ? s->cycle.min_momentum
             : steps_after_cycle(s, k) ? s->cycle.max_momentum
                                       : s->cycle.max_momentum - span * cycle_height(s, k - 1);
    *beta2 = 0.99;
}
