/* bootstrap.h: finds this process's rank, and lets the ranks exchange their first values. The rest of the program does
 * not depend on how the ranks were started.
 *
 * Ranks are started in one of these ways; the first that applies is taken (bootstrap.source names it in the log):
 *   local ranks   `ztrain --local-gpus N` started this process: three ZTRAIN_LOCAL_* variables and an inherited memfd
 *   torchrun      RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   PMI-2         srun --mpi=pmi2 (PMI_FD)
 *   PMIx          srun --mpi=pmix, mpirun (PMIX_NAMESPACE, PMIX_RANK)
 *   SLURM_*       srun --mpi=none, if ZTRAIN_JOB_SECRET is set
 *   alone         none of them, or one rank
 * Environments that contradict each other or are incomplete are refused: several ranks that each take themselves for
 * the only one would write the same run folder.
 *
 * bootstrap_init() reads the environment only. bootstrap_connect() talks to the launcher; after it each rank has the
 * places of all ranks, the job's secret and a small exchange, which is enough for comm/ to connect the peers.
 * One thread uses a bootstrap, but bootstrap_abort() may be called by any. */
#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    BOOTSTRAP_MAX_RANKS = 4096,
    BOOTSTRAP_KEY_MAX = 48,                          /* characters of a key */
    BOOTSTRAP_EXCHANGE_MAX = 500,                    /* bytes of bootstrap_exchange() */
    BOOTSTRAP_VALUE_MAX = 2 * BOOTSTRAP_EXCHANGE_MAX /* characters of these in hexadecimal digits */
};

/* Where a rank is. Ranks of one node share a kernel and its namespaces: they can share memory. */
struct rank_place {
    int node;       /* nodes are numbered in the order of their lowest ranks */
    int local_rank; /* number of the rank among the ranks of its node */
    int pid;        /* as seen on its node; 0: not known (a supervisor's ranks) */
    char host[64];  /* for messages; two nodes may have the same name */
};

struct launcher;

struct bootstrap {
    int rank, world;
    int local_rank, local_world; /* on this node; before bootstrap_connect() the launcher's values */
    int node, num_nodes;
    struct rank_place *places; /* (world), owned; NULL before bootstrap_connect() */
    char host[256];
    char source[96]; /* "alone", "--local-gpus 2", "srun --mpi=pmi2, 4 ranks on 2 nodes", …: for messages and the log */
    char job_id[64]; /* "" or a name for this start of the job, the same on every rank: "812.0", requeued "812.0.r1" */
    unsigned char secret[32];  /* of the job: proves to peers that a rank belongs to it; zero when alone or local */
    int shared_fd;             /* memfd shared by a supervisor's ranks, else -1 */
    int cores;                 /* that this process may run on; after bootstrap_connect() this rank's threads */
    double start_seconds;      /* limit of the job's start; set by bootstrap_connect() */
    bool failed_together;      /* all ranks know that all of them end with an error */
    int unused_pmi_fd;         /* PMI_FD of a refused rank: see bootstrap_refuse(); else -1 */
    struct launcher *launcher; /* owned; NULL: alone, or a supervisor's local rank */
};

/* Reads the environment. On failure nothing has to be released; rank, world, host and job_id are then the best guess
 * for messages. */
enum status bootstrap_init(struct bootstrap *bootstrap, struct error *err);

/* After bootstrap_init() has failed with `code`: informs the other ranks, where the launcher allows it, that this rank
 * does not come; their bootstrap_connect() then fails with the same code. */
void bootstrap_refuse(const struct bootstrap *bootstrap, enum status code);

/* Collective: exchanges the secret, and the places, nodes and local ranks of all. Alone and for local ranks it fills
 * the places without communication. timeout_seconds is the job's comm.timeout_seconds: a start may take max(timeout,
 * 10) + 0.25 s × world. interface: name of the network interface for ztrain's own store (torchrun, SLURM_*), or NULL. A
 * failure is STATUS_PEER unless the input is wrong. */
enum status bootstrap_connect(struct bootstrap *bootstrap, double timeout_seconds, const char *interface,
                              struct error *err);

/* Collective, after bootstrap_connect(): all (world × bytes) = every rank's own (bytes, at most
 * BOOTSTRAP_EXCHANGE_MAX), in rank order. key: another one for each exchange. Fails after start_seconds. It works alone
 * as well, but not for a supervisor's local ranks. */
enum status bootstrap_exchange(struct bootstrap *bootstrap, const char *key, const void *own, size_t bytes, void *all,
                               struct error *err);

/* Makes the launcher end the job on all nodes, this process included, with `code` if the launcher can pass that on. For
 * a rank that ends while its peers may wait for it. May return (alone, local ranks, a launcher that does not answer):
 * the caller then exits. Any thread. */
void bootstrap_abort(struct bootstrap *bootstrap, enum status code, const char *text);

/* Leaves the job in order, once all ranks have finished. */
void bootstrap_finish(struct bootstrap *bootstrap);

/* Frees the memory, without communication. */
void bootstrap_release(struct bootstrap *bootstrap);

/* Whether a supervisor started this process as one of its ranks (it must not supervise again). */
bool bootstrap_is_local_rank(void);

/* STATUS_OK unless the environment shows, in whole or in part, that a launcher (srun, mpirun, torchrun) started several
 * ranks. For the supervisor, whose local ranks would come in addition to those. */
enum status bootstrap_check_launcher(struct error *err);

/* STATUS_OK unless this process is a single rank in a batch script or an interactive shell whose job has several tasks
 * or nodes: there the user forgot srun. */
enum status bootstrap_check_alone(struct error *err);

/* For the supervisor: sets one child's environment (between fork and exec); shared_fd (control_create) is kept open
 * over exec. */
void bootstrap_local_env(int rank, int world, int shared_fd);

/* This machine's name, for messages. */
void bootstrap_host(char *host, size_t size);

/* Cores that this process may run on, and at most those that Slurm has given to its job on this node. */
int bootstrap_cores(void);

/* Threads for each of `ranks` ranks that share `cores`: OMP_NUM_THREADS, else an equal share, at least one. */
int bootstrap_threads(int cores, int ranks);
