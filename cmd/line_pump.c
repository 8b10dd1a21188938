/* line_pump.c: see line_pump.h. A line longer than the buffer is broken. A line is written by one call, so that lines
 * of several ranks on one terminal or pipe do not mix. Output that nobody reads any more, or not now (a pager at rest,
 * a terminal held by ctrl-S), is dropped after a while: the ranks go on, and their supervisor serves signals. The
 * ranks' own logs have every line.
 */
#include "cmd/line_pump.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PATIENCE_MS = 500 };

void line_pump_init(struct line_pump *pump, int from, int to, int rank)
{
    *pump = (struct line_pump){.from = from, .to = to};
    snprintf(pump->text, sizeof pump->text, "[%d] ", rank);
}

/* Whether a line of up to PIPE_BUF bytes can be written now, or soon. */
static bool can_write(struct line_pump *pump)
{
    struct pollfd ready = {.fd = pump->to, .events = POLLOUT};
    pump->stuck = poll(&ready, 1, pump->stuck ? 0 : PATIENCE_MS) == 0;
    return !pump->stuck;
}

static void write_all(const struct line_pump *pump, const char *line, size_t length)
{
    static char newline[] = "\n";
    struct iovec parts[] = {{(void *)pump->text, strlen(pump->text)}, {(void *)line, length}, {newline, 1}};
    int part = 0, parts_left = (int)(sizeof parts / sizeof *parts);
    while (parts_left > 0) {
        ssize_t n = writev(pump->to, parts + part, parts_left);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd ready = {.fd = pump->to, .events = POLLOUT};
            if (poll(&ready, 1, PATIENCE_MS) == 0)
                return;
            continue;
        }
        if (n < 0 && errno != EINTR)
            return;
        for (; parts_left > 0 && n >= (ssize_t)parts[part].iov_len; part++, parts_left--)
            n -= (ssize_t)parts[part].iov_len;
        if (parts_left > 0 && n > 0) {
            parts[part].iov_base = (char *)parts[part].iov_base + n;
            parts[part].iov_len -= (size_t)n;
        }
    }
}

static void write_line(struct line_pump *pump, const char *line, size_t length)
{
    if (!can_write(pump)) {
        pump->dropped++;
        return;
    }
    if (pump->dropped) {
        char text[96];
        int n = snprintf(text, sizeof text,
                         "(%" PRId64 " lines were dropped, because nobody read them; the log has them)", pump->dropped);
        pump->dropped = 0;
        write_all(pump, text, (size_t)n);
    }
    write_all(pump, line, length);
}

static void write_lines(struct line_pump *pump, bool all)
{
    size_t start = 0;
    for (;;) {
        char *end = memchr(pump->buffer + start, '\n', pump->used - start);
        if (!end)
            break;
        write_line(pump, pump->buffer + start, (size_t)(end - pump->buffer) - start);
        start = (size_t)(end - pump->buffer) + 1;
    }
    if (start < pump->used && (all || (start == 0 && pump->used == sizeof pump->buffer))) {
        write_line(pump, pump->buffer + start, pump->used - start);
        start = pump->used;
    }
    memmove(pump->buffer, pump->buffer + start, pump->used - start);
    pump->used -= start;
}

void line_pump_run(struct line_pump *pump)
{
    enum { READS = 64 }; /* at a time: one rank's flood does not keep others waiting */
    for (int i = 0; i < READS && pump->from >= 0; i++) {
        ssize_t n = read(pump->from, pump->buffer + pump->used, sizeof pump->buffer - pump->used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            line_pump_finish(pump);
            return;
        }
        pump->used += (size_t)n;
        write_lines(pump, false);
    }
}

void line_pump_finish(struct line_pump *pump)
{
    if (pump->from < 0)
        return;
    write_lines(pump, true);
    close(pump->from);
    pump->from = -1;
}
