/* agent.h: keeps the control blocks of a job's nodes equal. Each node has one agent: two threads in the process of the
 * node's first rank, with one connection to the agent of every other node.
 *
 *     ranks of this node                                                          ranks of the other nodes
 *        │ arrive, leave, fail: ring the bell                                            ▲ futex
 *        ▼                                                                              │
 *     control block ──▶ sender thread ──▶ connections ──▶ listener thread ──▶ control block there
 *
 * An agent passes on at once: arrivals on the control channel with operation and slot, states, and the job's failure.
 * With every heartbeat (a twentieth of the timeout, at most half a second) it sends the progress counters, which is
 * also the node's sign of life. So a control operation takes one message each way, and a slot crosses to each node
 * once.
 *
 * An agent detects a rank of its node whose process is gone, a node that sends nothing for the timeout, and a
 * connection that ends without a BYE. It notes that in the control block (control.h), where the ranks that wait see it
 * (watchdog.h) and fail the job with a message that names the culprit and the operation; if no rank waits, the agent
 * fails the job itself a second later. If the machine of a silent node still acknowledges data, the process hangs or is
 * stopped; else the network or the machine is gone.
 *
 * The threads share no lock with others, allocate no memory once started, and sleep nearly always, so a loaded machine
 * wakes them soon. They block all signals. */
#pragma once

#include "comm/control/control.h"

struct agent;

/* A connection with another node's agent: a stream socket. */
struct agent_link {
    int node;
    int fd;
};

/* For the rank with local rank 0, once it is attached; links: one to each other node. Takes ownership of the
 * descriptors, even on error. */
enum status agent_start(struct control *control, const struct agent_link *links, int count, struct agent **agent,
                        struct error *err);

/* After control_leave(). Sends all news and a BYE, and waits for the BYE of the others: for the timeout if the job has
 * not failed, for two seconds if it has. NULL is allowed. */
void agent_stop(struct agent *agent);
