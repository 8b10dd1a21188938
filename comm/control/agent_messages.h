/* SPDX-License-Identifier: Apache-2.0 */
/* agent_messages.h: the messages of agents, and how they reach the control block.
 *
 *     type, rank, value, bytes (uint32 each, this machine's byte order), then `bytes` of payload
 *
 *     HELLO   first; rank: the sender's node · value: AGENT_VERSION · world, number of nodes, ranks of the node
 *     HEARTBEAT    progress (uint64) of each rank of the node
 *     SLOT    value: number of arrivals of `rank` on the control channel · its struct control_op, then its slot
 *     STATE   value: enum rank_state of `rank`
 *     FAIL    rank: the one that the error is about, or AGENT_NOBODY · value: exit code + 256 × enum failure · text
 *     BYE     last
 *
 * A message that does not fit (a rank of another node, a skipped arrival, another length) ends the connection. */
#pragma once

#include "comm/control/control.h"

enum { AGENT_VERSION = 2 };
#define AGENT_NOBODY UINT32_MAX

enum agent_message {
    AGENT_HELLO = 1,
    AGENT_HEARTBEAT,
    AGENT_SLOT,
    AGENT_STATE,
    AGENT_FAIL,
    AGENT_BYE,
    AGENT_MESSAGE_END
};

struct agent_header {
    uint32_t type, rank, value, bytes;
};

struct agent_hello {
    uint32_t world, num_nodes, local_world;
};

/* ---- messages: all connections get the same ones, each at its position --- */

struct agent_outbox {
    char *ring;
    size_t capacity;
    uint64_t head; /* bytes put in so far */
};

/* Room for all messages that can be unsent: at most two slots of each rank. */
void agent_outbox_init(struct agent_outbox *outbox, int local_world);
void agent_outbox_release(struct agent_outbox *outbox);

/* The payload comes in two parts (either may be empty). */
void agent_outbox_put(struct agent_outbox *outbox, enum agent_message type, uint32_t rank, uint32_t value,
                      const void *first, size_t first_bytes, const void *second, size_t second_bytes);

/* The contiguous bytes from `position` on. */
const char *agent_outbox_peek(const struct agent_outbox *outbox, uint64_t position, size_t *bytes);

/* Writes a HEARTBEAT of this node's ranks into message (agent_heartbeat_bytes() bytes). */
size_t agent_heartbeat_bytes(int local_world);
void agent_heartbeat_write(struct control *control, char *message);

/* ---- receiving ----------------------------------------------------------- */

/* One node's stream of messages. */
struct agent_inbox {
    struct control *control;
    int node;
    int *ranks; /* (num_ranks) of that node, owned */
    int num_ranks;
    struct agent_header header;
    size_t header_bytes, payload_bytes; /* of the current message, received so far */
    struct control_op op;               /* of a SLOT */
    char *payload;                      /* of other messages, owned */
    bool hello, bye;                    /* were received */
};

void agent_inbox_init(struct agent_inbox *inbox, struct control *control, int node);
void agent_inbox_release(struct agent_inbox *inbox);

/* Carries out complete messages. STATUS_PEER: one does not belong to this job; the rest is ignored. */
enum status agent_inbox_feed(struct agent_inbox *inbox, const void *data, size_t bytes, struct error *err);
