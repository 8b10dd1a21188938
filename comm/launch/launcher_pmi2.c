/* launcher_pmi2.c: srun --mpi=pmi2. libpmi2.so.0 (of Slurm) talks over PMI_FD with the slurmstepd of this node.
 *
 * Traps of the library:
 *   PMI2_Init       succeeds without PMI_FD as rank 0 of 1: bootstrap.c checks PMI_FD first. Programs that this process
 *                   executes do not inherit PMI_FD, because a second Init on it breaks the step's exchange.
 *   PMI2_KVS_Fence  waits forever for a rank that died: every call has a time limit (timed_call.h).
 *   PMI2_KVS_Get    cuts a value that is too long for the buffer and returns success with a negative length.
 *   PMI2_Abort      ends the process through exit() with its first argument. */
#include "comm/launch/pmi2_refusal.h"
#include "comm/launch/pmi_library.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 64 /* PMI2_MAX_KEYLEN */, VALUE_BYTES = 1025 /* PMI2_MAX_VALLEN + 1 */, ID_NULL = -1 };
_Static_assert((int)BOOTSTRAP_KEY_MAX + (int)sizeof "ztrain..4095" <= (int)KEY_BYTES, "a rank's key is a key of PMI-2");
_Static_assert((int)BOOTSTRAP_VALUE_MAX < (int)VALUE_BYTES, "a value is a value of PMI-2");

struct pmi2 {
    struct pmi_launcher library;
    struct pmi2_functions {
        int (*init)(int *spawned, int *size, int *rank, int *appnum);
        int (*finalize)(void);
        int (*abort)(int flag, const char *text);
        int (*put)(const char *key, const char *value);
        int (*fence)(void);
        int (*get)(const char *job, int source, const char *key, char *value, int size, int *length);
    } call;
};

static void pmi2_key(char key[KEY_BYTES], const char *name, int rank)
{
    snprintf(key, KEY_BYTES, "ztrain.%s.%d", name, rank);
}

/* ---- calls with a time limit --------------------------------------------- */

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

/* Gets the values of `count` ranks from `rank` on; after a failure call->rank is the rank whose value was not got. */
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
    return ((struct pmi2_functions *)argument)->finalize();
}

static struct pmi2_call *call_new(const struct pmi2 *pmi2, int count, struct error *err)
{
    struct pmi2_call *call = calloc(1, sizeof *call + (size_t)count * (BOOTSTRAP_VALUE_MAX + 1));
    if (!call) {
        error_set(err, STATUS_DEVICE, "out of memory");
        return NULL;
    }
    call->functions = pmi2->call;
    call->rank = pmi2->library.base.rank;
    call->count = count;
    return call;
}

/* ---- verbs --------------------------------------------------------------- */

static enum status pmi2_connect(struct launcher *launcher, double seconds, const char *interface, struct error *err)
{
    (void)interface;
    struct pmi2 *pmi2 = (struct pmi2 *)launcher;
    struct pmi2_call *call = call_new(pmi2, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    TRY(pmi_library_call("PMI2_Init", run_init, call, seconds, &code, err));
    int rank = call->rank, size = call->size;
    free(call);
    const char *fd = getenv("PMI_FD");
    if (code != 0) {
        error_set(err, STATUS_USAGE, "PMI2_Init over PMI_FD=%s failed (error %d)", fd ? fd : "", code);
        return error_hint(err,
                          "the variable is left over from another step, or another program of this step has used "
                          "it; let srun itself start ztrain: srun --mpi=pmi2 -n %d ztrain ...",
                          launcher->world);
    }
    pmi2->library.initialized = true;
    if (fd)
        fcntl(atoi(fd), F_SETFD, FD_CLOEXEC); /* programs that this rank executes are not ranks */
    if (rank != launcher->rank || size != launcher->world) {
        error_set(err, STATUS_USAGE, "PMI-2 reports rank %d of %d, but the environment has rank %d of %d", rank, size,
                  launcher->rank, launcher->world);
        error_blame(err, launcher->rank, FAILURE_NONE);
        return error_hint(err, "let srun itself start ztrain: srun --mpi=pmi2 -n %d ztrain ...", launcher->world);
    }
    return STATUS_OK;
}

static enum status pmi2_put(struct launcher *launcher, const char *key, const char *value, double seconds,
                            struct error *err)
{
    struct pmi2_call *call = call_new((struct pmi2 *)launcher, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    snprintf(call->name, sizeof call->name, "%s", key);
    snprintf(call->value, sizeof call->value, "%s", value);
    TRY(pmi_library_call("PMI2_KVS_Put", run_put, call, seconds, &code, err));
    free(call);
    return code == 0 ? STATUS_OK : error_set(err, STATUS_PEER, "PMI2_KVS_Put of '%s' failed (error %d)", key, code);
}

static enum status pmi2_fence(struct launcher *launcher, double seconds, struct error *err)
{
    struct pmi2_call *call = call_new((struct pmi2 *)launcher, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    TRY(pmi_library_fence_hint(pmi_library_call("PMI2_KVS_Fence", run_fence, call, seconds, &code, err), err));
    free(call);
    return code == 0 ? STATUS_OK : error_set(err, STATUS_PEER, "PMI2_KVS_Fence failed (error %d)", code);
}

static enum status pmi2_get(struct launcher *launcher, int rank, const char *key, char *values, double seconds,
                            struct error *err)
{
    int count = rank < 0 ? launcher->world : 1, code;
    struct pmi2_call *call = call_new((struct pmi2 *)launcher, count, err);
    if (!call)
        return STATUS_DEVICE;
    snprintf(call->name, sizeof call->name, "%s", key);
    call->rank = rank < 0 ? 0 : rank;
    TRY(pmi_library_call("PMI2_KVS_Get", run_get, call, seconds, &code, err));
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
    if (pmi2->library.initialized)
        pmi2->call.abort((int)code, text);
}

static void pmi2_finish(struct launcher *launcher)
{
    struct pmi2 *pmi2 = (struct pmi2 *)launcher;
    pmi_library_finish(&pmi2->library, "PMI2_Finalize", run_finalize, &pmi2->call, sizeof pmi2->call);
}

static const struct launcher_verbs pmi2_verbs = {
    .name = "PMI-2",
    .connect = pmi2_connect,
    .put = pmi2_put,
    .fence = pmi2_fence,
    .get = pmi2_get,
    .abort = pmi2_abort,
    .finish = pmi2_finish,
    .release = pmi_library_release,
};

enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    enum status status;
    *launcher = NULL;
    struct pmi2 *pmi2 = calloc(1, sizeof *pmi2);
    if (!pmi2)
        return error_set(err, STATUS_DEVICE, "out of memory");
    pmi2->library.base = (struct launcher){.verbs = &pmi2_verbs, .rank = rank, .world = world};
    const struct pmi_library_symbol symbols[] = {
        {"PMI2_Init", &pmi2->call.init},   {"PMI2_Finalize", &pmi2->call.finalize}, {"PMI2_Abort", &pmi2->call.abort},
        {"PMI2_KVS_Put", &pmi2->call.put}, {"PMI2_KVS_Fence", &pmi2->call.fence},   {"PMI2_KVS_Get", &pmi2->call.get},
    };
    TRY_GOTO(
        pmi_library_open("libpmi2.so.0",
                         "install Slurm's PMI-2 library (Debian: libpmi2-0) on every node, or set LD_LIBRARY_PATH to "
                         "the folder that has it",
                         symbols, COUNT_OF(symbols), err));
    *launcher = &pmi2->library.base;
    return STATUS_OK;
fail:
    free(pmi2);
    return status;
}

enum status launcher_pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds,
                                 struct error *err)
{
    char name[KEY_BYTES];
    pmi2_key(name, key, rank);
    return pmi2_refuse(fd, rank, name, value, seconds, err);
}
