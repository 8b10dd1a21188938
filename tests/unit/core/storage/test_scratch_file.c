/* SPDX-License-Identifier: Apache-2.0 */
/* test_scratch_file.c: files that have no name and end with their process, and whose space is reserved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/storage/scratch_file.h"

static struct error err;
static char parent[64];

/* ---- a disk that is full, and file systems that cannot do a thing -------- */

static int allocate_code, write_code;
static int64_t writes_before_full = -1;
static bool no_direct;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int (*real)(int, int, off_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "fallocate");
    if (allocate_code) return errno = allocate_code, -1;
    return real(fd, mode, offset, bytes);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    ssize_t (*real)(int, const void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "write");
    if (writes_before_full >= 0 && writes_before_full-- == 0) return errno = write_code, -1;
    return real(fd, data, bytes);
}

/* A file system that takes O_DIRECT in open() and refuses the first transfer. */
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    if (no_direct && (fcntl(fd, F_GETFL) & O_DIRECT)) return errno = EINVAL, -1;
    return real(fd, data, bytes, offset);
}

static int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    allocate_code = 0;
    writes_before_full = -1;
    no_direct = false;
    snprintf(parent, sizeof parent, "/tmp/ztrain-scratch-XXXXXX");
    return mkdtemp(parent) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", parent);
    return system(command);
}

static int entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder));) count += e->d_name[0] != '.';
    if (folder) closedir(folder);
    return folder ? count : -1;
}

static struct scratch_file make(int rank, const char *name, int64_t bytes)
{
    struct scratch_file file;
    if (scratch_file_new(parent, rank, name, bytes, &file, &err) != STATUS_OK) fail_msg("%s", err.text);
    return file;
}

static void expect(enum status status, const char *words)
{
    if (status != STATUS_DEVICE || !strstr(err.text, words))
        fail_msg("'%s' expected, not %d '%s'", words, (int)status, err.text);
}

/* ---- names --------------------------------------------------------------- */

static void test_a_file_has_no_name(void **state)
{
    (void)state;
    struct stat facts;
    struct scratch_file file = make(3, "master", 40960);
    assert_true(strstr(file.path, "/ztrain-offload-00003-master-"));
    assert_int_equal(entries(parent), 0);
    assert_int_equal(fstat(file.fd, &facts), 0);
    assert_int_equal(facts.st_nlink, 0);
    assert_true(fcntl(file.fd, F_GETFD) & FD_CLOEXEC);
    scratch_file_release(&file);
    assert_int_equal(file.fd, -1);
    scratch_file_release(&file);
}

/* Two jobs, or two ranks, of one number in one folder. */
static void test_jobs_that_share_a_path_do_not_touch_each_other(void **state)
{
    (void)state;
    char block[4096], zeros[4096] = {0};
    struct scratch_file first = make(0, "state", 8192), second = make(0, "state", 8192);
    assert_string_not_equal(first.path, second.path);
    memset(block, 7, sizeof block);
    fcntl(first.fd, F_SETFL, fcntl(first.fd, F_GETFL) & ~O_DIRECT);
    fcntl(second.fd, F_SETFL, fcntl(second.fd, F_GETFL) & ~O_DIRECT);
    assert_int_equal(pwrite(first.fd, block, sizeof block, 4096), sizeof block);
    assert_int_equal(pread(second.fd, block, sizeof block, 4096), sizeof block);
    assert_memory_equal(block, zeros, sizeof block);
    scratch_file_release(&second);
    assert_int_equal(pread(first.fd, block, sizeof block, 4096), sizeof block);
    assert_int_equal(block[100], 7);
    scratch_file_release(&first);
}

static void test_a_killed_process_leaves_nothing(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        make(0, "state", 1 << 20);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(entries(parent), 0);
}

static void test_files_of_others_stay(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/ztrain-offload-00000-state-notes0", parent);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    struct scratch_file file = make(0, "state", 8192);
    scratch_file_release(&file);
    assert_int_equal(entries(parent), 1);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_an_unusable_path_is_named_and_not_made(void **state)
{
    (void)state;
    char path[128], name[128];
    struct scratch_file file;
    snprintf(path, sizeof path, "%s/a/b", parent);
    expect(scratch_file_new(path, 0, "state", 8192, &file, &err),
           "/a/b': No such file or directory; hint: mount the disk");
    assert_int_equal(file.fd, -1);
    snprintf(name, sizeof name, "%s/file", parent);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    expect(scratch_file_new(name, 0, "state", 8192, &file, &err), "/file': Not a directory; hint: ");
    expect(scratch_file_new("/proc", 0, "state", 8192, &file, &err), "cannot make '/proc/ztrain-offload-00000-state-");
    assert_non_null(strstr(err.text, "; hint: nvme_path has to be a folder"));
    assert_int_equal(file.fd, -1);
    expect(scratch_folder_check(name, &err), name);
    assert_int_equal(scratch_folder_check(parent, &err), STATUS_OK);
    assert_int_equal(entries(parent), 1); /* "file": nothing of the failed attempts */
}

/* ---- space --------------------------------------------------------------- */

static void test_all_of_a_file_is_reserved_and_reads_as_zeros(void **state)
{
    (void)state;
    struct stat facts;
    char block[4096], zeros[4096] = {0};
    for (int filled = 0; filled < 2; filled++) {
        allocate_code = filled ? EOPNOTSUPP : 0;
        struct scratch_file file = make(0, filled ? "filled" : "reserved", 3 << 20);
        assert_int_equal(file.reserved, !filled);
        assert_int_equal(fstat(file.fd, &facts), 0);
        assert_int_equal(facts.st_size, 3 << 20);
        assert_true(facts.st_blocks * 512 >= 3 << 20);
        fcntl(file.fd, F_SETFL, fcntl(file.fd, F_GETFL) & ~O_DIRECT);
        assert_int_equal(pread(file.fd, block, sizeof block, 2 << 20), sizeof block);
        assert_memory_equal(block, zeros, sizeof block);
        scratch_file_release(&file);
    }
}

static void test_a_full_disk_is_an_error_at_the_start(void **state)
{
    (void)state;
    struct scratch_file file;
    allocate_code = ENOSPC;
    expect(scratch_file_new(parent, 0, "state", (int64_t)3 << 29, &file, &err), "cannot reserve 1.5 GiB for");
    assert_true(strstr(err.text, "No space left on device; hint: "));
    assert_true(strstr(err.text, "hint: the disk has "));
    assert_int_equal(file.fd, -1);
    scratch_file_release(&file);
    allocate_code = EOPNOTSUPP; /* the file grows until the disk is full */
    write_code = ENOSPC;
    writes_before_full = 2;
    expect(scratch_file_new(parent, 0, "other", 8 << 20, &file, &err), "No space left on device; hint: ");
    writes_before_full = -1;
    allocate_code = EIO;
    expect(scratch_file_new(parent, 0, "third", 8 << 20, &file, &err), "Input/output error");
    assert_false(strstr(err.text, "hint"));
    assert_int_equal(entries(parent), 0);
}

static void test_a_file_system_without_direct_io_is_used_buffered(void **state)
{
    (void)state;
    no_direct = true;
    struct scratch_file file = make(0, "state", 8192);
    assert_false(file.direct);
    assert_int_equal(fcntl(file.fd, F_GETFL) & O_DIRECT, 0);
    scratch_file_release(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_file_has_no_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs_that_share_a_path_do_not_touch_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_killed_process_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_of_others_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_unusable_path_is_named_and_not_made, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_of_a_file_is_reserved_and_reads_as_zeros, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_an_error_at_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_system_without_direct_io_is_used_buffered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
