/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_queue.h: streams, for the files that queue work: emulation_cudart.cc and the libraries. Callers hold the
 * lock. */
#pragma once

#include "emulation.h"

#include <chrono>
#include <deque>

namespace emulation
{
struct graph_capture;

struct stream_state {
    bool open,
        with_default; /* with_default: ordered with the default stream, as streams without cudaStreamNonBlocking are */
    bool busy;        /* its head runs on another thread */
    int priority;
    uint32_t queued, done;
    clock_vector after; /* the operations that come before the next one */
    std::deque<operation> pending;
    graph_capture *capture;         /* the capture in progress; NULL: none */
    std::vector<int> capture_after; /* nodes of the capture that the next one comes after */
    int index(void) const;
};

struct event_state {
    clock_vector at;
    bool timed, sleeps, recorded; /* sleeps: the host, in a wait for it */
    std::chrono::steady_clock::time_point when;
    uint64_t capture; /* in which it was recorded last, 0: in none */
    std::vector<int> nodes;
};
extern stream_state streams[MAX_STREAMS]; /* 0: the default stream */

/* Seconds by which the times of events are later than the clock: planted costs of what was enqueued before. */
extern double planted_seconds;

/* Whether ZTRAIN_EMULATION_SWIGLU (emulation_cudnn.cc) is this word. */
bool swiglu_is(const char *word);

/* Pinned memory of a copy, closed until the host knows that it is done. */
struct pinned_copy {
    const void *p;
    size_t bytes;
    bool host_may_read;
    int stream;
    uint32_t number;
};

void enter(const char *what);   /* every call of the CUDA run time */
void be_slow(const char *what); /* sleeps if ZTRAIN_EMULATION_SLOW names the call; enter() calls it as well */
stream_state *stream_of(cudaStream_t stream);
stream_state *stream_make(bool waits_for_default, int priority);
clock_vector after_of(stream_state *s);
clock_vector everything(void);
bool is_done(const clock_vector &target);
void host_knows(const clock_vector &target);
void enqueue(guard &lock, stream_state *s, operation &&op, const pinned_copy *copy = nullptr);
void run_until(guard &lock, const clock_vector &target);
void run_something(guard &lock);
/* Whether no queued work, neither a copy nor a host function, may use this host memory before an operation that is queued
 * now. Otherwise the memory belongs to the stream, and the values that the host sees in it are not final. */
bool is_quiet(const void *p, size_t bytes);
/* The pinned memory of that operation's copy: open while it runs, closed again after it. */
void open_for_copy(int stream, uint32_t number, const void *p, size_t bytes, bool open);

/* emulation_graph.cc: the effect of calls on capturing streams, and on events that were recorded in a capture */
cudaError_t capture_spoil(graph_capture *c, cudaError_t code); /* returns the code */
cudaError_t capture_forbids(void); /* a call that a capturing thread may not make: its error */
void capture_operation(stream_state *s, operation &&op);
cudaError_t capture_record(event_state *e, stream_state *s);
cudaError_t capture_wait(stream_state *s, event_state *e);
extern uint64_t graphs_launched, operations_in_graphs; /* counts */

/* emulation_cudart.cc: leaves the code for cudaGetLastError() and returns it. */
cudaError_t fail(cudaError_t code);
/* From now on the context is lost, as by a kernel that faulted: nearly every call returns an error. */
void lose_context(void);
bool context_is_lost(void);
} // namespace emulation
