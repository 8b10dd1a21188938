/* slurm_step.h: reads Slurm's variables of this process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether srun started this process as a task. Batch scripts and interactive shells are not tasks, though they have
 * SLURM_PROCID=0 and their job's SLURM_NTASKS, and in some versions a special step id (above
 * SLURM_MAX_NORMAL_STEP_ID). */
bool slurm_step_is_task(void);

/* Whether there are variables that only srun's steps have, even without those of a task. */
bool slurm_step_is_set(void);

/* Whether the step is a batch script's or an interactive shell's: its variables describe the job, not tasks. */
bool slurm_step_is_script(void);

/* The number of tasks in a list such as "4(x2),3": 11. -1: not a list. */
int slurm_task_count(const char *list);

/* The first node of a list such as "n[0-3,5],gpu-[01-10]" or "a[1-2]b[3-4]": "n0", "a1b3". False: not a list, or longer
 * than out. */
bool slurm_first_node(const char *list, char *out, size_t size);
