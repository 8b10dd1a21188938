/* operation.h: the kinds of operations and their names, and the error of two ranks that are in different operations. */
#pragma once

#include "comm/control/control.h"

enum op_kind { OP_NONE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_EXCHANGE, OP_BARRIER, OP_BROADCAST, OP_KIND_COUNT };

/* "an all-gather"; kinds that do not exist are "nothing" */
const char *operation_name(uint32_t kind);

/* Whether `peer` is in the same operation as this rank; if not, the job fails, since that is a bug. */
bool operation_matches(struct control *control, const struct control_op *own, int peer, const struct control_op *other);
