/* pmi2_refusal.c: see pmi2_refusal.h. PMI-2 on the wire: a line each way to begin with; then messages, each a length in
 * six characters and "cmd=NAME;key=value;…", answered by one with "rc=0;". */
#include "comm/launch/pmi2_refusal.h"

#include "core/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH_DIGITS = 6, MESSAGE_MAX = 2048 };

struct talk {
    int fd;
    double end; /* on the monotonic clock */
    struct error *err;
};

static enum status failed(struct talk *talk, const char *what, const char *why)
{
    return error_set(talk->err, STATUS_PEER, "%s over PMI_FD: %s", what, why);
}

static enum status say(struct talk *talk, const char *text)
{
    size_t bytes = strlen(text);
    ssize_t n = send(talk->fd, text, bytes, MSG_NOSIGNAL); /* far less than a socket takes at once */
    return n == (ssize_t)bytes ? STATUS_OK : failed(talk, "speaking", n < 0 ? strerror(errno) : "no room");
}

static enum status hear(struct talk *talk, char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct pollfd ready = {.fd = talk->fd, .events = POLLIN};
        double left = talk->end - seconds_now();
        int found = poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (found == 0)
            return failed(talk, "waiting for an answer", "none came in time");
        ssize_t n = found < 0 ? -1 : recv(talk->fd, text + at, bytes - at, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return failed(talk, "waiting for an answer", n < 0 ? strerror(errno) : "it was closed");
        at += n > 0 ? (size_t)n : 0;
    }
    return STATUS_OK;
}

static enum status greet(struct talk *talk)
{
    char line[256];
    size_t at = 0;
    TRY(say(talk, "cmd=init pmi_version=2 pmi_subversion=0\n"));
    do {
        if (at == sizeof line - 1)
            return failed(talk, "greeting", "a line without an end");
        TRY(hear(talk, line + at, 1));
    } while (line[at++] != '\n');
    line[at] = 0;
    return strstr(line, "rc=0") ? STATUS_OK : failed(talk, "greeting", "it does not speak PMI-2");
}

/* command: "cmd=…;" */
static enum status ask(struct talk *talk, const char *command)
{
    char message[MESSAGE_MAX + LENGTH_DIGITS], *end;
    snprintf(message, sizeof message, "%*zu%s", (int)LENGTH_DIGITS, strlen(command), command);
    TRY(say(talk, message));
    TRY(hear(talk, message, LENGTH_DIGITS));
    message[LENGTH_DIGITS] = 0;
    long length = strtol(message, &end, 10);
    end += strspn(end, " ");
    if (end == message || *end || length < 1 || length >= MESSAGE_MAX)
        return failed(talk, "reading an answer", "it has no length");
    TRY(hear(talk, message, (size_t)length));
    message[length] = 0;
    return strstr(message, "rc=0;") ? STATUS_OK : failed(talk, "reading an answer", message);
}

enum status pmi2_refuse(int fd, int rank, const char *key, const char *value, double seconds, struct error *err)
{
    struct talk talk = {.fd = fd, .end = seconds_now() + seconds, .err = err};
    char command[MESSAGE_MAX];
    const char *job = getenv("PMI_JOBID");
    TRY(greet(&talk));
    snprintf(command, sizeof command, "cmd=fullinit;pmijobid=%.64s;pmirank=%d;threaded=FALSE;", job ? job : "0", rank);
    TRY(ask(&talk, command));
    snprintf(command, sizeof command, "cmd=kvs-put;key=%s;value=%s;", key, value);
    TRY(ask(&talk, command));
    return ask(&talk, "cmd=kvs-fence;");
}
