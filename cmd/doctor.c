/* doctor.c: `ztrain doctor`: this machine as ztrain sees it: what it has, what it lacks, what `device: auto` would
 * take. Lines of "name  value" under headings; it only looks, and what it cannot find out it calls unknown. */
#include "cmd/commands.h"
#include "cmd/libraries.h"
#include "core/version.h"
#include "gpu/cpuid.h"
#include "gpu/device.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- small readers ------------------------------------------------------------------------------------------------ */

static void print_line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print_line(const char *name, const char *format, ...)
{
    va_list arguments;
    printf("  %-16s  ", name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

/* First line of a file without its end; false if there is none. */
static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool found = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (found)
        out[strcspn(out, "\n")] = '\0';
    return found;
}

/* Bytes behind a "Name:   123 kB" line of /proc/meminfo, or -1. */
static int64_t meminfo(const char *name)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return -1;
    char line[256];
    int64_t bytes = -1;
    size_t length = strlen(name);
    while (bytes < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == ':')
            bytes = strtoll(line + length + 1, NULL, 10) * (strstr(line, "kB") ? 1024 : 1);
    fclose(file);
    return bytes;
}

static const char *format_bytes(int64_t bytes, char *out, size_t size)
{
    if (bytes < 0)
        snprintf(out, size, "unknown");
    else if (bytes < (int64_t)1 << 30)
        snprintf(out, size, "%.0f MiB", (double)bytes / (1 << 20));
    else
        snprintf(out, size, "%.1f GiB", (double)bytes / (1 << 30));
    return out;
}

/* The folder of this process's control group (version 2), below /sys/fs/cgroup; false if there is none. */
static bool cgroup_folder(char *out, size_t size)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return false;
    char line[2048];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::", 3))
            continue;
        line[strcspn(line, "\n")] = '\0';
        found = snprintf(out, size, "/sys/fs/cgroup%s", line + 3) < (int)size;
    }
    fclose(file);
    return found;
}

/* The smallest limit that `name` (memory.max, cpu.max) sets from this group up to the root: value and, for cpu.max,
 * quota / period; < 0: no limit. */
static double cgroup_limit(const char *name)
{
    char folder[4096], path[4200], text[128];
    double smallest = -1;
    if (!cgroup_folder(folder, sizeof folder))
        return -1;
    while (strlen(folder) >= strlen("/sys/fs/cgroup")) {
        double value, period = 1;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (read_line(path, text, sizeof text) && sscanf(text, "%lf %lf", &value, &period) >= 1 && period > 0)
            smallest = smallest < 0 || value / period < smallest ? value / period : smallest;
        char *slash = strrchr(folder, '/');
        *slash = '\0';
    }
    return smallest;
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
    void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (handle)
        dlclose(handle);
    return handle != NULL;
}

/* --- chapters ----------------------------------------------------------------------------------------------------- */

static void report_cpu(void)
{
    struct cpu_features features;
    cpu_features_detect(&features);
    puts("cpu");
    print_line("model", "%s", features.name);
    print_line("instruction sets", "%s%s%s", cpu_isa_name(features.isa), features.avx512_bf16 ? ", avx512_bf16" : "",
               features.amx_bf16 ? ", amx_bf16" : "");
    cpu_set_t allowed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        print_line("cores", "%d of %ld may be used", CPU_COUNT(&allowed), online);
    else
        print_line("cores", "%ld", online);
    double quota = cgroup_limit("cpu.max");
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
    const char *onednn = libraries_path("libdnnl", path, sizeof path);
    if (onednn)
        print_line("oneDNN", "in use: %s", onednn);
    else if (library_opens("libdnnl.so.2") || library_opens("libdnnl.so.3"))
        print_line("oneDNN", "installed; ztrain's own matrix products are as fast on this CPU");
    else
        print_line("oneDNN",
                   "not installed; hint: scripts/install-deps.sh installs it (CPUs with AMX need it for bf16)");
    device_close(device);
}

static void report_memory(void)
{
    char total[32], available[32], text[256];
    puts("memory");
    print_line("total", "%s", format_bytes(meminfo("MemTotal"), total, sizeof total));
    print_line("available", "%s", format_bytes(meminfo("MemAvailable"), available, sizeof available));
    double limit = cgroup_limit("memory.max");
    print_line("limit", "%s",
               limit > 0 ? format_bytes((int64_t)limit, text, sizeof text) : "none set by the control group");
    bool known = read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    print_line("huge pages", "transparent: %s; reserved: %" PRId64, known ? text : "unknown",
               meminfo("HugePages_Total"));
}

static void report_libraries(void)
{
    puts("libraries");
    libraries_print(stdout, "  ", true);
}

static void report_slurm(void)
{
    char path[4096];
    const char *job = getenv("SLURM_JOB_ID");
    puts("slurm");
    print_line("srun", "%s", find_program("srun", path, sizeof path) ? path : "not found");
    print_line("PMI-2", "%s", library_opens("libpmi2.so.0") ? "libpmi2.so.0" : "libpmi2.so.0 not found");
    print_line("job", "%s", job ? job : "none: not inside a Slurm job");
}

static int count_gpus(void)
{
    DIR *folder = opendir("/dev");
    if (!folder)
        return 0;
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += !strncmp(entry->d_name, "nvidia", 6) && isdigit((unsigned char)entry->d_name[6]);
    closedir(folder);
    return count;
}

static void report_gpu(void)
{
    char text[512], why[256] = "";
    puts("gpu");
    print_line("driver", "%s", read_line("/proc/driver/nvidia/version", text, sizeof text) ? text : "no NVIDIA driver");
    print_line("gpus", "%d", count_gpus());
    print_line("libcuda", "%s", library_opens("libcuda.so.1") ? "libcuda.so.1" : "libcuda.so.1 not found");
    if (device_cuda_available(why))
        print_line("device: auto", "takes cuda");
    else
        print_line("device: auto", "takes cpu (%s)", why);
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
    printf("ztrain %s on %s\n", ZTRAIN_VERSION, host);
    report_cpu();
    report_memory();
    report_libraries();
    report_slurm();
    report_gpu();
    return STATUS_OK;
}
