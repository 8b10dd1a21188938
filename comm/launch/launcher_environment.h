/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_environment.h: the variables that launchers have set in the environment, and whether they are consistent. */
#pragma once

#include "core/status.h"

enum claimant { CLAIM_TORCHRUN, CLAIM_PMI2, CLAIM_PMIX, CLAIM_SLURM, CLAIM_MPIRUN, CLAIM_COUNT };

/* A launcher's variables. */
struct claim {
    const char *rank_name, *world_name; /* NULL: not set */
    int rank, world;                    /* -1: not set */
};

struct claims {
    struct claim of[CLAIM_COUNT];
    int rank, world; /* on which they agree; 0 of 1: alone */
    bool elastic;    /* torchrun itself started this process: no other claim counts */
};

/* Refuses an environment that is incomplete or contradicts itself. On failure rank and world are the best guess. */
enum status claims_read(struct claims *claims, struct error *err);

bool claim_is_whole(const struct claim *claim);

/* "SLURM_PROCID=1, SLURM_NTASKS=2" */
enum { CLAIM_TEXT = 160 };
const char *claim_print(const struct claim *claim, char text[CLAIM_TEXT]);

/* The line that starts `world` ranks with PMI-2, for hints. */
enum { SRUN_LINE = 96 };
const char *srun_line(int world, char line[SRUN_LINE]);

/* A variable that is set and not empty, or NULL. */
const char *env_variable(const char *name);
/* A whole non-negative number, or -1. */
int env_number(const char *text);

/* Batch scripts and shells are not tasks, though they have SLURM_PROCID=0, SLURM_NTASKS, and in some versions a step
 * id. */
bool slurm_step_is_task(void);

/* Whether there are variables of a step, even without those of a task. */
bool slurm_step_is_set(void);

/* The number of tasks in a list such as "4(x2),3": 11. -1: not a list. */
int slurm_task_count(const char *list);

/* The first node of "n[0-3,5],gpu-[01-10]" or "a[1-2]b[3-4]": "n0", "a1b3". False: not a list, or longer than out. */
bool slurm_first_node(const char *list, char *out, size_t size);
