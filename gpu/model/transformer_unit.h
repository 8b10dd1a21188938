/* transformer_unit.h: a unit of the model in use (embedding, block, head), between acquiring and releasing it. */
#pragma once

#include "gpu/model/transformer_state.h"

/* One pass over the units, forward or forward and backward: the values that all units share. */
struct pass {
    struct transformer *transformer;
    struct batch batch; /* its arrays are on the device */
    int64_t M;          /* batch.num_tokens */
    bool training;      /* there is dropout, if the model has any */
    const struct param_verbs *verbs;
    struct stream *stream;
    struct error *err;
    struct loss_factor factor; /* training */
    double *loss_sum;          /* device scalar */
    /* evaluation of a classifier: the batch's targets, and where the logits of rows with a target go; else NULL */
    const int32_t *host_targets;
    float *host_logits;
    const struct kv_cache *cache; /* generation: of the tokens before these, and gets these; else NULL */
};

/* A unit between unit_acquire() and unit_release(), its gradients between unit_grads() and unit_ready(). */
struct unit {
    int index;
    enum param_pass kind;
    struct unit_params params; /* dt */
    struct unit_grads to;      /* where its gradients go, set by unit_grads() */
};

/* The verbs of gpu/parameter_verbs.h for one unit. */
enum status unit_acquire(const struct pass *pass, struct unit *unit, int index, enum param_pass kind);
void unit_release(const struct pass *pass, const struct unit *unit);
/* In a pass without tokens no op will write the gradients: unit_grads() zeroes them, unless they accumulate. */
enum status unit_grads(const struct pass *pass, struct unit *unit);
enum status unit_ready(const struct pass *pass, const struct unit *unit);

/* The unit's tensor of that role and its gradient; NULL if the unit has no such tensor, or no gradient because it is
 * frozen. */
const void *unit_param(const struct transformer *t, const struct unit *unit, enum tensor_role role);
float *unit_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role);

/* Where the gradient of a matrix goes: bf16 in matrix_sums, else fp32. */
void *unit_matrix_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role);
