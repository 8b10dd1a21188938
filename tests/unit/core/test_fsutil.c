/* SPDX-License-Identifier: Apache-2.0 */
/* test_fsutil.c: file helpers, and every way in which they fail, with the messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fsutil.h"

static char folder[64];
static struct error err;

static const char *at(const char *name)
{
    static char paths[8][192];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    snprintf(folder, sizeof folder, "/tmp/ztrain-fsutil-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void expect(enum status status, enum status wanted, const char *words)
{
    if (status != wanted || err.code != wanted || !strstr(err.text, words))
        fail_msg("'%s' expected, not %d '%s'", words, (int)status, err.text);
}

static void put(const char *name, const void *data, size_t size)
{
    if (fs_write_file(at(name), data, size, STATUS_DATA, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static int count_files(void)
{
    int count = 0;
    DIR *listing = opendir(folder);
    while (readdir(listing)) count++;
    closedir(listing);
    return count - 2;
}

static void test_join(void **state)
{
    (void)state;
    char out[FS_PATH_MAX], longest[FS_PATH_MAX];
    assert_int_equal(fs_join(out, "a", "b", STATUS_DATA, &err), STATUS_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(fs_join(out, "/", "b", STATUS_DATA, &err), STATUS_OK);
    assert_string_equal(out, "/b");
    memset(longest, 'x', sizeof longest);
    longest[FS_PATH_MAX - 3] = '\0';
    assert_int_equal(fs_join(out, longest, "b", STATUS_DATA, &err), STATUS_OK);
    expect(fs_join(out, longest, "bb", STATUS_PEER, &err), STATUS_PEER, "path too long: 'xxx");
}

static void test_kinds(void **state)
{
    (void)state;
    put("file", "x", 1);
    assert_int_equal(symlink("nowhere", at("link")), 0);
    assert_true(fs_exists(at("file")) && fs_exists(at("link")) && fs_exists(folder));
    assert_false(fs_exists(at("nothing")));
    assert_true(fs_is_absent(at("nothing")) && fs_is_absent(at("file/beyond")));
    assert_false(fs_is_absent(at("file")) || fs_is_absent(at("link")));
    char endless[300];
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = '\0';
    assert_false(fs_exists(endless) || fs_is_absent(endless)); /* no name at all: opening it tells why */
    assert_true(fs_is_dir(folder));
    assert_false(fs_is_dir(at("file")) || fs_is_dir(at("nothing")) || fs_is_dir(at("link")));
}

/* Only what has no name at all is absent. */
static void test_find_dir(void **state)
{
    (void)state;
    bool there;
    put("file", "x", 1);
    assert_int_equal(mkdir(at("folder"), 0700), 0);
    assert_int_equal(symlink("folder", at("link")), 0);
    assert_int_equal(symlink("nowhere/at/all", at("lost")), 0);
    assert_int_equal(symlink("loop", at("loop")), 0);
    static const char *const folders[] = {"folder", "link", "link/", "folder/."};
    static const char *const absent[] = {"none", "none/deep/er", "folder/none", "link/none/"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(fs_find_dir(at(folders[i]), &there, STATUS_DATA, &err), STATUS_OK);
        assert_true(there);
        assert_int_equal(fs_find_dir(at(absent[i]), &there, STATUS_DATA, &err), STATUS_OK);
        assert_false(there);
    }
    static const struct {
        const char *path, *words;
    } wrong[] = {{"file", "file': it is not a folder"},           {"file/a/b", "/file' is not a folder"},
                 {"lost", "lost': it is a broken link"},          {"lost/", "lost/': it is a broken link"},
                 {"lost/checkpoints", "/lost' is a broken link"}, {"loop", "loop': it is a broken link"},
                 {"folder/../lost/a", "/lost' is a broken link"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        expect(fs_find_dir(at(wrong[i].path), &there, STATUS_CHECKPOINT, &err), STATUS_CHECKPOINT, wrong[i].words);
        assert_false(there || error_is_unreadable(&err));
    }
}

/* Nothing but a regular file is opened, and a pipe is not waited for. */
static void test_open_file(void **state)
{
    (void)state;
    int fd;
    FILE *stream;
    char text[8];
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    static const int flags[] = {O_RDONLY, O_RDWR | O_CREAT, O_WRONLY | O_CREAT | O_APPEND};
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        expect(fs_open_regular(at("pipe"), flags[i], STATUS_DATA, &fd, NULL, &err), STATUS_DATA,
               "it is not a regular file");
        expect(fs_open_regular("/dev/zero", flags[i], STATUS_DATA, &fd, NULL, &err), STATUS_DATA,
               "it is not a regular file");
        assert_int_equal(fd, -1);
    }
    expect(fs_open_regular(folder, O_RDONLY, STATUS_DATA, &fd, NULL, &err), STATUS_DATA,
           "it is a folder, expected a file");
    assert_int_equal(fs_open_regular(at("made"), O_RDWR | O_CREAT, STATUS_DATA, &fd, NULL, &err), STATUS_OK);
    assert_int_equal(write(fd, "a\nb\n", 4), 4);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    assert_int_equal(fs_open_stream(at("made"), STATUS_DATA, &stream, &err), STATUS_OK);
    assert_non_null(fgets(text, sizeof text, stream));
    assert_string_equal(text, "a\n");
    fclose(stream);
    expect(fs_open_stream(at("pipe"), STATUS_DATA, &stream, &err), STATUS_DATA, "it is not a regular file");
    assert_null(stream);
}

static void test_read(void **state)
{
    (void)state;
    char *data;
    size_t size;
    int fd;
    int64_t bytes;
    put("five", "a\0b\nc", 5);
    assert_int_equal(fs_read_file(at("five"), 5, STATUS_DATA, &data, &size, &err), STATUS_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(data, "a\0b\nc", 6); /* with the terminating zero */
    free(data);
    expect(fs_read_file(at("five"), 4, STATUS_DATA, &data, &size, &err), STATUS_DATA,
           "has 5 bytes, at most 4 expected");
    assert_true(!data && size == 0);
    expect(fs_read_file(at("none"), 4, STATUS_CHECKPOINT, &data, &size, &err), STATUS_CHECKPOINT,
           "none': No such file or directory");
    expect(fs_open_read(folder, STATUS_DATA, &fd, &bytes, &err), STATUS_DATA, "it is a folder, expected a file");
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    expect(fs_open_read(at("pipe"), STATUS_DATA, &fd, NULL, &err), STATUS_DATA, "it is not a regular file");
    assert_int_equal(fd, -1);

    char part[8];
    assert_int_equal(fs_open_read(at("five"), STATUS_DATA, &fd, &bytes, &err), STATUS_OK);
    assert_int_equal(bytes, 5);
    assert_int_equal(fs_pread(fd, "five", part, 3, 2, STATUS_DATA, &err), STATUS_OK);
    assert_memory_equal(part, "b\nc", 3);
    expect(fs_pread(fd, "five", part, 4, 2, STATUS_DATA, &err), STATUS_DATA,
           "'five' is truncated: it ends at offset 5, 1 more bytes expected");
    expect(fs_pread(fd, "five", part, 4, -2, STATUS_DATA, &err), STATUS_DATA,
           "cannot read 'five' at offset -2: Invalid");
    expect(fs_write(fd, "five", "x", 1, STATUS_DATA, &err), STATUS_DATA, "cannot write 'five': Bad file descriptor");
    close(fd);
}

static void test_mkdirs(void **state)
{
    (void)state;
    assert_int_equal(fs_mkdirs(at("a/b//c/"), STATUS_DATA, &err), STATUS_OK);
    assert_true(fs_is_dir(at("a/b/c")));
    assert_int_equal(fs_mkdirs(at("a/b"), STATUS_DATA, &err), STATUS_OK);
    assert_int_equal(fs_mkdirs("/", STATUS_DATA, &err), STATUS_OK);
    put("file", "x", 1);
    expect(fs_mkdirs(at("file"), STATUS_DATA, &err), STATUS_DATA, "file': File exists");
    expect(fs_mkdirs(at("file/a"), STATUS_DATA, &err), STATUS_DATA, "file': File exists");
    expect(fs_mkdirs("", STATUS_DATA, &err), STATUS_DATA, "its name is empty");
    char longest[FS_PATH_MAX + 1];
    memset(longest, 'x', sizeof longest);
    longest[FS_PATH_MAX] = '\0';
    expect(fs_mkdirs(longest, STATUS_DATA, &err), STATUS_DATA, "its name is too long");
    assert_int_equal(fs_sync_dir(at("a"), STATUS_DATA, &err), STATUS_OK);
    expect(fs_sync_dir(at("file"), STATUS_DATA, &err), STATUS_DATA, "cannot open folder");
    expect(fs_sync_dir(at("none"), STATUS_DATA, &err), STATUS_DATA, "No such file or directory");
}

static void test_write(void **state)
{
    (void)state;
    char *data;
    size_t size;
    put("file", "first", 5);
    put("file", "2nd", 3);
    assert_int_equal(fs_read_file(at("file"), 9, STATUS_DATA, &data, &size, &err), STATUS_OK);
    assert_string_equal(data, "2nd");
    free(data);
    assert_int_equal(count_files(), 1);
    expect(fs_write_file(at("none/file"), "x", 1, STATUS_CHECKPOINT, &err), STATUS_CHECKPOINT, "cannot create '");
    assert_int_equal(mkdir(at("folder"), 0700), 0);
    expect(fs_write_file(at("folder"), "x", 1, STATUS_DATA, &err), STATUS_DATA, "cannot rename '");
    assert_int_equal(count_files(), 2);
    /* a name without a folder in it */
    char before[FS_PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(fs_write_file("here", "x", 1, STATUS_DATA, &err), STATUS_OK);
    assert_int_equal(chdir(before), 0);
    assert_true(fs_exists(at("here")));
}

/* Links stay, their targets are replaced or made; pipes and devices are written into. */
static void test_output(void **state)
{
    (void)state;
    struct stat st;
    char *data, text[9] = "";
    size_t size;
    put("file", "old", 3);
    assert_int_equal(symlink("file", at("link")), 0);
    assert_int_equal(symlink("made", at("dangling")), 0);
    static const char *const names[][2] = {{"link", "file"}, {"dangling", "made"}, {"plain", "plain"}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_int_equal(named_file_write(at(names[i][0]), names[i][0], strlen(names[i][0]), STATUS_DATA, &err),
                         STATUS_OK);
        assert_int_equal(lstat(at(names[i][0]), &st), 0);
        assert_int_equal(S_ISLNK(st.st_mode), i < 2);
        assert_int_equal(fs_read_file(at(names[i][1]), 9, STATUS_DATA, &data, &size, &err), STATUS_OK);
        assert_string_equal(data, names[i][0]);
        free(data);
    }
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_true(named_file_is_special(at("pipe")) && named_file_is_special(folder) &&
                !named_file_is_special(at("link")));
    assert_false(named_file_is_special(at("none")));
    expect(named_file_write(at("pipe"), "x", 1, STATUS_DATA, &err), STATUS_DATA, "a pipe needs its reader first");
    int reader = open(at("pipe"), O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(named_file_write(at("pipe"), "text", 4, STATUS_DATA, &err), STATUS_OK);
    assert_int_equal(read(reader, text, sizeof text), 4);
    assert_string_equal(text, "text");
    close(reader);
    assert_int_equal(lstat(at("pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(symlink("none/file", at("lost")), 0);
    expect(named_file_write(at("lost"), "x", 1, STATUS_DATA, &err), STATUS_DATA, "none/file.tmp-");
    assert_int_equal(symlink("loop", at("loop")), 0);
    expect(named_file_write(at("loop"), "x", 1, STATUS_DATA, &err), STATUS_DATA, "cannot follow the link '");
    assert_int_equal(mkdir(at("folder"), 0700), 0);
    expect(named_file_write(at("folder"), "x", 1, STATUS_DATA, &err), STATUS_DATA, "cannot open '");
}

/* A limit on file sizes stands in for a full disk. */
static void test_full_disk(void **state)
{
    (void)state;
    struct rlimit old, limit;
    char big[5000] = "";
    put("file", "old", 4);
    put("big", big, sizeof big);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    enum status written = fs_write_file(at("file"), big, sizeof big, STATUS_DATA, &err);
    expect(written, STATUS_DATA, "File too large");
    enum status copied = fs_copy_file(at("big"), at("file"), STATUS_DATA, &err);
    expect(copied, STATUS_DATA, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    char *data;
    size_t size;
    assert_int_equal(fs_read_file(at("file"), 9, STATUS_DATA, &data, &size, &err), STATUS_OK);
    assert_string_equal(data, "old");
    free(data);
    assert_int_equal(count_files(), 2);
}

static void test_copy(void **state)
{
    (void)state;
    enum { SIZE = (1 << 20) * 2 + 77 }; /* more than two chunks */
    char *bytes = malloc(SIZE), *data;
    size_t size;
    for (int i = 0; i < SIZE; i++) bytes[i] = (char)(i * 7 + i / 1000);
    put("from", bytes, SIZE);
    assert_int_equal(fs_copy_file(at("from"), at("to"), STATUS_DATA, &err), STATUS_OK);
    assert_int_equal(fs_read_file(at("to"), SIZE, STATUS_DATA, &data, &size, &err), STATUS_OK);
    assert_true(size == SIZE && memcmp(data, bytes, SIZE) == 0);
    free(data);
    free(bytes);
    expect(fs_copy_file(at("none"), at("to"), STATUS_DATA, &err), STATUS_DATA, "cannot open '");
    expect(fs_copy_file(at("from"), at("none/to"), STATUS_DATA, &err), STATUS_DATA, "cannot create '");
    assert_int_equal(count_files(), 2);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_join),   CASE(test_kinds), CASE(test_find_dir), CASE(test_open_file), CASE(test_read),
        CASE(test_mkdirs), CASE(test_write), CASE(test_output),   CASE(test_full_disk), CASE(test_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
