/* SPDX-License-Identifier: Apache-2.0 */
/* test_spec_adapter.c: `peft` of the run spec: values, defaults, what is refused, printing, resuming. */
#include "core/memory.h"
#include "tests/unit/fixtures/spec_case.h"

static const char full_peft[] = BASE "peft:\n"
                                     "  peft_type: lora\n"
                                     "  r: 16\n"
                                     "  lora_alpha: 32\n"
                                     "  lora_dropout: 0.1\n"
                                     "  use_rslora: true\n"
                                     "  target_modules: [q_proj]\n"
                                     "  exclude_modules: \".*\\\\.0\\\\..*\"\n"
                                     "  modules_to_save: [lm_head, norm]\n"
                                     "  rank_pattern: {v_proj: 4, \"^a.b\": 5}\n"
                                     "  alpha_pattern: {v_proj: 1.5}\n"
                                     "  layers_to_transform: 3\n"
                                     "  layers_pattern: layers\n"
                                     "  task_type: CAUSAL_LM\n"
                                     "  bias: none\n"
                                     "  base_dtype: fp32\n";

static struct run_spec *load_quiet(const char *text)
{
    struct run_spec *spec;
    struct spec_report report = {0};
    if (load_case(text, NULL, 0, &spec, &report) != STATUS_OK) fail_msg("%s", report.errors.items[0]);
    assert_int_equal(report.notices.count, 0);
    spec_report_release(&report);
    return spec;
}

static void test_values(void **state)
{
    (void)state;
    struct run_spec *spec = load_quiet(full_peft);
    const struct adapter_settings *a = &spec->adapter;
    assert_true(a->on && a->use_rslora && !a->all_linear);
    assert_int_equal(a->r, 16);
    assert_true(a->lora_alpha == 32 && a->lora_dropout == 0.1);
    assert_int_equal(a->target_modules.list.count, 1);
    assert_null(a->target_modules.expression);
    assert_string_equal(a->target_modules.list.items[0], "q_proj");
    assert_string_equal(a->exclude_modules.expression, ".*\\.0\\..*");
    assert_int_equal(a->modules_to_save.count, 2);
    assert_int_equal(a->num_rank_patterns, 2);
    assert_string_equal(a->rank_pattern[1].pattern, "^a.b");
    assert_true(a->rank_pattern[1].value == 5 && a->alpha_pattern[0].value == 1.5);
    assert_int_equal(a->num_layers_to_transform, 1);
    assert_int_equal(a->layers_to_transform[0], 3);
    assert_string_equal(a->layers_pattern.items[0], "layers");
    assert_int_equal(a->base_dtype, DTYPE_F32);
    spec_free(spec);
}

static void test_defaults_of_peft(void **state)
{
    (void)state;
    static const char *const none[] = {BASE, BASE "peft:\n", BASE "peft: null\n"};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        struct run_spec *spec;
        struct spec_report report = {0};
        assert_int_equal(load_case(none[i], NULL, 0, &spec, &report), STATUS_OK);
        assert_int_equal(report.notices.count, i > 0); /* it is empty */
        spec_report_release(&report);
        assert_false(spec->adapter.on);
        json_t *json = spec_to_json(spec);
        assert_null(json_object_get(json, "peft.r"));
        json_decref(json);
        spec_free(spec);
    }
    struct run_spec *spec = load_quiet(BASE "peft: {}\n");
    const struct adapter_settings *a = &spec->adapter;
    assert_true(a->on && a->r == 8 && a->lora_alpha == 8 && a->lora_dropout == 0 && !a->use_rslora);
    assert_true(!a->all_linear && !a->target_modules.expression && !a->target_modules.list.count);
    assert_int_equal(a->base_dtype, DTYPE_COUNT);
    spec_free(spec);
    spec = load_quiet(BASE "peft: {target_modules: All-Linear, init_lora_weights: true, loftq_config: {}}\n");
    assert_true(spec->adapter.all_linear && !spec->adapter.target_modules.expression);
    spec_free(spec);
}

/* What is printed is read again with the same values: also a list of one name, and an adapter of defaults only. */
static void test_printed_peft(void **state)
{
    (void)state;
    static const char *const texts[] = {full_peft, BASE "peft: {}\n", BASE "peft: {target_modules: all-linear}\n",
                                        BASE "peft: {target_modules: '.*_proj'}\n"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct run_spec *spec = load_quiet(texts[i]);
        char *text, *values_text;
        size_t size;
        FILE *out = memory_stream(&text, &size);
        spec_write_yaml(spec, out);
        fclose(out);
        json_t *values = spec_to_json(spec);
        out = memory_stream(&values_text, &size);
        spec_write_values(values, out);
        fclose(out);
        for (int k = 0; k < 2; k++) {
            struct run_spec *again = load_quiet(k ? values_text : text);
            json_t *more = spec_to_json(again);
            json_object_set(more, "run.name", json_object_get(values, "run.name"));
            assert_true(json_equal(values, more));
            json_decref(more);
            spec_free(again);
        }
        json_decref(values);
        free(values_text);
        free(text);
        spec_free(spec);
    }
}

static void test_refused_values(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[{r: 4}, {r: 8}]", ":4:8: this adapter has no name"},
        {"lora", ":4:7: 'peft' must be a section"},
        {"{peft_type: IA3}", ":4:19: 'peft.peft_type' IA3 is not supported: the adapters are LoRA; hint: "},
        {"{peft_type: VBLORA}", "'peft.peft_type' must be LORA, not 'VBLORA'"},
        {"{r: 0}", "'peft.r' must be an integer from 1 to 65536, not '0'"},
        {"{lora_alpha: 0}", "'peft.lora_alpha' must be a number above 0"},
        {"{lora_dropout: 1.5}", "'peft.lora_dropout' must be a number from 0 to 1"},
        {"{target_modules: []}", "'peft.target_modules' must be a list of names of modules"},
        {"{target_modules: [1]}", "'peft.target_modules' must be a list of names of modules"},
        {"{exclude_modules: {a: 1}}", "'peft.exclude_modules' must be a list of names of modules"},
        {"{rank_pattern: [1]}", "'peft.rank_pattern' must be a mapping of names or regular expressions"},
        {"{rank_pattern: {a: 1.5}}", "'peft.rank_pattern' must be a mapping to ranks, integers from 1 to 65536"},
        {"{alpha_pattern: {a: 0}}", "'peft.alpha_pattern' must be a mapping to values of lora_alpha"},
        {"{layers_to_transform: [-1]}", "'peft.layers_to_transform' must be the number of a block"},
        {"{layers_to_transform: [0], target_modules: all-linear}", "'peft.layers_to_transform' needs a list of"},
        {"{layers_to_transform: 0, target_modules: .*q}", "'peft.layers_to_transform' needs a list of"},
        {"{layers_pattern: h}", "'peft.layers_pattern' has no meaning without peft.layers_to_transform"},
        {"{task_type: SEQ_CLS}", "'peft.task_type' does not agree with model.task, which is causal_lm"},
        {"{bias: all}", "'peft.bias' is not supported: the base's biases stay frozen; hint: "},
        {"{init_lora_weights: pissa_niter_4}", "'peft.init_lora_weights' is not supported: A starts uniform"},
        {"{use_dora: true}", "'peft.use_dora' is not supported: there is no DoRA"},
        {"{rank: 8}", "unknown key 'rank' in 'peft'; hint: write peft.r"},
        {"{alpha: 8}", "unknown key 'alpha' in 'peft'; hint: did you mean 'lora_alpha'?"},
        {"{dropout: 0.1}", "unknown key 'dropout' in 'peft'; hint: did you mean 'lora_dropout'?"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec;
        struct spec_report report = {0};
        char *text = memory_printf(BASE "peft: %s\n", cases[i][0]);
        assert_int_equal(load_case(text, NULL, 0, &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, cases[i][1]);
        spec_report_release(&report);
        free(text);
    }
}

static void expect_compared(const char *before, const char *after, int errors, const char *line)
{
    struct run_spec *was = load_quiet(before), *now = load_quiet(after);
    struct spec_report report = {0};
    json_t *stored = spec_to_json(was);
    assert_int_equal(spec_compare(now, stored, true, true, &report), errors ? STATUS_USAGE : STATUS_OK);
    assert_int_equal(report.errors.count, errors);
    if (line) expect_line(errors ? &report.errors : &report.notices, line);
    json_decref(stored);
    spec_report_release(&report);
    spec_free(was);
    spec_free(now);
}

static void test_resumed_peft(void **state)
{
    (void)state;
    expect_compared(full_peft, full_peft, 0, NULL);
    expect_compared(BASE, BASE "peft: {r: 16}\n", 1,
                    "'peft.peft_type' was unset in the checkpoint and is \"LORA\" now");
    expect_compared(BASE "peft: {r: 16}\n", BASE, 1,
                    "'peft.peft_type' was \"LORA\" in the checkpoint and is unset now");
    expect_compared(BASE "peft: {}\n", BASE "peft: {r: 4}\n", 1, "'peft.r' was 8 in the checkpoint and is 4 now");
    expect_compared(BASE "peft: {target_modules: [a]}\n", BASE "peft: {target_modules: a}\n", 1,
                    "'peft.target_modules' was [\"a\"] in the checkpoint and is \"a\" now");
    expect_compared(BASE "peft: {}\n", BASE "peft: {lora_dropout: 0.5}\n", 0, "'peft.lora_dropout' was 0.0");
}

/* ---- model.adapter ------------------------------------------------------- */

static void write_config(const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static char *with_folder(const char *task, const char *peft)
{
    return memory_printf(
        "model: {pretrained: a, adapter: %s, task: %s}\ndata: {train: a, seq_length: 8, packing: false}\n"
        "train_batch_size: 8\n%s",
        folder, task, peft);
}

static void expect_folder_error(const char *task, const char *peft, const char *line)
{
    struct run_spec *spec;
    struct spec_report report = {0};
    char *text = with_folder(task, peft);
    assert_int_equal(load_case(text, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, line);
    spec_report_release(&report);
    free(text);
}

static void test_adapter_folder(void **state)
{
    (void)state;
    write_config("{\"peft_type\":\"LORA\",\"r\":4,\"target_modules\":[\"a\",\"b\"],\"rank_pattern\":{\"a\":2},"
                 "\"task_type\":\"CAUSAL_LM\",\"modules_to_save\":null}");
    static const char *const agreeing[] = {
        "", "peft: {}\n", "peft: {r: 4, target_modules: [a, b], rank_pattern: {a: 2}, base_dtype: fp32}\n"};
    for (size_t i = 0; i < COUNT_OF(agreeing); i++) {
        char *text = with_folder("causal_lm", agreeing[i]);
        struct run_spec *spec = load_quiet(text);
        const struct adapter_settings *a = &spec->adapter;
        assert_true(a->on && a->r == 4 && a->lora_alpha == 8 && a->target_modules.list.count == 2);
        assert_true(a->num_rank_patterns == 1 && a->modules_to_save.count == 0);
        assert_int_equal(a->base_dtype, i == 2 ? DTYPE_F32 : DTYPE_COUNT);
        spec_free(spec);
        free(text);
    }
    expect_folder_error("causal_lm", "peft: {r: 8}\n",
                        ":4:11: 'peft.r' is 8, and 4 in the config of model.adapter; hint: remove it here");
    expect_folder_error("causal_lm", "peft: {modules_to_save: [c]}\n",
                        "'peft.modules_to_save' is [\"c\"], and unset in the config of model.adapter");
    expect_folder_error("sequence_classification", "", "'peft.task_type' does not agree with model.task, which is seq");
    write_config("{\"peft_type\":\"LORA\",\"use_dora\":true}");
    expect_folder_error("causal_lm", "",
                        "adapter_config.json: 'use_dora' is true, and ztrain has LoRA and rsLoRA only");
    write_config("{\"peft_type\":\"LORA\",\"task_type\":\"FEATURE_EXTRACTION\"}");
    expect_folder_error("causal_lm", "", "'model.adapter': the adapter's task_type is FEATURE_EXTRACTION");
}

/* A resumed run has the whole config in its spec; a new one needs the folder. */
static void test_absent_adapter_folder(void **state)
{
    (void)state;
    const char *sets[] = {"model.adapter=/absent"};
    struct run_spec *spec = load_good(
        BASE
        "peft: {peft_type: LORA, r: 4, lora_alpha: 8, lora_dropout: 0.0, use_rslora: false, target_modules: [q_proj],\n"
        "       ensure_weight_tying: false, task_type: auto}\n",
        sets, 1);
    assert_int_equal(spec->adapter.r, 4);
    spec_free(spec);
    static const char *const texts[] = {BASE, BASE "peft: {r: 4}\n"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct spec_report report = {0};
        assert_int_equal(load_case(texts[i], sets, 1, &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, "--set model.adapter: 'model.adapter': cannot open '/absent/adapter_config.json'");
        spec_report_release(&report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_defaults_of_peft),
        cmocka_unit_test(test_printed_peft),
        cmocka_unit_test(test_refused_values),
        cmocka_unit_test(test_resumed_peft),
        cmocka_unit_test(test_adapter_folder),
        cmocka_unit_test(test_absent_adapter_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
