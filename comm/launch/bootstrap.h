/* SPDX-License-Identifier: Apache-2.0 */
/* bootstrap.h: finds this process's rank, and lets the ranks exchange their first values. They were started by the
 * first of these that applies (bootstrap.source):
 *
 *   local ranks   `ztrain --local-gpus N` started this process: three ZTRAIN_LOCAL_* variables and an inherited memfd
 *   torchrun      RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   PMI-2         srun --mpi=pmi2 (PMI_FD)
 *   PMIx          srun --mpi=pmix, mpirun (PMIX_NAMESPACE, PMIX_RANK)
 *   SLURM_*       srun --mpi=none, if ZTRAIN_JOB_SECRET is set
 *   alone         none of them, or one rank
 *
 * Environments that contradict each other or are incomplete are refused: ranks that each take themselves for the only
 * one would write the same run folder.
 *
 * One thread uses a bootstrap, but any may call bootstrap_abort(). */
#pragma once

#include "core/core.h"

enum {
    BOOTSTRAP_MAX_RANKS = 4096,
    BOOTSTRAP_KEY_MAX = 48,                          /* characters of a key */
    BOOTSTRAP_EXCHANGE_MAX = 500,                    /* bytes of bootstrap_exchange() */
    BOOTSTRAP_VALUE_MAX = 2 * BOOTSTRAP_EXCHANGE_MAX /* characters of these in hexadecimal digits */
};

/* Ranks of one node share a kernel and its namespaces: they can share memory. */
struct rank_place {
    int node;       /* nodes are numbered in the order of their lowest ranks */
    int local_rank; /* number of the rank among the ranks of its node */
    int pid;        /* as seen on its node; 0: not known (a supervisor's ranks) */
    char host[64];  /* for messages; two nodes may have the same name */
};

struct launcher;

struct bootstrap {
    int rank, world;
    int local_rank, local_world; /* on this node; before bootstrap_connect() the launcher's */
    int node, num_nodes;
    struct rank_place *places; /* (world), owned; NULL before bootstrap_connect() */
    char host[256];
    char source[96]; /* "alone", "--local-gpus 2", "srun --mpi=pmi2, 4 ranks on 2 nodes", …: for messages and the log */
    char job_id[64]; /* "" or a name for this start of the job, the same on every rank: "812.0", requeued "812.0.r1" */
    unsigned char secret[32];  /* of the job; zero when alone or local */
    int shared_fd;             /* memfd shared by a supervisor's ranks, else -1 */
    int cores;                 /* of this process; after bootstrap_connect() its share, in threads */
    double start_seconds;      /* limit of the job's start; set by bootstrap_connect() */
    bool failed_together;      /* all ranks know that all of them end with an error */
    int unused_pmi_fd;         /* PMI_FD of a refused rank: see bootstrap_refuse(); else -1 */
    struct launcher *launcher; /* owned; NULL: alone, or a supervisor's local rank */
};

/* On failure nothing has to be released; rank, world, host and job_id are the best guess for messages. */
enum status bootstrap_init(struct bootstrap *bootstrap, struct error *err);

/* After bootstrap_init() has failed with `code`: makes the other ranks' bootstrap_connect() fail with it. */
void bootstrap_refuse(const struct bootstrap *bootstrap, enum status code);

/* Collective, by the launcher if there is one: exchanges the secret and the places of all ranks. A start may take
 * max(timeout, 10) + 0.25 s × world. interface: for ztrain's own store (torchrun, SLURM_*), or NULL. A failure is
 * STATUS_PEER unless the input is wrong. */
enum status bootstrap_connect(struct bootstrap *bootstrap, double timeout_seconds, const char *interface,
                              struct error *err);

/* Collective, after bootstrap_connect(): all (world × bytes) = every rank's own (at most BOOTSTRAP_EXCHANGE_MAX), in
 * rank order. key: another one each time. Fails after start_seconds. Not for a supervisor's local ranks. */
enum status bootstrap_exchange(struct bootstrap *bootstrap, const char *key, const void *own, size_t bytes, void *all,
                               struct error *err);

/* Makes the launcher end the job on all nodes, if possible with `code`. May end this process, or return: the caller
 * then exits. Any thread. */
void bootstrap_abort(struct bootstrap *bootstrap, enum status code, const char *text);

/* Leaves the job in order. */
void bootstrap_finish(struct bootstrap *bootstrap);

/* Frees the memory, without communication. */
void bootstrap_release(struct bootstrap *bootstrap);

/* Whether a supervisor started this process. */
bool bootstrap_is_local_rank(void);

/* For the supervisor: STATUS_OK unless a launcher seems to have started several ranks. */
enum status bootstrap_check_launcher(struct error *err);

/* STATUS_OK unless this is a single rank in a batch script whose job has several tasks or nodes: srun was forgotten. */
enum status bootstrap_check_alone(struct error *err);

/* For the supervisor, between fork and exec: sets a child's environment; shared_fd (control_create) stays open. */
void bootstrap_local_env(int rank, int world, int shared_fd);

/* This machine's name, for messages. */
void bootstrap_host(char *host, size_t size);

/* Cores that this process may use, at most those of its Slurm job on this node. */
int bootstrap_cores(void);

/* Threads for each of `ranks` ranks that share `cores`: OMP_NUM_THREADS, else an equal share, at least one. */
int bootstrap_threads(int cores, int ranks);
