/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test.h: what the files of the ops test program share.
 *
 *     ops_test_main.c        modes, command line, comparison
 *     ops_test_perf.c        timing
 *     ops_test_threads.c     the same bits by any number of threads
 *     ops_test_tensors.c     memory, random numbers and tensors of a case
 *     ops_test_cases.c       the one list of cases
 *     ops_test_norm.c, ops_test_linear.c, ops_test_attention.c, ops_test_delta.c, ops_test_loss.c, ops_test_update.c,
 *     ops_test_adam8.c, ops_test_experts.c
 *                            for each op: its tensors and arguments, its reference, its loss for finite differences
 *     ops_test_drivers.c     the drivers by op, and what they have in common
 *     ops_test_reference.c   naive float64 mathematics
 *     ops_test_bytes.c       bytes that kernels move, where the device is the emulated GPU
 *
 * A driver describes an op as a set of tensors: `host` holds their values before the op (in double, but representable
 * in the tensor's dtype), `expected` the values that the reference computes, `actual` those that the op computed.
 * Elements that an op must not touch keep their value; an output that is overwritten starts as NaN, so that a missing
 * element is found. The program uses device.h and the op table only, so it tests any device. */
#pragma once

#include "gpu/arena.h"
#include "gpu/op_operands.h"
#include "gpu/open/device_open.h"
#include "gpu/ops_profile.h"

enum case_flags {
    ACCUMULATE = 1 << 0,
    IN_PLACE = 1 << 1,
    IN_OUT = 1 << 2,   /* weights_in_out */
    GELU = 1 << 3,     /* with the GELU epilogue, or gelu_aux; GeGLU instead of SwiGLU */
    BIAS = 1 << 4,     /* bias, dbias, dx_sums */
    RESIDUAL = 1 << 5, /* delta, dres; a state */
    RMS = 1 << 6,
    WPE = 1 << 7,
    INVERSE = 1 << 8,
    WIDE_OUT = 1 << 9,   /* fp32 output or logits of a bf16 op */
    LOSS_ONLY = 1 << 10, /* no dlogits */
    L2 = 1 << 11,        /* Adam instead of AdamW */
    EXTREME = 1 << 12,   /* large values */
    PERF = 1 << 13,      /* sized for timing on a CPU; not for the naive reference */
    HALVES = 1 << 15,    /* from one 16-bit dtype to the other */
    BIDIRECTIONAL = 1 << 16,
    ERF = 1 << 17,      /* with GELU: in the form of erf */
    TYPES = 1 << 18,    /* embeddings of the tokens' types */
    PADDING = 1 << 25,  /* token K / 2 has no gradient */
    GPU_PERF = 1 << 14, /* sized for timing on a GPU: its L2 cache does not hold the tensors */
    COUNTED = 1 << 19,  /* sized for counting bytes on the emulated GPU: the floor is all but what rows share */
    READS_AGAIN =
        1 << 20, /* with COUNTED: rows so long that the kernel must read them again, which the count must show */
    GATED =
        1 << 21, /* linear ops: SwiGLU (with GELU: GeGLU) after the product, or its gradient; norms of heads: a gate */
    PAIRS = 1 << 25,            /* rope: neighbours are turned */
    ADDED = 1 << 24,            /* linear ops: y, or dx, is added to */
    NARROW = 1 << 22,           /* in bf16: dw in bf16, with ACCUMULATE added to there; dbias in fp32 is overwritten */
    SINKS = 1 << 26,            /* of attention */
    FP32_READS_AGAIN = 1 << 23, /* the same as READS_AGAIN in fp32 alone, whose rows are the longer ones */
};

enum { MAX_SEQS = 8 };

struct op_case {
    const char *op;
    int64_t M, N, K; /* rows, columns, inner size; N is the C, F, V or n of other ops */
    int64_t H, KV, D, P, window;
    int64_t pad;               /* elements between the end of a row and the next one */
    int64_t gap;               /* the same of x and dx of linear ops */
    int32_t lengths[MAX_SEQS]; /* of sequences; 0 ends the list */
    double factor;             /* of embeddings, of delta, of logits; 0: 1 */
    double cap;                /* the soft cap of logits, or of attention's scores; 0: none */
    double offset;             /* of the weights of norms */
    unsigned flags;
};
extern const struct op_case op_cases[];
extern const int op_case_count;

struct tensor {
    const char *name;
    enum dtype dtype;
    bool is_double; /* doubles (loss and norm sums) */
    bool is_index;  /* int64 */
    bool is_byte;   /* unsigned */
    bool is_int;    /* int32 */
    bool output;
    bool accumulated; /* the op adds to the values in host */
    bool exact;       /* only the correctly rounded value is right */
    bool alias;       /* an output in another tensor's memory: not filled before, its gaps not compared */
    int64_t n;
    double *host, *expected, *actual; /* (n) */
    void *device;
    double tolerance; /* relative to the value and to the rms; 0: by dtype */
    double absolute;  /* the remainder that is allowed where terms cancel */
};

enum { MAX_TENSORS = 20 };

struct harness {
    struct device *device;
    struct stream *stream;
    struct arena arena; /* device memory of the current case */
    const struct op_case *c;
    enum dtype dtype;
    bool timing; /* tensors hold random bits, and no doubles are kept */
    uint64_t random;
    union op_args args;
    struct op_limits limits;
    int count;
    struct tensor tensors[MAX_TENSORS];
    struct tensor *x, *y, *w, *b, *aux, *dx, *dy, *dw, *db, *res, *mean, *rstd; /* the driver's names for them */
    struct tensor *q, *k, *v, *o, *dout, *lse, *dq, *dk, *dv, *loss, *types, *dtypes;
    struct tensor *shift, *sums; /* zeros that a layer before adds to each row of x, and the gradient of them */
    int32_t *index_a, *index_b, *index_c; /* host copies of tokens, positions, types, targets, seq_start */
    double *scratch_pool;                 /* host memory of references, released with the case */
};

struct gradient_pair {
    struct tensor *input, *gradient;
};

struct driver {
    const char *op;
    void (*setup)(struct harness *h);
    void (*reference)(struct harness *h);
    double (*loss)(struct harness *h);                            /* of the host values; NULL: no gradient check */
    int (*pairs)(struct harness *h, struct gradient_pair *pairs); /* at most 7 */
};
extern const struct driver *const op_drivers[OPS_COUNT]; /* in the order of OPS_LIST */

/* Tensors of the current case. An input has random values; an output NaN, or random values that the op adds to. */
struct tensor *tensor_in(struct harness *h, const char *name, enum dtype dtype, int64_t n, double scale);
struct tensor *tensor_out(struct harness *h, const char *name, enum dtype dtype, int64_t n, bool accumulate);
struct tensor *tensor_double(struct harness *h, const char *name, double value); /* an output */
struct tensor *tensor_doubles_in(struct harness *h, const char *name, int64_t n);
struct tensor *tensor_index(struct harness *h, const char *name, int64_t value); /* an output */
struct tensor *tensor_ints(struct harness *h, const char *name, int64_t n); /* an output, exact, that begins with -1 */
/* Bytes that the op changes; only the right ones are right. */
struct tensor *tensor_bytes(struct harness *h, const char *name, const uint8_t *bytes, int64_t n);
/* Members of a struct in device memory, as an output. */
struct tensor *tensor_alias(struct harness *h, const char *name, void *device, int64_t n, bool is_double);
void *device_bytes(struct harness *h, const void *bytes, size_t size);
/* Rounds a value to the tensor's dtype and stores it in host. */
double tensor_round(const struct tensor *t, double value);
void tensor_set(struct tensor *t, int64_t i, double value);
int32_t *device_ints(struct harness *h, const int32_t *values, int64_t n);
int32_t *random_ints(struct harness *h, int64_t n, int64_t below); /* host; freed with the case */
double random_uniform(struct harness *h);                          /* -1 … 1 */
void *host_memory(struct harness *h, size_t bytes);                /* zeroed; freed with the case */

/* The tensor between its guards, to the device. */
void upload(struct harness *h, const struct tensor *t);
/* Random values, made on the device. */
void fill_for_timing(struct harness *h, const struct tensor *t);
size_t tensor_element_size(const struct tensor *t); /* bytes on the device */
/* From the device; returns whether the guards around the tensor are unchanged. */
bool download(struct harness *h, struct tensor *t);
int host_blocks(void); /* the number of blocks of host memory that are held */
/* Frees all of them but the first `first`. */
void host_release_from(int first);

/* ---- cases --------------------------------------------------------------- */

int op_of_case(const struct op_case *c); /* its place in OPS_LIST */
void case_setup(struct harness *h, const struct op_case *c, enum dtype dtype, int op);
void case_launch(struct harness *h, int op);
/* Sets a case up for timing; returns the work of one launch. */
struct op_profile case_prepare(struct harness *h, const struct op_case *c, enum dtype dtype);

struct ceilings {
    double copy;               /* bytes read and written per second */
    double flops[DTYPE_COUNT]; /* of a large matrix product; 0: not measured yet */
};
/* Bytes read and written per second by the faster of the device's copy and a cast to the same dtype. */
double copy_ceiling(struct harness *h);
/* The rates of a CPU's bf16 instructions and tiles. */
void print_bf16_rates(const struct device *device);
/* Prints the case's time; measures the ceiling of products of its type first. Returns false if the device fails. */
bool run_perf(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text,
              struct ceilings *ceilings);

/* ---- references: float64, naive, row-major, dense by default ------------- */

double ref_gelu(double x, bool erf_form), ref_gelu_grad(double x, bool erf_form), ref_sigmoid(double x);
void ref_linear(int64_t M, int64_t N, int64_t K, bool in_out, const double *x, const double *w, const double *b,
                double *y);
/* b NULL with rms; mean may be NULL */
void ref_norm(bool rms, int64_t M, int64_t C, double eps, const double *x, const double *w, const double *b, double *y,
              double *mean, double *rstd);
/* adds to dw and db (db may be NULL) */
void ref_norm_bwd(bool rms, int64_t M, int64_t C, const double *x, const double *w, const double *dy,
                  const double *mean, const double *rstd, double *dx, double *dw, double *db);
void ref_rope(int64_t M, int64_t heads, int64_t D, int64_t R, int64_t ld, double *x, const int32_t *positions,
              const double *cosines, const double *sines, bool inverse, bool pairs);

struct ref_attention {
    int64_t M, H, KV, D, ld_q, ld_k, ld_v, ld_o, window;
    double scale, cap; /* cap 0: none */
    int num_seqs;
    const int32_t *seq_start;
    const double *q, *k, *v;
    /* the factor of dropout for query and key `q` and `k` of a sequence that starts at row `start`; NULL: none */
    double (*kept)(int64_t start, int64_t q, int64_t k, int64_t h);
    bool bidirectional;
    const double *sinks; /* (H) or NULL */
};
void ref_attention(const struct ref_attention *a, double *out, double *lse);
/* dq, dk and dv are overwritten; their rows are as far apart as those of q, k and v. */
void ref_attention_bwd(const struct ref_attention *a, const double *dout, double *dq, double *dk, double *dv);

/* ---- bytes that kernels move --------------------------------------------- */

bool bytes_are_counted(const struct device *device); /* whether this device can */
/* Prints what the case that is set up moves in a launch, and returns whether it is what it must be, and whether a
 * second launch, which is waste, is found (in bf16). cost: the bytes of op_cost.h. */
bool bytes_check(struct harness *h, const char *text, double cost);

/* ---- threads -------------------------------------------------------------- */

/* On the CPU: whether 1, 2 and 3 threads compute the same bits. Says where they do not. */
bool run_threads(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text);

/* ---- a fault ------------------------------------------------------------- */

struct score {
    int passed, failed;
};

/* Ends the process: 0 or 1. */
void run_fault(struct harness *h, struct score *score) __attribute__((noreturn));
