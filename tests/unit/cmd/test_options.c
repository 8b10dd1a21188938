/* SPDX-License-Identifier: Apache-2.0 */
/* test_options.c: the command line of training and planning. */
#include "cmd/command_line.c"
#include "cmd/options.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS_MAX = 8 };

/* Parses "ztrain WORDS…", which end with NULL. */
static enum status parse(const char *const *words, struct options *options, struct error *err)
{
    char *argv[WORDS_MAX + 2] = {"ztrain"};
    int argc = 1;
    while (argc <= WORDS_MAX && words[argc - 1]) {
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
        argc++;
    }
    return options_parse(argc, argv, options, err);
}

static void test_every_kind_of_option(void **state)
{
    (void)state;
    static const char *const words[] = {"--config", "run.yaml",  "--local-gpus=2", "--set",
                                        "a=1",      "--set=b=2", "--dry-run",      NULL};
    struct options options;
    struct error err;
    assert_int_equal(parse(words, &options, &err), STATUS_OK);
    assert_string_equal(options.config, "run.yaml");
    assert_int_equal(options.local_gpus, 2);
    assert_int_equal(options.num_set, 2);
    assert_string_equal(options.set[0], "a=1");
    assert_string_equal(options.set[1], "b=2");
    assert_true(options.dry_run);
    assert_false(options.help || options.rank.profile || options.version);
    assert_null(options.rank.resume);
    assert_int_equal(options.world, 0);
}

static void test_help_by_one_letter(void **state)
{
    (void)state;
    static const char *const words[] = {"-h", NULL};
    struct options options;
    struct error err;
    assert_int_equal(parse(words, &options, &err), STATUS_OK);
    assert_true(options.help);
}

static void test_refused_words(void **state)
{
    (void)state;
    static const struct {
        const char *words[WORDS_MAX], *message;
    } cases[] = {
        {{"--config"}, "--config needs a value: --config FILE"},
        {{"--dry-run=yes"}, "--dry-run takes no value"},
        {{"--local-gpus", "0"}, "--local-gpus must be a number from 1 to 64, not '0'"},
        {{"--local-gpus", "65537"},
         "--local-gpus must be a number from 1 to 64, not '65537'; hint: srun starts more ranks than that"},
        {{"--local-gpus", "65"},
         "--local-gpus must be a number from 1 to 64, not '65'; hint: srun starts more ranks than that"},
        {{"--dry-run", "--local-gpus", "4097"},
         "--local-gpus must be a number from 1 to 64, not '4097'; hint: srun starts more"},
        {{"--local-gpus", "2x"}, "--local-gpus must be a number from 1 to 64, not '2x'"},
        {{"--world", "65537"}, "--world must be a number from 1 to 65536, not '65537'"},
        {{"--json"}, "--json is an option of --help-spec; hint: ztrain --help-spec --json"},
        {{"--world="}, "--world must be a number from 1 to 65536, not ''"},
        {{"--confg", "run.yaml"}, "unknown option '--confg'; hint: did you mean --config?"},
        {{"--train.max_steps=3"}, "; hint: keys of the run spec are set by --set KEY=VALUE"},
        {{"run.yaml"}, "; hint: the run spec is named by --config run.yaml"},
        {{"train", "--config", "run.yaml"}, "; hint: training takes no word before its options"},
        {{"plann"}, "; hint: did you mean ztrain plan?"},
        {{"--config", "run.yaml", "plan"}, "; hint: a command comes first: ztrain plan"},
        {{"nonsense"}, "unknown argument 'nonsense'; hint: ztrain --help"},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct options options;
        struct error err = {.text = ""};
        if (parse(cases[c].words, &options, &err) != STATUS_USAGE || !strstr(err.text, cases[c].message))
            fail_msg("case %zu: '%s'", c, err.text);
    }
}

static void test_too_many_settings(void **state)
{
    (void)state;
    char *argv[OPTIONS_MAX_SET + 3] = {"ztrain"};
    struct options options;
    struct error err;
    for (int i = 1; i <= OPTIONS_MAX_SET + 1; i++) argv[i] = "--set=a=1";
    assert_int_equal(options_parse(OPTIONS_MAX_SET + 1, argv, &options, &err), STATUS_OK);
    assert_int_equal(options.num_set, OPTIONS_MAX_SET);
    assert_int_equal(options_parse(OPTIONS_MAX_SET + 2, argv, &options, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "more than 256 --set options"));
}

static void test_help_lists_every_option(void **state)
{
    (void)state;
    static const char *const names[] = {"--config FILE",    "--local-gpus N", "--resume DIR", "--set KEY=VALUE",
                                        "--deepspeed FILE", "--dry-run",      "--profile",    "--world N",
                                        "--help",           "--help-spec",    "--json",       "--version"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    options_help(out);
    fclose(out);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strstr(text, names[i])) fail_msg("%s is not in the help", names[i]);
    free(text);
}

static void test_help_of_plan(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    options_help_plan(out);
    fclose(out);
    assert_non_null(strstr(text, "--world N           the number of ranks\n"));
    assert_non_null(strstr(text, "--device NAME       the GPU: h100"));
    assert_non_null(strstr(text, "\n  no-gaps "));
    for (const char *const *other = (const char *const[]){"--resume", "--profile", "--dry-run", "--version", NULL};
         *other; other++)
        if (strstr(text, *other)) fail_msg("%s is in the help of plan", *other);
    free(text);
}

static void test_options_that_plan_refuses(void **state)
{
    (void)state;
    static char *const words[][3] = {
        {"plan", "--resume=x", "--resume is not an option of plan"},
        {"plan", "--profile", "--profile is not an option of plan"},
        {"plan", "--dry-run", "--dry-run is not an option of plan"},
        {"plan", "--help-spec", "--help-spec is not an option of plan"},
    };
    for (size_t c = 0; c < COUNT_OF(words); c++) {
        char *argv[] = {words[c][0], words[c][1], NULL};
        struct options options;
        struct error err;
        assert_int_equal(options_parse(2, argv, &options, &err), STATUS_USAGE);
        assert_string_equal(err.text, words[c][2]);
    }
}

static void test_without_a_run_spec(void **state)
{
    (void)state;
    struct options options = {.config = NULL};
    struct run_spec *spec = NULL;
    struct error err;
    assert_int_equal(options_load_spec(&options, true, &spec, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "no run spec given; hint: ztrain --config run.yaml"));
    assert_null(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_kind_of_option),
                                       cmocka_unit_test(test_help_by_one_letter),
                                       cmocka_unit_test(test_refused_words),
                                       cmocka_unit_test(test_too_many_settings),
                                       cmocka_unit_test(test_help_lists_every_option),
                                       cmocka_unit_test(test_without_a_run_spec),
                                       cmocka_unit_test(test_help_of_plan),
                                       cmocka_unit_test(test_options_that_plan_refuses)};
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
