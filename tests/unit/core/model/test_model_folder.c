/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_folder.c: core/model/model_folder.h: names of models, and the folders that the local cache has for them.
 */
#include "core/model/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char root[] = "/tmp/ztrain-test-model-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static void names_are_told_from_paths(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "Qwen/Qwen2.5-0.5B", "a_b/c-d.e"};
    static const char *const paths[] = {"",     "/a", "./a",   "../a", "a/b/c",         "a/",    "~/a",
                                        "a/.b", ".a", "a b/c", "a\nb", "models/t.json", "a/../b"};
    for (size_t i = 0; i < COUNT_OF(names); i++) assert_true(model_folder_is_name(names[i]));
    for (size_t i = 0; i < COUNT_OF(paths); i++) assert_false(model_folder_is_name(paths[i]));
}

/* Makes a model in the cache at `place` below the root, with a revision of its own. */
static void make_model(const char *place, const char *model, const char *revision)
{
    char path[FS_PATH_MAX];
    struct error err;
    snprintf(path, sizeof path, "%s/%s/%s/snapshots/%s", root, place, model, revision);
    assert_int_equal(fs_mkdirs(path, STATUS_DATA, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/%s/%s/refs", root, place, model);
    assert_int_equal(fs_mkdirs(path, STATUS_DATA, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/%s/%s/refs/main", root, place, model);
    assert_int_equal(fs_write_file(path, revision, strlen(revision), STATUS_DATA, &err), STATUS_OK);
}

static void set_place(const char *variable, const char *place)
{
    char path[FS_PATH_MAX];
    snprintf(path, sizeof path, "%s%s", root, place);
    setenv(variable, path, 1);
}

static void expect_revision(const char *name, const char *revision)
{
    char folder[FS_PATH_MAX];
    assert_true(model_folder_find(name, folder));
    assert_string_equal(basename(folder), revision);
}

/* Each variable comes before those that were set before it. */
static void the_cache_is_where_the_environment_says(void **state)
{
    (void)state;
    static const char *const variables[][3] = {{"HOME", "/home", "home/.cache/huggingface/hub"},
                                               {"XDG_CACHE_HOME", "/xdg", "xdg/huggingface/hub"},
                                               {"HF_HOME", "/hf", "hf/hub"},
                                               {"HF_HUB_CACHE", "/hub", "hub"}};
    char folder[FS_PATH_MAX];
    for (size_t i = 0; i < COUNT_OF(variables); i++) unsetenv(variables[i][0]);
    assert_false(model_folder_find("org/model", folder));
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        char revision[8];
        snprintf(revision, sizeof revision, "rev%zu", i);
        make_model(variables[i][2], "models--org--model", revision);
        set_place(variables[i][0], variables[i][1]);
        expect_revision("org/model", revision);
    }
    make_model("hub", "models--single", "abc");
    expect_revision("single", "abc");
    make_model("hub", "models--bad", "../../x");
    assert_false(model_folder_find("bad", folder)); /* a revision is a name */
    assert_false(model_folder_find("org/other", folder));
    assert_true(model_folder_find(root, folder)); /* a folder is itself */
    assert_string_equal(folder, root);
}

static void a_missing_name_has_the_command(void **state)
{
    (void)state;
    struct error err;
    set_place("HF_HUB_CACHE", "/hub");
    assert_int_equal(model_folder_missing("org/other", STATUS_DATA, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "no folder 'org/other'"));
    assert_non_null(strstr(err.text, "; hint: correct the path, or download the model: hf download org/other"));
    assert_non_null(strstr(err.text, root));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_told_from_paths),
        cmocka_unit_test(the_cache_is_where_the_environment_says),
        cmocka_unit_test(a_missing_name_has_the_command),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
