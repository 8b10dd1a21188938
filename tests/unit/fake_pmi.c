/* fake_pmi.c: PMI-2 and PMIx between the processes of a test, over files in FAKE_PMI_DIR. test_bootstrap.c builds it as
 * libpmi2.so.0 and libpmix.so.2. The words of FAKE_PMI choose what goes wrong:
 *
 *   init=N     Init fails with N                      rank=N size=N   Init returns them
 *   put=N, fence=N, get=N, finalize=N                 that call fails with N
 *   hang=CALL  CALL (init, fence, and put and get of a key with "slow" in it) never returns
 *   version=N  PMIx_Get_version() returns N.0
 *   damage=K   the first character of a value whose key contains K is '0' + 1 for '0', else '0'; garble=K: 'x'
 *   long=K     a value whose key contains K is longer than its get allows */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_FOUND_PMI2 = 14, NOT_FOUND_PMIX = -46, VALUE_BYTES = 4096 };

static int own_rank, ranks, fences;

/* The text after `word` in FAKE_PMI, or NULL. */
static const char *fault(const char *word)
{
    const char *all = getenv("FAKE_PMI"), *at = all ? strstr(all, word) : NULL;
    return at ? at + strlen(word) : NULL;
}

static int fault_code(const char *word)
{
    const char *code = fault(word);
    return code ? atoi(code) : 0;
}

static void maybe_hang(const char *call)
{
    const char *which = fault("hang=");
    while (which && !strncmp(which, call, strlen(call)))
        pause();
}

static void path_of(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", getenv("FAKE_PMI_DIR"), name);
}

static void write_file(const char *name, const char *text)
{
    char path[512], draft[600];
    path_of(path, sizeof path, name);
    snprintf(draft, sizeof draft, "%s.%d", path, (int)getpid());
    FILE *file = fopen(draft, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0 || rename(draft, path) != 0)
        abort();
}

static bool read_file(const char *name, char value[VALUE_BYTES])
{
    char path[512];
    path_of(path, sizeof path, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t n = fread(value, 1, VALUE_BYTES - 1, file);
    value[n] = 0;
    fclose(file);
    return true;
}

static void init(void)
{
    const char *rank = getenv("PMI_RANK"), *size = getenv("PMI_SIZE");
    own_rank = atoi(rank ? rank : getenv("PMIX_RANK"));
    ranks = atoi(size ? size : getenv("SLURM_STEP_NUM_TASKS"));
    maybe_hang("init");
}

static void fence(void)
{
    char name[64], path[512];
    maybe_hang("fence");
    snprintf(name, sizeof name, "fence.%d.%d", ++fences, own_rank);
    write_file(name, "");
    for (int r = 0; r < ranks; r++) {
        snprintf(name, sizeof name, "fence.%d.%d", fences, r);
        path_of(path, sizeof path, name);
        while (access(path, F_OK) != 0)
            usleep(2000);
    }
}

static bool get(const char *key, char value[VALUE_BYTES])
{
    if (strstr(key, "slow"))
        maybe_hang("get");
    if (!read_file(key, value))
        return false;
    const char *damaged = fault("damage="), *garbled = fault("garble="), *longer = fault("long=");
    if (damaged && strstr(key, damaged))
        value[0] = value[0] == '0' ? '1' : '0';
    if (garbled && strstr(key, garbled))
        value[0] = 'x';
    if (longer && strstr(key, longer)) {
        memset(value, 'a', 2000);
        value[2000] = 0;
    }
    return true;
}

/* ---- PMI-2 --------------------------------------------------------------- */

int PMI2_Init(int *spawned, int *size, int *rank, int *appnum);
int PMI2_Finalize(void);
int PMI2_Abort(int flag, const char *text);
int PMI2_KVS_Put(const char *key, const char *value);
int PMI2_KVS_Fence(void);
int PMI2_KVS_Get(const char *job, int source, const char *key, char *value, int size, int *length);

int PMI2_Init(int *spawned, int *size, int *rank, int *appnum)
{
    init();
    *spawned = 0;
    *appnum = 0;
    *rank = fault("rank=") ? fault_code("rank=") : own_rank;
    *size = fault("size=") ? fault_code("size=") : ranks;
    return fault_code("init=");
}

int PMI2_Finalize(void)
{
    char name[64];
    snprintf(name, sizeof name, "finalized.%d", own_rank);
    write_file(name, "");
    return fault_code("finalize=");
}

int PMI2_Abort(int flag, const char *text)
{
    write_file("abort", text);
    exit(flag);
}

int PMI2_KVS_Put(const char *key, const char *value)
{
    if (strstr(key, "slow"))
        maybe_hang("put");
    write_file(key, value);
    return fault_code("put=");
}

int PMI2_KVS_Fence(void)
{
    fence();
    return fault_code("fence=");
}

int PMI2_KVS_Get(const char *job, int source, const char *key, char *value, int size, int *length)
{
    char text[VALUE_BYTES];
    (void)job, (void)source;
    *length = 0;
    if (!get(key, text))
        return NOT_FOUND_PMI2;
    int n = (int)strlen(text);
    *length = n < size ? n : -n;
    snprintf(value, (size_t)size, "%s", text);
    return fault_code("get=");
}

/* ---- PMIx ---------------------------------------------------------------- */

struct proc {
    char nspace[256];
    uint32_t rank;
};

struct value {
    uint16_t type;
    union {
        char *string;
        uint32_t number;
        char room[24];
    } data;
};

const char *PMIx_Get_version(void);
const char *PMIx_Error_string(int code);
int PMIx_Init(struct proc *proc, void *info, size_t count);
int PMIx_Finalize(const void *info, size_t count);
int PMIx_Abort(int code, const char *text, void *procs, size_t count);
int PMIx_Put(uint8_t scope, const char *key, struct value *value);
int PMIx_Commit(void);
int PMIx_Fence(const void *procs, size_t num_procs, const void *info, size_t count);
int PMIx_Get(const struct proc *proc, const char *key, const void *info, size_t count, struct value **value);

const char *PMIx_Get_version(void)
{
    static char text[64];
    snprintf(text, sizeof text, "OpenPMIx %d.0, made for a test", fault("version=") ? fault_code("version=") : 4);
    return text;
}

const char *PMIx_Error_string(int code)
{
    return code == NOT_FOUND_PMIX ? "NOT-FOUND" : "SOME-ERROR";
}

int PMIx_Init(struct proc *proc, void *info, size_t count)
{
    (void)info, (void)count;
    init();
    snprintf(proc->nspace, sizeof proc->nspace, "%s", getenv("PMIX_NAMESPACE"));
    proc->rank = fault("rank=") ? (uint32_t)fault_code("rank=") : (uint32_t)own_rank;
    return fault_code("init=");
}

int PMIx_Finalize(const void *info, size_t count)
{
    (void)info, (void)count;
    return PMI2_Finalize();
}

int PMIx_Abort(int code, const char *text, void *procs, size_t count)
{
    char line[600];
    (void)procs, (void)count;
    snprintf(line, sizeof line, "%d %s", code, text);
    write_file("abort", line);
    return 0;
}

static void name_of(char name[600], const char *key, uint32_t rank)
{
    snprintf(name, 600, "%s@%u", key, rank);
}

int PMIx_Put(uint8_t scope, const char *key, struct value *value)
{
    char name[600];
    name_of(name, key, (uint32_t)own_rank);
    if (scope != 3 || value->type != 3)
        return -1;
    if (strstr(key, "slow"))
        maybe_hang("put");
    write_file(name, value->data.string);
    return fault_code("put=");
}

int PMIx_Commit(void)
{
    return 0;
}

int PMIx_Fence(const void *procs, size_t num_procs, const void *info, size_t count)
{
    if (procs || num_procs || count != 1 || strcmp(info, "pmix.collect") != 0)
        return -1;
    fence();
    return fault_code("fence=");
}

int PMIx_Get(const struct proc *proc, const char *key, const void *info, size_t count, struct value **value)
{
    char text[VALUE_BYTES], name[600];
    (void)info, (void)count;
    struct value *out = calloc(1, sizeof *out);
    if (!out)
        abort();
    *value = NULL;
    if (!strcmp(key, "pmix.job.size") && proc->rank == UINT32_MAX - 1) {
        out->type = 14;
        out->data.number = fault("size=") ? (uint32_t)fault_code("size=") : (uint32_t)ranks;
        *value = out;
        return 0;
    }
    name_of(name, key, proc->rank);
    if (!get(name, text)) {
        free(out);
        return NOT_FOUND_PMIX;
    }
    out->type = 3;
    out->data.string = strdup(text);
    *value = out;
    return fault_code("get=");
}
