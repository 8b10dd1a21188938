/* cudnn_graph.c: operation graphs of cuDNN's backend API: see cudnn_graph.h.
 *
 * Every object of that API is a descriptor: it is created, gets attributes, and is finalized. A graph owns its
 * descriptors in the order of creation and destroys them last to first; a plan keeps its graph, because it may refer to
 * it. */
#include "gpu/cuda/cudnn_graph.h"

#if ZTRAIN_HAVE_CUDNN

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_DESCRIPTORS = 400, MAX_OPERATIONS = 80, MAX_CONSTANTS = 8, MAX_CONFIGS = 32, MAX_NOTES = 16 };
enum { MAX_KNOBS = 64 };
enum { FIRST_CONSTANT = 100, FIRST_VIRTUAL = 200, ALIGNMENT = 16 };

struct cudnn_graph {
    struct cudnn_target target;
    int rank;
    cudnnBackendDescriptor_t all[MAX_DESCRIPTORS]; /* owned */
    int count;
    cudnnBackendDescriptor_t operations[MAX_OPERATIONS]; /* borrowed from `all` */
    int num_operations;
    float constants[MAX_CONSTANTS];
    int num_constants, num_virtual;
    bool used[CUDNN_MAX_POINTERS]; /* ids of tensors in memory */
    cudnnStatus_t status;          /* the first failure */
    char why[512];
};

struct cudnn_plan {
    struct cudnn_graph *graph; /* owned */
    cudnnBackendDescriptor_t descriptor;
    int64_t workspace, engine, proposal;
    uint64_t kernel;
    char why[512]; /* of the last execution that failed */
};

/* ---- descriptors --------------------------------------------------------- */

struct cudnn_graph *cudnn_graph_new(const struct cudnn_target *target, int rank)
{
    struct cudnn_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return NULL;
    graph->target = *target;
    graph->rank = rank;
    return graph;
}

void cudnn_graph_free(struct cudnn_graph *graph)
{
    if (!graph)
        return;
    while (graph->count > 0)
        graph->target.cudnn->cudnnBackendDestroyDescriptor(graph->all[--graph->count]);
    free(graph);
}

/* The library's words for its last refusal on this thread. */
static void describe_failure(const struct cudnn_functions *cudnn, cudnnStatus_t status, char *text, size_t size)
{
    char detail[256] = "";
    cudnn->cudnnGetLastErrorString(detail, sizeof detail);
    for (char *c = detail; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    snprintf(text, size, "%s%s%s", cudnn->cudnnGetErrorString(status), *detail ? ": " : "", detail);
}

static void keep_failure(struct cudnn_graph *graph, cudnnStatus_t status, const char *what)
{
    char reason[384];
    if (graph->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS)
        return;
    graph->status = status;
    describe_failure(graph->target.cudnn, status, reason, sizeof reason);
    snprintf(graph->why, sizeof graph->why, "%s: %s", what, reason);
}

/* A descriptor of the graph; NULL after a failure. */
static cudnnBackendDescriptor_t create_descriptor(struct cudnn_graph *graph, cudnnBackendDescriptorType_t type,
                                                  const char *what)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    ASSERT(graph->count < MAX_DESCRIPTORS);
    if (graph->status == CUDNN_STATUS_SUCCESS)
        keep_failure(graph, graph->target.cudnn->cudnnBackendCreateDescriptor(type, &descriptor), what);
    if (graph->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    return graph->all[graph->count++] = descriptor;
}

static void set_attribute(struct cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                          const void *values, const char *what)
{
    if (graph->status == CUDNN_STATUS_SUCCESS)
        keep_failure(graph, graph->target.cudnn->cudnnBackendSetAttribute(descriptor, name, type, count, values), what);
}

static void set_descriptor(struct cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value, const char *what)
{
    set_attribute(graph, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void finalize_descriptor(struct cudnn_graph *graph, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (graph->status == CUDNN_STATUS_SUCCESS)
        keep_failure(graph, graph->target.cudnn->cudnnBackendFinalize(descriptor), what);
}

/* ---- tensors ------------------------------------------------------------- */

enum tensor_kind { IN_MEMORY, VIRTUAL, ON_HOST };

static void make_tensor(struct cudnn_graph *graph, enum tensor_kind kind, int64_t id, struct cudnn_tensor *tensor,
                        const struct cudnn_tensor *offsets)
{
    static const char what[] = "a tensor";
    int64_t alignment = ALIGNMENT;
    const int unused = CUDNN_RANK - graph->rank;
    cudnnBackendDescriptor_t d = tensor->descriptor = create_descriptor(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id, what);
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor->type, what);
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, graph->rank, tensor->dims + unused, what);
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, graph->rank, tensor->strides + unused, what);
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    bool is_virtual = kind == VIRTUAL, is_value = kind == ON_HOST;
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    set_attribute(graph, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_value, what);
    if (offsets)
        set_descriptor(graph, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets->descriptor, what);
    finalize_descriptor(graph, d, what);
}

struct cudnn_tensor cudnn_memory(struct cudnn_graph *graph, int id, cudnnDataType_t type, const int64_t *dims,
                                 const int64_t *strides)
{
    return cudnn_ragged(graph, id, type, dims, strides, NULL);
}

struct cudnn_tensor cudnn_ragged(struct cudnn_graph *graph, int id, cudnnDataType_t type, const int64_t *dims,
                                 const int64_t *strides, const struct cudnn_tensor *offsets)
{
    struct cudnn_tensor tensor = {.type = type};
    ASSERT(id >= 0 && id < CUDNN_MAX_POINTERS && !graph->used[id]);
    graph->used[id] = true;
    memcpy(tensor.dims, dims, sizeof tensor.dims);
    memcpy(tensor.strides, strides, sizeof tensor.strides);
    make_tensor(graph, IN_MEMORY, id + 1, &tensor, offsets);
    return tensor;
}

struct cudnn_tensor cudnn_virtual(struct cudnn_graph *graph, cudnnDataType_t type, const int64_t *dims)
{
    struct cudnn_tensor tensor = {.type = type};
    memcpy(tensor.dims, dims, sizeof tensor.dims);
    for (int64_t i = CUDNN_RANK - 1, stride = 1; i >= 0; stride *= dims[i--])
        tensor.strides[i] = stride;
    make_tensor(graph, VIRTUAL, FIRST_VIRTUAL + graph->num_virtual++, &tensor, NULL);
    return tensor;
}

struct cudnn_tensor cudnn_scalar(struct cudnn_graph *graph, float value)
{
    struct cudnn_tensor tensor = {.type = CUDNN_DATA_FLOAT, .dims = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}};
    ASSERT(graph->num_constants < MAX_CONSTANTS);
    graph->constants[graph->num_constants] = value;
    make_tensor(graph, ON_HOST, FIRST_CONSTANT + graph->num_constants++, &tensor, NULL);
    return tensor;
}

/* ---- operations ---------------------------------------------------------- */

static void add_operation(struct cudnn_graph *graph, cudnnBackendDescriptor_t operation, const char *what)
{
    finalize_descriptor(graph, operation, what);
    ASSERT(graph->num_operations < MAX_OPERATIONS);
    graph->operations[graph->num_operations++] = operation;
}

void cudnn_pointwise_into(struct cudnn_graph *graph, const struct cudnn_pointwise *how, const struct cudnn_tensor *x,
                          const struct cudnn_tensor *b, const struct cudnn_tensor *t, const struct cudnn_tensor *out)
{
    static const char what[] = "a pointwise operation";
    cudnnBackendDescriptor_t d = create_descriptor(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set_attribute(graph, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &how->mode, what);
    set_attribute(graph, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &how->computed_in, what);
    if (how->mode == CUDNN_POINTWISE_GEN_INDEX)
        set_attribute(graph, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &how->axis, what);
    finalize_descriptor(graph, d, what);

    cudnnBackendDescriptor_t operation = create_descriptor(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x->descriptor, what);
    if (b)
        set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor, what);
    if (t)
        set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->descriptor, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out->descriptor, what);
    add_operation(graph, operation, what);
}

struct cudnn_tensor cudnn_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *how,
                                    const struct cudnn_tensor *x, const struct cudnn_tensor *b,
                                    const struct cudnn_tensor *t)
{
    struct cudnn_tensor out = cudnn_virtual(graph, how->gives, x->dims);
    cudnn_pointwise_into(graph, how, x, b, t, &out);
    return out;
}

/* Lengths of m, n or k in a matrix product; NULL: those of the dimension. */
static void set_lengths(struct cudnn_graph *graph, cudnnBackendDescriptor_t operation, cudnnBackendAttributeName_t name,
                        const struct cudnn_tensor *lengths, const char *what)
{
    if (lengths)
        set_descriptor(graph, operation, name, lengths->descriptor, what);
}

void cudnn_matmul(struct cudnn_graph *graph, const struct cudnn_tensor *a, const struct cudnn_tensor *b,
                  const struct cudnn_lengths *lengths, const struct cudnn_tensor *out)
{
    static const char what[] = "a matrix product";
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = create_descriptor(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set_attribute(graph, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_in, what);
    finalize_descriptor(graph, d, what);

    cudnnBackendDescriptor_t operation = create_descriptor(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a->descriptor, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b->descriptor, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out->descriptor, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, d, what);
    if (lengths) {
        set_lengths(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths->m, what);
        set_lengths(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, lengths->n, what);
        set_lengths(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, lengths->k, what);
    }
    add_operation(graph, operation, what);
}

void cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t how, const struct cudnn_tensor *x,
                  const struct cudnn_tensor *out)
{
    static const char what[] = "a reduction";
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = create_descriptor(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set_attribute(graph, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_in, what);
    set_attribute(graph, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how, what);
    finalize_descriptor(graph, d, what);

    cudnnBackendDescriptor_t operation = create_descriptor(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->descriptor, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out->descriptor, what);
    add_operation(graph, operation, what);
}

struct cudnn_tensor cudnn_transpose(struct cudnn_graph *graph, const struct cudnn_tensor *x, cudnnDataType_t type,
                                    const struct cudnn_tensor *offsets)
{
    static const char what[] = "a transposition";
    struct cudnn_tensor out = {.type = type,
                               .dims = {x->dims[0], x->dims[1], x->dims[3], x->dims[2]},
                               .strides = {x->strides[0], x->strides[1], x->strides[3], x->strides[2]}};
    make_tensor(graph, VIRTUAL, FIRST_VIRTUAL + graph->num_virtual++, &out, offsets);
    cudnnBackendDescriptor_t operation = create_descriptor(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->descriptor, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out.descriptor, what);
    add_operation(graph, operation, what);
    return out;
}

/* ---- plans --------------------------------------------------------------- */

/* The hash of one setting of an engine. */
static uint64_t hash_of_knob(const struct cudnn_functions *cudnn, cudnnBackendDescriptor_t knob)
{
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    int64_t count, setting[2] = {0};
    cudnn->cudnnBackendGetAttribute(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &count, &type);
    cudnn->cudnnBackendGetAttribute(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count, &setting[1]);
    setting[0] = (int64_t)type;
    return XXH64(setting, sizeof setting, 0);
}

/* The hash of the settings of an engine, in whatever order they come. What the library does not tell counts as none. */
static uint64_t hash_of_knobs(const struct cudnn_functions *cudnn, cudnnBackendDescriptor_t config)
{
    cudnnBackendDescriptor_t knobs[MAX_KNOBS];
    int64_t count = 0, made = 0;
    uint64_t hash = 0;
    while (made < MAX_KNOBS && cudnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                                                   &knobs[made]) == CUDNN_STATUS_SUCCESS)
        made++;
    if (cudnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, made,
                                        &count, knobs) != CUDNN_STATUS_SUCCESS)
        count = 0;
    for (int64_t i = 0; i < count && i < made; i++)
        hash += hash_of_knob(cudnn, knobs[i]);
    while (made > 0)
        cudnn->cudnnBackendDestroyDescriptor(knobs[--made]);
    return hash;
}

static uint64_t hash_of_kernel(const struct cudnn_functions *cudnn, cudnnBackendDescriptor_t config, int64_t engine)
{
    const uint64_t hash = XXH64(&engine, sizeof engine, hash_of_knobs(cudnn, config));
    return hash ? hash : 1;
}

/* Whether the results of the engine repeat bit for bit; and its number. */
static bool is_deterministic(struct cudnn_graph *graph, cudnnBackendDescriptor_t config, int64_t *engine)
{
    const struct cudnn_functions *cudnn = graph->target.cudnn;
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0;
    cudnnBackendDescriptor_t descriptor = create_descriptor(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
    if (!descriptor ||
        cudnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                        &descriptor) != CUDNN_STATUS_SUCCESS ||
        cudnn->cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                        engine) != CUDNN_STATUS_SUCCESS ||
        cudnn->cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        MAX_NOTES, &count, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* The engines that the library proposes, best first. */
static int propose_engines(struct cudnn_graph *graph, cudnnBackendDescriptor_t operations, cudnnBackendHeurMode_t mode,
                           cudnnBackendDescriptor_t configs[MAX_CONFIGS])
{
    static const char what[] = "the choice of engines";
    int64_t count = 0;
    cudnnBackendDescriptor_t d = create_descriptor(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    set_descriptor(graph, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations, what);
    set_attribute(graph, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (graph->target.gpu)
        set_descriptor(graph, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, graph->target.gpu, what);
    finalize_descriptor(graph, d, what);
    for (int i = 0; i < MAX_CONFIGS; i++)
        configs[i] = create_descriptor(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    if (graph->status == CUDNN_STATUS_SUCCESS)
        keep_failure(graph,
                     graph->target.cudnn->cudnnBackendGetAttribute(
                         d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count, configs),
                     what);
    return graph->status == CUDNN_STATUS_SUCCESS ? (int)count : 0;
}

/* A finalized plan of this engine, or NULL. */
static cudnnBackendDescriptor_t try_config(struct cudnn_graph *graph, cudnnBackendDescriptor_t config,
                                           int64_t *workspace)
{
    const struct cudnn_functions *cudnn = graph->target.cudnn;
    cudnnBackendDescriptor_t plan = NULL;
    int64_t count = 0;
    cudnnStatus_t status = cudnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendFinalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                                 &count, workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        return plan;
    char reason[384];
    describe_failure(cudnn, status, reason, sizeof reason);
    snprintf(graph->why, sizeof graph->why, "the last engine's plan: %s", reason);
    if (plan)
        cudnn->cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

/* The number of the first proposal of a mode. */
static int64_t first_of_mode(cudnnBackendHeurMode_t mode)
{
    return mode == CUDNN_HEUR_MODE_A ? 0 : MAX_CONFIGS;
}

static bool is_wished(const struct cudnn_wish *wish, uint64_t kernel)
{
    for (int i = 0; i < wish->num_passed; i++)
        if (wish->passed[i] == kernel)
            return false;
    return !wish->kernel || wish->kernel == kernel;
}

/* Fills the plan from the heuristics of one mode; false: no engine is acceptable, and `why` gives the reason of the
 * last one. */
static bool choose_engine(struct cudnn_plan *plan, cudnnBackendDescriptor_t operations, cudnnBackendHeurMode_t mode,
                          const struct cudnn_wish *wish)
{
    struct cudnn_graph *graph = plan->graph;
    cudnnBackendDescriptor_t configs[MAX_CONFIGS];
    if (wish->first >= first_of_mode(mode) + MAX_CONFIGS)
        return false;
    int count = propose_engines(graph, operations, mode, configs);
    graph->status = CUDNN_STATUS_SUCCESS; /* the other mode may succeed; `why` has the failure of this one */
    for (int i = 0; i < count; i++) {
        plan->proposal = first_of_mode(mode) + i;
        if (plan->proposal < wish->first)
            continue;
        if (!is_deterministic(graph, configs[i], &plan->engine) && !wish->unordered) {
            snprintf(graph->why, sizeof graph->why, "no engine's results repeat bit for bit");
            continue;
        }
        plan->kernel = hash_of_kernel(graph->target.cudnn, configs[i], plan->engine);
        if (!is_wished(wish, plan->kernel))
            continue;
        cudnnBackendDescriptor_t descriptor = try_config(graph, configs[i], &plan->workspace);
        if (descriptor && plan->workspace >= 0 && (size_t)plan->workspace <= wish->most_workspace) {
            plan->descriptor = descriptor;
            return true;
        }
        if (!descriptor)
            continue;
        snprintf(graph->why, sizeof graph->why, "it would need %.3f GiB of workspace",
                 (double)plan->workspace / (1 << 30));
        graph->target.cudnn->cudnnBackendDestroyDescriptor(descriptor);
    }
    return false;
}

enum status cudnn_plan_new(struct cudnn_graph *graph, const struct cudnn_wish *wish, struct cudnn_plan **out,
                           struct error *err)
{
    static const char what[] = "the graph of operations";
    struct cudnn_plan *plan = *out = calloc(1, sizeof *plan);
    if (!plan) {
        cudnn_graph_free(graph);
        return error_set(err, STATUS_DEVICE, "cannot make a plan of cuDNN: out of memory");
    }
    plan->graph = graph;
    cudnnBackendDescriptor_t operations = create_descriptor(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
    if (graph->target.handle)
        set_attribute(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &graph->target.handle,
                      what);
    set_attribute(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  graph->num_operations, graph->operations, what);
    finalize_descriptor(graph, operations, what);
    if (graph->status == CUDNN_STATUS_SUCCESS && (choose_engine(plan, operations, CUDNN_HEUR_MODE_A, wish) ||
                                                  choose_engine(plan, operations, CUDNN_HEUR_MODE_FALLBACK, wish)))
        return STATUS_OK;
    error_set(err, STATUS_DEVICE, "cuDNN %d.%d.%d has no plan: %s", graph->target.version / 10000,
              graph->target.version / 100 % 100, graph->target.version % 100,
              *graph->why ? graph->why
                          : "it proposes no engine; hint: does it find libnvrtc? CUDNN_LOGLEVEL_DBG=2 and "
                            "CUDNN_LOGDEST_DBG=stderr in the environment make it print more");
    cudnn_plan_free(plan);
    *out = NULL;
    return err->code;
}

void cudnn_plan_free(struct cudnn_plan *plan)
{
    if (!plan)
        return;
    if (plan->descriptor)
        plan->graph->target.cudnn->cudnnBackendDestroyDescriptor(plan->descriptor);
    cudnn_graph_free(plan->graph);
    free(plan);
}

size_t cudnn_plan_workspace_bytes(const struct cudnn_plan *plan)
{
    return (size_t)plan->workspace;
}

int64_t cudnn_plan_engine(const struct cudnn_plan *plan)
{
    return plan->engine;
}

int64_t cudnn_plan_proposal(const struct cudnn_plan *plan)
{
    return plan->proposal;
}

uint64_t cudnn_plan_kernel(const struct cudnn_plan *plan)
{
    return plan->kernel;
}

const char *cudnn_plan_execute(struct cudnn_plan *plan, void *const *pointers, int count, void *workspace)
{
    struct cudnn_graph *graph = plan->graph;
    const struct cudnn_functions *cudnn = graph->target.cudnn;
    int64_t ids[CUDNN_MAX_POINTERS + MAX_CONSTANTS], n = 0;
    void *places[CUDNN_MAX_POINTERS + MAX_CONSTANTS];
    cudnnBackendDescriptor_t pack = NULL;
    for (int i = 0; i < count; i++) {
        if (!graph->used[i])
            continue;
        ids[n] = i + 1;
        places[n++] = pointers[i];
    }
    for (int i = 0; i < graph->num_constants; i++) {
        ids[n] = FIRST_CONSTANT + i;
        places[n++] = &graph->constants[i];
    }
    cudnnStatus_t status = cudnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n,
                                                 places);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                                 &workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendExecute(graph->target.handle, plan->descriptor, pack);
    if (status != CUDNN_STATUS_SUCCESS)
        describe_failure(cudnn, status, plan->why, sizeof plan->why);
    if (pack)
        cudnn->cudnnBackendDestroyDescriptor(pack);
    return status == CUDNN_STATUS_SUCCESS ? NULL : plan->why;
}

/* ---- GPUs that are only described ---------------------------------------- */

enum status cudnn_describe_gpu(const struct cudnn_functions *cudnn, const char *json, struct cudnn_target *target,
                               struct error *err)
{
    char reason[384];
    *target = (struct cudnn_target){.cudnn = cudnn, .version = (int)cudnn->cudnnGetVersion()};
    cudnnStatus_t status = cudnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &target->gpu);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendSetAttribute(target->gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                 CUDNN_TYPE_CHAR, (int64_t)strlen(json), json);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn->cudnnBackendFinalize(target->gpu);
    if (status == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    describe_failure(cudnn, status, reason, sizeof reason);
    cudnn_target_release(target);
    return error_set(err, STATUS_DEVICE, "cuDNN does not take the description of a GPU: %s", reason);
}

void cudnn_target_release(struct cudnn_target *target)
{
    if (target->gpu)
        target->cudnn->cudnnBackendDestroyDescriptor(target->gpu);
    target->gpu = NULL;
}

#endif
