#include "comm/control/verdict.h"

#include "core/log.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Bytes of a message before its hint. */
static size_t bytes_before_hint(const char *text)
{
    const char *hint = strstr(text, "; hint: ");
    return hint ? (size_t)(hint - text) : strlen(text);
}

uint64_t verdict_general(const char *text, int rank)
{
    char general[sizeof((struct error *)NULL)->text];
    const char *end = text + bytes_before_hint(text);
    size_t at = 0;
    for (const char *c = text; c < end && at < sizeof general;) {
        bool named = c > text && (c[-1] == '=' || (c - text >= 5 && !strncmp(c - 5, "rank ", 5)));
        char *after = NULL;
        if (named && isdigit((unsigned char)*c) && strtol(c, &after, 10) == rank) {
            general[at++] = 'R';
            c = after;
        } else {
            general[at++] = *c++;
        }
    }
    return XXH3_64bits(general, at);
}

static struct outcome outcome_of(int rank, enum status status, const struct error *err)
{
    struct outcome outcome = {.status = (int32_t)status};
    if (status == STATUS_OK)
        return outcome;
    outcome.text = XXH3_64bits(err->text, bytes_before_hint(err->text));
    outcome.general = verdict_general(err->text, rank);
    return outcome;
}

static bool is_same(const struct outcome *a, const struct outcome *b)
{
    return a->status != STATUS_OK && b->status != STATUS_OK && (a->text == b->text || a->general == b->general);
}

/* The outcome at the head of a rank's record. */
static const struct outcome *outcome_at(const void *all, size_t bytes, int rank)
{
    return (const struct outcome *)((const char *)all + (size_t)rank * bytes);
}

/* Some rank has failed: marks this rank's error as printed if it has none or a lower rank prints it. */
static enum status fail_together(const struct verdict_ranks *ranks, const void *all, size_t bytes, int lowest,
                                 struct error *err)
{
    const struct outcome *own = outcome_at(all, bytes, ranks->rank);
    const enum status code = (enum status)outcome_at(all, bytes, lowest)->status;
    bool printed = own->status == STATUS_OK;
    if (printed)
        error_set(err, code, "rank %d has failed (%s)", lowest, status_name(code));
    for (int r = 0; r < ranks->rank && !printed; r++)
        printed = is_same(outcome_at(all, bytes, r), own);
    err->code = code;
    if (printed) {
        log_debug("error: %s", err->text);
        error_mark_printed(err);
    }
    return code;
}

enum status verdict_reach(const struct verdict_ranks *ranks, struct outcome *own, size_t bytes, void *all,
                          enum status status, int *lowest, struct error *err)
{
    struct error exchange = {.code = STATUS_OK};
    *own = outcome_of(ranks->rank, status, err);
    *lowest = -1;
    enum status exchanged = ranks->exchange(ranks->context, own, bytes, all, &exchange);
    if (exchanged != STATUS_OK) { /* a peer is gone */
        if (status == STATUS_OK)
            *err = exchange;
        return status == STATUS_OK ? exchanged : status;
    }
    for (int r = 0; r < ranks->world && *lowest < 0; r++)
        if (outcome_at(all, bytes, r)->status != STATUS_OK)
            *lowest = r;
    return *lowest < 0 ? STATUS_OK : fail_together(ranks, all, bytes, *lowest, err);
}

/* ---- by the launcher's key-value exchange -------------------------------- */

struct keyed_exchange {
    struct bootstrap *boot;
    const char *key;
};

static enum status exchange_by_key(void *context, const void *own, size_t bytes, void *all, struct error *err)
{
    const struct keyed_exchange *keyed = context;
    return bootstrap_exchange(keyed->boot, keyed->key, own, bytes, all, err);
}

enum status verdict_at_start(struct bootstrap *boot, const char *key, struct outcome *own, size_t bytes, void *all,
                             enum status status, int *lowest, struct error *err)
{
    struct keyed_exchange keyed = {boot, key};
    const struct verdict_ranks ranks = {boot->rank, boot->world, exchange_by_key, &keyed};
    return verdict_reach(&ranks, own, bytes, all, status, lowest, err);
}
