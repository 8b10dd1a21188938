#include "core/lr_schedule.h"

#include "core/status.h"

#include <math.h>

const char *schedule_name(enum schedule_type type)
{
    static const char *const names[] = {
        [SCHEDULE_CONSTANT] = "Constant",
        [SCHEDULE_LINEAR] = "Linear",
        [SCHEDULE_COSINE] = "Cosine",
        [SCHEDULE_WARMUP_LR] = "WarmupLR",
        [SCHEDULE_WARMUP_DECAY_LR] = "WarmupDecayLR",
        [SCHEDULE_WARMUP_COSINE_LR] = "WarmupCosineLR",
    };
    _Static_assert(COUNT_OF(names) == SCHEDULE_COUNT, "every schedule has a name");
    return names[type];
}

/* Ours: warm-up to lr over W steps, then `decayed` of the way x in [0, 1]. */
static double own_lr(const struct schedule_spec *s, double lr, int64_t k)
{
    if (k <= s->warmup_steps)
        return lr * (double)k / (double)s->warmup_steps;
    if (s->type == SCHEDULE_CONSTANT)
        return lr;
    double span = (double)(s->total_steps - s->warmup_steps);
    double x = span > 0 ? fmin(1.0, (double)(k - s->warmup_steps) / span) : 1.0;
    double keep = s->type == SCHEDULE_LINEAR ? 1.0 - x : 0.5 * (1.0 + cos(M_PI * x));
    return s->min_lr + (lr - s->min_lr) * keep;
}

/* DeepSpeed's warm-up factor at schedule index i: "log" ln(i + 1) / ln(N), "linear" i / N, 1 from N on. */
static double warmup_gamma(const struct schedule_spec *s, int64_t i, int64_t warmup)
{
    if (i >= warmup)
        return 1.0;
    return s->warmup_linear ? (double)i / (double)warmup : log((double)i + 1.0) / log((double)warmup);
}

static double deepspeed_lr(const struct schedule_spec *s, double lr, int64_t k)
{
    int64_t warmup = s->warmup_steps < 2 ? 2 : s->warmup_steps; /* DeepSpeed takes at least 2 */
    int64_t i = k - 2;
    if (s->type == SCHEDULE_WARMUP_COSINE_LR) {
        if (i < 0)
            return 0.0; /* whatever warmup_min_ratio is */
        double ratio;
        if (i < warmup) {
            ratio = s->warmup_min_ratio + (1.0 - s->warmup_min_ratio) * warmup_gamma(s, i, warmup);
        } else {
            double done = (double)(i - warmup + 1), span = fmax(1.0, (double)(s->total_steps - warmup));
            double cosine = (1.0 + cos(M_PI * fmin(1.0, done / span))) / 2.0;
            ratio = fmax(0.0, s->cos_min_ratio + (1.0 - s->cos_min_ratio) * cosine);
        }
        return lr * ratio;
    }
    double low = s->warmup_min_lr, high = s->warmup_max_lr < 0 ? lr : s->warmup_max_lr;
    if (i < 0)
        return low;
    double gamma = warmup_gamma(s, i, warmup);
    if (s->type == SCHEDULE_WARMUP_DECAY_LR && i >= warmup) {
        double span = (double)(s->total_steps - warmup);
        gamma = fmax(0.0, (double)(s->total_steps - i) / fmax(1.0, span));
    }
    return low + (high - low) * gamma;
}

double schedule_lr(const struct schedule_spec *schedule, double lr, int64_t k)
{
    ASSERT(k >= 1);
    switch (schedule->type) {
    case SCHEDULE_CONSTANT:
    case SCHEDULE_LINEAR:
    case SCHEDULE_COSINE: return own_lr(schedule, lr, k);
    default: return deepspeed_lr(schedule, lr, k);
    }
}
