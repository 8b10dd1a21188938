/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.c: `ztrain doctor`: what ztrain finds and misses on this machine, how fast its GPU is, what `device: auto`
 * would take. It changes nothing, and reports as unknown what it cannot find out. */
#include "cmd/command_line.h"
#include "cmd/engine/gpu_test.h"
#include "core/version.h"
#include "gpu/cpu/cpu_bf16.h"
#include "gpu/cpu/device_cpu.h"
#include "gpu/cuda/cuda_library_info.h"
#include "gpu/cuda/nvml.h"
#include "gpu/noise.h"
#include "gpu/open/device_open.h"

#include <dlfcn.h>

/* Prints a line "name  text". */
__attribute__((format(printf, 2, 3))) static void print_line(const char *name, const char *format, ...)
{
    char text[4096];
    WITH_ARGS(format, vsnprintf(text, sizeof text, format, args));
    printf("  %-16s  %s\n", name, PRINTABLE(text));
}

#define DOCTOR_BYTES(bytes) ((bytes) == UINT64_MAX ? "unknown" : SIZE(round, bytes))

/* Whether a program of that name is on PATH; its path is left in out. */
static bool doctor_find_program(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t length = strcspn(path, ":");
        if (snprintf(out, size, "%.*s/%s", (int)length, path, name) < (int)size && access(out, X_OK) == 0) return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static bool doctor_library_opens(const char *name)
{
    void *handle = memory_dlopen(name, RTLD_LAZY | RTLD_LOCAL, NULL);
    if (handle) dlclose(handle);
    return handle != NULL;
}

/* ---- the machine --------------------------------------------------------- */

static void doctor_cpu(void)
{
    struct cpu_kernels has;
    struct cpu_bf16_rates rates;
    char text[CPU_BF16_TEXT];
    struct cpu_features features;
    cpu_features_detect(&features);
    puts("cpu");
    print_line("model", "%s", features.name);
    print_line("instruction sets", "%s%s%s", cpu_isa_name(features.isa), features.avx512_bf16 ? ", avx512_bf16" : "",
               features.amx_bf16 ? ", amx_bf16" : "");
    print_line("cores", "%d of %d may be used", machine_cores(), machine_cores_online());
    double quota = machine_cpu_quota("");
    if (quota > 0) print_line("cpu time", "limited to %.2f cores by the control group", quota);

    RELEASED(device_drop) struct device *device = NULL;
    struct error err;
    if (device_open(DEVICE_CPU, 0, 0, &device, &err) != STATUS_OK) {
        print_line("cpu device", "does not open: %s", err.text);
        return;
    }
    print_line("cpu device", "%s; %d threads", device->detail, device->threads);
    /* how fast this CPU multiplies bf16 with each of its instructions, and which of them the device uses */
    const struct cpu_kernels *used = device_cpu_kernels(device);
    if (cpu_kernels_detect(&has, &err) != STATUS_OK) {
        print_line("bf16 products", "%s", err.text);
    } else {
        cpu_bf16_measure(&has, &rates);
        print_line("bf16 products", "%s; in use: %s%s", cpu_bf16_rates_text(&rates, text),
                   used->amx_bf16 ? "amx, " : "", cpu_bf16_name(used->bf16));
    }
}

static void doctor_memory(void)
{
    char text[256];
    struct machine_memory memory;
    machine_memory("", &memory);
    puts("memory");
    print_line("total", "%s", DOCTOR_BYTES(memory.total));
    print_line("available", "%s", DOCTOR_BYTES(memory.available));
    print_line("limit", "%s", memory.limit == UINT64_MAX ? "none set by the control group" : SIZE(round, memory.limit));
    FILE *file = memory_fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    const bool known = file && fgets(text, sizeof text, file);
    print_line("huge pages", "transparent: %.*s; reserved: %" PRId64, known ? (int)strcspn(text, "\n") : 7,
               known ? text : "unknown", (int64_t)memory.huge_page_count);
    if (file) fclose(file);
}

/* Also the ranks that a run started from here would have: the choice of bootstrap_init(), or why it is refused. */
static void doctor_slurm(void)
{
    char path[4096];
    struct bootstrap boot;
    struct error err = {.code = STATUS_OK};
    const char *job = getenv("SLURM_JOB_ID");
    puts("slurm");
    print_line("srun", "%s", doctor_find_program("srun", path, sizeof path) ? path : "not found");
    print_line("PMI-2", "%s", doctor_library_opens("libpmi2.so.0") ? "libpmi2.so.0" : "libpmi2.so.0 not found");
    print_line("PMIx", "%s", doctor_library_opens("libpmix.so.2") ? "libpmix.so.2" : "libpmix.so.2 not found");
    print_line("job", "%s", job ? job : "none: not inside a Slurm job");
    if (bootstrap_init(&boot, &err) != STATUS_OK) {
        print_line("ranks", "refused: %s", err.text);
        return;
    }
    if (boot.world == 1)
        print_line("ranks", "1: no launcher has started several");
    else
        print_line("ranks", "this is rank %d of %d (%s)", boot.rank, boot.world, boot.source);
    bootstrap_release(&boot);
}

/* ---- the GPU's ceilings -------------------------------------------------- */

enum {
    SIDE = 8192, /* of the square matrices */
    REPEATS = 20 /* of each kind of work */
};
static const size_t matrix_bytes = (size_t)SIDE * SIDE * sizeof(float), least_memory = (size_t)8 << 30;
static const size_t host_bytes = (size_t)SIDE * SIDE * sizeof(float) / 2 * 9; /* 1.125 GiB: two pieces (device_pin()) */

/* What is measured; all owned. */
struct bench {
    struct device *device;
    struct stream *stream;
    void *host;        /* host_bytes */
    double pinning;    /* seconds to get it */
    char *matrices[3]; /* (matrix_bytes) each, in `memory` */
    char *memory;      /* the matrices, then the stream's workspace */
    size_t bytes;      /* of memory */
};

/* Seconds of REPEATS calls of work(argument) on the stream, after one that does not count. */
static double doctor_time_work(struct stream *stream, void (*work)(struct stream *, void *), void *argument)
{
    work(stream, argument);
    stream_sync(stream);
    double start = seconds_now();
    for (int i = 0; i < REPEATS; i++) work(stream, argument);
    stream_sync(stream);
    return seconds_now() - start;
}

/* argument: where to and where from. */
static void doctor_work_copy(struct stream *stream, void *argument)
{
    void **ends = argument;
    stream_copy(stream, ends[0], ends[1], matrix_bytes);
}

static void doctor_work_product(struct stream *stream, void *argument)
{
    stream_device(stream)->ops->linear_fwd(stream, argument);
}

/* A large attention; its tensors lie in the three matrices, which hold more than it needs. */
enum { ATTENTION_SEQUENCES = 4, ATTENTION_LENGTH = 2048, ATTENTION_HEADS = 16, ATTENTION_WIDTH = 128 };

static void doctor_work_attention_fwd(struct stream *stream, void *argument)
{
    stream_device(stream)->ops->attention_fwd(stream, &((struct attention_bwd_args *)argument)->fwd);
}

static void doctor_work_attention_bwd(struct stream *stream, void *argument)
{
    stream_device(stream)->ops->attention_bwd(stream, argument);
}

static void doctor_measure_attention(struct stream *stream, struct attention_bwd_args *work, char *pieces[3])
{
    char how[512];
    struct attention_fwd_args *fwd = &work->fwd;
    const int64_t row = ATTENTION_HEADS * ATTENTION_WIDTH, out_bytes = fwd->M * row * 2;
    int32_t starts[ATTENTION_SEQUENCES + 1];
    for (int i = 0; i <= ATTENTION_SEQUENCES; i++) starts[i] = i * ATTENTION_LENGTH;
    char *lse = pieces[1] + 2 * out_bytes, *seq_start = lse + fwd->M * ATTENTION_HEADS * 4;
    stream_copy(stream, seq_start, starts, sizeof starts);
    fwd->q = pieces[0];
    fwd->k = pieces[0] + 2 * row;
    fwd->v = pieces[0] + 4 * row;
    fwd->out = pieces[1];
    fwd->lse = (float *)(void *)lse;
    fwd->seq_start = (const int32_t *)(void *)seq_start;
    work->dout = pieces[1] + out_bytes;
    work->dq = pieces[2];
    work->dk = pieces[2] + 2 * row;
    work->dv = pieces[2] + 4 * row;
    double flops = 2.0 * (double)fwd->M * ATTENTION_LENGTH * (double)row * REPEATS / 1e12;
    double forward = doctor_time_work(stream, doctor_work_attention_fwd, work);
    double backward = doctor_time_work(stream, doctor_work_attention_bwd, work);
    ops_describe(stream_device(stream), how, sizeof how);
    print_line("attention bf16", "forward %.1f TFLOP/s, backward %.1f TFLOP/s", flops / forward,
               2.5 * flops / backward);
    print_line("", "%s", how);
}

static void doctor_fill_with_noise(const struct bench *bench, int matrix, enum dtype dtype)
{
    stream_fill_noise(bench->stream, bench->matrices[matrix], dtype, (size_t)SIDE * SIDE, (uint32_t)matrix);
}

static enum status doctor_measure_products(struct bench *bench, enum dtype dtype, struct error *err)
{
    struct linear_fwd_args args = {.dtype = dtype,
                                   .y_dtype = dtype,
                                   .M = SIDE,
                                   .N = SIDE,
                                   .K = SIDE,
                                   .y = bench->matrices[0],
                                   .x = bench->matrices[1],
                                   .w = bench->matrices[2]};
    struct linear_products products = {.fwd = &args, .num_fwd = 1};
    TRY(ops_prepare(bench->device, &products, err));
    doctor_fill_with_noise(bench, 1, dtype);
    doctor_fill_with_noise(bench, 2, dtype);
    double rate = 2.0 * SIDE * SIDE * SIDE * REPEATS / doctor_time_work(bench->stream, doctor_work_product, &args);
    double peak = bench->device->peak_flops[dtype];
    char share[64] = "", name[32];
    if (peak > 0) snprintf(share, sizeof share, ", %.1f %% of the data sheet's %.0f", 100 * rate / peak, peak / 1e12);
    snprintf(name, sizeof name, "products %s", dtype_name(dtype));
    print_line(name, "%.1f TFLOP/s%s", rate / 1e12, share);
    return STATUS_OK;
}

static enum status doctor_allocate(struct bench *bench, const struct attention_bwd_args *attention, struct error *err)
{
    const struct op_limits limits = {.dtype = DTYPE_F32,
                                     .max_tokens = SIDE,
                                     .H = ATTENTION_HEADS,
                                     .KV = ATTENTION_HEADS,
                                     .D = ATTENTION_WIDTH,
                                     .max_linear_k = SIDE,
                                     .max_linear_n = SIDE,
                                     .max_seqs = ATTENTION_SEQUENCES,
                                     .max_seq = ATTENTION_LENGTH,
                                     .attention = {*attention},
                                     .num_attention = 1,
                                     .backward = true};
    size_t workspace = ops_workspace_bytes(bench->device, &limits);
    bench->bytes = 3 * matrix_bytes + workspace;
    const double start = seconds_now();
    TRY(device_alloc_host(bench->device, host_bytes, &bench->host, err));
    bench->pinning = seconds_now() - start;
    TRY(device_alloc(bench->device, bench->bytes, (void **)&bench->memory, err));
    for (int i = 0; i < 3; i++) bench->matrices[i] = bench->memory + (size_t)i * matrix_bytes;
    stream_set_workspace(bench->stream, bench->memory + 3 * matrix_bytes, workspace);
    return STATUS_OK;
}

static enum status doctor_measure_all(struct bench *bench, struct error *err)
{
    const int64_t row = ATTENTION_HEADS * ATTENTION_WIDTH;
    struct attention_bwd_args attention = {.fwd = {.dtype = DTYPE_BF16,
                                                   .M = ATTENTION_SEQUENCES * ATTENTION_LENGTH,
                                                   .ld_q = 3 * row,
                                                   .ld_k = 3 * row,
                                                   .ld_v = 3 * row,
                                                   .ld_o = row,
                                                   .scale = 0.0884f,
                                                   .H = ATTENTION_HEADS,
                                                   .KV = ATTENTION_HEADS,
                                                   .D = ATTENTION_WIDTH,
                                                   .num_seqs = ATTENTION_SEQUENCES,
                                                   .max_seq = ATTENTION_LENGTH},
                                           .ld_dq = 3 * row,
                                           .ld_dk = 3 * row,
                                           .ld_dv = 3 * row};
    TRY(doctor_allocate(bench, &attention, err));
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) TRY(doctor_measure_products(bench, (enum dtype)dtype, err));
    doctor_fill_with_noise(bench, 0, DTYPE_BF16);
    doctor_fill_with_noise(bench, 1, DTYPE_BF16);
    doctor_measure_attention(bench->stream, &attention, bench->matrices);
    void *inside[] = {bench->matrices[0], bench->matrices[1]}, *up[] = {bench->matrices[0], bench->host},
         *down[] = {bench->host, bench->matrices[0]};
    const double bytes = (double)matrix_bytes * REPEATS / 1e9, peak = bench->device->peak_bytes;
    const double rate = 2 * bytes / doctor_time_work(bench->stream, doctor_work_copy, inside);
    char share[64] = "";
    if (peak > 0) snprintf(share, sizeof share, ", %.1f %% of the data sheet's %.0f", 1e11 * rate / peak, peak / 1e9);
    print_line("copy", "%.0f GB/s (read and written)%s", rate, share);
    print_line("pinned memory", "allocated at %.1f GB/s", (double)host_bytes / 1e9 / bench->pinning);
    print_line("copy host to gpu", "%.1f GB/s", bytes / doctor_time_work(bench->stream, doctor_work_copy, up));
    print_line("copy gpu to host", "%.1f GB/s", bytes / doctor_time_work(bench->stream, doctor_work_copy, down));
    /* copies down and up across the border of two pieces of pinned memory */
    const size_t count = matrix_bytes / sizeof(float);
    float *across = (float *)((char *)bench->host + host_bytes - matrix_bytes);
    bool whole = true;
    stream_fill_noise(bench->stream, bench->matrices[0], DTYPE_F32, count, SIDE);
    stream_copy(bench->stream, across, bench->matrices[0], matrix_bytes);
    stream_copy(bench->stream, bench->matrices[1], across, matrix_bytes);
    stream_copy(bench->stream, bench->host, bench->matrices[1], matrix_bytes);
    stream_sync(bench->stream);
    for (size_t i = 0; i < count && whole; i++) whole = across[i] == noise_value(SIDE, i);
    return whole && memcmp(bench->host, across, matrix_bytes) == 0
               ? device_check(bench->device, err)
               : error_set(err, STATUS_DEVICE, "a copy across two pieces of pinned memory is not whole");
}

static void doctor_ceilings(void)
{
    struct bench bench = {.device = NULL};
    struct error err;
    enum status status;
    TRY_END(device_open(DEVICE_CUDA, 0, 0, &bench.device, &err));
    print_line("cuda device", "%s; %s", bench.device->name, bench.device->detail);
    TRY_END(stream_new(bench.device, STREAM_COMPUTE, &bench.stream, &err));
    if (bench.device->memory_bytes < least_memory)
        print_line("ceilings", "not measured: the GPU has less than 8 GiB");
    else
        TRY_END(doctor_measure_all(&bench, &err));
end:
    if (status != STATUS_OK) print_line("cuda device", "fails: %s", err.text);
    device_free(bench.device, bench.memory, bench.bytes);
    device_free_host(bench.device, bench.host, host_bytes);
    stream_free(bench.stream);
    device_close(bench.device);
}

/* ---- the GPU ------------------------------------------------------------- */

static void doctor_nvml(void)
{
    enum { MOST = 32 };
    struct nvml_gpu gpus[MOST];
    char driver[96], why[256], name[16], throttle[128];
    int count = nvml_read(NULL, gpus, MOST, driver, sizeof driver, why);
    if (count < 0) {
        print_line("driver", "none found (%s)", why);
        print_line("", "hint: where there is a GPU, install NVIDIA's driver (nvidia-smi shows it); containers start "
                       "with --gpus all");
        return;
    }
    print_line("driver", "%s", driver);
    for (int i = 0; i < count && i < MOST; i++) {
        const struct nvml_gpu *gpu = &gpus[i];
        snprintf(name, sizeof name, "gpu %d", i);
        print_line(name, "%s, %s (%s available)", gpu->name, DOCTOR_BYTES(gpu->memory_total),
                   DOCTOR_BYTES(gpu->memory_free));
        print_line("", "SMs at %u of %u MHz, memory at %u MHz, %u degrees, %u of %u W, throttled: %s", gpu->sm_mhz,
                   gpu->sm_max_mhz, gpu->memory_mhz, gpu->celsius, gpu->milliwatts / 1000, gpu->limit_milliwatts / 1000,
                   nvml_throttle_text(gpu->throttle, throttle, sizeof throttle));
    }
}

static void doctor_gpu(void)
{
    char why[256] = "";
    puts("gpu");
    doctor_nvml();
#if ZTRAIN_CUDA
    for (int i = 0; i < CUDA_LIBRARY_COUNT; i++) {
        struct cuda_library_info info;
        cuda_library_describe((enum cuda_library)i, &info);
        if (info.found)
            print_line(info.name, "%s (built with %s)  %s", info.version, info.built_with, info.path);
        else
            print_line(info.name, "%s", info.why);
    }
#endif
    if (device_cuda_available(why)) {
        print_line("device: auto", "takes cuda");
        doctor_ceilings();
    } else {
        print_line("device: auto", "takes cpu (%s)", why);
        if (!device_cuda_is_built()) print_line("", "hint: for GPUs, build ztrain where nvcc is installed");
    }
}

/* ---- --gpu-test ---------------------------------------------------------- */

static void doctor_print_check(const char *check, const char *differs)
{
    printf("  %-24s %s%s\n", check, *differs ? "WRONG: " : "right", differs);
}

/* Lists the parts that a run does without. They do not end a run, but the test has found a fault. */
static enum status doctor_avoided(const struct device *device, unsigned avoid, struct error *err)
{
    char names[256] = "";
    for (unsigned part = 1; part <= DEVICE_PARTS_LAST; part <<= 1) {
        if (!(avoid & part)) continue;
        print_line("runs do without", "%s", device_part_name(part));
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? " and " : "", device_part_name(part));
    }
    if (!avoid) return STATUS_OK;
    error_set(err, STATUS_DEVICE, "the self-test of %s found wrong results with %s, which runs do without",
              device->name, names);
    return error_hint(err, "the GPU, its driver or a library is faulty: runs are right, but slower");
}

static enum status doctor_test_gpu(int index, struct error *err)
{
    RELEASED(device_drop) struct device *device = NULL;
    char why[256];
    unsigned avoid;
    if (!device_cuda_available(why)) {
        error_set(err, STATUS_DEVICE, "doctor --gpu-test: there is no GPU to test: %s", why);
        return error_hint(err, "`ztrain doctor` shows what this machine has");
    }
    puts("gpu test");
    TRY(device_open(DEVICE_CUDA, index, 0, &device, err));
    const double start = seconds_now();
    print_line("gpu", "%s; %s", device->name, device->detail);
    TRY(gpu_test_run(device, doctor_print_check, &avoid, err));
    const enum status status = doctor_avoided(device, avoid, err);
    print_line("time", "%.1f s", seconds_now() - start);
    print_line("at each start", "runs check the collectives of several GPUs, and cuDNN's attention for their shapes");
    return status;
}

static const char USAGE[] =
    "usage: ztrain doctor [--gpu-test [--gpu N]]\n\n"
    "Prints what ztrain finds on this machine: CPU, memory, libraries, Slurm, GPUs.\n\n"
    "  --gpu-test   compares every op of a GPU with the CPU's on small shapes, and a step that is launched as a CUDA\n"
    "               graph with the same step op by op; exit code 5 if one is wrong, even if runs do without it\n"
    "  --gpu N      tests this visible GPU, counted from 0 (default: 0)\n";

struct doctor_arguments {
    bool test;
    const char *gpu; /* NULL: the first */
};

enum status cmd_doctor(int argc, char **argv, struct error *err)
{
    static const struct option_row options[] = {OPTION(struct doctor_arguments, test, "gpu-test", NULL),
                                                OPTION(struct doctor_arguments, gpu, "gpu", "N")};
    static const struct command_line line = {"doctor", USAGE, NULL, 0, NULL, options, COUNT_OF(options)};
    struct doctor_arguments arguments = {.test = false};
    TRY(command_line_parse(&line, argc, argv, &arguments, err));
    if (arguments.gpu && (!arguments.test || arguments.gpu[strspn(arguments.gpu, "0123456789")]))
        return error_set(err, STATUS_USAGE, "doctor --gpu N is the number of a GPU, with --gpu-test");
    if (arguments.test) return doctor_test_gpu(arguments.gpu ? atoi(arguments.gpu) : 0, err);
    char host[256] = "unknown";
    gethostname(host, sizeof host - 1);
    printf("ztrain %s on %s\n", ZTRAIN_VERSION, PRINTABLE(host));
    doctor_cpu();
    doctor_memory();
    puts("libraries");
    version_print_libraries("  ", true);
    doctor_slurm();
    doctor_gpu();
    return STATUS_OK;
}
