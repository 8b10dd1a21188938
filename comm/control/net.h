/* SPDX-License-Identifier: Apache-2.0 */
/* net.h: this rank's data connections with the ranks on other nodes. All ranks run the same operations in the same
 * order, so messages carry no lengths; each operation sends a head once on each connection that it uses, which the
 * receiver compares with its own.
 *
 * All parts of a transfer progress at the same time. A rank that waits beats, checks the job's health, and watches a
 * peer that it waits for (watchdog.h).
 *
 * Thread: that of the data operations only. */
#pragma once

#include "comm/control/watchdog.h"

struct net;

/* `bytes` from or to a peer on another node. Parts of one peer and direction go in their order in the list. */
struct net_part {
    int peer;
    bool send;
    char *data; /* only read if the part is sent */
    size_t bytes;
    size_t need; /* net_transfer() waits until this many have moved */
    size_t done; /* moved so far; 0 at first */
};

struct net *net_new(struct control *control, int world);
/* Takes ownership of a connected non-blocking socket that leads to `rank`. */
void net_connect(struct net *net, int rank, int fd);
void net_free(struct net *net);

/* The transfers from now on belong to this operation. */
void net_begin(struct net *net, const struct control_op *op);

/* Moves bytes of all parts until each has moved the bytes that it needs. Returns STATUS_OK or the job's failure. */
enum status net_transfer(struct net *net, struct net_part *parts, int count);

/* Bytes of parts sent and received so far. Any thread. */
void net_counts(struct net *net, int64_t *sent, int64_t *received);
