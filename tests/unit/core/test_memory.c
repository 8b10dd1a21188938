/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c: the end of a process without memory, and streams that are never truncated silently. */
#include "core/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

/* A child's last text on stderr, and its exit status. */
static int ended(void (*body)(void), char said[1024])
{
    int file = memfd_create("stderr", 0);
    assert_true(file >= 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(file, STDERR_FILENO);
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    ssize_t n = pread(file, said, 1023, 0);
    said[n > 0 ? n : 0] = '\0';
    close(file);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The sanitizers' allocators end the process themselves. */
#ifdef ZTRAIN_FAULTS
#define TOO_MUCH() memory_exhausted(SIZE_MAX / 2)
#else
#define TOO_MUCH() free(memory_resize(NULL, SIZE_MAX / 2))
#endif

static void ask_for_too_much(void)
{
    TOO_MUCH();
}

static void tell(const struct error *err)
{
    dprintf(STDERR_FILENO, "told %d\n", err->code);
}

static void ask_with_peers(void)
{
    memory_on_exhausted(tell);
    TOO_MUCH();
}

/* The address space is too small for a text of 64 MiB, but large enough for the end of the process. */
static void build_json(void)
{
    const struct rlimit limit = {64 << 20, 64 << 20};
    char *text = malloc(48 << 20);
    memset(text, 'x', (48 << 20) - 1);
    text[(48 << 20) - 1] = '\0';
    memory_serve_libraries();
    setrlimit(RLIMIT_AS, &limit);
    json_t *value = json_string(text);
    _exit(value ? 0 : 3); /* 3: jansson's behaviour without the hook */
}

static void end_as_a_library(void)
{
    memory_serve_libraries();
    exit(0);
}

static void end_by_itself(void)
{
    memory_serve_libraries();
    memory_leave_libraries();
    exit(17);
}

/* The OpenMP run time ends the process if it gets no thread. Instrumented builds map more than any limit. */
#if defined _OPENMP && !defined ZTRAIN_FAULTS
static void end_as_openmp(void)
{
    const struct rlimit limit = {256 << 20, 256 << 20};
    memory_serve_libraries();
    setrlimit(RLIMIT_AS, &limit);
#pragma omp parallel num_threads(1000)
    pause();
}
#endif

static void test_end(void **state)
{
    (void)state;
    char said[1024], bytes[64];
    snprintf(bytes, sizeof bytes, "out of memory: %zu bytes", SIZE_MAX / 2);
    assert_int_equal(ended(ask_for_too_much, said), STATUS_DEVICE);
    assert_non_null(strstr(said, "ztrain: error: "));
    assert_non_null(strstr(said, bytes));
    assert_int_equal(ended(ask_with_peers, said), STATUS_DEVICE);
    assert_non_null(strstr(said, "told 5"));
}

static void test_exit(void **state)
{
    (void)state;
    char said[1024];
    assert_int_equal(ended(end_as_a_library, said), STATUS_BROKEN);
    assert_non_null(strstr(said, "test_memory' ended the process with exit code 0"));
    assert_int_equal(ended(end_by_itself, said), 17);
    assert_string_equal(said, "");
#if defined _OPENMP && !defined ZTRAIN_FAULTS
    assert_int_equal(ended(end_as_openmp, said), STATUS_DEVICE);
    assert_non_null(strstr(said, "ztrain: error: out of memory; hint: "));
#endif
}

static void test_library(void **state)
{
    (void)state;
#ifdef ZTRAIN_FAULTS
    skip(); /* instrumented builds map more than any limit */
#endif
    char said[1024];
    assert_int_equal(ended(build_json, said), STATUS_DEVICE);
    assert_non_null(strstr(said, "out of memory"));
}

static void test_stream(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    FILE *out = memory_stream(&text, &bytes);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "");
    free(text);

    out = memory_stream(&text, &bytes);
    for (int i = 0; i < 10000; i++) fprintf(out, "%d\n", i);
    fflush(out);
    assert_int_equal(bytes, 48890);
    assert_int_equal(strlen(text), bytes);
    fputs("end", out);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(bytes, 48893);
    assert_string_equal(text + bytes - 8, "9999\nend");
    free(text);
}

static void test_texts(void **state)
{
    (void)state;
    char *copy = memory_text("copy"), *line = memory_printf("%s %d", copy, 7);
    assert_string_equal(copy, "copy");
    assert_string_equal(line, "copy 7");
    free(line);
    free(copy);
    assert_null(memory_fopen("/nonexistent", "re"));
    assert_null(memory_opendir("/nonexistent"));
    const char *why = "";
    assert_null(memory_dlopen("libnonexistent.so.9", 1, &why));
    assert_non_null(strstr(why, "libnonexistent.so.9"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end),    cmocka_unit_test(test_exit),  cmocka_unit_test(test_library),
        cmocka_unit_test(test_stream), cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
