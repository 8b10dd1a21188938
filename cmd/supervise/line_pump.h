/* line_pump.h: copies a rank's output line by line, each with the rank in front: "[2] …". */
#pragma once

#include "core/output.h"

#include <stddef.h>

enum { PUMP_BYTES = 16384, PUMP_FRONT = 16 };

struct line_pump {
    int from; /* non-blocking, owned, -1 when ended */
    enum outlet to;
    char front[PUMP_FRONT]; /* of each line */
    size_t used;
    char buffer[PUMP_BYTES];
};

void line_pump_init(struct line_pump *pump, int from, enum outlet to, int rank);
/* Copies the whole lines that can be read without waiting. At the end of the input it copies the rest as well, and
 * closes `from`. */
void line_pump_run(struct line_pump *pump);
/* Copies the rest of the buffer, even if it is not a whole line, and closes `from`. */
void line_pump_finish(struct line_pump *pump);
