/* SPDX-License-Identifier: Apache-2.0 */
/* pmi_library.c: see pmi_library.h. Caller and thread share a record; the last of the two frees it. */
#include "comm/launch/pmi_library.h"

#include <dlfcn.h>

static const double finish_seconds = 10; /* for the last call: the work is done, and the process may end without it */

struct pmi_launcher {
    struct launcher base;
    const struct pmi_library *library;
    bool initialized; /* the library's Init has succeeded */
};

struct pmi_call {
    const struct pmi_library *library;
    enum pmi_verb verb;
    int rank, world; /* results of init; get: the first rank, and after a failure the one whose value was not got */
    int count;       /* of get: ranks */
    char key[BOOTSTRAP_KEY_MAX + 1], value[PMI_VALUE_BYTES]; /* key: of put and get; value: of put */

    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    int code; /* that the library has returned */
    bool returned, given_up;

    char values[][PMI_VALUE_BYTES]; /* of get: (count) */
};

enum status pmi_library_open(const char *file, const char *hint, const struct pmi_symbol *symbols, size_t count,
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

static const struct pmi_library *library_of(const struct launcher *launcher)
{
    return ((const struct pmi_launcher *)launcher)->library;
}

static struct pmi_call *call_new(const struct launcher *launcher, enum pmi_verb verb, const char *key, int count)
{
    struct pmi_call *call = memory_zeroed(1, sizeof *call + (size_t)count * PMI_VALUE_BYTES);
    call->library = library_of(launcher);
    call->verb = verb;
    condition_init(&call->changed);
    pthread_mutex_init(&call->mutex, NULL);
    call->rank = launcher->rank;
    call->count = count;
    snprintf(call->key, sizeof call->key, "%s", key);
    return call;
}

static void call_free(struct pmi_call *call)
{
    pthread_cond_destroy(&call->changed);
    pthread_mutex_destroy(&call->mutex);
    free(call);
}

static int call_verb(struct pmi_call *call)
{
    const struct pmi_library *library = call->library;
    int code = 0;
    switch (call->verb) {
    case PMI_INIT: return library->init(&call->rank, &call->world);
    case PMI_PUT: return library->put(call->key, call->rank, call->value);
    case PMI_FENCE: return library->fence();
    case PMI_GET:
        for (int i = 0; i < call->count && code == 0; i++, call->rank += code == 0)
            code = library->get(call->key, call->rank, call->values[i]);
        return code;
    case PMI_FINALIZE: return library->finalize();
    case PMI_VERBS: break;
    }
    BUG("verb %d", (int)call->verb);
}

static void *call_thread(void *context)
{
    struct pmi_call *call = context;
    int code = call_verb(call);
    pthread_mutex_lock(&call->mutex);
    call->code = code;
    call->returned = true;
    bool last = call->given_up;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->mutex);
    if (last) call_free(call);
    return NULL;
}

/* *code: what it returned. After a failure (STATUS_PEER: too late) the call is its thread's. */
static enum status call_run(struct pmi_call *call, double seconds, int *code, struct error *err)
{
    struct timespec end = time_after(seconds);
    const char *name = call->library->verbs[call->verb];
    if (thread_start(NULL, 0, call_thread, call) != 0) {
        call_free(call);
        return error_set(err, STATUS_DEVICE, "cannot start a thread for %s", name);
    }
    LOCKED(&call->mutex); /* a thread that has returned does not touch it any more */
    while (!call->returned && pthread_cond_timedwait(&call->changed, &call->mutex, &end) != ETIMEDOUT)
        ;
    *code = call->code;
    call->given_up = !call->returned;
    return call->returned ? STATUS_OK : error_set(err, STATUS_PEER, "%s has not returned after %.3g s", name, seconds);
}

static enum status pmi_connect(struct launcher *launcher, double seconds, const char *interface, struct error *err)
{
    (void)interface;
    const struct pmi_library *library = library_of(launcher);
    struct pmi_call *call = call_new(launcher, PMI_INIT, "", 0);
    int code;
    TRY(call_run(call, seconds, &code, err));
    const int rank = call->rank, world = call->world;
    call_free(call);
    if (code != 0) {
        const char *value = library->variable ? getenv(library->variable) : NULL;
        const char *over = library->variable ? " over " : "", *is = library->variable ? "=" : "";
        char text[64];
        error_set(err, STATUS_USAGE, "%s%s%s%s%s failed%s", library->verbs[PMI_INIT], over,
                  library->variable ? library->variable : "", is, value ? value : "",
                  library->explain(PMI_INIT, code, text));
        return error_hint(err, library->init_hint, launcher->world);
    }
    ((struct pmi_launcher *)launcher)->initialized = true;
    if (rank == launcher->rank && world == launcher->world) return STATUS_OK;
    error_set(err, STATUS_USAGE, "%s reports rank %d of %d, but the environment has rank %d of %d", library->name, rank,
              world, launcher->rank, launcher->world);
    error_blame(err, launcher->rank, FAILURE_NONE);
    return error_hint(err, library->rank_hint, launcher->world);
}

static enum status call_failed(const struct launcher *launcher, enum pmi_verb verb, int code, struct error *err)
{
    char text[64];
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, " failed%s", library_of(launcher)->explain(verb, code, text));
    return STATUS_PEER;
}

static enum status pmi_call(struct launcher *launcher, enum pmi_verb verb, const char *key, const char *own,
                            double seconds, struct error *err)
{
    struct pmi_call *call = call_new(launcher, verb, key, 0);
    int code;
    snprintf(call->value, sizeof call->value, "%s", own);
    const enum status status = call_run(call, seconds, &code, err);
    if (status == STATUS_PEER && !*key)
        error_hint(err, "a rank of the step did not start or has ended: see its own messages; srun -K ends the step "
                        "when that happens");
    TRY(status);
    call_free(call);
    if (code == 0) return STATUS_OK;
    error_set(err, STATUS_PEER, "%s%s%s%s", library_of(launcher)->verbs[verb], *key ? " of '" : "", key,
              *key ? "'" : "");
    return call_failed(launcher, verb, code, err);
}

static enum status pmi_exchange(struct launcher *launcher, const char *key, const char *own, char *values,
                                double seconds, struct error *err)
{
    int code;
    TRY(pmi_call(launcher, PMI_PUT, key, own, seconds, err));
    TRY(pmi_call(launcher, PMI_FENCE, "", "", seconds, err));
    struct pmi_call *call = call_new(launcher, PMI_GET, key, launcher->world);
    call->rank = 0;
    TRY(call_run(call, seconds, &code, err));
    if (code == 0)
        memcpy(values, call->values, (size_t)call->count * PMI_VALUE_BYTES);
    else
        error_set(err, STATUS_PEER, "%s of '%s' of rank %d", call->library->verbs[PMI_GET], key, call->rank);
    call_free(call);
    return code == 0 ? STATUS_OK : call_failed(launcher, PMI_GET, code, err);
}

static void pmi_abort(struct launcher *launcher, enum status code, const char *text)
{
    if (((struct pmi_launcher *)launcher)->initialized) library_of(launcher)->abort((int)code, text);
}

static void pmi_library_finish(struct launcher *launcher)
{
    struct pmi_launcher *pmi = (struct pmi_launcher *)launcher;
    struct pmi_call *call = pmi->initialized ? call_new(launcher, PMI_FINALIZE, "", 0) : NULL;
    int code;
    pmi->initialized = false;
    if (call && call_run(call, finish_seconds, &code, NULL) == STATUS_OK) call_free(call);
}

static void pmi_release(struct launcher *launcher)
{
    free(launcher);
}

struct launcher *pmi_launcher_new(const struct pmi_library *library, int rank, int world)
{
    static const struct launcher_verbs verbs = {pmi_connect, pmi_exchange, pmi_abort, pmi_library_finish, pmi_release};
    struct pmi_launcher *pmi = memory_zeroed(1, sizeof *pmi);
    pmi->base = (struct launcher){.verbs = &verbs, .rank = rank, .world = world};
    pmi->library = library;
    return &pmi->base;
}
