/* SPDX-License-Identifier: Apache-2.0 */
/* faults.h: failures on purpose, in instrumented builds (ZTRAIN_FAULTS).
 *
 * Code that must survive a full disk or a kill makes its calls of core/io.h as FAULT(kind, call). In instrumented
 * builds each first calls faults_next() (tests/faults/fault_hooks.c), which counts it and may make it fail, or kill the
 * process, as faults_arm() says: KIND:N:ACTION
 *
 *   KIND    write, fsync, rename, mkdir, remove, link, allocate, blockread, blockwrite (core/storage), or any
 *   N       from 1: the Nth such call
 *   ACTION  ENOSPC, EIO, EACCES, EDQUOT: that call fails with it, and writes, fsyncs and reservations after it do too
 * (a full disk stays full) EINVAL, EOPNOTSUPP: only that call (a file system that cannot do this) kill: SIGKILL to
 * itself at that call; a write first writes half its bytes
 *
 * Several threads may make these calls. */
#pragma once

#include "core/io.h"
#include "core/status.h"

enum fault_kind {
    FAULT_WRITE,
    FAULT_FSYNC,
    FAULT_RENAME,
    FAULT_MKDIR,
    FAULT_REMOVE,
    FAULT_LINK,
    FAULT_ALLOCATE,
    FAULT_BLOCKREAD, /* a block of asynchronous I/O */
    FAULT_BLOCKWRITE,
    FAULT_ANY, /* only in faults_arm() */
};

#ifdef ZTRAIN_FAULTS
/* Arms one fault ("write:3:ENOSPC") and sets the count to 0; NULL disarms. false: it is no fault. */
bool faults_arm(const char *fault);
/* calls counted since faults_arm() */
int64_t faults_count(void);
/* 0: the call is made; else the errno with which it fails. FAULT_WRITE has its data: a kill leaves a torn write. */
int faults_next(enum fault_kind kind, int fd, const void *data, size_t bytes);

/* ZTRAIN_STEP_FAULT=RANK:STEP:MILLISECONDS: the rank comes late to each micro-batch from that step on. */
void faults_delay(int rank, int64_t step);
/* ZTRAIN_COMM_FAULT=RANK:N:SIGNAL: the rank sends itself that signal in the middle of its Nth data operation. */
void faults_signal(int rank);
/* ZTRAIN_SUM_ORDER=reverse: sums of ranks begin with the last one. */
bool faults_reverse_sums(void);
#else
#define faults_delay(rank, step) ((void)0)
#define faults_signal(rank) ((void)0)
#define faults_reverse_sums() false
static inline int faults_next(enum fault_kind kind, int fd, const void *data, size_t bytes)
{
    (void)kind, (void)fd, (void)data, (void)bytes;
    return 0;
}
#endif

/* Whether this call fails on purpose; with the fault's errno. */
static inline bool faults_hit(enum fault_kind kind, int fd, const void *data, size_t bytes)
{
    const int code = faults_next(kind, fd, data, bytes);
    if (code) errno = code;
    return code != 0;
}

/* The result of `call`; -1 where it fails on purpose. */
#define FAULT(kind, call) (faults_hit(FAULT_##kind, -1, NULL, 0) ? -1 : (call))

static inline ssize_t fault_write(int fd, const void *data, size_t bytes)
{
    return faults_hit(FAULT_WRITE, fd, data, bytes) ? -1 : io_write(fd, data, bytes);
}
