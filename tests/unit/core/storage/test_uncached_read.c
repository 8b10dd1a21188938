/* SPDX-License-Identifier: Apache-2.0 */
/* test_uncached_read.c: every part has the file's bytes, wherever it begins and ends, whether the page cache holds it,
 * and whether the file system takes direct reads; a direct read that fails is repeated through the cache. */
#include "core/storage/uncached_read.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = (3 << 20) + 777, PART = 700000 };

static uint8_t contents[FILE_BYTES];
static char path[64];
static struct uncached_file file;
static struct error err;

/* ---- a definition of pread that precedes libc's -------------------------- */

static atomic_int direct_reads;
static int direct_code;    /* the errno of each of them, or 0 */
static size_t direct_most; /* bytes that a direct read moves; 0: all */

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pread");
    if (fcntl(fd, F_GETFL) & O_DIRECT) {
        direct_reads++;
        if (direct_code) return errno = direct_code, -1;
        if (direct_most && bytes > direct_most) bytes = direct_most;
    }
    return next(fd, data, bytes, offset);
}

static int set_up(void **state)
{
    (void)state;
    direct_reads = direct_code = 0;
    direct_most = 0;
    snprintf(path, sizeof path, "/tmp/ztrain-uncached-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (uint32_t i = 0, x = 1; i < FILE_BYTES; i++) contents[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    assert_int_equal(write(fd, contents, FILE_BYTES), FILE_BYTES);
    assert_int_equal(fsync(fd), 0);
    close(fd);
    uncached_file_init(&file, open(path, O_RDONLY | O_CLOEXEC), path);
    return file.fd < 0;
}

static int tear_down(void **state)
{
    (void)state;
    uncached_file_release(&file);
    close(file.fd);
    return unlink(path);
}

static void drop_cache(void)
{
    assert_int_equal(posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static void read_part(int64_t offset, size_t bytes)
{
    size_t stride;
    const uint8_t *data;
    uint8_t *buffer = uncached_memory(bytes, 1, &stride);
    assert_non_null(buffer);
    assert_true(stride >= uncached_room(bytes));
    memset(buffer, 0xee, stride);
    assert_int_equal(uncached_read(&file, buffer, bytes, offset, STATUS_CHECKPOINT, &data, &err), STATUS_OK);
    assert_true(data >= buffer && data + bytes <= buffer + stride);
    assert_memory_equal(data, contents + offset, bytes);
    free(buffer);
}

static void read_parts(void)
{
    static const int64_t offsets[] = {0, 1, 4095, 4096, 4097, 1 << 20, 1234567};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (size_t more = 0; more < 3; more++) {
            drop_cache();
            read_part(offsets[i], PART + more * 2047);
        }
    read_part(77, 100); /* a small one */
    drop_cache();
    read_part(FILE_BYTES - PART, PART); /* the last */
}

/* ---- tests --------------------------------------------------------------- */

static void test_parts_have_the_files_bytes(void **state)
{
    (void)state;
    read_parts();
    if (!file.able)
        print_message("this file system does not take direct reads\n");
    else
        assert_true(direct_reads > 0);
    file.able = true; /* on one that is not known, such as a tmpfs, which may refuse */
    read_parts();
}

static void test_what_the_cache_holds_is_read_from_it(void **state)
{
    (void)state;
    file.able = true;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    static uint8_t copy[FILE_BYTES];
    assert_int_equal(read(fd, copy, FILE_BYTES), FILE_BYTES);
    close(fd);
    read_part(0, PART);
    assert_int_equal(direct_reads, 0);
    assert_false(fcntl(file.fd, F_GETFL) & O_DIRECT);
}

static void test_a_failed_direct_read_is_repeated_through_the_cache(void **state)
{
    (void)state;
    static const int codes[] = {EINVAL, EIO, 0};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        file.able = true;
        direct_code = codes[i];
        direct_most = codes[i] ? 0 : 8192; /* fewer bytes than asked for */
        read_parts();
    }
}

/* Threads whose parts are read directly, through the cache and in small pieces, all at once, one of whose direct reads
 * fails. */
static void *read_some_parts(void *argument)
{
    const int64_t first = *(const int64_t *)argument;
    uint8_t *buffer = uncached_memory(PART, 1, &(size_t){0});
    bool right = buffer != NULL;
    for (int i = 0; right && i < 200; i++) {
        const uint8_t *data;
        struct error wrong;
        const size_t bytes = i % 3 ? PART : 1000;
        const int64_t offset = (first + i * 7919) % (FILE_BYTES - PART);
        if (i % 4 == 0) drop_cache();
        right = uncached_read(&file, buffer, bytes, offset, STATUS_CHECKPOINT, &data, &wrong) == STATUS_OK &&
                memcmp(data, contents + offset, bytes) == 0;
    }
    free(buffer);
    return right ? NULL : "a part was not read, or it is not the file's";
}

static void test_threads_read_at_the_same_time(void **state)
{
    (void)state;
    for (int failing = 0; failing < 2; failing++) {
        int64_t first[4] = {1, 4096, 100000, 1 << 20};
        pthread_t thread[4];
        file.able = true;
        direct_code = failing ? EIO : 0;
        for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, read_some_parts, &first[i]), 0);
        for (int i = 0; i < 4; i++) {
            void *fault;
            assert_int_equal(pthread_join(thread[i], &fault), 0);
            assert_null(fault);
        }
        assert_true(!failing || !file.able || direct_reads == 0);
    }
}

static void test_a_file_that_is_too_short(void **state)
{
    (void)state;
    size_t stride;
    const uint8_t *data;
    uint8_t *buffer = uncached_memory(PART, 2, &stride);
    assert_int_equal(truncate(path, PART - 5), 0);
    for (int able = 0; able < 2; able++) {
        file.able = able;
        drop_cache();
        assert_int_equal(uncached_read(&file, buffer + stride, PART, 0, STATUS_CHECKPOINT, &data, &err),
                         STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, "is truncated: it ends at offset 699995, 5 more bytes expected"));
    }
    free(buffer);
}

static void test_memory_that_cannot_be_had(void **state)
{
    (void)state;
    size_t stride;
    assert_null(uncached_memory(PART, SIZE_MAX / 4, &stride));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts_have_the_files_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_the_cache_holds_is_read_from_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_failed_direct_read_is_repeated_through_the_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_threads_read_at_the_same_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_file_that_is_too_short, set_up, tear_down),
        cmocka_unit_test(test_memory_that_cannot_be_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
