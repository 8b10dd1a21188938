/* choose_device.c: see choose_device.h. The ranks exchange the devices that they see, and all draw the same conclusion:
 * ranks that decided by themselves would compute on different devices, or take GPUs from each other. */
#include "cmd/engine/choose_device.h"

#include "comm/gpu_binding.h"
#include "core/env_switch.h"
#include "core/log.h"
#include "gpu/open/device_open.h"

#include <stdio.h>
#include <stdlib.h>

static const char share_name[] = "ZTRAIN_SHARE_GPUS";

/* Fills in the view that this rank gives the others; a problem is part of the view. */
static void look_for_gpus(int rank, struct gpu_view *view)
{
    unsigned char uuids[GPU_VIEW_MAX][DEVICE_UUID_BYTES];
    char why[256] = "";
    struct error err;
    bool shares = false, tf32;
    if (env_switch(share_name, "ranks may share a GPU", &shares, &err) != STATUS_OK ||
        device_cuda_wants_tf32(&tf32, &err) != STATUS_OK) {
        gpu_view_none(view, rank, err.code, err.text);
    } else if (!device_cuda_available(why)) {
        gpu_view_none(view, rank, STATUS_DEVICE, why);
    } else if (gpu_view_init(view, rank, getenv("CUDA_VISIBLE_DEVICES"), device_cuda_list(uuids, GPU_VIEW_MAX), uuids,
                             &err) != STATUS_OK) {
        gpu_view_none(view, rank, err.code, err.text);
    }
    view->share = shares;
}

/* Some rank (`blind`) has no GPU to use: an error with train.device: cuda, otherwise a message. */
static enum status do_without(const struct run_spec *spec, const struct bootstrap *boot, int blind, const char *why,
                              int seeing, struct error *err)
{
    char who[128] = "";
    if (boot && boot->world > 1)
        snprintf(who, sizeof who, "rank %d on %s: ", blind, boot->places[blind].host);
    if (spec->train.device == SPEC_DEVICE_CUDA) {
        /* the lowest rank prints it for all, and its messages begin with its name */
        error_set(err, STATUS_DEVICE, "train.device cuda: %s%s", blind == 0 ? "" : who, why);
        error_blame(err, *who && blind ? blind : -1, FAILURE_NONE);
        if (!device_cuda_is_built())
            return error_hint(err, "build ztrain where nvcc is installed; or set train.device to cpu or auto");
        if (boot && boot->launcher)
            error_hint(err,
                       "srun --gpus-per-node=N gives the ranks of a node N GPUs; or set train.device to cpu or auto");
        return error_hint(err, "set train.device to cpu or auto"); /* unless `why` has one */
    }
    if (seeing && boot->rank == 0)
        log_warn("device: all ranks use the CPU, though %d of %d have a GPU (%s%s)", seeing, boot->world, who, why);
    else
        log_info("device: the CPU (%s%s)", who, why);
    return STATUS_OK;
}

enum status choose_device(const struct run_spec *spec, struct comm *comm, const struct bootstrap *boot,
                          struct device_choice *choice, struct error *err)
{
    struct gpu_binding binding;
    *choice = (struct device_choice){.kind = DEVICE_CPU};
    if (spec->train.device == SPEC_DEVICE_CPU)
        return STATUS_OK;
    if (!comm) {
        char why[256];
        bool cuda = device_cuda_available(why);
        choice->kind = cuda || spec->train.device == SPEC_DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU;
        if (choice->kind == DEVICE_CPU)
            return do_without(spec, NULL, 0, why, 0, err);
        choice->to_plan = !cuda;
        if (choice->to_plan)
            log_info("no GPU here (%s): the plan assumes one, and estimates cuDNN's workspace", why);
        return STATUS_OK;
    }
    struct gpu_view own;
    look_for_gpus(boot->rank, &own);
    TRY(gpu_binding_find(comm, boot, &own, &binding, err));
    if (binding.blind >= 0)
        return do_without(spec, boot, binding.blind, binding.why, binding.seeing, err);
    *choice = (struct device_choice){.kind = DEVICE_CUDA, .index = binding.index, .may_share = binding.may_share};
    if (binding.sharing && boot->local_rank == 0)
        log_warn("%d ranks on %s share %d GPU%s (%s=1)", binding.sharing, boot->host, binding.shared,
                 binding.shared == 1 ? "" : "s", share_name);
    log_debug("GPU %d of the %d that this rank sees", binding.index, own.count);
    return STATUS_OK;
}
