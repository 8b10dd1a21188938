/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/agree.h"

#include <xxhash.h>

static uint64_t hash_agreed_text(const char *text)
{
    const char *hint = strstr(text, "; hint: ");
    return XXH3_64bits(text, hint ? (size_t)(hint - text) : strlen(text));
}

uint64_t agree_likeness(const struct error *err, int rank)
{
    const uint32_t said[] = {err->format, err->rank == rank ? UINT32_MAX : (uint32_t)err->rank};
    return err->rank < 0 ? hash_agreed_text(err->text) : XXH3_64bits(said, sizeof said);
}

static const struct outcome *agreed_outcome_at(const void *all, size_t bytes, int rank)
{
    return (const struct outcome *)((const char *)all + (size_t)rank * bytes);
}

/* Marks this rank's error as printed if it has none or a lower rank prints it. */
static enum status fail_together(const struct agree_ranks *ranks, const void *all, size_t bytes, int lowest,
                                 struct error *err)
{
    const struct outcome *own = agreed_outcome_at(all, bytes, ranks->rank);
    const enum status code = (enum status)agreed_outcome_at(all, bytes, lowest)->status;
    bool printed = own->status == STATUS_OK;
    if (printed) {
        error_set(err, code, "rank %d has failed (%s)", lowest, status_name(code));
        error_blame(err, lowest, FAILURE_ERROR);
    }
    for (int r = 0; r < ranks->rank && !printed; r++) {
        const struct outcome *other = agreed_outcome_at(all, bytes, r);
        printed = other->status != STATUS_OK && (other->text == own->text || other->likeness == own->likeness);
    }
    err->code = code;
    if (printed) {
        log_debug("error: %s", err->text);
        error_mark_printed(err);
    }
    return code;
}

enum status agree_through(const struct agree_ranks *ranks, struct outcome *own, size_t bytes, void *all,
                          enum status status, int *lowest, struct error *err)
{
    struct error exchange = {.code = STATUS_OK};
    *own = (struct outcome){.status = (int32_t)status};
    if (status != STATUS_OK) {
        own->text = hash_agreed_text(err->text);
        own->likeness = agree_likeness(err, ranks->rank);
    }
    *lowest = -1;
    enum status exchanged = ranks->exchange(ranks->context, own, bytes, all, &exchange);
    if (exchanged != STATUS_OK) { /* a peer is gone */
        if (status == STATUS_OK) *err = exchange;
        return status == STATUS_OK ? exchanged : status;
    }
    for (int r = 0; r < ranks->world && *lowest < 0; r++)
        if (agreed_outcome_at(all, bytes, r)->status != STATUS_OK) *lowest = r;
    return *lowest < 0 ? STATUS_OK : fail_together(ranks, all, bytes, *lowest, err);
}

static enum status agree_exchange_by_comm(void *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    return comm_exchange(comm, own, bytes, all, err);
}

static struct agree_ranks ranks_of(struct comm *comm)
{
    return (struct agree_ranks){comm_rank(comm), comm_world(comm), agree_exchange_by_comm, comm};
}

enum status agree_telling(struct comm *comm, const char *host, struct told_outcome *own, size_t bytes, void *all,
                          enum status status, int *lowest, struct error *err)
{
    const struct agree_ranks ranks = ranks_of(comm);
    snprintf(own->host, sizeof own->host, "%s", host ? host : "");
    if (status != STATUS_OK) {
        own->cause = err->cause;
        snprintf(own->text, sizeof own->text, "%.1500s", err->text);
    }
    status = agree_through(&ranks, &own->outcome, bytes, all, status, lowest, err);
    if (*lowest < 0) return status;
    const struct told_outcome *first = (const void *)agreed_outcome_at(all, bytes, *lowest);
    error_set(err, status, "%s", first->text);
    return error_cause(err, first->cause);
}

enum status agree(struct comm *comm, enum status status, struct error *err)
{
    const struct agree_ranks ranks = ranks_of(comm);
    if (ranks.world == 1) return status;
    int lowest;
    struct outcome own;
    OWNED struct outcome *all = memory_alloc((size_t)ranks.world * sizeof *all);
    return agree_through(&ranks, &own, sizeof own, all, status, &lowest, err);
}

struct keyed_exchange {
    struct bootstrap *boot;
    const char *key;
};

static enum status agree_exchange_by_key(void *context, const void *own, size_t bytes, void *all, struct error *err)
{
    const struct keyed_exchange *keyed = context;
    return bootstrap_exchange(keyed->boot, keyed->key, own, bytes, all, err);
}

enum status agree_by_key(struct bootstrap *boot, const char *key, struct outcome *own, size_t bytes, void *all,
                         enum status status, int *lowest, struct error *err)
{
    struct keyed_exchange keyed = {boot, key};
    const struct agree_ranks ranks = {boot->rank, boot->world, agree_exchange_by_key, &keyed};
    return agree_through(&ranks, own, bytes, all, status, lowest, err);
}

struct start {
    struct outcome outcome;
    uint64_t fingerprint;
};

enum status agree_at_start(struct bootstrap *boot, uint64_t fingerprint, enum status status, struct error *err)
{
    if (boot->world == 1 || !boot->launcher) return status;
    int lowest;
    struct start own = {.fingerprint = fingerprint};
    OWNED struct start *all = memory_zeroed((size_t)boot->world, sizeof *all);
    TRY(agree_by_key(boot, "start", &own.outcome, sizeof own, all, status, &lowest, err));
    for (int r = 1; r < boot->world; r++) { /* all ranks find the same difference */
        if (all[r].fingerprint == all[0].fingerprint) continue;
        error_set(err, STATUS_USAGE, "rank %d on %s has another run spec or other options than rank 0 on %s", r,
                  boot->places[r].host, boot->places[0].host);
        error_hint(err, "one run spec for all, on a file system that every node sees");
        if (boot->rank != 0) error_mark_printed(err);
        error_blame(err, r, FAILURE_NONE);
        return STATUS_USAGE;
    }
    return STATUS_OK;
}
