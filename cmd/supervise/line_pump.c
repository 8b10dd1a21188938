/* line_pump.c: see line_pump.h. A line longer than the buffer is broken. Lines go into the queues of core/output.h,
 * which never block: a reader of the supervisor's output may pause, and the ranks continue. */
#include "cmd/supervise/line_pump.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void line_pump_init(struct line_pump *pump, int from, enum outlet to, int rank)
{
    *pump = (struct line_pump){.from = from, .to = to};
    snprintf(pump->front, sizeof pump->front, "[%d] ", rank);
}

static void pump_line(struct line_pump *pump, const char *line, size_t length)
{
    char text[PUMP_FRONT + PUMP_BYTES + 1];
    _Static_assert(sizeof text <= OUTPUT_RECORD, "a line is one record");
    size_t front = strlen(pump->front);
    memcpy(text, pump->front, front);
    memcpy(text + front, line, length);
    text[front + length] = '\n';
    output_put(pump->to, text, front + length + 1, OUTPUT_LINE);
}

static void write_lines(struct line_pump *pump, bool all)
{
    size_t start = 0;
    for (;;) {
        char *end = memchr(pump->buffer + start, '\n', pump->used - start);
        if (!end)
            break;
        pump_line(pump, pump->buffer + start, (size_t)(end - pump->buffer) - start);
        start = (size_t)(end - pump->buffer) + 1;
    }
    if (start < pump->used && (all || (start == 0 && pump->used == sizeof pump->buffer))) {
        pump_line(pump, pump->buffer + start, pump->used - start);
        start = pump->used;
    }
    memmove(pump->buffer, pump->buffer + start, pump->used - start);
    pump->used -= start;
}

void line_pump_run(struct line_pump *pump)
{
    enum { READS = 64 }; /* at a time, so that one rank's flood does not keep the others waiting */
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
