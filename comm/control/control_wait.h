/* control_wait.h: waiting until other ranks have arrived (control_arrive), or until the ranks of a failed job have
 * left.
 *
 * A waiter spins for a short time, then sleeps until the peer arrives, and every 20 ms it looks whether the job has
 * failed and whether the peer still lives (watchdog.h). One thread per channel. */
#pragma once

#include "comm/control/control.h"

/* Waits until `peer` has arrived `target` times. `what` names this rank's operation for messages. Returns STATUS_OK, or
 * the job's failure (control_status has the text). */
enum status control_wait(struct control *control, enum control_channel channel, int peer, uint32_t target,
                         const char *what);
/* The same for all peers, and for those of this node. */
enum status control_wait_all(struct control *control, enum control_channel channel, uint32_t target, const char *what);
enum status control_wait_node(struct control *control, enum control_channel channel, uint32_t target, const char *what);

/* After the job has failed and control_leave(): waits until this rank may end. true: all ranks have left or are gone,
 * or a lower rank has left as well and waits for the rest (a node's first rank, whose agent passes the news on, also
 * waits until the other ranks of its node are gone). false: after `seconds` there is still a rank that does not leave
 * by itself. */
bool control_await_end(struct control *control, double seconds);
