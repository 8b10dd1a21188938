/* SPDX-License-Identifier: Apache-2.0 */
/* test_record_file.c: records on a disk: bytes that pass through few buffers, writes that are still in flight when the
 * record is read again, failures that stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/storage/record_file.h"
#include "tests/unit/fixtures/nameless_file.h"

enum { RECORDS = 5, BUFFERS = 2 };
static const int64_t sizes[RECORDS] = {4096, 20000, 1, 0, 16384};

static struct error err;
static char parent[64];
static struct record_file *file;
static void *memory;

/* A file of the local disk that counts what is read and written. */
static struct {
    struct disk_file base;
    struct disk_file *local;
    int64_t read, written;
} counted;

static void count_submit(struct disk_file *base, struct io_request *request, const struct io_transfer *transfer)
{
    (void)base;
    *(transfer->write ? &counted.written : &counted.read) += transfer->bytes;
    counted.local->submit(counted.local, request, transfer);
}

static enum status count_wait(struct disk_file *base, struct io_request *request, struct error *error)
{
    (void)base;
    return counted.local->wait(counted.local, request, error);
}

static void count_close(struct disk_file *base)
{
    (void)base;
    counted.local->close(counted.local);
}

static int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    snprintf(parent, sizeof parent, "/tmp/ztrain-records-XXXXXX");
    struct aio_settings settings = {.block_size = 8192, .queue_depth = 3};
    size_t bytes = record_file_buffer_bytes(sizes, RECORDS);
    assert_int_equal(bytes, 20480);
    assert_int_equal(record_file_bytes(sizes, RECORDS), 4096 + 20480 + 4096 + 16384);
    memory = aligned_alloc(ASYNC_IO_ALIGN, BUFFERS * bytes);
    struct disk_file_config config = {.name = "records", .folder = parent, .io = settings};
    config.bytes = record_file_bytes(sizes, RECORDS);
    if (!mkdtemp(parent) || local_disk.open(&local_disk, &config, &counted.local, &err) != STATUS_OK) return -1;
    counted.base = (struct disk_file){count_submit, count_wait, count_close};
    counted.read = counted.written = 0;
    file = record_file_new(&counted.base, sizes, RECORDS, BUFFERS);
    record_file_set_memory(file, memory);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    record_file_free(file);
    free(memory);
    return rmdir(parent);
}

static void fill(unsigned char *bytes, int64_t count, unsigned seed)
{
    for (int64_t i = 0; i < count; i++) bytes[i] = (unsigned char)(seed * 31 + (unsigned)i * 7 + (unsigned)(i >> 8));
}

static void expect_record(const void *bytes, int record, unsigned seed)
{
    unsigned char expected[20480];
    fill(expected, sizes[record], seed);
    assert_memory_equal(bytes, expected, (size_t)sizes[record]);
}

static void test_a_record_that_was_never_stored_is_zero(void **state)
{
    (void)state;
    unsigned char zeros[20480] = {0};
    memset(memory, 7, BUFFERS * sizeof zeros);
    assert_memory_equal(record_file_use(file, 1, 0), zeros, (size_t)sizes[1]);
}

/* A walk over all records as the optimizer makes it: one is read ahead while another changes and a third is written. */
static void test_a_walk_through_two_buffers_changes_every_record(void **state)
{
    (void)state;
    static const int order[] = {0, 1, 2, 4};
    for (unsigned step = 1; step <= 3; step++) {
        record_file_load(file, order[0], 0);
        for (int i = 0; i < 4; i++) {
            unsigned char *bytes = record_file_use(file, order[i], i % 2);
            if (i + 1 < 4) record_file_load(file, order[i + 1], (i + 1) % 2);
            if (step > 1) expect_record(bytes, order[i], (step - 1) * 10 + (unsigned)i);
            fill(bytes, sizes[order[i]], step * 10 + (unsigned)i);
            record_file_store(file, order[i], i % 2);
        }
    }
    assert_int_equal(counted.written, 3 * (4096 + 20480 + 4096 + 16384));
    assert_int_equal(counted.read, counted.written);
    assert_int_equal(record_file_flush(file, &err), STATUS_OK);
}

static void test_a_record_in_its_buffer_is_not_read_again(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        record_file_load(file, 1, 0);
        record_file_use(file, 1, 0);
        record_file_store(file, 1, 0);
    }
    assert_int_equal(counted.read, 20480);
    assert_int_equal(counted.written, 5 * 20480);
}

/* The write of a record is in flight in one buffer when it is read into the other one. */
static void test_a_read_waits_for_the_write_of_the_record(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 50; turn++) {
        fill(record_file_claim(file, 1, (int)turn % 2), sizes[1], turn);
        record_file_store(file, 1, (int)turn % 2);
        expect_record(record_file_use(file, 1, (int)(turn + 1) % 2), 1, turn);
    }
    assert_int_equal(record_file_status(file, &err), STATUS_OK);
}

/* Writes take a while, by threads. */
static atomic_bool slow;

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    if (atomic_load(&slow)) usleep(2000);
    return real(fd, data, bytes, offset);
}

static int setup_slow(void **state)
{
    setenv("ZTRAIN_AIO", "threads", 1);
    int result = setup(state);
    unsetenv("ZTRAIN_AIO");
    atomic_store(&slow, true);
    return result;
}

static int teardown_slow(void **state)
{
    atomic_store(&slow, false);
    return teardown(state);
}

static sem_t stored, seen;
enum { TURNS = 40 };

static void *write_records(void *unused)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        int record = turn % 2 ? 1 : 4;
        sem_wait(&seen);
        fill(record_file_claim(file, record, 0), sizes[record], turn);
        record_file_store(file, record, 0);
        sem_post(&stored);
    }
    return unused;
}

/* One thread writes records through a buffer, another one reads them through the other. The writer is a record ahead,
 * so its buffer has the next record while the write of the last one is in flight. */
static void test_a_reader_and_a_writer(void **state)
{
    (void)state;
    pthread_t writer;
    sem_init(&stored, 0, 0);
    sem_init(&seen, 0, 2);
    assert_int_equal(pthread_create(&writer, NULL, write_records, NULL), 0);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        int record = turn % 2 ? 1 : 4;
        sem_wait(&stored);
        expect_record(record_file_use(file, record, 1), record, turn);
        sem_post(&seen);
    }
    pthread_join(writer, NULL);
    assert_int_equal(record_file_flush(file, &err), STATUS_OK);
}

static void test_parts_pass_by_the_buffers(void **state)
{
    (void)state;
    unsigned char *part = aligned_alloc(4096, 8192), *bytes = record_file_use(file, 1, 0);
    fill(bytes, sizes[1], 5);
    record_file_store(file, 1, 0);
    assert_int_equal(record_file_part(file, false, 1, 4096, part, 8192, &err), STATUS_OK);
    assert_memory_equal(part, bytes + 4096, 8192);
    memset(part, 9, 8192);
    assert_int_equal(record_file_part(file, true, 1, 8192, part, 4096, &err), STATUS_OK);
    bytes = record_file_use(file, 1, 0); /* read again: the buffer was out of date */
    assert_memory_equal(bytes + 8192, part, 4096);
    assert_int_equal(bytes[12288], (unsigned char)(5 * 31 + 12288 * 7 + (12288 >> 8)));
    free(part);
}

static void test_the_first_failure_stays(void **state)
{
    (void)state;
    unsigned char *part = aligned_alloc(4096, 4096);
    assert_true(cut_nameless_file("-records-", 4096));
    record_file_use(file, 0, 0);
    assert_int_equal(record_file_status(file, &err), STATUS_OK);
    record_file_use(file, 1, 1);
    assert_int_equal(record_file_status(file, &err), STATUS_BROKEN);
    assert_true(strstr(err.text, "-records-") && strstr(err.text, "' ends at offset 4096"));
    record_file_use(file, 4, 1);
    err.text[0] = 0;
    assert_int_equal(record_file_flush(file, &err), STATUS_BROKEN);
    assert_true(strstr(err.text, "ends at offset 4096"));
    assert_int_equal(record_file_part(file, false, 0, 0, part, 4096, &err), STATUS_BROKEN);
    free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_record_that_was_never_stored_is_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_walk_through_two_buffers_changes_every_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_record_in_its_buffer_is_not_read_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_read_waits_for_the_write_of_the_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reader_and_a_writer, setup_slow, teardown_slow),
        cmocka_unit_test_setup_teardown(test_parts_pass_by_the_buffers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_first_failure_stays, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
