/* SPDX-License-Identifier: Apache-2.0 */
/* agree.h: ranks compare their outcomes at points that all of them reach, and end together if one has failed, with the
 * exit code of the lowest such rank. Each error is printed by the lowest rank that has it; the others' are marked as
 * printed. Two ranks have the same error if their messages are equal but for the hint, or agree_likeness() is. */
#pragma once

#include "comm/comm.h"
#include "comm/launch/bootstrap.h"

/* Collective. status and err: this rank's outcome. Returns the job's status; err of a rank without an error of its own
 * is about the lowest that has one (FAILURE_ERROR). */
enum status agree(struct comm *comm, enum status status, struct error *err);

/* One rank's outcome; filled by the functions below. A record that ranks exchange begins with it. */
struct outcome {
    int32_t status; /* enum status */
    uint32_t unused;
    uint64_t text, likeness; /* hashes of the message; agree_likeness() */
};

/* The same for ranks that continue after an error: all of them have that of the lowest rank that failed. */
struct told_outcome {
    struct outcome outcome;
    int32_t cause; /* error_cause() */
    char host[256], text[1536];
};

/* host: this rank's, or NULL. own: this rank's record (bytes), which begins with the outcome; all: world × bytes,
 * filled unless the exchange fails. *lowest: the lowest rank that failed; -1: none, or the exchange failed, which is
 * this rank's error unless it had one. err is not NULL. */
enum status agree_telling(struct comm *comm, const char *host, struct told_outcome *own, size_t bytes, void *all,
                          enum status status, int *lowest, struct error *err);

/* agree() with a record of each rank, before there is a communicator: by bootstrap_exchange() with `key`. */
enum status agree_by_key(struct bootstrap *boot, const char *key, struct outcome *own, size_t bytes, void *all,
                         enum status status, int *lowest, struct error *err);

/* The first time, after bootstrap_connect(). fingerprint: of the input that has to be the same on all ranks (run spec,
 * options); STATUS_USAGE if it differs. */
enum status agree_at_start(struct bootstrap *boot, uint64_t fingerprint, enum status status, struct error *err);

/* Equal for errors of two ranks that say the same of one rank, or each of itself. rank: whose error it is. */
uint64_t agree_likeness(const struct error *err, int rank);

/* What the others are based on: ranks, and how they exchange records (all: world × bytes, in rank order). */
struct agree_ranks {
    int rank, world;
    enum status (*exchange)(void *context, const void *own, size_t bytes, void *all, struct error *err);
    void *context;
};
enum status agree_through(const struct agree_ranks *ranks, struct outcome *own, size_t bytes, void *all,
                          enum status status, int *lowest, struct error *err);
