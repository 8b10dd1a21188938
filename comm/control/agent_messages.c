/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/control/agent_messages.h"

enum { TEXT_MAX = sizeof((struct control_block *)NULL)->text - 1 };

/* ---- sending ------------------------------------------------------------- */

void agent_outbox_init(struct agent_outbox *outbox, int local_world)
{
    size_t slot = sizeof(struct agent_header) + sizeof(struct control_op) + CONTROL_SLOT_BYTES;
    size_t states = 3 * sizeof(struct agent_header); /* joined, closed or dead, and one to spare */
    size_t once = 4 * sizeof(struct agent_header) + sizeof(struct agent_hello) + TEXT_MAX;
    *outbox = (struct agent_outbox){.capacity = (size_t)local_world * (2 * slot + states) + once};
    outbox->ring = memory_alloc(outbox->capacity); /* its pages exist once they are touched */
}

void agent_outbox_release(struct agent_outbox *outbox)
{
    free(TAKEN(outbox->ring));
}

static void put_bytes(struct agent_outbox *outbox, const void *data, size_t bytes)
{
    size_t at = outbox->head % outbox->capacity, first = outbox->capacity - at;
    first = bytes < first ? bytes : first;
    if (first) memcpy(outbox->ring + at, data, first);
    if (bytes > first) memcpy(outbox->ring, (const char *)data + first, bytes - first);
    outbox->head += bytes;
}

void agent_outbox_put(struct agent_outbox *outbox, enum agent_message type, uint32_t rank, uint32_t value,
                      const void *first, size_t first_bytes, const void *second, size_t second_bytes)
{
    const struct agent_header header = {(uint32_t)type, rank, value, (uint32_t)(first_bytes + second_bytes)};
    put_bytes(outbox, &header, sizeof header);
    put_bytes(outbox, first, first_bytes);
    put_bytes(outbox, second, second_bytes);
}

const char *agent_outbox_peek(const struct agent_outbox *outbox, uint64_t position, size_t *bytes)
{
    size_t at = position % outbox->capacity, row = outbox->capacity - at;
    uint64_t left = outbox->head - position;
    ASSERT(left <= outbox->capacity);
    *bytes = left < row ? (size_t)left : row;
    return outbox->ring + at;
}

size_t agent_heartbeat_bytes(int local_world)
{
    return sizeof(struct agent_header) + (size_t)local_world * sizeof(uint64_t);
}

void agent_heartbeat_write(struct control *control, char *message)
{
    int ranks = control->local_world;
    const struct agent_header header = {AGENT_HEARTBEAT, AGENT_NOBODY, 0, (uint32_t)ranks * (uint32_t)sizeof(uint64_t)};
    memcpy(message, &header, sizeof header);
    message += sizeof header;
    for (int i = 0; i < ranks; i++, message += sizeof(uint64_t)) {
        uint64_t progress =
            atomic_load_explicit(&control->block->ranks[control->locals[i]].progress, memory_order_relaxed);
        memcpy(message, &progress, sizeof progress);
    }
}

/* ---- receiving ----------------------------------------------------------- */

void agent_inbox_init(struct agent_inbox *inbox, struct control *control, int node)
{
    const struct control_block *block = control->block;
    ASSERT(node >= 0 && node < (int)block->num_nodes && node != control->node);
    *inbox = (struct agent_inbox){.control = control, .node = node};
    for (uint32_t r = 0; r < block->world; r++) inbox->num_ranks += block->ranks[r].node == node;
    size_t beats = (size_t)inbox->num_ranks * sizeof(uint64_t);
    inbox->ranks = memory_zeroed((size_t)inbox->num_ranks, sizeof *inbox->ranks);
    inbox->payload = memory_alloc((beats > TEXT_MAX ? beats : TEXT_MAX) + 1);
    for (uint32_t r = 0; r < block->world; r++)
        if (block->ranks[r].node == node && block->ranks[r].local_rank < inbox->num_ranks)
            inbox->ranks[block->ranks[r].local_rank] = (int)r;
}

void agent_inbox_release(struct agent_inbox *inbox)
{
    free(inbox->ranks);
    free(inbox->payload);
    inbox->ranks = NULL;
    inbox->payload = NULL;
}

static bool header_fits(const struct agent_inbox *inbox)
{
    const struct agent_header *header = &inbox->header;
    struct control_block *block = inbox->control->block;
    const bool known = header->rank < block->world && block->ranks[header->rank].node == inbox->node;
    struct control_rank *entry = known ? &block->ranks[header->rank] : NULL;
    if (inbox->bye || inbox->hello != (header->type != AGENT_HELLO)) return false;
    switch ((enum agent_message)header->type) {
    case AGENT_HELLO:
        return header->rank == (uint32_t)inbox->node && header->value == AGENT_VERSION &&
               header->bytes == sizeof(struct agent_hello);
    case AGENT_HEARTBEAT: return header->bytes == (uint32_t)inbox->num_ranks * sizeof(uint64_t);
    case AGENT_SLOT:
        return entry && header->value == atomic_load(&entry->arrivals[CHANNEL_CONTROL]) + 1 &&
               header->bytes >= sizeof(struct control_op) &&
               header->bytes <= sizeof(struct control_op) + CONTROL_SLOT_BYTES;
    case AGENT_STATE: return entry && header->bytes == 0 && header->value > RANK_ABSENT && header->value <= RANK_DEAD;
    case AGENT_FAIL:
        return (header->rank == AGENT_NOBODY ? header->value >> 8 != FAILURE_ERROR : header->rank < block->world) &&
               (header->value & 255) && failure_name((int)(header->value >> 8)) && header->bytes <= TEXT_MAX;
    case AGENT_BYE: return header->bytes == 0;
    case AGENT_MESSAGE_END: break;
    }
    return false;
}

static enum status refuse_message(const struct agent_inbox *inbox, struct error *err)
{
    const struct control_block *block = inbox->control->block;
    int sender = inbox->control->agents[inbox->node];
    error_set(err, STATUS_PEER,
              "rank %d on %s sent a message that does not fit (type %" PRIu32 ", rank %" PRIu32 ", value %" PRIu32
              ", %" PRIu32 " bytes); hint: start the same ztrain on all nodes",
              sender, block->ranks[sender].host, inbox->header.type, inbox->header.rank, inbox->header.value,
              inbox->header.bytes);
    return error_blame(err, sender, FAILURE_NONE);
}

static enum status carry_out(struct agent_inbox *inbox, struct error *err)
{
    const struct agent_header *header = &inbox->header;
    struct control_block *block = inbox->control->block;
    switch ((enum agent_message)header->type) {
    case AGENT_HELLO: {
        struct agent_hello hello;
        memcpy(&hello, inbox->payload, sizeof hello);
        if (hello.world != block->world || hello.num_nodes != block->num_nodes ||
            hello.local_world != (uint32_t)inbox->num_ranks)
            return refuse_message(inbox, err);
        inbox->hello = true;
        break;
    }
    case AGENT_HEARTBEAT:
        for (int i = 0; i < inbox->num_ranks; i++) {
            uint64_t progress;
            memcpy(&progress, inbox->payload + (size_t)i * sizeof progress, sizeof progress);
            atomic_store_explicit(&block->ranks[inbox->ranks[i]].progress, progress, memory_order_relaxed);
        }
        atomic_fetch_add(&block->ranks[inbox->ranks[0]].heard, 1);
        break;
    case AGENT_SLOT:
        if (inbox->op.slot_bytes != header->bytes - sizeof inbox->op) return refuse_message(inbox, err);
        block->ranks[header->rank].op[CHANNEL_CONTROL][(header->value - 1) % 2] = inbox->op;
        control_arrived(inbox->control, (int)header->rank, header->value);
        break;
    case AGENT_STATE: atomic_store(&block->ranks[header->rank].state, header->value); break;
    case AGENT_FAIL:
        inbox->payload[header->bytes] = 0;
        control_blame(inbox->control, header->rank == AGENT_NOBODY ? -1 : (int)header->rank,
                      (enum failure)(header->value >> 8), (enum status)(header->value & 255), "%s", inbox->payload);
        break;
    case AGENT_BYE: inbox->bye = true; break;
    case AGENT_MESSAGE_END: break;
    }
    return STATUS_OK;
}

/* The place of payload byte inbox->payload_bytes; *room: contiguous bytes from there on. */
static char *payload_room(struct agent_inbox *inbox, size_t *room)
{
    size_t at = inbox->payload_bytes, op = sizeof inbox->op;
    *room = inbox->header.bytes - at;
    if (inbox->header.type != AGENT_SLOT) return inbox->payload + at;
    if (at >= op)
        return control_slot(inbox->control, (int)inbox->header.rank, (int)((inbox->header.value - 1) % 2)) + (at - op);
    *room = op - at;
    return (char *)&inbox->op + at;
}

enum status agent_inbox_feed(struct agent_inbox *inbox, const void *data, size_t bytes, struct error *err)
{
    const char *from = data;
    for (;;) {
        if (inbox->header_bytes < sizeof inbox->header) {
            size_t n = sizeof inbox->header - inbox->header_bytes;
            n = bytes < n ? bytes : n;
            if (n == 0) return STATUS_OK;
            memcpy((char *)&inbox->header + inbox->header_bytes, from, n);
            inbox->header_bytes += n;
            from += n;
            bytes -= n;
            if (inbox->header_bytes < sizeof inbox->header) return STATUS_OK;
            if (!header_fits(inbox)) return refuse_message(inbox, err);
        }
        while (inbox->payload_bytes < inbox->header.bytes && bytes) {
            size_t n;
            char *to = payload_room(inbox, &n);
            n = bytes < n ? bytes : n;
            memcpy(to, from, n);
            inbox->payload_bytes += n;
            from += n;
            bytes -= n;
        }
        if (inbox->payload_bytes < inbox->header.bytes) return STATUS_OK;
        TRY(carry_out(inbox, err));
        inbox->header_bytes = inbox->payload_bytes = 0;
    }
}
