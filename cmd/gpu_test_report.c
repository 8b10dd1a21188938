#include "cmd/gpu_test_report.h"

#include "cmd/doctor_line.h"
#include "cmd/engine/gpu_test.h"
#include "core/clock.h"
#include "gpu/device_avoid.h"
#include "gpu/open/device_open.h"

#include <stdio.h>
#include <string.h>

static void print_check(void *context, const char *check, const char *differs)
{
    (void)context;
    printf("  %-24s %s%s\n", check, *differs ? "WRONG: " : "right", differs);
}

/* Lists the parts that a run does without. They do not end a run, but the test has found a fault. */
static enum status report_avoided(const struct device *device, unsigned avoid, struct error *err)
{
    char names[256] = "";
    for (unsigned part = 1; part <= DEVICE_PARTS_LAST; part <<= 1) {
        if (!(avoid & part))
            continue;
        doctor_line("runs do without", "%s", device_part_name(part));
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? " and " : "", device_part_name(part));
    }
    if (!avoid)
        return STATUS_OK;
    error_set(err, STATUS_DEVICE, "the self-test of %s found wrong results with %s, which runs do without",
              device->name, names);
    return error_hint(err, "the GPU, its driver or a library is faulty: runs are right, but slower");
}

static enum status test_and_print(struct device *device, struct error *err)
{
    unsigned avoid;
    const double start = seconds_now();
    doctor_line("gpu", "%s; %s", device->name, device->detail);
    TRY(gpu_test_run(device, print_check, NULL, &avoid, err));
    const enum status status = report_avoided(device, avoid, err);
    doctor_line("time", "%.1f s", seconds_now() - start);
    doctor_line("at each start", "runs check the collectives of several GPUs, and cuDNN's attention for their shapes");
    return status;
}

enum status gpu_test_report(struct error *err)
{
    struct device *device;
    char why[256];
    if (!device_cuda_available(why)) {
        error_set(err, STATUS_DEVICE, "doctor --gpu-test: there is no GPU to test: %s", why);
        return error_hint(err, "`ztrain doctor` shows what this machine has");
    }
    puts("gpu test");
    TRY(device_open(DEVICE_CUDA, 0, 0, &device, err));
    enum status status = test_and_print(device, err);
    device_close(device);
    return status;
}
