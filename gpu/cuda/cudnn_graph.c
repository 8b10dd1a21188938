/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.c: operation graphs of cuDNN's backend API. Every object of that API is a descriptor: created, given
 * attributes, finalized. A graph destroys its descriptors last to first; plans keep their graph, because they may refer
 * to it. */
#include "gpu/cuda/cudnn_graph.h"

#include "core/core.h"

#if ZTRAIN_HAVE_CUDNN

#include <xxhash.h>

enum { MAX_DESCRIPTORS = 400, MAX_OPERATIONS = 80, MAX_CONSTANTS = 10 };
enum { MAX_CONFIGS = 32, MAX_NOTES = 16, MAX_KNOBS = 64 };
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
    int num_plans;                 /* that refer to the graph: the last one frees it */
    bool used[CUDNN_MAX_POINTERS]; /* ids of tensors in memory */
    bool failed;                   /* for the reason `why` */
    char why[512];
};

/* ---- descriptors --------------------------------------------------------- */

struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values; /* NULL: it is not set */
};

/* The library's words for its last refusal on this thread. */
static void describe_failure(const struct cudnn_functions *cudnn, cudnnStatus_t status, char *text, size_t size)
{
    char detail[256] = "";
    cudnn->cudnnGetLastErrorString(detail, sizeof detail);
    for (char *c = detail; *c; c++) *c = *c == '\n' ? ' ' : *c;
    snprintf(text, size, "%s%s%s", cudnn->cudnnGetErrorString(status), *detail ? ": " : "", detail);
}

/* A finalized descriptor; NULL: `why` has the reason. */
static cudnnBackendDescriptor_t make_descriptor(const struct cudnn_functions *cudnn, cudnnBackendDescriptorType_t type,
                                                const struct attribute *attributes, size_t count, char *why,
                                                size_t size)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    cudnnStatus_t status = cudnn->cudnnBackendCreateDescriptor(type, &descriptor);
    for (const struct attribute *a = attributes; a < attributes + count && status == CUDNN_STATUS_SUCCESS; a++)
        if (a->values) status = cudnn->cudnnBackendSetAttribute(descriptor, a->name, a->type, a->count, a->values);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnn->cudnnBackendFinalize(descriptor);
    if (status == CUDNN_STATUS_SUCCESS) return descriptor;
    describe_failure(cudnn, status, why, size);
    if (descriptor) cudnn->cudnnBackendDestroyDescriptor(descriptor);
    return NULL;
}

static void fail(struct cudnn_graph *g, const char *what, const char *reason)
{
    g->failed = true;
    snprintf(g->why, sizeof g->why, "%s: %s", what, reason);
}

/* A descriptor of the graph; NULL after a failure. */
static cudnnBackendDescriptor_t describe(struct cudnn_graph *g, cudnnBackendDescriptorType_t type, const char *what,
                                         const struct attribute *attributes, size_t count)
{
    char reason[384];
    ASSERT(g->count < MAX_DESCRIPTORS);
    if (g->failed) return NULL;
    cudnnBackendDescriptor_t descriptor =
        make_descriptor(g->target.cudnn, type, attributes, count, reason, sizeof reason);
    if (descriptor)
        g->all[g->count++] = descriptor;
    else
        fail(g, what, reason);
    return descriptor;
}

/* One that the library fills; NULL: it has none. */
static cudnnBackendDescriptor_t add_empty(struct cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    ASSERT(g->count < MAX_DESCRIPTORS);
    if (g->target.cudnn->cudnnBackendCreateDescriptor(type, &descriptor) != CUDNN_STATUS_SUCCESS) return NULL;
    return g->all[g->count++] = descriptor;
}

struct cudnn_graph *cudnn_graph_new(const struct cudnn_target *target, int rank)
{
    struct cudnn_graph *g = memory_zeroed(1, sizeof *g);
    g->target = *target;
    g->rank = rank;
    return g;
}

static void graph_free(struct cudnn_graph *g)
{
    while (g->count > 0) g->target.cudnn->cudnnBackendDestroyDescriptor(g->all[--g->count]);
    free(g);
}

/* ---- tensors ------------------------------------------------------------- */

enum tensor_kind { IN_MEMORY, VIRTUAL, ON_HOST };

static void make_tensor(struct cudnn_graph *g, enum tensor_kind kind, int64_t id, struct cudnn_tensor *tensor,
                        const struct cudnn_tensor *offsets)
{
    const int64_t alignment = ALIGNMENT;
    const int unused = CUDNN_RANK - g->rank;
    const bool is_virtual = kind == VIRTUAL, is_value = kind == ON_HOST;
    const struct attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor->type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, g->rank, tensor->dims + unused},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, g->rank, tensor->strides + unused},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_value},
        {CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, offsets ? &offsets->descriptor : NULL},
    };
    tensor->descriptor = describe(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor", attributes, COUNT_OF(attributes));
}

struct cudnn_tensor cudnn_memory(struct cudnn_graph *g, int id, cudnnDataType_t type, const int64_t *dims,
                                 const int64_t *strides, const struct cudnn_tensor *offsets)
{
    struct cudnn_tensor tensor = {.type = type};
    ASSERT(id >= 0 && id < CUDNN_MAX_POINTERS && !g->used[id]);
    g->used[id] = true;
    memcpy(tensor.dims, dims, sizeof tensor.dims);
    memcpy(tensor.strides, strides, sizeof tensor.strides);
    make_tensor(g, IN_MEMORY, id + 1, &tensor, offsets);
    return tensor;
}

struct cudnn_tensor cudnn_virtual(struct cudnn_graph *g, cudnnDataType_t type, const int64_t *dims)
{
    struct cudnn_tensor tensor = {.type = type};
    memcpy(tensor.dims, dims, sizeof tensor.dims);
    for (int64_t i = CUDNN_RANK - 1, stride = 1; i >= 0; stride *= dims[i--]) tensor.strides[i] = stride;
    make_tensor(g, VIRTUAL, FIRST_VIRTUAL + g->num_virtual++, &tensor, NULL);
    return tensor;
}

struct cudnn_tensor cudnn_scalar(struct cudnn_graph *g, float value)
{
    struct cudnn_tensor tensor = {.type = CUDNN_DATA_FLOAT, .dims = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}};
    ASSERT(g->num_constants < MAX_CONSTANTS);
    g->constants[g->num_constants] = value;
    make_tensor(g, ON_HOST, FIRST_CONSTANT + g->num_constants++, &tensor, NULL);
    return tensor;
}

/* ---- operations ---------------------------------------------------------- */

static void add_operation(struct cudnn_graph *g, cudnnBackendDescriptorType_t type, const char *what,
                          const struct attribute *attributes, size_t count)
{
    ASSERT(g->num_operations < MAX_OPERATIONS);
    g->operations[g->num_operations++] = describe(g, type, what, attributes, count);
}

static bool gives_booleans(cudnnPointwiseMode_t mode)
{
    return mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_GT || mode == CUDNN_POINTWISE_CMP_LT ||
           mode == CUDNN_POINTWISE_LOGICAL_AND;
}

/* axis: NULL but for CUDNN_POINTWISE_GEN_INDEX. */
static void add_pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, const int64_t *axis,
                          const struct cudnn_tensor *x, const struct cudnn_tensor *b, const struct cudnn_tensor *t,
                          const struct cudnn_tensor *out)
{
    static const char what[] = "a pointwise operation";
    const cudnnDataType_t computed_in = gives_booleans(mode) ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    const struct attribute how[] = {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
                                    {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &computed_in},
                                    {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, axis}};
    const cudnnBackendDescriptor_t d = describe(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what, how, COUNT_OF(how));
    static const cudnnBackendAttributeName_t usual[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                        CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                        CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
                                             gradient[] = {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC,
                                                           CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                           CUDNN_ATTR_OPERATION_POINTWISE_DXDESC};
    const cudnnBackendAttributeName_t *names = mode == CUDNN_POINTWISE_TANH_BWD ? gradient : usual;
    const struct attribute operands[] = {
        {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d},
        {names[0], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x->descriptor},
        {names[1], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, b ? &b->descriptor : NULL},
        {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, t ? &t->descriptor : NULL},
        {names[2], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &out->descriptor}};
    add_operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what, operands, COUNT_OF(operands));
}

void cudnn_pointwise_into(struct cudnn_graph *g, cudnnPointwiseMode_t mode, const struct cudnn_tensor *x,
                          const struct cudnn_tensor *b, const struct cudnn_tensor *t, const struct cudnn_tensor *out)
{
    add_pointwise(g, mode, NULL, x, b, t, out);
}

struct cudnn_tensor cudnn_pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, const struct cudnn_tensor *x,
                                    const struct cudnn_tensor *b, const struct cudnn_tensor *t)
{
    struct cudnn_tensor out = cudnn_virtual(g, gives_booleans(mode) ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, x->dims);
    add_pointwise(g, mode, NULL, x, b, t, &out);
    return out;
}

struct cudnn_tensor cudnn_index(struct cudnn_graph *g, const struct cudnn_tensor *x, int64_t axis)
{
    struct cudnn_tensor out = cudnn_virtual(g, CUDNN_DATA_INT32, x->dims);
    add_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, &axis, x, NULL, NULL, &out);
    return out;
}

void cudnn_matmul(struct cudnn_graph *g, const struct cudnn_tensor *a, const struct cudnn_tensor *b,
                  const struct cudnn_tensor *const lengths[3], const struct cudnn_tensor *out)
{
    static const char what[] = "a matrix product";
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    const struct attribute type[] = {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_in}};
    const cudnnBackendDescriptor_t d = describe(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what, type, COUNT_OF(type));
    const void *of[3];
    for (int i = 0; i < 3; i++) of[i] = lengths && lengths[i] ? &lengths[i]->descriptor : NULL;
    const struct attribute operands[] = {
        {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->descriptor},
        {CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b->descriptor},
        {CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &out->descriptor},
        {CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d},
        {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, of[0]},
        {CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, of[1]},
        {CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, of[2]}};
    add_operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what, operands, COUNT_OF(operands));
}

void cudnn_grouped_matmul(struct cudnn_graph *g, const struct cudnn_tensor *a, const struct cudnn_tensor *b,
                          const struct cudnn_tensor *offsets, const struct cudnn_tensor *out)
{
    static const char what[] = "a grouped product";
#if CUDNN_VERSION >= 91500
    const cudnnMoeGroupedMatmulMode_t mode = CUDNN_MOE_GROUPED_MATMUL_MODE_NONE;
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    const struct attribute operands[] = {
        {CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE, CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE, 1, &mode},
        {CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &computed_in},
        {CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a->descriptor},
        {CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b->descriptor},
        {CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
         &offsets->descriptor},
        {CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &out->descriptor}};
    add_operation(g, CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR, what, operands, COUNT_OF(operands));
#else
    (void)a, (void)b, (void)offsets, (void)out;
    fail(g, what, "this build of ztrain has a header of cuDNN before 9.15");
#endif
}

void cudnn_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t how, const struct cudnn_tensor *x,
                  const struct cudnn_tensor *out)
{
    static const char what[] = "a reduction";
    const cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
    const struct attribute type[] = {{CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_in},
                                     {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how}};
    const cudnnBackendDescriptor_t d = describe(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what, type, COUNT_OF(type));
    const struct attribute operands[] = {
        {CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d},
        {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x->descriptor},
        {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &out->descriptor}};
    add_operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what, operands, COUNT_OF(operands));
}

struct cudnn_tensor cudnn_transpose(struct cudnn_graph *g, const struct cudnn_tensor *x, cudnnDataType_t type,
                                    const struct cudnn_tensor *offsets)
{
    struct cudnn_tensor out = {.type = type,
                               .dims = {x->dims[0], x->dims[1], x->dims[3], x->dims[2]},
                               .strides = {x->strides[0], x->strides[1], x->strides[3], x->strides[2]}};
    make_tensor(g, VIRTUAL, FIRST_VIRTUAL + g->num_virtual++, &out, offsets);
    const struct attribute operands[] = {
        {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x->descriptor},
        {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &out.descriptor}};
    add_operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a transposition", operands, COUNT_OF(operands));
    return out;
}

/* ---- plans --------------------------------------------------------------- */

static uint64_t hash_of_knob(const struct cudnn_functions *cudnn, cudnnBackendDescriptor_t knob)
{
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    int64_t count, setting[2] = {0};
    cudnn->cudnnBackendGetAttribute(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &count, &type);
    cudnn->cudnnBackendGetAttribute(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count, &setting[1]);
    setting[0] = (int64_t)type;
    return XXH64(setting, sizeof setting, 0);
}

/* Its engine, and the knobs in whatever order they come. What the library does not tell counts as none. */
static uint64_t hash_of_kernel(const struct cudnn_functions *cudnn, cudnnBackendDescriptor_t config, int64_t engine)
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
    for (int64_t i = 0; i < count && i < made; i++) hash += hash_of_knob(cudnn, knobs[i]);
    while (made > 0) cudnn->cudnnBackendDestroyDescriptor(knobs[--made]);
    hash = XXH64(&engine, sizeof engine, hash);
    return hash ? hash : 1;
}

/* Whether the results of the engine repeat bit for bit; and its number. */
static bool is_deterministic(struct cudnn_graph *g, cudnnBackendDescriptor_t config, int64_t *engine)
{
    const struct cudnn_functions *cudnn = g->target.cudnn;
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0;
    cudnnBackendDescriptor_t descriptor = add_empty(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (!descriptor ||
        cudnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                        &descriptor) != CUDNN_STATUS_SUCCESS ||
        cudnn->cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                        engine) != CUDNN_STATUS_SUCCESS ||
        cudnn->cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        MAX_NOTES, &count, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* The engines that the library proposes, best first; returns their number. */
static int propose_engines(struct cudnn_graph *g, cudnnBackendDescriptor_t operations, cudnnBackendHeurMode_t mode,
                           cudnnBackendDescriptor_t configs[MAX_CONFIGS])
{
    static const char what[] = "the choice of engines";
    char reason[384];
    int64_t count = 0;
    const struct attribute attributes[] = {
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operations},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, g->target.gpu ? &g->target.gpu : NULL}};
    const cudnnBackendDescriptor_t d =
        describe(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what, attributes, COUNT_OF(attributes));
    int64_t made = 0;
    while (d && made < MAX_CONFIGS && (configs[made] = add_empty(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))) made++;
    const cudnnStatus_t status =
        d ? g->target.cudnn->cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                      made, &count, configs)
          : CUDNN_STATUS_SUCCESS;
    if (status != CUDNN_STATUS_SUCCESS) {
        describe_failure(g->target.cudnn, status, reason, sizeof reason);
        fail(g, what, reason);
        count = 0;
    }
    g->failed = false; /* the other mode may succeed; `why` has the failure of this one */
    return (int)(count < made ? count : made);
}

/* The engine that is named by its number, with its settings; NULL: this library or GPU lacks it. */
static cudnnBackendDescriptor_t config_of_engine(struct cudnn_graph *g, cudnnBackendDescriptor_t operations,
                                                 const struct cudnn_engine *named)
{
    static const char what[] = "a named engine";
    cudnnBackendDescriptor_t knobs[CUDNN_ENGINE_KNOBS];
    const struct attribute of_engine[] = {
        {CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operations},
        {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &named->number},
        {CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, g->target.gpu ? &g->target.gpu : NULL}};
    const cudnnBackendDescriptor_t engine =
        describe(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what, of_engine, COUNT_OF(of_engine));
    for (int i = 0; i < named->num_knobs; i++) {
        const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)named->knobs[i][0];
        const struct attribute setting[] = {
            {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type},
            {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &named->knobs[i][1]}};
        knobs[i] = describe(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what, setting, COUNT_OF(setting));
    }
    const struct attribute of_config[] = {
        {CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine},
        {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, named->num_knobs, knobs}};
    return describe(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what, of_config, COUNT_OF(of_config));
}

/* A finalized plan of this engine, or NULL. */
static cudnnBackendDescriptor_t try_config(struct cudnn_graph *g, cudnnBackendDescriptor_t c, int64_t *workspace)
{
    const struct cudnn_functions *cudnn = g->target.cudnn;
    const struct attribute engine[] = {{CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &c}};
    char reason[384];
    int64_t count = 0;
    cudnnBackendDescriptor_t plan =
        make_descriptor(cudnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, engine, 1, reason, sizeof reason);
    const cudnnStatus_t status = plan ? cudnn->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                                        CUDNN_TYPE_INT64, 1, &count, workspace)
                                      : CUDNN_STATUS_SUCCESS;
    if (plan && status == CUDNN_STATUS_SUCCESS) return plan;
    if (plan) {
        describe_failure(cudnn, status, reason, sizeof reason);
        cudnn->cudnnBackendDestroyDescriptor(plan);
    }
    snprintf(g->why, sizeof g->why, "the last engine's plan: %s", reason);
    return NULL;
}

struct plan_list {
    const struct cudnn_filter *filter;
    struct cudnn_plan **plans;
    int count, most;
};

static bool cudnn_wants_kernel(const struct plan_list *list, uint64_t kernel)
{
    for (int i = 0; i < list->count; i++)
        if (list->plans[i]->kernel == kernel) return false;
    return !list->filter->kernel || list->filter->kernel == kernel;
}

/* Adds the plan of a proposal that passes; else `why` may have the reason. */
static void add_plan(struct plan_list *list, struct cudnn_graph *g, cudnnBackendDescriptor_t config, int64_t proposal)
{
    int64_t engine, workspace = 0;
    if (!is_deterministic(g, config, &engine) && !list->filter->unordered) {
        snprintf(g->why, sizeof g->why, "no engine's results repeat bit for bit");
        return;
    }
    const uint64_t kernel = hash_of_kernel(g->target.cudnn, config, engine);
    cudnnBackendDescriptor_t descriptor = cudnn_wants_kernel(list, kernel) ? try_config(g, config, &workspace) : NULL;
    heartbeat_beat();
    if (!descriptor) return;
    if (workspace < 0 || (size_t)workspace > list->filter->most_workspace) {
        snprintf(g->why, sizeof g->why, "it would need %.3f GiB of workspace", (double)workspace / (1 << 30));
        g->target.cudnn->cudnnBackendDestroyDescriptor(descriptor);
        return;
    }
    struct cudnn_plan *plan = list->plans[list->count++] = memory_zeroed(1, sizeof *plan);
    *plan = (struct cudnn_plan){.kernel = kernel,
                                .workspace = (size_t)workspace,
                                .engine = engine,
                                .proposal = proposal,
                                .graph = g,
                                .descriptor = descriptor};
    g->num_plans++;
}

/* Adds plans of one mode's proposals, which are counted from `first`. */
static void add_plans(struct plan_list *list, struct cudnn_graph *g, cudnnBackendDescriptor_t operations,
                      cudnnBackendHeurMode_t mode, int64_t first)
{
    cudnnBackendDescriptor_t configs[MAX_CONFIGS];
    if (list->count == list->most) return;
    const int count = propose_engines(g, operations, mode, configs);
    for (int i = 0; i < count && list->count < list->most; i++) add_plan(list, g, configs[i], first + i);
}

int cudnn_plans_new(struct cudnn_graph *g, const struct cudnn_filter *filter, struct cudnn_plan **plans, int most,
                    struct error *err)
{
    struct plan_list list = {.filter = filter, .plans = plans, .most = most};
    const int version = g->target.version;
    const struct attribute attributes[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, g->target.handle ? &g->target.handle : NULL},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->num_operations, g->operations}};
    cudnnBackendDescriptor_t operations = describe(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                                                   "the graph of operations", attributes, COUNT_OF(attributes));
    if (operations && filter->engine) {
        const cudnnBackendDescriptor_t config = config_of_engine(g, operations, filter->engine);
        if (config) add_plan(&list, g, config, -1);
    } else if (operations) {
        add_plans(&list, g, operations, CUDNN_HEUR_MODE_A, 0);
        add_plans(&list, g, operations, CUDNN_HEUR_MODE_FALLBACK, MAX_CONFIGS);
    }
    if (list.count > 0) return list.count;
    error_set(err, STATUS_DEVICE, "cuDNN %d.%d.%d has no plan: %s", version / 10000, version / 100 % 100, version % 100,
              *g->why ? g->why
                      : "it proposes no engine; hint: does it find libnvrtc? CUDNN_LOGLEVEL_DBG=2 and "
                        "CUDNN_LOGDEST_DBG=stderr in the environment make it print more");
    graph_free(g);
    return 0;
}

void cudnn_plan_free(struct cudnn_plan *plan)
{
    if (!plan) return;
    plan->graph->target.cudnn->cudnnBackendDestroyDescriptor(plan->descriptor);
    if (--plan->graph->num_plans == 0) graph_free(plan->graph);
    free(plan);
}

bool cudnn_plan_uses(const struct cudnn_plan *plan, int id)
{
    return plan->graph->used[id];
}

const char *cudnn_plan_execute(struct cudnn_plan *plan, cudaStream_t stream, void *const *at, int count, void *room)
{
    struct cudnn_graph *g = plan->graph;
    const struct cudnn_functions *cudnn = g->target.cudnn;
    int64_t ids[CUDNN_MAX_POINTERS + MAX_CONSTANTS], n = 0;
    const void *places[CUDNN_MAX_POINTERS + MAX_CONSTANTS];
    for (int i = 0; i < count; i++) {
        if (!g->used[i]) continue;
        ids[n] = i + 1;
        places[n++] = at[i];
    }
    for (int i = 0; i < g->num_constants; i++) {
        ids[n] = FIRST_CONSTANT + i;
        places[n++] = &g->constants[i];
    }
    const struct attribute attributes[] = {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids},
                                           {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, places},
                                           {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &room}};
    cudnnBackendDescriptor_t pack = make_descriptor(cudnn, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, attributes,
                                                    COUNT_OF(attributes), plan->why, sizeof plan->why);
    if (!pack) return plan->why;
    heartbeat_device_begin();
    cudnnStatus_t status = cudnn->cudnnSetStream(g->target.handle, stream);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnn->cudnnBackendExecute(g->target.handle, plan->descriptor, pack);
    heartbeat_device_end();
    if (status != CUDNN_STATUS_SUCCESS) describe_failure(cudnn, status, plan->why, sizeof plan->why);
    cudnn->cudnnBackendDestroyDescriptor(pack);
    return status == CUDNN_STATUS_SUCCESS ? NULL : plan->why;
}

/* ---- targets ------------------------------------------------------------- */

enum status cudnn_target_open(struct cudnn_target *target, struct error *err)
{
    *target = (struct cudnn_target){.handle = NULL};
    TRY(cudnn_open(&target->cudnn, err));
    target->version = (int)target->cudnn->cudnnGetVersion();
    SLOW("opening", "cuDNN", -1);
    const cudnnStatus_t status = target->cudnn->cudnnCreate(&target->handle);
    if (status == CUDNN_STATUS_SUCCESS) return STATUS_OK;
    target->handle = NULL;
    return error_set(err, STATUS_DEVICE, "cannot open cuDNN: %s", target->cudnn->cudnnGetErrorString(status));
}

void cudnn_target_close(struct cudnn_target *target)
{
    if (target->handle) target->cudnn->cudnnDestroy(target->handle);
    target->handle = NULL;
}

#else

enum status cudnn_target_open(struct cudnn_target *target, struct error *err)
{
    *target = (struct cudnn_target){.handle = NULL};
    return error_set(err, STATUS_DEVICE, "this build of ztrain has no cuDNN: it was built without its header");
}

void cudnn_target_close(struct cudnn_target *target)
{
    (void)target;
}

/* No target can be opened, so there are no plans. */
void cudnn_plan_free(struct cudnn_plan *plan)
{
    ASSERT(!plan);
}

bool cudnn_plan_uses(const struct cudnn_plan *plan, int id)
{
    (void)plan, (void)id;
    BUG("no cuDNN");
}

const char *cudnn_plan_execute(struct cudnn_plan *plan, cudaStream_t stream, void *const *at, int count, void *room)
{
    (void)plan, (void)stream, (void)at, (void)count, (void)room;
    BUG("no cuDNN");
}

#endif
