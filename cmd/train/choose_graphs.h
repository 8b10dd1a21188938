/* choose_graphs.h: whether the steps of a run are launched as CUDA graphs (stepper.h), by train.cuda_graphs. */
#ifndef ZTRAIN_CMD_TRAIN_CHOOSE_GRAPHS_H
#define ZTRAIN_CMD_TRAIN_CHOOSE_GRAPHS_H

#include "comm/comm.h"
#include "core/model_config.h"
#include "core/spec/spec.h"
#include "gpu/device.h"

struct graph_question {
    const struct run_spec *spec;
    const struct model_desc *desc;
    const struct device *device;
    const struct comm *comm; /* attached to the device; NULL in a plan */
    bool profile;            /* each op is timed */
    bool log_choice;
};

/* With auto, graphs are used if they are possible and if the host takes about as long to launch a micro-batch as the
 * GPU takes to compute it. STATUS_USAGE: train.cuda_graphs is true, but graphs are not possible. */
enum status choose_graphs(const struct graph_question *question, bool *graphs, struct error *err);

#endif
