/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_fault.c: `ops-test fault`: an illegal address on a GPU, and what ztrain relies on after one
 * (cmd/engine/gpu_fault.c): CUDA's error, NVML's silence, and a self-test beside a process whose GPU has faulted and
 * that has most of the memory. Only a real GPU shows that; on the emulated one ZTRAIN_EMULATION_FAILS is the fault. */
#include "tests/ops/ops_test.h"

#include "gpu/cuda/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t left_free = (size_t)3 << 30; /* for the self-test */

static void print_check(struct score *score, const char *what, bool right, const char *found)
{
    printf("%s %s: %s\n", right ? "passed" : "FAILED", what, found);
    score->passed += right;
    score->failed += !right;
}

/* `ztrain doctor --gpu-test` of the folder that has this program. */
static void test_beside(struct score *score)
{
    char program[4096], command[4200], line[512], last[512] = "";
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *name = strrchr(program, '/');
    snprintf(command, sizeof command, "%.*s/ztrain doctor --gpu-test 2>&1", name ? (int)(name - program) : 0, program);
    FILE *output = popen(command, "re");
    while (output && fgets(line, sizeof line, output))
        if (strstr(line, "WRONG") || strstr(line, "error: ") || strstr(line, " time "))
            snprintf(last, sizeof last, "%.*s", (int)strcspn(line, "\n"), line);
    print_check(score, "a self-test in a new process", output && pclose(output) == 0, last);
}

void run_fault(struct harness *h, struct score *score)
{
    struct error err;
    char found[128] = "nothing";
    void *most = NULL;
    size_t available = 0;
    nvml_watch_start(NULL, h->device->id);
    device_available_bytes(h->device, &available);
    if (available > left_free && device_alloc(h->device, available - left_free, &most, &err) != STATUS_OK)
        printf("%s\n", err.text);
    void *wild = getenv("ZTRAIN_EMULATION_FAILS") ? h->arena.base : (void *)(uintptr_t)0x7000;
    const struct add_args args = {.dtype = DTYPE_F32, .n = 4096, .y = wild, .a = wild, .b = wild};
    h->device->ops->add(h->stream, &args);
    stream_sync(h->stream);
    const enum status status = device_check(h->device, &err);
    print_check(score, "an illegal address is no sign of a broken GPU",
                status == STATUS_PEER && strstr(err.text, "(cudaErrorIllegalAddress)"),
                status == STATUS_OK ? "no error" : err.text);
    const enum nvml_finding finding = nvml_watch_look(found, sizeof found);
    print_check(score, "NVML has events, and blames no hardware", finding == NVML_SOUND,
                finding == NVML_UNKNOWN ? "it has no events" : found);
    test_beside(score);
    fflush(stdout);
    _Exit(score->failed ? 1 : 0); /* nothing on this GPU can be freed any more */
}
