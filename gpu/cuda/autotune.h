/* SPDX-License-Identifier: Apache-2.0 */
/* autotune.h: which of several kernels computes an op the fastest: candidates are verified and timed on scratch memory
 * before the first step, and the best config is kept (gpu/autotune_cache.h).
 *
 *     verify   on random values, results are compared with the reference's within rounding, and, where bits have to
 *              repeat, with those of a second run
 *     time     after a tenth of a second of work, since an idle GPU has lower clocks: one run each where there are many
 *              candidates, then the fastest ones in turns; the least time counts
 *
 * With fixed kernels (device_fix_kernels()) nothing is timed: the first candidate that is verified is taken.
 *
 * Users: gemm/gemm_cuda_autotune.c, attention/attention_cudnn_autotune.c. One thread: the device's. */
#pragma once

#include "core/dtype.h"
#include "gpu/autotune_cache.h"
#include "gpu/device.h"

/* What all ops that are tuned share. */
struct autotuner {
    struct device *device;        /* borrowed */
    struct autotune_cache *cache; /* borrowed, locked; NULL: nothing is kept */
    bool fixed;                   /* set after autotuner_open() */
    struct stream *stream;        /* owned, like the others */
    struct event *start, *end;
    char *memory; /* scratch memory of the GPU (bytes) */
    size_t bytes;
    bool warm;         /* the GPU has computed long enough for times to count */
    uint64_t throttle; /* why it had lower clocks then (gpu/cuda/nvml.h) */
    double since;      /* when it was opened */
    int tuned[AUTOTUNE_OPS];
};

enum status autotuner_open(struct autotuner *t, struct device *device, struct autotune_cache *cache, struct error *err);
void autotuner_close(struct autotuner *tuner); /* also after autotuner_open() has failed */

/* Ends the tuning of an op: logs it; configs of a GPU that is throttled are not kept. */
void autotuner_finish(struct autotuner *tuner, enum autotune_op op);

/* An operand or a result of an op: rows of ld elements; the first `width` of each count. */
struct autotune_tensor {
    void *pointer; /* of the op, which is set; its alignment, up to 16, is kept */
    enum dtype dtype;
    int64_t rows, ld, width;
    const char *name; /* of a result; NULL: an operand, and what follows does not matter */
    int64_t sampled;  /* rows of each sample: the beginning, the middle and the end are compared */
    int64_t part;     /* a value is measured against itself and against the root mean square of its part of a row, */
    double tolerance; /* this share of them; and an eighth of it against the whole sample */
};

enum autotune_reference {
    REFERENCE_NONE,     /* candidates are only timed */
    REFERENCE_VERIFIES, /* they are compared with it; a single candidate is not timed */
    REFERENCE_COMPETES  /* it is timed too, and may be the best; with fixed kernels it verifies */
};

/* Candidates are numbered from 0. */
enum { AUTOTUNE_CANDIDATES = 32, AUTOTUNE_TENSORS = 12 };
enum { AUTOTUNE_REFERENCE = -1, AUTOTUNE_NONE = -2, AUTOTUNE_NO_MEMORY = -3 };

/* An op to tune. */
struct autotune_problem {
    struct autotune_key key;
    void *op; /* for the functions below */

    /* Enqueues the op by a candidate, or by the reference. NULL, or why a library refuses it. */
    const char *(*run)(void *op, struct stream *stream, int candidate);
    /* Enqueues what has to be in memory before a run that is compared, beyond random values; may be NULL. */
    void (*prepare)(void *op, struct stream *stream, int candidate);
    /* Names a candidate: "the matrix product m 24 n 8 k 16 …". */
    void (*describe)(const void *op, int candidate, char *text, size_t size);

    enum autotune_reference reference;
    struct autotune_config reference_config; /* if it competes */
    bool repeats;                            /* the results of two runs have to be the same bit for bit */
    size_t workspace;                        /* bytes of the stream's workspace */
    struct autotune_tensor tensors[AUTOTUNE_TENSORS];
    int num_tensors;
};

/* Adds an operand. */
void autotune_add(struct autotune_problem *problem, void *pointer, enum dtype dtype, int64_t rows, int64_t ld);

/* Adds what the arguments of an op point to, save what has a fixed meaning. The caller fills in samples and tolerances
 * of the results. */
void autotune_add_operands(struct autotune_problem *problem, int op, void *args);

/* Why a candidate is left out. */
enum autotune_failure {
    AUTOTUNE_GOOD,
    AUTOTUNE_REFUSED,  /* its library does not run it, for `reason` */
    AUTOTUNE_RESTLESS, /* `result` has other bits in the second run */
    AUTOTUNE_WRONG     /* element `at` of `result` is `value`, by the reference `expected` */
};

struct autotune_candidate {
    struct autotune_config config;
    double seconds;                /* out: INFINITY: it is not among the fastest, or left out; 0: it was not timed */
    enum autotune_failure failure; /* out */
    const char *result;
    int64_t at;
    double value, expected;
    char reason[256];
};

/* Tunes the op. *best: a candidate, or AUTOTUNE_REFERENCE, whose config the cache has now; AUTOTUNE_NONE: all are left
 * out; AUTOTUNE_NO_MEMORY: too little to try. Fails where a candidate broke the GPU: it stays noted; and with fixed
 * kernels for lack of memory. */
enum status autotune(struct autotuner *tuner, const struct autotune_problem *problem,
                     struct autotune_candidate *candidates, int count, int *best, struct error *err);
