#include "cmd/engine/choose_graphs.h"

#include "core/log.h"
#include "gpu/model/transformer.h"

/* The time of launching is estimated from: the number of launches for a layer, forward and backward, with its share of
 * the update; the host's seconds for one launch; the share of its peak that a GPU reaches; the peak assumed for a GPU
 * whose peak is unknown. */
static const double launches_per_layer = 40, launch_seconds = 4e-6, usual_mfu = 0.4, usual_peak = 100e12;

/* Whether the host needs about as long to launch a micro-batch as the GPU to compute it. Even when the GPU takes twice
 * the host's time it still waits: for short kernels that follow long ones, and at the start of each step. */
static bool is_launch_bound(const struct graph_question *q)
{
    const struct run_spec *spec = q->spec;
    double peak = q->device->peak_flops[spec->dtype] > 0 ? q->device->peak_flops[spec->dtype] : usual_peak;
    double tokens = (double)(spec->train_micro_batch_size_per_gpu * spec->data.seq_length);
    double gpu = transformer_flops_per_token(q->desc, spec->data.seq_length) * tokens / (usual_mfu * peak);
    return gpu < 2 * launch_seconds * launches_per_layer * (double)(q->desc->num_layers + 2);
}

/* The reason why nothing in a step can be a graph; NULL if blocks can. */
static const char *obstacle_of_blocks(const struct graph_question *q)
{
    if (!device_has_graphs(q->device))
        return "the CPU device has none";
    if (q->spec->data.packing != SPEC_PACKING_CUT)
        return "with data.packing other than true no two steps are alike";
    if (q->spec->data.document_mask == SPEC_DOCUMENT_MASK_ON)
        return "with data.document_mask no two steps are alike";
    if (q->profile)
        return "--profile times each op";
    return NULL;
}

/* The reason why a step of blocks that can be graphs cannot be one graph; NULL if it can. */
static const char *obstacle_of_steps(const struct graph_question *q)
{
    if (q->spec->zero.offload_param.device != OFFLOAD_NONE)
        return "zero_optimization.offload_param moves data on streams of its own";
    if (q->spec->cpu_checkpointing)
        return "activation_checkpointing.cpu_checkpointing copies on a stream that is not captured";
    if (q->spec->zero.offload_optimizer.device != OFFLOAD_NONE)
        return "with zero_optimization.offload_optimizer the host updates parameters in each step";
    if (q->spec->comms_logger.enabled)
        return "comms_logger times each collective";
    if (q->comm && !comm_can_capture(q->comm))
        return "ranks that share a GPU communicate through the host";
    if (q->spec->train.cuda_graphs == SPEC_GRAPHS_AUTO && q->spec->wall_clock_breakdown)
        return "wall_clock_breakdown times the parts of a step";
    return NULL;
}

static void log_choice(enum graph_mode graphs, const char *why_not_blocks, const char *why_not_steps)
{
    if (graphs == GRAPHS_BY_STEP)
        log_info("CUDA graphs: by step: a step is captured once, then launched as one piece");
    else if (graphs == GRAPHS_BY_BLOCK)
        log_info(
            "CUDA graphs: by block: each block's forward and backward is captured once, then launched as one piece; "
            "not by step: %s",
            why_not_steps);
    else
        log_info("CUDA graphs: none: %s", why_not_blocks);
}

enum status choose_graphs(const struct graph_question *q, enum graph_mode *graphs, struct error *err)
{
    enum spec_graphs wanted = q->spec->train.cuda_graphs;
    const char *why_not = wanted == SPEC_GRAPHS_OFF ? "train.cuda_graphs is false" : obstacle_of_blocks(q);
    const char *why_not_steps = obstacle_of_steps(q);
    *graphs = GRAPHS_NONE;
    if (wanted == SPEC_GRAPHS_ON && why_not) {
        error_set(err, STATUS_USAGE, "train.cuda_graphs is true, but steps cannot be graphs: %s", why_not);
        return error_hint(err, "auto takes graphs where they are possible and help");
    }
    if (wanted == SPEC_GRAPHS_AUTO && !why_not && !is_launch_bound(q))
        why_not = "this model's kernels take longer than their launches";
    if (!why_not)
        *graphs = why_not_steps ? GRAPHS_BY_BLOCK : GRAPHS_BY_STEP;
    if (q->log_choice && device_has_graphs(q->device))
        log_choice(*graphs, why_not, why_not_steps);
    return STATUS_OK;
}
