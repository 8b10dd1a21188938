/* SPDX-License-Identifier: Apache-2.0 */
/* faults.h: failures on purpose, in test builds.
 *
 * Code that must survive a full disk or a kill makes its system calls through the wrappers below. With ZTRAIN_FAULTS
 * each first calls faults_next(), which counts it and may make it fail, or kill the process; without it they are the
 * plain calls of core/io.h. The environment or faults_arm() sets the fault:
 *
 *   ZTRAIN_FAULT=KIND:N:ACTION    KIND write, fsync, rename, mkdir, remove, link, allocate, blockread, blockwrite
 *                                      (core/storage), or any; N from 1: the Nth such call
 *                                 ACTION ENOSPC, EIO, EACCES, EDQUOT: that call fails with it, and writes, fsyncs and
 *                                        reservations after it do too (a full disk stays full)
 *                                        EINVAL, EOPNOTSUPP: only that call (a file system that cannot do this)
 *                                        kill: SIGKILL to itself at that call; a write first writes half its bytes
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
#else
static inline int faults_next(enum fault_kind kind, int fd, const void *data, size_t bytes)
{
    (void)kind, (void)fd, (void)data, (void)bytes;
    return 0;
}
#endif

static inline ssize_t fault_write(int fd, const void *data, size_t bytes)
{
    int code = faults_next(FAULT_WRITE, fd, data, bytes);
    if (code) return errno = code, -1;
    return io_write(fd, data, bytes);
}

/* Whether this call fails on purpose; with the fault's errno. */
static inline bool fault(enum fault_kind kind)
{
    const int code = faults_next(kind, -1, NULL, 0);
    if (code) errno = code;
    return code != 0;
}

static inline int fault_fsync(int fd)
{
    return fault(FAULT_FSYNC) ? -1 : io_fsync(fd);
}

static inline int fault_allocate(int fd, off_t bytes)
{
    return fault(FAULT_ALLOCATE) ? -1 : io_allocate(fd, bytes);
}

/* flags as in renameat2() */
static inline int fault_rename(const char *from, const char *to, unsigned flags)
{
    return fault(FAULT_RENAME) ? -1 : flags ? io_rename2(from, to, flags) : io_rename(from, to);
}

static inline int fault_mkdir(const char *path, mode_t mode)
{
    return fault(FAULT_MKDIR) ? -1 : io_mkdir(path, mode);
}

/* a file or an empty folder */
static inline int fault_remove(const char *path)
{
    return fault(FAULT_REMOVE) ? -1 : io_remove(path);
}

static inline int fault_symlink(const char *target, const char *path)
{
    return fault(FAULT_LINK) ? -1 : io_symlink(target, path);
}

static inline int fault_link(const char *path, const char *name)
{
    return fault(FAULT_LINK) ? -1 : io_link(path, name);
}
