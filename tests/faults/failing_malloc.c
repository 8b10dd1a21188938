/* SPDX-License-Identifier: Apache-2.0 */
/* failing_malloc.c: memory that runs out on purpose, preloaded by malloc_sweep.py. Test code.
 *
 * Counts what the process asks for from the moment main() starts, in its own code and in every library (also in libc:
 * fopen, opendir, asprintf, dlopen, getaddrinfo): malloc, calloc, realloc, the aligned ones, anonymous mmap, and
 * threads.
 *
 *   ZTRAIN_FAIL_AT=N        the Nth request fails (from 1); 0 or unset: none, only counted
 *   ZTRAIN_FAIL_EVER=1      so do all after it: memory stays short
 *   ZTRAIN_FAIL_RANK=R      only in local rank R, "-" in their supervisor; unset: everywhere
 *   ZTRAIN_FAIL_LOG=FILE    gets a line "at N BYTES ADDRESS…" for the first failure (addresses relative to the program;
 *                           addr2line knows them)
 *   ZTRAIN_FAIL_TRACE=FILE  gets 8 bytes for each request, a hash of the stack that it came from */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc's own allocator, under the names that remain when its public ones are taken */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);

enum { MAX_FRAMES = 24 };

static atomic_bool armed;
static atomic_long requests;
static long fail_at;
static bool ever, used;
static const char *log_path;
static int trace = -1;
static _Thread_local bool inside; /* backtrace() asks for memory as well */
static uintptr_t program;

static int first_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    *(uintptr_t *)data = info->dlpi_addr;
    return 1; /* the program itself comes first */
}

static void log_failure(long n, size_t bytes, void *const *frames, int count)
{
    char text[MAX_FRAMES * 20 + 64];
    int length = snprintf(text, sizeof text, "at %ld %zu", n, bytes);
    for (int i = 2; i < count; i++)
        length +=
            snprintf(text + length, sizeof text - (size_t)length, " %#jx", (uintmax_t)((uintptr_t)frames[i] - program));
    text[length++] = '\n';
    int fd = log_path ? open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (fd >= 0 && write(fd, text, (size_t)length) != length) abort();
    if (fd >= 0) close(fd);
}

/* FNV-1a over the return addresses */
static void trace_stack(void *const *frames, int count)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 2; i < count; i++) hash = (hash ^ ((uintptr_t)frames[i] - program)) * 0x100000001b3;
    if (write(trace, &hash, sizeof hash) != sizeof hash) abort();
}

/* Whether this request is to fail. */
static __attribute__((noinline)) bool fails(size_t bytes)
{
    if (!atomic_load(&armed) || inside) return false;
    long n = atomic_fetch_add(&requests, 1) + 1;
    bool first = fail_at && n == fail_at;
    if (first || trace >= 0) {
        void *frames[MAX_FRAMES];
        inside = true;
        int count = backtrace(frames, MAX_FRAMES);
        if (trace >= 0) trace_stack(frames, count);
        if (first) log_failure(n, bytes, frames, count);
        inside = false;
    }
    if (!first && !(ever && fail_at && n > fail_at)) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return fails(bytes) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails(count * bytes) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return fails(bytes) ? NULL : __libc_realloc(old, bytes);
}

void *reallocarray(void *old, size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) return errno = ENOMEM, NULL;
    return fails(all) ? NULL : __libc_realloc(old, all);
}

void *memalign(size_t alignment, size_t bytes)
{
    return fails(bytes) ? NULL : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(bytes) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    if (fails(bytes) || !(*out = __libc_memalign(alignment, bytes))) return ENOMEM;
    return 0;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails(bytes)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return fails(0) ? EAGAIN : real(thread, attributes, body, argument);
}

/* ---- from main() to the end ---------------------------------------------- */

static int (*real_main)(int, char **, char **);

static int armed_main(int argc, char **argv, char **environment)
{
    atomic_store(&armed, used);
    return real_main(argc, argv, environment);
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    int (*real)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    const char *at = getenv("ZTRAIN_FAIL_AT"), *rank = getenv("ZTRAIN_FAIL_RANK"), *own = getenv("ZTRAIN_LOCAL_RANK"),
               *traced = getenv("ZTRAIN_FAIL_TRACE");
    void *frames[1];
    fail_at = at ? atol(at) : 0;
    ever = getenv("ZTRAIN_FAIL_EVER") != NULL;
    log_path = getenv("ZTRAIN_FAIL_LOG");
    used = !rank || !strcmp(rank, own ? own : "-");
    if (traced && used) trace = open(traced, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    dl_iterate_phdr(first_object, &program);
    backtrace(frames, 1); /* loads what it needs now */
    real_main = main;
    return real(armed_main, argc, argv, init, fini, rtld_fini, stack_end);
}
