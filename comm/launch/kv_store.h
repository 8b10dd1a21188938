/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store.h: a store at rank 0, for ranks whose launcher has none: every rank gives a text and gets those of all.
 *
 * Server: a thread of rank 0. It accepts authenticated connections (wire.h) until every rank has one, then closes its
 * doors (listening servers). Client: every rank, rank 0 over a socket pair; a thread reads the server's messages.
 *
 *     client -> server              server -> client
 *     GIVE   text                   VALUE of each rank, to all when all have given; LOST if one has left
 *     WHO                           ABSENT: a text that lists the ranks that have not given
 *     ABORT  code, text             ABORTED to all, the sender last
 *     LEAVE                         BYE; for rank 0 when all others have left
 *
 * A message is a kv_frame and `length` bytes. The server drops a client that breaks these rules. */
#pragma once

#include "comm/launch/bootstrap.h"

struct kv_server;
struct kv_client;
struct wire_server;

enum { KV_DOORS_MAX = 16, KV_TEXT_MAX = 512 /* bytes of a text for people */, KV_BODY_MAX = BOOTSTRAP_VALUE_MAX };
_Static_assert((int)KV_TEXT_MAX <= (int)KV_BODY_MAX, "a text fits a body");

enum kv_kind {
    KV_GIVE = 1,
    KV_WHO,
    KV_ABORT,
    KV_LEAVE,
    KV_VALUE,
    KV_LOST,
    KV_ABSENT,
    KV_ABORTED,
    KV_BYE,
    KV_KIND_COUNT
};

/* In this machine's byte order, as all ranks run the same binary. */
struct kv_frame {
    uint32_t kind;   /* enum kv_kind */
    int32_t number;  /* a rank or an exit code */
    uint32_t length; /* of the body that follows */
};

static inline bool kv_frame_fits(const struct kv_frame *frame)
{
    return frame->kind >= KV_GIVE && frame->kind < KV_KIND_COUNT && frame->length <= KV_BODY_MAX;
}

/* Takes ownership of the `count` doors, even on error. *own: rank 0's end of its connection. */
enum status kv_server_new(int world, struct wire_server *const *doors, int count, struct kv_server **server, int *own,
                          struct error *err);
/* Sends BYE to the clients that are left. NULL is allowed. */
void kv_server_free(struct kv_server *server);

/* The job has ended for this rank by no act of its own: another's abort, or rank 0 is lost (STATUS_PEER). Called at
 * most once, by the client's thread as its last act. */
typedef void kv_ended(void *context, enum status code, const char *text);

/* Owns the connection, even on error. grace: seconds that this rank has to leave before `ended` is called. */
enum status kv_client_new(int fd, int world, double grace, kv_ended *ended, void *context, struct kv_client **client,
                          struct error *err);
/* Waits for `ended` if it has been called. NULL is allowed. */
void kv_client_free(struct kv_client *client);

/* See launcher.h. One thread at a time; kv_abort() by any. */
enum status kv_exchange(struct kv_client *client, const char *own, char *values, double seconds, struct error *err);
/* Returns when the others are informed, or after a second. */
void kv_abort(struct kv_client *client, enum status code, const char *text);
/* Leaves in order, without `ended`. Waits `seconds` for the answer (rank 0: until the others have left). */
void kv_leave(struct kv_client *client, double seconds);
