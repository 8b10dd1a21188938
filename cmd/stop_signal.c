#include "cmd/stop_signal.h"

#include "core/status.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Atomic, as any thread of the process may be the one that the signal interrupts. */
static atomic_int pending;

static void remember(int signal_number)
{
    pending = signal_number;
}

static const int stops[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

/* nohup: the end of the terminal is to stop nothing. */
static bool stays_ignored(int signal_number)
{
    struct sigaction now;
    return signal_number == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void stop_signal_install(void)
{
    struct sigaction action = {.sa_handler = remember, .sa_flags = SA_RESTART};
    sigset_t set;
    sigemptyset(&action.sa_mask);
    sigemptyset(&set);
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        if (!stays_ignored(stops[i]))
            sigaction(stops[i], &action, NULL);
        sigaddset(&set, stops[i]);
    }
    /* a supervisor starts its ranks with these blocked, so that none is lost before this point */
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void stop_signal_default(void)
{
    for (size_t i = 0; i < COUNT_OF(stops); i++)
        if (stops[i] != SIGUSR1 && !stays_ignored(stops[i]))
            signal(stops[i], SIG_DFL);
}

int stop_signal_pending(void)
{
    return pending;
}
