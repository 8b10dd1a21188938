/* SPDX-License-Identifier: Apache-2.0 */
/* agent.h: keeps the control blocks of a job's nodes equal. Each node has one agent: two threads in the process of the
 * node's first rank, with one connection to the agent of every other node.
 *
 *     ranks of this node                                                          ranks of the other nodes
 *        │ arrive, leave, fail: ring the bell                                            ▲ futex
 *        ▼                                                                              │
 *     control block ──▶ sender thread ──▶ connections ──▶ listener thread ──▶ control block there
 *
 * An agent passes on at once: arrivals on the control channel with operation and slot, states, and the job's failure;
 * and the progress counters with every heartbeat (a twentieth of the timeout, at most half a second). So a control
 * operation takes one message each way, and a slot crosses to each node once.
 *
 * An agent notes that a rank of its node is gone, a node is silent for the timeout, or a connection ends without a BYE;
 * the ranks that wait (watchdog.h) fail the job, or a second later the agent itself. If a silent node's machine still
 * acknowledges data, the process hangs; else the network or the machine is gone.
 *
 * The threads share no lock with others, allocate nothing once started, and block all signals. */
#pragma once

#include "comm/control/control.h"

struct agent;

/* A connection with another node's agent: a stream socket. */
struct agent_link {
    int node;
    int fd;
};

/* For local rank 0, once it is attached; links: one to each other node. Takes ownership of them, even on error. */
enum status agent_start(struct control *control, const struct agent_link *links, int count, struct agent **agent,
                        struct error *err);

/* After control_leave(). Sends all news and a BYE, and waits for the others' (the timeout; after a failure 2 s). NULL:
 * nothing. */
void agent_stop(struct agent *agent);
