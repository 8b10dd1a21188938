/* doctor.c: `ztrain doctor`: what ztrain finds and misses on this machine, and what `device: auto` would take. Lines of
 * "name  value" under headings. It changes nothing, and reports as unknown what it cannot find out. */
#include "cmd/doctor.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/libraries.h"
#include "comm/launch/bootstrap.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/printable.h"
#include "core/version.h"
#include "gpu/cpu/cpu_bf16.h"
#include "gpu/cpu/cpuid.h"
#include "gpu/cpu/device_cpu.h"
#include "gpu/open/device_open.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- small readers ------------------------------------------------------- */

/* The first line of a file without its line end; false if there is none. */
static bool doctor_read_line(const char *path, char *out, size_t size)
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

/* Prints how fast this CPU multiplies bf16 with each of its instructions, and which of them the device uses. */
static void report_bf16(const struct device *device)
{
    struct cpu_kernels has;
    struct cpu_bf16_rates rates;
    struct error err;
    char text[CPU_BF16_TEXT];
    const struct cpu_kernels *used = device_cpu_kernels(device);
    if (cpu_kernels_detect(&has, &err) != STATUS_OK) {
        doctor_line("bf16 products", "%s", err.text);
        return;
    }
    cpu_bf16_measure(&has, &rates);
    doctor_line("bf16 products", "%s; in use: %s%s", cpu_bf16_rates_text(&rates, text), used->amx_bf16 ? "amx, " : "",
                cpu_bf16_name(used->bf16));
}

static void report_cpu(void)
{
    struct cpu_features features;
    cpu_features_detect(&features);
    puts("cpu");
    doctor_line("model", "%s", features.name);
    doctor_line("instruction sets", "%s%s%s", cpu_isa_name(features.isa), features.avx512_bf16 ? ", avx512_bf16" : "",
                features.amx_bf16 ? ", amx_bf16" : "");
    doctor_line("cores", "%d of %d may be used", machine_cores(), machine_cores_online());
    double quota = machine_cpu_quota("");
    if (quota > 0)
        doctor_line("cpu time", "limited to %.2f cores by the control group", quota);

    struct device *device;
    struct error err;
    if (device_open(DEVICE_CPU, 0, 0, &device, &err) != STATUS_OK) {
        doctor_line("cpu device", "does not open: %s", err.text);
        return;
    }
    doctor_line("cpu device", "%s; %d threads", device->detail, device->threads);
    report_bf16(device);
    device_close(device);
}

static void report_memory(void)
{
    char total[SIZE_TEXT_MAX], available[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX], text[256];
    struct machine_memory memory;
    machine_memory("", &memory);
    puts("memory");
    doctor_line("total", "%s", doctor_bytes(memory.total, total));
    doctor_line("available", "%s", doctor_bytes(memory.available, available));
    bool limited = memory.limit != UINT64_MAX;
    doctor_line("limit", "%s", limited ? doctor_bytes(memory.limit, limit) : "none set by the control group");
    bool known = doctor_read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    doctor_line("huge pages", "transparent: %s; reserved: %" PRId64, known ? text : "unknown",
                (int64_t)memory.huge_page_count);
}

static void report_libraries(void)
{
    puts("libraries");
    libraries_print(stdout, "  ", true);
}

/* The ranks that a run started from here would have: the choice of bootstrap_init(), or why it is refused. */
static void report_ranks(void)
{
    struct bootstrap boot;
    struct error err = {.code = STATUS_OK};
    if (bootstrap_init(&boot, &err) != STATUS_OK) {
        doctor_line("ranks", "refused: %s", err.text);
        return;
    }
    if (boot.world == 1)
        doctor_line("ranks", "1: no launcher has started several");
    else
        doctor_line("ranks", "this is rank %d of %d (%s)", boot.rank, boot.world, boot.source);
    bootstrap_release(&boot);
}

static void report_slurm(void)
{
    char path[4096];
    const char *job = getenv("SLURM_JOB_ID");
    puts("slurm");
    doctor_line("srun", "%s", find_program("srun", path, sizeof path) ? path : "not found");
    doctor_line("PMI-2", "%s", library_opens("libpmi2.so.0") ? "libpmi2.so.0" : "libpmi2.so.0 not found");
    doctor_line("PMIx", "%s", library_opens("libpmix.so.2") ? "libpmix.so.2" : "libpmix.so.2 not found");
    doctor_line("job", "%s", job ? job : "none: not inside a Slurm job");
    report_ranks();
}

static const char USAGE[] =
    "usage: ztrain doctor [--gpu-test]\n\n"
    "Prints what ztrain finds on this machine: CPU, memory, libraries, Slurm, GPUs.\n\n"
    "  --gpu-test   compares every op of the first visible GPU with the CPU's on small shapes, and a step that is\n"
    "               launched as a CUDA graph with the same step op by op; exit code 5 if one is wrong, also where\n"
    "               runs do without what is wrong\n";

enum status cmd_doctor(int argc, char **argv, struct error *err)
{
    static const struct option_row options[] = {{.name = "gpu-test"}};
    static const struct command_line line = {"doctor", USAGE, NULL, 0, NULL, options, COUNT_OF(options)};
    bool test = false, helped;
    TRY(command_line_parse(&line, argc, argv, &test, &helped, err));
    if (helped)
        return STATUS_OK;
    if (test)
        return doctor_test_gpu(err);
    char host[256] = "unknown";
    gethostname(host, sizeof host - 1);
    printf("ztrain %s on %s\n", ZTRAIN_VERSION, PRINTABLE(host));
    report_cpu();
    report_memory();
    report_libraries();
    report_slurm();
    doctor_report_gpu();
    return STATUS_OK;
}
