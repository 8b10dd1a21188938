#include "gpu/op_check.h"

#include "core/heartbeat.h"
#include "gpu/op_check_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKED, REFERENCE, BEDS, PIECE_ALIGN = 256 };

struct op_checker {
    struct op_check_bed beds[BEDS];
    void *workspaces[BEDS];
    size_t workspace_bytes[BEDS];
};

static const char *const op_names[] = {
#define OP_CHECK_NAME(op) #op,
    OPS_LIST(OP_CHECK_NAME)};

const char *op_check_name(int op)
{
    ASSERT(op >= 0 && op < OPS_COUNT);
    return op_names[op];
}

/* ---- tensors ------------------------------------------------------------- */

/* Finds room for `bytes` bytes; *offset: in memory and image. */
static void *take(struct op_check_bed *bed, size_t bytes, size_t *offset)
{
    *offset = bed->used;
    bed->used += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    ASSERT(bed->used <= OP_CHECK_BYTES);
    return bed->memory + *offset;
}

/* -1 … 1, by Knuth's generator of 64 bits. */
static double draw(struct op_check_bed *bed)
{
    bed->random = bed->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(bed->random >> 32) * 0x1p-31;
}

static void put_element(char *at, int64_t i, enum dtype dtype, double value)
{
    const float x = (float)value;
    const uint16_t half = dtype == DTYPE_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
    if (dtype == DTYPE_F32)
        memcpy(at + (size_t)i * sizeof x, &x, sizeof x);
    else
        memcpy(at + (size_t)i * sizeof half, &half, sizeof half);
}

void bed_set(struct op_check_bed *bed, void *tensor, enum dtype dtype, int64_t i, double value)
{
    put_element(bed->image + ((const char *)tensor - bed->memory), i, dtype, value);
}

void *bed_bytes(struct op_check_bed *bed, const void *bytes, size_t size)
{
    size_t offset;
    void *memory = take(bed, size, &offset);
    memcpy(bed->image + offset, bytes, size);
    return memory;
}

static void *fill_random(struct op_check_bed *bed, enum dtype dtype, int64_t n, double middle, double scale)
{
    size_t offset;
    void *memory = take(bed, (size_t)n * dtype_size(dtype), &offset);
    for (int64_t i = 0; i < n; i++)
        put_element(bed->image + offset, i, dtype, middle + scale * draw(bed));
    return memory;
}

void *bed_input(struct op_check_bed *bed, enum dtype dtype, int64_t n, double scale)
{
    return fill_random(bed, dtype, n, 0, scale);
}

void *bed_positive(struct op_check_bed *bed, enum dtype dtype, int64_t n)
{
    return fill_random(bed, dtype, n, 1, 0.5);
}

int32_t *bed_indices(struct op_check_bed *bed, int64_t n, int32_t below)
{
    size_t offset;
    int32_t *memory = take(bed, (size_t)n * sizeof *memory, &offset);
    for (int64_t i = 0; i < n; i++) {
        const int32_t index = (int32_t)(fabs(draw(bed)) * below) % below;
        memcpy(bed->image + offset + (size_t)i * sizeof index, &index, sizeof index);
    }
    return memory;
}

void bed_compare(struct op_check_bed *bed, const void *at, enum op_check_type type, int64_t n)
{
    ASSERT(bed->count < OP_CHECK_RESULTS);
    bed->results[bed->count++] = (struct op_check_result){(size_t)((const char *)at - bed->memory), type, n};
}

void *bed_output(struct op_check_bed *bed, enum dtype dtype, int64_t n)
{
    size_t offset;
    void *memory = take(bed, (size_t)n * dtype_size(dtype), &offset);
    memset(bed->image + offset, 0xff, (size_t)n * dtype_size(dtype));
    bed_compare(bed, memory, (enum op_check_type)dtype, n);
    return memory;
}

void *bed_changed(struct op_check_bed *bed, enum dtype dtype, int64_t n, double scale)
{
    void *memory = bed_input(bed, dtype, n, scale);
    bed_compare(bed, memory, (enum op_check_type)dtype, n);
    return memory;
}

double *bed_double(struct op_check_bed *bed, double value)
{
    double *memory = bed_bytes(bed, &value, sizeof value);
    bed_compare(bed, memory, OP_CHECK_DOUBLE, 1);
    return memory;
}

void bed_load(struct op_check_bed *bed)
{
    stream_copy(bed->stream, bed->memory, bed->image, bed->used);
}

/* ---- comparison ---------------------------------------------------------- */

static double element_of(const char *at, enum op_check_type type, int64_t i)
{
    double wide;
    float x;
    uint16_t half;
    switch (type) {
    case OP_CHECK_DOUBLE: memcpy(&wide, at + (size_t)i * sizeof wide, sizeof wide); return wide;
    case OP_CHECK_F32: memcpy(&x, at + (size_t)i * sizeof x, sizeof x); return (double)x;
    case OP_CHECK_BYTES_EQUAL: return (double)(unsigned char)at[i];
    default:
        memcpy(&half, at + (size_t)i * sizeof half, sizeof half);
        return (double)(type == OP_CHECK_BF16 ? bf16_to_f32(half) : f16_to_f32(half));
    }
}

/* Relative to the value and to the tensor's root mean square. The two devices round in the same places, but add in
 * different orders. */
double op_check_tolerance(enum op_check_type type)
{
    static const double by_type[] = {[OP_CHECK_F32] = 1e-3,
                                     [OP_CHECK_BF16] = 4e-2,
                                     [OP_CHECK_F16] = 1e-2,
                                     [OP_CHECK_DOUBLE] = 1e-3,
                                     [OP_CHECK_BYTES_EQUAL] = 0};
    return by_type[type];
}

static double tolerance_of(const struct op_check_bed *bed, enum op_check_type type)
{
    return bed->tolerance > 0 && type != OP_CHECK_BYTES_EQUAL ? bed->tolerance : op_check_tolerance(type);
}

static bool is_close(double value, double right, double rms, double tolerance)
{
    if (!isfinite(right))
        return isnan(right) ? isnan(value) : value == right;
    return fabs(value - right) <= tolerance * (fabs(right) + rms);
}

/* Whether few enough elements differ, where a case has said how many may. */
static bool are_few_unequal(const struct op_check_bed *own, const struct op_check_bed *reference, int index, char *text,
                            size_t size)
{
    const struct op_check_result *r = &reference->results[index];
    const int64_t most = (int64_t)(reference->unequal * (double)r->n);
    int64_t unequal = 0;
    if (reference->unequal <= 0 || (r->type != OP_CHECK_BF16 && r->type != OP_CHECK_F16))
        return true;
    for (int64_t i = 0; i < r->n; i++)
        unequal += memcmp(own->image + r->at + 2 * i, reference->image + r->at + 2 * i, 2) != 0;
    if (unequal <= most)
        return true;
    snprintf(text, size, "in %s, variant %d: %lld of %lld elements differ, where at most %lld is right",
             dtype_name(own->dtype), own->variant, (long long)unequal, (long long)r->n, (long long)most);
    return false;
}

/* Compares a result of the two devices; false: `text` says where they differ. */
static bool compare_result(const struct op_check_bed *own, const struct op_check_bed *reference, int index, char *text,
                           size_t size)
{
    const struct op_check_result *r = &reference->results[index];
    const char *values = own->image + r->at, *right = reference->image + r->at;
    double squares = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const double x = element_of(right, r->type, i);
        if (!isfinite(x))
            continue;
        squares += x * x;
        finite++;
    }
    const double rms = finite && r->type != OP_CHECK_BYTES_EQUAL ? sqrt(squares / (double)finite) : 0;
    for (int64_t i = 0; i < r->n; i++) {
        const double x = element_of(values, r->type, i), y = element_of(right, r->type, i);
        if (is_close(x, y, rms, tolerance_of(reference, r->type)))
            continue;
        snprintf(text, size, "in %s, variant %d: element %lld of %lld is %g, where %g is right", dtype_name(own->dtype),
                 own->variant, (long long)i, (long long)r->n, x, y);
        return false;
    }
    return are_few_unequal(own, reference, index, text, size);
}

/* Runs the case on one device and fetches its memory. */
static bool run_bed(struct op_check_bed *bed, op_check_case run, enum dtype dtype, int variant)
{
    memset(bed->image, 0, bed->used); /* what lies between the tensors of the next case is equal on both devices */
    bed->used = 0;
    bed->count = 0;
    bed->random = 1;
    bed->dtype = dtype;
    bed->variant = variant;
    bed->tolerance = 0;
    bed->unequal = 0;
    if (!run(bed))
        return false;
    stream_copy(bed->stream, bed->image, bed->memory, bed->used);
    stream_sync(bed->stream);
    heartbeat_beat();
    return true;
}

enum status op_check_run(struct op_checker *c, int op, char *differs, size_t size, struct error *err)
{
    struct op_check_bed *own = &c->beds[CHECKED], *reference = &c->beds[REFERENCE];
    differs[0] = '\0';
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (int v = 0; run_bed(own, op_check_cases[op], (enum dtype)dtype, v); v++) {
            enum status status = device_check(own->device, err);
            if (status != STATUS_OK)
                return error_prefix(err, "the check of %s", op_names[op]);
            run_bed(reference, op_check_cases[op], (enum dtype)dtype, v);
            ASSERT(own->used == reference->used && own->count == reference->count);
            for (int i = 0; i < reference->count && !*differs; i++)
                compare_result(own, reference, i, differs, size);
            if (*differs)
                return STATUS_OK;
        }
    }
    return STATUS_OK;
}

/* ---- life ---------------------------------------------------------------- */

static enum status open_bed(struct op_checker *c, int which, struct device *device, struct error *err)
{
    enum { MOST = 128, HEADS = 4, HEAD = 256, TOKENS = 1024, ROW = 17 << 10, VOCABULARY = 1 << 17 }; /* of any case */
    const struct op_limits limits = {.dtype = DTYPE_F32,
                                     .max_tokens = TOKENS,
                                     .C = ROW,
                                     .F = MOST,
                                     .H = HEADS,
                                     .KV = HEADS,
                                     .D = HEAD,
                                     .V = VOCABULARY,
                                     .P = MOST,
                                     .max_linear_k = MOST,
                                     .max_linear_n = MOST,
                                     .max_seqs = HEADS,
                                     .max_seq = TOKENS};
    struct op_check_bed *bed = &c->beds[which];
    const size_t workspace = ops_workspace_bytes(device, &limits);
    bed->device = device;
    bed->image = calloc(1, OP_CHECK_BYTES);
    if (!bed->image)
        return error_set(err, STATUS_DEVICE, "cannot check the device's ops: out of memory");
    TRY(stream_new(device, STREAM_COMPUTE, &bed->stream, err));
    void *memory;
    TRY(device_alloc(device, OP_CHECK_BYTES, &memory, err));
    bed->memory = memory;
    TRY(device_alloc(device, workspace, &c->workspaces[which], err));
    c->workspace_bytes[which] = workspace;
    stream_set_workspace(bed->stream, c->workspaces[which], workspace);
    return STATUS_OK;
}

enum status op_checker_new(struct device *device, struct device *reference, struct op_checker **checker,
                           struct error *err)
{
    struct op_checker *c = *checker = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_DEVICE, "cannot check the device's ops: out of memory");
    enum status status = open_bed(c, CHECKED, device, err);
    if (status == STATUS_OK)
        status = open_bed(c, REFERENCE, reference, err);
    if (status != STATUS_OK) {
        op_checker_free(c);
        *checker = NULL;
    }
    return status;
}

void op_checker_free(struct op_checker *c)
{
    if (!c)
        return;
    for (int i = 0; i < BEDS; i++) {
        struct op_check_bed *bed = &c->beds[i];
        if (!bed->device)
            continue;
        stream_free(bed->stream);
        device_free(bed->device, bed->memory, OP_CHECK_BYTES);
        device_free(bed->device, c->workspaces[i], c->workspace_bytes[i]);
        free(bed->image);
    }
    free(c);
}
