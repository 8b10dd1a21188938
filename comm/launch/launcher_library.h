/* launcher_library.h: the common part of launchers that communicate through a library (PMI-2, PMIx): opening it at run
 * time, calls with a time limit, the end. */
#ifndef ZTRAIN_COMM_LAUNCH_LAUNCHER_LIBRARY_H
#define ZTRAIN_COMM_LAUNCH_LAUNCHER_LIBRARY_H

#include "comm/launch/launcher.h"

/* First member of each. */
struct library_launcher {
    struct launcher base;
    bool initialized; /* the library's Init has succeeded */
};

struct library_symbol {
    const char *name;
    void *function; /* where its address goes */
};

/* Opens `file` and finds the symbols; hint: what to do if it cannot be opened. It is never closed: a call that was
 * given up may still run in it. */
enum status library_open(const char *file, const char *hint, const struct library_symbol *symbols, size_t count,
                         struct error *err);

/* Runs function(argument), a call of the library that `what` names, for at most `seconds`; *code: its return value. The
 * argument is from malloc(); after a failure it is no longer the caller's. Too late is STATUS_PEER. */
enum status library_call(const char *what, int (*function)(void *argument), void *argument, double seconds, int *code,
                         struct error *err);

/* Adds a hint to the error of a fence that failed. */
enum status library_fence_hint(enum status status, struct error *err);

/* The end of a rank's part in the job: function(argument) calls the library's Finalize; the argument is a copy of
 * [table, table + bytes), the functions of the library. */
void library_finish(struct library_launcher *launcher, const char *what, int (*function)(void *argument),
                    const void *table, size_t bytes);

/* A launcher's release verb. */
void library_release(struct launcher *launcher);

#endif
