/* kv_store.h: a small key-value store at rank 0, for ranks that have no launcher to keep one: put, fence, get, abort.
 *
 * Server: a thread of rank 0. It takes authenticated connections (wire.h) until every rank has one, then closes its
 * doors, so that no port stays open. Client: every rank, rank 0 over a socket pair; a thread reads what the server
 * says, so that an abort is noticed at any time.
 *
 *     client -> server                     server -> client
 *     PUT    key, value                    (nothing)
 *     FENCE                                DONE to all when all are there; LOST if one has left
 *     GET    rank or -1, key               VALUE for each; MISSING
 *     WHO                                  ABSENT: who is not in the fence, in words
 *     ABORT  code, text                    ABORTED to all, the sender last
 *     LEAVE                                BYE; for rank 0 when all others have left
 *
 * A message is a header (kind, number, length; little endian) and `length` bytes. A client that breaks these rules
 * loses its connection; every length is bounded. */
#ifndef ZTRAIN_COMM_LAUNCH_KV_STORE_H
#define ZTRAIN_COMM_LAUNCH_KV_STORE_H

#include "comm/launch/bootstrap.h"

struct kv_server;
struct kv_client;
struct wire_server;

enum { KV_DOORS_MAX = 16, KV_KEYS_MAX = 64 /* of one rank */ };

/* Starts the server for `world` ranks behind `count` doors, which it owns from now on, also on error. *own: rank 0's
 * end of its connection, for kv_client_new(). */
enum status kv_server_new(int world, struct wire_server *const *doors, int count, struct kv_server **server, int *own,
                          struct error *err);
/* Says goodbye to those that are still connected, ends its thread and all connections. NULL: nothing. */
void kv_server_free(struct kv_server *server);

/* How the job ended for this rank without its doing: another rank's abort, or the connection with rank 0 broke (code
 * STATUS_PEER). Called once, by the client's thread, which has nothing else to do afterwards. */
typedef void kv_ended(void *context, enum status code, const char *text);

/* Takes the connection over, also on error. */
enum status kv_client_new(int fd, int rank, int world, kv_ended *ended, void *context, struct kv_client **client,
                          struct error *err);
/* Without a word to the server. NULL: nothing. Waits for `ended` to return if it has been called. */
void kv_client_free(struct kv_client *client);

/* See bootstrap.h and launcher.h; one thread at a time, kv_abort() any. */
enum status kv_put(struct kv_client *client, const char *key, const char *value, struct error *err);
enum status kv_fence(struct kv_client *client, double seconds, struct error *err);
enum status kv_get(struct kv_client *client, int rank, const char *key, char *values, double seconds,
                   struct error *err);
/* Returns when the server has told the others, or after a second. */
void kv_abort(struct kv_client *client, enum status code, const char *text);
/* Orderly: `ended` is not called any more. Returns when the server has answered (it keeps rank 0 until the others have
 * left), or after `seconds`. */
void kv_leave(struct kv_client *client, double seconds);

#endif
