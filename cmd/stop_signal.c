#include "cmd/stop_signal.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

/* Atomic, as any thread of the process may be the one that the signal interrupts. */
static atomic_int pending;

static void remember(int signal_number)
{
    pending = signal_number;
}

void stop_signal_install(void)
{
    struct sigaction action = {.sa_handler = remember, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    /* a supervisor starts its ranks with these blocked, so that none is lost before this point */
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &stops, NULL);
}

void stop_signal_default(void)
{
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

int stop_signal_pending(void)
{
    return pending;
}
