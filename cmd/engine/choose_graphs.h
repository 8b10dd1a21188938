/* choose_graphs.h: whether the steps of a run, or the blocks in them, are launched as CUDA graphs, by
 * train.cuda_graphs. */
#pragma once

#include "comm/comm.h"
#include "core/model/model_config.h"
#include "core/spec/spec.h"
#include "gpu/device.h"

/* BY_BLOCK: gpu/model/block_graphs.h. BY_STEP: stepper.h. */
enum graph_mode { GRAPHS_NONE, GRAPHS_BY_BLOCK, GRAPHS_BY_STEP };

struct graph_question {
    const struct run_spec *spec;
    const struct model_desc *desc;
    const struct device *device;
    const struct comm *comm; /* attached to the device; NULL in a plan */
    bool profile;            /* each op is timed */
    bool log_choice;
};

/* By step where that is possible, else by block. With auto, graphs are used only if the host takes about as long to
 * launch a micro-batch as the GPU takes to compute it. STATUS_USAGE: train.cuda_graphs is true, but neither is
 * possible. */
enum status choose_graphs(const struct graph_question *question, enum graph_mode *graphs, struct error *err);
