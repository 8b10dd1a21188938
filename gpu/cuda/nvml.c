/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.c: looks up NVML's functions by name. Many toolkits come without its header, so the few types are declared here;
 * the library's interface does not change between versions. */
#include "gpu/cuda/nvml.h"

#include "core/memory.h"

#include <dlfcn.h>

typedef void *nvml_device;
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_process_info {
    unsigned pid;
    unsigned long long used; /* all bits set: not known */
    unsigned gpu_instance, compute_instance;
};
struct nvml_event {
    nvml_device device;
    unsigned long long type, data; /* data: the Xid */
    unsigned gpu_instance, compute_instance;
};
enum { NVML_GPU_IS_LOST = 15, NVML_EVENT_XID = 8, NVML_UNCORRECTED = 1, NVML_SINCE_DRIVER = 0 };
enum { NVML_OK = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_TEMPERATURE_GPU = 0 };

/* member of struct nvml, whether every driver has it (else NULL), symbol, parameters; all return an error code */
#define NVML_FUNCTIONS(X)                                                                               \
    X(init, true, "nvmlInit_v2", (void))                                                                \
    X(shutdown, true, "nvmlShutdown", (void))                                                           \
    X(driver_version, true, "nvmlSystemGetDriverVersion", (char *, unsigned))                           \
    X(count, true, "nvmlDeviceGetCount_v2", (unsigned *))                                               \
    X(handle, true, "nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_device *))                         \
    X(name, true, "nvmlDeviceGetName", (nvml_device, char *, unsigned))                                 \
    X(memory, true, "nvmlDeviceGetMemoryInfo", (nvml_device, struct nvml_memory *))                     \
    X(clock, true, "nvmlDeviceGetClockInfo", (nvml_device, int, unsigned *))                            \
    X(max_clock, true, "nvmlDeviceGetMaxClockInfo", (nvml_device, int, unsigned *))                     \
    X(temperature, true, "nvmlDeviceGetTemperature", (nvml_device, int, unsigned *))                    \
    X(power, true, "nvmlDeviceGetPowerUsage", (nvml_device, unsigned *))                                \
    X(power_limit, true, "nvmlDeviceGetEnforcedPowerLimit", (nvml_device, unsigned *))                  \
    X(throttle, true, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device, unsigned long long *)) \
    X(find, false, "nvmlDeviceGetHandleByUUID", (const char *, nvml_device *))                          \
    X(process_name, false, "nvmlSystemGetProcessName", (unsigned, char *, unsigned))                    \
    X(processes, false, "nvmlDeviceGetComputeRunningProcesses_v3",                                      \
      (nvml_device, unsigned *, struct nvml_process_info *))                                            \
    X(new_events, false, "nvmlEventSetCreate", (void **))                                               \
    X(register_events, false, "nvmlDeviceRegisterEvents", (nvml_device, unsigned long long, void *))    \
    X(wait_event, false, "nvmlEventSetWait_v2", (void *, struct nvml_event *, unsigned))                \
    X(ecc_errors, false, "nvmlDeviceGetTotalEccErrors", (nvml_device, int, int, unsigned long long *))

struct nvml {
#define NVML_MEMBER(member, needed, symbol, parameters) int(*member) parameters;
    NVML_FUNCTIONS(NVML_MEMBER)
};

static bool bind(void *library, struct nvml *nvml, char *why)
{
#define NVML_ROW(member, needed, symbol, parameters) {offsetof(struct nvml, member), needed, symbol},
    static const struct {
        size_t place;
        bool needed;
        const char *symbol;
    } functions[] = {NVML_FUNCTIONS(NVML_ROW)};
    for (size_t i = 0; i < COUNT_OF(functions); i++) {
        void *found = dlsym(library, functions[i].symbol);
        memcpy((char *)nvml + functions[i].place, &found, sizeof found);
        if (!found && functions[i].needed) {
            snprintf(why, 256, "the NVML of this driver lacks %s", functions[i].symbol);
            return false;
        }
    }
    return true;
}

static void read_gpu(const struct nvml *nvml, nvml_device device, struct nvml_gpu *gpu)
{
    struct nvml_memory memory;
    unsigned long long throttle;
    *gpu = (struct nvml_gpu){0};
    if (nvml->name(device, gpu->name, sizeof gpu->name) != NVML_OK) snprintf(gpu->name, sizeof gpu->name, "unknown");
    if (nvml->memory(device, &memory) == NVML_OK) {
        gpu->memory_total = memory.total;
        gpu->memory_free = memory.free;
    }
    if (nvml->throttle(device, &throttle) == NVML_OK) gpu->throttle = throttle;
    struct {
        int code;
        unsigned *value;
    } numbers[] = {{nvml->clock(device, NVML_CLOCK_SM, &gpu->sm_mhz), &gpu->sm_mhz},
                   {nvml->max_clock(device, NVML_CLOCK_SM, &gpu->sm_max_mhz), &gpu->sm_max_mhz},
                   {nvml->clock(device, NVML_CLOCK_MEMORY, &gpu->memory_mhz), &gpu->memory_mhz},
                   {nvml->temperature(device, NVML_TEMPERATURE_GPU, &gpu->celsius), &gpu->celsius},
                   {nvml->power(device, &gpu->milliwatts), &gpu->milliwatts},
                   {nvml->power_limit(device, &gpu->limit_milliwatts), &gpu->limit_milliwatts}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (numbers[i].code != NVML_OK) *numbers[i].value = 0;
}

/* Opens the library and starts it; NULL: `why` (at least 256 bytes) has the reason. nvml_stop() ends what it began. */
static void *nvml_start(const char *file, struct nvml *nvml, char *why)
{
    int code;
    const char *reason;
    void *library = memory_dlopen(file ? file : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL, &reason);
    if (!library) {
        snprintf(why, 256, "%.255s", reason);
        return NULL;
    }
    if (bind(library, nvml, why)) {
        if ((code = nvml->init()) == NVML_OK) return library;
        snprintf(why, 256, "NVML does not start: error %d", code);
    }
    dlclose(library);
    return NULL;
}

static void nvml_stop(const struct nvml *nvml, void *library)
{
    nvml->shutdown();
    dlclose(library);
}

int nvml_read(const char *file, struct nvml_gpu *gpus, int max, char *driver, size_t driver_size, char *why)
{
    struct nvml nvml;
    unsigned count = 0;
    nvml_device device;
    if (driver_size) driver[0] = '\0';
    void *library = nvml_start(file, &nvml, why);
    if (!library) return -1;
    if (nvml.driver_version(driver, (unsigned)driver_size) != NVML_OK && driver_size) driver[0] = '\0';
    const int code = nvml.count(&count);
    if (code != NVML_OK) snprintf(why, 256, "NVML does not count the GPUs: error %d", code);
    for (int i = 0; code == NVML_OK && i < (int)count && i < max; i++) {
        gpus[i] = (struct nvml_gpu){.name = "not accessible"};
        if (nvml.handle((unsigned)i, &device) == NVML_OK) read_gpu(&nvml, device, &gpus[i]);
    }
    nvml_stop(&nvml, library);
    return code == NVML_OK ? (int)count : -1;
}

/* ---- one GPU ------------------------------------------------------------- */

/* nvml_start() for the GPU whose UUID has these 32 hexadecimal digits: NVML writes it as GPU-8-4-4-4-12 of them. NULL:
 * also if there is none. */
static void *nvml_start_for(const char *file, const char *id, struct nvml *nvml, nvml_device *device)
{
    char uuid[64], why[256];
    void *library = strlen(id) == 32 ? nvml_start(file, nvml, why) : NULL;
    if (!library) return NULL;
    snprintf(uuid, sizeof uuid, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", id, id + 8, id + 12, id + 16, id + 20);
    if (nvml->find && nvml->find(uuid, device) == NVML_OK) return library;
    nvml_stop(nvml, library);
    return NULL;
}

static void describe_process(const struct nvml *nvml, const struct nvml_process_info *info, struct nvml_process *out)
{
    char path[512] = "";
    *out = (struct nvml_process){.pid = info->pid, .bytes = info->used == ~0ull ? 0 : info->used};
    if (!nvml->process_name || nvml->process_name(info->pid, path, sizeof path) != NVML_OK) return;
    path[sizeof path - 1] = '\0';
    path[strcspn(path, " ")] = '\0'; /* arguments */
    const char *slash = strrchr(path, '/');
    snprintf(out->name, sizeof out->name, "%.63s", slash ? slash + 1 : path);
}

int nvml_processes(const char *file, const char *id, struct nvml_process *processes, int max)
{
    enum { MOST = 64 };
    struct nvml_process_info infos[MOST];
    struct nvml nvml;
    nvml_device device;
    unsigned count = MOST;
    int others = -1;
    void *library = nvml_start_for(file, id, &nvml, &device);
    if (!library) return -1;
    if (nvml.processes && nvml.processes(device, &count, infos) == NVML_OK) {
        others = 0;
        for (unsigned i = 0; i < count && i < MOST; i++) {
            if (infos[i].pid == (unsigned)getpid()) continue;
            if (others < max) describe_process(&nvml, &infos[i], &processes[others]);
            others++;
        }
    }
    nvml_stop(&nvml, library);
    return others;
}

uint64_t nvml_throttle_faults(const char *file, const char *id)
{
    struct nvml nvml;
    nvml_device device;
    unsigned long long reasons = 0;
    void *library = nvml_start_for(file, id, &nvml, &device);
    if (!library) return 0;
    if (nvml.throttle(device, &reasons) != NVML_OK) reasons = 0;
    nvml_stop(&nvml, library);
    return reasons & NVML_THROTTLE_FAULTS;
}

/* ---- faults -------------------------------------------------------------- */

static struct {
    struct nvml nvml;
    void *library; /* NULL: nothing is watched */
    nvml_device device;
    void *events;                 /* NULL: there are none; NVML's end frees them */
    unsigned long long ecc_start; /* uncorrectable errors before */
} watched;

void nvml_watch_start(const char *file, const char *id)
{
    const struct nvml *nvml = &watched.nvml;
    watched.library = nvml_start_for(file, id, &watched.nvml, &watched.device);
    watched.ecc_start = 0;
    if (!watched.library || !nvml->wait_event || !nvml->ecc_errors) {
        nvml_watch_stop();
        return;
    }
    if (nvml->new_events(&watched.events) != NVML_OK ||
        nvml->register_events(watched.device, NVML_EVENT_XID, watched.events) != NVML_OK)
        watched.events = NULL;
    nvml->ecc_errors(watched.device, NVML_UNCORRECTED, NVML_SINCE_DRIVER, &watched.ecc_start);
}

void nvml_watch_stop(void)
{
    if (watched.library) nvml_stop(&watched.nvml, watched.library);
    watched.library = watched.events = NULL;
}

/* Whether an Xid by itself means that the GPU is broken. Programs cause these, too: exceptions of the graphics engine
 * (an illegal instruction, a misaligned address), references to memory, page faults (an illegal address; of a peer's
 * memory over NVLink: 137), channels that stop or are cleaned up after those, video, a context switch that hangs. 94
 * (an error that was contained) counts by the ECC counter, and 154 only names a way to recover. */
static bool is_xid_of_hardware(unsigned long long xid)
{
    static const unsigned char others[] = {8, 11, 13, 31, 32, 43, 45, 68, 69, 94, 109, 137, 154};
    return xid >= 256 || !memchr(others, (int)xid, sizeof others);
}

enum nvml_finding nvml_watch_look(char *text, size_t size)
{
    enum { PATIENCE_MS = 500 };
    struct nvml_event event;
    unsigned long long errors = 0;
    if (!watched.library) return NVML_UNKNOWN;
    while (watched.events && watched.nvml.wait_event(watched.events, &event, PATIENCE_MS) == NVML_OK)
        if (event.type == NVML_EVENT_XID && is_xid_of_hardware(event.data)) {
            snprintf(text, size, "Xid %llu", event.data);
            return NVML_FAULT;
        }
    const int code = watched.nvml.ecc_errors(watched.device, NVML_UNCORRECTED, NVML_SINCE_DRIVER, &errors);
    if (code == NVML_GPU_IS_LOST)
        snprintf(text, size, "that the GPU is lost");
    else if (code == NVML_OK && errors > watched.ecc_start)
        snprintf(text, size, "uncorrectable ECC errors: %llu", errors - watched.ecc_start);
    else
        return watched.events ? NVML_SOUND : NVML_UNKNOWN;
    return NVML_FAULT;
}

/* ---- words --------------------------------------------------------------- */

const char *nvml_throttle_text(uint64_t throttle, char *text, size_t size)
{
    /* harmless, so not listed: idle (bit 0), clocks set by the user (1), a group's common clock (4), displays (8) */
    static const struct {
        uint64_t bit;
        const char *text;
    } reasons[] = {
        {1 << 2, "power cap"},           {1 << 3, "hardware slowdown"},
        {1 << 5, "driver's heat limit"}, {1 << 6, "hardware's heat limit"},
        {1 << 7, "power brake"},
    };
    size_t length = 0;
    snprintf(text, size, "no");
    for (size_t i = 0; i < COUNT_OF(reasons) && length < size; i++)
        if (throttle & reasons[i].bit)
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "", reasons[i].text);
    return text;
}
