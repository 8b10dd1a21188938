/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/loss_spike.h"

bool loss_mean_take(struct loss_mean *mean, double factor, double loss)
{
    if (factor <= 0) {
        *mean = (struct loss_mean){0};
        return false;
    }
    if (!isfinite(loss)) return true;
    const double limit = factor * mean->mean;
    const bool spike = mean->steps >= LOSS_MEAN_LEAST && loss > limit;
    mean->steps++;
    const int64_t weight = mean->steps < LOSS_MEAN_STEPS ? mean->steps : LOSS_MEAN_STEPS;
    mean->mean += ((spike ? limit : loss) - mean->mean) / (double)weight;
    return spike;
}
