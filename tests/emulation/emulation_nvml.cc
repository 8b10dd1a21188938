/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_nvml.cc: the functions of NVML that ztrain calls (gpu/cuda/nvml.c), for a machine with one GPU.
 *
 * ZTRAIN_EMULATION_NVML: the library is there only if this is set. "throttle=4" gives the reasons for lower clocks (a
 * decimal bit mask), with "until=2" to the first two that ask, with "from=2" to all but the first two; "others=2"
 * processes that compute on the GPU in addition to this one; "xid=79": this event, to those who have registered for
 * events, once; "ecc=2": uncorrectable errors, from the second question on; "lost=1": the GPU is lost from then on;
 * "events=none": NVML has no events. */
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
struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { EVENT_XID = 8, UNCORRECTED = 1, VOLATILE = 0 };
std::atomic<unsigned long long> registered; /* types of events */

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
int nvmlEventSetCreate(void **set);
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);
int nvmlEventSetWait_v2(void *set, event_data *data, unsigned milliseconds);
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count);

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

int nvmlEventSetCreate(void **set)
{
    *set = &registered;
    return OK;
}

int nvmlDeviceRegisterEvents(void *, unsigned long long types, void *set)
{
    const char *text = getenv("ZTRAIN_EMULATION_NVML");
    if (text && strstr(text, "events=none"))
        return NOT_SUPPORTED;
    registered = types;
    return set == &registered ? OK : NOT_FOUND;
}

int nvmlEventSetWait_v2(void *set, event_data *data, unsigned milliseconds)
{
    static std::atomic<bool> told;
    const unsigned long long xid = setting("xid=");
    if (set != &registered)
        return NOT_FOUND;
    if (!xid || registered != EVENT_XID || told.exchange(true)) {
        usleep(milliseconds * 1000);
        return TIMEOUT;
    }
    *data = {nullptr, EVENT_XID, xid, ~0u, ~0u};
    return OK;
}

int nvmlDeviceGetTotalEccErrors(void *, int type, int counter, unsigned long long *count)
{
    static std::atomic<bool> asked;
    const bool before = asked.exchange(true);
    if (type != UNCORRECTED || counter != VOLATILE)
        return NOT_SUPPORTED;
    if (before && setting("lost="))
        return GPU_IS_LOST;
    *count = 3 + (before ? setting("ecc=") : 0);
    return OK;
}
}
