/* SPDX-License-Identifier: Apache-2.0 */
/* loss_spike.h: tells a loss that stands out (train.spike_factor). The running mean m of n losses takes the next one
 * with the weight 1 / min(n, LOSS_MEAN_STEPS). After LOSS_MEAN_LEAST losses, one above factor · m is a spike, and
 * enters as factor · m. A loss that is not finite is always one, and does not enter. */
#pragma once

#include "core/status.h"

enum { LOSS_MEAN_LEAST = 10, LOSS_MEAN_STEPS = 50 };

/* A part of a checkpoint's position. All zero: no loss yet. */
struct loss_mean {
    double mean;
    int64_t steps; /* losses in it */
};

/* Takes the loss of a step and returns whether it is a spike. factor 0: off, and the mean is forgotten. */
bool loss_mean_take(struct loss_mean *mean, double factor, double loss);
