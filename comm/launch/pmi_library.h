/* pmi_library.h: the common part of launchers that communicate through a library (PMI-2, PMIx): opening it at run
 * time, calls with a time limit, the end. */
#pragma once

#include "comm/launch/launcher.h"

/* First member of each. */
struct pmi_launcher {
    struct launcher base;
    bool initialized; /* the library's Init has succeeded */
};

struct pmi_library_symbol {
    const char *name;
    void *function; /* where its address goes */
};

/* Opens `file` and finds the symbols; hint: what to do if it cannot be opened. It is never closed: a call that was
 * given up may still run in it. */
enum status pmi_library_open(const char *file, const char *hint, const struct pmi_library_symbol *symbols, size_t count,
                             struct error *err);

/* Runs function(argument), a call of the library that `what` names, for at most `seconds`; *code: its return value. The
 * argument is from malloc(); after a failure it is no longer the caller's. Too late is STATUS_PEER. */
enum status pmi_library_call(const char *what, int (*function)(void *argument), void *argument, double seconds,
                             int *code, struct error *err);

/* Adds a hint to the error of a fence that failed. */
enum status pmi_library_fence_hint(enum status status, struct error *err);

/* The end of a rank's part in the job: function(argument) calls the library's Finalize; the argument is a copy of
 * [table, table + bytes), the functions of the library. */
void pmi_library_finish(struct pmi_launcher *launcher, const char *what, int (*function)(void *argument),
                        const void *table, size_t bytes);

/* A launcher's release verb. */
void pmi_library_release(struct launcher *launcher);
