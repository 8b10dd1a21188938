/* SPDX-License-Identifier: Apache-2.0 */
/* test_scratch_folder.c: folders that end with their process, those that a killed process leaves, and files whose space
 * is reserved. */
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
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/storage/scratch_folder.h"

static struct error err;
static char parent[64];

/* ---- a disk that is full, and file systems that cannot do a thing -------- */

static int allocate_code, write_code, lock_code;
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

int flock(int fd, int operation)
{
    int (*real)(int, int);
    *(void **)&real = dlsym(RTLD_NEXT, "flock");
    if (lock_code) return errno = lock_code, -1;
    return real(fd, operation);
}

static int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    allocate_code = lock_code = 0;
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

static struct scratch_folder *make(int rank)
{
    struct scratch_folder *folder;
    if (scratch_folder_new(parent, rank, &folder, &err) != STATUS_OK) fail_msg("%s", err.text);
    return folder;
}

static void expect(enum status status, const char *words)
{
    if (status != STATUS_DEVICE || !strstr(err.text, words))
        fail_msg("'%s' expected, not %d '%s'", words, (int)status, err.text);
}

/* ---- folders ------------------------------------------------------------- */

static void test_a_folder_ends_with_its_files(void **state)
{
    (void)state;
    struct scratch_file file;
    struct scratch_folder *folder = make(3);
    assert_true(strstr(scratch_folder_path(folder), "/ztrain-offload-00003-"));
    assert_int_equal(scratch_file_new(folder, "master", 40960, &file, &err), STATUS_OK);
    assert_int_equal(entries(scratch_folder_path(folder)), 2);
    scratch_file_release(&file);
    scratch_folder_free(folder);
    assert_int_equal(entries(parent), 0);
    scratch_folder_free(NULL);
}

/* Two jobs, or two ranks, of one number in one folder. */
static void test_jobs_that_share_a_path_do_not_touch_each_other(void **state)
{
    (void)state;
    struct scratch_folder *first = make(0), *second = make(0);
    struct scratch_file file;
    assert_string_not_equal(scratch_folder_path(first), scratch_folder_path(second));
    assert_int_equal(scratch_file_new(first, "state", 8192, &file, &err), STATUS_OK);
    struct scratch_folder *third = make(1);
    scratch_folder_free(second);
    assert_int_equal(entries(parent), 2);
    assert_int_equal(entries(scratch_folder_path(first)), 2);
    scratch_folder_free(third);
    scratch_file_release(&file);
    scratch_folder_free(first);
    assert_int_equal(entries(parent), 0);
}

static void test_the_folder_of_a_killed_process_goes_at_the_next_start(void **state)
{
    (void)state;
    struct scratch_folder *alive = make(1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct scratch_folder *folder;
        struct scratch_file file;
        if (scratch_folder_new(parent, 0, &folder, &err) == STATUS_OK)
            scratch_file_new(folder, "state", 1 << 20, &file, &err);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(entries(parent), 2);
    struct scratch_folder *next = make(0);
    assert_int_equal(entries(parent), 2); /* of `alive` and `next` */
    assert_int_equal(entries(scratch_folder_path(alive)), 1);
    scratch_folder_free(next);
    scratch_folder_free(alive);
    assert_int_equal(entries(parent), 0);
}

/* Killed between mkdir() and the lock file; and folders and files of others stay. */
static void test_only_abandoned_folders_are_deleted(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/ztrain-offload-00000-0000000000000000", parent);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/other", parent);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/ztrain-offload-notes", parent);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/ztrain-offload-notes/text", parent);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    struct scratch_folder *folder = make(0);
    assert_int_equal(entries(parent), 3);
    assert_int_equal(access(path, F_OK), 0);
    scratch_folder_free(folder);
}

static void test_an_unusable_path_is_named_and_not_made(void **state)
{
    (void)state;
    char path[128], file[128];
    struct scratch_folder *folder;
    snprintf(path, sizeof path, "%s/a/b", parent);
    expect(scratch_folder_new(path, 0, &folder, &err), "/a/b': No such file or directory; hint: mount the disk");
    assert_null(folder);
    snprintf(file, sizeof file, "%s/file", parent);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    expect(scratch_folder_new(file, 0, &folder, &err), "/file': Not a directory; hint: ");
    expect(scratch_folder_new("/proc", 0, &folder, &err), "cannot make the folder '/proc/ztrain-offload-00000-");
    assert_non_null(strstr(err.text, "; hint: nvme_path has to be a folder"));
    assert_null(folder);
    expect(scratch_folder_check(file, &err), file);
    assert_int_equal(scratch_folder_check(parent, &err), STATUS_OK);
    lock_code = ENOLCK;
    expect(scratch_folder_new(parent, 0, &folder, &err),
           "No locks available; hint: nvme_path has to be on a local disk");
    assert_null(folder);
    lock_code = 0;
    assert_int_equal(entries(parent), 1); /* "file": nothing of the failed attempts */
}

/* ---- files --------------------------------------------------------------- */

static void test_all_of_a_file_is_reserved_and_reads_as_zeros(void **state)
{
    (void)state;
    struct stat facts;
    char block[4096], zeros[4096] = {0};
    struct scratch_folder *folder = make(0);
    for (int filled = 0; filled < 2; filled++) {
        struct scratch_file file;
        allocate_code = filled ? EOPNOTSUPP : 0;
        assert_int_equal(scratch_file_new(folder, filled ? "filled" : "reserved", 3 << 20, &file, &err), STATUS_OK);
        assert_int_equal(file.reserved, !filled);
        assert_int_equal(fstat(file.fd, &facts), 0);
        assert_int_equal(facts.st_size, 3 << 20);
        assert_true(facts.st_blocks * 512 >= 3 << 20);
        int fd = open(file.path, O_RDONLY);
        assert_int_equal(pread(fd, block, sizeof block, 2 << 20), sizeof block);
        assert_memory_equal(block, zeros, sizeof block);
        close(fd);
        scratch_file_release(&file);
    }
    scratch_folder_free(folder);
}

static void test_a_full_disk_is_an_error_at_the_start(void **state)
{
    (void)state;
    struct scratch_file file;
    struct scratch_folder *folder = make(0);
    allocate_code = ENOSPC;
    expect(scratch_file_new(folder, "state", (int64_t)3 << 29, &file, &err), "cannot reserve 1.5 GiB for");
    assert_true(strstr(err.text, "No space left on device; hint: "));
    assert_true(strstr(err.text, "hint: the disk has "));
    assert_int_equal(file.fd, -1);
    scratch_file_release(&file);
    allocate_code = EOPNOTSUPP; /* the file grows until the disk is full */
    write_code = ENOSPC;
    writes_before_full = 2;
    expect(scratch_file_new(folder, "other", 8 << 20, &file, &err), "No space left on device; hint: ");
    writes_before_full = -1;
    allocate_code = EIO;
    expect(scratch_file_new(folder, "third", 8 << 20, &file, &err), "Input/output error");
    assert_false(strstr(err.text, "hint"));
    allocate_code = 0;
    expect(scratch_file_new(folder, "third", 8 << 20, &file, &err), "cannot make"); /* it exists */
    scratch_folder_free(folder);
    assert_int_equal(entries(parent), 0);
}

static void test_a_file_system_without_direct_io_is_used_buffered(void **state)
{
    (void)state;
    struct scratch_file file;
    struct scratch_folder *folder = make(0);
    no_direct = true;
    assert_int_equal(scratch_file_new(folder, "state", 8192, &file, &err), STATUS_OK);
    assert_false(file.direct);
    assert_int_equal(fcntl(file.fd, F_GETFL) & O_DIRECT, 0);
    scratch_file_release(&file);
    scratch_folder_free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_folder_ends_with_its_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs_that_share_a_path_do_not_touch_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_folder_of_a_killed_process_goes_at_the_next_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_only_abandoned_folders_are_deleted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_unusable_path_is_named_and_not_made, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_of_a_file_is_reserved_and_reads_as_zeros, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_an_error_at_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_system_without_direct_io_is_used_buffered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
