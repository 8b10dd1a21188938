#include "comm/control/operation.h"

#include <inttypes.h>
#include <stdio.h>

const char *operation_name(uint32_t kind)
{
    static const char *const names[] = {
        [OP_NONE] = "nothing",         [OP_ALL_GATHER] = "an all-gather", [OP_REDUCE_SCATTER] = "a reduce-scatter",
        [OP_EXCHANGE] = "an exchange", [OP_BARRIER] = "a barrier",        [OP_BROADCAST] = "a broadcast"};
    _Static_assert(COUNT_OF(names) == OP_KIND_COUNT, "every operation has a name");
    return names[kind < OP_KIND_COUNT ? kind : OP_NONE];
}

bool operation_matches(struct control *control, const struct control_op *own, int peer, const struct control_op *other)
{
    char text[256];
    if (other->kind == own->kind && other->dtype == own->dtype && other->count == own->count)
        return true;
    snprintf(text, sizeof text,
             "rank %d is in %s of %" PRIu64 " elements (type %u) while rank %d is in %s of %" PRIu64 " (type %u)",
             control_self(control), operation_name(own->kind), own->count, own->dtype, peer,
             operation_name(other->kind), other->count, other->dtype);
    control_fail(control, -1, STATUS_BUG, text);
    return false;
}
