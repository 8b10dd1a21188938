/* scalar.h: a named number of a step, as monitors write them. */
#ifndef ZTRAIN_CORE_SCALAR_H
#define ZTRAIN_CORE_SCALAR_H

struct scalar {
    const char *tag; /* "Train/Samples/lr"; borrowed */
    double value;
};

#endif
