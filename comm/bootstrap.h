/* bootstrap.h: who am I among the ranks, and how do we first talk. Nothing else knows where ranks came from.
 *
 * Sources: one process alone; local ranks started by `ztrain --local-gpus N` (comm/local: environment variables and an
 * inherited memfd). Slurm's PMI-2, PMIx, torchrun's variables: a later step; until then an environment that looks like
 * one of them with more than one rank is refused with "not supported yet". */
#ifndef ZTRAIN_COMM_BOOTSTRAP_H
#define ZTRAIN_COMM_BOOTSTRAP_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct bootstrap {
    int rank, world;
    int local_rank, local_world; /* on this node */
    int node, num_nodes;
    char host[256];
    char source[64]; /* "alone", "--local-gpus 2", "srun (PMI-2)", …: for messages and the log */
    char job_id[64];
    int shared_fd; /* memfd shared by the ranks of this node, -1 if world is 1 */
    int cores;     /* cores that this rank may use (its share of the machine) */
};

enum status bootstrap_init(struct bootstrap *bootstrap, struct error *err);

/* For the supervisor: creates the memfd that its ranks inherit, and sets one child's environment (between fork and
 * exec). */
int bootstrap_local_fd(struct error *err);
void bootstrap_local_env(int rank, int world, int shared_fd);

#endif
