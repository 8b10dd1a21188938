/* line_pump.h: copies a rank's output line by line, each with the rank in front: "[2] …". */
#ifndef ZTRAIN_CMD_LINE_PUMP_H
#define ZTRAIN_CMD_LINE_PUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct line_pump {
    int from, to;  /* from: non-blocking, owned, -1 when ended; to: borrowed */
    char text[16]; /* what goes in front */
    bool stuck;    /* nobody read for a while: what cannot be written at once is dropped */
    int64_t dropped;
    size_t used;
    char buffer[16384];
};

void line_pump_init(struct line_pump *pump, int from, int to, int rank);
/* Copies the whole lines that can be read without waiting; at the end of the input the rest, too, and closes `from`. */
void line_pump_run(struct line_pump *pump);
/* Copies what is left, finished line or not, and closes `from`. */
void line_pump_finish(struct line_pump *pump);

#endif
