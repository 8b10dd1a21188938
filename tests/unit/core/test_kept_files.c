/* SPDX-License-Identifier: Apache-2.0 */
/* test_kept_files.c: texts that outlive their files, over exec. */
#include "core/kept_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text, size_t bytes)
{
    FILE *file = fopen(at(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void keep(const char *name)
{
    struct error err = {.text = ""};
    if (kept_files_add(at(name), &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void expect(const char *name, const char *text, size_t bytes)
{
    size_t found;
    char *kept = kept_files_read(at(name), &found);
    assert_non_null(kept);
    assert_int_equal(found, bytes);
    assert_memory_equal(kept, text, bytes);
    assert_int_equal(kept[bytes], 0);
    free(kept);
}

static void test_texts_stay(void **state)
{
    (void)state;
    size_t bytes, large = 3 << 20;
    char *text = malloc(large);
    memset(text, 'x', large);
    assert_null(kept_files_read(at("one"), &bytes));
    put("one", "1\0\n2", 4);
    put("empty", "", 0);
    put("large", text, large);
    keep("one");
    keep("none");
    keep("empty");
    keep("large");
    put("one", "other", 5);
    keep("one"); /* it is kept already */
    unlink(at("large"));
    expect("one", "1\0\n2", 4);
    expect("empty", "", 0);
    expect("large", text, large);
    assert_null(kept_files_read(at("none"), &bytes));
    assert_null(kept_files_read(at("on"), &bytes));
    free(text);
}

/* As a child of the one that has kept them, this program prints a text. */
static int print(const char *path)
{
    size_t bytes;
    char *text = kept_files_read(path, &bytes);
    const bool found = text && fwrite(text, 1, bytes, stdout) == bytes;
    free(text);
    return found ? 0 : 1;
}

static void test_a_child_reads_them(void **state)
{
    (void)state;
    char line[512], text[64] = "";
    put("kept", "for a child", 11);
    keep("kept");
    unlink(at("kept"));
    snprintf(line, sizeof line, "exec /proc/%d/exe %s", (int)getpid(), at("kept"));
    FILE *child = popen(line, "r");
    assert_non_null(child);
    assert_int_equal(fread(text, 1, sizeof text - 1, child), 11);
    assert_int_equal(pclose(child), 0);
    assert_string_equal(text, "for a child");
}

/* A pipe's text is gone once it was read, so that another function would find the rest: it is kept to be refused. */
static void test_a_text_that_is_too_large_is_kept(void **state)
{
    (void)state;
    size_t bytes = 0;
    put("huge", "", 0);
    assert_int_equal(truncate(at("huge"), 40 << 20), 0);
    keep("huge");
    char *kept = kept_files_read(at("huge"), &bytes);
    assert_non_null(kept);
    assert_true(bytes > 16 << 20);
    free(kept);
    unlink(at("huge"));
}

/* The variable of another program, whose number is here another file: that is neither read nor written. */
static void test_another_file_of_the_number(void **state)
{
    (void)state;
    char number[16];
    size_t bytes;
    unsetenv("ZTRAIN_KEPT_FILES");
    put("spec", "lr: 1", 5);
    put("other", "", 0);
    FILE *other = fopen(at("other"), "r+");
    assert_non_null(other);
    snprintf(number, sizeof number, "%d", fileno(other));
    setenv("ZTRAIN_KEPT_FILES", number, 1);
    assert_null(kept_files_read(at("spec"), &bytes));
    keep("spec");
    expect("spec", "lr: 1", 5);
    assert_int_equal(fseek(other, 0, SEEK_END), 0);
    assert_int_equal(ftell(other), 0);
    fclose(other);
}

static int remove_folder(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts_stay), cmocka_unit_test(test_a_child_reads_them),
                                       cmocka_unit_test(test_a_text_that_is_too_large_is_kept),
                                       cmocka_unit_test(test_another_file_of_the_number)};
    if (argc > 1) return print(argv[1]);
    snprintf(folder, sizeof folder, "/tmp/ztrain-kept-XXXXXX");
    return mkdtemp(folder) ? cmocka_run_group_tests(tests, NULL, remove_folder) : 1;
}
