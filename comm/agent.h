/* agent.h: keeps the control blocks of a job's nodes alike. One agent per node, two threads in the process of the
 * node's first rank, one connection with the agent of every other node.
 *
 *     ranks of this node                                                          ranks of the other nodes
 *        │ arrive, leave, fail: ring the bell                                            ▲ futex
 *        ▼                                                                              │
 *     control block ──▶ sender thread ──▶ connections ──▶ listener thread ──▶ control block there
 *
 * Passed on at once: arrivals on the control channel with operation and slot, states, the job's failure. Every tick (a
 * twentieth of the timeout, at most half a second): the progress counters, which is also the node's sign of life. So a
 * control operation takes one message each way, and a slot crosses to each node once.
 *
 * What an agent finds out by itself: a rank of its node whose process is gone, a node that says nothing for the
 * timeout, a connection that ends without a good-bye. It writes that down where the ranks that wait will see it
 * (control.h), who name the culprit and the operation; where nobody waits the agent ends the job itself a second later.
 * A node that is silent though its machine still acknowledges our data hangs or is stopped; else the network or the
 * machine is gone.
 *
 * The threads share no lock with anybody, allocate nothing once started, and sleep nearly always: a loaded machine
 * wakes them soon. They take no signals. */
#ifndef ZTRAIN_COMM_AGENT_H
#define ZTRAIN_COMM_AGENT_H

#include "comm/control.h"

struct agent;

/* A connection with another node's agent: a stream socket. */
struct agent_link {
    int node;
    int fd;
};

/* In the rank with local rank 0, once it is attached: one link to each other node. The descriptors belong to the agent
 * from now on, also on error. */
enum status agent_start(struct control *control, const struct agent_link *links, int count, struct agent **agent,
                        struct error *err);

/* After control_leave(). Says good-bye when all that there is to say has been sent, and waits for the others' good-bye:
 * for the timeout if the job has gone well, two seconds if it has failed. NULL: nothing. */
void agent_stop(struct agent *agent);

#endif
