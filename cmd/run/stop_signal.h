/* SPDX-License-Identifier: Apache-2.0 */
/* stop_signal.h: SIGTERM, SIGINT, SIGHUP, SIGUSR1 ask for a checkpoint and exit 75; a second SIGINT ends with 130. */
#pragma once

#include <stdbool.h>

void stop_signal_install(void);

/* SIGTERM, SIGINT and SIGHUP end the process at once again, until the next install; SIGUSR1 is still remembered. */
void stop_signal_default(void);

/* These signals and SIGQUIT wait until the next install and flight_recorder_take_quits(), also over an exec. */
void stop_signal_block(void);

bool stop_signal_is_ignored(int signal_number);

/* The signal that asked this process to stop, or 0. */
int stop_signal_pending(void);

/* For a supervisor, whose signals come another way: this one asked it to stop. */
void stop_signal_note(int signal_number);

/* From now on a second SIGINT ends the process with exit code 130. Not for a supervisor's ranks, which may get one
 * SIGINT twice. speaks: this process prints on stderr that a second SIGINT ends it at once, and then that it did. */
void stop_signal_count_interrupts(bool speaks);

/* Whether a SIGINT `seconds` after the last one is a second request: timeout(1) delivers one twice. */
bool stop_signal_is_another(double seconds);

/* What is printed at the first SIGINT. */
extern const char *stop_signal_first_words;
extern const char stop_signal_final_error[];

/* Before any signal can come: this process, or its ranks, replay a run, and stop without a checkpoint. */
void stop_signal_of_replay(void);
