/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c: /proc/self/cgroup has one line for each hierarchy, "ID:CONTROLLERS:/PATH"; version 2 has no controllers in
 * it. The files of the group at PATH, and of each group above it, are looked for below the mount point:
 *
 *                  version 2           version 1
 *     mount        /sys/fs/cgroup      /sys/fs/cgroup/memory                     /sys/fs/cgroup/cpu
 *     memory       memory.max          memory.limit_in_bytes
 *                  memory.current      memory.usage_in_bytes
 *                  memory.stat         memory.stat
 *                  memory.events       memory.oom_control
 *     CPU time     cpu.max                                                       cpu.cfs_quota_us, cpu.cfs_period_us
 *
 * A container may see the host's PATH with its own group mounted as the root: absent groups are passed over. */
#include "core/machine.h"

#include "core/memory.h"

#include <sys/resource.h>

enum status machine_check_proc(struct error *err)
{
    static const char self[] = "/proc/self/exe";
    if (access(self, F_OK) == 0) return STATUS_OK;
    error_system(err, STATUS_DEVICE, errno, "/proc is not mounted: cannot find '%s'", self);
    return error_hint(err, "mount -t proc proc /proc");
}

/* Field 22 of proc(5)'s stat is the start; the first two are skipped with the name, which may hold anything. */
#define SKIP_6 " %*s %*s %*s %*s %*s %*s"

char machine_process(int64_t pid, int64_t *began)
{
    char path[64], text[1024], state;
    long long start;
    *began = 0;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 'X' : '?';
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *rest = strrchr(text, ')');
    if (!rest || sscanf(rest + 1, " %c" SKIP_6 SKIP_6 SKIP_6 " %lld", &state, &start) != 2)
        return 'X'; /* it went meanwhile */
    *began = start;
    return state == 'Z' || state == 'x' ? 'X' : state == 't' ? 'T' : state;
}

enum { GROUP_PATH_MAX = 4096, FILE_PATH_MAX = GROUP_PATH_MAX + 256 };

/* Version 1 writes "no limit" as a little less than 2^63 (memory) or as -1 (CPU time). */
static const uint64_t NO_LIMIT = UINT64_C(1) << 62;

/* The number after `key` in the first line of a file that begins with it. */
static bool machine_read_number(const char *path, const char *key, uint64_t *value)
{
    OWNED_FILE *file = memory_fopen(path, "re");
    const size_t key_length = strlen(key);
    char line[256];
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, key_length) == 0 && sscanf(line + key_length, "%" SCNu64, value) == 1) return true;
    return false;
}

static bool cgroup_read_number(const char *folder, const char *file, const char *key, uint64_t *value)
{
    char path[FILE_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return machine_read_number(path, key, value);
}

/* ---- the control groups of this process ---------------------------------- */

typedef void (*group_visitor)(const char *folder, bool v2, void *context);

static bool cgroup_has_controller(const char *controllers, const char *wanted)
{
    size_t length = strlen(wanted);
    for (const char *at = controllers; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && strncmp(at, wanted, length) == 0) return true;
    return false;
}

/* Calls visit() for the process's group of version 2, for that of `controller` in version 1, and for all above them. */
static void cgroup_visit(const char *root, const char *controller, group_visitor visit, void *context)
{
    char path[FILE_PATH_MAX], line[GROUP_PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    OWNED_FILE *file = memory_fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        controllers++;
        bool v2 = !*controllers;
        if (!v2 && !cgroup_has_controller(controllers, controller)) continue;
        for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
            *end = '\0';
            snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s%s", root, v2 ? "" : "/", v2 ? "" : controller, group);
            visit(path, v2, context);
        }
    }
}

/* ---- memory -------------------------------------------------------------- */

static void cgroup_visit_memory(const char *folder, bool v2, void *context)
{
    struct machine_memory *memory = context;
    uint64_t limit, usage, inactive = 0;
    if (!cgroup_read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", "", &limit) || limit >= NO_LIMIT)
        return;
    memory->limit = limit < memory->limit ? limit : memory->limit;
    if (!cgroup_read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", "", &usage)) return;
    cgroup_read_number(folder, "memory.stat", v2 ? "inactive_file " : "total_inactive_file ", &inactive);
    usage -= inactive < usage ? inactive : usage;
    uint64_t left = limit > usage ? limit - usage : 0;
    memory->available = left < memory->available ? left : memory->available;
}

static uint64_t machine_meminfo(const char *root, const char *key, uint64_t unit)
{
    char path[FILE_PATH_MAX];
    uint64_t value;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    return machine_read_number(path, key, &value) ? value * unit : UINT64_MAX;
}

void machine_memory(const char *root, struct machine_memory *memory)
{
    *memory = (struct machine_memory){.total = machine_meminfo(root, "MemTotal:", 1024),
                                      .available = machine_meminfo(root, "MemAvailable:", 1024),
                                      .limit = UINT64_MAX,
                                      .swap = machine_meminfo(root, "SwapTotal:", 1024),
                                      .huge_page_count = machine_meminfo(root, "HugePages_Total:", 1)};
    cgroup_visit(root, "memory", cgroup_visit_memory, memory);
}

/* Takes the count of the first group that has one, which is the process's own. */
static void cgroup_visit_kills(const char *folder, bool v2, void *context)
{
    uint64_t *kills = context;
    if (*kills == UINT64_MAX)
        cgroup_read_number(folder, v2 ? "memory.events" : "memory.oom_control", "oom_kill ", kills);
}

uint64_t machine_memory_kills(const char *root)
{
    uint64_t kills = UINT64_MAX;
    cgroup_visit(root, "memory", cgroup_visit_kills, &kills);
    return kills == UINT64_MAX ? 0 : kills;
}

/* What is left of a limit of this process. key: of /proc/self/status, what counts towards it, in KiB. */
static uint64_t machine_limit_room(const struct rlimit *limit, const char *key)
{
    uint64_t used;
    if (limit->rlim_cur == RLIM_INFINITY || !machine_read_number("/proc/self/status", key, &used)) return UINT64_MAX;
    used *= 1024;
    return limit->rlim_cur > used ? limit->rlim_cur - used : 0;
}

uint64_t machine_process_room(void)
{
    struct rlimit limit;
    const uint64_t mapped = getrlimit(RLIMIT_AS, &limit) == 0 ? machine_limit_room(&limit, "VmSize:") : UINT64_MAX,
                   data = getrlimit(RLIMIT_DATA, &limit) == 0 ? machine_limit_room(&limit, "VmData:") : UINT64_MAX;
    return mapped < data ? mapped : data;
}

int64_t machine_resident_bytes(void)
{
    long long total, resident;
    OWNED_FILE *file = memory_fopen("/proc/self/statm", "re");
    int n = file ? fscanf(file, "%lld %lld", &total, &resident) : 0;
    return n == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

/* ---- CPUs ---------------------------------------------------------------- */

int machine_cores_online(void)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int machine_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return machine_cores_online(); /* more cores than a cpu_set_t holds */
}

bool machine_device_cores(const char *root, const char *device, cpu_set_t *cores)
{
    char path[FILE_PATH_MAX + 64];
    int first, last;
    CPU_ZERO(cores);
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/local_cpulist", root, device);
    OWNED_FILE *file = memory_fopen(path, "re");
    while (file && fscanf(file, "%d", &first) == 1) { /* "0-27,56-83" */
        if (fscanf(file, "-%d", &last) != 1) last = first;
        for (int cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, cores);
        fgetc(file);
    }
    return CPU_COUNT(cores) > 0;
}

void machine_bind(const cpu_set_t *cores)
{
    DIR *threads = opendir("/proc/self/task");
    for (const struct dirent *entry; threads && (entry = readdir(threads));)
        if (entry->d_name[0] != '.') sched_setaffinity((pid_t)atoi(entry->d_name), sizeof *cores, cores);
    if (threads) closedir(threads);
}

/* 0: no quota so far. */
static void cgroup_visit_quota(const char *folder, bool v2, void *context)
{
    double *least = context, quota, period;
    uint64_t micros, period_micros;
    if (v2) {
        char path[FILE_PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        OWNED_FILE *file = memory_fopen(path, "re");
        if (!file || fscanf(file, "%lf %lf", &quota, &period) != 2) return; /* "max PERIOD" */
    } else {
        if (!cgroup_read_number(folder, "cpu.cfs_quota_us", "", &micros) || micros >= NO_LIMIT ||
            !cgroup_read_number(folder, "cpu.cfs_period_us", "", &period_micros))
            return;
        quota = (double)micros;
        period = (double)period_micros;
    }
    if (quota > 0 && period > 0 && (*least == 0 || quota / period < *least)) *least = quota / period;
}

double machine_cpu_quota(const char *root)
{
    double least = 0;
    cgroup_visit(root, "cpu", cgroup_visit_quota, &least);
    return least;
}
