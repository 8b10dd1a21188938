/* SPDX-License-Identifier: Apache-2.0 */
/* test_init.c: names and words that `ztrain init` writes. */
#include "cmd/command_line.c"
#include "cmd/init_inputs.c"
#include "cmd/init_spec.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_name_of_the_run(void **state)
{
    static const struct {
        char *model, *data;
        const char *name;
    } cases[] = {
        {"Qwen/Qwen2.5-0.5B", "data/chats", "Qwen2.5-0.5B-chats"},
        {"gpt2", "chats.bin", "gpt2-chats"},
        {"/models/llama 3/", "a/b.idx", "llama-3-b"},
        {"tiny/config.json", "data/shard-*", "tiny-shard--"},
        {".", "x", "model-x"},
        {"config.json", "x", "model-x"},
        {"..", "x", "_.-x"},
        {"ä", "b", "---b"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *data = cases[i].data, name[INIT_TEXT];
        const struct init t = {.model = cases[i].model, .data = {1, &data}};
        init_run_name(&t, name);
        assert_string_equal(name, cases[i].name);
    }
}

static void test_long_names_are_cut(void **state)
{
    char model[FS_PATH_MAX], *data = model, name[INIT_TEXT];
    (void)state;
    memset(model, 'm', sizeof model - 1);
    model[sizeof model - 1] = '\0';
    const struct init t = {.model = model, .data = {1, &data}};
    init_run_name(&t, name);
    assert_true(strlen(name) < INIT_TEXT && strchr(name, '-'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name_of_the_run),
        cmocka_unit_test(test_long_names_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
