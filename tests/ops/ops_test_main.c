/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/* ops_test_main.c: the ops test program.
 *
 *     ops-test test [OPTION …]   every case against its float64 reference, twice: the bits must repeat; without
 *                                --dtype also the cases of the self-test against the baseline's CPU ops
 *     ops-test threads [OPTION …]   on the CPU: every case, also the large ones, by several numbers of threads: the same
 *                                bits
 *     ops-test grad [OPTION …]   backward ops against finite differences of their forward's reference
 *     ops-test bytes --device cuda   on the emulated GPU: the bytes that kernels move, next to those that they must
 *     ops-test perf [OPTION …]   the large cases: time, GB/s, TFLOP/s, percent of the ceilings, which are measured
 *     ops-test fault --device cuda   an illegal address, and what is left of the GPU after it
 *     ops-test list [OPTION …]   the cases
 *         --device cpu|cuda   --threads N   --dtype fp32|bf16|fp16
 *         --op TEXT (the cases whose line contains TEXT)   --except TEXT (those whose line does not)
 *
 * Prints a line per failed case and 'N passed, M failed' at the end; exits 1 if a case failed. */
/* clang-format on */
#include "tests/ops/ops_test.h"

#include "gpu/self_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a case -------------------------------------------------------------- */

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
                 {EXTREME, "extreme"},
                 {HALVES, "halves"},
                 {ADDED, "added"},
                 {SINKS, "sinks"}};
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"N", c->N}, {"K", c->K},           {"H", c->H},     {"KV", c->KV},  {"D", c->D},
                 {"P", c->P}, {"window", c->window}, {"pad", c->pad}, {"gap", c->gap}};
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

void case_launch(struct harness *h, int op)
{
    op_launch(h->stream, op, &h->args);
}

int op_of_case(const struct op_case *c)
{
    for (int op = 0; op < OPS_COUNT; op++)
        if (strcmp(op_drivers[op]->op, c->op) == 0) return op;
    BUG("a case names the op '%s'", c->op);
}

void case_setup(struct harness *h, const struct op_case *c, enum dtype dtype, int op)
{
    void *base = h->arena.base;
    size_t capacity = h->arena.capacity;
    arena_init(&h->arena, base, capacity);
    h->c = c;
    h->dtype = dtype;
    h->count = 0;
    h->shift = h->sums = NULL;
    h->random = 1;
    h->limits = (struct op_limits){.dtype = dtype,
                                   .max_tokens = c->M,
                                   .H = c->H,
                                   .KV = c->KV,
                                   .D = c->D,
                                   .P = c->P}; /* the drivers set the rest */
    memset(&h->args, 0, sizeof h->args);
    op_drivers[op]->setup(h);
    size_t workspace = ops_workspace_bytes(h->device, &h->limits);
    void *scratch = arena_take(&h->arena, MEM_WORKSPACE, workspace);
    if (h->device->kind == DEVICE_CPU) /* what an op has not written is not a number */
        memset(scratch, 0xff, workspace);
    stream_set_workspace(h->stream, scratch, workspace);
    for (int i = 0; i < h->count; i++)
        if (!h->tensors[i].alias) h->timing ? fill_for_timing(h, &h->tensors[i]) : upload(h, &h->tensors[i]);
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

/* Returns the first wrong element, or -1. */
static int64_t first_wrong(const struct tensor *t, double tolerance)
{
    double rms = mean_square_root(t->expected, t->n);
    double absolute =
        t->absolute + (t->output && !t->exact && t->dtype == DTYPE_F16 ? 0x1p-24 : 0); /* the smallest fp16 number */
    for (int64_t i = 0; i < t->n; i++) {
        double e = t->expected[i], a = t->actual[i];
        if (isnan(e) && t->alias) continue;
        bool right = isfinite(e) ? fabs(a - e) <= tolerance * (fabs(e) + rms) + absolute : isnan(e) ? isnan(a) : a == e;
        if (!right) return i;
    }
    return -1;
}

/* The tolerance is relative to the value and to the tensor's root mean square. */
static double tolerance_of(const struct tensor *t)
{
    static const double by_dtype[DTYPE_COUNT] = {[DTYPE_F32] = 2e-5, [DTYPE_BF16] = 1.6e-2, [DTYPE_F16] = 2e-3};
    if (!t->output || t->exact) return 0;
    return t->tolerance ? t->tolerance : t->is_double ? 1e-5 : by_dtype[t->dtype];
}

/* Runs the case once more from its start: every output must have the same bits as before. */
static bool repeats(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    struct tensor first[MAX_TENSORS];
    int count = h->count, op = op_of_case(c);
    memcpy(first, h->tensors, sizeof first);
    case_setup(h, c, dtype, op);
    case_launch(h, op);
    for (int i = 0; i < count; i++) {
        struct tensor *t = &h->tensors[i];
        download(h, t);
        if (memcmp(t->actual, first[i].actual, (size_t)t->n * sizeof *t->actual) != 0) {
            printf("FAILED %s: %s does not repeat bit for bit\n", text, t->name);
            return false;
        }
    }
    return true;
}

static bool run_test(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    int op = op_of_case(c);
    struct error err;
    case_setup(h, c, dtype, op);
    for (int i = 0; i < h->count; i++)
        memcpy(h->tensors[i].expected, h->tensors[i].host, (size_t)h->tensors[i].n * sizeof(double));
    op_drivers[op]->reference(h);
    case_launch(h, op);
    bool right = true;
    for (int i = 0; i < h->count && right; i++) {
        struct tensor *t = &h->tensors[i];
        bool overwritten = false; /* the tensor is an input in whose memory an aliased output lies */
        for (int j = 0; j < h->count; j++)
            overwritten = overwritten || (j != i && h->tensors[j].alias && h->tensors[j].device == t->device);
        if (!download(h, t)) {
            printf("FAILED %s: wrote outside of %s\n", text, t->name);
            right = false;
        }
        if (overwritten) continue;
        int64_t wrong = first_wrong(t, tolerance_of(t));
        if (wrong >= 0 && right) {
            printf("FAILED %s: %s[%lld] is %.9g, expected %.9g (rms %.3g)\n", text, t->name, (long long)wrong,
                   t->actual[wrong], t->expected[wrong], mean_square_root(t->expected, t->n));
            right = false;
        }
    }
    right = right && repeats(h, c, dtype, text);
    if (device_check(h->device, &err) != STATUS_OK) {
        printf("FAILED %s: %s\n", text, err.text);
        right = false;
    }
    return right;
}

static bool run_grad(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    enum { SAMPLES = 12, MAX_PAIRS = 7 };
    const double step = 1e-4, tolerance = 1e-3;
    int op = op_of_case(c);
    case_setup(h, c, dtype, op);
    case_launch(h, op);
    struct gradient_pair pairs[MAX_PAIRS];
    int count = op_drivers[op]->pairs(h, pairs);
    bool right = true;
    for (int p = 0; p < count && right; p++) {
        struct tensor *input = pairs[p].input, *gradient = pairs[p].gradient;
        download(h, gradient);
        double rms = mean_square_root(gradient->actual, gradient->n);
        for (int sample = 0; sample < SAMPLES && gradient->n && right; sample++) {
            const int blocks = host_blocks();
            const int64_t i = *random_ints(h, 1, gradient->n);
            double before = input->host[i], actual = gradient->actual[i];
            if (isnan(gradient->host[i]) && isnan(actual) && (c->pad || c->gap)) continue; /* between rows */
            if (gradient->accumulated) actual -= gradient->host[i];
            input->host[i] = before + step;
            double above = op_drivers[op]->loss(h);
            input->host[i] = before - step;
            double below = op_drivers[op]->loss(h);
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

static bool run_bytes(struct harness *h, const struct op_case *c, enum dtype dtype, const char *text)
{
    struct error err;
    const double cost = case_prepare(h, c, dtype).bytes;
    const bool right = bytes_check(h, text, cost);
    if (device_check(h->device, &err) == STATUS_OK) return right;
    printf("FAILED %s: %s\n", text, err.text);
    return false;
}

/* ---- command line -------------------------------------------------------- */

enum mode { MODE_TEST, MODE_THREADS, MODE_GRAD, MODE_BYTES, MODE_PERF, MODE_FAULT, MODE_LIST, MODE_COUNT };
static const char *const mode_names[MODE_COUNT] = {"test", "threads", "grad", "bytes", "perf", "fault", "list"};

static int usage(const char *what)
{
    fprintf(stderr,
            "ops-test: %s\nusage: ops-test test|threads|grad|bytes|perf|fault|list [--device cpu|cuda] [--threads N] "
            "[--op TEXT] "
            "[--except TEXT] [--dtype fp32|bf16|fp16]\n",
            what);
    return STATUS_USAGE;
}

struct options {
    int mode;
    enum device_kind kind;
    int threads;                     /* 0: all cores */
    const char *op, *except, *dtype; /* except: NULL: no case */
};

/* Returns whether the command line is right; *wrong is the argument that is not. */
static bool options_parse(int argc, char **argv, struct options *o, const char **wrong)
{
    *o = (struct options){.kind = DEVICE_CPU, .op = "", .dtype = ""};
    *wrong = "no mode";
    while (o->mode < MODE_COUNT && (argc < 2 || strcmp(argv[1], mode_names[o->mode]) != 0)) o->mode++;
    if (o->mode == MODE_COUNT) return false;
    for (int i = 2; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        *wrong = argv[i];
        if (strcmp(argv[i], "--device") == 0 && (strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0))
            o->kind = strcmp(value, "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU;
        else if (strcmp(argv[i], "--threads") == 0 && atoi(value) > 0)
            o->threads = atoi(value);
        else if (strcmp(argv[i], "--op") == 0)
            o->op = value;
        else if (strcmp(argv[i], "--except") == 0 && *value)
            o->except = value;
        else if (strcmp(argv[i], "--dtype") == 0)
            o->dtype = value;
        else
            return false;
    }
    return true;
}

/* Runs or lists one case in one dtype, if the mode has it. */
static void run_case(struct harness *h, const struct options *o, const struct op_case *c, enum dtype dtype,
                     struct ceilings *ceilings, struct score *score)
{
    const bool perf = c->flags & (PERF | GPU_PERF | COUNTED),
               timed = c->flags & (o->kind == DEVICE_CUDA ? GPU_PERF : PERF);
    char text[256];
    bool passed;
    case_describe(c, dtype, text, sizeof text);
    if (!strstr(text, o->op) || (o->except && strstr(text, o->except)) || !strstr(dtype_name(dtype), o->dtype)) return;
    if (o->mode == MODE_LIST) {
        printf("%s%s\n", text,
               !perf                 ? ""
               : c->flags & PERF     ? " (perf)"
               : c->flags & GPU_PERF ? " (GPU perf)"
                                     : " (bytes)");
        return;
    }
    if (o->mode == MODE_PERF && timed)
        passed = run_perf(h, c, dtype, text, ceilings);
    else if (o->mode == MODE_BYTES && c->flags & COUNTED)
        passed = run_bytes(h, c, dtype, text);
    else if (o->mode == MODE_TEST && !perf)
        passed = run_test(h, c, dtype, text);
    else if (o->mode == MODE_THREADS && o->kind == DEVICE_CPU && !(c->flags & GPU_PERF) &&
             !(c->flags & PERF && dtype == DTYPE_F16)) /* which computes like fp32 */
        passed = run_threads(h, c, dtype, text);
    else if (o->mode == MODE_GRAD && !perf && dtype == DTYPE_F32 && op_drivers[op_of_case(c)]->loss)
        passed = run_grad(h, c, dtype, text);
    else
        return;
    score->passed += passed;
    score->failed += !passed;
    host_release_from(0);
}

static void run_cases(struct harness *h, const struct options *o, struct ceilings *ceilings, struct score *score)
{
    for (int i = 0; i < op_case_count; i++)
        for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_COUNT; dtype++)
            run_case(h, o, &op_cases[i], dtype, ceilings, score);
}

/* The cases of a device's self-test (gpu/self_test.h), next to a CPU device with the baseline's instructions. */
static enum status run_self_test(struct harness *h, const struct options *o, struct score *score, struct error *err)
{
    struct device *baseline = NULL;
    struct self_test *checker = NULL;
    char differs[256];
    setenv("ZTRAIN_CPU_ISA", "baseline", 1);
    enum status status = device_open(DEVICE_CPU, 0, o->threads, &baseline, err);
    if (status == STATUS_OK) status = self_test_new(h->device, baseline, &checker, err);
    for (int op = 0; status == STATUS_OK && op < OPS_COUNT; op++) {
        char text[64];
        snprintf(text, sizeof text, "%s self-test", op_name(op));
        if (!strstr(text, o->op) || (o->except && strstr(text, o->except))) continue;
        status = self_test_op(checker, op, differs, sizeof differs, err);
        if (*differs) printf("FAILED %s: %s\n", text, differs);
        score->passed += !*differs;
        score->failed += *differs != 0;
    }
    self_test_free(checker);
    device_close(baseline);
    return status;
}

/* Opens the device, runs the cases on it, prints the score. */
static int run_on_device(struct harness *h, const struct options *o)
{
    struct error err;
    struct ceilings ceilings = {0};
    struct score score = {0};
    /* A real GPU's products have 256 MiB of workspace. */
    const size_t mebibytes[2][2] = {{96, 1024}, {1024, 8192}};
    const size_t capacity = mebibytes[o->mode == MODE_PERF || o->mode == MODE_THREADS][o->kind == DEVICE_CUDA] << 20;
    void *memory = NULL;
    char text[1024];
    if (o->mode == MODE_BYTES) /* the kernels are counted, not cublasLt's epilogues */
        setenv("ZTRAIN_GEMM_EPILOGUES", "unfused", 1);
    if (device_open(o->kind, 0, o->threads, &h->device, &err) != STATUS_OK ||
        stream_new(h->device, STREAM_COMPUTE, &h->stream, &err) != STATUS_OK ||
        device_alloc(h->device, capacity, &memory, &err) != STATUS_OK) {
        fprintf(stderr, "ops-test: %s\n", err.text);
        return (int)err.code;
    }
    if (o->mode == MODE_BYTES && !bytes_are_counted(h->device)) {
        fprintf(stderr, "ops-test: %s cannot count the bytes that its kernels move; hint: build/emulation/ops-test\n",
                h->device->name);
        return STATUS_USAGE;
    }
    printf("%s: %s, %d threads\n", h->device->name, h->device->detail, h->device->threads);
    arena_init(&h->arena, memory, capacity);
    if (o->mode == MODE_PERF) {
        ceilings.copy = copy_ceiling(h);
        printf("ceiling: a large copy %.1f GB/s\n", 1e-9 * ceilings.copy);
        print_bf16_rates(h->device);
    }
    if (o->mode == MODE_FAULT) run_fault(h, &score);
    run_cases(h, o, &ceilings, &score);
    if (o->mode == MODE_TEST && !*o->dtype && run_self_test(h, o, &score, &err) != STATUS_OK) {
        printf("FAILED self-test: %s\n", err.text);
        score.failed++;
    }
    ops_describe(h->device, text, sizeof text);
    if (*text) printf("%s\n", text);
    printf("%d passed, %d failed\n", score.passed, score.failed);
    stream_free(h->stream);
    device_free(h->device, memory, capacity);
    device_close(h->device);
    return score.failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    static struct harness h;
    struct options options;
    const char *wrong;
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines before a crash are seen */
    if (!options_parse(argc, argv, &options, &wrong)) return usage(wrong);
    if (options.mode != MODE_LIST) return run_on_device(&h, &options);
    run_cases(&h, &options, NULL, NULL);
    return 0;
}
