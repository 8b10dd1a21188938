/* SPDX-License-Identifier: Apache-2.0 */
/* test_library_places.c: where libraries are found, in what order, and what is said of one that is not. A copy of libdl
 * plays a library of NVIDIA's. */
#include "gpu/library_places.h"

#include "core/memory.h"
#include "core/status.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SONAME "libztrain-fake.so.7"

static char top[] = "/tmp/ztrain-places-XXXXXX", original[4096];

/* Makes `path` below top, with its folders; `bytes`: of the library, -1: all of them. */
static void place(const char *path, long bytes)
{
    char *whole = memory_printf("%s/%s", top, path);
    for (char *slash = whole + strlen(top) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(whole, 0777);
        *slash = '/';
    }
    FILE *from = fopen(original, "re"), *to = fopen(whole, "we");
    assert_true(from && to);
    for (int c; bytes-- && (c = getc(from)) != EOF;) putc(c, to);
    fclose(from);
    fclose(to);
    free(whole);
}

/* Makes PREFIX/bin/python3. */
static void place_python(const char *prefix)
{
    char *inside = memory_printf("%s/bin/python3", prefix), *whole = memory_printf("%s/%s", top, inside);
    place(inside, 0);
    assert_int_equal(chmod(whole, 0755), 0);
    free(inside);
    free(whole);
}

/* Sets a variable to text in which each @ is the top folder. */
static void set_variable(const char *name, const char *text)
{
    char *value = memory_text("");
    for (; *text; text++) {
        char *longer = *text == '@' ? memory_printf("%s%s", value, top) : memory_printf("%s%c", value, *text);
        free(value);
        value = longer;
    }
    setenv(name, value, 1);
    free(value);
}

static void check_found(const char *expected)
{
    char why[512] = "";
    void *handle = library_places_open(SONAME, why, sizeof why);
    if (!handle) fail_msg("%s: %s", expected, why);
    struct link_map *map;
    assert_int_equal(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
    char *path = realpath(map->l_name, NULL), *wanted = memory_printf("%s/%s/" SONAME, top, expected);
    assert_non_null(path);
    assert_string_equal(path, wanted);
    free(path);
    free(wanted);
    dlclose(handle);
}

static void check_absent(const char *word)
{
    char why[512] = "";
    assert_null(library_places_open(SONAME, why, sizeof why));
    if (!strstr(why, word)) fail_msg("'%s' lacks '%s'", why, word);
}

/* ---- the machines -------------------------------------------------------- */

static void nothing_is_there(void **state)
{
    (void)state;
    check_absent(SONAME ": cannot open shared object file");
}

/* The folders of PyTorch's packages for CUDA 12 and for CUDA 13, next to the python3 of PATH. */
static void packages_of_the_python_on_path(void **state)
{
    (void)state;
    place_python("venv");
    place("venv/lib/python3.11/site-packages/nvidia/cu13/lib/" SONAME, -1);
    set_variable("PATH", "/nowhere:@/venv/bin:/usr/bin");
    check_found("venv/lib/python3.11/site-packages/nvidia/cu13/lib");
    place("user/.local/lib/python3.9/site-packages/nvidia/nccl/lib/" SONAME, -1);
    set_variable("HOME", "@/user");
    check_found("venv/lib/python3.11/site-packages/nvidia/cu13/lib");
    set_variable("PATH", "/nowhere");
    check_found("user/.local/lib/python3.9/site-packages/nvidia/nccl/lib");
}

/* Each place is before the one of the last line. */
static void places_in_their_order(void **state)
{
    static const struct {
        const char *folder, *name, *value;
    } order[] = {
        {"python/lib64/python3.12/dist-packages/nvidia/cudnn/lib", "PATH", "@/python/bin"},
        {"conda/lib/python3.10/site-packages/nvidia/cublas/lib", "CONDA_PREFIX", "@/conda"},
        {"active [x86]/lib/python3.10/site-packages/nvidia/cublas/lib", "VIRTUAL_ENV", "@/active [x86]"},
        {"conda/lib", "CONDA_PREFIX", "@/conda"},
        {"path/lib64", "CUDA_PATH", "@/path"},
        {"home/lib64", "CUDA_HOME", "@/home"},
        {"named/nvidia/cublas/lib", "ZTRAIN_CUDA_LIBRARIES", "@/empty:@/named"},
        {"named", "ZTRAIN_CUDA_LIBRARIES", "@/empty:@/named"},
        {"first", "ZTRAIN_CUDA_LIBRARIES", "@/first:@/named"},
    };
    (void)state;
    place_python("python");
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        char *file = memory_printf("%s/" SONAME, order[i].folder);
        place(file, -1);
        free(file);
        set_variable(order[i].name, order[i].value);
        check_found(order[i].folder);
    }
}

/* A file in a named folder that does not open is not passed over for one elsewhere; elsewhere it is, and named if there
 * is no other. */
static void a_broken_file_is_named(void **state)
{
    (void)state;
    place("toolkit/lib64/" SONAME, 20);
    set_variable("CUDA_HOME", "@/toolkit");
    check_absent("file too short");
    place("conda/lib/" SONAME, -1);
    set_variable("CONDA_PREFIX", "@/conda");
    check_found("conda/lib");
    place("broken/" SONAME, 20);
    set_variable("ZTRAIN_CUDA_LIBRARIES", "@/broken:@/conda/lib");
    check_absent("broken/" SONAME ": file too short");
    set_variable("ZTRAIN_CUDA_LIBRARIES", "@/conda/lib:@/broken");
    check_found("conda/lib");
}

/* ---- around them --------------------------------------------------------- */

static int begin(void **state)
{
    (void)state;
    static const char *const variables[] = {"ZTRAIN_CUDA_LIBRARIES", "CUDA_HOME", "CUDA_PATH",      "CONDA_PREFIX",
                                            "VIRTUAL_ENV",           "HOME",      "LD_LIBRARY_PATH"};
    for (size_t i = 0; i < COUNT_OF(variables); i++) unsetenv(variables[i]);
    setenv("PATH", "/nowhere", 1);
    strcpy(top + strlen(top) - 6, "XXXXXX");
    return mkdtemp(top) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    char command[256];
    setenv("PATH", "/usr/bin:/bin", 1);
    snprintf(command, sizeof command, "rm -rf '%s'", top);
    return system(command);
}

static int find_original(void **state)
{
    (void)state;
    struct link_map *map;
    void *handle = dlopen("libdl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return -1;
    snprintf(original, sizeof original, "%s", map->l_name);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_there, begin, end),
        cmocka_unit_test_setup_teardown(packages_of_the_python_on_path, begin, end),
        cmocka_unit_test_setup_teardown(places_in_their_order, begin, end),
        cmocka_unit_test_setup_teardown(a_broken_file_is_named, begin, end),
    };
    return cmocka_run_group_tests(tests, find_original, NULL);
}
