/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_fault.c: whose fault it is that work on this rank's GPU has failed: wrong kernels cause illegal addresses and
 * failed launches, and so do broken GPUs. The GPU is broken (STATUS_BROKEN: scripts leave out the node) only if NVML
 * has reported an Xid of the hardware or an ECC error since the start, or a self-test in a new process fails. Else it
 * is a fault of software: STATUS_PEER and FAILURE_SOFTWARE. */
#include "cmd/engine/engine.h"
#include "gpu/cuda/nvml.h"

enum { TEST_SECONDS = 60 }; /* the self-test takes two, and the driver some more to start */

/* The verdict is found once, by the first thread that asks; others wait for it. */
static struct {
    pthread_mutex_t mutex;
    int index;        /* of the GPU */
    enum status code; /* STATUS_OK: not found yet */
    char text[800];
} fault = {.mutex = PTHREAD_MUTEX_INITIALIZER};

enum gpu_fault_test { GPU_TEST_RIGHT, GPU_TEST_WRONG, GPU_TEST_UNKNOWN };

/* Runs `PROGRAM doctor --gpu-test --gpu INDEX`. Wrong: an op is, it faults, or it takes too long; unknown: it could not
 * run. A failure that runs avoid is no evidence: this run avoided it. said = ": " and the test's error. */
static enum gpu_fault_test gpu_fault_test(const char *program, int index, int seconds, char *said, size_t size)
{
    static const char before[] = "error: ";
    const double start = seconds_now();
    char command[512], line[1024];
    snprintf(command, sizeof command, "exec timeout -s KILL %d %.400s doctor --gpu-test --gpu %d 2>&1 </dev/null",
             seconds, program, index);
    FILE *output = popen(command, "re");
    *said = '\0';
    while (output && fgets(line, sizeof line, output)) {
        const char *at = strstr(line, before);
        if (at) snprintf(said, size, ": %.*s", (int)strcspn(at + strlen(before), "\n;"), at + strlen(before));
    }
    const int status = output ? pclose(output) : -1;
    if (status == 0 || strstr(said, "which runs do without")) return GPU_TEST_RIGHT;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const bool late = seconds_now() - start >= seconds;
    if (late || !*said)
        snprintf(said, size, late ? ": it does not end within %d s" : ": exit code %d", late ? seconds : code);
    return late || code == STATUS_PEER || code == STATUS_BROKEN || strstr(said, ": the self-test of ")
               ? GPU_TEST_WRONG
               : GPU_TEST_UNKNOWN;
}

static void judge_gpu(void)
{
    char program[64], said[300] = "";
    snprintf(program, sizeof program, "/proc/%d/exe", (int)getpid());
    const enum nvml_finding nvml = nvml_watch_look(said, sizeof said);
    const enum gpu_fault_test test =
        nvml == NVML_FAULT ? GPU_TEST_WRONG : gpu_fault_test(program, fault.index, TEST_SECONDS, said, sizeof said);
    fault.code = test == GPU_TEST_WRONG ? STATUS_BROKEN : STATUS_PEER;
    if (test == GPU_TEST_WRONG)
        snprintf(fault.text, sizeof fault.text,
                 "the GPU is broken: %s%s; hint: dmesg has what the driver says of this GPU",
                 nvml == NVML_FAULT ? "NVML reports " : "its self-test in a new process fails", said);
    else
        snprintf(fault.text, sizeof fault.text,
                 "a fault of software, not of this node: NVML reports %s, and a self-test in a new process %s%s; hint: "
                 "resume, and report this message with the run spec; CUDA_LAUNCH_BLOCKING=1 makes it name the call",
                 nvml == NVML_SOUND ? "no Xid of the hardware and no ECC error" : "nothing of this GPU",
                 test == GPU_TEST_RIGHT ? "passes" : "could not run", said);
}

/* The verdict takes the place of the error's hint. */
static void gpu_fault_examine(struct device *device, struct error *err)
{
    (void)device;
    SLOW("examining the GPU", NULL, -1);
    LOCKED(&fault.mutex);
    if (fault.code == STATUS_OK) {
        log_warn(
            "work on the GPU has failed: NVML is asked for the cause, then a self-test of the GPU in a new process");
        judge_gpu();
    }
    char *hint = strstr(err->text, "; hint: "), *end = hint ? hint : err->text + strlen(err->text);
    snprintf(end, sizeof err->text - (size_t)(end - err->text), ": %s", fault.text);
    err->code = fault.code;
    if (fault.code == STATUS_PEER) err->failure = FAILURE_SOFTWARE;
}

void gpu_fault_watch(struct device *device, int index)
{
    SLOW("starting NVML", NULL, -1);
    nvml_watch_start(NULL, device->id);
    fault.index = index;
    device->examine = gpu_fault_examine;
}

void gpu_fault_unwatch(struct device *device)
{
    if (device && device->examine == gpu_fault_examine) nvml_watch_stop();
}
