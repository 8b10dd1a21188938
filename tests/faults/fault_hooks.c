/* SPDX-License-Identifier: Apache-2.0 */
/* fault_hooks.c: the failures on purpose of instrumented builds (core/faults.h), which the Makefile links into them. */
#include "core/faults.h"

#include <signal.h>

static const char *const kind_names[] = {"write", "fsync",    "rename",    "mkdir",      "remove",
                                         "link",  "allocate", "blockread", "blockwrite", "any"};
static const struct {
    const char *name;
    int code;
} actions[] = {{"ENOSPC", ENOSPC},         {"EIO", EIO}, {"EACCES", EACCES}, {"EDQUOT", EDQUOT}, {"EINVAL", EINVAL},
               {"EOPNOTSUPP", EOPNOTSUPP}, {"kill", -1}};

static struct {
    int kind;      /* an enum fault_kind; -1: nothing is armed */
    int64_t at;    /* the call that fails, from 1 */
    int code;      /* errno, or -1: kill */
    int64_t count; /* of the armed kind */
    int64_t total; /* of any kind */
} faults = {.kind = -1};

bool faults_arm(const char *fault)
{
    faults.kind = -1;
    faults.count = faults.total = 0;
    if (!fault) return true;
    char kind[16], action[16];
    long long at;
    if (sscanf(fault, "%15[a-z]:%lld:%15[A-Za-z]", kind, &at, action) != 3 || at < 1) return false;
    int k = -1, a = -1;
    for (int i = 0; i < (int)(sizeof kind_names / sizeof kind_names[0]); i++)
        if (!strcmp(kind, kind_names[i])) k = i;
    for (int i = 0; i < (int)(sizeof actions / sizeof actions[0]); i++)
        if (!strcmp(action, actions[i].name)) a = i;
    if (k < 0 || a < 0) return false;
    faults.kind = k;
    faults.at = at;
    faults.code = actions[a].code;
    return true;
}

int64_t faults_count(void)
{
    return faults.total;
}

static int next_fault(enum fault_kind kind, int fd, const void *data, size_t bytes)
{
    faults.total++;
    if (faults.kind < 0) return 0;
    bool lasting = faults.code > 0 && faults.code != EINVAL && faults.code != EOPNOTSUPP && faults.count >= faults.at &&
                   (kind == FAULT_WRITE || kind == FAULT_FSYNC || kind == FAULT_ALLOCATE || kind == FAULT_BLOCKWRITE);
    if (faults.kind != FAULT_ANY && faults.kind != (int)kind) return lasting ? faults.code : 0;
    faults.count++;
    if (faults.count != faults.at) return lasting ? faults.code : 0;
    if (faults.code > 0) return faults.code;
    if (kind == FAULT_WRITE && bytes > 1) {
        ssize_t ignored = write(fd, data, bytes / 2);
        (void)ignored;
    }
    kill(getpid(), SIGKILL);
    pause();
    return EINTR;
}

void faults_delay(int rank, int64_t step)
{
    const char *fault = getenv("ZTRAIN_STEP_FAULT");
    long long at;
    int who, ms;
    if (!fault || sscanf(fault, "%d:%lld:%d", &who, &at, &ms) != 3 || who != rank || step < at) return;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

void faults_signal(int rank)
{
    static long long count; /* one data thread */
    const char *fault = getenv("ZTRAIN_COMM_FAULT");
    long long at;
    int who, number;
    if (fault && sscanf(fault, "%d:%lld:%d", &who, &at, &number) == 3 && who == rank && ++count == at)
        kill(getpid(), number);
}

bool faults_reverse_sums(void)
{
    const char *order = getenv("ZTRAIN_SUM_ORDER");
    return order && strcmp(order, "reverse") == 0;
}

int faults_next(enum fault_kind kind, int fd, const void *data, size_t bytes)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    int code = next_fault(kind, fd, data, bytes);
    pthread_mutex_unlock(&mutex);
    return code;
}
