/* launcher_pmi2.c: srun --mpi=pmi2. libpmi2.so.0 (of Slurm) talks over PMI_FD with the slurmstepd of this node.
 *
 * Traps of the library:
 *   PMI2_Init       succeeds without PMI_FD as rank 0 of 1: bootstrap.c checks PMI_FD first. Programs that this process
 *                   executes do not inherit PMI_FD, because a second Init on it breaks the step's exchange.
 *   PMI2_KVS_Fence  waits forever for a rank that died: every call has a time limit (pmi_library.h).
 *   PMI2_KVS_Get    cuts a value that is too long for the buffer and returns success with a negative length.
 *   PMI2_Abort      ends the process through exit() with its first argument. */
#include "comm/launch/pmi_library.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 64 /* PMI2_MAX_KEYLEN */, VALUE_BYTES = 1025 /* PMI2_MAX_VALLEN + 1 */, ID_NULL = -1 };
enum { NO_KEY = 14 /* PMI2_ERR_INVALID_KEY */, TOO_LONG = -1 /* not one of the library's */ };
_Static_assert((int)BOOTSTRAP_KEY_MAX + (int)sizeof "ztrain..4095" <= (int)KEY_BYTES, "a rank's key is a key of PMI-2");
_Static_assert((int)BOOTSTRAP_VALUE_MAX < (int)VALUE_BYTES, "a value is a value of PMI-2");

static struct {
    int (*init)(int *spawned, int *size, int *rank, int *appnum);
    int (*finalize)(void);
    int (*abort)(int flag, const char *text);
    int (*put)(const char *key, const char *value);
    int (*fence)(void);
    int (*get)(const char *job, int source, const char *key, char *value, int size, int *length);
} pmi2;

static void name_key(char key[KEY_BYTES], const char *name, int rank)
{
    snprintf(key, KEY_BYTES, "ztrain.%s.%d", name, rank);
}

static int run_init(struct pmi_call *call)
{
    int spawned = 0, appnum = 0, code = pmi2.init(&spawned, &call->world, &call->rank, &appnum);
    const char *fd = getenv("PMI_FD");
    if (code == 0 && fd)
        fcntl(atoi(fd), F_SETFD, FD_CLOEXEC); /* programs that this rank executes are not ranks */
    return code;
}

static int run_put(struct pmi_call *call)
{
    char key[KEY_BYTES];
    name_key(key, call->key, call->rank);
    return pmi2.put(key, call->value);
}

static int run_fence(struct pmi_call *call)
{
    (void)call;
    return pmi2.fence();
}

static int run_get(struct pmi_call *call)
{
    for (int i = 0; i < call->count; i++, call->rank++) {
        char key[KEY_BYTES], value[VALUE_BYTES] = "";
        int length = 0;
        name_key(key, call->key, call->rank);
        int code = pmi2.get(NULL, ID_NULL, key, value, sizeof value, &length);
        if (code != 0)
            return code;
        if (length < 0 || strnlen(value, sizeof value) > BOOTSTRAP_VALUE_MAX)
            return TOO_LONG;
        snprintf(call->values + (size_t)i * PMI_VALUE_BYTES, PMI_VALUE_BYTES, "%s", value);
    }
    return 0;
}

static int run_finalize(struct pmi_call *call)
{
    (void)call;
    return pmi2.finalize();
}

static void abort_job(int code, const char *text)
{
    pmi2.abort(code, text);
}

static const char *pmi2_explain(const struct pmi_function *function, int code, char text[64])
{
    snprintf(text, 64, " (error %d)", code);
    if (function->run != run_get)
        return text;
    return code == NO_KEY     ? " (no such key)"
           : code == TOO_LONG ? " (its value is too long)"
                              : " (an error of the library)";
}

static enum status init_failed(int code, int world, struct error *err)
{
    const char *fd = getenv("PMI_FD");
    error_set(err, STATUS_USAGE, "PMI2_Init over PMI_FD=%s failed (error %d)", fd ? fd : "", code);
    return error_hint(err,
                      "the variable is left over from another step, or another program of this step has used it; let "
                      "srun itself start ztrain: srun --mpi=pmi2 -n %d ztrain ...",
                      world);
}

static enum status other_rank(int world, struct error *err)
{
    return error_hint(err, "let srun itself start ztrain: srun --mpi=pmi2 -n %d ztrain ...", world);
}

enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    static const struct pmi_library library = {.name = "PMI-2",
                                               .init = {"PMI2_Init", run_init},
                                               .put = {"PMI2_KVS_Put", run_put},
                                               .fence = {"PMI2_KVS_Fence", run_fence},
                                               .get = {"PMI2_KVS_Get", run_get},
                                               .finalize = {"PMI2_Finalize", run_finalize},
                                               .abort = abort_job,
                                               .explain = pmi2_explain,
                                               .init_failed = init_failed,
                                               .other_rank = other_rank};
    static const struct pmi_symbol symbols[] = {
        {"PMI2_Init", &pmi2.init},   {"PMI2_Finalize", &pmi2.finalize}, {"PMI2_Abort", &pmi2.abort},
        {"PMI2_KVS_Put", &pmi2.put}, {"PMI2_KVS_Fence", &pmi2.fence},   {"PMI2_KVS_Get", &pmi2.get},
    };
    *launcher = NULL;
    TRY(pmi_library_open("libpmi2.so.0",
                         "install Slurm's PMI-2 library (Debian: libpmi2-0) on every node, or set LD_LIBRARY_PATH to "
                         "the folder that has it",
                         symbols, COUNT_OF(symbols), err));
    *launcher = pmi_launcher_new(&library, rank, world);
    return STATUS_OK;
}
