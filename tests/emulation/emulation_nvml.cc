/* emulation_nvml.cc: the functions of NVML that ztrain calls (gpu/cuda/nvml.c), for a machine with one GPU.
 *
 * ZTRAIN_EMULATION_NVML: the library is there only if this is set. "throttle=4" gives the reasons for lower clocks (a
 * decimal bit mask), with "until=2" to the first two that ask, with "from=2" to all but the first two; "others=2"
 * processes that compute on the GPU in addition to this one. */
#include <atomic>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace
{
unsigned long long setting(const char *name)
{
    const char *text = getenv("ZTRAIN_EMULATION_NVML"), *at = text ? strstr(text, name) : nullptr;
    return at ? strtoull(at + strlen(name), nullptr, 10) : 0;
}

struct memory_info {
    unsigned long long total, available, used;
};
struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
enum { OK = 0, NOT_FOUND = 6 };

int number(unsigned *value, unsigned is)
{
    *value = is;
    return OK;
}
} // namespace

extern "C" {
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlSystemGetDriverVersion(char *text, unsigned size);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetName(void *device, char *text, unsigned size);
int nvmlDeviceGetMemoryInfo(void *device, memory_info *memory);
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz);
int nvmlDeviceGetTemperature(void *device, int type, unsigned *celsius);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_info *infos);
int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size);

int nvmlInit_v2(void)
{
    return OK;
}

int nvmlShutdown(void)
{
    return OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    snprintf(text, size, "%s", "emulated");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    return number(count, 1);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = nullptr;
    return index == 0 ? OK : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = nullptr;
    return strlen(uuid) == 40 && !strncmp(uuid, "GPU-", 4) ? OK : NOT_FOUND;
}

int nvmlDeviceGetName(void *, char *text, unsigned size)
{
    snprintf(text, size, "%s", "emulated GPU");
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *, memory_info *memory)
{
    *memory = {4ull << 30, 4ull << 30, 0};
    return OK;
}

int nvmlDeviceGetClockInfo(void *, int, unsigned *mhz)
{
    return number(mhz, 1000);
}

int nvmlDeviceGetMaxClockInfo(void *, int, unsigned *mhz)
{
    return number(mhz, 1980);
}

int nvmlDeviceGetTemperature(void *, int, unsigned *celsius)
{
    return number(celsius, 40);
}

int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts)
{
    return number(milliwatts, 100000);
}

int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *milliwatts)
{
    return number(milliwatts, 700000);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *reasons)
{
    static std::atomic<unsigned long long> asked;
    const unsigned long long before = asked++, until = setting("until="), from = setting("from=");
    *reasons = (!until || before < until) && before >= from ? setting("throttle=") : 0;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *count, process_info *infos)
{
    const unsigned others = static_cast<unsigned>(setting("others="));
    if (*count < others + 1)
        return NOT_FOUND;
    infos[0] = {static_cast<unsigned>(getpid()), 1 << 20, 0, 0};
    for (unsigned i = 1; i <= others; i++)
        infos[i] = {4710 + i, i == 1 ? 3ull << 30 : ~0ull, 0, 0};
    return number(count, others + 1);
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    if (pid != 4711)
        return NOT_FOUND;
    snprintf(name, size, "%s", "/usr/bin/python3 serve.py");
    return OK;
}
}
