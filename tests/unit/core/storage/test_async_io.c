/* SPDX-License-Identifier: Apache-2.0 */
/* test_async_io.c: both engines of asynchronous I/O: the bytes, transfers that end early, and every failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/heartbeat.h"
#include "core/storage/async_io.h"

static struct error err;
static char folder[64], path[128];

/* ---- a disk that is in the way: definitions that precede libc's ---------- */

static _Atomic int fail_code;     /* the errno of the next pread or pwrite; 0: none */
static _Atomic int64_t most = -1; /* bytes that one call moves; -1: all */
static _Atomic int slow_calls;    /* calls that take 60 ms */
static _Atomic int calls;

static bool disturbed(size_t *bytes)
{
    atomic_fetch_add(&calls, 1);
    int code = atomic_exchange(&fail_code, 0);
    if (code) return errno = code, true;
    if (atomic_load(&slow_calls) > 0 && atomic_fetch_sub(&slow_calls, 1) > 0) usleep(60000);
    int64_t limit = atomic_load(&most);
    if (limit >= 0 && *bytes > (size_t)limit) *bytes = (size_t)limit;
    return false;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pread");
    return disturbed(&bytes) ? -1 : real(fd, data, bytes, offset);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    return disturbed(&bytes) ? -1 : real(fd, data, bytes, offset);
}

static int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    atomic_store(&fail_code, 0);
    atomic_store(&most, -1);
    atomic_store(&slow_calls, 0);
    unsetenv("ZTRAIN_AIO");
    snprintf(folder, sizeof folder, "/tmp/ztrain-async-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static struct async_io *open_engine(const char *engine, int64_t block, int depth)
{
    struct async_io *io;
    setenv("ZTRAIN_AIO", engine, 1);
    struct aio_settings settings = {.block_size = block, .queue_depth = depth};
    if (async_io_new(&settings, &io, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(strstr(async_io_engine(io), engine));
    return io;
}

static void fill(unsigned char *bytes, int64_t count, unsigned seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(seed >> 24);
    }
}

static struct io_transfer transfer(bool write, int fd, void *data, int64_t bytes, int64_t offset)
{
    return (struct io_transfer){.write = write, .fd = fd, .path = path, .data = data, .bytes = bytes, .offset = offset};
}

static enum status move(struct async_io *io, bool write, int fd, void *data, int64_t bytes, int64_t offset)
{
    struct io_request request = {0};
    const struct io_transfer t = transfer(write, fd, data, bytes, offset);
    async_io_submit(io, &request, &t);
    return async_io_wait(io, &request, &err);
}

/* ---- the bytes ----------------------------------------------------------- */

/* Several requests at a time, of sizes around those of blocks, written and read back in another order. */
static void round_trip(const char *engine, int64_t block, int depth)
{
    enum { REQUESTS = 7 };
    static const int64_t sizes[REQUESTS] = {4096, 8192, 1, 12288 + 5, 65536, 4095, 40960};
    struct io_request requests[REQUESTS] = {0};
    unsigned char *data[REQUESTS];
    int64_t offset[REQUESTS], end = 0;
    struct async_io *io = open_engine(engine, block, depth);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < REQUESTS; i++) {
        data[i] = malloc((size_t)sizes[i]);
        fill(data[i], sizes[i], (unsigned)i);
        offset[i] = end;
        end += sizes[i];
        const struct io_transfer t = transfer(true, fd, data[i], sizes[i], offset[i]);
        async_io_submit(io, &requests[i], &t);
    }
    for (int i = REQUESTS - 1; i >= 0; i--) assert_int_equal(async_io_wait(io, &requests[i], &err), STATUS_OK);
    for (int i = REQUESTS - 1; i >= 0; i--) {
        memset(data[i], 0, (size_t)sizes[i]);
        const struct io_transfer t = transfer(false, fd, data[i], sizes[i], offset[i]);
        async_io_submit(io, &requests[i], &t);
    }
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(async_io_wait(io, &requests[i], &err), STATUS_OK);
        assert_int_equal(async_io_wait(io, &requests[i], &err), STATUS_OK); /* of a request that is not active */
        unsigned char *expected = malloc((size_t)sizes[i]);
        fill(expected, sizes[i], (unsigned)i);
        assert_memory_equal(data[i], expected, (size_t)sizes[i]);
        free(expected);
        free(data[i]);
    }
    close(fd);
    async_io_free(io);
}

static void test_bytes_come_back_by_both_engines(void **state)
{
    (void)state;
    static const char *const engines[] = {"io_uring", "threads"};
    for (int e = 0; e < 2; e++) {
        round_trip(engines[e], 4096, 1);
        round_trip(engines[e], 4096, 3);
        round_trip(engines[e], 5000, 8); /* rounded up to 8192 */
        round_trip(engines[e], 1 << 20, 64);
    }
}

/* As many calls as there are blocks: none is moved twice, none is larger than the block size. */
static void test_a_request_is_cut_into_blocks(void **state)
{
    (void)state;
    static unsigned char data[10 * 4096];
    struct async_io *io = open_engine("threads", 4096, 4);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    atomic_store(&calls, 0);
    assert_int_equal(move(io, true, fd, data, sizeof data, 0), STATUS_OK);
    assert_int_equal(atomic_load(&calls), 10);
    close(fd);
    async_io_free(io);
}

static void test_a_transfer_that_ends_early_continues_at_an_aligned_place(void **state)
{
    (void)state;
    static unsigned char data[64 * 1024], expected[sizeof data];
    struct async_io *io = open_engine("threads", 32768, 2);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    fill(expected, sizeof expected, 9);
    memcpy(data, expected, sizeof data);
    atomic_store(&most, 10000); /* 8192 of them count */
    atomic_store(&calls, 0);
    assert_int_equal(move(io, true, fd, data, sizeof data, 0), STATUS_OK);
    assert_int_equal(atomic_load(&calls), 8);
    memset(data, 0, sizeof data);
    atomic_store(&fail_code, EINTR);
    assert_int_equal(move(io, false, fd, data, sizeof data, 0), STATUS_OK);
    assert_memory_equal(data, expected, sizeof data);
    close(fd);
    async_io_free(io);
}

/* ---- failures ------------------------------------------------------------ */

static void expect(enum status status, const char *words)
{
    if (status != STATUS_BROKEN || err.code != STATUS_BROKEN || !strstr(err.text, words) || !strstr(err.text, path))
        fail_msg("'%s' expected, not %d '%s'", words, (int)status, err.text);
}

static void test_a_failure_names_file_and_offset(void **state)
{
    (void)state;
    static unsigned char data[8 * 4096];
    struct async_io *io = open_engine("threads", 4096, 1);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    atomic_store(&fail_code, EIO);
    expect(move(io, true, fd, data, sizeof data, 4096), "cannot write");
    assert_true(strstr(err.text, "at offset 4096: Input/output error"));
    assert_int_equal(err.cause, EIO);
    atomic_store(&fail_code, ENOSPC);
    expect(move(io, true, fd, data, sizeof data, 0), "No space left on device");
    assert_int_equal(move(io, true, fd, data, sizeof data, 0), STATUS_OK); /* a failure does not stay */
    atomic_store(&fail_code, EIO);
    expect(move(io, false, fd, data, sizeof data, 0), "cannot read");
    atomic_store(&most, 0);
    expect(move(io, true, fd, data, sizeof data, 0), "No space left on device");
    close(fd);
    async_io_free(io);
}

static void test_a_file_that_was_cut_is_an_error_by_both_engines(void **state)
{
    (void)state;
    static unsigned char data[8 * 4096];
    static const char *const engines[] = {"io_uring", "threads"};
    for (int e = 0; e < 2; e++) {
        struct async_io *io = open_engine(engines[e], 8192, 4);
        int fd = open(path, O_RDWR | O_CREAT, 0600);
        assert_int_equal(ftruncate(fd, 3 * 4096), 0);
        expect(move(io, false, fd, data, sizeof data, 0), "ends at offset 12288");
        assert_int_equal(move(io, false, fd, data, 3 * 4096, 0), STATUS_OK);
        close(fd);
        async_io_free(io);
    }
}

static void test_both_engines_report_what_the_kernel_reports(void **state)
{
    (void)state;
    static unsigned char data[4096];
    static const char *const engines[] = {"io_uring", "threads"};
    for (int e = 0; e < 2; e++) {
        struct async_io *io = open_engine(engines[e], 4096, 2);
        int fd = open(path, O_RDONLY | O_CREAT, 0600);
        expect(move(io, true, fd, data, sizeof data, 0), "Bad file descriptor");
        close(fd);
        async_io_free(io);
    }
}

static void test_the_environment_chooses_the_engine(void **state)
{
    (void)state;
    struct async_io *io;
    struct aio_settings settings = {.block_size = 4096, .queue_depth = 2};
    setenv("ZTRAIN_AIO", "libaio", 1);
    assert_int_equal(async_io_new(&settings, &io, &err), STATUS_USAGE);
    assert_string_equal(err.text, "ZTRAIN_AIO must be io_uring or threads, not 'libaio'");
    assert_null(io);
    async_io_free(NULL);
    io = open_engine("threads", 4096, 3);
    assert_string_equal(async_io_engine(io), "3 threads with pread and pwrite (ZTRAIN_AIO=threads)");
    async_io_free(io);
}

/* A filter that refuses io_uring_enter, as a container's may. It stays until the process ends. */
static void refuse_to_enter(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {COUNT_OF(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) _exit(2);
}

static void test_a_ring_that_may_be_made_but_not_entered(void **state)
{
    (void)state;
    unsigned char data[4096] = "text";
    const struct aio_settings settings = {.block_size = 4096, .queue_depth = 2};
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        struct async_io *io;
        refuse_to_enter();
        if (async_io_new(&settings, &io, &err) != STATUS_OK ||
            strcmp(async_io_engine(io), "2 threads with pread and pwrite (io_uring: Operation not permitted)"))
            _exit(3);
        const int fd = open(path, O_RDWR | O_CREAT, 0600);
        const bool moved = move(io, true, fd, data, sizeof data, 0) == STATUS_OK;
        async_io_free(io);
        setenv("ZTRAIN_AIO", "io_uring", 1);
        _exit(moved && async_io_new(&settings, &io, &err) == STATUS_USAGE ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* While a request takes long, the watch ticks for the thread that waits. */
static void never_stuck(const char *text, void *context)
{
    (void)context;
    fail_msg("%s", text);
}

static void test_a_rank_that_waits_for_its_disk_counts_as_alive(void **state)
{
    (void)state;
    static unsigned char data[4096];
    struct async_io *io = open_engine("threads", 4096, 1);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(heartbeat_thread_start(0.005, 100, never_stuck, NULL), 0);
    uint64_t before = atomic_load(atomic_load(&heartbeat_counter));
    atomic_store(&slow_calls, 1);
    assert_int_equal(move(io, true, fd, data, sizeof data, 0), STATUS_OK);
    assert_true(atomic_load(atomic_load(&heartbeat_counter)) >= before + 3);
    heartbeat_thread_stop();
    close(fd);
    async_io_free(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bytes_come_back_by_both_engines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_request_is_cut_into_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_transfer_that_ends_early_continues_at_an_aligned_place, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_failure_names_file_and_offset, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_was_cut_is_an_error_by_both_engines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_both_engines_report_what_the_kernel_reports, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_environment_chooses_the_engine, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_ring_that_may_be_made_but_not_entered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_rank_that_waits_for_its_disk_counts_as_alive, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
