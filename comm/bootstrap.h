/* bootstrap.h: who am I among the ranks, and how do we first talk. Nothing else knows where ranks came from.
 *
 * Sources: one process alone; local ranks started by `ztrain --local-gpus N` (environment variables and an inherited
 * memfd, see control.h). Slurm's PMI-2, PMIx, torchrun's variables: a later step; until then an environment that looks
 * like one of them with more than one rank is refused with "not supported yet". */
#ifndef ZTRAIN_COMM_BOOTSTRAP_H
#define ZTRAIN_COMM_BOOTSTRAP_H

#include "core/status.h"

#include <stdbool.h>
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

/* Whether a supervisor started this process as one of its ranks (it must not supervise again). */
bool bootstrap_is_local_rank(void);

/* STATUS_OK unless the environment says that a launcher (srun, mpirun, torchrun) started several ranks, or says it by
 * halves: what bootstrap_init() refuses, for the supervisor to refuse as well. */
enum status bootstrap_check_launcher(struct error *err);

/* For the supervisor: sets one child's environment (between fork and exec); shared_fd (control_create) is kept open
 * over exec. */
void bootstrap_local_env(int rank, int world, int shared_fd);

/* This machine's name, for messages. */
void bootstrap_host(char *host, size_t size);

/* Cores that this process may run on. */
int bootstrap_cores(void);

#endif
