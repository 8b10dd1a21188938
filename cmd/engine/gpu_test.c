#include "cmd/engine/gpu_test.h"

#include "cmd/engine/gpu_test_record.h"
#include "comm/agree.h"
#include "core/clock.h"
#include "core/env_switch.h"
#include "core/log.h"
#include "core/memory.h"
#include "gpu/device_avoid.h"
#include "gpu/model/step_check.h"
#include "gpu/op_check.h"
#include "gpu/open/device_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 320 };

struct gpu_test {
    struct device *device; /* borrowed: under test */
    struct device *cpu;    /* owned */
    struct op_checker *checker;
    gpu_test_line report;
    void *context;
    unsigned avoid;
    struct error failed; /* the first check without an alternative that failed; code STATUS_OK: none */
};

/* ---- checks -------------------------------------------------------------- */

static void tell(struct gpu_test *test, const char *check, const char *differs)
{
    if (test->report)
        test->report(test->context, check, differs);
}

static void fail_check(struct gpu_test *test, const char *check, const char *differs)
{
    if (test->failed.code != STATUS_OK)
        return;
    error_set(&test->failed, STATUS_DEVICE, "the self-test of %s failed: %s: %s", test->device->name, check, differs);
    error_hint(&test->failed,
               "the GPU, its driver or a library is faulty: `ztrain doctor --gpu-test` shows every check");
}

/* The parts of the device that an op has an alternative to. */
static unsigned alternatives(int op)
{
    const char *name = op_check_name(op);
    return strncmp(name, "linear_", 7) == 0 ? DEVICE_EPILOGUES : 0;
}

/* Checks an op; with a result that differs, once more without the part that it has an alternative to. */
static enum status test_op(struct gpu_test *test, int op, struct error *err)
{
    char differs[TEXT], again[TEXT], name[64];
    const unsigned parts = alternatives(op) & ~test->avoid;
    snprintf(name, sizeof name, "op %s", op_check_name(op));
    TRY(op_check_run(test->checker, op, differs, sizeof differs, err));
    tell(test, name, differs);
    if (!*differs)
        return STATUS_OK;
    if (parts) {
        device_avoid(test->device, parts);
        TRY(op_check_run(test->checker, op, again, sizeof again, err));
        snprintf(name, sizeof name, "op %s without %s", op_check_name(op), device_part_name(parts));
        tell(test, name, again);
        if (!*again) {
            test->avoid |= parts;
            return STATUS_OK;
        }
    }
    fail_check(test, name, parts ? again : differs);
    return STATUS_OK;
}

static enum status test_graph(struct gpu_test *test, struct error *err)
{
    char differs[TEXT];
    if (!device_has_graphs(test->device))
        return STATUS_OK;
    TRY(step_check(test->device, differs, sizeof differs, err));
    tell(test, "a captured step", differs);
    if (*differs)
        test->avoid |= DEVICE_GRAPHS;
    return STATUS_OK;
}

static enum status test_all(struct gpu_test *test, struct error *err)
{
    TRY(device_open(DEVICE_CPU, 0, test->device->threads, &test->cpu, err));
    TRY(op_checker_new(test->device, test->cpu, &test->checker, err));
    for (int op = 0; op < OPS_COUNT; op++)
        TRY(test_op(test, op, err));
    if (test->failed.code != STATUS_OK) {
        *err = test->failed;
        return err->code;
    }
    return test_graph(test, err);
}

enum status gpu_test_run(struct device *device, gpu_test_line report, void *context, unsigned *avoid, struct error *err)
{
    struct gpu_test test = {.device = device, .report = report, .context = context, .failed.code = STATUS_OK};
    enum status status = test_all(&test, err);
    op_checker_free(test.checker);
    device_close(test.cpu);
    *avoid = test.avoid;
    return status;
}

/* ---- before a run -------------------------------------------------------- */

enum { WISH_NEVER, WISH_ALWAYS, WISH_COUNT };

/* Finds what this rank's GPU must avoid: by an earlier test, or by one now. */
static enum status find_own(const struct engine *t, unsigned *avoid, struct error *err)
{
    static const char *const words[WISH_COUNT] = {[WISH_NEVER] = "never", [WISH_ALWAYS] = "always"};
    int wish;
    *avoid = 0;
    TRY(env_choice("ZTRAIN_GPU_TEST", words, WISH_COUNT, &wish, err));
    if (wish == WISH_NEVER || (wish != WISH_ALWAYS && gpu_test_record_find(t->device, avoid)))
        return STATUS_OK;
    const double start = seconds_now();
    TRY(gpu_test_run(t->device, NULL, NULL, avoid, err));
    log_info("GPU self-test: %d ops and a captured step, in %.1f s", (int)OPS_COUNT, seconds_now() - start);
    gpu_test_record_add(t->device, *avoid);
    return STATUS_OK;
}

/* All ranks avoid what one of them must: they compute the same. */
static enum status join(const struct engine *t, unsigned own, unsigned *all, struct error *err)
{
    uint32_t mask = own, *masks = memory_zeroed((size_t)t->world, sizeof *masks);
    enum status status = comm_exchange(t->comm, &mask, sizeof mask, masks, err);
    *all = 0;
    for (int r = 0; status == STATUS_OK && r < t->world; r++)
        *all |= masks[r];
    free(masks);
    return status;
}

static enum status apply(struct engine *t, unsigned avoid, struct error *err)
{
    if ((avoid & DEVICE_GRAPHS) && t->graphs && t->spec->train.cuda_graphs == SPEC_GRAPHS_ON)
        return error_set(
            err, STATUS_DEVICE,
            "train.cuda_graphs is true, but in the self-test of %s a captured step differed from one op by "
            "op; hint: auto launches steps op by op then",
            t->device->name);
    for (unsigned part = 1; part <= DEVICE_PARTS_LAST; part <<= 1)
        if ((avoid & part) && t->rank == 0)
            log_warn("the self-test of %s found wrong results with %s: the run does without, and is slower",
                     t->device->name, device_part_name(part));
    if (avoid & DEVICE_GRAPHS)
        t->graphs = GRAPHS_NONE;
    device_avoid(t->device, avoid);
    return STATUS_OK;
}

enum status gpu_test_before_run(struct engine *t, struct error *err)
{
    unsigned own = 0, all = 0;
    const enum status status = t->device->kind == DEVICE_CUDA ? find_own(t, &own, err) : STATUS_OK;
    TRY(agree(t->comm, status, err));
    TRY(join(t, own, &all, err));
    return agree(t->comm, apply(t, all, err), err);
}
