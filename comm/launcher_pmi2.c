/* launcher_pmi2.c: srun --mpi=pmi2. libpmi2.so.0 (of Slurm) talks over PMI_FD with the slurmstepd of this node.
 *
 * What the library does not do by itself:
 *   PMI2_Init   without PMI_FD it succeeds as rank 0 of 1: bootstrap.c looks at PMI_FD first. PMI_FD is kept from what
 *               this process executes, because a second Init on it kills the step's exchange.
 *   PMI2_KVS_Fence  waits for ever for a rank that died: every call has a time limit (launcher_call.h).
 *   PMI2_KVS_Get    cuts a value that is too long for the buffer and returns success with a negative length.
 *   PMI2_Abort  leaves through exit() with its first argument. */
#include "comm/launcher.h"
#include "comm/launcher_call.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 64 /* PMI2_MAX_KEYLEN */, VALUE_BYTES = 1025 /* PMI2_MAX_VALLEN and its end */, ID_NULL = -1 };
_Static_assert((int)BOOTSTRAP_KEY_MAX + (int)sizeof "ztrain..4095" <= (int)KEY_BYTES, "a rank's key is a key of PMI-2");
_Static_assert((int)BOOTSTRAP_VALUE_MAX < (int)VALUE_BYTES, "a value is a value of PMI-2");

static const double answer_seconds = 10; /* for calls that only the own slurmstepd answers */

struct pmi2 {
    struct launcher base;
    void *library;
    struct pmi2_functions {
        int (*init)(int *spawned, int *size, int *rank, int *appnum);
        int (*finalize)(void);
        int (*abort)(int flag, const char *text);
        int (*put)(const char *key, const char *value);
        int (*fence)(void);
        int (*get)(const char *job, int source, const char *key, char *value, int size, int *length);
    } call;
    bool initialized;
};

static void pmi2_key(char key[KEY_BYTES], const char *name, int rank)
{
    snprintf(key, KEY_BYTES, "ztrain.%s.%d", name, rank);
}

/* ---------------------------------------------------------------- calls with a time limit */

/* A call and its results; lives until the library has returned. */
struct pmi2_call {
    struct pmi2_functions functions;
    int rank, size, length, count;
    char name[BOOTSTRAP_KEY_MAX + 1];
    char value[VALUE_BYTES];
    char values[]; /* of get: count texts, BOOTSTRAP_VALUE_MAX + 1 bytes apart */
};

static int run_init(void *argument)
{
    struct pmi2_call *call = argument;
    int spawned = 0, appnum = 0;
    return call->functions.init(&spawned, &call->size, &call->rank, &appnum);
}

static int run_put(void *argument)
{
    struct pmi2_call *call = argument;
    char key[KEY_BYTES];
    pmi2_key(key, call->name, call->rank);
    return call->functions.put(key, call->value);
}

static int run_fence(void *argument)
{
    return ((struct pmi2_call *)argument)->functions.fence();
}

/* Gets the values of `count` ranks from `rank` on; on return call->rank is the one that failed. */
static int run_get(void *argument)
{
    struct pmi2_call *call = argument;
    for (int i = 0; i < call->count; i++, call->rank++) {
        char key[KEY_BYTES];
        pmi2_key(key, call->name, call->rank);
        call->length = 0;
        memset(call->value, 0, sizeof call->value);
        int code = call->functions.get(NULL, ID_NULL, key, call->value, sizeof call->value, &call->length);
        if (code != 0)
            return code;
        size_t length = strnlen(call->value, sizeof call->value);
        if (call->length < 0 || length > BOOTSTRAP_VALUE_MAX)
            return -1;
        memcpy(call->values + (size_t)i * (BOOTSTRAP_VALUE_MAX + 1), call->value, length + 1);
    }
    return 0;
}

static int run_finalize(void *argument)
{
    return ((struct pmi2_call *)argument)->functions.finalize();
}

static struct pmi2_call *call_new(const struct pmi2 *pmi2, int count, struct error *err)
{
    struct pmi2_call *call = calloc(1, sizeof *call + (size_t)count * (BOOTSTRAP_VALUE_MAX + 1));
    if (!call) {
        error_set(err, STATUS_DEVICE, "out of memory");
        return NULL;
    }
    call->functions = pmi2->call;
    call->rank = pmi2->base.rank;
    call->count = count;
    return call;
}

/* Runs it; *code: what the function returned. On failure the call is no longer the caller's. */
static enum status call_run(struct pmi2_call *call, const char *what, int (*function)(void *), double seconds,
                            int *code, struct error *err)
{
    switch (launcher_call(function, call, seconds, code)) {
    case CALL_RETURNED: return STATUS_OK;
    case CALL_NO_THREAD: free(call); return error_set(err, STATUS_DEVICE, "cannot start a thread for %s", what);
    case CALL_LATE: break;
    }
    return error_set(err, STATUS_PEER, "%s has not returned after %.3g s", what, seconds);
}

/* ---------------------------------------------------------------- verbs */

static enum status pmi2_connect(struct launcher *launcher, double seconds, const char *interface, struct error *err)
{
    (void)seconds, (void)interface;
    struct pmi2 *pmi2 = (struct pmi2 *)launcher;
    struct pmi2_call *call = call_new(pmi2, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    TRY(call_run(call, "PMI2_Init", run_init, answer_seconds, &code, err));
    int rank = call->rank, size = call->size;
    free(call);
    const char *fd = getenv("PMI_FD");
    if (code != 0) {
        error_set(err, STATUS_USAGE, "PMI2_Init over PMI_FD=%s failed (error %d)", fd ? fd : "", code);
        return error_hint(err,
                          "the variable is left over from another step, or another program of this step has used "
                          "it; start ztrain by srun itself: srun --mpi=pmi2 -n %d ztrain ...",
                          launcher->world);
    }
    pmi2->initialized = true;
    if (fd)
        fcntl(atoi(fd), F_SETFD, FD_CLOEXEC); /* what this rank executes is no rank */
    if (rank != launcher->rank || size != launcher->world) {
        error_set(err, STATUS_USAGE, "PMI-2 says rank %d of %d where the environment says rank %d of %d", rank, size,
                  launcher->rank, launcher->world);
        return error_hint(err, "start ztrain by srun itself: srun --mpi=pmi2 -n %d ztrain ...", launcher->world);
    }
    return STATUS_OK;
}

static enum status pmi2_put(struct launcher *launcher, const char *key, const char *value, struct error *err)
{
    struct pmi2_call *call = call_new((struct pmi2 *)launcher, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    snprintf(call->name, sizeof call->name, "%s", key);
    snprintf(call->value, sizeof call->value, "%s", value);
    TRY(call_run(call, "PMI2_KVS_Put", run_put, answer_seconds, &code, err));
    free(call);
    return code == 0 ? STATUS_OK : error_set(err, STATUS_PEER, "PMI2_KVS_Put of '%s' failed (error %d)", key, code);
}

static enum status pmi2_fence(struct launcher *launcher, double seconds, struct error *err)
{
    struct pmi2_call *call = call_new((struct pmi2 *)launcher, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    enum status status = call_run(call, "PMI2_KVS_Fence", run_fence, seconds, &code, err);
    if (status != STATUS_OK)
        return status == STATUS_PEER ? error_hint(err, "a rank of the step did not start or has ended: see its own "
                                                       "messages; srun -K ends the step when that happens")
                                     : status;
    free(call);
    return code == 0 ? STATUS_OK : error_set(err, STATUS_PEER, "PMI2_KVS_Fence failed (error %d)", code);
}

static enum status pmi2_get(struct launcher *launcher, int rank, const char *key, char *values, struct error *err)
{
    int count = rank < 0 ? launcher->world : 1, code;
    struct pmi2_call *call = call_new((struct pmi2 *)launcher, count, err);
    if (!call)
        return STATUS_DEVICE;
    snprintf(call->name, sizeof call->name, "%s", key);
    call->rank = rank < 0 ? 0 : rank;
    TRY(call_run(call, "PMI2_KVS_Get", run_get, answer_seconds + 0.01 * count, &code, err));
    if (code == 0)
        memcpy(values, call->values, (size_t)count * (BOOTSTRAP_VALUE_MAX + 1));
    else
        error_set(err, STATUS_PEER, "PMI2_KVS_Get of '%s' of rank %d failed (%s)", key, call->rank,
                  code == 14   ? "no such key"
                  : code == -1 ? "its value is too long"
                               : "an error of the library");
    free(call);
    return code == 0 ? STATUS_OK : STATUS_PEER;
}

static void pmi2_abort(struct launcher *launcher, enum status code, const char *text)
{
    struct pmi2 *pmi2 = (struct pmi2 *)launcher;
    if (pmi2->initialized) /* else slurmstepd would not know who speaks */
        pmi2->call.abort((int)code, text);
}

static void pmi2_finish(struct launcher *launcher)
{
    struct pmi2 *pmi2 = (struct pmi2 *)launcher;
    int code;
    struct pmi2_call *call = pmi2->initialized ? call_new(pmi2, 0, NULL) : NULL;
    if (call && call_run(call, "PMI2_Finalize", run_finalize, answer_seconds, &code, NULL) == STATUS_OK)
        free(call);
    pmi2->initialized = false;
}

static void pmi2_release(struct launcher *launcher)
{
    free(launcher); /* the library stays: a late call may still run in it */
}

static const struct launcher_verbs pmi2_verbs = {
    .name = "PMI-2",
    .connect = pmi2_connect,
    .put = pmi2_put,
    .fence = pmi2_fence,
    .get = pmi2_get,
    .abort = pmi2_abort,
    .finish = pmi2_finish,
    .release = pmi2_release,
};

enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    *launcher = NULL;
    void *library = dlopen("libpmi2.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        error_set(err, STATUS_USAGE, "cannot open libpmi2.so.0, which srun --mpi=pmi2 needs: %s", dlerror());
        return error_hint(err, "install Slurm's PMI-2 library (Debian: libpmi2-0) on every node, or set "
                               "LD_LIBRARY_PATH to the folder that has it");
    }
    struct pmi2 *pmi2 = calloc(1, sizeof *pmi2);
    if (!pmi2)
        return error_set(err, STATUS_DEVICE, "out of memory");
    pmi2->base = (struct launcher){.verbs = &pmi2_verbs, .rank = rank, .world = world};
    pmi2->library = library;
    const struct {
        const char *name;
        void *function; /* where its address goes */
    } table[] = {
        {"PMI2_Init", &pmi2->call.init},   {"PMI2_Finalize", &pmi2->call.finalize}, {"PMI2_Abort", &pmi2->call.abort},
        {"PMI2_KVS_Put", &pmi2->call.put}, {"PMI2_KVS_Fence", &pmi2->call.fence},   {"PMI2_KVS_Get", &pmi2->call.get},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        void *symbol = dlsym(library, table[i].name);
        if (!symbol) {
            free(pmi2);
            return error_set(err, STATUS_USAGE,
                             "libpmi2.so.0 has no %s; hint: another library of that name comes first", table[i].name);
        }
        memcpy(table[i].function, &symbol, sizeof symbol);
    }
    *launcher = &pmi2->base;
    return STATUS_OK;
}
