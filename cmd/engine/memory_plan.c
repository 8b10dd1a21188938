/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/memory_plan.h"

#include "cmd/engine/engine.h"
#include "gpu/host_pages.h"
#include "gpu/ops.h"

static void lay_out_memory_plan(struct engine *t, struct arena *local, struct arena *shared, struct arena *host)
{
    for (struct engine *e = t; e; e = e->next) {
        size_t input_bytes;
        zero_layout(e->zero, local, shared, host);
        if (e->activations) activation_store_layout(e->activations, host);
        transformer_layout(e->transformer, local);
        void *inputs = transformer_inputs(e->transformer, &input_bytes);
        if (e->upload) input_upload_layout(e->upload, inputs, input_bytes, local, host);
        if (e->samples) generator_layout(e->samples->generator, local);
        e->loss_sum = arena_take(local, MEM_WORKSPACE, engine_sums_bytes(e) + sizeof *e->grad_scale);
        e->grad_scale = e->loss_sum ? (float *)((char *)e->loss_sum + engine_sums_bytes(e)) : NULL;
    }
    void *workspace = arena_take(local, MEM_WORKSPACE, t->plan.workspace);
    if (local->base) stream_set_workspace(t->compute, workspace, t->plan.workspace);
}

static int memory_plan_node_ranks(const struct engine *t)
{
    return t->node_ranks ? t->node_ranks : t->world;
}

static void fill_plan(struct engine *t)
{
    struct op_limits limits;
    t->plan.workspace = 0;
    for (struct engine *e = t; e; e = e->next) {
        transformer_op_limits(e->transformer, &limits);
        t->plan.workspace = max_size(t->plan.workspace, ops_workspace_bytes(t->device, &limits));
    }
    arena_init_dry(&t->plan.local);
    arena_init_dry(&t->plan.shared);
    arena_init_dry(&t->plan.host);
    lay_out_memory_plan(t, &t->plan.local, &t->plan.shared, &t->plan.host);
    for (struct engine *e = t; e; e = e->next) {
        const size_t before = t->plan.host.used;
        zero_snapshot_layout(e->zero, &t->plan.host);
        e->snapshot_bytes = t->plan.host.used - before;
    }
    cuda_reserve_fill(&t->plan.reserve, t->device, t->world, memory_plan_node_ranks(t), &limits, t->plan.workspace);
    for (struct engine *e = t->next; e; e = e->next) e->plan = t->plan;
}

static void memory_plan_keep_snapshots(struct engine *t, bool keep)
{
    for (struct engine *e = t; e; e = e->next) zero_keep_snapshot(e->zero, keep);
}

/* Of all adapters: zero_snapshot_bytes() or zero_disk_bytes(). */
static int64_t memory_plan_bytes(const struct engine *t, int64_t (*of)(const struct zero *zero))
{
    int64_t bytes = 0;
    for (const struct engine *e = t; e; e = e->next) bytes += of(e->zero);
    return bytes;
}

static int64_t memory_plan_trained(const struct engine *t)
{
    int64_t trained = 0;
    for (const struct engine *e = t; e; e = e->next) trained += e->table.num_params - e->table.frozen_params;
    return trained;
}

int64_t memory_plan_active(const struct engine *t)
{
    const struct experts_desc *experts = &t->desc.experts;
    int64_t active = t->table.num_params;
    for (int i = 0; i < t->table.num_tensors; i++) {
        const struct tensor_info *tensor = &t->table.tensors[i];
        if (tensor->role >= ROLE_EXPERT_GATE_W && tensor->role <= ROLE_EXPERT_DOWN_B)
            active -= tensor->numel / experts->count * (experts->count - experts->per_token);
    }
    return active;
}

/* With auto, state that was sent to a disk to leave host memory does not come back there. */
static bool memory_plan_has_snapshot(const struct run_spec *spec)
{
    return spec->checkpoint.decoupled == SPEC_ON ||
           (spec->checkpoint.decoupled == SPEC_AUTO && !zero_uses_disk(&spec->zero));
}

/* Of a limited process, for what the plan does not count: stacks, malloc's arenas, buffers of files. */
static const double process_reserve = 256 << 20;

static size_t memory_plan_rank_host(const struct engine *t)
{
    const struct memory_plan *plan = &t->plan;
    return plan->host.used + (t->device->kind == DEVICE_CPU ? plan->local.used + plan->shared.used : 0);
}

/* What the snapshot does not fit into; NULL: it fits. Only a run asks what is free here. */
static const char *memory_snapshot_obstacle(const struct engine *t)
{
    const double share = t->spec->checkpoint.decoupled == SPEC_AUTO ? memory_auto_share : 1;
    const int64_t limit = t->spec->train.memory_limit;
    struct machine_memory machine = {.available = UINT64_MAX};
    const double node = (double)memory_plan_node_bytes(t);
    if (t->comm) machine_memory("", &machine);
    if (t->device->kind == DEVICE_CPU && limit &&
        memory_plan_device_bytes(&t->plan) + (size_t)memory_plan_bytes(t, zero_snapshot_bytes) > (size_t)limit)
        return "train.memory_limit";
    if (t->comm && (double)memory_plan_rank_host(t) + process_reserve > share * (double)machine_process_room())
        return "the memory limit of its process (ulimit -v, ulimit -d)";
    return node > share * (double)memory_plan_node_limit(t) || node > share * (double)machine.available
               ? "a node's memory"
               : NULL;
}

enum status memory_plan_make(struct engine *t, struct error *err)
{
    memory_plan_keep_snapshots(t, memory_plan_has_snapshot(t->spec));
    fill_plan(t);
    if (!memory_plan_has_snapshot(t->spec)) return STATUS_OK;
    const char *obstacle = memory_snapshot_obstacle(t);
    double lacking = obstacle ? 1 : 0;
    if (t->comm) TRY(comm_sum(t->comm, &lacking, 1, err));
    if (lacking == 0) return STATUS_OK;
    const int64_t bytes = memory_plan_bytes(t, zero_snapshot_bytes);
    if (t->spec->checkpoint.decoupled == SPEC_ON) {
        error_set(err, STATUS_DEVICE,
                  "checkpoint.writer.decoupled: a copy of %s (%" PRId64 " bytes) of each rank's state in host memory "
                  "does not fit into %s",
                  SIZE(round, bytes), bytes, obstacle ? obstacle : "the memory of another rank's node or process");
        return error_hint(err, "auto writes checkpoints in the background only where memory allows it, false never");
    }
    memory_plan_keep_snapshots(t, false);
    fill_plan(t);
    if (!t->quiet)
        log_info("training waits for checkpoints (checkpoint.writer.decoupled): the host memory does not suffice for a "
                 "copy of %s on each rank: %s",
                 SIZE(round, bytes), obstacle ? obstacle : "that of another rank");
    return STATUS_OK;
}

size_t memory_plan_device_bytes(const struct memory_plan *plan)
{
    return plan->local.used + plan->shared.used + plan->reserve.total;
}

size_t memory_plan_node_bytes(const struct engine *t)
{
    return (size_t)memory_plan_node_ranks(t) * memory_plan_rank_host(t);
}

size_t memory_plan_node_spare(const struct engine *t)
{
    const bool optional = t->spec->checkpoint.decoupled == SPEC_AUTO && zero_has_snapshot(t->zero);
    return optional ? (size_t)memory_plan_node_ranks(t) * (size_t)memory_plan_bytes(t, zero_snapshot_bytes) : 0;
}

static bool is_ordinary_memory(const struct offload_settings *offload)
{
    return offload->device != OFFLOAD_NONE && !offload->pin_memory;
}

/* Without the snapshot, which lies elsewhere. */
static size_t host_arena_bytes(const struct engine *t)
{
    return t->plan.host.used - t->plan.host.by_kind[MEM_SNAPSHOT];
}

enum status engine_prepare_ops(struct engine *t, struct error *err)
{
    const bool adds = t->micros > 1 && !t->spec->train.virtual_ranks; /* else each micro-batch has its own gradients */
    for (struct engine *e = t; e; e = e->next)
        TRY(transformer_prepare(e->transformer, adds, zero_has_matrix_sums(e->zero), err));
    fill_plan(t); /* kernels that replace refused ones may need another workspace */
    return STATUS_OK;
}

/* Of t->memory: in a simulation, which has no peers, with the segment that they would read. */
static size_t memory_bytes(const struct engine *t)
{
    return t->plan.local.used + (t->comm ? 0 : t->plan.shared.used);
}

enum status memory_plan_allocate(struct engine *t, struct error *err)
{
    struct arena local, shared, host;
    arena_init_dry(&shared); /* a rank alone shares nothing */
    arena_init(&host, NULL, 0);
    TRY(device_alloc(t->device, memory_bytes(t), &t->memory, err));
    arena_init(&local, t->memory, t->plan.local.used);
    if (t->plan.shared.used) {
        void *segment = (char *)t->memory + t->plan.local.used;
        if (t->comm) TRY(comm_share(t->comm, t->plan.shared.used, &segment, err));
        arena_init(&shared, segment, t->plan.shared.used);
    }
    if (host_arena_bytes(t)) { /* one piece, pinned unless one of its users asks for ordinary memory */
        const struct zero_settings *zero = &t->spec->zero;
        t->host_is_ordinary = t->device->kind != DEVICE_CPU && (is_ordinary_memory(&zero->offload_optimizer) ||
                                                                is_ordinary_memory(&zero->offload_param));
        TRY(t->host_is_ordinary ? host_pages_new(host_arena_bytes(t), &t->host_memory, err)
                                : device_alloc_host(t->device, host_arena_bytes(t), &t->host_memory, err));
        arena_init(&host, t->host_memory, host_arena_bytes(t));
    }
    for (struct engine *e = t; e; e = e->next)
        if (t->boot && zero_has_snapshot(e->zero) && t->spec->checkpoint.decoupled == SPEC_ON)
            TRY(memory_snapshot_place(e, err));
    lay_out_memory_plan(t, &local, &shared, &host);
    arena_finish(&local);
    arena_finish(&host);
    if (t->plan.shared.used) arena_finish(&shared);
    for (struct engine *e = t; e; e = e->next) TRY(transformer_start(e->transformer, t->compute, err));
    return STATUS_OK;
}

void memory_plan_free(struct engine *t)
{
    device_free(t->device, t->memory, memory_bytes(t));
    if (t->host_is_ordinary)
        host_pages_free(t->host_memory, host_arena_bytes(t));
    else
        device_free_host(t->device, t->host_memory, host_arena_bytes(t));
}

/* ---- the snapshot -------------------------------------------------------- */

bool memory_snapshot_fits(const struct engine *t)
{
    struct machine_memory machine;
    machine_memory("", &machine);
    return (double)memory_plan_node_ranks(t) * (double)t->snapshot_bytes <=
           memory_auto_share * (double)machine.available;
}

enum status memory_snapshot_place(struct engine *t, struct error *err)
{
    struct arena arena;
    if (t->snapshot)
        TRY(device_pin(t->device, t->snapshot, t->snapshot_bytes, err));
    else
        TRY(device_alloc_host(t->device, t->snapshot_bytes, &t->snapshot, err));
    t->snapshot_is_pinned = true;
    arena_init(&arena, t->snapshot, t->snapshot_bytes);
    zero_snapshot_layout(t->zero, &arena);
    arena_finish(&arena);
    return STATUS_OK;
}

void memory_snapshot_free(struct engine *t)
{
    if (t->snapshot_is_pinned)
        device_free_host(t->device, t->snapshot, t->snapshot_bytes);
    else
        host_pages_free(t->snapshot, t->snapshot_bytes);
    t->snapshot = NULL;
    t->snapshot_is_pinned = false;
}

/* ---- print --------------------------------------------------------------- */

enum { ON_DEVICE, ON_HOST, ON_DISK, PLACES };

/* A row of the table, unless all its sizes are 0; NULL: the head. A place that the run does not use has no column. */
static void memory_plan_print_row(const struct engine *t, bool bytes, const char *kind, const uint64_t *sizes)
{
    static const char *const heads[PLACES] = {"device", "host", "disk"};
    const bool shown[PLACES] = {true, t->plan.host.used > 0, memory_plan_bytes(t, zero_disk_bytes) > 0};
    char line[128], size[24] = "0";
    int used = snprintf(line, sizeof line, "  %-14s", kind);
    if (sizes && !sizes[ON_DEVICE] && !sizes[ON_HOST] && !sizes[ON_DISK]) return;
    for (int p = 0; p < PLACES; p++) {
        if (!shown[p]) continue;
        if (sizes)
            snprintf(size, sizeof size,
                     !sizes[p] ? "0"
                     : bytes   ? "%.0f"
                               : "%.3f",
                     bytes ? (double)sizes[p] : in_gib(sizes[p]));
        used += snprintf(line + used, sizeof line - (size_t)used, " %*s", bytes ? 16 : 10, sizes ? size : heads[p]);
    }
    log_detail("%s", line);
}

/* The total comes first; the rows below it are its parts. */
static void memory_plan_print_table(const struct engine *t, bool bytes)
{
    const struct memory_plan *plan = &t->plan;
    const uint64_t disk = (uint64_t)memory_plan_bytes(t, zero_disk_bytes);
    memory_plan_print_row(t, bytes, bytes ? "bytes" : "GiB", NULL);
    memory_plan_print_row(t, bytes, "total", (const uint64_t[]){memory_plan_device_bytes(plan), plan->host.used, disk});
    for (int k = 0; k < MEM_KIND_COUNT; k++)
        memory_plan_print_row(
            t, bytes, mem_kind_name((enum mem_kind)k),
            (const uint64_t[]){plan->local.by_kind[k] + plan->shared.by_kind[k], plan->host.by_kind[k], 0});
    memory_plan_print_row(t, bytes, "states", (const uint64_t[]){0, 0, disk});
    memory_plan_print_row(t, bytes, "reserve", (const uint64_t[]){plan->reserve.total, 0, 0});
}

int64_t memory_plan_cap(const struct engine *t)
{
    const int64_t limit = t->spec->train.memory_limit, device = (int64_t)t->device->memory_bytes;
    return limit && (!device || limit < device) ? limit : device;
}

static void memory_plan_print_cap(const struct engine *t)
{
    const int64_t limit = t->spec->train.memory_limit, cap = memory_plan_cap(t);
    char of[192];
    if (!cap) return;
    if (limit > cap)
        log_info("notice: train.memory_limit %s is more than the GPU's %s: the GPU's memory is the cap",
                 SIZE(format, limit), SIZE(round, cap));
    if (cap == limit)
        snprintf(of, sizeof of, "train.memory_limit %s", SIZE(format, limit));
    else
        snprintf(of, sizeof of, "the %s of %s", SIZE(round, cap), t->device->name);
    log_detail("  %.1f %% of %s", 100 * (double)memory_plan_device_bytes(&t->plan) / (double)cap, of);
}

uint64_t memory_plan_node_limit(const struct engine *t)
{
    struct machine_memory machine = {.total = UINT64_MAX, .limit = UINT64_MAX};
    if ((t->comm || t->node_ranks) && (t->device->kind == DEVICE_CPU || t->device->capability[0]))
        machine_memory("", &machine);
    return machine.total < machine.limit ? machine.total : machine.limit;
}

static void memory_plan_print_node(const struct engine *t)
{
    const int ranks = memory_plan_node_ranks(t);
    const size_t bytes = memory_plan_node_bytes(t);
    const uint64_t most = memory_plan_node_limit(t);
    const bool known = most <= INT64_MAX;
    if (t->plan.host.used)
        log_detail("  memory of a node: %d rank%s x %s = %s%s%s", ranks, PLURAL(ranks),
                   SIZE(round, memory_plan_rank_host(t)), SIZE(round, bytes), known ? " of " : "",
                   known ? SIZE(round, most) : "");
    if (known && bytes > most)
        log_warn(
            "the ranks of this node need %s of host memory, more than the %s that it has; hint: fewer ranks on each "
            "node, or less offload",
            SIZE(round, bytes), SIZE(round, most));
}

void memory_plan_summary(const struct engine *t, char text[MEMORY_SUMMARY])
{
    const size_t device = memory_plan_device_bytes(&t->plan), node = memory_plan_node_bytes(t);
    const uint64_t most = memory_plan_node_limit(t);
    char cap[224] = "", host[96] = "";
    if (memory_plan_cap(t))
        snprintf(cap, sizeof cap, " of %s%s%s", SIZE(round, memory_plan_cap(t)),
                 memory_plan_cap(t) == t->spec->train.memory_limit ? " (train.memory_limit)" : " of ",
                 memory_plan_cap(t) == t->spec->train.memory_limit ? "" : t->device->name);
    if (node)
        snprintf(host, sizeof host, ", %s%s%s of host memory on each node", SIZE(round, node),
                 most <= INT64_MAX ? " of " : "", most <= INT64_MAX ? SIZE(round, most) : "");
    snprintf(text, MEMORY_SUMMARY, "%s%s on each rank%s", SIZE(round, device), cap, host);
}

void memory_plan_print(const struct engine *t, bool bytes)
{
    const size_t gpu = t->device->memory_bytes; /* 0: the CPU */
    const struct run_spec *spec = t->spec;
    int64_t padding = 0, gaps = -t->table.num_params;
    char trained[64] = "", active[96] = "", parts[256] = "";
    if (t->table.adapted) snprintf(trained, sizeof trained, ", %" PRId64 " of them trained", memory_plan_trained(t));
    if (t->desc.experts.count)
        snprintf(active, sizeof active, ", %" PRId64 " of them active (%" PRId64 " of %" PRId64 " experts)",
                 memory_plan_active(t), t->desc.experts.per_token, t->desc.experts.count);
    log_detail("memory plan: rank %d of %d, ZeRO stage %d, %s, %" PRId64 " parameters%s%s", t->rank, t->world,
               t->spec->zero.stage, dtype_name(t->spec->dtype), memory_plan_trained(t) + t->table.frozen_params, active,
               trained);
    memory_plan_print_table(t, bytes);
    memory_plan_print_cap(t);
    for (int i = 0; i < CUDA_RESERVE_PARTS; i++) {
        const size_t used = strlen(parts), part = t->plan.reserve.parts[i];
        if (part)
            snprintf(parts + used, sizeof parts - used, "%s%s %.3f", used ? ", " : "", cuda_reserve_names[i],
                     in_gib(part));
    }
    if (gpu > 0) log_detail("  reserve, GiB, estimated: %s", parts);
    if (spec->bf16_master)
        log_detail("  the parameters are the master weights, updated with stochastic rounding%s",
                   spec->bf16_moments ? "; m and v are bf16 as well" : "");
    if (spec->grad_accum_dtype != DTYPE_F32)
        log_detail("  gradients are accumulated in %s (data_types.grad_accum_dtype)",
                   dtype_name(spec->grad_accum_dtype));
    if (spec->communication_data_type != DTYPE_F32 && t->world > 1)
        log_detail("  gradients are reduced in %s (communication_data_type)",
                   dtype_name(spec->communication_data_type));
    for (int u = 0; u < t->table.num_units; u++) {
        padding += shard_padded(&t->layout, u) - unit_words(&t->table, u);
        gaps += t->table.units[u].numel;
    }
    if (bytes) /* what nobody but a reader of the layout needs */
        log_detail("  shared between ranks: %zu bytes; over all ranks %" PRId64 " elements of shard padding, %" PRId64
                   " of alignment between tensors",
                   t->plan.shared.used, padding, gaps);
    if (gpu > 0 && t->plan.local.used + t->plan.shared.used > gpu)
        log_warn("the plan does not fit into the GPU's memory; hint: `ztrain plan --fit` finds the fastest "
                 "settings that fit");
    else if (gpu > 0 && memory_plan_device_bytes(&t->plan) > gpu)
        log_warn(
            "the plan leaves less of the GPU's memory than the reserve, so the run may end for lack of memory; hint: "
            "train.memory_limit refuses such a plan and names what fits");
    memory_plan_print_node(t);
}
