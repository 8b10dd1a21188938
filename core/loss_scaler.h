/* loss_scaler.h: the dynamic loss scale of fp16, as DeepSpeed 0.19 counts it (runtime/fp16/loss_scaler.py).
 *
 * After every step: an overflow takes one of `hysteresis`; at the last it halves the scale, down to min_scale, and once
 * more at the floor ends the run (exhausted). With `window` clean steps behind it, and every window from then on, a
 * clean step doubles the scale and fills the hysteresis up again; with consecutive_hysteresis every clean step fills it
 * up.
 *
 * One function for the host and for device code (CUDA compiles this header, too). */
#ifndef ZTRAIN_CORE_LOSS_SCALER_H
#define ZTRAIN_CORE_LOSS_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LOSS_SCALER_FUNCTION static __host__ __device__ inline
#else
#define LOSS_SCALER_FUNCTION static inline
#endif

struct loss_scaler_rules {
    bool dynamic; /* false: the scale never changes */
    bool consecutive_hysteresis;
    int32_t hysteresis; /* at least 1 */
    int64_t window;     /* steps, at least 1 */
    double min_scale;
};

struct loss_scaler {
    double scale;          /* of the next step's loss */
    int64_t steps;         /* seen so far, overflows included */
    int64_t last_overflow; /* its number from 0; -1: none */
    int32_t hysteresis;    /* overflows left until the scale halves */
    bool exhausted;        /* an overflow at min_scale: there is no way down */
};

LOSS_SCALER_FUNCTION void loss_scaler_init(struct loss_scaler *scaler, const struct loss_scaler_rules *rules,
                                           double initial_scale)
{
    scaler->scale = initial_scale;
    scaler->steps = 0;
    scaler->last_overflow = -1;
    scaler->hysteresis = rules->hysteresis;
    scaler->exhausted = false;
}

LOSS_SCALER_FUNCTION void loss_scaler_update(struct loss_scaler *scaler, const struct loss_scaler_rules *rules,
                                             bool overflow)
{
    int64_t step = scaler->steps++;
    if (!rules->dynamic)
        return;
    if (overflow) {
        scaler->last_overflow = step;
        if (scaler->hysteresis > 1) {
            scaler->hysteresis--;
            return;
        }
        scaler->exhausted = scaler->scale <= rules->min_scale;
        scaler->scale = scaler->scale / 2 > rules->min_scale ? scaler->scale / 2 : rules->min_scale;
        return;
    }
    int64_t stable = step - scaler->last_overflow - 1;
    bool grows = stable > 0 && stable % rules->window == 0;
    if (grows || rules->consecutive_hysteresis)
        scaler->hysteresis = rules->hysteresis;
    if (grows)
        scaler->scale *= 2;
}

#endif
