/* wire.h: TCP connections between the ranks of one job, and nobody else.
 *
 * Addresses. A machine says which addresses it has (wire_host_read), every rank learns what the others said, and
 * wire_choose() finds the one where this rank listens: ranks of one kernel and network namespace use loopback; else an
 * address in one network with the peers; addresses that two machines have alike (bridges such as docker0) do not count.
 *
 * Handshake. Both ends prove that they know the job's secret before a byte of anything else is read:
 *
 *     connecting end                                        accepting end
 *     hello: version, job, service, world, from, to,
 *            nonce, MAC of all that               ------>
 *                                                 <------   challenge: nonce, MAC of hello and challenge
 *     proof: MAC of everything so far             ------>
 *                                                 <------   welcome: MAC of everything so far
 *
 * The MAC is libsodium's crypto_auth (HMAC-SHA-512-256), compared in constant time; each message has a label of its own
 * in it, so that none can stand for another. A stranger never gets an answer, only a closed connection: at once if it
 * sends anything else, after WIRE_STRANGER_SECONDS if it is silent or slow; and the oldest one makes room when there
 * are too many. What follows the handshake is neither encrypted nor authenticated: whoever can rewrite packets between
 * the machines can do so here.
 *
 * A connection that breaks or is refused during the handshake is tried again until the deadline.
 *
 * Threads: a server is used by one thread at a time. Sockets that are handed out do not block, close on exec, send
 * small messages at once, and belong to the caller. */
#ifndef ZTRAIN_COMM_WIRE_WIRE_H
#define ZTRAIN_COMM_WIRE_WIRE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_SECRET_BYTES = 32,
    WIRE_HOST_ADDRESSES = 8, /* of one machine */
    WIRE_HOST_TEXT = 448,    /* room for wire_host_print() */
    WIRE_STRANGER_SECONDS = 2
};

/* Numeric, IPv4 or IPv6. */
struct wire_address {
    char text[64];
    uint16_t port;
};

/* What a connection is for; a number on the wire. */
enum wire_service { WIRE_STORE = 1, WIRE_DATA = 2, WIRE_AGENT = 3 };

/* One end of every connection of this process. */
struct wire_self {
    int rank, world;
    const char *job;             /* tells jobs and their restarts apart; the same on all ranks; borrowed */
    const unsigned char *secret; /* (WIRE_SECRET_BYTES); borrowed */
    double timeout_seconds;      /* 0: none. A WIRE_STORE or WIRE_AGENT connection whose data or keepalives are not
                                    acknowledged for so long is closed; WIRE_DATA has only the agents to look after it,
                                    as its reader may be busy with something else for any time */
};

/* ---- addresses ----------------------------------------------------------- */

struct wire_host {
    uint64_t kernel; /* the same for processes that can talk over loopback */
    bool named;      /* the addresses are those of the interface that was asked for */
    int count;
    struct wire_host_address {
        char text[64];
        int prefix; /* bits of the network */
    } addresses[WIRE_HOST_ADDRESSES];
};

/* This machine. interface: its name, its address, or a network that its address is in ("10.1.0.0/16"); NULL or "": all
 * that are up, without loopback and link-local addresses. */
enum status wire_host_read(const char *interface, struct wire_host *host, struct error *err);

/* For the key-value exchange: letters, digits and ".:/,". */
void wire_host_print(const struct wire_host *host, char text[WIRE_HOST_TEXT]);
bool wire_host_parse(const char *text, struct wire_host *host);

/* The address for hosts[me] to listen at (port 0) so that all the others reach it. hosts: one of each node. */
enum status wire_choose(const struct wire_host *hosts, int count, int me, struct wire_address *address,
                        struct error *err);

/* Numeric addresses of a host name or address, at most `max`. */
enum status wire_resolve(const char *name, uint16_t port, struct wire_address *addresses, int max, int *count,
                         struct error *err);

/* "10.0.0.1:4711", "[fd00::1]:4711" */
enum { WIRE_PRINTED = 80 };
const char *wire_address_print(const struct wire_address *address, char text[WIRE_PRINTED]);
bool wire_address_parse(const char *text, struct wire_address *address);

/* ---- accepting ----------------------------------------------------------- */

/* Listens at the address; port 0 becomes the one that the system chose. */
enum status wire_listen(struct wire_address *address, int *listener, struct error *err);

struct wire_server;

/* Takes the listener over, also on error. What `self` points at stays as it is until the end. */
enum status wire_server_new(const struct wire_self *self, int listener, struct wire_server **server, struct error *err);
void wire_server_free(struct wire_server *server);

/* Can be polled for POLLIN, then wire_server_next() has something to do; call that once a second in any case. */
int wire_server_fd(const struct wire_server *server);

struct wire_connection {
    int fd;
    int rank;
    enum wire_service service;
};

/* The next connection of a rank of this job within timeout_ms (0: what is there already); false: none. A rank may come
 * twice: it has then given the first connection up. */
bool wire_server_next(struct wire_server *server, int timeout_ms, struct wire_connection *connection);

/* ---- connecting ---------------------------------------------------------- */

/* Connects with rank `peer` at one of the addresses, which are tried in turn until it answers or timeout_seconds are
 * over. host names it in messages. */
enum status wire_connect(const struct wire_self *self, int peer, const char *host, enum wire_service service,
                         const struct wire_address *addresses, int count, double timeout_seconds, int *fd,
                         struct error *err);

struct wire_peer {
    int rank;
    enum wire_service service;
    const char *host;            /* for messages; borrowed */
    struct wire_address address; /* where it listens */
    int fd;                      /* out; -1 after an error */
};

/* One connection for each entry, all at once; of two ranks the lower one accepts. Every rank calls it with its own
 * list, and ticks meanwhile (core/progress.h). */
enum status wire_mesh(const struct wire_self *self, struct wire_server *server, struct wire_peer *peers, int count,
                      double timeout_seconds, struct error *err);

#endif
