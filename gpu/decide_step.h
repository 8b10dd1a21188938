/* SPDX-License-Identifier: Apache-2.0 */
/* decide_step.h: the decision of an optimizer step, for host and device code (CUDA compiles this header too). */
#pragma once

#include "gpu/ops.h"

/* Sets *a->state. squares: the sum over all units; bad_unit: the first unit where it was not finite, -1: none. */
HOST_DEVICE void decide_by_sum(const struct decide_step_args *a, double squares, int bad_unit)
{
    struct step_state *s = a->state;
    const int64_t row = a->units + 1;
    const int ranks = a->world / a->turns;
    double loss_sum = 0;
    int bad_loss_rank = -1;
    for (int r = 0; r < a->world; r++) {
        double loss = a->reports[(r % ranks * a->turns + r / ranks) * row + a->units];
        loss_sum += loss;
        if (bad_loss_rank < 0 && !isfinite(loss)) bad_loss_rank = r;
    }
    const struct step_rates *rates = &a->schedule->rates[s->optimizer_step == a->schedule->base ? 0 : 1];
    const double scale = s->scaler.scale * a->grad_factor, norm = sqrt(squares) / scale;
    s->bad_unit = bad_unit;
    s->bad_loss_rank = bad_loss_rank;
    s->loss_sum = loss_sum;
    s->grad_norm = norm;
    s->lr = rates->lr;
    s->correction1 = rates->correction1;
    s->correction2 = rates->correction2;
    s->beta1 = rates->beta1;
    s->beta2 = rates->beta2;
    s->used_loss_scale = (float)s->scaler.scale;
    s->skipped = bad_unit >= 0;
    s->grad_scale = (float)((a->clip > 0 && norm > a->clip ? a->clip / (norm + 1e-6) : 1) / scale);
    s->optimizer_step += bad_unit < 0;
    loss_scaler_update(&s->scaler, &a->scaler, bad_unit >= 0);
    s->loss_scale = (float)s->scaler.scale;
}
