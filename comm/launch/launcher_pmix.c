/* launcher_pmix.c: srun --mpi=pmix, prterun, Open MPI's mpirun. libpmix.so.2 talks with the PMIx server of this node.
 *
 * ztrain builds without PMIx's headers, so the types that it uses are declared here. Their layout is the same in PMIx
 * 4, 5 and 6 (the standard's stable ABI); launcher_pmix_new() refuses other versions. Records that the library reads
 * have spare room after them.
 *
 * PMIx_Fence() may wait forever for a rank that died: calls have a time limit (pmi_library.h). */
#include "comm/launch/pmi_library.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_MAJOR = 4, NEWEST_MAJOR = 6, VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1 };
enum { PMIX_BOOL = 1, PMIX_STRING = 3, PMIX_UINT32 = 14, PMIX_GLOBAL = 3 };
#define PMIX_RANK_WILDCARD (UINT32_MAX - 1)

struct pmix_proc {
    char nspace[256];
    uint32_t rank;
};

struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        uint32_t uint32;
        struct {
            char *texts[2];
            char separator;
        } largest; /* of the library's union */
    } data;
};
_Static_assert(sizeof(struct pmix_value) == 32, "a value as in PMIx 4 to 6");

struct pmix_info {
    char key[512];
    uint32_t flags;
    struct pmix_value value;
};
_Static_assert(sizeof(struct pmix_info) == 552, "an attribute as in PMIx 4 to 6");

struct pmix_functions {
    const char *(*version)(void);
    int (*init)(struct pmix_proc *proc, struct pmix_info *info, size_t count);
    int (*finalize)(const struct pmix_info *info, size_t count);
    int (*abort)(int code, const char *text, struct pmix_proc *procs, size_t count);
    int (*put)(uint8_t scope, const char *key, struct pmix_value *value);
    int (*commit)(void);
    int (*fence)(const struct pmix_proc *procs, size_t num_procs, const struct pmix_info *info, size_t count);
    int (*get)(const struct pmix_proc *proc, const char *key, const struct pmix_info *info, size_t count,
               struct pmix_value **value);
    const char *(*error)(int code);
};

struct pmix {
    struct pmi_launcher library;
    struct pmix_functions call;
    struct pmix_proc self;
};

/* ---- calls with a time limit --------------------------------------------- */

/* A call and its results; lives until the library has returned. */
struct pmix_call {
    struct pmix_functions functions;
    struct pmix_proc proc;
    uint32_t job_size;
    int count;
    char key[512];
    struct {
        struct pmix_info info;
        char spare[256];
    } collect;
    char value[VALUE_BYTES];
    char values[]; /* of get: count texts, VALUE_BYTES apart */
};

enum { BAD_VALUE = INT32_MAX }; /* in addition to PMIx's codes, which are not positive */

/* Gets a value of call->proc and copies it: text of at most VALUE_BYTES, or a number. */
static int get_one(struct pmix_call *call, const char *key, char *text, uint32_t *number)
{
    struct pmix_value *value = NULL;
    int code = call->functions.get(&call->proc, key, NULL, 0, &value);
    if (code != 0)
        return code;
    if (!value)
        return BAD_VALUE;
    bool good = false;
    if (text && value->type == PMIX_STRING && value->data.string && strlen(value->data.string) < VALUE_BYTES) {
        strcpy(text, value->data.string);
        good = true;
    } else if (number && value->type == PMIX_UINT32) {
        *number = value->data.uint32;
        good = true;
    }
    if (value->type == PMIX_STRING)
        free(value->data.string);
    free(value);
    return good ? 0 : BAD_VALUE;
}

static int run_init(void *argument)
{
    struct pmix_call *call = argument;
    char key[512] = "pmix.job.size";
    int code = call->functions.init(&call->proc, NULL, 0);
    if (code != 0)
        return code;
    uint32_t rank = call->proc.rank;
    call->proc.rank = PMIX_RANK_WILDCARD;
    code = get_one(call, key, NULL, &call->job_size);
    call->proc.rank = rank;
    return code;
}

static int run_put(void *argument)
{
    struct pmix_call *call = argument;
    struct {
        struct pmix_value value;
        char spare[64];
    } put = {.value = {.type = PMIX_STRING, .data.string = call->value}};
    int code = call->functions.put(PMIX_GLOBAL, call->key, &put.value);
    return code ? code : call->functions.commit();
}

static int run_fence(void *argument)
{
    struct pmix_call *call = argument;
    strcpy(call->collect.info.key, "pmix.collect"); /* all values travel with the fence, not one by one with each get */
    call->collect.info.value = (struct pmix_value){.type = PMIX_BOOL, .data.flag = true};
    return call->functions.fence(NULL, 0, &call->collect.info, 1);
}

/* Gets the values of `count` ranks from proc.rank on; after a failure proc.rank is the rank whose value was not got. */
static int run_get(void *argument)
{
    struct pmix_call *call = argument;
    for (int i = 0; i < call->count; i++, call->proc.rank++) {
        int code = get_one(call, call->key, call->values + (size_t)i * VALUE_BYTES, NULL);
        if (code != 0)
            return code;
    }
    return 0;
}

static int run_finalize(void *argument)
{
    return ((struct pmix_functions *)argument)->finalize(NULL, 0);
}

static struct pmix_call *call_new(const struct pmix *pmix, const char *key, int count, struct error *err)
{
    struct pmix_call *call = calloc(1, sizeof *call + (size_t)count * VALUE_BYTES);
    if (!call) {
        error_set(err, STATUS_DEVICE, "out of memory");
        return NULL;
    }
    call->functions = pmix->call;
    call->proc = pmix->self;
    call->count = count;
    snprintf(call->key, sizeof call->key, "ztrain.%s", key);
    return call;
}

static const char *describe_code(const struct pmix *pmix, int code)
{
    return code == BAD_VALUE ? "its value is not a text or a number as expected" : pmix->call.error(code);
}

/* ---- verbs --------------------------------------------------------------- */

static enum status pmix_connect(struct launcher *launcher, double seconds, const char *interface, struct error *err)
{
    (void)interface;
    struct pmix *pmix = (struct pmix *)launcher;
    struct pmix_call *call = call_new(pmix, "", 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    TRY(pmi_library_call("PMIx_Init", run_init, call, seconds, &code, err));
    pmix->self = call->proc;
    uint32_t rank = call->proc.rank, size = call->job_size;
    free(call);
    if (code != 0) {
        error_set(err, STATUS_USAGE, "PMIx_Init failed: %s", describe_code(pmix, code));
        return error_hint(err,
                          "PMIX_NAMESPACE and PMIX_RANK are left over from another step, or this libpmix does not "
                          "fit the launcher's; srun --mpi=pmi2 -n %d ztrain ... needs no PMIx",
                          launcher->world);
    }
    pmix->library.initialized = true;
    if (rank != (uint32_t)launcher->rank || size != (uint32_t)launcher->world) {
        error_set(err, STATUS_USAGE, "PMIx reports rank %u of %u, but the environment has rank %d of %d", rank, size,
                  launcher->rank, launcher->world);
        error_blame(err, launcher->rank, FAILURE_NONE);
        return error_hint(err, "let the launcher itself start ztrain");
    }
    return STATUS_OK;
}

static enum status pmix_put(struct launcher *launcher, const char *key, const char *value, double seconds,
                            struct error *err)
{
    struct pmix *pmix = (struct pmix *)launcher;
    struct pmix_call *call = call_new(pmix, key, 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    snprintf(call->value, sizeof call->value, "%s", value);
    TRY(pmi_library_call("PMIx_Put", run_put, call, seconds, &code, err));
    free(call);
    return code == 0 ? STATUS_OK
                     : error_set(err, STATUS_PEER, "PMIx_Put of '%s' failed: %s", key, describe_code(pmix, code));
}

static enum status pmix_fence(struct launcher *launcher, double seconds, struct error *err)
{
    struct pmix *pmix = (struct pmix *)launcher;
    struct pmix_call *call = call_new(pmix, "", 0, err);
    int code;
    if (!call)
        return STATUS_DEVICE;
    TRY(pmi_library_fence_hint(pmi_library_call("PMIx_Fence", run_fence, call, seconds, &code, err), err));
    free(call);
    return code == 0 ? STATUS_OK : error_set(err, STATUS_PEER, "PMIx_Fence failed: %s", describe_code(pmix, code));
}

static enum status pmix_get(struct launcher *launcher, int rank, const char *key, char *values, double seconds,
                            struct error *err)
{
    struct pmix *pmix = (struct pmix *)launcher;
    int count = rank < 0 ? launcher->world : 1, code;
    struct pmix_call *call = call_new(pmix, key, count, err);
    if (!call)
        return STATUS_DEVICE;
    call->proc.rank = rank < 0 ? 0 : (uint32_t)rank;
    TRY(pmi_library_call("PMIx_Get", run_get, call, seconds, &code, err));
    if (code == 0)
        memcpy(values, call->values, (size_t)count * VALUE_BYTES);
    else
        error_set(err, STATUS_PEER, "PMIx_Get of '%s' of rank %u failed: %s", key, call->proc.rank,
                  describe_code(pmix, code));
    free(call);
    return code == 0 ? STATUS_OK : STATUS_PEER;
}

static void pmix_abort(struct launcher *launcher, enum status code, const char *text)
{
    struct pmix *pmix = (struct pmix *)launcher;
    if (pmix->library.initialized)
        pmix->call.abort((int)code, text, NULL, 0);
}

static void pmix_finish(struct launcher *launcher)
{
    struct pmix *pmix = (struct pmix *)launcher;
    pmi_library_finish(&pmix->library, "PMIx_Finalize", run_finalize, &pmix->call, sizeof pmix->call);
}

static const struct launcher_verbs pmix_verbs = {
    .name = "PMIx",
    .connect = pmix_connect,
    .put = pmix_put,
    .fence = pmix_fence,
    .get = pmix_get,
    .abort = pmix_abort,
    .finish = pmix_finish,
    .release = pmi_library_release,
};

/* The first number in "OpenPMIx 4.2.2, repo rev …", or -1. */
static int major_version(const char *text)
{
    while (*text && !isdigit((unsigned char)*text))
        text++;
    return *text ? atoi(text) : -1;
}

enum status launcher_pmix_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    enum status status;
    *launcher = NULL;
    struct pmix *pmix = calloc(1, sizeof *pmix);
    if (!pmix)
        return error_set(err, STATUS_DEVICE, "out of memory");
    pmix->library.base = (struct launcher){.verbs = &pmix_verbs, .rank = rank, .world = world};
    const struct pmi_library_symbol symbols[] = {
        {"PMIx_Get_version", &pmix->call.version},
        {"PMIx_Init", &pmix->call.init},
        {"PMIx_Finalize", &pmix->call.finalize},
        {"PMIx_Abort", &pmix->call.abort},
        {"PMIx_Put", &pmix->call.put},
        {"PMIx_Commit", &pmix->call.commit},
        {"PMIx_Fence", &pmix->call.fence},
        {"PMIx_Get", &pmix->call.get},
        {"PMIx_Error_string", &pmix->call.error},
    };
    char hint[192];
    snprintf(hint, sizeof hint,
             "install it (Debian: libpmix2) on every node, set LD_LIBRARY_PATH to the folder that has it, or use srun "
             "--mpi=pmi2 -n %d ztrain ...",
             world);
    TRY_GOTO(pmi_library_open("libpmix.so.2", hint, symbols, COUNT_OF(symbols), err));
    const char *version = pmix->call.version();
    int major = major_version(version);
    if (major < OLDEST_MAJOR || major > NEWEST_MAJOR) {
        error_set(err, STATUS_USAGE, "libpmix.so.2 is '%.60s', but ztrain supports PMIx %d to %d", version,
                  OLDEST_MAJOR, NEWEST_MAJOR);
        status = error_hint(err, "srun --mpi=pmi2 -n %d ztrain ... needs no PMIx", world);
        goto fail;
    }
    *launcher = &pmix->library.base;
    return STATUS_OK;
fail:
    free(pmix);
    return status;
}
