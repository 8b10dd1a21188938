/* timed_call.h: calls into a launcher's library that may never return.
 *
 * PMI2_KVS_Fence() waits forever for a rank that died, and a library that writes to a closed socket raises SIGPIPE.
 * So every such call runs on a separate thread, with all signals blocked, and its caller stops waiting in time. */
#pragma once

#include <stdbool.h>

enum timed_call_end { CALL_RETURNED, CALL_LATE, CALL_NO_THREAD };

/* Runs function(argument) and waits for it up to `seconds`. CALL_RETURNED: *result is the return value, and the
 * argument is the caller's again. CALL_LATE: it still runs; the argument, from malloc(), belongs to its thread, which
 * frees it. */
enum timed_call_end timed_call(int (*function)(void *argument), void *argument, double seconds, int *result);
