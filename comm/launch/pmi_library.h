/* SPDX-License-Identifier: Apache-2.0 */
/* pmi_library.h: launchers that communicate through a library (PMI-2, PMIx), which is opened at run time. A call may
 * never return (PMI2_KVS_Fence() waits forever for a rank that died) or raise SIGPIPE. So each runs on a thread of its
 * own, with all signals blocked, and its caller stops waiting in time; the call's record is its thread's then. */
#pragma once

#include "comm/launch/launcher.h"

enum { PMI_VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1 };

enum pmi_verb { PMI_INIT, PMI_PUT, PMI_FENCE, PMI_GET, PMI_FINALIZE, PMI_VERBS };

/* The verbs return 0 or the library's code. */
struct pmi_library {
    const char *name;             /* "PMIx" */
    const char *verbs[PMI_VERBS]; /* "PMIx_Init", … */
    int (*init)(int *rank, int *world);
    int (*put)(const char *key, int rank, char *value);
    int (*fence)(void);
    int (*get)(const char *key, int rank, char value[PMI_VALUE_BYTES]);
    int (*finalize)(void);
    int (*abort)(int code, const char *text);
    const char *(*explain)(enum pmi_verb verb, int code, char text[64]); /* " (error 14)" */
    const char *variable;                                                /* of init, for messages; NULL: none */
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
