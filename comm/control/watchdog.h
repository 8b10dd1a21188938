/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.h: how a rank that waits notices that a peer is gone or silent, and whom the job's error then names.
 *
 *     gone       the process of the peer has ended, as a pidfd, the supervisor or an agent shows
 *     silent     the peer has not advanced its progress counter (core/heartbeat.h) for nine tenths of the timeout
 *
 * Silence is counted in the waiter's own slices of time: if the whole job is stopped and continued, nobody is accused.
 * A rank on another node is judged by that node's agent; while that is silent, this node's agent judges the node; a
 * silent or dead agent of this node is the culprit. Whoever finds a culprit fails the job (control_fail). Any thread.
 */
#pragma once

#include "comm/control/control.h"

/* Call watchdog_look() every 20 to 100 ms while nothing arrives; it beats, and fails the job if the peer is gone or
 * silent for too long. `what` names this rank's operation. */
struct watchdog {
    int peer;
    uint64_t progress;      /* the peer's at the last look */
    uint32_t heard, beat;   /* signs of life of the peer's node and of this node's agent at the last look */
    double silent;          /* seconds without a heartbeat of the peer */
    double unheard, mute;   /* seconds without a sign of life of the peer's node; of this node's agent */
    double gone, gone_self; /* seconds since the process of the peer is gone; since that of this node's agent is */
    double last;            /* seconds_now() at the last look */
};
void watchdog_begin(struct control *control, int peer, struct watchdog *watch);
void watchdog_look(struct control *control, struct watchdog *watch, const char *what);
/* The same without the heartbeat, for a helper thread. */
void watchdog_peek(struct control *control, struct watchdog *watch, const char *what);

/* The connection with a peer broke in `what`. Waits half a second for a better explanation, or until this node's agent
 * has judged a silent node; then fails the job with "rank R on HOST … (REASON)". Returns the job's failure. */
enum status peer_lost(struct control *control, int peer, const char *what, const char *reason);

/* A rank of this node died; another node is lost, unless it is NODE_FINE. waited_for: the rank for which this one waits
 * in `what`; -1: none. */
void peer_blame_rank(struct control *control, int rank, int waited_for, const char *what);
void peer_blame_node(struct control *control, int node, int waited_for, const char *what);
