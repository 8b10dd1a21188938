/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_cudnn.cc: the functions of cuDNN that ztrain calls (gpu/cuda/cuda_libraries.h): operation graphs of the
 * backend API, computed operation by operation as they are written down.
 *
 * Descriptors keep their attributes. A plan copies its graph; executing it computes every operation in double, rounds
 * the results to the tensor's type (those that go to memory when they are written: the operations after them take them
 * unrounded, as a kernel may that still holds them in registers), and honours dimensions and strides as given; a
 * dimension of an operand that is a fraction of the result's is shared by groups (of heads). What lies outside of the
 * lengths of a product, or after the end of a ragged sequence, is NaN: a graph that lets it into a result is noticed.
 * Whether cuDNN would recognise the whole graph is not decided here: tests/emulation/cudnn_plans.c asks the real
 * library.
 *
 * Three engines are proposed for every graph: one whose bits do not repeat, which only a graph with sums of its own in
 * memory may take, one that has no plan, and one that works. ZTRAIN_EMULATION_CUDNN adds a fault to the library: "none"
 * proposes no engine, "wrong" returns results that are a quarter too large, "restless" returns other bits each time,
 * "few" does not propose the engine without a plan, "broken" fails in execution, "greedy" needs more workspace than the
 * GPU has memory, "large" needs 12 MiB for every sequence, "medium" 6 MiB, "heavy" 80 MiB for a backward pass, "old"
 * is an old version, "whole" reads whole matrices of dropout, also the tiles without a visible pair, "dense" has no
 * plan of a backward pass of ragged sequences, "unwindowed" none of attention with a window.
 *
 * ZTRAIN_EMULATION_ENGINE proposes one engine more, the last: "fast" or "slow" seems to take a minute less, or more,
 * than the others; "wrong" returns results that are a quarter too large, "dies" takes the process with it, "hungry" is
 * fast and needs more workspace than the others. "twin" and "cousin" are the engine that works, each with another
 * setting, and fast; "same" is it once more. "pieces" and "whole" propose none; executions of several sequences, or of
 * a single one, seem to take a minute more.
 *
 * Engines 5 and 6 are not proposed, but a program may name them: 5 takes graphs without sums of their own, 6 with four
 * stages graphs with such sums; both work. ZTRAIN_EMULATION_NAMED adds a fault to them: "absent", or "uncompiled":
 * their plans are not made; "wrong", "restless" as above. ZTRAIN_EMULATION_CUDNN_VERSION is the version that the
 * library says it is.
 *
 * ZTRAIN_EMULATION_SWIGLU: "fast" or "slow": products of experts, or with SwiGLU inside, seem to take a minute less, or
 * more, than those with a kernel for it; "wrong": their results are a quarter too large; "faults": the first of them loses the
 * context.
 */
#include "emulation_host.h"
#include "emulation_queue.h"

#if __has_include(<cudnn.h>)
#include <cudnn.h>

#include <algorithm>
#include <map>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

using namespace emulation;

struct cudnnContext {
    cudaStream_t stream;
};

namespace
{
enum { RANK = 4, ALIGNMENT = 16 };
enum engine {
    ENGINE_RESTLESS = 1,
    ENGINE_WITHOUT_PLAN,
    ENGINE_GOOD,
    ENGINE_SECOND,
    ENGINE_ORDERED,
    ENGINE_ORDERED_SUMS
};
const int64_t WORKSPACE = 1 << 16;

thread_local std::string last_message;

cudnnStatus_t fail(cudnnStatus_t code, const char *message)
{
    last_message = message;
    return code;
}

bool asked_for(const char *fault)
{
    const char *wish = getenv("ZTRAIN_EMULATION_CUDNN");
    return wish && strcmp(wish, fault) == 0;
}

bool second_is(const char *word)
{
    const char *set = getenv("ZTRAIN_EMULATION_ENGINE");
    return set && strcmp(set, word) == 0;
}

bool named_is(const char *word)
{
    const char *set = getenv("ZTRAIN_EMULATION_NAMED");
    return set && strcmp(set, word) == 0;
}

bool is_named(int64_t engine)
{
    return engine >= ENGINE_ORDERED;
}

int64_t proposals()
{
    const bool none = !getenv("ZTRAIN_EMULATION_ENGINE") || second_is("pieces") || second_is("whole");
    return none ? ENGINE_GOOD : ENGINE_SECOND;
}

/* The number of an engine, which several proposals may have. */
int64_t index_of_engine(int64_t proposed)
{
    const bool is_good = second_is("twin") || second_is("cousin") || second_is("same");
    return proposed == ENGINE_SECOND && is_good ? static_cast<int64_t>(ENGINE_GOOD) : proposed;
}

/* Its only setting. */
int64_t setting_of_engine(int64_t proposed)
{
    return proposed != ENGINE_SECOND ? 0 : second_is("twin") ? 1 : second_is("cousin") ? 2 : 0;
}

/* ---- descriptors --------------------------------------------------------- */

struct attribute {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
};

struct tensor {
    int64_t id, dims[RANK], strides[RANK];
    cudnnDataType_t type;
    bool is_virtual, by_value;
    int offsets; /* the index of the tensor with the offsets of its sequences; -1: it is not ragged */
};

enum node_kind { POINTWISE, MATMUL, REDUCTION, RESHAPE, GROUPED };
struct node {
    node_kind kind;
    int mode; /* cudnnPointwiseMode_t, cudnnReduceTensorOp_t */
    int64_t axis;
    int x, b, t, y; /* indices of tensors; -1: none */
    int lengths[3]; /* MATMUL: of m, n and k; GROUPED: where the rows of experts begin; indices, -1: none */
};

struct graph {
    std::vector<tensor> tensors;
    std::vector<node> nodes;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    std::map<int, attribute> attributes;
    graph compiled;        /* of an execution plan */
    int64_t engine_number; /* of an engine, of an engine configuration, of its setting: the proposal, enum engine */
};

descriptor *of(cudnnBackendDescriptor_t d)
{
    return static_cast<descriptor *>(d);
}

size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4; /* enums, float, int32 */
    }
}

bool has(const descriptor *d, int name)
{
    return d->attributes.count(name) > 0;
}

template <typename T> T get(const descriptor *d, int name, size_t i = 0)
{
    T value;
    auto found = d->attributes.find(name);
    if (found == d->attributes.end() || found->second.bytes.size() < (i + 1) * sizeof value)
        report("cuDNN: a descriptor of kind %d was finalized without attribute %d", static_cast<int>(d->type), name);
    memcpy(&value, found->second.bytes.data() + i * sizeof value, sizeof value);
    return value;
}

const descriptor *child(const descriptor *d, int name, cudnnBackendDescriptorType_t type, size_t i = 0)
{
    const descriptor *c = of(get<cudnnBackendDescriptor_t>(d, name, i));
    if (!c || c->type != type || !c->finalized)
        report("cuDNN: attribute %d is not a finalized descriptor of kind %d", name, static_cast<int>(type));
    return c;
}

/* ---- compiling ----------------------------------------------------------- */

int operand(graph &g, const descriptor *operation, int name);

int add_tensor(graph &g, const descriptor *d)
{
    tensor t;
    t.offsets = operand(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
    t.id = get<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t.type = get<cudnnDataType_t>(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
    const size_t rank = static_cast<size_t>(d->attributes.at(CUDNN_ATTR_TENSOR_DIMENSIONS).count), unused = RANK - rank;
    for (size_t i = 0; i < RANK; i++) { /* three dimensions: those after one of 1 */
        t.dims[i] = i < unused ? 1 : get<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS, i - unused);
        t.strides[i] = i < unused ? 0 : get<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES, i - unused);
    }
    t.is_virtual = has(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && get<bool>(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    t.by_value = has(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE) && get<bool>(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (size_t i = 0; i < g.tensors.size(); i++)
        if (g.tensors[i].id == t.id)
            return static_cast<int>(i);
    g.tensors.push_back(t);
    return static_cast<int>(g.tensors.size()) - 1;
}

int operand(graph &g, const descriptor *operation, int name)
{
    return has(operation, name) ? add_tensor(g, child(operation, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR)) : -1;
}

node compile_node(graph &g, const descriptor *o)
{
    node n = {};
    n.b = n.t = n.lengths[0] = n.lengths[1] = n.lengths[2] = -1;
    switch (o->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
        const descriptor *how =
            child(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
        n.kind = POINTWISE;
        n.mode = get<cudnnPointwiseMode_t>(how, CUDNN_ATTR_POINTWISE_MODE);
        n.axis = n.mode == CUDNN_POINTWISE_GEN_INDEX ? get<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS) : 0;
        const bool back = n.mode == CUDNN_POINTWISE_TANH_BWD; /* dy is x, what tanh was of is b */
        n.x = operand(g, o, back ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        n.b = operand(g, o, back ? CUDNN_ATTR_OPERATION_POINTWISE_XDESC : CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        n.t = operand(g, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        n.y = operand(g, o, back ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        break;
    }
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        child(o, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
        n.kind = MATMUL;
        n.x = operand(g, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        n.b = operand(g, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        n.y = operand(g, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        n.lengths[0] = operand(g, o, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
        n.lengths[1] = operand(g, o, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
        n.lengths[2] = operand(g, o, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        n.kind = REDUCTION;
        n.mode = get<cudnnReduceTensorOp_t>(
            child(o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
            CUDNN_ATTR_REDUCTION_OPERATOR);
        n.x = operand(g, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        n.y = operand(g, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        n.kind = RESHAPE;
        n.x = operand(g, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        n.y = operand(g, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        break;
#if CUDNN_VERSION >= 91500
    case CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR:
        n.kind = GROUPED;
        n.x = operand(g, o, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC);
        n.b = operand(g, o, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC);
        n.y = operand(g, o, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC);
        n.lengths[0] = operand(g, o, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC);
        break;
#endif
    default: report("cuDNN: an operation of kind %d, which the emulation does not know", static_cast<int>(o->type));
    }
    return n;
}

/* Every virtual tensor is computed once, before it is used; the operands' sizes fit. */
void check_node(const graph &g, const node &n, std::vector<bool> &there)
{
    const tensor &y = g.tensors[static_cast<size_t>(n.y)];
    const int sources[] = {n.x, n.b, n.t};
    for (int source : sources) {
        if (source < 0)
            continue;
        const tensor &s = g.tensors[static_cast<size_t>(source)];
        if (s.is_virtual && !there[static_cast<size_t>(source)])
            report("cuDNN: virtual tensor %lld is used before it is computed", static_cast<long long>(s.id));
        for (int i = 0; n.kind == POINTWISE && i < RANK; i++)
            if (s.dims[i] != 1 && s.dims[i] != y.dims[i])
                report("cuDNN: a pointwise operand of %lld values in dimension %d, its result has %lld",
                       static_cast<long long>(s.dims[i]), i, static_cast<long long>(y.dims[i]));
    }
    if (n.kind == MATMUL || n.kind == GROUPED) {
        const tensor &a = g.tensors[static_cast<size_t>(n.x)], &b = g.tensors[static_cast<size_t>(n.b)];
        if (a.dims[2] != y.dims[2] || a.dims[3] != b.dims[2] || b.dims[3] != y.dims[3])
            report("cuDNN: a product of matrices whose sizes do not fit");
    }
    if (there[static_cast<size_t>(n.y)] || y.by_value)
        report("cuDNN: tensor %lld is computed twice", static_cast<long long>(y.id));
    there[static_cast<size_t>(n.y)] = true;
}

graph compile(const descriptor *operations)
{
    graph g;
    const size_t count = static_cast<size_t>(operations->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).count);
    for (size_t i = 0; i < count; i++) {
        const descriptor *o = of(get<cudnnBackendDescriptor_t>(operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, i));
        if (!o->finalized)
            report("cuDNN: a graph with an operation that was not finalized");
        g.nodes.push_back(compile_node(g, o));
    }
    std::vector<bool> there(g.tensors.size());
    for (const node &n : g.nodes)
        check_node(g, n, there);
    return g;
}

/* ---- computing ----------------------------------------------------------- */

size_t element_size(cudnnDataType_t type)
{
    switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_INT64: return 8;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    default: return 1;
    }
}

double rounded(cudnnDataType_t type, double x)
{
    float f = static_cast<float>(x);
    switch (type) {
    case CUDNN_DATA_HALF: return static_cast<double>(__half2float(__float2half_rn(f)));
    case CUDNN_DATA_BFLOAT16: return static_cast<double>(__bfloat162float(__float2bfloat16_rn(f)));
    case CUDNN_DATA_FLOAT: return static_cast<double>(f);
    default: return x; /* integers and truth values */
    }
}

double load(cudnnDataType_t type, const char *p)
{
    switch (type) {
    case CUDNN_DATA_HALF: return static_cast<double>(__half2float(*reinterpret_cast<const __half *>(p)));
    case CUDNN_DATA_BFLOAT16: return static_cast<double>(__bfloat162float(*reinterpret_cast<const __nv_bfloat16 *>(p)));
    case CUDNN_DATA_FLOAT: return static_cast<double>(*reinterpret_cast<const float *>(p));
    case CUDNN_DATA_INT32: return static_cast<double>(*reinterpret_cast<const int32_t *>(p));
    case CUDNN_DATA_INT64: return static_cast<double>(*reinterpret_cast<const int64_t *>(p));
    default: report("cuDNN: a tensor in memory of type %d", static_cast<int>(type));
    }
}

void store(cudnnDataType_t type, char *p, double x)
{
    float f = static_cast<float>(x);
    switch (type) {
    case CUDNN_DATA_HALF: *reinterpret_cast<__half *>(p) = __float2half_rn(f); break;
    case CUDNN_DATA_BFLOAT16: *reinterpret_cast<__nv_bfloat16 *>(p) = __float2bfloat16_rn(f); break;
    default: *reinterpret_cast<float *>(p) = f; break;
    }
}

int64_t volume(const tensor &t)
{
    return t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3];
}

struct place {
    int64_t at[RANK];
};

/* Calls visit(number, place) for every element, rows of the last dimension one after the other. */
template <typename Visit> void for_each_place(const int64_t dims[RANK], Visit visit)
{
    int64_t number = 0;
    place p;
    for (p.at[0] = 0; p.at[0] < dims[0]; p.at[0]++)
        for (p.at[1] = 0; p.at[1] < dims[1]; p.at[1]++)
            for (p.at[2] = 0; p.at[2] < dims[2]; p.at[2]++)
                for (p.at[3] = 0; p.at[3] < dims[3]; p.at[3]++)
                    visit(number++, p);
}

/* The element of `t` for a place in `dims`: smaller dimensions of `t` are shared by groups. */
int64_t number_at(const tensor &t, const int64_t dims[RANK], const place &p)
{
    int64_t number = 0;
    for (int i = 0; i < RANK; i++)
        number = number * t.dims[i] + (t.dims[i] == dims[i] ? p.at[i] : p.at[i] * t.dims[i] / dims[i]);
    return number;
}

int64_t offset_at(const tensor &t, const place &p)
{
    int64_t offset = 0;
    for (int i = 0; i < RANK; i++)
        offset += p.at[i] * t.strides[i];
    return offset;
}

typedef std::vector<double> values; /* of a tensor, dense */

/* Whether the element of a ragged tensor comes before the end of its sequence; *offset: its place. */
bool ragged_offset(const tensor &t, const values &offsets, const place &p, int64_t *offset)
{
    const size_t b = static_cast<size_t>(p.at[0]);
    const int64_t begin = static_cast<int64_t>(offsets[b]), end = static_cast<int64_t>(offsets[b + 1]);
    const int64_t inside = p.at[1] * t.strides[1] + p.at[2] * t.strides[2] + p.at[3] * t.strides[3];
    *offset = begin + inside;
    return inside < end - begin;
}

/* The same of any tensor in memory. */
bool is_there(const std::vector<values> &all, const tensor &t, const place &p, int64_t *offset)
{
    if (t.offsets >= 0)
        return ragged_offset(t, all[static_cast<size_t>(t.offsets)], p, offset);
    *offset = offset_at(t, p);
    return true;
}

/* The values of a tensor in memory; NaN after the end of a ragged sequence. */
void load_tensor(const graph &g, std::vector<values> &all, size_t i, const std::vector<char *> &places)
{
    const tensor &t = g.tensors[i];
    all[i].resize(static_cast<size_t>(volume(t)));
    for_each_place(t.dims, [&](int64_t number, const place &p) {
        int64_t offset;
        all[i][static_cast<size_t>(number)] =
            is_there(all, t, p, &offset)
                ? load(t.type, open_alias(places[i]) + offset * static_cast<int64_t>(element_size(t.type)))
                : NAN;
    });
}

double pointwise(int mode, double x, double b, bool t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_SIGMOID_FWD: return 1 / (1 + exp(-x));
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_TANH_FWD: return tanh(x);
    case CUDNN_POINTWISE_TANH_BWD: return x * (1 - tanh(b) * tanh(b));
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_CMP_GT: return x > b;
    case CUDNN_POINTWISE_CMP_LT: return x < b;
    case CUDNN_POINTWISE_LOGICAL_AND: return x != 0 && b != 0;
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_BINARY_SELECT: return t ? x : b;
    default: report("cuDNN: pointwise mode %d, which the emulation does not know", mode);
    }
}

/* Whether the graph hides keys after a query. */
bool is_causal(const graph &g)
{
    for (const node &n : g.nodes)
        if (n.kind == POINTWISE && n.mode == CUDNN_POINTWISE_CMP_GE)
            return true;
    return false;
}

const int64_t TILE = 256; /* queries and keys: of the matrices in memory, tiles without a visible pair are not read */

/* Whether the tensor is a matrix in memory for each head that scores are multiplied with: of dropout. */
bool is_matrix_of_scores(const graph &g, int i)
{
    for (const node &n : g.nodes)
        if (i >= 0 && n.kind == POINTWISE && n.b == i && n.x != i && !g.tensors[static_cast<size_t>(i)].is_virtual &&
            g.tensors[static_cast<size_t>(i)].dims[3] > 1 && g.tensors[static_cast<size_t>(n.y)].is_virtual &&
            n.mode == CUDNN_POINTWISE_MUL && g.tensors[static_cast<size_t>(n.x)].is_virtual)
            return true;
    return false;
}

void compute_pointwise(const graph &g, const node &n, std::vector<values> &all)
{
    const bool in_tiles = !asked_for("whole") && is_causal(g) && is_matrix_of_scores(g, n.b);
    const tensor &y = g.tensors[static_cast<size_t>(n.y)];
    auto value = [&](int source, const place &p) {
        if (source < 0)
            return 0.0;
        return all[static_cast<size_t>(source)]
                  [static_cast<size_t>(number_at(g.tensors[static_cast<size_t>(source)], y.dims, p))];
    };
    for_each_place(y.dims, [&](int64_t number, const place &p) {
        all[static_cast<size_t>(n.y)][static_cast<size_t>(number)] =
            in_tiles && p.at[3] / TILE > p.at[2] / TILE ? 0
            : n.mode == CUDNN_POINTWISE_GEN_INDEX       ? static_cast<double>(p.at[n.axis])
                                                  : pointwise(n.mode, value(n.x, p), value(n.b, p), value(n.t, p) != 0);
    });
}

void compute_matmul(const graph &g, const node &n, std::vector<values> &all)
{
    const tensor &a = g.tensors[static_cast<size_t>(n.x)], &b = g.tensors[static_cast<size_t>(n.b)],
                 &y = g.tensors[static_cast<size_t>(n.y)];
    const double *a_values = all[static_cast<size_t>(n.x)].data(), *b_values = all[static_cast<size_t>(n.b)].data();
    const int64_t columns = y.dims[3];
    auto length = [&](int which, const place &p, int64_t whole) {
        const int i = n.lengths[which];
        return i < 0 ? whole : static_cast<int64_t>(all[static_cast<size_t>(i)][static_cast<size_t>(p.at[0])]);
    };
    for_each_place(y.dims, [&](int64_t number, const place &p) {
        const int64_t k = length(2, p, a.dims[3]);
        double sum = p.at[2] < length(0, p, y.dims[2]) && p.at[3] < length(1, p, columns) ? 0 : NAN;
        const int64_t a_matrix = p.at[0] * a.dims[0] / y.dims[0] * a.dims[1] + p.at[1] * a.dims[1] / y.dims[1];
        const int64_t b_matrix = p.at[0] * b.dims[0] / y.dims[0] * b.dims[1] + p.at[1] * b.dims[1] / y.dims[1];
        const double *row = a_values + (a_matrix * a.dims[2] + p.at[2]) * a.dims[3];
        const double *column = b_values + b_matrix * b.dims[2] * columns + p.at[3];
        for (int64_t i = 0; i < k; i++)
            sum += row[i] * column[i * columns];
        all[static_cast<size_t>(n.y)][static_cast<size_t>(number)] = sum;
    });
}

/* The last expert has all rows from its first one on. */
void compute_grouped(const graph &g, const node &n, std::vector<values> &all)
{
    const tensor &a = g.tensors[static_cast<size_t>(n.x)], &b = g.tensors[static_cast<size_t>(n.b)],
                 &y = g.tensors[static_cast<size_t>(n.y)];
    const values &x = all[static_cast<size_t>(n.x)], &w = all[static_cast<size_t>(n.b)],
                 &firsts = all[static_cast<size_t>(n.lengths[0])];
    const int64_t K = a.dims[3], N = y.dims[3];
    for_each_place(y.dims, [&](int64_t number, const place &p) {
        int64_t e = 0;
        while (e + 1 < b.dims[1] && static_cast<int64_t>(firsts[static_cast<size_t>(e) + 1]) <= p.at[2])
            e++;
        double sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += x[static_cast<size_t>(p.at[2] * K + k)] * w[static_cast<size_t>((e * K + k) * N + p.at[3])];
        all[static_cast<size_t>(n.y)][static_cast<size_t>(number)] = sum;
    });
}

void compute_reduction(const graph &g, const node &n, std::vector<values> &all)
{
    const tensor &x = g.tensors[static_cast<size_t>(n.x)], &y = g.tensors[static_cast<size_t>(n.y)];
    const bool is_max = n.mode == CUDNN_REDUCE_TENSOR_MAX;
    if (!is_max && n.mode != CUDNN_REDUCE_TENSOR_ADD)
        report("cuDNN: reduction %d, which the emulation does not know", n.mode);
    values &out = all[static_cast<size_t>(n.y)];
    std::fill(out.begin(), out.end(), is_max ? -HUGE_VAL : 0);
    for_each_place(x.dims, [&](int64_t number, const place &p) {
        double &to = out[static_cast<size_t>(number_at(y, x.dims, p))];
        const double value = all[static_cast<size_t>(n.x)][static_cast<size_t>(number)];
        to = is_max ? (value > to || value != value ? value : to) : to + value;
    });
}

/* Exchanges the two last dimensions. */
void compute_reshape(const graph &g, const node &n, std::vector<values> &all)
{
    const tensor &x = g.tensors[static_cast<size_t>(n.x)], &y = g.tensors[static_cast<size_t>(n.y)];
    const int from[RANK] = {0, 1, 3, 2};
    for (int i = 0; i < RANK; i++)
        if (y.dims[i] != x.dims[from[i]] || y.strides[i] != x.strides[from[i]])
            report("cuDNN: a reshape that is not a transposition");
    for_each_place(y.dims, [&](int64_t number, const place &p) {
        const int64_t matrix = p.at[0] * x.dims[1] + p.at[1];
        all[static_cast<size_t>(n.y)][static_cast<size_t>(number)] =
            all[static_cast<size_t>(n.x)][static_cast<size_t>((matrix * x.dims[2] + p.at[3]) * x.dims[3] + p.at[2])];
    });
}

/* Whether SwiGLU, or its gradient, or experts are a part of the graph. */
bool has_swiglu(const graph &g)
{
    return std::any_of(g.nodes.begin(), g.nodes.end(), [](const node &n) {
        return n.kind == GROUPED || (n.kind == POINTWISE && n.mode == CUDNN_POINTWISE_SIGMOID_FWD);
    });
}

void compute(const graph &g, const std::vector<char *> &places, const std::vector<float> &scalars, int64_t engine)
{
    const bool restless = engine == ENGINE_RESTLESS || (is_named(engine) && named_is("restless"));
    const bool wrong = (is_named(engine) && named_is("wrong")) || (engine == ENGINE_SECOND && second_is("wrong")) ||
                       (has_swiglu(g) && swiglu_is("wrong"));
    static uint64_t executions;
    std::vector<values> all(g.tensors.size());
    std::vector<bool> written(g.tensors.size());
    stats.products++;
    for (const node &n : g.nodes)
        written[static_cast<size_t>(n.y)] = true;
    for (size_t i = 0; i < g.tensors.size(); i++) {
        const tensor &t = g.tensors[i];
        all[i].resize(static_cast<size_t>(volume(t)));
        if (t.by_value)
            all[i][0] = static_cast<double>(scalars[i]);
        else if (!t.is_virtual && !written[i])
            load_tensor(g, all, i, places);
    }
    for (const node &n : g.nodes) {
        switch (n.kind) {
        case POINTWISE: compute_pointwise(g, n, all); break;
        case MATMUL: compute_matmul(g, n, all); break;
        case REDUCTION: compute_reduction(g, n, all); break;
        case GROUPED: compute_grouped(g, n, all); break;
        default: compute_reshape(g, n, all); break;
        }
        const tensor &y = g.tensors[static_cast<size_t>(n.y)];
        for (double &x : all[static_cast<size_t>(n.y)])
            if (y.is_virtual)
                x = rounded(y.type, x);
    }
    const double factor = asked_for("wrong") || wrong         ? 1.25
                          : asked_for("restless") || restless ? 1 + 0.005 * static_cast<double>(++executions % 3)
                                                              : 1;
    for (size_t i = 0; i < g.tensors.size(); i++) {
        const tensor &t = g.tensors[i];
        if (!t.is_virtual && written[i])
            for_each_place(t.dims, [&](int64_t number, const place &p) {
                int64_t offset;
                if (is_there(all, t, p, &offset))
                    store(t.type, open_alias(places[i]) + offset * static_cast<int64_t>(element_size(t.type)),
                          factor * all[i][static_cast<size_t>(number)]);
            });
    }
}

/* Whether the graph keeps sums of its own in memory, to which an engine may add in any order. */
bool has_sums(const graph &g)
{
    for (const node &n : g.nodes) {
        const tensor &y = g.tensors[static_cast<size_t>(n.y)];
        if (n.kind == MATMUL && !y.is_virtual && y.type == CUDNN_DATA_FLOAT)
            return true;
    }
    return false;
}

bool is_ragged_backward(const graph &g)
{
    int products = 0, ragged = 0;
    for (const node &n : g.nodes)
        products += n.kind == MATMUL;
    for (const tensor &t : g.tensors)
        ragged += t.offsets >= 0;
    return products > 2 && ragged > 0;
}

/* The operations that an engine's configuration is for: proposed, or named. */
const descriptor *operations_of(const descriptor *config)
{
    if (has(config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH))
        return child(config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    return child(child(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                 CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
}

/* Whether a named engine, with its stages, takes the graph. */
bool takes_graph(const descriptor *config, const graph &g)
{
    int64_t stages = 0;
    const size_t count = static_cast<size_t>(config->attributes.at(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).count);
    for (size_t i = 0; i < count; i++) {
        const descriptor *knob =
            child(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, i);
        if (get<cudnnBackendKnobType_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) == CUDNN_KNOB_TYPE_STAGES)
            stages = get<int64_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    }
    return config->engine_number == ENGINE_ORDERED ? !has_sums(g) : stages == 4 && has_sums(g);
}

/* ---- what an execution touches ------------------------------------------- */

/* The bytes of a tensor, as few ranges as there are gaps. */
void add_ranges(std::vector<range> &ranges, const tensor &t, char *base, bool write)
{
    const int64_t size = static_cast<int64_t>(element_size(t.type));
    int order[RANK] = {0, 1, 2, 3};
    std::stable_sort(order, order + RANK, [&](int a, int b) { return t.strides[a] > t.strides[b]; });
    int64_t dims[RANK], last = 0;
    for (int i = 0; i < RANK; i++) {
        dims[i] = t.dims[order[i]];
        last += (dims[i] - 1) * t.strides[order[i]];
    }
    check_range("cuDNN: a tensor", base, static_cast<size_t>((last + 1) * size));
    if (reinterpret_cast<uintptr_t>(base) % ALIGNMENT)
        report("cuDNN: tensor %lld is not aligned to %d bytes", static_cast<long long>(t.id), ALIGNMENT);
    char *begin = base, *end = base;
    for_each_place(dims, [&](int64_t, const place &p) {
        char *at = base;
        for (int i = 0; i < RANK; i++)
            at += p.at[i] * t.strides[order[i]] * size;
        if (at != end) {
            if (end > begin)
                ranges.push_back({begin, static_cast<size_t>(end - begin), write});
            begin = at;
        }
        end = at + size;
    });
    ranges.push_back({begin, static_cast<size_t>(end - begin), write});
}

/* The bytes of a ragged tensor, when its offsets are known. */
void add_ragged_ranges(std::vector<range> &ranges, const graph &g, size_t i, const std::vector<char *> &places,
                       bool write)
{
    const tensor &t = g.tensors[i];
    const int64_t size = static_cast<int64_t>(element_size(t.type));
    std::vector<values> all(g.tensors.size());
    load_tensor(g, all, static_cast<size_t>(t.offsets), places);
    for_each_place(t.dims, [&](int64_t, const place &p) {
        int64_t offset;
        if (!is_there(all, t, p, &offset))
            return;
        char *at = places[i] + offset * size;
        range *last = ranges.empty() ? nullptr : &ranges.back();
        if (last && last->write == write && static_cast<const char *>(last->p) + last->bytes == at)
            last->bytes += static_cast<size_t>(size);
        else
            ranges.push_back({at, static_cast<size_t>(size), write});
    });
}

/* The bytes of a matrix of scores that are read, when the lengths of the sequences are known. */
void add_tiles(std::vector<range> &ranges, const graph &g, size_t i, const std::vector<char *> &places)
{
    const tensor &t = g.tensors[i];
    const bool causal = is_causal(g);
    std::vector<values> all(g.tensors.size());
    int lengths = -1;
    for (const node &n : g.nodes)
        if (n.kind == MATMUL && n.lengths[0] >= 0)
            lengths = n.lengths[0];
    if (lengths >= 0)
        load_tensor(g, all, static_cast<size_t>(lengths), places);
    const int64_t rows[RANK] = {t.dims[0], t.dims[1], t.dims[2], 1};
    for_each_place(rows, [&](int64_t, const place &p) {
        int64_t end = t.dims[3];
        if (lengths >= 0)
            end = static_cast<int64_t>(all[static_cast<size_t>(lengths)][static_cast<size_t>(p.at[0])]);
        if (p.at[2] / TILE * TILE >= end)
            return;
        end = (end + TILE - 1) / TILE * TILE;
        end = std::min(t.dims[3], causal ? std::min(end, (p.at[2] / TILE + 1) * TILE) : end);
        const int64_t size = static_cast<int64_t>(element_size(t.type));
        ranges.push_back({places[i] + offset_at(t, p) * size, static_cast<size_t>(end * size), false});
    });
}

void *pointer_of(const descriptor *pack, int64_t id)
{
    const size_t count = static_cast<size_t>(pack->attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count);
    for (size_t i = 0; i < count; i++)
        if (get<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) == id)
            return get<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    report("cuDNN: no pointer was given for tensor %lld", static_cast<long long>(id));
}

int64_t sequences_of(const graph &g)
{
    return g.tensors[static_cast<size_t>(g.nodes[0].y)].dims[0];
}

/* A backward pass has five products, forward two. */
bool is_backward(const graph &g)
{
    return std::count_if(g.nodes.begin(), g.nodes.end(), [](const node &n) { return n.kind == MATMUL; }) > 2;
}

bool has_window(const graph &g)
{
    return std::any_of(g.nodes.begin(), g.nodes.end(),
                       [](const node &n) { return n.kind == POINTWISE && n.mode == CUDNN_POINTWISE_CMP_GT; });
}

int64_t workspace_of(const graph &g, int64_t engine)
{
    const int64_t more = engine == ENGINE_SECOND && second_is("hungry") ? 1 << 20 : 0;
    if (is_named(engine))
        return WORKSPACE;
    if (asked_for("greedy"))
        return INT64_C(1) << 50;
    if (asked_for("heavy") && is_backward(g))
        return 80 << 20;
    return asked_for("large")    ? sequences_of(g) * (12 << 20)
           : asked_for("medium") ? sequences_of(g) * (6 << 20)
                                 : WORKSPACE + more;
}

/* Adds to the times that events show. */
void plant_cost(const graph &g, int64_t engine)
{
    const bool second = engine == ENGINE_SECOND;
    const bool fast = second_is("fast") || second_is("hungry") || second_is("twin") || second_is("cousin");
    if (second ? second_is("slow") : fast)
        planted_seconds += 60;
    if (engine == ENGINE_GOOD && has_sums(g)) /* the other one need not keep an order */
        planted_seconds += 60;
    if (second_is(sequences_of(g) > 1 ? "pieces" : "whole"))
        planted_seconds += 60;
    if (has_swiglu(g) && swiglu_is("slow"))
        planted_seconds += 60;
}
} // namespace

extern "C" {

size_t cudnnGetVersion(void)
{
    const char *version = getenv("ZTRAIN_EMULATION_CUDNN_VERSION");
    return asked_for("old") ? 90100 : version ? static_cast<size_t>(atoi(version)) : CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                  : "CUDNN_STATUS_BAD_PARAM";
}

void cudnnGetLastErrorString(char *message, size_t size)
{
    if (size)
        message[last_message.copy(message, size - 1)] = 0;
    last_message.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    be_slow("cudnnCreate");
    *handle = new cudnnContext{nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d)
{
    *d = new descriptor{type, false, {}, {}, 0};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    delete of(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (of(d)->finalized || count < 0)
        return fail(CUDNN_STATUS_BAD_PARAM, "an attribute of a finalized descriptor");
    const char *bytes = static_cast<const char *>(values);
    of(d)->attributes[name] = {type, count,
                               std::vector<char>(bytes, bytes + static_cast<size_t>(count) * size_of(type))};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t wanted, int64_t *count, void *values)
{
    const descriptor *from = of(d);
    if (!from->finalized)
        return fail(CUDNN_STATUS_BAD_PARAM, "an attribute of a descriptor that is not finalized");
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
        const bool first = get<cudnnBackendHeurMode_t>(from, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A;
        *count = 0;
        for (int64_t engine = 1; first && !asked_for("none") && engine <= proposals() && *count < wanted; engine++) {
            if (engine == ENGINE_WITHOUT_PLAN && asked_for("few"))
                continue;
            descriptor *config = of(static_cast<cudnnBackendDescriptor_t *>(values)[(*count)++]);
            config->engine_number = engine;
            config->finalized = true;
            config->attributes = from->attributes; /* the graph */
        }
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
        descriptor *engine = of(*static_cast<cudnnBackendDescriptor_t *>(values));
        engine->engine_number = from->engine_number;
        engine->finalized = true;
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: /* that of a named engine is its number here */
        *static_cast<int64_t *>(values) = index_of_engine(from->engine_number);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: {
        if (is_named(from->engine_number)) {
            *count = from->attributes.at(name).count;
            for (int64_t i = 0; i < *count && i < wanted; i++)
                *of(static_cast<cudnnBackendDescriptor_t *>(values)[i]) =
                    *child(from, name, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, static_cast<size_t>(i));
            return CUDNN_STATUS_SUCCESS;
        }
        descriptor *knob = of(*static_cast<cudnnBackendDescriptor_t *>(values));
        knob->engine_number = from->engine_number;
        knob->finalized = true;
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
        *static_cast<cudnnBackendKnobType_t *>(values) =
            has(from, name) ? get<cudnnBackendKnobType_t>(from, name) : CUDNN_KNOB_TYPE_TILE_SIZE;
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
        *static_cast<int64_t *>(values) =
            has(from, name) ? get<int64_t>(from, name) : setting_of_engine(from->engine_number);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = from->engine_number == ENGINE_RESTLESS;
        if (*count && wanted)
            *static_cast<cudnnBackendNumericalNote_t *>(values) = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *static_cast<int64_t *>(values) = workspace_of(from->compiled, from->engine_number);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    default: return fail(CUDNN_STATUS_NOT_SUPPORTED, "an attribute that the emulation does not know");
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    descriptor *made = of(d);
    if (made->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const descriptor *config =
            child(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        made->engine_number = config->engine_number;
        if (made->engine_number == ENGINE_WITHOUT_PLAN)
            return fail(CUDNN_STATUS_NOT_SUPPORTED, "this engine has no plan");
        made->compiled = compile(operations_of(config));
        if (asked_for("dense") && is_ragged_backward(made->compiled))
            return fail(CUDNN_STATUS_NOT_SUPPORTED, "no engine takes ragged sequences backward");
        if (asked_for("unwindowed") && has_window(made->compiled))
            return fail(CUDNN_STATUS_NOT_SUPPORTED, "no engine takes a window");
        if (is_named(made->engine_number) && named_is("uncompiled"))
            return fail(CUDNN_STATUS_NOT_SUPPORTED, "the named engine's kernel does not compile");
        if (is_named(made->engine_number) && !takes_graph(config, made->compiled))
            return fail(CUDNN_STATUS_NOT_SUPPORTED, "the named engine does not take this graph");
    }
    if (made->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
        made->engine_number = get<int64_t>(made, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
        if (!is_named(made->engine_number) || named_is("absent"))
            return fail(CUDNN_STATUS_NOT_SUPPORTED, "there is no such engine");
    }
    if (made->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
        made->engine_number = child(made, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR)->engine_number;
    if (made->type == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)
        return fail(CUDNN_STATUS_NOT_SUPPORTED, "the emulation is one GPU and knows no other");
    made->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    guard lock(big_lock);
    enter("cudnnBackendExecute");
    const graph g = of(plan)->compiled;
    if (has_swiglu(g) && swiglu_is("faults"))
        lose_context(); /* what was queued runs nevertheless: its results are not used */
    if (asked_for("broken"))
        return fail(CUDNN_STATUS_BAD_PARAM, "it was asked to fail");
    const int64_t engine = of(plan)->engine_number;
    if (engine == ENGINE_SECOND && second_is("dies"))
        _exit(99);
    plant_cost(g, engine);
    if (engine == ENGINE_RESTLESS && !has_sums(g))
        report("cuDNN: an engine whose results do not repeat was taken");
    operation op;
    op.name = "cudnnBackendExecute (" + std::to_string(g.nodes.size()) + " operations)";
    std::vector<char *> places(g.tensors.size());
    std::vector<float> scalars(g.tensors.size());
    std::vector<bool> written(g.tensors.size());
    for (const node &n : g.nodes)
        written[static_cast<size_t>(n.y)] = true;
    for (size_t i = 0; i < g.tensors.size(); i++) {
        const tensor &t = g.tensors[i];
        if (t.is_virtual)
            continue;
        places[i] = static_cast<char *>(pointer_of(of(pack), t.id));
        if (t.by_value)
            memcpy(&scalars[i], places[i], sizeof scalars[i]);
        else if (t.offsets < 0 && !is_matrix_of_scores(g, static_cast<int>(i)))
            add_ranges(op.ranges, t, places[i], written[i]);
    }
    void *workspace = get<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    check_range("cuDNN: workspace", workspace, static_cast<size_t>(workspace_of(g, engine)));
    op.ranges.push_back({workspace, 64, true}); /* its first bytes represent the whole */
    op.more_ranges = [g, places, written](std::vector<range> &ranges) {
        for (size_t i = 0; i < g.tensors.size(); i++) {
            if (is_matrix_of_scores(g, static_cast<int>(i)))
                add_tiles(ranges, g, i, places);
            else if (!g.tensors[i].is_virtual && g.tensors[i].offsets >= 0)
                add_ragged_ranges(ranges, g, i, places, written[i]);
        }
    };
    op.run = [g, places, scalars, workspace, engine] {
        memset(open_alias(workspace), 0xff, 64);
        compute(g, places, scalars, engine);
    };
    enqueue(lock, stream_of(handle->stream), std::move(op));
    return CUDNN_STATUS_SUCCESS;
}
}
#endif
