/* stop_signal.h: SIGTERM, SIGINT, SIGHUP (the terminal is gone; not under nohup) and SIGUSR1 ask a run to finish its
 * step, write a checkpoint and exit 75. */
#ifndef ZTRAIN_CMD_STOP_SIGNAL_H
#define ZTRAIN_CMD_STOP_SIGNAL_H

void stop_signal_install(void);

/* SIGTERM, SIGINT and SIGHUP end the process at once again, until the next install; SIGUSR1 is still remembered. */
void stop_signal_default(void);

/* The signal that asked this process to stop, or 0. */
int stop_signal_pending(void);

#endif
