/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h: TCP connections between the ranks of one job, closed to everybody else.
 *
 * Addresses. The ranks exchange their machines' addresses (wire_host_read), and wire_choose() finds the one at which
 * this rank listens: loopback under one kernel and network namespace; else one in the same network as the peers.
 * Addresses that several machines have (bridges such as docker0) do not count.
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
 * The MAC is libsodium's crypto_auth (HMAC-SHA-512-256); it covers the number of the message. A stranger gets only a
 * closed connection: at once if it sends anything other than a hello, after WIRE_STRANGER_SECONDS if it is silent; of
 * too many the oldest is dropped. Data is neither encrypted nor authenticated.
 *
 * A connection that breaks during the handshake is tried again until the deadline. One thread at a time uses a server.
 * Sockets are non-blocking, close on exec, have TCP_NODELAY, and belong to the caller. */
#pragma once

#include "core/core.h"

enum {
    WIRE_SECRET_BYTES = 32,
    WIRE_HOST_ADDRESSES = 8, /* of one machine */
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
    const char *job;             /* distinguishes jobs and their restarts; the same on all ranks; borrowed */
    const unsigned char *secret; /* (WIRE_SECRET_BYTES); borrowed */
    double timeout_seconds; /* 0: none. A WIRE_STORE or WIRE_AGENT connection that acknowledges nothing for this long is
                               closed. Not so WIRE_DATA, whose reader may be busy: agents watch over its ends */
};

/* ---- addresses ----------------------------------------------------------- */

/* A machine, as ranks exchange it. */
struct wire_host {
    uint64_t kernel; /* the same for processes that can talk over loopback */
    int32_t named;   /* the user named the interface of these addresses */
    int32_t count;
    struct wire_host_address {
        char text[46];  /* INET6_ADDRSTRLEN */
        int16_t prefix; /* bits of the network */
    } addresses[WIRE_HOST_ADDRESSES];
};

/* Whether bytes that another rank has sent are one of these. */
bool wire_host_is_valid(const struct wire_host *host);
bool wire_address_is_valid(const struct wire_address *address);

/* The same number only for processes under one kernel and network namespace. */
uint64_t wire_kernel_identity(void);

/* Reads this machine's addresses. interface: its name, its address, or a network that contains it ("10.1.0.0/16"); NULL
 * or "": all that are up, without loopback and link-local addresses. */
enum status wire_host_read(const char *interface, struct wire_host *host, struct error *err);

/* The address at which the others reach hosts[me] (port 0). hosts: one for each node. */
enum status wire_choose(const struct wire_host *hosts, int count, int me, struct wire_address *address,
                        struct error *err);

/* Resolves a host name or address into numeric addresses, at most `max`. */
enum status wire_resolve(const char *name, uint16_t port, struct wire_address *addresses, int max, int *count,
                         struct error *err);

/* The socket address of a numeric address, for freeaddrinfo(); NULL: it is not such. */
struct addrinfo *wire_socket_address(const char *text, uint16_t port);

/* "10.0.0.1:4711", "[fd00::1]:4711" */
enum { WIRE_PRINTED = 80 };
const char *wire_address_print(const struct wire_address *address, char text[WIRE_PRINTED]);

/* ---- accepting ----------------------------------------------------------- */

/* Port 0 becomes the port that the system chooses. The caller closes *listener, or gives it to wire_server_new(). */
enum status wire_listen(struct wire_address *address, int *listener, struct error *err);

struct wire_server;

/* Takes ownership of the listener, even on error. Borrows job and secret of `self`. */
enum status wire_server_new(const struct wire_self *self, int listener, struct wire_server **server, struct error *err);
void wire_server_free(struct wire_server *server);
RELEASER(wire_server_drop, struct wire_server, wire_server_free)

/* To poll for POLLIN; when it is ready, and once a second in any case, call wire_server_next(). */
int wire_server_fd(const struct wire_server *server);

struct wire_connection {
    int fd;
    int rank;
    enum wire_service service;
};

/* The next connection of a rank of this job; false: none yet. A rank that comes twice has given up its first one. */
bool wire_server_next(struct wire_server *server, struct wire_connection *connection);

/* ---- connecting ---------------------------------------------------------- */

struct wire_peer {
    int rank;
    enum wire_service service;
    const char *host;                     /* for messages; borrowed */
    const struct wire_address *addresses; /* (num_addresses) where it listens, tried in turn; borrowed */
    int num_addresses;
    int fd; /* out; -1 after an error */
};

/* Makes one connection for each entry of `peers`, all at the same time; of two ranks the lower one accepts, at `server`
 * (NULL: this rank accepts none). Beats while it waits. After a failure no peer has a connection. */
enum status wire_connect(const struct wire_self *self, struct wire_server *server, struct wire_peer *peers, int count,
                         double timeout_seconds, struct error *err);
