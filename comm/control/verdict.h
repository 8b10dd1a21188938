/* verdict.h: ranks that fail together print one error.
 *
 * At a point that every rank reaches, whatever happened to it, the ranks exchange their outcomes. If any rank has
 * failed, all end with the exit code of the lowest rank that failed. Each error is printed by the lowest rank that has
 * it, so that a missing file is one line and not one per rank. The other ranks' errors are marked as printed
 * (error_mark_printed()) and are in their log files.
 *
 * Two ranks have the same error if their messages are equal, or would be if each named its rank "R": "rank 3",
 * "SLURM_PROCID=3". Hints do not count, as they may list the devices or files of a machine. */
#pragma once

#include "comm/launch/bootstrap.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* One rank's outcome; filled by verdict_reach(). A record that ranks exchange begins with it. */
struct outcome {
    int32_t status; /* enum status */
    uint32_t unused;
    uint64_t text;    /* hash of the message */
    uint64_t general; /* verdict_general() */
};

/* All (world × bytes) become every rank's own (bytes), in rank order. Collective. */
typedef enum status verdict_exchange(void *context, const void *own, size_t bytes, void *all, struct error *err);

/* The ranks, and how they exchange records. */
struct verdict_ranks {
    int rank, world;
    verdict_exchange *exchange;
    void *context;
};

/* Collective. status and err: this rank's outcome so far; own: its record of `bytes` bytes; all: room for world ×
 * bytes, filled unless the exchange fails. Returns the verdict: STATUS_OK if no rank has failed. *lowest: the lowest
 * rank that failed; -1: none, or the exchange has failed, which is this rank's error unless it had one. err is not
 * NULL. */
enum status verdict_reach(const struct verdict_ranks *ranks, struct outcome *own, size_t bytes, void *all,
                          enum status status, int *lowest, struct error *err);

/* The same by bootstrap_exchange(), for ranks of a launcher that have no communicator yet. */
enum status verdict_at_start(struct bootstrap *boot, const char *key, struct outcome *own, size_t bytes, void *all,
                             enum status status, int *lowest, struct error *err);

/* Hash of a message without its hint and with "R" where it names this rank. */
uint64_t verdict_general(const char *text, int rank);
