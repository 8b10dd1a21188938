/* SPDX-License-Identifier: Apache-2.0 */
/* test_adapter_targets.c: which modules an adapter changes: as PEFT does (tests/golden/adapter_targets.json), what is
 * refused, and the tensors that adapter_extend_table() adds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/model/adapter.h"
#include "core/spec/spec.h"

struct model_case {
    struct model_desc desc;
    struct tensor_table table;
    struct run_spec *spec;
    struct adapter_choice *choices, tied_head;
    struct string_list notices;
    struct error err;
};

static void build_model(struct model_case *c, const json_t *config)
{
    *c = (struct model_case){0};
    if (model_desc_from_json(config, "test", &c->desc, &c->err) != STATUS_OK) fail_msg("%s", c->err.text);
    tensor_table_build(&c->desc, &c->table);
    c->choices = calloc((size_t)c->table.num_tensors, sizeof *c->choices);
}

static void release_model(struct model_case *c)
{
    free(c->choices);
    string_list_release(&c->notices);
    tensor_table_release(&c->table);
    model_desc_release(&c->desc);
}

/* Reads `peft` as a run spec has it, and chooses. */
static enum status choose(struct model_case *c, const char *peft)
{
    struct spec_report report = {0};
    char *text = memory_printf("model: {config: a, task: %s}\ndata: {seq_length: 8, train: b, packing: false}\n"
                               "train_batch_size: 1\noptimizer: {params: {lr: 1e-3}}\npeft: %s\n",
                               c->desc.num_labels ? "sequence_classification" : "causal_lm", peft);
    enum status status = spec_load_text("a.yaml", text, NULL, 0, &c->spec, &report);
    if (status == STATUS_OK) {
        assert_true(c->spec->adapter.on);
        status =
            adapter_choose(&c->spec->adapter, &c->desc, &c->table, c->choices, &c->tied_head, &c->notices, &c->err);
    } else {
        snprintf(c->err.text, sizeof c->err.text, "%s", report.errors.items[0]);
    }
    spec_report_release(&report);
    free(text);
    return status;
}

/* "model.layers.1.mlp" as "model.layers.*.mlp" */
static void star(const char *name, char out[96])
{
    static const char *const lists[] = {".layers.", ".h.", ".layer."};
    snprintf(out, 96, "%s", name);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        const char *at = strstr(name, lists[i]);
        if (at) {
            const size_t before = (size_t)(at - name) + strlen(lists[i]);
            snprintf(out, 96, "%.*s*%s", (int)before, name, name + before + strspn(name + before, "0123456789"));
        }
    }
}

static const json_t *golden_value(const json_t *object, const char *name)
{
    char starred[96];
    star(name, starred);
    const json_t *value = json_object_get(object, name);
    return value ? value : json_object_get(object, starred);
}

static bool golden_lists(const json_t *list, const char *name)
{
    char starred[96];
    size_t i;
    const json_t *item;
    star(name, starred);
    json_array_foreach (list, i, item)
        if (!strcmp(json_string_value(item), name) || !strcmp(json_string_value(item), starred)) return true;
    return false;
}

static void check_choice(const char *name, const struct adapter_choice *choice, const json_t *lora)
{
    if ((choice->use == ADAPTER_LORA) != (lora != NULL)) fail_msg("%s: PEFT has %s A and B", name, lora ? "an" : "no");
    if (lora) {
        assert_int_equal(choice->r, json_integer_value(json_array_get(lora, 0)));
        assert_float_equal(choice->scale, json_number_value(json_array_get(lora, 1)), 1e-9);
    }
}

static void check_case(struct model_case *c, const json_t *golden)
{
    char *peft = json_dumps(json_object_get(golden, "peft"), 0);
    const enum status status = choose(c, peft);
    if ((status != STATUS_OK) != json_is_true(json_object_get(golden, "error")))
        fail_msg("%s: status %d (%s)", peft, status, c->err.text);
    char last[96] = "";
    for (int i = 0; i < c->table.num_tensors && status == STATUS_OK; i++) {
        const json_t *all = json_object_get(golden, "lora");
        char module[96], name[96];
        adapter_parameter_name(&c->desc, &c->table.tensors[i], name, sizeof name);
        snprintf(module, sizeof module, "%.*s", (int)(strrchr(name, '.') - name), name);
        const bool weight = strcmp(strrchr(name, '.'), ".weight") == 0, again = strcmp(name, last) == 0;
        const json_t *lora = again ? NULL : golden_value(all, name);
        check_choice(name, &c->choices[i], lora || !weight ? lora : golden_value(all, module));
        memcpy(last, name, sizeof last);
        if ((c->choices[i].use == ADAPTER_SAVE) != golden_lists(json_object_get(golden, "saved"), name))
            fail_msg("%s: '%s' is trained in one of the two only", peft, name);
    }
    if (status == STATUS_OK && c->desc.tied && !c->desc.num_labels)
        check_choice("lm_head", &c->tied_head, golden_value(json_object_get(golden, "lora"), "lm_head"));
    spec_free(c->spec);
    c->spec = NULL;
    free(peft);
}

static void test_as_peft(void **unused)
{
    (void)unused;
    json_t *models = json_load_file("tests/golden/adapter_targets.json", 0, NULL);
    size_t i, k;
    const json_t *model, *golden;
    int cases = 0;
    assert_non_null(models);
    json_array_foreach (models, i, model) {
        struct model_case c;
        build_model(&c, json_object_get(model, "config"));
        json_array_foreach (json_object_get(model, "cases"), k, golden) {
            check_case(&c, golden);
            cases++;
        }
        release_model(&c);
    }
    assert_true(cases >= 80);
    json_decref(models);
}

static const char LLAMA[] = "{\"model_type\":\"llama\",\"hidden_size\":8,\"num_attention_heads\":2,"
                            "\"num_hidden_layers\":2,\"vocab_size\":20,\"intermediate_size\":12,"
                            "\"tie_word_embeddings\":true}";

static void expect_refusal(const char *peft, const char *message)
{
    struct model_case c;
    json_t *config = json_loads(LLAMA, 0, NULL);
    build_model(&c, config);
    assert_int_equal(choose(&c, peft), STATUS_USAGE);
    if (!strstr(c.err.text, message)) fail_msg("%s: %s", peft, c.err.text);
    spec_free(c.spec);
    release_model(&c);
    json_decref(config);
}

static void test_refusals(void **unused)
{
    (void)unused;
    expect_refusal("{target_modules: [c_attn]}", "'peft.target_modules' matches no module of the model; hint: its "
                                                 "matrices are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                                                 "down_proj, lm_head");
    expect_refusal("{target_modules: [q_proj], exclude_modules: [self_attn.q_proj]}",
                   "no module of the model but those that exclude_modules and modules_to_save leave out");
    expect_refusal("{target_modules: [norm]}", "matches 'model.norm', which is not a matrix");
    expect_refusal("{target_modules: 'a(b'}", "'peft.target_modules': 'a(b' is not a regular expression (missing");
    expect_refusal("{target_modules: [q_proj], exclude_modules: '*'}",
                   "'peft.exclude_modules': '*' is not a regular expression");
    expect_refusal("{target_modules: '(([a-z_.0-9]+)+)+(!|,)'}", "takes too long to match");
    expect_refusal("{target_modules: [q_proj], rank_pattern: {'[': 3}}", "'peft.rank_pattern': '[' is not a regular");
    expect_refusal("{target_modules: [q_proj], modules_to_save: ['(']}",
                   "'peft.modules_to_save': '(' is not a regular");
    expect_refusal("{target_modules: [q_proj], modules_to_save: [k_proj, v_proj]}",
                   "has 'model.layers.0.self_attn.k_proj.weight' without 'model.layers.0.self_attn.q_proj.weight', "
                   "which are one matrix here");
    expect_refusal("{target_modules: [q_proj], modules_to_save: [_proj]}",
                   "'model.layers.0.self_attn.q_proj' is both in peft.target_modules and in peft.modules_to_save");
    expect_refusal("{target_modules: [q_proj], modules_to_save: [embed_tokens]}",
                   "has 'model.embed_tokens', and the model has one matrix for the embedding and the head");
    expect_refusal("{target_modules: [q_proj], modules_to_save: [lm_head]}", "hint: set peft.ensure_weight_tying");
    expect_refusal("{target_modules: [lm_head], ensure_weight_tying: true}", "'peft.ensure_weight_tying' is for");
}

static void test_family_without_default(void **unused)
{
    (void)unused;
    json_t *config = json_pack("{sssisisisisiss}", "model_type", "phi3", "hidden_size", 8, "num_attention_heads", 2,
                               "num_hidden_layers", 1, "vocab_size", 20, "intermediate_size", 12, "hidden_act", "silu");
    struct model_case c;
    build_model(&c, config);
    assert_int_equal(choose(&c, "{}"), STATUS_USAGE);
    assert_non_null(strstr(c.err.text, "'peft.target_modules' is not set, and PEFT has no default for phi3; hint: its "
                                       "matrices are qkv_proj, o_proj, gate_up_proj, down_proj, lm_head"));
    spec_free(c.spec);
    release_model(&c);
    json_decref(config);
}

static void test_unmatched_names(void **unused)
{
    (void)unused;
    static const char *const expected[] = {
        "'peft.target_modules': 'w1' matches no module of this llama model, and has no effect",
        "'peft.exclude_modules': 'w2' matches",
        "'peft.modules_to_save': 'w3' matches",
        "'peft.rank_pattern': 'k_proj' matches",
        "'peft.alpha_pattern': 'w4' matches",
    };
    struct model_case c;
    json_t *config = json_loads(LLAMA, 0, NULL);
    build_model(&c, config);
    assert_int_equal(choose(&c, "{target_modules: [q_proj, w1], exclude_modules: [w2, k_proj], modules_to_save: "
                                "[w3, norm], rank_pattern: {q_proj: 3, k_proj: 4}, alpha_pattern: {w4: 1}}"),
                     STATUS_OK);
    assert_int_equal(c.notices.count, COUNT_OF(expected));
    for (size_t i = 0; i < COUNT_OF(expected); i++) assert_non_null(strstr(c.notices.items[i], expected[i]));
    spec_free(c.spec);
    release_model(&c);
    json_decref(config);
}

/* Names that experts had as modules match what they are now; patterns match parameters. */
static void test_names_of_parameters(void **unused)
{
    (void)unused;
    struct model_case c;
    json_t *config = json_loads(LLAMA, 0, NULL);
    json_object_set_new(config, "model_type", json_string("mixtral"));
    json_object_set_new(config, "num_key_value_heads", json_integer(2));
    build_model(&c, config);
    assert_int_equal(choose(&c,
                            "{target_modules: [w1, w3, layers.0.mlp.gate], target_parameters: [experts.down_proj, w9], "
                            "rank_pattern: {experts.down_proj: 3, w2: 4}}"),
                     STATUS_OK);
    assert_int_equal(c.notices.count, 2);
    assert_non_null(strstr(c.notices.items[0], "'peft.target_parameters': 'w9' matches"));
    assert_non_null(strstr(c.notices.items[1], "'peft.rank_pattern': 'w2' matches"));
    adapter_extend_table(&c.table, &c.desc, c.choices, &c.tied_head);
    const struct tensor_info *a = tensor_find_part(&c.table, 1, ROLE_EXPERT_GATE_W, PART_LORA_A);
    const struct tensor_info *b = tensor_find_part(&c.table, 1, ROLE_EXPERT_DOWN_W, PART_LORA_B);
    assert_string_equal(a->name, "model.layers.0.mlp.experts.base_layer.lora_A.weight");
    assert_string_equal(b->name, "model.layers.0.mlp.experts.lora_B.weight");
    assert_true(a->ndim == 3 && a->shape[0] == 8 && a->shape[1] == 16 && a->shape[2] == 8);
    assert_true(b->ndim == 3 && b->shape[0] == 8 && b->shape[1] == 8 && b->shape[2] == 3);
    spec_free(c.spec);
    release_model(&c);
    json_decref(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_peft),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_family_without_default),
        cmocka_unit_test(test_unmatched_names),
        cmocka_unit_test(test_names_of_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
