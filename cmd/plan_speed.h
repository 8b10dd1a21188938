/* plan_speed.h: `ztrain plan --speed`: how fast a run would be on GPUs that need not be here. Estimated, not measured.
 */
#ifndef ZTRAIN_CMD_PLAN_SPEED_H
#define ZTRAIN_CMD_PLAN_SPEED_H

#include "core/spec/spec.h"
#include "core/status.h"

struct speed_question {
    struct run_spec *spec; /* its batch sizes are resolved for `world` */
    int world;
    int per_node;       /* ranks of a node; 0: 8 at most */
    const char *device; /* "h100"; NULL: that */
    const char *link;   /* "400Gbit": of the network where there are several nodes, else inside the node; NULL: usual */
    const char *assume; /* "bf16-logits,fused-bias"; NULL: nothing */
};

/* Prints the plan. STATUS_USAGE: a device, rate or word that is not known. */
enum status plan_speed(const struct speed_question *question, struct error *err);

#endif
