/* pmi_library.c: see pmi_library.h. */
#include "comm/launch/pmi_library.h"

#include "comm/launch/timed_call.h"
#include "core/memory.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const double finish_seconds = 10; /* for the last call: the work is done, and the process may end without it */

enum status pmi_library_open(const char *file, const char *hint, const struct pmi_library_symbol *symbols, size_t count,
                             struct error *err)
{
    const char *why;
    void *library = memory_dlopen(file, RTLD_NOW | RTLD_LOCAL, &why);
    if (!library) {
        error_set(err, STATUS_USAGE, "cannot open %s, through which the launcher's ranks meet: %s", file, why);
        return error_hint(err, "%s", hint);
    }
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return error_set(err, STATUS_USAGE, "%s has no %s; hint: the loader has found another library of that name",
                             file, symbols[i].name);
        memcpy(symbols[i].function, &symbol, sizeof symbol);
    }
    return STATUS_OK;
}

enum status pmi_library_call(const char *what, int (*function)(void *argument), void *argument, double seconds,
                             int *code, struct error *err)
{
    switch (timed_call(function, argument, seconds, code)) {
    case CALL_RETURNED: return STATUS_OK;
    case CALL_NO_THREAD: free(argument); return error_set(err, STATUS_DEVICE, "cannot start a thread for %s", what);
    case CALL_LATE: break;
    }
    return error_set(err, STATUS_PEER, "%s has not returned after %.3g s", what, seconds);
}

enum status pmi_library_fence_hint(enum status status, struct error *err)
{
    return status == STATUS_PEER ? error_hint(err, "a rank of the step did not start or has ended: see its own "
                                                   "messages; srun -K ends the step when that happens")
                                 : status;
}

void pmi_library_finish(struct pmi_launcher *launcher, const char *what, int (*function)(void *argument),
                        const void *table, size_t bytes)
{
    int code;
    void *copy = launcher->initialized ? malloc(bytes) : NULL;
    launcher->initialized = false;
    if (!copy)
        return;
    memcpy(copy, table, bytes);
    if (pmi_library_call(what, function, copy, finish_seconds, &code, NULL) == STATUS_OK)
        free(copy);
}

void pmi_library_release(struct launcher *launcher)
{
    free(launcher);
}
