/* net.h: this rank's data connections with the ranks on other nodes.
 *
 * A connection is a stream of bytes each way. What goes over it follows from the operations, which all ranks have in
 * one order, so there are no message lengths: sender and receiver know them. Only the operation itself goes ahead, once
 * on each connection that it uses, and the receiver compares it with its own.
 *
 * Nobody waits for a single peer: all parts of a transfer make progress at once, in both directions, as the sockets
 * take and have bytes. A rank that waits here ticks, looks at the job's health at least every 100 ms, and has an eye on
 * a peer that it waits for (control_watch).
 *
 * One thread: the one of the data operations. */
#ifndef ZTRAIN_COMM_NET_H
#define ZTRAIN_COMM_NET_H

#include "comm/control.h"

struct net;

/* `bytes` from or to a peer on another node. Parts of one peer and direction go in their order in the list. */
struct net_part {
    int peer;
    bool send;
    char *data; /* of a sent part it is only read */
    size_t bytes;
    size_t need; /* net_transfer() waits for so many of them */
    size_t done; /* so far; 0 at first */
};

/* Takes count connected sockets that do not block: fds[i] leads to ranks[i]. They are closed in the end, also on
 * error. */
enum status net_new(struct control *control, int world, const int *ranks, const int *fds, int count, struct net **net,
                    struct error *err);
void net_free(struct net *net);

/* What follows belongs to this operation. */
void net_begin(struct net *net, const struct control_op *op);

/* Moves all parts on until each has what it needs. Returns STATUS_OK or the job's failure. */
enum status net_transfer(struct net *net, struct net_part *parts, int count);

/* Bytes of parts sent and received so far. Any thread. */
void net_counts(struct net *net, int64_t *sent, int64_t *received);

#endif
