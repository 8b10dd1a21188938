/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/stop_signal.h"

#include "core/core.h"

#include <poll.h>
#include <signal.h>

/* Atomic, as the signal may interrupt any thread of the process. */
static atomic_int pending;
static atomic_bool interrupts, announces, interrupted;
static _Atomic double interrupted_at; /* seconds */

const char *stop_signal_first_words =
    "ztrain: interrupted: the run stops with a checkpoint; a second Ctrl-C ends it at once, without one\n";
const char stop_signal_final_error[] =
    "ztrain: error: interrupted a second time: ended at once, without a checkpoint\n";

bool stop_signal_is_another(double seconds)
{
    return seconds > 0.2; /* no user presses Ctrl-C twice in less time */
}

static void take_stop_signal(int signal_number)
{
    const int reason = errno;
    pending = signal_number;
    if (signal_number == SIGINT) {
        const double now = seconds_now();
        const bool first = !atomic_exchange(&interrupted, true), another = stop_signal_is_another(now - interrupted_at);
        interrupted_at = now;
        const char *words = first ? stop_signal_first_words : stop_signal_final_error;
        struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT}; /* a terminal on hold is not waited for */
        if (interrupts && (first || another) && announces && poll(&ready, 1, 0) == 1) {
            ssize_t ignored = write(STDERR_FILENO, words, strlen(words));
            (void)ignored;
        }
        if (interrupts && !first && another) _exit(STATUS_INTERRUPTED);
    }
    errno = reason;
}

static const int stops[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

bool stop_signal_is_ignored(int signal_number)
{
    struct sigaction now;
    return sigaction(signal_number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void stop_signal_install(void)
{
    struct sigaction action = {.sa_handler = take_stop_signal, .sa_flags = SA_RESTART};
    sigset_t set;
    sigemptyset(&action.sa_mask);
    sigemptyset(&set);
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        if (stops[i] != SIGHUP || !stop_signal_is_ignored(SIGHUP)) /* nohup */
            sigaction(stops[i], &action, NULL);
        sigaddset(&set, stops[i]);
    }
    /* a supervisor starts its ranks with these blocked, so that none is lost before this point */
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void stop_signal_default(void)
{
    for (size_t i = 0; i < COUNT_OF(stops); i++)
        if (stops[i] != SIGUSR1 && (stops[i] != SIGHUP || !stop_signal_is_ignored(SIGHUP))) signal(stops[i], SIG_DFL);
}

void stop_signal_block(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGQUIT);
    for (size_t i = 0; i < COUNT_OF(stops); i++) sigaddset(&set, stops[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int stop_signal_pending(void)
{
    return pending;
}

void stop_signal_note(int signal_number)
{
    pending = signal_number;
}

void stop_signal_of_replay(void)
{
    stop_signal_first_words =
        "ztrain: interrupted: the replay stops after this step; a second Ctrl-C ends it at once\n";
}

void stop_signal_count_interrupts(bool speaks)
{
    announces = speaks;
    interrupts = true;
}
