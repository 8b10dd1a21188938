/* squeue.h: when Slurm will end a job, which only squeue knows once somebody has changed the limit (scontrol update).
 *
 * squeue may take long or hang: it is a program on some file server that asks a daemon on another machine. So the
 * questions that are asked while the ranks compute come from a thread of their own, which also starts squeue and waits
 * for its end. There is one squeue at a time; one that does not answer within five seconds is killed, and the last
 * answer remains. */
#ifndef ZTRAIN_CMD_TRAIN_SQUEUE_H
#define ZTRAIN_CMD_TRAIN_SQUEUE_H

#include <stdbool.h>

struct squeue;

/* Seconds since 1970, by the clock that people set: Slurm's times are in it. */
double squeue_clock(void);

/* Seconds since 1970 from SLURM_JOB_END_TIME's "1795282200" or squeue's "2026-11-21T17:30:00" (local time); false: it
 * is neither ("NONE", "N/A"). */
bool squeue_parse_end(const char *text, double *end);

/* Asks about this job from now on, with the environment that this process has now. job is copied. */
struct squeue *squeue_new(const char *job);

/* Asks, and waits for the answer for five seconds at most, ticking: the other ranks may wait for us. *end: seconds
 * since 1970. Not after squeue_watch(). */
bool squeue_ask(struct squeue *squeue, double *end);

/* Starts the thread: it asks every `period` seconds, first after one of them, until there is no squeue on the path. */
void squeue_watch(struct squeue *squeue, double period);

/* The thread's newest answer, once: false where there is no new one. Never waits. */
bool squeue_heard(struct squeue *squeue, double *end);

/* Ends the thread and a squeue that it waits for, within a second; NULL: nothing. */
void squeue_free(struct squeue *squeue);

#endif
