/* SPDX-License-Identifier: Apache-2.0 */
/* pmi_library.h: launchers that communicate through a library (PMI-2, PMIx), which is opened at run time. A call may
 * never return (PMI2_KVS_Fence() waits forever for a rank that died) or raise SIGPIPE. So each runs on a thread of its
 * own, with all signals blocked, and its caller stops waiting in time; the call's record is its thread's then. */
#pragma once

#include "comm/launch/launcher.h"

enum { PMI_VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1 };

struct pmi_call {
    int rank, world; /* results of init; get: the first rank, and after a failure the one whose value was not got */
    int count;       /* of get: ranks */
    char key[BOOTSTRAP_KEY_MAX + 1], value[PMI_VALUE_BYTES]; /* key: of put and get; value: of put */

    /* pmi_library.c's */
    int (*run)(struct pmi_call *call);
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    int code; /* that run() has returned */
    bool returned, given_up;

    char values[]; /* of get: (count × PMI_VALUE_BYTES) */
};

/* run returns 0 or the library's code. */
struct pmi_function {
    const char *name;
    int (*run)(struct pmi_call *call);
};

struct pmi_library {
    const char *name; /* "PMIx" */
    struct pmi_function init, put, fence, get, finalize;
    void (*abort)(int code, const char *text);
    const char *(*explain)(const struct pmi_function *function, int code, char text[64]); /* " (error 14)" */
    const char *variable;              /* of init, for messages; NULL: none */
    const char *init_hint, *rank_hint; /* if init fails, or reports another rank: formats of the world's size */
};

struct pmi_symbol {
    const char *name;
    void *function; /* where its address goes */
};

/* Opens `file` and finds the symbols; hint: what to do if it cannot be opened. It is never closed. */
enum status pmi_library_open(const char *file, const char *hint, const struct pmi_symbol *symbols, size_t count,
                             struct error *err);

/* A launcher that uses the library. */
struct launcher *pmi_launcher_new(const struct pmi_library *library, int rank, int world);
