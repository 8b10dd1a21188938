/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_graph.cc: captures of streams, and launches of the captured graphs.
 *
 * Work on a capturing stream becomes a node of the capture instead of being queued; a node depends on the node before it
 * in its stream, and on those of the events that the stream has waited for. Streams join a capture by waiting for one of
 * its events, and have to be joined to its origin again before it ends. Calls that CUDA forbids invalidate the capture
 * with CUDA's error: waiting for an event from outside, querying or waiting for the device on the capturing thread,
 * allocating, leaving work on a stream that was not joined. With ZTRAIN_EMULATION_NO_CAPTURE in the environment no
 * capture succeeds, or, if it is "steps", none of several streams.
 *
 * A launch queues the nodes on streams that belong to the graph, one for each parallel branch (a graph without parallel
 * branches runs on the stream of its launch), ordered by the graph's dependencies alone: so the order of execution is as
 * adversarial as elsewhere, and the vector clocks check accesses in the graph. The captured streams do not matter any
 * more. */
#include "emulation_queue.h"

#include <algorithm>
#include <stdlib.h>
#include <thread>

namespace emulation
{
struct graph_node {
    operation op;
    std::vector<int> after;
};

struct graph_capture {
    uint64_t number;
    std::thread::id owner;
    bool relaxed;
    stream_state *origin;
    cudaError_t spoiled; /* the error that invalidated it; cudaSuccess: none */
    std::vector<graph_node> nodes;
};

namespace
{
uint64_t captures;

struct graph {
    std::vector<graph_node> nodes;
};

struct executable {
    std::vector<graph_node> nodes;
    std::vector<int> branch; /* of each node */
    std::vector<stream_state *> branches; /* none: there is one, which runs on the stream of the launch */
    clock_vector last;                    /* after the last launch */
};

void add(std::vector<int> &to, const std::vector<int> &from)
{
    for (int node : from)
        if (std::find(to.begin(), to.end(), node) == to.end())
            to.push_back(node);
}

/* The nodes that these come after, and themselves. */
std::vector<bool> reached(const std::vector<graph_node> &nodes, std::vector<int> left)
{
    std::vector<bool> found(nodes.size());
    while (!left.empty()) {
        int node = left.back();
        left.pop_back();
        if (found[static_cast<size_t>(node)])
            continue;
        found[static_cast<size_t>(node)] = true;
        left.insert(left.end(), nodes[static_cast<size_t>(node)].after.begin(),
                    nodes[static_cast<size_t>(node)].after.end());
    }
    return found;
}

/* A node continues a branch if it directly follows the branch's last node, or else one whose last node is before it. */
void find_branches(executable *e)
{
    std::vector<int> last; /* node of each branch */
    for (size_t i = 0; i < e->nodes.size(); i++) {
        const std::vector<int> &after = e->nodes[i].after;
        size_t branch = 0;
        while (branch < last.size() && std::find(after.begin(), after.end(), last[branch]) == after.end())
            branch++;
        if (branch == last.size()) {
            const std::vector<bool> before = reached(e->nodes, after);
            branch = 0;
            while (branch < last.size() && !before[static_cast<size_t>(last[branch])])
                branch++;
        }
        if (branch == last.size())
            last.push_back(-1);
        last[branch] = static_cast<int>(i);
        e->branch.push_back(static_cast<int>(branch));
    }
    for (size_t i = 0; last.size() > 1 && i < last.size(); i++)
        e->branches.push_back(stream_make(false, 0));
}
} // namespace

uint64_t graphs_launched, operations_in_graphs;

cudaError_t capture_spoil(graph_capture *c, cudaError_t code)
{
    if (c->spoiled == cudaSuccess)
        c->spoiled = code;
    return code;
}

cudaError_t capture_forbids(void)
{
    for (stream_state &s : streams)
        if (s.capture && s.capture->origin == &s && !s.capture->relaxed &&
            s.capture->owner == std::this_thread::get_id())
            return capture_spoil(s.capture, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

void capture_operation(stream_state *s, operation &&op)
{
    graph_capture *c = s->capture;
    c->nodes.push_back({std::move(op), s->capture_after});
    s->capture_after = {static_cast<int>(c->nodes.size()) - 1};
}

cudaError_t capture_record(event_state *e, stream_state *s)
{
    e->capture = s->capture->number;
    e->nodes = s->capture_after;
    return s->capture->spoiled == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

cudaError_t capture_wait(stream_state *s, event_state *e)
{
    graph_capture *of_event = nullptr;
    for (stream_state &other : streams)
        if (other.capture && other.capture->number == e->capture)
            of_event = other.capture;
    if (s->capture && !e->capture)
        return e->recorded ? capture_spoil(s->capture, cudaErrorStreamCaptureIsolation) : cudaSuccess;
    if (!of_event)
        return s->capture ? capture_spoil(s->capture, cudaErrorStreamCaptureIsolation) : cudaErrorCapturedEvent;
    if (s->capture && s->capture != of_event) {
        capture_spoil(of_event, cudaErrorStreamCaptureMerge);
        return capture_spoil(s->capture, cudaErrorStreamCaptureMerge);
    }
    if (of_event->spoiled != cudaSuccess)
        return cudaErrorStreamCaptureInvalidated;
    if (!s->capture) {
        s->capture = of_event;
        s->capture_after.clear();
    }
    add(s->capture_after, e->nodes);
    return cudaSuccess;
}
} // namespace emulation

using namespace emulation;

#define ENTER(name)       \
    guard lock(big_lock); \
    enter(name)

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER("cudaStreamBeginCapture");
    stream_state *s = stream_of(stream);
    if (s == &streams[0])
        return fail(cudaErrorStreamCaptureUnsupported);
    if (s->capture)
        return fail(cudaErrorIllegalState);
    s->capture = new graph_capture{
        ++captures, std::this_thread::get_id(), mode == cudaStreamCaptureModeRelaxed, s, cudaSuccess, {}};
    s->capture_after.clear();
    return cudaSuccess;
}

/* ZTRAIN_EMULATION_NO_CAPTURE=steps: captures of several streams fail; any other value: all do. */
static bool cannot_capture(const graph_capture *c)
{
    const char *wish = getenv("ZTRAIN_EMULATION_NO_CAPTURE");
    int streams_in_it = 0;
    for (const stream_state &s : streams)
        streams_in_it += s.capture == c;
    return wish && (std::string(wish) != "steps" || streams_in_it > 1);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *result)
{
    ENTER("cudaStreamEndCapture");
    stream_state *s = stream_of(stream);
    graph_capture *c = s->capture;
    *result = nullptr;
    if (!c)
        return fail(cudaErrorIllegalState);
    if (c->origin != s)
        return fail(capture_spoil(c, cudaErrorStreamCaptureUnmatched));
    if (!c->relaxed && c->owner != std::this_thread::get_id())
        return fail(cudaErrorStreamCaptureWrongThread);
    std::vector<bool> joined = reached(c->nodes, s->capture_after);
    if (cannot_capture(c))
        capture_spoil(c, cudaErrorStreamCaptureUnsupported);
    cudaError_t code = c->spoiled == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    for (stream_state &other : streams) {
        if (other.capture != c)
            continue;
        for (int node : other.capture_after)
            if (code == cudaSuccess && !joined[static_cast<size_t>(node)])
                code = cudaErrorStreamCaptureUnjoined;
        other.capture = nullptr;
        other.capture_after.clear();
    }
    if (code == cudaSuccess)
        *result = reinterpret_cast<cudaGraph_t>(new graph{std::move(c->nodes)});
    delete c;
    return code == cudaSuccess ? code : fail(code);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *result, cudaGraph_t captured, unsigned long long flags)
{
    ENTER("cudaGraphInstantiate");
    if (!captured || flags)
        return fail(cudaErrorInvalidValue);
    executable *e = new executable{reinterpret_cast<graph *>(captured)->nodes, {}, {}, {}};
    find_branches(e);
    *result = reinterpret_cast<cudaGraphExec_t>(e);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t captured)
{
    ENTER("cudaGraphDestroy");
    delete reinterpret_cast<graph *>(captured);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t launched)
{
    ENTER("cudaGraphExecDestroy");
    executable *e = reinterpret_cast<executable *>(launched);
    run_until(lock, e->last);
    for (stream_state *branch : e->branches)
        branch->open = false;
    delete e;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t launched, cudaStream_t stream)
{
    ENTER("cudaGraphLaunch");
    executable *e = reinterpret_cast<executable *>(launched);
    stream_state *s = stream_of(stream);
    if (s->capture)
        return fail(capture_spoil(s->capture, cudaErrorStreamCaptureUnsupported)); /* CUDA allows it */
    graphs_launched++;
    operations_in_graphs += e->nodes.size();
    clock_vector begin = after_of(s);
    begin.join(e->last); /* launches of one graph run one after the other */
    std::vector<clock_vector> ends(e->nodes.size());
    const char *lost = getenv("ZTRAIN_EMULATION_GRAPH_LOSES"); /* a planted fault: the first node of this name */
    for (size_t i = 0; i < e->nodes.size(); i++) {
        const graph_node &node = e->nodes[i];
        stream_state *branch = e->branches.empty() ? s : e->branches[static_cast<size_t>(e->branch[i])];
        branch->after.join(begin);
        for (int before : node.after)
            branch->after.join(ends[static_cast<size_t>(before)]);
        if (lost && node.op.name.find(lost) != std::string::npos)
            lost = nullptr;
        else if (node.op.again)
            node.op.again(lock, branch);
        else
            enqueue(lock, branch, operation(node.op));
        ends[i] = branch->after;
    }
    for (stream_state *branch : e->branches)
        s->after.join(branch->after);
    e->last = s->after;
    return cudaSuccess;
}
}
