/* ops_test_main.c: the ops test program.
 *
 *     ops-test test [OPTION …]   every case against its float64 reference, in fp32 and bf16
 *     ops-test grad [OPTION …]   backward ops against finite differences of their forward's reference
 *     ops-test perf [OPTION …]   the large cases: time, GB/s, GFLOP/s, share of the measured ceilings
 *     ops-test list [OPTION …]   the cases
 *         --device cpu|cuda   --threads N   --op TEXT (cases whose line contains TEXT)   --dtype fp32|bf16
 *
 * Prints a line per failed case and 'N passed, M failed' at the end; exits 1 if a case failed. */
#include "tests/ops/ops_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICE_GUARD = 256, MAX_BLOCKS = 4096 };

/* ---- memory and random numbers of a case ---- */

static void *host_blocks[MAX_BLOCKS];
static int host_block_count;

void *host_memory(struct harness *h, size_t bytes)
{
    (void)h;
    ASSERT(host_block_count < MAX_BLOCKS);
    void *block = calloc(1, bytes ? bytes : 1);
    ASSERT(block);
    return host_blocks[host_block_count++] = block;
}

static void host_release_from(int first)
{
    while (host_block_count > first)
        free(host_blocks[--host_block_count]);
}

static uint64_t random_bits(struct harness *h)
{
    uint64_t z = h->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double random_uniform(struct harness *h)
{
    return (double)(int64_t)random_bits(h) * 0x1p-63;
}

int32_t *random_ints(struct harness *h, int64_t n, int64_t below)
{
    int32_t *ints = host_memory(h, (size_t)n * sizeof *ints);
    for (int64_t i = 0; i < n; i++)
        ints[i] = (int32_t)(random_bits(h) % (uint64_t)below);
    return ints;
}

/* ---- tensors ---- */

static size_t element_size(const struct tensor *t)
{
    return t->is_double || t->is_index ? sizeof(double) : dtype_size(t->dtype);
}

double tensor_round(const struct tensor *t, double x)
{
    if (t->is_double || t->is_index)
        return x;
    return t->dtype == DTYPE_F32 ? (double)(float)x : (double)bf16_to_f32(bf16_from_f32((float)x));
}

void tensor_set(struct tensor *t, int64_t i, double value)
{
    t->host[i] = tensor_round(t, value);
}

static struct tensor *tensor_new(struct harness *h, const char *name, enum dtype dtype, int64_t n, bool is_double)
{
    ASSERT(h->count < MAX_TENSORS);
    struct tensor *t = &h->tensors[h->count++];
    memset(t, 0, sizeof *t);
    t->name = name;
    t->dtype = dtype;
    t->n = n;
    t->is_double = is_double;
    arena_take(&h->arena, MEM_DATA, DEVICE_GUARD); /* guards before and after show writes out of bounds */
    t->device = arena_take(&h->arena, MEM_DATA, (size_t)n * element_size(t) + DEVICE_GUARD);
    if (!h->timing) {
        t->host = host_memory(h, 3 * (size_t)n * sizeof *t->host);
        t->expected = t->host + n;
        t->actual = t->expected + n;
    }
    return t;
}

struct tensor *tensor_in(struct harness *h, const char *name, enum dtype dtype, int64_t n, double scale)
{
    struct tensor *t = tensor_new(h, name, dtype, n, false);
    for (int64_t i = 0; !h->timing && i < n; i++)
        tensor_set(t, i, scale * random_uniform(h));
    return t;
}

struct tensor *tensor_out(struct harness *h, const char *name, enum dtype dtype, int64_t n, bool accumulate)
{
    struct tensor *t = tensor_new(h, name, dtype, n, false);
    t->output = true;
    t->accumulated = accumulate;
    for (int64_t i = 0; !h->timing && i < n; i++)
        tensor_set(t, i, accumulate ? random_uniform(h) : NAN);
    return t;
}

struct tensor *tensor_double(struct harness *h, const char *name, double value)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, 1, true);
    t->output = true;
    if (!h->timing)
        t->host[0] = value;
    return t;
}

struct tensor *tensor_doubles_in(struct harness *h, const char *name, int64_t n)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, n, true);
    for (int64_t i = 0; !h->timing && i < n; i++)
        tensor_set(t, i, fabs(random_uniform(h)));
    return t;
}

struct tensor *tensor_index(struct harness *h, const char *name, int64_t value)
{
    struct tensor *t = tensor_double(h, name, (double)value);
    t->is_double = false;
    t->is_index = true;
    return t;
}

struct tensor *tensor_alias(struct harness *h, const char *name, void *device, int64_t n, bool is_double)
{
    struct tensor *t = tensor_new(h, name, DTYPE_F32, n, is_double);
    t->device = device;
    t->output = t->alias = true;
    return t;
}

void *device_bytes(struct harness *h, const void *bytes, size_t size)
{
    arena_take(&h->arena, MEM_DATA, DEVICE_GUARD);
    void *memory = arena_take(&h->arena, MEM_DATA, size + DEVICE_GUARD);
    stream_copy(h->stream, memory, bytes, size);
    stream_sync(h->stream);
    return memory;
}

int32_t *device_ints(struct harness *h, const int32_t *values, int64_t n)
{
    int32_t *ints = arena_take(&h->arena, MEM_DATA, (size_t)(n + 1) * sizeof *ints);
    stream_copy(h->stream, ints, values, (size_t)n * sizeof *ints);
    stream_sync(h->stream);
    return ints;
}

static void upload(struct harness *h, struct tensor *t)
{
    size_t size = element_size(t), bytes = (size_t)t->n * size;
    unsigned char *staging = host_memory(h, bytes + DEVICE_GUARD);
    for (int64_t i = 0; i < t->n; i++) {
        float f = h->timing ? (float)(0.1 * random_uniform(h)) : (float)t->host[i];
        uint16_t b = bf16_from_f32(f);
        double d = h->timing ? 0 : t->host[i];
        int64_t index = t->is_index && !h->timing ? (int64_t)t->host[i] : 0;
        memcpy(staging + (size_t)i * size,
               t->is_double            ? (void *)&d
               : t->is_index           ? (void *)&index
               : t->dtype == DTYPE_F32 ? (void *)&f
                                       : (void *)&b,
               size);
    }
    memset(staging + bytes, 0xa5, DEVICE_GUARD);
    stream_copy(h->stream, t->device, staging, bytes + DEVICE_GUARD);
    memset(staging, 0xa5, DEVICE_GUARD <= bytes ? DEVICE_GUARD : bytes);
    stream_copy(h->stream, (char *)t->device - DEVICE_GUARD, staging + bytes, DEVICE_GUARD);
    stream_sync(h->stream);
}

/* Whether the guards around the tensor are whole. */
static bool download(struct harness *h, struct tensor *t)
{
    size_t size = element_size(t), bytes = (size_t)t->n * size;
    unsigned char *staging = host_memory(h, bytes + 2 * DEVICE_GUARD);
    stream_copy(h->stream, staging, (char *)t->device - DEVICE_GUARD, bytes + 2 * DEVICE_GUARD);
    stream_sync(h->stream);
    for (int64_t i = 0; i < t->n; i++) {
        const unsigned char *from = staging + DEVICE_GUARD + (size_t)i * size;
        float f;
        uint16_t b;
        if (t->is_double) {
            memcpy(&t->actual[i], from, sizeof(double));
        } else if (t->is_index) {
            int64_t index;
            memcpy(&index, from, sizeof index);
            t->actual[i] = (double)index;
        } else if (t->dtype == DTYPE_F32) {
            memcpy(&f, from, sizeof f);
            t->actual[i] = f;
        } else {
            memcpy(&b, from, sizeof b);
            t->actual[i] = bf16_to_f32(b);
        }
    }
    bool whole = true;
    for (size_t i = 0; i < DEVICE_GUARD && !t->alias; i++)
        whole = whole && staging[i] == 0xa5 && staging[DEVICE_GUARD + bytes + i] == 0xa5;
    return whole;
}

/* ---- a case ---- */

static void case_describe(const struct op_case *c, enum dtype dtype, char *text, size_t size)
{
    static const struct {
        unsigned flag;
        const char *name;
    } flags[] = {{ACCUMULATE, "accumulate"},
                 {IN_PLACE, "in-place"},
                 {IN_OUT, "in-out"},
                 {GELU, "gelu"},
                 {BIAS, "bias"},
                 {RESIDUAL, "residual"},
                 {RMS, "rms"},
                 {WPE, "wpe"},
                 {INVERSE, "inverse"},
                 {WIDE_OUT, "wide"},
                 {LOSS_ONLY, "loss-only"},
                 {L2, "l2"},
                 {EXTREME, "extreme"}};
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"N", c->N}, {"K", c->K}, {"H", c->H},           {"KV", c->KV},
                 {"D", c->D}, {"P", c->P}, {"window", c->window}, {"pad", c->pad}};
    size_t used = (size_t)snprintf(text, size, "%s %s M=%lld", c->op, dtype_name(dtype), (long long)c->M);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        if (sizes[i].value && used < size)
            used += (size_t)snprintf(text + used, size - used, " %s=%lld", sizes[i].name, (long long)sizes[i].value);
    for (int i = 0; i < MAX_SEQS && c->lengths[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? "," : " lengths=", c->lengths[i]);
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        if (c->flags & flags[i].flag && used < size)
            used += (size_t)snprintf(text + used, size - used, " %s", flags[i].name);
}

#define OP_INDEX(name) INDEX_##name,
enum { OPS_LIST(OP_INDEX) };

static void launch(struct harness *h, int op)
{
#define OP_LAUNCH(name) \
    case INDEX_##name: h->device->ops->name(h->stream, &h->args.name); break;
    switch (op) {
        OPS_LIST(OP_LAUNCH)
    default: BUG("op %d", op);
    }
}

static int op_of_case(const struct op_case *c)
{
    for (int op = 0; op < OPS_COUNT; op++)
        if (strcmp(op_drivers[op].op, c->op) == 0)
            return op;
    BUG("a case names the op '%s'", c->op);
}

static void case_setup(struct harness *h, const struct op_case *c, enum dtype dtype, int op)
{
    void *base = h->arena.base;
    size_t capacity = h->arena.capacity;
    arena_init(&h->arena, base, capacity);
    h->c = c;
    h->dtype = dtype;
    h->count = 0;
    h->random = 1;
    h->limits = (struct op_limits){.dtype = dtype,
                                   .max_tokens = c->M,
                                   .C = c->N,
                                   .F = c->N,
                                   .H = c->H,
                                   .KV = c->KV,
                                   .D = c->D,
                                   .V = c->N,
                                   .P = c->P,
                                   .max_linear_k = c->K,
                                   .max_linear_n = c->N};
    memset(&h->args, 0, sizeof h->args);
    op_drivers[op].setup(h);
    size_t workspace = op_workspace_bytes(h->device, &h->limits);
    stream_set_workspace(h->stream, arena_take(&h->arena, MEM_WORKSPACE, workspace), workspace);
    for (int i = 0; i < h->count; i++)
        if (!h->tensors[i].alias)
            upload(h, &h->tensors[i]);
}

static double mean_square_root(const double *x, int64_t n)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i])) {
            sum += x[i] * x[i];
            count++;
        }
    }
    return count ? sqrt(sum / (double)count) : 0;
}

/* First element that is wrong, or -1. */
static int64_t first_wrong(const struct tensor *t, double tolerance)
{
    double rms = mean_square_root(t->expected, t->n);
    for (int64_t i = 0; i < t->n; i++) {
        double e = t->expected[i], a = t->actual[i];
        if (isnan(e) && t->alias)
            continue;
        bool right = isfinite(e) ? fabs(a - e) <= tolerance * (fabs(e) + rms) + t->absolute
                     : isnan(e)  ? isnan(a)
                                 : a == e;
        if (!right)
            return i;
    }
    return -1;
}

static bool run_test(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    int op = op_of_case(c);
    case_setup(h, c, dtype, op);
    for (int i = 0; i < h->count; i++)
        memcpy(h->tensors[i].expected, h->tensors[i].host, (size_t)h->tensors[i].n * sizeof(double));
    op_drivers[op].reference(h);
    launch(h, op);
    bool right = true;
    for (int i = 0; i < h->count && right; i++) {
        struct tensor *t = &h->tensors[i];
        bool overwritten = false; /* an input whose memory an aliased output took */
        for (int j = 0; j < h->count; j++)
            overwritten = overwritten || (j != i && h->tensors[j].alias && h->tensors[j].device == t->device);
        if (!download(h, t)) {
            printf("FAILED %s: wrote outside of %s\n", text, t->name);
            right = false;
        }
        if (overwritten)
            continue;
        double tolerance = t->tolerance ? t->tolerance : t->is_double ? 1e-5 : t->dtype == DTYPE_F32 ? 2e-5 : 1.6e-2;
        if (!t->output)
            tolerance = 0;
        int64_t wrong = first_wrong(t, tolerance);
        if (wrong >= 0 && right) {
            printf("FAILED %s: %s[%lld] is %.9g, expected %.9g (rms %.3g)\n", text, t->name, (long long)wrong,
                   t->actual[wrong], t->expected[wrong], mean_square_root(t->expected, t->n));
            right = false;
        }
    }
    return right;
}

static bool run_grad(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    enum { SAMPLES = 12, MAX_PAIRS = 4 };
    const double step = 1e-4, tolerance = 1e-3;
    int op = op_of_case(c);
    case_setup(h, c, dtype, op);
    launch(h, op);
    struct gradient_pair pairs[MAX_PAIRS];
    int count = op_drivers[op].pairs(h, pairs);
    bool right = true;
    for (int p = 0; p < count && right; p++) {
        struct tensor *input = pairs[p].input, *gradient = pairs[p].gradient;
        download(h, gradient);
        double rms = mean_square_root(gradient->actual, gradient->n);
        for (int sample = 0; sample < SAMPLES && gradient->n && right; sample++) {
            int blocks = host_block_count;
            int64_t i = (int64_t)(random_bits(h) % (uint64_t)gradient->n);
            double before = input->host[i], actual = gradient->actual[i];
            if (isnan(gradient->host[i]) && isnan(actual) && c->pad)
                continue; /* between rows */
            if (gradient->accumulated)
                actual -= gradient->host[i];
            input->host[i] = before + step;
            double above = op_drivers[op].loss(h);
            input->host[i] = before - step;
            double below = op_drivers[op].loss(h);
            input->host[i] = before;
            double expected = (above - below) / (2 * step);
            right = fabs(actual - expected) <= tolerance * (fabs(expected) + rms) + gradient->absolute;
            if (!right)
                printf("FAILED %s: %s[%lld] is %.9g, by finite differences %.9g\n", text, gradient->name, (long long)i,
                       actual, expected);
            host_release_from(blocks);
        }
    }
    return right;
}

/* ---- timing ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes read and written per second of the device's best large copy. */
static double copy_ceiling(struct harness *h)
{
    size_t half = h->arena.capacity / 2 < ((size_t)256 << 20) ? h->arena.capacity / 2 : (size_t)256 << 20;
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        double start = now();
        stream_copy(h->stream, h->arena.base + half, h->arena.base, half);
        stream_sync(h->stream);
        double seconds = now() - start;
        best = seconds < best ? seconds : best;
    }
    return 2 * (double)half / best;
}

struct ceilings {
    double copy, flops[DTYPE_COUNT];
};

static void run_perf(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text,
                     struct ceilings *ceilings)
{
    int op = op_of_case(c);
    struct op_profile best = {.seconds = 1e30};
    h->timing = true;
    case_setup(h, c, dtype, op);
    ops_profile_enable(h->device, true);
    double start = now();
    for (int i = 0; i < 200 && (i < 3 || now() - start < 1); i++) {
        struct op_profile one;
        launch(h, op);
        if (ops_profile_read(h->device, &one, 1) == 1 && one.seconds < best.seconds)
            best = one;
    }
    ops_profile_enable(h->device, false);
    h->timing = false;
    double bandwidth = best.bytes / best.seconds, rate = best.flops / best.seconds;
    if (rate > ceilings->flops[dtype])
        ceilings->flops[dtype] = rate;
    if (best.flops > 0)
        printf("%-100s %9.3f ms %8.1f GFLOP/s %4.0f%% of the best product\n", text, 1e3 * best.seconds, 1e-9 * rate,
               100 * rate / ceilings->flops[dtype]);
    else
        printf("%-100s %9.3f ms %8.1f GB/s    %4.0f%% of a copy\n", text, 1e3 * best.seconds, 1e-9 * bandwidth,
               100 * bandwidth / ceilings->copy);
    fflush(stdout);
}

/* ---- command line ---- */

enum mode { MODE_TEST, MODE_GRAD, MODE_PERF, MODE_LIST, MODE_COUNT };
static const char *const mode_names[MODE_COUNT] = {"test", "grad", "perf", "list"};

static int usage(const char *what)
{
    fprintf(stderr,
            "ops-test: %s\nusage: ops-test test|grad|perf|list [--device cpu|cuda] [--threads N] [--op TEXT] "
            "[--dtype fp32|bf16]\n",
            what);
    return STATUS_USAGE;
}

int main(int argc, char **argv)
{
    enum device_kind kind = DEVICE_CPU;
    const char *only = "", *only_dtype = "";
    int threads = 0, mode = 0;
    while (mode < MODE_COUNT && (argc < 2 || strcmp(argv[1], mode_names[mode]) != 0))
        mode++;
    if (mode == MODE_COUNT)
        return usage("no mode");
    for (int i = 2; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--device") == 0 && (strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0))
            kind = strcmp(value, "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU;
        else if (strcmp(argv[i], "--threads") == 0 && atoi(value) > 0)
            threads = atoi(value);
        else if (strcmp(argv[i], "--op") == 0)
            only = value;
        else if (strcmp(argv[i], "--dtype") == 0)
            only_dtype = value;
        else
            return usage(argv[i]);
    }

    static struct harness h;
    struct error err;
    struct ceilings ceilings = {0};
    size_t capacity = (size_t)(mode == MODE_PERF ? 1024 : 96) << 20;
    void *memory = NULL;
    int passed = 0, failed = 0;
    if (mode != MODE_LIST) {
        if (device_open(kind, 0, threads, &h.device, &err) != STATUS_OK ||
            stream_new(h.device, STREAM_COMPUTE, &h.stream, &err) != STATUS_OK ||
            device_alloc(h.device, capacity, &memory, &err) != STATUS_OK) {
            fprintf(stderr, "ops-test: %s\n", err.text);
            return (int)err.code;
        }
        printf("%s: %s, %d threads\n", h.device->name, h.device->detail, h.device->threads);
        arena_init(&h.arena, memory, capacity);
    }
    if (mode == MODE_PERF) {
        ceilings.copy = copy_ceiling(&h);
        printf("ceiling: copy %.1f GB/s; products are compared with the best so far\n", 1e-9 * ceilings.copy);
    }
    for (int i = 0; i < op_case_count; i++) {
        const struct op_case *c = &op_cases[i];
        bool perf = c->flags & PERF;
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            char text[256];
            case_describe(c, dtype, text, sizeof text);
            if (!strstr(text, only) || !strstr(dtype_name(dtype), only_dtype))
                continue;
            if (mode == MODE_LIST)
                printf("%s%s\n", text, perf ? " (perf)" : "");
            else if (mode == MODE_PERF && perf)
                run_perf(&h, c, dtype, text, &ceilings);
            else if (mode == MODE_TEST && !perf)
                run_test(&h, c, dtype, text) ? passed++ : failed++;
            else if (mode == MODE_GRAD && !perf && dtype == DTYPE_F32 && op_drivers[op_of_case(c)].loss)
                run_grad(&h, c, dtype, text) ? passed++ : failed++;
            host_release_from(0);
        }
    }
    if (mode == MODE_TEST || mode == MODE_GRAD)
        printf("%d passed, %d failed\n", passed, failed);
    if (mode != MODE_LIST) {
        stream_free(h.stream);
        device_free(h.device, memory, capacity);
        device_close(h.device);
    }
    return failed ? 1 : 0;
}
