/* SPDX-License-Identifier: Apache-2.0 */
/* choose.c: devices, kernels, graphs. The ranks exchange what they have, and all draw the same conclusion. */
#include "cmd/engine/engine.h"
#include "comm/agree.h"
#include "comm/gpu_binding.h"
#include "gpu/open/device_open.h"
#include "gpu/ops_profile.h"
#include "gpu/span_recorder.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static const char share_name[] = "ZTRAIN_SHARE_GPUS";

/* The rank `blind` has no GPU to use: an error with train.device: cuda, else a message. */
static enum status choose_without_gpu(struct engine *t, int blind, const char *why, int seeing, struct error *err)
{
    const struct bootstrap *boot = t->boot;
    char who[128] = "";
    if (boot->world > 1) snprintf(who, sizeof who, "rank %d on %s: ", blind, boot->places[blind].host);
    if (t->spec->train.device == SPEC_DEVICE_CUDA) {
        /* the lowest rank prints it for all, and its messages begin with its name */
        error_set(err, STATUS_DEVICE, "train.device cuda: %s%s", blind == 0 ? "" : who, why);
        error_blame(err, *who && blind ? blind : -1, FAILURE_NONE);
        if (!device_cuda_is_built())
            return error_hint(err, "build ztrain where nvcc is installed; or set train.device to cpu or auto");
        if (boot->launcher)
            error_hint(err,
                       "srun --gpus-per-node=N gives the ranks of a node N GPUs; or set train.device to cpu or auto");
        return error_hint(err, "set train.device to cpu or auto"); /* unless `why` has one */
    }
    if (seeing && boot->rank == 0) {
        log_warn("device: all ranks use the CPU, though %d of %d have a GPU (%s%s)", seeing, boot->world, who, why);
    } else {
        log_detail("device: the CPU (%s%s)", who, why);
        snprintf(t->why_cpu, sizeof t->why_cpu, "%s%s", who, why);
    }
    return STATUS_OK;
}

struct device_choice {
    enum device_kind kind;
    int index;      /* the GPU's number for device_open() */
    bool may_share; /* several ranks may use one GPU (ZTRAIN_SHARE_GPUS=1) */
};

static enum status choose_own_device(struct engine *t, struct device_choice *choice, struct error *err)
{
    const struct bootstrap *boot = t->boot;
    struct gpu_binding binding;
    *choice = (struct device_choice){.kind = DEVICE_CPU};
    if (t->spec->train.device == SPEC_DEVICE_CPU) return STATUS_OK;
    struct gpu_view own;
    unsigned char uuids[GPU_VIEW_MAX][DEVICE_UUID_BYTES];
    char why[256] = "";
    struct error refused;
    bool shares = false, tf32;
    enum status status = env_switch(share_name, "ranks may share a GPU", &shares, &refused);
    if (status == STATUS_OK) status = device_cuda_wants_tf32(&tf32, &refused);
    if (status == STATUS_OK && !device_cuda_available(why)) status = error_set(&refused, STATUS_DEVICE, "%s", why);
    if (status == STATUS_OK)
        status = gpu_view_init(&own, boot->rank, getenv("CUDA_VISIBLE_DEVICES"), device_cuda_list(uuids, GPU_VIEW_MAX),
                               uuids, &refused);
    if (status != STATUS_OK) gpu_view_none(&own, boot->rank, status, refused.text);
    own.share = shares;
    TRY(gpu_binding_find(t->comm, boot, &own, &binding, err));
    if (binding.blind >= 0) return choose_without_gpu(t, binding.blind, binding.why, binding.seeing, err);
    *choice = (struct device_choice){.kind = DEVICE_CUDA, .index = binding.index, .may_share = binding.may_share};
    if (binding.sharing && boot->local_rank == 0)
        log_warn("%d ranks on %s share %d GPU%s (%s=1)", binding.sharing, boot->host, binding.shared,
                 PLURAL(binding.shared), share_name);
    log_debug("GPU %d of the %d that this rank sees", binding.index, own.count);
    return STATUS_OK;
}

/* ---- kernels of the CPU -------------------------------------------------- */

static void log_chosen_instructions(const struct bootstrap *boot, const struct cpu_kernels *all,
                                    const struct cpu_kernels *common)
{
    char had[CPU_KERNELS_TEXT], have[CPU_KERNELS_TEXT];
    int best = 0, low = -1; /* the lowest of the ranks with the most kernels */
    for (int r = 1; r < boot->world; r++) {
        const struct cpu_kernels *k = &all[r], *most = &all[best];
        int more = k->isa != most->isa ? (int)k->isa - (int)most->isa
                                       : k->avx512_bf16 + k->amx_bf16 - most->avx512_bf16 - most->amx_bf16;
        best = more > 0 ? r : best;
    }
    if (cpu_kernels_equal(&all[best], common)) return;
    /* the lowest that has no more kernels than all ranks have in common; else the lowest that is not like the best */
    for (int r = boot->world - 1; r >= 0; r--)
        if (!cpu_kernels_equal(&all[r], &all[best])) low = r;
    for (int r = boot->world - 1; r >= 0; r--)
        if (cpu_kernels_equal(&all[r], common)) low = r;
    log_warn("all ranks compute with %s kernels instead of %s: rank %d on %s supports no more (because of its CPU, or "
             "of ZTRAIN_CPU_ISA there), rank %d on %s would support the latter",
             cpu_kernels_instructions(common, have), cpu_kernels_instructions(&all[best], had), low,
             boot->places[low].host, best, boot->places[best].host);
}

static void log_products(const struct bootstrap *boot, const struct cpu_kernels *all, const struct cpu_kernels *common)
{
    char here[CPU_KERNELS_TEXT], there[CPU_KERNELS_TEXT], result[CPU_KERNELS_TEXT];
    for (int r = 1; r < boot->world; r++) {
        if (cpu_kernels_equal(&all[r], &all[0])) continue;
        log_warn("all ranks multiply matrices with %s: rank 0 on %s would use %s, rank %d on %s %s",
                 cpu_kernels_products(common, result), boot->places[0].host, cpu_kernels_products(&all[0], here), r,
                 boot->places[r].host, cpu_kernels_products(&all[r], there));
        return;
    }
}

typedef void say_kernels(const struct bootstrap *boot, const struct cpu_kernels *all, const struct cpu_kernels *common);

/* Collective: reduces `own` to the kernels that all ranks have. say: logs the differences (rank 0). */
static enum status choose_common(const struct engine *t, struct cpu_kernels *own, say_kernels *say, struct error *err)
{
    OWNED struct cpu_kernels *all = memory_alloc((size_t)t->world * sizeof *all);
    TRY(comm_exchange(t->comm, own, sizeof *own, all, err));
    cpu_kernels_common(all, t->world, own);
    if (t->rank == 0) say(t->boot, all, own);
    return STATUS_OK;
}

/* With virtual ranks no measurement, no number of ranks and no ZeRO stage chooses a kernel. */
static bool choose_fixed(const struct engine *t)
{
    return t->spec->train.virtual_ranks > 0;
}

/* With other kernels replicas would drift apart. A run keeps those that it began with, as far as they are here. */
static enum status choose_kernels(const struct engine *t, struct cpu_kernels *kernels, struct error *err)
{
    char kept[CPU_KERNELS_TEXT], had[CPU_KERNELS_TEXT];
    TRY(agree(t->comm, cpu_kernels_detect(kernels, err), err));
    cpu_kernels_instructions(kernels, had);
    const enum cpu_isa best = kernels->isa;
    const bool keeps = t->kernels_before && cpu_kernels_keep(kernels, t->kernels_before) && t->rank == 0;
    cpu_kernels_instructions(kernels, kept);
    if (keeps && choose_fixed(t))
        log_detail("the run continues with the %s kernels that it began with; this CPU has %s", kept, had);
    else if (keeps)
        log_info(
            "the run continues with the %s kernels that it began with, so that its bits stay the same; this CPU has "
            "%s; hint: ZTRAIN_CPU_ISA=%s uses them",
            kept, had, cpu_isa_name(best));
    TRY(choose_common(t, kernels, log_chosen_instructions, err));
    TRY(agree(t->comm, cpu_kernels_choose_products(kernels, t->kernels_before, choose_fixed(t), err), err));
    return choose_common(t, kernels, log_products, err);
}

/* ---- multiprocessors for NCCL -------------------------------------------- */

/* With auto, at most a sixth of a GPU's multiprocessors. Only at stage 3 all products run beside collectives. */
enum { AUTO_SHARE = 6 };

/* What NCCL uses through NVLink's switches: on Hopper 16 blocks, on compute capability 10 24. */
enum { SM_TARGET_CTAS = 16, SM_TARGET_CTAS_BLACKWELL = 24 };

struct gpu_size {
    int rank, multiprocessors, ctas; /* multiprocessors of the CPU: 0 */
    char name[sizeof((struct device *)NULL)->name];
};

/* The smallest GPU of all ranks, of equal ones the lowest rank's; with the fewest ctas of all. A plan has one. */
static enum status choose_smallest_gpu(const struct engine *t, struct gpu_size *smallest, struct error *err)
{
    struct gpu_size own;
    memset(&own, 0, sizeof own); /* its padding is sent as well */
    own.rank = t->rank;
    own.multiprocessors = t->device->multiprocessors;
    own.ctas = strncmp(t->device->capability, "10.", 3) == 0 ? SM_TARGET_CTAS_BLACKWELL : SM_TARGET_CTAS;
    memcpy(own.name, t->device->name, sizeof own.name);
    *smallest = own;
    if (!t->comm) return STATUS_OK;
    OWNED struct gpu_size *all = memory_zeroed((size_t)t->world, sizeof *all);
    TRY(comm_exchange(t->comm, &own, sizeof own, all, err));
    int ctas = own.ctas;
    for (int r = t->world - 1; r >= 0; r--) {
        ctas = all[r].ctas < ctas ? all[r].ctas : ctas;
        if (all[r].multiprocessors <= smallest->multiprocessors) *smallest = all[r];
    }
    smallest->ctas = ctas;
    return STATUS_OK;
}

enum status choose_sm_target(const struct engine *t, int *ctas, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const bool forced = spec->train.sm_count_target == SPEC_ON;
    const bool beside = t->world > 1 && spec->zero.stage == 3 && spec->zero.overlap_comm && !choose_fixed(t);
    struct gpu_size smallest;
    char who[128] = ""; /* rank 0 prints it for all, and its messages begin with its name */
    *ctas = 0;
    if (spec->train.sm_count_target == SPEC_OFF || !(forced || beside)) return STATUS_OK;
    TRY(choose_smallest_gpu(t, &smallest, err));
    if (forced || smallest.multiprocessors >= AUTO_SHARE * smallest.ctas) *ctas = smallest.ctas;
    if (!forced || smallest.multiprocessors > smallest.ctas) return STATUS_OK;
    if (t->device->kind == DEVICE_CPU)
        return error_set(err, STATUS_USAGE,
                         "train.sm_count_target is true, but the CPU device has no multiprocessors; hint: auto limits "
                         "matrix products where it helps");
    if (smallest.rank != 0)
        snprintf(who, sizeof who, "rank %d on %s: ", smallest.rank, t->boot->places[smallest.rank].host);
    error_set(err, STATUS_USAGE,
              "train.sm_count_target is true, but %s%s has only %d multiprocessors, and NCCL gets %d; hint: auto "
              "limits matrix products where it helps",
              who, smallest.name, smallest.multiprocessors, smallest.ctas);
    return error_blame(err, *who ? smallest.rank : -1, FAILURE_NONE);
}

/* ---- cores --------------------------------------------------------------- */

/* Those near the GPU that this rank may use, of a supervisor's all; none: it stays where it is. */
static void find_near_cores(const struct device *device, cpu_set_t *cores)
{
    const char *root = "";
    cpu_set_t allowed;
#ifdef ZTRAIN_FAULTS /* test builds: another /sys */
    root = getenv("ZTRAIN_SYSTEM_ROOT") ? getenv("ZTRAIN_SYSTEM_ROOT") : "";
#endif
    CPU_ZERO(cores);
    if (sched_getaffinity(bootstrap_is_local_rank() ? getppid() : 0, sizeof allowed, &allowed) != 0 ||
        !machine_device_cores(root, device->pci, cores))
        return;
    CPU_AND(cores, cores, &allowed);
    if (CPU_COUNT(cores) == 0)
        log_detail("cores: none of the %d that this rank may use is near its GPU %s", CPU_COUNT(&allowed), device->pci);
}

/* Binds a rank to the cores near its GPU. Ranks with the same cores divide the threads among them. */
static enum status choose_cores(const struct engine *t, struct error *err)
{
    OWNED cpu_set_t *all = memory_zeroed((size_t)t->world, sizeof *all);
    cpu_set_t own;
    int sharers = 0;
    find_near_cores(t->device, &own);
    TRY(comm_exchange(t->comm, &own, sizeof own, all, err));
    for (int r = 0; r < t->world; r++) sharers += t->boot->places[r].node == t->boot->node && CPU_EQUAL(&all[r], &own);
    if (CPU_COUNT(&own) == 0) return STATUS_OK;
    const int share = bootstrap_threads(CPU_COUNT(&own), sharers), threads = t->device->threads;
    t->device->threads = share < threads ? share : threads;
    machine_bind(&own);
#ifdef _OPENMP
    omp_set_num_threads(t->device->threads);
#endif
    log_debug("cores: %d near GPU %s, %d threads", machine_cores(), t->device->pci, t->device->threads);
    return STATUS_OK;
}

/* ---- opening ------------------------------------------------------------- */

enum status choose_device(struct engine *t, int threads, struct error *err)
{
    struct device_choice choice;
    struct cpu_kernels kernels;
    const char *way = NULL;
    enum status status;
    int ctas;
    TRY(agree(t->comm, choose_own_device(t, &choice, err), err));
    if (choice.kind == DEVICE_CPU) {
        TRY(choose_kernels(t, &kernels, err));
        status = device_open_cpu(&kernels, threads, &t->device, err);
    } else {
        status = device_open(choice.kind, choice.index, threads, &t->device, err);
    }
    TRY(agree(t->comm, status, err));
    if (choose_fixed(t)) TRY(agree(t->comm, device_fix_kernels(t->device, err), err));
    if (choice.kind == DEVICE_CUDA) {
        gpu_fault_watch(t->device, choice.index);
        TRY(choose_cores(t, err));
    }
    if (t->profile) TRY(ops_profiler_new(t->device, &t->profiler, err));
    TRY(phase_times_new(t->device, &t->phase_times, err));
    TRY(agree(t->comm, choose_sm_target(t, &ctas, err), err));
    TRY(agree(t->comm, comm_attach_device(t->comm, t->device, choice.may_share, ctas, &way, err), err));
    if (way && t->rank == 0) log_detail("collectives: %s", way);
    /* limits the device's products, unless ranks share a GPU: their collectives pass through host memory */
    const int all = t->device->multiprocessors;
    const bool can = comm_can_capture(t->comm) || choose_fixed(t), says = t->rank == 0;
    if (ctas && can) device_leave_multiprocessors(t->device, ctas);
    if (ctas && can && says)
        log_detail(
            "matrix products use %d of the GPU's %d multiprocessors and leave %d to NCCL (train.sm_count_target)",
            all - ctas, all, ctas);
    else if (ctas && says && t->spec->train.sm_count_target == SPEC_ON)
        log_info("train.sm_count_target: true has no effect: ranks share a GPU and do not use NCCL");
    return STATUS_OK;
}

/* ---- CUDA graphs --------------------------------------------------------- */

/* Launches of a layer; the host's seconds for one; the share of its peak that a GPU reaches; an unknown GPU's peak. */
static const double launches_per_layer = 40, launch_seconds = 4e-6, usual_mfu = 0.4, usual_peak = 100e12;

/* Why nothing in a step can be a graph; NULL: blocks can. */
static const char *graph_choice_block_obstacle(const struct engine *t)
{
    if (!device_has_graphs(t->device)) return "the CPU device has none";
    if (t->spec->data.packing != SPEC_PACKING_CUT) return "with data.packing other than true no two steps are alike";
    if (t->spec->data.document_mask == SPEC_ON) return "with data.document_mask no two steps are alike";
    if (t->train_config.preference) return "with preferences no two steps are alike";
    if (t->profile) return "--profile times each op";
    return NULL;
}

/* Why a step of such blocks cannot be one graph; NULL: it can. */
static const char *graph_choice_step_obstacle(const struct engine *t)
{
    if (t->spec->zero.offload_param.device != OFFLOAD_NONE)
        return "zero_optimization.offload_param moves data on streams of its own";
    if (t->spec->cpu_checkpointing)
        return "activation_checkpointing.cpu_checkpointing copies on a stream that is not captured";
    if (t->spec->zero.offload_optimizer.device != OFFLOAD_NONE)
        return "with zero_optimization.offload_optimizer the host updates parameters in each step";
    if (t->spec->comms_logger.enabled) return "comms_logger times each collective";
    if (t->first || t->spec->next) return "several adapters share a step";
    if (t->comm && !comm_can_capture(t->comm)) return "ranks that share a GPU communicate through the host";
    if (t->spec->train.cuda_graphs == SPEC_AUTO && t->spec->wall_clock_breakdown)
        return "wall_clock_breakdown times the parts of a step";
    return NULL;
}

enum status choose_graphs(struct engine *t, struct error *err)
{
    enum spec_switch wanted = t->spec->train.cuda_graphs;
    const char *why_not = wanted == SPEC_OFF ? "train.cuda_graphs is false" : graph_choice_block_obstacle(t);
    const char *why_not_steps = graph_choice_step_obstacle(t);
    if (!why_not && t->spec->expert_parallel_size > 1)
        why_not = why_not_steps; /* tokens leave blocks in their middle */
    t->graphs = GRAPHS_NONE;
    if (wanted == SPEC_ON && why_not) {
        error_set(err, STATUS_USAGE, "train.cuda_graphs is true, but steps cannot be graphs: %s", why_not);
        return error_hint(err, "auto takes graphs where they are possible and help");
    }
    /* whether launching a micro-batch takes the host as long as the GPU: twice, as short kernels follow long ones */
    const struct run_spec *spec = t->spec;
    const double peak = t->device->peak_flops[spec->dtype] > 0 ? t->device->peak_flops[spec->dtype] : usual_peak;
    const double tokens = (double)(spec->train_micro_batch_size_per_gpu * spec->data.seq_length);
    const double flops = transformer_flops_per_token(&t->desc, &t->table, spec->data.seq_length) * tokens;
    const double launches = launches_per_layer * (double)(t->desc.num_layers + 2);
    if (wanted == SPEC_AUTO && !why_not && flops / (usual_mfu * peak) >= 2 * launch_seconds * launches)
        why_not = "this model's kernels take longer than their launches";
    if (!why_not) t->graphs = why_not_steps ? GRAPHS_BY_BLOCK : GRAPHS_BY_STEP;
    if (t->rank != 0 || t->quiet || t->simulation.comm || !device_has_graphs(t->device)) return STATUS_OK;
    if (t->graphs == GRAPHS_BY_STEP)
        log_detail("CUDA graphs: by step: a step is captured once, then launched as one piece");
    else if (t->graphs == GRAPHS_BY_BLOCK)
        log_detail(
            "CUDA graphs: by block: each block's forward and backward is captured once, then launched as one piece; "
            "not by step: %s",
            why_not_steps);
    else
        log_detail("CUDA graphs: none: %s", why_not);
    return STATUS_OK;
}
