/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_pmix.c: srun --mpi=pmix, prterun, Open MPI's mpirun. libpmix.so.2 talks with the PMIx server of this node.
 * ztrain builds without PMIx's headers: what counts is the layout of the library at run time, which is the same in PMIx
 * 4, 5 and 6 (the standard's stable ABI). Records that the library reads have spare room after them. */
#include "comm/launch/pmi_library.h"

enum { OLDEST_MAJOR = 4, NEWEST_MAJOR = 6 };
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

static struct {
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
    struct pmix_proc self; /* set by pmix_run_init() */
} pmix;

enum { BAD_VALUE = INT32_MAX }; /* in addition to PMIx's codes, which are not positive */

/* text: at most PMI_VALUE_BYTES; or a number. */
static int pmix_get_one(uint32_t rank, const char *name, char *text, int *number)
{
    struct pmix_value *value = NULL;
    struct pmix_proc proc = pmix.self;
    char key[512] = "";
    proc.rank = rank;
    snprintf(key, sizeof key, "%s", name);
    int code = pmix.get(&proc, key, NULL, 0, &value);
    if (code != 0) return code;
    if (!value) return BAD_VALUE;
    bool good = false;
    if (text && value->type == PMIX_STRING && value->data.string && strlen(value->data.string) < PMI_VALUE_BYTES) {
        strcpy(text, value->data.string);
        good = true;
    } else if (number && value->type == PMIX_UINT32) {
        *number = (int)value->data.uint32;
        good = true;
    }
    if (value->type == PMIX_STRING) free(value->data.string);
    free(value);
    return good ? 0 : BAD_VALUE;
}

static int pmix_run_init(int *rank, int *world)
{
    int code = pmix.init(&pmix.self, NULL, 0);
    *rank = (int)pmix.self.rank;
    return code ? code : pmix_get_one(PMIX_RANK_WILDCARD, "pmix.job.size", NULL, world);
}

static int pmix_run_put(const char *name, int rank, char *value)
{
    (void)rank;
    struct {
        struct pmix_value value;
        char spare[64];
    } put = {.value = {.type = PMIX_STRING, .data.string = value}};
    char key[512] = "";
    snprintf(key, sizeof key, "ztrain.%s", name);
    int code = pmix.put(PMIX_GLOBAL, key, &put.value);
    return code ? code : pmix.commit();
}

static int pmix_run_fence(void)
{
    struct {
        struct pmix_info info;
        char spare[256];
    } collect = {.info = {.key = "pmix.collect", /* all values travel with the fence, not one by one with each get */
                          .value = {.type = PMIX_BOOL, .data.flag = true}}};
    return pmix.fence(NULL, 0, &collect.info, 1);
}

static int pmix_run_get(const char *name, int rank, char value[PMI_VALUE_BYTES])
{
    char key[BOOTSTRAP_KEY_MAX + 8];
    snprintf(key, sizeof key, "ztrain.%s", name);
    return pmix_get_one((uint32_t)rank, key, value, NULL);
}

static int pmix_run_finalize(void)
{
    return pmix.finalize(NULL, 0);
}

static int pmix_abort_job(int code, const char *text)
{
    return pmix.abort(code, text, NULL, 0);
}

static const char *pmix_explain(enum pmi_verb verb, int code, char text[64])
{
    (void)verb;
    snprintf(text, 64, ": %s",
             code == BAD_VALUE ? "its value is not a text or a number as expected" : pmix.error(code));
    return text;
}

enum status launcher_pmix_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    static const struct pmi_library library = {
        .name = "PMIx",
        .verbs = {"PMIx_Init", "PMIx_Put", "PMIx_Fence", "PMIx_Get", "PMIx_Finalize"},
        .init = pmix_run_init,
        .put = pmix_run_put,
        .fence = pmix_run_fence,
        .get = pmix_run_get,
        .finalize = pmix_run_finalize,
        .abort = pmix_abort_job,
        .explain = pmix_explain,
        .init_hint = "PMIX_NAMESPACE and PMIX_RANK are left over from another step, or this libpmix does not fit the "
                     "launcher's; srun --mpi=pmi2 -n %d ztrain ... needs no PMIx",
        .rank_hint = "let the launcher itself start ztrain"};
    static const struct pmi_symbol symbols[] = {
        {"PMIx_Get_version", &pmix.version}, {"PMIx_Init", &pmix.init}, {"PMIx_Finalize", &pmix.finalize},
        {"PMIx_Abort", &pmix.abort},         {"PMIx_Put", &pmix.put},   {"PMIx_Commit", &pmix.commit},
        {"PMIx_Fence", &pmix.fence},         {"PMIx_Get", &pmix.get},   {"PMIx_Error_string", &pmix.error},
    };
    char hint[192];
    snprintf(hint, sizeof hint,
             "install it (Debian: libpmix2) on every node, set LD_LIBRARY_PATH to the folder that has it, or use srun "
             "--mpi=pmi2 -n %d ztrain ...",
             world);
    TRY(pmi_library_open("libpmix.so.2", hint, symbols, COUNT_OF(symbols), err));
    const char *version = pmix.version(); /* "OpenPMIx 4.2.2, repo rev …" */
    int major = atoi(version + strcspn(version, "0123456789"));
    if (major < OLDEST_MAJOR || major > NEWEST_MAJOR) {
        error_set(err, STATUS_USAGE, "libpmix.so.2 is '%.60s', but ztrain supports PMIx %d to %d", version,
                  OLDEST_MAJOR, NEWEST_MAJOR);
        return error_hint(err, "srun --mpi=pmi2 -n %d ztrain ... needs no PMIx", world);
    }
    *launcher = pmi_launcher_new(&library, rank, world);
    return STATUS_OK;
}
