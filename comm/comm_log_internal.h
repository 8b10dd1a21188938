/* comm_log_internal.h: how the data operations are recorded; comm_collectives.c calls it. */
#pragma once

#include "comm/comm_internal.h"

/* Around the submission of an operation; log may be NULL. */
int comm_log_begin(struct comm_log *log, const struct data_op *op, struct stream *stream);
void comm_log_end(struct comm_log *log, int number);
