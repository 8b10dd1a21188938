/* choose_graphs.h: whether the steps of a run are launched as CUDA graphs (stepper.h), by train.cuda_graphs. */
#ifndef ZTRAIN_CMD_TRAIN_CHOOSE_GRAPHS_H
#define ZTRAIN_CMD_TRAIN_CHOOSE_GRAPHS_H

#include "comm/comm.h"
#include "core/model.h"
#include "core/spec/spec.h"
#include "gpu/device.h"

struct graph_question {
    const struct run_spec *spec;
    const struct model_desc *desc;
    const struct device *device;
    const struct comm *comm; /* attached to the device; NULL: a plan */
    bool profile;            /* ops are timed one by one */
    bool say;                /* tell the log */
};

/* true where they cannot be: STATUS_USAGE. auto: where they can be, and the host needs about as long to launch a
 * micro-batch as the GPU to compute it. */
enum status choose_graphs(const struct graph_question *question, bool *graphs, struct error *err);

#endif
