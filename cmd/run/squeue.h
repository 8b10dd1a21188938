/* squeue.h: the time at which Slurm will end a job: only squeue knows it once its limit was changed (scontrol update).
 *
 * squeue may take long or hang: it is a program on some file server that asks a daemon on another machine. So while the
 * ranks compute, a separate thread starts squeue and waits for it. There is one squeue at a time; if it does not
 * answer within five seconds it is killed, and the last answer remains. */
#pragma once

#include <stdbool.h>

struct squeue;

/* Seconds since 1970 of the real-time clock, in which Slurm's times are given. */
double squeue_clock(void);

/* Seconds since 1970 from SLURM_JOB_END_TIME's "1795282200" or squeue's "2026-11-21T17:30:00" (local time); false for
 * any other text ("NONE", "N/A"). */
bool squeue_parse_end(const char *text, double *end);

/* For questions about this job, with the environment that this process has now. job is copied. */
struct squeue *squeue_new(const char *job);

/* Asks, and waits for the answer for five seconds at most, with heartbeats, as other ranks may wait for this one.
 * *end: seconds since 1970. Not after squeue_watch(). */
bool squeue_ask(struct squeue *squeue, double *end);

/* Starts the thread, which asks every `period` seconds, the first time after one period, until PATH has no squeue. */
void squeue_watch(struct squeue *squeue, double period);

/* Takes the thread's newest answer; false if there is none since the last call. Never waits. */
bool squeue_heard(struct squeue *squeue, double *end);

/* Ends the thread, and a squeue that it waits for, within a second. NULL is allowed. */
void squeue_free(struct squeue *squeue);
