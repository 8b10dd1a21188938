/* scalar.h: a named number of a step, as monitors write them. */
#pragma once

struct scalar {
    const char *tag; /* "Train/Samples/lr"; borrowed */
    double value;
};
