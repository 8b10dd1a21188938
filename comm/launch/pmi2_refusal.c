/* pmi2_refusal.c: how a rank of srun --mpi=pmi2 that cannot open libpmi2 tells the others that it does not come, for
 * which they would wait. That takes init, one put and one fence of PMI-2: a line each way; then messages, each a length
 * in six characters and "cmd=NAME;key=value;…", each answered by one with "rc=0;". */
#include "comm/launch/launcher.h"

#include "core/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { LENGTH_DIGITS = 6, MESSAGE_MAX = 2048 };

struct talk {
    int fd;
    double end; /* on the monotonic clock */
    struct error *err;
};

static enum status pmi2_failed(struct talk *talk, const char *what, const char *why)
{
    return error_set(talk->err, STATUS_PEER, "%s over PMI_FD: %s", what, why);
}

static enum status pmi2_send(struct talk *talk, const char *text)
{
    size_t bytes = strlen(text);
    ssize_t n = send(talk->fd, text, bytes, MSG_NOSIGNAL); /* far less than a socket takes at once */
    return n == (ssize_t)bytes ? STATUS_OK : pmi2_failed(talk, "sending", n < 0 ? strerror(errno) : "no room");
}

static enum status pmi2_receive(struct talk *talk, char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct pollfd ready = {.fd = talk->fd, .events = POLLIN};
        double left = talk->end - seconds_now();
        int found = poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (found == 0)
            return pmi2_failed(talk, "waiting for an answer", "none came in time");
        ssize_t n = found < 0 ? -1 : recv(talk->fd, text + at, bytes - at, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return pmi2_failed(talk, "waiting for an answer", n < 0 ? strerror(errno) : "the connection was closed");
        at += n > 0 ? (size_t)n : 0;
    }
    return STATUS_OK;
}

static enum status pmi2_greet(struct talk *talk)
{
    char line[256];
    size_t at = 0;
    TRY(pmi2_send(talk, "cmd=init pmi_version=2 pmi_subversion=0\n"));
    do {
        if (at == sizeof line - 1)
            return pmi2_failed(talk, "greeting", "a line without an end");
        TRY(pmi2_receive(talk, line + at, 1));
    } while (line[at++] != '\n');
    line[at] = 0;
    return strstr(line, "rc=0") ? STATUS_OK : pmi2_failed(talk, "greeting", "it does not speak PMI-2");
}

static enum status pmi2_command(struct talk *talk, const char *command)
{
    char message[MESSAGE_MAX + LENGTH_DIGITS], *end;
    snprintf(message, sizeof message, "%*zu%s", (int)LENGTH_DIGITS, strlen(command), command);
    TRY(pmi2_send(talk, message));
    TRY(pmi2_receive(talk, message, LENGTH_DIGITS));
    message[LENGTH_DIGITS] = 0;
    long length = strtol(message, &end, 10);
    end += strspn(end, " ");
    if (end == message || *end || length < 1 || length >= MESSAGE_MAX)
        return pmi2_failed(talk, "reading an answer", "the answer has no length");
    TRY(pmi2_receive(talk, message, (size_t)length));
    message[length] = 0;
    return strstr(message, "rc=0;") ? STATUS_OK : pmi2_failed(talk, "reading an answer", message);
}

enum status launcher_pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds,
                                 struct error *err)
{
    struct talk talk = {.fd = fd, .end = seconds_now() + seconds, .err = err};
    char command[MESSAGE_MAX];
    const char *job = getenv("PMI_JOBID");
    TRY(pmi2_greet(&talk));
    snprintf(command, sizeof command, "cmd=fullinit;pmijobid=%.64s;pmirank=%d;threaded=FALSE;", job ? job : "0", rank);
    TRY(pmi2_command(&talk, command));
    snprintf(command, sizeof command, "cmd=kvs-put;key=ztrain.%s.%d;value=%s;", key, rank, value);
    TRY(pmi2_command(&talk, command));
    return pmi2_command(&talk, "cmd=kvs-fence;");
}
