/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_settings.h: the run spec's settings of the optimizer, for the modules that compute with it. */
#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum optimizer_type {
    OPTIMIZER_ADAMW,     /* weight decay is applied to the weights */
    OPTIMIZER_ADAM,      /* weight decay is added to the gradient as L2 (adam_w_mode: false) */
    OPTIMIZER_LION,      /* weight decay as AdamW */
    OPTIMIZER_SGD,       /* torch.optim.SGD: weight decay is added to the gradient */
    OPTIMIZER_MUON,      /* torch.optim.Muon for the matrices of the blocks, AdamW for everything else */
    OPTIMIZER_ADAMW8BIT, /* torchao's AdamW8bit: AdamW with moments in 8 bits */
    OPTIMIZER_COUNT
};

/* Muon's learning rate for a matrix of (rows, columns), as it is stored, is lr times */
enum lr_adjustment {
    ADJUST_ORIGINAL,        /* sqrt(max(1, rows / columns)) */
    ADJUST_MATCH_RMS_ADAMW, /* 0.2 sqrt(max(rows, columns)): lr and weight_decay may be those of AdamW */
    ADJUST_SPECTRAL,        /* sqrt(rows / columns) */
};

struct optimizer_settings {
    enum optimizer_type type;
    double lr;           /* before the schedule */
    double beta1, beta2; /* Adam, Lion; unless the schedule sets them; double on the device as well: see step_rates */
    double eps;          /* Adam */
    double weight_decay;
    double momentum, dampening;      /* SGD; Muon: the former */
    bool nesterov;                   /* SGD, Muon */
    bool bias_correction;            /* Adam */
    bool weight_decay_all;           /* biases and norms decay as well */
    double muon_lr, adam_lr;         /* Muon: of its matrices, and of everything else; 0: lr */
    int64_t ns_steps;                /* Muon: Newton-Schulz iterations */
    enum lr_adjustment adjust_lr_fn; /* Muon */
};

/* "AdamW", "SGD", … as in the run spec */
static inline const char *optimizer_name(enum optimizer_type type)
{
    static const char *const names[] = {"AdamW", "Adam", "Lion", "SGD", "Muon", "AdamW8bit"};
    STATIC_ASSERT(sizeof names / sizeof *names == OPTIMIZER_COUNT, "every optimizer has a name");
    return names[type];
}

/* The learning rate that the schedule starts from, that of AdamW where an optimizer has two; and Muon's as a multiple
 * of it. */
static inline double optimizer_base_lr(const struct optimizer_settings *settings)
{
    return settings->type == OPTIMIZER_MUON && settings->adam_lr > 0 ? settings->adam_lr : settings->lr;
}

static inline double optimizer_muon_factor(const struct optimizer_settings *settings)
{
    const double lr = settings->muon_lr > 0 ? settings->muon_lr : settings->lr, base = optimizer_base_lr(settings);
    return base > 0 ? lr / base : 1;
}

/* Values of state that the optimizer keeps for each parameter, apart from the master weights. Of Muon's matrices it
 * keeps one: their second moments are zeros that take no memory. */
static inline int optimizer_moments(const struct optimizer_settings *settings)
{
    switch (settings->type) {
    case OPTIMIZER_ADAMW:
    case OPTIMIZER_MUON:
    case OPTIMIZER_ADAMW8BIT:
    case OPTIMIZER_ADAM: return 2;
    case OPTIMIZER_LION: return 1;
    case OPTIMIZER_SGD: return settings->momentum != 0;
    case OPTIMIZER_COUNT: break;
    }
    return 2;
}
