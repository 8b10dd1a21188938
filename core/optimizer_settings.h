/* optimizer_settings.h: the run spec's settings of the optimizer, for the modules that compute with it. */
#ifndef ZTRAIN_CORE_OPTIMIZER_SETTINGS_H
#define ZTRAIN_CORE_OPTIMIZER_SETTINGS_H

#include "core/status.h"

#include <stdbool.h>

enum optimizer_type {
    OPTIMIZER_ADAMW, /* weight decay is applied to the weights */
    OPTIMIZER_ADAM,  /* weight decay is added to the gradient as L2 (adam_w_mode: false) */
    OPTIMIZER_LION,  /* weight decay as AdamW */
    OPTIMIZER_SGD,   /* torch.optim.SGD: weight decay is added to the gradient */
    OPTIMIZER_COUNT
};

struct optimizer_settings {
    enum optimizer_type type;
    double lr;           /* before the schedule */
    double beta1, beta2; /* Adam, Lion; unless the schedule sets them; double on the device as well: see step_rates */
    double eps;          /* Adam */
    double weight_decay;
    double momentum, dampening; /* SGD */
    bool nesterov;              /* SGD */
    bool bias_correction;       /* Adam */
    bool weight_decay_all;      /* biases and norms decay as well */
};

/* "AdamW", "SGD", … as in the run spec */
static inline const char *optimizer_name(enum optimizer_type type)
{
    static const char *const names[] = {"AdamW", "Adam", "Lion", "SGD"};
    STATIC_ASSERT(sizeof names / sizeof *names == OPTIMIZER_COUNT, "every optimizer has a name");
    return names[type];
}

/* Values of state that the optimizer keeps for each parameter, apart from the master weights. */
static inline int optimizer_moments(const struct optimizer_settings *settings)
{
    switch (settings->type) {
    case OPTIMIZER_ADAMW:
    case OPTIMIZER_ADAM: return 2;
    case OPTIMIZER_LION: return 1;
    case OPTIMIZER_SGD: return settings->momentum != 0;
    case OPTIMIZER_COUNT: break;
    }
    return 2;
}

#endif
