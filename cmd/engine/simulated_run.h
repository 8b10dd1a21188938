/* SPDX-License-Identifier: Apache-2.0 */
/* simulated_run.h: walks through a step on GPUs that need not be here, and finds its time. Estimated, not measured. */
#pragma once

#include "cmd/engine/engine.h"
#include "comm/transport_simulated.h"
#include "gpu/simulate/simulated_device.h"

struct machine_question {
    int world;
    int per_node;       /* ranks of a node; 0: 8 at most */
    const char *device; /* "h100"; NULL: that */
    const char *link;   /* "400Gbit": of the network where there are several nodes, else inside the node; NULL: usual */
    const char *assume; /* "bf16-logits,fused-bias"; NULL: nothing */
    const char *memory; /* --fit: of each GPU, "80GiB"; NULL: train.memory_limit, else all */
    const char *node_memory; /* --fit: of a node's host; NULL: enough */
};

struct simulated_machine {
    int world;
    struct gpu_model gpu;
    struct assumed_gpu settings; /* its GPU is `gpu`: the struct must not be moved */
    struct comm_link link;
};

/* The ranks of a node with GPUs; per_node: as given, 0: not. */
int simulated_node_ranks(int per_node, int world);

/* STATUS_USAGE: a device, rate or word that is not known. */
enum status simulated_machine_find(const struct machine_question *question, struct simulated_machine *machine,
                                   struct error *err);

/* The link that limits a step: the network if there are several nodes, else the link inside the node. */
double *simulated_machine_limit(const struct simulated_machine *machine, struct comm_link *link);

/* The line about the disk that is assumed for a run that offloads to NVMe. */
void simulated_machine_print_disk(const struct simulated_machine *machine);

struct simulated_run {
    const struct simulated_machine *machine; /* borrowed */
    struct engine engine;
    struct comm *comm;
    bool started;  /* its memory is laid out */
    int64_t steps; /* walked so far */
};

/* Builds the run of a spec with resolved batch sizes, borrowed, with its plan. Zeros and failures can be released. */
enum status simulated_run_build(struct simulated_run *walk, const struct simulated_machine *machine,
                                struct run_spec *spec, bool quiet, struct error *err);
void simulated_run_release(struct simulated_run *walk);

/* The times of a step over `link`, under these assumptions in addition to the machine's. */
enum status simulated_run_step(struct simulated_run *walk, unsigned assumptions, const struct comm_link *link,
                               struct simulated_times *times, struct error *err);

/* Which layers have the shape of attention: " of 5 layers (heads of 512, no window)". */
enum { ATTENTION_LAYERS = 128, ATTENTION_PRICE = 32 };
void attention_layers(const struct op_limits *limits, int shape, char text[ATTENTION_LAYERS]);

/* How much longer a step takes because ztrain's kernels compute attention: "about 12 %"; empty: not known. tried: where
 * that device has an obstacle, after ops_prepare(); NULL: where the simulated one would. */
void attention_price(struct simulated_run *walk, struct simulated_machine *machine, struct device *tried,
                     char text[ATTENTION_PRICE]);

/* Tokens of a step over all ranks, and the MFU, in percent, of a step that takes this many seconds. */
double simulated_run_tokens(const struct simulated_run *walk);
double simulated_run_mfu(const struct simulated_run *walk, double seconds);
