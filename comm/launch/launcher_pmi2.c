/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_pmi2.c: srun --mpi=pmi2. libpmi2.so.0 (of Slurm) talks over PMI_FD with the slurmstepd of this node.
 *
 * Traps of the library:
 *   PMI2_Init       succeeds without PMI_FD as rank 0 of 1: bootstrap.c checks PMI_FD first. Programs that this process
 *                   executes do not inherit PMI_FD, because a second Init on it breaks the step's exchange.
 *   PMI2_KVS_Fence  waits forever for a rank that died: every call has a time limit (pmi_library.h).
 *   PMI2_KVS_Get    cuts a value that is too long for the buffer and returns success with a negative length.
 *   PMI2_Abort      ends the process through exit() with its first argument. */
#include "comm/launch/pmi_library.h"

#include <poll.h>
#include <sys/socket.h>

enum { KEY_BYTES = 64 /* PMI2_MAX_KEYLEN */, VALUE_BYTES = 1025 /* PMI2_MAX_VALLEN + 1 */, ID_NULL = -1 };
enum { NO_KEY = 14 /* PMI2_ERR_INVALID_KEY */, TOO_LONG = -1 /* not one of the library's */ };
_Static_assert((int)BOOTSTRAP_KEY_MAX + (int)sizeof "ztrain..4095" <= (int)KEY_BYTES, "a rank's key is a key of PMI-2");
_Static_assert((int)BOOTSTRAP_VALUE_MAX < (int)VALUE_BYTES, "a value is a value of PMI-2");

static struct {
    int (*init)(int *spawned, int *size, int *rank, int *appnum);
    int (*put)(const char *key, const char *value);
    int (*get)(const char *job, int source, const char *key, char *value, int size, int *length);
} pmi2;

static void pmi2_name_key(char key[KEY_BYTES], const char *name, int rank)
{
    snprintf(key, KEY_BYTES, "ztrain.%s.%d", name, rank);
}

static int pmi2_run_init(int *rank, int *world)
{
    int spawned = 0, appnum = 0, code = pmi2.init(&spawned, world, rank, &appnum);
    const char *fd = getenv("PMI_FD");
    if (code == 0 && fd) fcntl(atoi(fd), F_SETFD, FD_CLOEXEC); /* programs that this rank executes are not ranks */
    return code;
}

static int pmi2_run_put(const char *name, int rank, char *value)
{
    char key[KEY_BYTES];
    pmi2_name_key(key, name, rank);
    return pmi2.put(key, value);
}

static int pmi2_run_get(const char *name, int rank, char got[PMI_VALUE_BYTES])
{
    char key[KEY_BYTES], value[VALUE_BYTES] = "";
    int length = 0;
    pmi2_name_key(key, name, rank);
    int code = pmi2.get(NULL, ID_NULL, key, value, sizeof value, &length);
    if (code != 0) return code;
    if (length < 0 || strnlen(value, sizeof value) > BOOTSTRAP_VALUE_MAX) return TOO_LONG;
    snprintf(got, PMI_VALUE_BYTES, "%s", value);
    return 0;
}

static const char *pmi2_explain(enum pmi_verb verb, int code, char text[64])
{
    snprintf(text, 64, " (error %d)", code);
    if (verb != PMI_GET) return text;
    return code == NO_KEY     ? " (no such key)"
           : code == TOO_LONG ? " (its value is too long)"
                              : " (an error of the library)";
}

enum status launcher_pmi2_new(int rank, int world, struct launcher **launcher, struct error *err)
{
    static struct pmi_library library = {
        .name = "PMI-2",
        .verbs = {"PMI2_Init", "PMI2_KVS_Put", "PMI2_KVS_Fence", "PMI2_KVS_Get", "PMI2_Finalize"},
        .init = pmi2_run_init,
        .put = pmi2_run_put,
        .get = pmi2_run_get,
        .explain = pmi2_explain,
        .variable = "PMI_FD",
        .init_hint = "the variable is left over from another step, or another program of this step has used it; let "
                     "srun itself start ztrain: srun --mpi=pmi2 -n %d ztrain ...",
        .rank_hint = "let srun itself start ztrain: srun --mpi=pmi2 -n %d ztrain ..."};
    static const struct pmi_symbol symbols[] = {
        {"PMI2_Init", &pmi2.init},   {"PMI2_Finalize", &library.finalize}, {"PMI2_Abort", &library.abort},
        {"PMI2_KVS_Put", &pmi2.put}, {"PMI2_KVS_Fence", &library.fence},   {"PMI2_KVS_Get", &pmi2.get},
    };
    TRY(pmi_library_open("libpmi2.so.0",
                         "install Slurm's PMI-2 library (Debian: libpmi2-0) on every node, or set LD_LIBRARY_PATH to "
                         "the folder that has it",
                         symbols, COUNT_OF(symbols), err));
    *launcher = pmi_launcher_new(&library, rank, world);
    return STATUS_OK;
}

/* How a rank of srun --mpi=pmi2 that cannot open libpmi2 tells the others that it does not come, for
 * which they would wait. That takes init, one put and one fence of PMI-2: a line each way; then messages, each a length
 * in six characters and "cmd=NAME;key=value;…", each answered by one with "rc=0;". */
enum { LENGTH_DIGITS = 6, MESSAGE_MAX = 2048 };

struct talk {
    int fd;
    double end; /* on the monotonic clock */
};

static bool pmi2_send(const struct talk *talk, const char *text)
{
    const size_t bytes = strlen(text);
    return send(talk->fd, text, bytes, MSG_NOSIGNAL) == (ssize_t)bytes; /* far less than a socket takes at once */
}

static bool pmi2_receive(const struct talk *talk, char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct pollfd ready = {.fd = talk->fd, .events = POLLIN};
        double left = talk->end - seconds_now();
        int found = poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        ssize_t n = found > 0 ? recv(talk->fd, text + at, bytes - at, 0) : -1;
        if (found == 0 || n == 0 || (n < 0 && errno != EINTR)) return false;
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool pmi2_greet(const struct talk *talk)
{
    char line[256];
    size_t at = 0;
    if (!pmi2_send(talk, "cmd=init pmi_version=2 pmi_subversion=0\n")) return false;
    do
        if (at == sizeof line - 1 || !pmi2_receive(talk, line + at, 1)) return false;
    while (line[at++] != '\n');
    line[at] = 0;
    return strstr(line, "rc=0");
}

static bool pmi2_command(const struct talk *talk, const char *command)
{
    char message[MESSAGE_MAX + LENGTH_DIGITS], *end;
    snprintf(message, sizeof message, "%*zu%s", (int)LENGTH_DIGITS, strlen(command), command);
    if (!pmi2_send(talk, message) || !pmi2_receive(talk, message, LENGTH_DIGITS)) return false;
    message[LENGTH_DIGITS] = 0;
    long length = strtol(message, &end, 10);
    end += strspn(end, " ");
    if (end == message || *end || length < 1 || length >= MESSAGE_MAX) return false;
    if (!pmi2_receive(talk, message, (size_t)length)) return false;
    message[length] = 0;
    return strstr(message, "rc=0;");
}

bool launcher_pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds)
{
    const struct talk talk = {.fd = fd, .end = seconds_now() + seconds};
    char init[MESSAGE_MAX], put[MESSAGE_MAX];
    const char *job = getenv("PMI_JOBID");
    snprintf(init, sizeof init, "cmd=fullinit;pmijobid=%.64s;pmirank=%d;threaded=FALSE;", job ? job : "0", rank);
    snprintf(put, sizeof put, "cmd=kvs-put;key=ztrain.%s.%d;value=%s;", key, rank, value);
    return pmi2_greet(&talk) && pmi2_command(&talk, init) && pmi2_command(&talk, put) &&
           pmi2_command(&talk, "cmd=kvs-fence;");
}
