/* SPDX-License-Identifier: Apache-2.0 */
/* loss_scaler.h: the dynamic loss scale of fp16, with the rules of DeepSpeed 0.19 (runtime/fp16/loss_scaler.py).
 *
 * After every step: an overflow lowers the hysteresis by one; the last one halves the scale, but not below min_scale,
 * and an overflow at min_scale ends the run (exhausted). After every `window` steps without overflow, a step doubles
 * the scale and resets the hysteresis; with consecutive_hysteresis every step without overflow resets it.
 *
 * The same function serves the host and device code (CUDA compiles this header too). */
#pragma once

#include "core/host_device.h"
#include "core/status.h"

struct loss_scaler_rules {
    bool dynamic; /* false: the scale never changes */
    bool consecutive_hysteresis;
    int32_t hysteresis; /* at least 1 */
    int64_t window;     /* steps, at least 1 */
    double min_scale;
};

struct loss_scaler {
    double scale;          /* of the loss of the next step */
    int64_t steps;         /* steps so far, including overflows */
    int64_t last_overflow; /* its number from 0; -1: none */
    int32_t hysteresis;    /* overflows left until the scale halves */
    bool exhausted;        /* an overflow at min_scale: the scale cannot be halved further */
};

HOST_DEVICE void loss_scaler_init(struct loss_scaler *scaler, const struct loss_scaler_rules *rules,
                                  double initial_scale)
{
    scaler->scale = initial_scale;
    scaler->steps = 0;
    scaler->last_overflow = -1;
    scaler->hysteresis = rules->hysteresis;
    scaler->exhausted = false;
}

HOST_DEVICE void loss_scaler_update(struct loss_scaler *scaler, const struct loss_scaler_rules *rules, bool overflow)
{
    int64_t step = scaler->steps++;
    if (!rules->dynamic) return;
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
    if (grows || rules->consecutive_hysteresis) scaler->hysteresis = rules->hysteresis;
    if (grows) scaler->scale *= 2;
}
