/* SPDX-License-Identifier: Apache-2.0 */
/* test_adapter_config.c: adapter_config.json: what is read, what is refused, and that what is written names the modules
 * that were chosen (the cases of tests/golden/adapter_targets.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/model/adapter.h"
#include "core/spec/adapter_config.h"

static enum status read_text(const char *text, struct adapter_config *config, struct error *err)
{
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    const enum status status = adapter_config_from_json(json, "file", config, err);
    json_decref(json);
    return status;
}

static void test_values_of_a_file(void **unused)
{
    (void)unused;
    struct adapter_config config;
    struct error err;
    assert_int_equal(
        read_text(
            "{\"peft_type\":\"LORA\",\"r\":16,\"lora_alpha\":32,\"lora_dropout\":0.1,\"use_rslora\":true,"
            "\"target_modules\":[\"q_proj\",\"v_proj\"],\"exclude_modules\":\".*0.*\",\"modules_to_save\":[\"norm\"],"
            "\"rank_pattern\":{\"v_proj\":4},\"alpha_pattern\":{\"v_proj\":1.5},\"layers_to_transform\":1,"
            "\"layers_pattern\":\"layers\",\"task_type\":\"CAUSAL_LM\",\"base_model_name_or_path\":\"some/base\","
            "\"init_lora_weights\":\"gaussian\",\"bias\":\"none\",\"auto_mapping\":{\"a\":1},\"peft_version\":\"0.9\","
            "\"loftq_config\":{},\"merge_weights\":false,\"enable_lora\":null,\"fan_in_fan_out\":true}",
            &config, &err),
        STATUS_OK);
    const struct adapter_settings *s = &config.settings;
    assert_true(s->on && s->r == 16 && s->lora_alpha == 32 && s->lora_dropout == 0.1 && s->use_rslora);
    assert_int_equal(s->target_modules.list.count, 2);
    assert_string_equal(s->exclude_modules.expression, ".*0.*");
    assert_string_equal(s->modules_to_save.items[0], "norm");
    assert_true(s->rank_pattern[0].value == 4 && s->alpha_pattern[0].value == 1.5);
    assert_int_equal(s->layers_to_transform[0], 1);
    assert_string_equal(s->layers_pattern.items[0], "layers");
    assert_string_equal(config.base_model, "some/base");
    assert_string_equal(config.task_type, "CAUSAL_LM");
    adapter_config_release(&config);

    assert_int_equal(read_text("{\"peft_type\":\"lora\",\"target_modules\":\"all-linear\"}", &config, &err), STATUS_OK);
    assert_true(config.settings.all_linear && !config.settings.target_modules.expression);
    assert_true(config.settings.r == 8 && config.settings.lora_alpha == 8 && !config.base_model && !config.task_type);
    adapter_config_release(&config);
}

static void test_refused_files(void **unused)
{
    (void)unused;
    static const struct {
        enum status status;
        const char *key, *message;
    } cases[] = {
        {STATUS_USAGE, "\"use_dora\":true", "file: 'use_dora' is true, and ztrain has LoRA and rsLoRA only; hint: "},
        {STATUS_USAGE, "\"bias\":\"all\"", "file: 'bias' is \"all\", and ztrain has"},
        {STATUS_USAGE, "\"init_lora_weights\":\"pissa\"", "file: 'init_lora_weights' is \"pissa\", and ztrain has"},
        {STATUS_USAGE, "\"trainable_token_indices\":[1]", "file: 'trainable_token_indices' is [1], and"},
        {STATUS_USAGE, "\"a_new_key\":3", "file: 'a_new_key' is 3, and ztrain has"},
        {STATUS_DATA, "\"r\":0", "file: 'r' must be an integer from 1 to 65536, not '0'"},
        {STATUS_DATA, "\"r\":8.5", "file: 'r' must be an integer from 1 to 65536, not '8.5'"},
        {STATUS_DATA, "\"alpha_pattern\":{\"a\":1e300}", "file: 'alpha_pattern' must be a mapping to values of"},
        {STATUS_DATA, "\"lora_alpha\":\"8\"", "file: 'lora_alpha' must be a number above 0, not '8'"},
        {STATUS_DATA, "\"use_rslora\":1", "file: 'use_rslora' must be true or false, not '1'"},
        {STATUS_DATA, "\"target_modules\":[1]", "file: 'target_modules' must be a list of names"},
        {STATUS_DATA, "\"modules_to_save\":{}", "file: 'modules_to_save' must be a name, or a list of names"},
        {STATUS_DATA, "\"rank_pattern\":{\"a\":0.5}", "file: 'rank_pattern' must be a mapping to ranks, integers"},
        {STATUS_DATA, "\"alpha_pattern\":[]", "file: 'alpha_pattern' must be a mapping of names"},
        {STATUS_DATA, "\"layers_to_transform\":[-1]", "file: 'layers_to_transform' must be the number of a block"},
        {STATUS_DATA, "\"task_type\":1", "file: 'task_type' must be text"},
        {STATUS_USAGE, "\"base_dtype\":\"bf16\"", "file: 'base_dtype' is \"bf16\", and ztrain has"},
    };
    struct adapter_config config;
    struct error err;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *text = memory_printf("{\"peft_type\":\"LORA\",%s}", cases[i].key);
        assert_int_equal(read_text(text, &config, &err), cases[i].status);
        if (strncmp(err.text, cases[i].message, strlen(cases[i].message)) != 0) fail_msg("%s", err.text);
        free(text);
    }
    assert_int_equal(read_text("{\"peft_type\":\"IA3\"}", &config, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "file: 'peft_type' is IA3, and ztrain has LORA only; hint: "));
    assert_int_equal(read_text("{}", &config, &err), STATUS_USAGE);
    assert_int_equal(read_text("[]", &config, &err), STATUS_DATA);
    assert_int_equal(adapter_config_load("tests/golden", &config, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "tests/golden/adapter_config.json"));
}

static void test_damaged_file(void **unused)
{
    (void)unused;
    char folder[] = "/tmp/ztrain-test-adapter-XXXXXX", path[64];
    struct adapter_config config;
    struct error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    FILE *file = fopen(path, "w");
    fputs("{\"peft_type\": \"LORA\",\n \"r\": 4, \"r\": 5}", file);
    fclose(file);
    assert_int_equal(adapter_config_load(folder, &config, &err), STATUS_DATA);
    assert_non_null(strstr(err.text, "adapter_config.json:2:"));
    file = fopen(path, "w");
    fputs("{\"peft_type\": \"LORA\", \"r\": 4}", file);
    fclose(file);
    assert_int_equal(adapter_config_load(folder, &config, &err), STATUS_OK);
    assert_int_equal(config.settings.r, 4);
    adapter_config_release(&config);
    remove(path);
    remove(folder);
}

struct choice_case {
    struct model_desc desc;
    struct tensor_table table;
    struct adapter_choice *choices, tied_head;
};

static enum status choose_targets(struct choice_case *c, const json_t *model, const struct adapter_settings *settings,
                                  struct error *err)
{
    memset(c, 0, sizeof *c);
    assert_int_equal(model_desc_from_json(model, "test", &c->desc, err), STATUS_OK);
    tensor_table_build(&c->desc, &c->table);
    c->choices = calloc((size_t)c->table.num_tensors, sizeof *c->choices);
    return adapter_choose(settings, &c->desc, &c->table, c->choices, &c->tied_head, NULL, err);
}

static void release_choices(struct choice_case *c)
{
    free(c->choices);
    tensor_table_release(&c->table);
    model_desc_release(&c->desc);
}

static bool same_choice(const struct adapter_choice *a, const struct adapter_choice *b)
{
    return a->use == b->use && a->r == b->r && a->scale == b->scale;
}

/* What is written for a choice leads to the same choice. */
static int check_round_trip(const json_t *model, const json_t *peft)
{
    struct adapter_config config, again;
    struct choice_case was, now;
    struct error err;
    json_t *json = json_copy((json_t *)(uintptr_t)peft);
    json_object_set_new(json, "peft_type", json_string("LORA"));
    assert_int_equal(adapter_config_from_json(json, "test", &config, &err), STATUS_OK);
    json_decref(json);
    const enum status status = choose_targets(&was, model, &config.settings, &err);
    if (status == STATUS_OK) {
        const size_t num_tensors = (size_t)was.table.num_tensors;
        adapter_extend_table(&was.table, &was.desc, was.choices, &was.tied_head);
        json = adapter_config_to_json(&config.settings, &was.desc, &was.table, "base");
        if (adapter_config_from_json(json, "again", &again, &err) != STATUS_OK ||
            choose_targets(&now, model, &again.settings, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        assert_string_equal(again.base_model, "base");
        assert_int_equal(now.table.num_tensors, num_tensors);
        for (size_t i = 0; i < num_tensors; i++)
            if (!same_choice(&was.choices[i], &now.choices[i]))
                fail_msg("'%s' of %s", now.table.tensors[i].name, json_dumps(json, 0));
        assert_true(same_choice(&was.tied_head, &now.tied_head));
        adapter_config_release(&again);
        release_choices(&now);
        json_decref(json);
    }
    release_choices(&was);
    adapter_config_release(&config);
    return status == STATUS_OK;
}

static void test_round_trips(void **unused)
{
    (void)unused;
    json_t *models = json_load_file("tests/golden/adapter_targets.json", 0, NULL);
    size_t i, k;
    const json_t *model, *golden;
    int good = 0;
    assert_non_null(models);
    json_array_foreach (models, i, model) {
        json_array_foreach (json_object_get(model, "cases"), k, golden) {
            good += check_round_trip(json_object_get(model, "config"), json_object_get(golden, "peft"));
        }
    }
    assert_true(good >= 70);
    json_decref(models);
}

/* Names are short where no other module has them. */
static void test_written_config(void **unused)
{
    (void)unused;
    static const char *const wanted[][2] = {
        {"{\"peft_type\":\"LORA\",\"target_modules\":\"all-linear\"}", "[\"c_attn\",\"c_proj\",\"c_fc\"]"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[\"mlp.c_proj\",\"wte\"]}",
         "[\"wte\",\"transformer.h.0.mlp.c_proj\",\"transformer.h.1.mlp.c_proj\"]"},
    };
    json_t *model =
        json_pack("{sssisisisi}", "model_type", "gpt2", "n_embd", 8, "n_head", 2, "n_layer", 2, "vocab_size", 20);
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        struct adapter_config config;
        struct choice_case c;
        struct error err;
        assert_int_equal(read_text(wanted[i][0], &config, &err), STATUS_OK);
        assert_int_equal(choose_targets(&c, model, &config.settings, &err), STATUS_OK);
        adapter_extend_table(&c.table, &c.desc, c.choices, &c.tied_head);
        json_t *json = adapter_config_to_json(&config.settings, &c.desc, &c.table, NULL);
        char *targets = json_dumps(json_object_get(json, "target_modules"), JSON_COMPACT);
        assert_string_equal(targets, wanted[i][1]);
        assert_true(json_is_true(json_object_get(json, "fan_in_fan_out")));
        assert_true(json_is_true(json_object_get(json, "inference_mode")));
        assert_true(json_is_null(json_object_get(json, "base_model_name_or_path")));
        assert_true(json_is_null(json_object_get(json, "modules_to_save")));
        assert_string_equal(json_string_value(json_object_get(json, "task_type")), "CAUSAL_LM");
        free(targets);
        json_decref(json);
        release_choices(&c);
        adapter_config_release(&config);
    }
    json_decref(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_of_a_file), cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_damaged_file),     cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_written_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
