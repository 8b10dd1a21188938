/* doctor.c: `ztrain doctor`: this machine as ztrain sees it: what it has, what it lacks, what `device: auto` would
 * take. Lines of "name  value" under headings; it only looks, and what it cannot find out it calls unknown. */
#include "cmd/commands.h"
#include "cmd/libraries.h"
#include "comm/launch/bootstrap.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/printable.h"
#include "core/version.h"
#include "gpu/cpu/cpu_bf16.h"
#include "gpu/cpu/cpuid.h"
#include "gpu/cpu/device_cpu.h"
#include "gpu/cuda/cuda_library_info.h"
#include "gpu/nvml.h"
#include "gpu/open/device_open.h"
#include "gpu/ops.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- small readers ------------------------------------------------------- */

static void print_line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print_line(const char *name, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("  %-16s  %s\n", name, PRINTABLE(text));
}

/* First line of a file without its end; false if there is none. */
static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = memory_fopen(path, "re");
    if (!file)
        return false;
    bool found = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (found)
        out[strcspn(out, "\n")] = '\0';
    return found;
}

static const char *format_bytes(uint64_t bytes, char *out, size_t size)
{
    if (bytes == UINT64_MAX)
        snprintf(out, size, "unknown");
    else if (bytes < (uint64_t)1 << 30)
        snprintf(out, size, "%.0f MiB", (double)bytes / (1 << 20));
    else
        snprintf(out, size, "%.1f GiB", (double)bytes / (1 << 30));
    return out;
}

/* Whether a program of that name is on PATH; its path is left in out. */
static bool find_program(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t length = strcspn(path, ":");
        if (snprintf(out, size, "%.*s/%s", (int)length, path, name) < (int)size && access(out, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static bool library_opens(const char *name)
{
    void *handle = memory_dlopen(name, RTLD_LAZY | RTLD_LOCAL, NULL);
    if (handle)
        dlclose(handle);
    return handle != NULL;
}

/* ---- chapters ------------------------------------------------------------ */

/* How fast this CPU multiplies bf16 by each of its instructions, and which the device uses. */
static void report_bf16(const struct device *device)
{
    struct cpu_kernels has;
    struct cpu_bf16_rates rates;
    struct error err;
    char text[CPU_BF16_TEXT];
    const struct cpu_kernels *used = device_cpu_kernels(device);
    if (cpu_kernels_detect(&has, &err) != STATUS_OK || cpu_bf16_measure(&has, &rates, &err) != STATUS_OK) {
        print_line("bf16 products", "%s", err.text);
        return;
    }
    print_line("bf16 products", "%s; in use: %s%s", cpu_bf16_rates_text(&rates, text), used->amx_bf16 ? "amx, " : "",
               cpu_bf16_name(used->bf16));
}

static void report_cpu(void)
{
    struct cpu_features features;
    cpu_features_detect(&features);
    puts("cpu");
    print_line("model", "%s", features.name);
    print_line("instruction sets", "%s%s%s", cpu_isa_name(features.isa), features.avx512_bf16 ? ", avx512_bf16" : "",
               features.amx_bf16 ? ", amx_bf16" : "");
    print_line("cores", "%d of %d may be used", machine_cores(), machine_cores_online());
    double quota = machine_cpu_quota("");
    if (quota > 0)
        print_line("cpu time", "limited to %.2f cores by the control group", quota);

    struct device *device;
    struct error err;
    char path[4096];
    if (device_open(DEVICE_CPU, 0, 0, &device, &err) != STATUS_OK) {
        print_line("cpu device", "does not open: %s", err.text);
        return;
    }
    print_line("cpu device", "%s; %d threads", device->detail, device->threads);
    report_bf16(device);
    const char *onednn = libraries_path("libdnnl", path, sizeof path);
    if (onednn)
        print_line("oneDNN", "in use: %s", onednn);
    else if (library_opens("libdnnl.so.2") || library_opens("libdnnl.so.3"))
        print_line("oneDNN", "installed; ztrain's own matrix products are used on this CPU");
    else
        print_line("oneDNN", "not installed; hint: scripts/install-deps.sh installs it (CPUs without AVX2 need it)");
    device_close(device);
}

static void report_memory(void)
{
    char total[32], available[32], limit[32], text[256];
    struct machine_memory memory;
    machine_memory("", &memory);
    puts("memory");
    print_line("total", "%s", format_bytes(memory.total, total, sizeof total));
    print_line("available", "%s", format_bytes(memory.available, available, sizeof available));
    bool limited = memory.limit != UINT64_MAX;
    print_line("limit", "%s",
               limited ? format_bytes(memory.limit, limit, sizeof limit) : "none set by the control group");
    bool known = read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    print_line("huge pages", "transparent: %s; reserved: %" PRId64, known ? text : "unknown",
               (int64_t)memory.huge_page_count);
}

static void report_libraries(void)
{
    puts("libraries");
    libraries_print(stdout, "  ", true);
}

/* What a run started from here would be: the choice of bootstrap_init(), or why it is refused. */
static void report_ranks(void)
{
    struct bootstrap boot;
    struct error err = {.code = STATUS_OK};
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

static void report_slurm(void)
{
    char path[4096];
    const char *job = getenv("SLURM_JOB_ID");
    puts("slurm");
    print_line("srun", "%s", find_program("srun", path, sizeof path) ? path : "not found");
    print_line("PMI-2", "%s", library_opens("libpmi2.so.0") ? "libpmi2.so.0" : "libpmi2.so.0 not found");
    print_line("PMIx", "%s", library_opens("libpmix.so.2") ? "libpmix.so.2" : "libpmix.so.2 not found");
    print_line("job", "%s", job ? job : "none: not inside a Slurm job");
    report_ranks();
}

static void report_nvml(void)
{
    enum { MOST = 32 };
    struct nvml_gpu gpus[MOST];
    char driver[96], why[256], name[16], total[32], available[32], throttle[128];
    int count = nvml_read(NULL, gpus, MOST, driver, sizeof driver, why);
    if (count < 0) {
        print_line("driver", "none that answers (%s)", why);
        print_line("", "hint: where there is a GPU, install NVIDIA's driver (nvidia-smi shows it); containers start "
                       "with --gpus all");
        return;
    }
    print_line("driver", "%s", driver);
    for (int i = 0; i < count && i < MOST; i++) {
        const struct nvml_gpu *gpu = &gpus[i];
        snprintf(name, sizeof name, "gpu %d", i);
        print_line(name, "%s, %s (%s available)", gpu->name, format_bytes(gpu->memory_total, total, sizeof total),
                   format_bytes(gpu->memory_free, available, sizeof available));
        print_line("", "SMs at %u of %u MHz, memory at %u MHz, %u degrees, %u of %u W, throttled: %s", gpu->sm_mhz,
                   gpu->sm_max_mhz, gpu->memory_mhz, gpu->celsius, gpu->milliwatts / 1000, gpu->limit_milliwatts / 1000,
                   nvml_throttle_text(gpu->throttle, throttle, sizeof throttle));
    }
}

static void report_cuda_libraries(void)
{
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
}

/* Seconds of `repeats` calls of work(argument) on the stream, after one that does not count. */
static double time_work(struct stream *stream, void (*work)(struct stream *, void *), void *argument, int repeats)
{
    work(stream, argument);
    stream_sync(stream);
    double start = seconds_now();
    for (int i = 0; i < repeats; i++)
        work(stream, argument);
    stream_sync(stream);
    return seconds_now() - start;
}

struct copy_work {
    void *dst, *src;
    size_t bytes;
};

static void work_copy(struct stream *stream, void *argument)
{
    const struct copy_work *copy = argument;
    stream_copy(stream, copy->dst, copy->src, copy->bytes);
}

static void work_product(struct stream *stream, void *argument)
{
    stream_device(stream)->ops->linear_fwd(stream, argument);
}

/* A large attention, for doctor: its tensors lie in three pieces of memory that hold more than they need. */
enum { ATTENTION_SEQUENCES = 4, ATTENTION_LENGTH = 2048, ATTENTION_HEADS = 16, ATTENTION_WIDTH = 128 };

struct attention_work {
    struct attention_fwd_args fwd;
    struct attention_bwd_args bwd;
};

static void describe_attention(struct attention_work *work)
{
    const int64_t M = ATTENTION_SEQUENCES * ATTENTION_LENGTH, row = ATTENTION_HEADS * ATTENTION_WIDTH;
    work->bwd = (struct attention_bwd_args){.dtype = DTYPE_BF16,
                                            .M = M,
                                            .H = ATTENTION_HEADS,
                                            .KV = ATTENTION_HEADS,
                                            .D = ATTENTION_WIDTH,
                                            .ld_q = 3 * row,
                                            .ld_k = 3 * row,
                                            .ld_v = 3 * row,
                                            .ld_o = row,
                                            .ld_dq = 3 * row,
                                            .ld_dk = 3 * row,
                                            .ld_dv = 3 * row,
                                            .scale = 0.0884f,
                                            .num_seqs = ATTENTION_SEQUENCES,
                                            .max_seq = ATTENTION_LENGTH};
    work->fwd = attention_forward_of(&work->bwd);
}

static void work_attention_fwd(struct stream *stream, void *argument)
{
    stream_device(stream)->ops->attention_fwd(stream, &((struct attention_work *)argument)->fwd);
}

static void work_attention_bwd(struct stream *stream, void *argument)
{
    stream_device(stream)->ops->attention_bwd(stream, &((struct attention_work *)argument)->bwd);
}

static void measure_attention(struct stream *stream, struct attention_work *work, char *pieces[3], int repeats)
{
    char how[512];
    const int64_t row = ATTENTION_HEADS * ATTENTION_WIDTH, out_bytes = work->fwd.M * row * 2;
    int32_t starts[ATTENTION_SEQUENCES + 1];
    for (int i = 0; i <= ATTENTION_SEQUENCES; i++)
        starts[i] = i * ATTENTION_LENGTH;
    char *lse = pieces[1] + 2 * out_bytes, *seq_start = lse + work->fwd.M * ATTENTION_HEADS * 4;
    stream_copy(stream, seq_start, starts, sizeof starts);
    work->fwd.q = work->bwd.q = pieces[0];
    work->fwd.k = work->bwd.k = pieces[0] + 2 * row;
    work->fwd.v = work->bwd.v = pieces[0] + 4 * row;
    work->bwd.out = work->fwd.out = pieces[1];
    work->bwd.dout = pieces[1] + out_bytes;
    work->bwd.lse = work->fwd.lse = (float *)(void *)lse;
    work->fwd.seq_start = work->bwd.seq_start = (const int32_t *)(void *)seq_start;
    work->bwd.dq = pieces[2];
    work->bwd.dk = pieces[2] + 2 * row;
    work->bwd.dv = pieces[2] + 4 * row;
    double flops = 2.0 * (double)work->fwd.M * ATTENTION_LENGTH * (double)row * repeats / 1e12;
    double forward = time_work(stream, work_attention_fwd, work, repeats);
    double backward = time_work(stream, work_attention_bwd, work, repeats);
    ops_describe(stream_device(stream), how, sizeof how);
    print_line("attention bf16", "forward %.1f TFLOP/s, backward %.1f TFLOP/s", flops / forward,
               2.5 * flops / backward);
    print_line("", "%s", how);
}

/* Numbers from -1 to 1 as `dtype`, a million of them repeated: of zeros a GPU multiplies faster than of anything else,
 * because they need less power. bytes: a multiple of 4 MiB. */
static void fill(char *memory, size_t bytes, enum dtype dtype)
{
    const size_t once = (size_t)1 << 20, size = dtype_size(dtype);
    uint32_t state = 1;
    for (size_t i = 0; i < once; i++) {
        state = state * 1664525 + 1013904223; /* Numerical Recipes' generator */
        float value = (float)(int32_t)state * 0x1p-31f;
        uint16_t half = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
        memcpy(memory + i * size, dtype == DTYPE_F32 ? (const void *)&value : &half, size);
    }
    for (size_t i = once * size; i < bytes; i += once * size)
        memcpy(memory + i, memory, once * size);
}

/* How fast this GPU multiplies and copies now, on memory that it has to spare. */
static enum status measure(struct device *device, struct stream *stream, struct error *err)
{
    enum { SIDE = 8192, REPEATS = 20 };
    const size_t matrix = (size_t)SIDE * SIDE * sizeof(float), least = (size_t)8 << 30;
    enum status status;
    void *host = NULL;
    char *memory = NULL;
    struct attention_work attention;
    describe_attention(&attention);
    struct op_limits limits = {.dtype = DTYPE_F32,
                               .max_tokens = SIDE,
                               .H = ATTENTION_HEADS,
                               .KV = ATTENTION_HEADS,
                               .D = ATTENTION_WIDTH,
                               .max_linear_k = SIDE,
                               .max_linear_n = SIDE,
                               .max_seqs = ATTENTION_SEQUENCES,
                               .max_seq = ATTENTION_LENGTH,
                               .attention_fwd = attention.fwd,
                               .attention_bwd = attention.bwd};
    if (device->memory_bytes < least) {
        print_line("ceilings", "not measured: the GPU has less than 8 GiB");
        return STATUS_OK;
    }
    size_t workspace = ops_workspace_bytes(device, &limits), total = 3 * matrix + workspace;
    TRY_GOTO(device_alloc_host(device, matrix, &host, err));
    TRY_GOTO(device_alloc(device, total, (void **)&memory, err));
    stream_set_workspace(stream, memory + 3 * matrix, workspace);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct linear_fwd_args args = {.dtype = (enum dtype)dtype,
                                       .y_dtype = (enum dtype)dtype,
                                       .M = SIDE,
                                       .N = SIDE,
                                       .K = SIDE,
                                       .y = memory,
                                       .x = memory + matrix,
                                       .w = memory + 2 * matrix};
        struct linear_products products = {.fwd = &args, .num_fwd = 1};
        TRY_GOTO(ops_prepare(device, &products, err));
        fill(host, matrix, (enum dtype)dtype);
        stream_copy(stream, memory + matrix, host, matrix);
        stream_copy(stream, memory + 2 * matrix, host, matrix);
        stream_sync(stream); /* before the host's memory is filled again */
        double rate = 2.0 * SIDE * SIDE * SIDE * REPEATS / time_work(stream, work_product, &args, REPEATS);
        double peak = device->peak_flops[dtype];
        char share[64] = "";
        if (peak > 0)
            snprintf(share, sizeof share, ", %.1f %% of the data sheet's %.0f", 100 * rate / peak, peak / 1e12);
        char name[32];
        snprintf(name, sizeof name, "products %s", dtype_name((enum dtype)dtype));
        print_line(name, "%.1f TFLOP/s%s", rate / 1e12, share);
    }
    char *pieces[] = {memory, memory + matrix, memory + 2 * matrix};
    fill(host, matrix, DTYPE_BF16);
    stream_copy(stream, pieces[0], host, matrix);
    stream_copy(stream, pieces[1], host, matrix);
    measure_attention(stream, &attention, pieces, REPEATS);
    struct copy_work inside = {memory, memory + matrix, matrix}, up = {memory, host, matrix},
                     down = {host, memory, matrix};
    double bytes = (double)matrix * REPEATS / 1e9, rate = 2 * bytes / time_work(stream, work_copy, &inside, REPEATS);
    char share[64] = "";
    if (device->peak_bytes > 0)
        snprintf(share, sizeof share, ", %.1f %% of the data sheet's %.0f", 1e11 * rate / device->peak_bytes,
                 device->peak_bytes / 1e9);
    print_line("copy", "%.0f GB/s (read and written)%s", rate, share);
    print_line("copy host to gpu", "%.1f GB/s", bytes / time_work(stream, work_copy, &up, REPEATS));
    print_line("copy gpu to host", "%.1f GB/s", bytes / time_work(stream, work_copy, &down, REPEATS));
    status = device_check(device, err);
fail:
    device_free(device, memory, total);
    device_free_host(device, host, matrix);
    return status;
}

static void report_ceilings(void)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct error err;
    enum status status;
    TRY_GOTO(device_open(DEVICE_CUDA, 0, 0, &device, &err));
    print_line("cuda device", "%s; %s", device->name, device->detail);
    TRY_GOTO(stream_new(device, STREAM_COMPUTE, &stream, &err));
    TRY_GOTO(measure(device, stream, &err));
fail:
    if (status != STATUS_OK)
        print_line("cuda device", "fails: %s", err.text);
    stream_free(stream);
    device_close(device);
}

static void report_gpu(void)
{
    char why[256] = "";
    puts("gpu");
    report_nvml();
    report_cuda_libraries();
    if (device_cuda_available(why)) {
        print_line("device: auto", "takes cuda");
        report_ceilings();
    } else {
        print_line("device: auto", "takes cpu (%s)", why);
        if (!device_cuda_is_built())
            print_line("", "hint: for GPUs, build ztrain where nvcc is installed");
    }
}

enum status cmd_doctor(int argc, char **argv, struct error *err)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        printf("usage: ztrain doctor\n\nThis machine as ztrain sees it: CPU, memory, libraries, Slurm, GPUs.\n");
        return STATUS_OK;
    }
    if (argc > 1)
        return error_set(err, STATUS_USAGE, "doctor: unexpected argument '%s'; hint: it takes none", argv[1]);
    char host[256] = "unknown";
    gethostname(host, sizeof host - 1);
    printf("ztrain %s on %s\n", ZTRAIN_VERSION, PRINTABLE(host));
    report_cpu();
    report_memory();
    report_libraries();
    report_slurm();
    report_gpu();
    return STATUS_OK;
}
