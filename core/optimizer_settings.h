/* optimizer_settings.h: what the spec sets of the optimizer, for all that compute with it. */
#ifndef ZTRAIN_CORE_OPTIMIZER_SETTINGS_H
#define ZTRAIN_CORE_OPTIMIZER_SETTINGS_H

#include <stdbool.h>

enum optimizer_type {
    OPTIMIZER_ADAMW, /* weight decay is applied to the weights */
    OPTIMIZER_ADAM   /* weight decay is added to the gradient as L2 (adam_w_mode: false) */
};

struct optimizer_settings {
    enum optimizer_type type;
    double lr;           /* before the schedule */
    double beta1, beta2; /* double on the device as well: see struct adam_args */
    double eps, weight_decay;
    bool bias_correction;
    bool weight_decay_all; /* biases and norms decay as well */
};

#endif
