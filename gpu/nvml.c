/* nvml.c: looks up NVML's functions by name. Many toolkits come without its header, so the few types are declared here;
 * the library's interface does not change between versions. */
#include "gpu/nvml.h"

#include "core/memory.h"
#include "core/status.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef void *nvml_device;
struct nvml_memory {
    unsigned long long total, free, used;
};
enum { NVML_OK = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_TEMPERATURE_GPU = 0 };

/* member of struct nvml, symbol, parameters; all functions return an error code */
#define NVML_FUNCTIONS(X)                                                        \
    X(init, "nvmlInit_v2", (void))                                               \
    X(shutdown, "nvmlShutdown", (void))                                          \
    X(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned))          \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *))                              \
    X(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_device *))        \
    X(name, "nvmlDeviceGetName", (nvml_device, char *, unsigned))                \
    X(memory, "nvmlDeviceGetMemoryInfo", (nvml_device, struct nvml_memory *))    \
    X(clock, "nvmlDeviceGetClockInfo", (nvml_device, int, unsigned *))           \
    X(max_clock, "nvmlDeviceGetMaxClockInfo", (nvml_device, int, unsigned *))    \
    X(temperature, "nvmlDeviceGetTemperature", (nvml_device, int, unsigned *))   \
    X(power, "nvmlDeviceGetPowerUsage", (nvml_device, unsigned *))               \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (nvml_device, unsigned *)) \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device, unsigned long long *))

struct nvml {
#define NVML_MEMBER(member, symbol, parameters) int(*member) parameters;
    NVML_FUNCTIONS(NVML_MEMBER)
};

static bool bind(void *library, struct nvml *nvml, char *why)
{
    void *found;
#define NVML_BIND(member, symbol, parameters)                        \
    if (!(found = dlsym(library, symbol))) {                         \
        snprintf(why, 256, "the NVML of this driver lacks " symbol); \
        return false;                                                \
    }                                                                \
    memcpy(&nvml->member, &found, sizeof found);
    NVML_FUNCTIONS(NVML_BIND)
    return true;
}

static void read_gpu(const struct nvml *nvml, nvml_device device, struct nvml_gpu *gpu)
{
    struct nvml_memory memory;
    unsigned long long throttle;
    *gpu = (struct nvml_gpu){0};
    if (nvml->name(device, gpu->name, sizeof gpu->name) != NVML_OK)
        snprintf(gpu->name, sizeof gpu->name, "unknown");
    if (nvml->memory(device, &memory) == NVML_OK) {
        gpu->memory_total = memory.total;
        gpu->memory_free = memory.free;
    }
    if (nvml->throttle(device, &throttle) == NVML_OK)
        gpu->throttle = throttle;
    struct {
        int code;
        unsigned *value;
    } numbers[] = {
        {nvml->clock(device, NVML_CLOCK_SM, &gpu->sm_mhz), &gpu->sm_mhz},
        {nvml->max_clock(device, NVML_CLOCK_SM, &gpu->sm_max_mhz), &gpu->sm_max_mhz},
        {nvml->clock(device, NVML_CLOCK_MEMORY, &gpu->memory_mhz), &gpu->memory_mhz},
        {nvml->temperature(device, NVML_TEMPERATURE_GPU, &gpu->celsius), &gpu->celsius},
        {nvml->power(device, &gpu->milliwatts), &gpu->milliwatts},
        {nvml->power_limit(device, &gpu->limit_milliwatts), &gpu->limit_milliwatts},
    };
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (numbers[i].code != NVML_OK)
            *numbers[i].value = 0;
}

int nvml_read(const char *file, struct nvml_gpu *gpus, int max, char *driver, size_t driver_size, char *why)
{
    struct nvml nvml;
    unsigned count = 0;
    nvml_device device;
    int code, result = -1;
    if (driver_size)
        driver[0] = '\0';
    const char *reason;
    void *library = memory_dlopen(file ? file : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL, &reason);
    if (!library) {
        snprintf(why, 256, "%.255s", reason);
        return -1;
    }
    if (!bind(library, &nvml, why))
        goto close;
    if ((code = nvml.init()) != NVML_OK) {
        snprintf(why, 256, "NVML does not start: error %d", code);
        goto close;
    }
    if (nvml.driver_version(driver, (unsigned)driver_size) != NVML_OK && driver_size)
        driver[0] = '\0';
    if ((code = nvml.count(&count)) != NVML_OK) {
        snprintf(why, 256, "NVML does not count the GPUs: error %d", code);
        goto shutdown;
    }
    for (int i = 0; i < (int)count && i < max; i++) {
        gpus[i] = (struct nvml_gpu){.name = "not accessible"};
        if (nvml.handle((unsigned)i, &device) == NVML_OK)
            read_gpu(&nvml, device, &gpus[i]);
    }
    result = (int)count;
shutdown:
    nvml.shutdown();
close:
    dlclose(library);
    return result;
}

const char *nvml_throttle_text(uint64_t throttle, char *text, size_t size)
{
    /* harmless, so not listed: idle (bit 0), clocks set by the user (1), a group's common clock (4), displays (8) */
    static const struct {
        uint64_t bit;
        const char *text;
    } reasons[] = {
        {1 << 2, "power cap"},      {1 << 3, "hardware slowdown"}, {1 << 5, "hot (driver)"},
        {1 << 6, "hot (hardware)"}, {1 << 7, "power brake"},
    };
    size_t length = 0;
    snprintf(text, size, "no");
    for (size_t i = 0; i < COUNT_OF(reasons) && length < size; i++)
        if (throttle & reasons[i].bit)
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "", reasons[i].text);
    return text;
}
