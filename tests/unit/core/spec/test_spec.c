/* SPDX-License-Identifier: Apache-2.0 */
/* test_spec.c: the run spec's reader: the key table, accepted values, printing and comparison. */
#include "core/memory.h"
#include "tests/unit/fixtures/spec_case.h"

/* ---- the key table ------------------------------------------------------- */

/* The key table: paths are unique, a section precedes its keys, defaults are valid, fields have the right type. */
static void test_table(void **state)
{
    (void)state;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        assert_ptr_equal(spec_key_find(key->path), key);
        size_t length = spec_key_section_length(key->path);
        if (length) {
            char section[128];
            snprintf(section, sizeof section, "%.*s", (int)length, key->path);
            const struct spec_key *row = spec_key_find(section);
            assert_non_null(row);
            assert_int_equal(row->type, KEY_SECTION);
            assert_true(row < key);
        }
        assert_true(key->help && *key->help);
        assert_true((key->type == KEY_CHOICE) == (key->choices != NULL));
        if (key->type == KEY_ALIAS)
            assert_non_null(spec_key_find(key->fallback));
        else
            json_decref(spec_key_default(key));
        bool value = key->type != KEY_SECTION && key->type != KEY_FOREIGN && key->type != KEY_ALIAS;
        if (value && key->verdict == VERDICT_USED) assert_true(key->size > 0);
    }
}

/* ---- values -------------------------------------------------------------- */

static void test_text_without_a_file(void **state)
{
    (void)state;
    struct run_spec *spec;
    struct spec_report report = {0};
    char *text;
    size_t size;
    FILE *out = memory_stream(&text, &size);
    fputs("model: {config: a}\ndata: {seq_length: 8, train: ", out);
    spec_write_string(out, "no: \"b\\ #");
    fputs("}\ntrain_batch_size: 1\noptimizer: {params: {lr: 1e-3}}\n", out);
    fclose(out);
    assert_int_equal(spec_load_text("some/new.yaml", text, NULL, 0, &spec, &report), STATUS_OK);
    assert_string_equal(spec->run.name, "new");
    assert_string_equal(spec->data.train.items[0], "no: \"b\\ #");
    spec_free(spec);
    free(text);
    assert_int_equal(spec_load_text("new.yaml", "model: 1\n", NULL, 0, &spec, &report), STATUS_USAGE);
    assert_non_null(strstr(report.errors.items[0], "new.yaml:1:"));
    spec_report_release(&report);
}

static void test_usual_spec(void **state)
{
    (void)state;
    static const char text[] = "run:\n"
                               "  name: llama\n"
                               "  dir: runs\n"
                               "  seed: 1234\n"
                               "model:\n"
                               "  pretrained: golden/llama\n"
                               "data:\n"
                               "  train: golden/llama/train\n"
                               "  validation: golden/llama/validation\n"
                               "  seq_length: 32\n"
                               "  shuffle: false\n"
                               "  packing: false\n"
                               "train:\n"
                               "  max_steps: 20\n"
                               "  eval_interval_steps: 10\n"
                               "  device: cpu\n"
                               "checkpoint:\n"
                               "  interval_steps: 20\n"
                               "train_batch_size: 12\n"
                               "train_micro_batch_size_per_gpu: 1\n"
                               "gradient_clipping: 1.0\n"
                               "optimizer:\n"
                               "  type: AdamW\n"
                               "  params: {lr: 0.002, betas: [0.9, 0.95], eps: 1e-08, weight_decay: 0.1}\n"
                               "scheduler: {type: Cosine, params: {warmup_steps: 5, total_steps: 20, min_lr: 0.0002}}\n"
                               "zero_optimization: {stage: 2}\n"
                               "bf16: {enabled: true}\n"
                               "steps_per_print: 1\n";
    struct run_spec *spec = load_good(text, NULL, 0);
    assert_string_equal(spec->run.name, "llama");
    assert_string_equal(spec->run.dir, "runs");
    assert_int_equal(spec->run.seed, 1234);
    assert_string_equal(spec->model.pretrained, "golden/llama");
    assert_null(spec->model.config_path);
    assert_non_null(strstr(spec->model.where, "run.yaml:6:3"));
    assert_int_equal(spec->data.train.count, 1);
    assert_string_equal(spec->data.train.items[0], "golden/llama/train");
    assert_int_equal(spec->data.validation.count, 1);
    assert_int_equal(spec->data.seq_length, 32);
    assert_false(spec->data.shuffle);
    assert_false(spec->data.packing);
    assert_true(spec->train.epochs < 0);
    assert_int_equal(spec->train.max_steps, 20);
    assert_int_equal(spec->train.eval_interval_steps, 10);
    assert_int_equal(spec->train.device, SPEC_DEVICE_CPU);
    assert_int_equal(spec->checkpoint.interval_steps, 20);
    assert_true(spec->gradient_clipping == 1.0);
    assert_int_equal(spec->optimizer.type, OPTIMIZER_ADAMW);
    assert_true(spec->optimizer.lr == 0.002 && spec->optimizer.beta1 == 0.9 && spec->optimizer.beta2 == 0.95);
    assert_true(spec->optimizer.eps == 1e-8 && spec->optimizer.weight_decay == 0.1);
    assert_int_equal(spec->scheduler.type, SCHEDULE_COSINE);
    assert_int_equal(spec->scheduler.warmup_steps, 5);
    assert_int_equal(spec->scheduler.total_steps, 20);
    assert_true(spec->scheduler.min_lr == 0.0002);
    assert_int_equal(spec->zero.stage, 2);
    assert_int_equal(spec->dtype, DTYPE_BF16);
    assert_int_equal(spec->steps_per_print, 1);
    spec_free(spec);
}

/* Every key that leads to a file or folder takes ~ for the home folder, in every form of its value; no other does. */
static void test_home_folder(void **state)
{
    (void)state;
    static const char *const leaves[] = {"pretrained",  "adapter",   "config", "tokenizer",  "dir",       "output_path",
                                         "output_file", "nvme_path", "train",  "validation", "reference", "logps"};
    static const char *const texts[] = {"~/a b", "~", "./~/a", "a/~", "['~/c', d]", "[{path: ~/e, weight: 1}]"};
    static const char *const paths[] = {"\"/h/me/a b\"",       "\"/h/me\"",
                                        "\"./~/a\"",           "\"a/~\"",
                                        "[\"/h/me/c\",\"d\"]", "[{\"path\":\"/h/me/e\",\"weight\":1.0}]"};
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setenv("HOME", "/h/me", 1);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        bool is_path = false;
        for (size_t k = 0; k < COUNT_OF(leaves); k++)
            is_path =
                is_path || (key->size && key->type != KEY_SECTION && !strcmp(spec_key_leaf(key->path), leaves[k]));
        assert_int_equal((key->flags & KEY_PATH) != 0, is_path);
        if (!is_path) continue;
        const bool list = key->type == KEY_SOURCES || key->type == KEY_STRING_LIST;
        for (size_t k = 0; k < (key->type == KEY_SOURCES ? 6U : list ? 5U : 4U); k++) {
            struct spec_arena arena = {0};
            const char *sources[] = {"run.yaml"};
            struct spec_context ctx = {.arena = &arena, .sources = sources, .num_sources = 1};
            char text[64];
            snprintf(text, sizeof text, k == 1 ? "'%s'" : "%s", texts[k]); /* a bare ~ is YAML's null */
            json_t *value = spec_key_convert(&ctx, key, spec_parse_yaml(&ctx, 0, text, strlen(text)));
            char *shown = json_dumps(list && k < 4 ? json_array_get(value, 0) : value, JSON_COMPACT | JSON_ENCODE_ANY);
            assert_string_equal(shown, paths[k]);
            free(shown);
            json_decref(value);
            spec_arena_release(&arena);
        }
    }
    for (int i = 0; i < 2; i++) { /* one's own home only, and only if it is known */
        struct run_spec *spec;
        struct spec_report report = {0};
        if (i == 1) unsetenv("HOME");
        assert_int_equal(
            load_case(i ? BASE "run: {dir: ~/runs}\n" : BASE "run: {dir: ~bob/runs}\n", NULL, 0, &spec, &report),
            STATUS_USAGE);
        expect_line(&report.errors,
                    i ? ":4:12: 'run.dir' is '~/runs', and HOME, which names the home folder, is not set; hint: "
                      : ":4:12: 'run.dir' is '~bob/runs', and only one's own home folder has a short name, ~/");
        spec_report_release(&report);
    }
    if (home) setenv("HOME", home, 1);
    free(home);
}

static void test_defaults(void **state)
{
    (void)state;
    struct run_spec *spec = load_good(BASE, NULL, 0);
    assert_string_equal(spec->run.name, "run"); /* from run.yaml */
    assert_string_equal(spec->run.dir, "runs");
    assert_int_equal(spec->run.seed, 1234);
    assert_int_equal(spec->data.validation.count, 0);
    assert_true(spec->data.shuffle && spec->data.packing);
    assert_int_equal(spec->train.device, SPEC_DEVICE_AUTO);
    assert_int_equal(spec->train.cuda_graphs, SPEC_AUTO);
    assert_true(spec->transformer.deterministic);
    assert_int_equal(spec->train.max_steps, 0);
    assert_int_equal(spec->checkpoint.compression_level, 3);
    assert_true(spec->comm.timeout_seconds == 10);
    assert_null(spec->comm.interface);
    assert_true(spec->gradient_clipping == 0);
    assert_true(spec->optimizer.lr == 1e-3 && spec->optimizer.beta2 == 0.999 && spec->optimizer.bias_correction);
    assert_int_equal(spec->scheduler.type, SCHEDULE_CONSTANT);
    assert_int_equal(spec->scheduler.warmup_steps, 0);
    assert_int_equal(spec->dtype, DTYPE_F32);
    assert_int_equal(spec->max_skipped_steps, 10);
    assert_int_equal(spec->zero.stage, 0);
    assert_true(spec->zero.overlap_comm);
    assert_int_equal(spec->zero.reduce_bucket_size, 500000000);
    assert_int_equal(spec->steps_per_print, 10);
    spec_free(spec);
}

static void test_deepspeed_schedule(void **state)
{
    (void)state;
    struct run_spec *spec = load_good(BASE "scheduler: {type: WarmupLR}\n", NULL, 0);
    assert_int_equal(spec->scheduler.type, SCHEDULE_WARMUP_LR);
    assert_int_equal(spec->scheduler.warmup_steps, 1000);
    assert_true(spec->scheduler.warmup_max_lr < 0); /* the optimizer's lr is used */
    assert_false(spec->scheduler.warmup_linear);
    spec_free(spec);
    spec = load_good(BASE "scheduler: {type: WarmupDecayLR, params: {total_num_steps: auto, warmup_num_steps: 7, "
                          "warmup_type: linear, warmup_min_lr: 1e-5, warmup_max_lr: auto}}\n",
                     NULL, 0);
    assert_int_equal(spec->scheduler.warmup_steps, 7);
    assert_int_equal(spec->scheduler.total_steps, 0);
    assert_true(spec->scheduler.warmup_linear);
    assert_true(spec->scheduler.warmup_min_lr == 1e-5 && spec->scheduler.warmup_max_lr < 0);
    assert_int_equal(spec_resolve_steps(spec, 33), 33);
    assert_int_equal(spec->scheduler.total_steps, 33);
    spec_free(spec);
    spec = load_good(BASE "scheduler: {type: WarmupCosineLR, params: {total_num_steps: 50}}\n", NULL, 0);
    assert_true(spec->scheduler.cos_min_ratio == 1e-4);
    assert_int_equal(spec->scheduler.total_steps, 50);
    spec_free(spec);
}

/* Values, and the forms in which they may be written. */
static void test_spellings(void **state)
{
    (void)state;
    struct run_spec *spec = load_good(BASE "zero_optimization: {reduce_bucket_size: 5E+8, allgather_bucket_size: 2e5}\n"
                                           "optimizer: {type: adam, params: {lr: 1e-5, adam_w_mode: false}}\n"
                                           "run: {name: 2026}\n"
                                           "train: {max_steps: 1e3}\n",
                                      NULL, 0);
    assert_int_equal(spec->zero.reduce_bucket_size, 500000000);
    assert_int_equal(spec->zero.allgather_bucket_size, 200000);
    assert_int_equal(spec->optimizer.type, OPTIMIZER_ADAM);
    assert_true(spec->optimizer.lr == 1e-5);
    assert_string_equal(spec->run.name, "2026");
    assert_int_equal(spec->train.max_steps, 1000);
    spec_free(spec);

    spec = load_good(BASE "optimizer: {type: Adam}\nzero_optimization: true\nbfloat16: {enabled: true}\n", NULL, 0);
    assert_int_equal(spec->optimizer.type, OPTIMIZER_ADAMW); /* Adam means AdamW */
    assert_int_equal(spec->zero.stage, 1);
    assert_int_equal(spec->dtype, DTYPE_BF16);
    spec_free(spec);

    spec = load_good("\xef\xbb\xbf" BASE "zero_optimization: false\r\nrun:\r\ncomm: {interface: ~}\r\n", NULL, 0);
    assert_int_equal(spec->zero.stage, 0);
    spec_free(spec);

    spec = load_good("model: {config: tiny.json}\ndata: {train: [a, b/*.bin], validation: [], seq_length: 8}\n"
                     "train_batch_size: auto\ntrain_micro_batch_size_per_gpu: 2\n",
                     NULL, 0);
    assert_string_equal(spec->model.config_path, "tiny.json");
    assert_int_equal(spec->data.train.count, 2);
    assert_string_equal(spec->data.train.items[1], "b/*.bin");
    assert_int_equal(spec->data.validation.count, 0);
    assert_int_equal(spec->train_batch_size, 0);
    spec_free(spec);
}

/* enabled alone is policy block, a policy alone enables, and the effective spec has both. */
static void test_recompute(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum recompute policy;
    } cases[] = {
        {"", RECOMPUTE_NONE},
        {"activation_checkpointing: {enabled: false}\n", RECOMPUTE_NONE},
        {"activation_checkpointing: {enabled: true}\n", RECOMPUTE_BLOCK},
        {"activation_checkpointing: {policy: norms}\n", RECOMPUTE_NORMS},
        {"activation_checkpointing: {enabled: true, policy: mlp}\n", RECOMPUTE_MLP},
        {"activation_checkpointing: {policy: attention}\n", RECOMPUTE_ATTENTION},
        {"activation_checkpointing: {policy: block}\n", RECOMPUTE_BLOCK},
        {"activation_checkpointing: {policy: none}\n", RECOMPUTE_NONE},
        {"activation_checkpointing: {enabled: true, policy: none}\n", RECOMPUTE_NONE},
        {"activation_checkpointing: {enabled: false, policy: none}\n", RECOMPUTE_NONE},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, BASE "%s", cases[i].text);
        struct run_spec *spec = load_good(text, NULL, 0);
        json_t *flat = spec_to_json(spec);
        assert_int_equal(spec->transformer.recompute, cases[i].policy);
        assert_string_equal(json_string_value(json_object_get(flat, "activation_checkpointing.policy")),
                            recompute_name(cases[i].policy));
        assert_int_equal(json_is_true(json_object_get(flat, "activation_checkpointing.enabled")),
                         cases[i].policy != RECOMPUTE_NONE);
        json_decref(flat);
        spec_free(spec);
    }
}

/* Names of old and of overrides, both set: the override counts. */
static void test_two_names(void **state)
{
    (void)state;
    static const char *const sets[] = {"bf16.enabled=true"};
    struct run_spec *spec = load_good(BASE "bfloat16: {enabled: false, check_grad_overflow: ~}\n"
                                           "bf16: {check_grad_overflow: true}\n",
                                      sets, 1);
    assert_int_equal(spec->dtype, DTYPE_BF16);
    spec_free(spec);
    static const char *const old[] = {"bfloat16.enabled=true"};
    spec = load_good(BASE "bf16: {enabled: false}\n", old, 1);
    assert_int_equal(spec->dtype, DTYPE_BF16);
    spec_free(spec);
}

static void test_model_mapping(void **state)
{
    (void)state;
    struct run_spec *spec = load_good("data: {train: a, seq_length: 8}\n"
                                      "train_batch_size: 8\n"
                                      "model:\n"
                                      "  config:\n"
                                      "    model_type: llama\n"
                                      "    hidden_size: 64\n"
                                      "    rms_norm_eps: 1e-6\n"
                                      "    rope_theta: 10000.0\n"
                                      "    tie_word_embeddings: true\n"
                                      "    sliding_window: null\n"
                                      "    eos_token_id: [1, 2]\n"
                                      "    version: '5'\n"
                                      "    code: 0123\n"
                                      "    rope_scaling: {rope_type: llama3, factor: 8}\n",
                                      NULL, 0);
    assert_null(spec->model.config_path);
    assert_non_null(strstr(spec->model.where, "run.yaml:4:3"));
    json_t *expected = json_pack("{s:s, s:i, s:f, s:f, s:b, s:n, s:[ii], s:s, s:s, s:{s:s, s:i}}", "model_type",
                                 "llama", "hidden_size", 64, "rms_norm_eps", 1e-6, "rope_theta", 10000.0,
                                 "tie_word_embeddings", 1, "sliding_window", "eos_token_id", 1, 2, "version", "5",
                                 "code", "0123", "rope_scaling", "rope_type", "llama3", "factor", 8);
    assert_true(json_equal(spec->model.config, expected));
    json_decref(expected);
    spec_free(spec);
}

/* ---- overrides ----------------------------------------------------------- */

static void test_overrides(void **state)
{
    (void)state;
    static const char *const sets[] = {
        "train.max_steps=30",
        "train.cuda_graphs=true",
        "train.deterministic=false",
        "optimizer.params.betas=[0.8, 0.9]",
        "zero_optimization.stage=2",
        "zero_optimization.stage=3",
        "data.train=[x, y]",
        "model.pretrained=null",
        "model.config={vocab_size: 5e1, n_layer: 2}",
        "model.config.n_layer=4",
        "bf16.enabled=true",
        "run.name=a=b",
        "zero_optimization.reduce_bucket_size=5e8",
    };
    struct run_spec *spec =
        load_good(BASE "zero_optimization: true\nbfloat16: {enabled: false}\nrun:\n", sets, COUNT_OF(sets));
    assert_int_equal(spec->train.max_steps, 30);
    assert_int_equal(spec->train.cuda_graphs, SPEC_ON);
    assert_false(spec->transformer.deterministic);
    assert_true(spec->optimizer.beta1 == 0.8 && spec->optimizer.beta2 == 0.9);
    assert_int_equal(spec->zero.stage, 3);
    assert_int_equal(spec->data.train.count, 2);
    assert_null(spec->model.pretrained);
    assert_int_equal(json_integer_value(json_object_get(spec->model.config, "n_layer")), 4);
    assert_true(json_is_real(json_object_get(spec->model.config, "vocab_size")));
    assert_string_equal(spec->model.where, "--set model.config");
    assert_int_equal(spec->dtype, DTYPE_BF16);
    assert_string_equal(spec->run.name, "a=b");
    spec_free(spec);
}

/* ---- DeepSpeed's file ---------------------------------------------------- */

static void test_deepspeed_file(void **state)
{
    (void)state;
    struct run_spec *spec;
    struct spec_report report = {0};
    assert_int_equal(
        load_deepspeed("model: {pretrained: m}\ndata: {train: a, seq_length: 8}\n"
                       "zero_optimization: {stage: 3}\n",
                       "{\n\t\"train_micro_batch_size_per_gpu\":4,\"gradient_accumulation_steps\": 2,\n"
                       "\t\"zero_optimization\": {\"overlap_comm\": false, \"reduce_bucket_size\": \"auto\"},\n"
                       "\t\"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"Adam\", \"params\": "
                       "{\"lr\": 3E-5}},\n"
                       "\t\"communication_data_type\": null, \"comet\": {\"enabled\": false},\n"
                       "\t\"prescale_gradients\": true, \"run\": {\"name\": \"caf\\u00e9\\/x\"}\n}\n",
                       &spec, &report),
        STATUS_USAGE); /* the name contains a slash */
    assert_int_equal(report.errors.count, 1);
    expect_line(&report.errors, "ds.json:6:46: 'run.name' must be the name of a folder, not 'café/x'");
    expect_line(&report.notices, "ds.json:6:2: 'prescale_gradients' has no effect here");
    spec_report_release(&report);

    assert_int_equal(
        load_deepspeed("model: {pretrained: m}\ndata: {train: a, seq_length: 8}\n"
                       "zero_optimization: {stage: 3}\noptimizer: {params: {lr: 1}}\n",
                       "{\"train_micro_batch_size_per_gpu\":4,\"gradient_accumulation_steps\": 2,\n"
                       "\"zero_optimization\": {\"overlap_comm\": false, \"reduce_bucket_size\": \"auto\"}}",
                       &spec, &report),
        STATUS_OK);
    assert_int_equal(spec->train_micro_batch_size_per_gpu, 4);
    assert_int_equal(spec->zero.stage, 3);
    assert_false(spec->zero.overlap_comm);
    assert_int_equal(spec->zero.reduce_bucket_size, 500000000); /* auto */
    spec_free(spec);
    spec_report_release(&report);

    /* "auto" leaves the value to the other file, on either side */
    assert_int_equal(
        load_deepspeed(
            "model: {pretrained: m}\ndata: {train: a, seq_length: 8}\n"
            "train_batch_size: 6\ngradient_clipping: auto\nbf16: {enabled: true}\noptimizer: {params: {lr: 1}}\n",
            "{\"train_batch_size\": \"auto\", \"gradient_clipping\": 2, \"bf16\": {\"enabled\": "
            "\"auto\"}, \"fp16\": {\"enabled\": \"auto\"}}",
            &spec, &report),
        STATUS_OK);
    assert_int_equal(spec->train_batch_size, 6);
    assert_true(spec->gradient_clipping == 2 && spec->dtype == DTYPE_BF16);
    spec_free(spec);
    spec_report_release(&report);
}

/* ---- printing and comparing ---------------------------------------------- */

static char *yaml_of(const struct run_spec *spec)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    spec_write_yaml(spec, out);
    fclose(out);
    return text;
}

static void resolve(struct run_spec *spec)
{
    struct error err;
    assert_int_equal(spec_resolve_batch(spec, 2, "srun", &err), STATUS_OK);
    spec_resolve_steps(spec, 50);
}

/* A written spec reads back as the same one, resolved or not. */
static void test_round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {
        BASE,
        BASE
        "run: {name: 'a b: \"c\" #', dir: \"\\u2028\\x7f\\xa0\xf0\x9f\x98\x80\\n\\\\\", seed: 9223372036854775807}\n"
        "comm: {interface: 'true', timeout_seconds: 0.1}\n",
        BASE "scheduler: {type: WarmupDecayLR, params: {total_num_steps: auto, warmup_type: linear}}\n",
        BASE "scheduler: {type: Linear, params: {min_lr: 5e-324}}\ntrain: {epochs: 3}\ngradient_clipping: 1e20\n",
        BASE "scheduler: {type: WarmupCosineLR, params: {total_num_steps: 9, cos_min_ratio: 0.3333333333333333}}\n"
             "optimizer: {type: Adam, params: {adam_w_mode: false, weight_decay_all: true, eps: 1e-30}}\n",
        /* values that are the table's defaults, and not Muon's */
        BASE "optimizer: {type: Muon, params: {lr: 1e-3, momentum: 0, nesterov: false, betas: [0.9, 0.999], eps: "
             "1e-8}}\n",
        BASE "optimizer: {type: Muon, params: {muon_lr: 0.02, adam_lr: 1e-3}}\n",
        "data: {train: [a, '1e5', .inf, ~a, 'null', /b/c.bin, ../d, '0123'], seq_length: 8}\n"
        "train_micro_batch_size_per_gpu: 2\nzero_optimization: {stage: 3, reduce_bucket_size: auto}\nbf16: {enabled: "
        "true}\n"
        "model: {config: {a: 1.0, b: [1, 2.5, null, true, 'yes', {}], '': {'k: \\n': ''}, c: 1e300, d: -0.0}}\n",
    };
    for (size_t i = 0; i < COUNT_OF(texts) * 2; i++) {
        const char *text = texts[i / 2];
        if (i / 2 == COUNT_OF(texts) - 1)
            text = "data: {train: [a, '1e5', '.inf', '~', 'null', /b/c.bin, ../d, '0123'], seq_length: 8}\n"
                   "train_micro_batch_size_per_gpu: 2\nzero_optimization: {stage: 3}\nbf16: {enabled: true}\n"
                   "model: {config: {a: 1.0, b: [1, 2.5, null, true, 'yes', {}], \"k: \\n\": '', c: 1e300, d: -0.0}}\n";
        struct run_spec *spec = load_good(text, NULL, 0);
        if (i & 1) resolve(spec);
        char *written = yaml_of(spec);
        struct run_spec *again = load_good(written, NULL, 0);
        if (i & 1) resolve(again);
        json_t *a = spec_to_json(spec), *b = spec_to_json(again);
        if (!json_equal(a, b)) fail_msg("reads back differently:\n%s", written);
        json_decref(a);
        json_decref(b);
        free(written);
        spec_free(again);
        spec_free(spec);
    }
}

static void test_effective_yaml(void **state)
{
    (void)state;
    struct run_spec *spec =
        load_good(BASE "scheduler: {type: Linear}\noptimizer: {params: {betas: [0.9, 0.95]}}\n", NULL, 0);
    resolve(spec);
    char *text = yaml_of(spec);
    static const char *const lines[] = {"run:\n  name: run\n",
                                        "\nmodel:\n  pretrained: models/gpt2\n",
                                        "\ndata:\n  train: data/a\n",
                                        "  seq_length: 8\n",
                                        "\ntrain_batch_size: 8\n"
                                        "# train_micro_batch_size_per_gpu: 4 # derived\n"
                                        "# gradient_accumulation_steps: 1 # derived\n",
                                        "\noptimizer:\n",
                                        "  params:\n    lr: 0.001\n",
                                        "    betas: [0.9, 0.95]\n",
                                        "\nscheduler:\n  type: Linear\n  params:\n",
                                        "    # total_steps: 50 # derived\n"};
    const char *at = text;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        at = strstr(at, lines[i]);
        if (!at) fail_msg("without '%s', or in another order:\n%s", lines[i], text);
        at += strlen(lines[i]) - 1;
    }
    assert_non_null(strstr(text, "\nsteps_per_print: 10\n"));
    assert_non_null(strstr(text, "\n  overlap_comm: true\n"));
    assert_null(strstr(text, "warmup_num_steps")); /* a key of another schedule */
    free(text);
    spec_free(spec);
}

static void test_compare(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error, *notice; /* fragments of the one line; NULL, NULL: silent */
    } cases[] = {
        {"steps_per_print=3", NULL, NULL},
        {"run.dir=elsewhere", NULL, NULL},
        {"run.name=other", NULL, NULL},
        {"checkpoint.keep_last=3", NULL, NULL},
        {"comm.timeout_seconds=3", NULL, NULL},
        {"data.train=[data/a]", NULL, NULL},
        {"model.pretrained=x", "'model.pretrained' was \"models/gpt2\" in the checkpoint and is \"x\" now: ", NULL},
        {"data.train=[data/a, b]", "'data.train' was [\"data/a\"] in the checkpoint and is [\"data/a\",\"b\"] now",
         NULL},
        {"data.seq_length=9", "'data.seq_length' was 8 in the checkpoint and is 9 now", NULL},
        {"data.packing=false", "'data.packing' was true in the checkpoint and is false now", NULL},
        {"data.shuffle=false", "'data.shuffle' was true", NULL},
        {"run.seed=1", "'run.seed' was 1234 in the checkpoint and is 1 now", NULL},
        {"train_batch_size=16", "'train_batch_size' was 8 in the checkpoint and is 16 now", NULL},
        {"bf16.enabled=true", "'bf16.enabled' was false in the checkpoint and is true now", NULL},
        {"optimizer={type: Adam, params: {adam_w_mode: false, lr: 1e-3}}",
         "'optimizer.type' was \"AdamW\" in the checkpoint and "
         "is \"Adam\" now",
         NULL},
        {"train_micro_batch_size_per_gpu=2", NULL,
         "'train_micro_batch_size_per_gpu' was 4 in the checkpoint and is 2 "
         "now"},
        {"zero_optimization.stage=2", NULL, "'zero_optimization.stage' was 0 in the checkpoint and is 2 now"},
        {"optimizer.params.lr=1e-4", NULL, "'optimizer.params.lr' was 0.001 in the checkpoint and is 0.0001 now"},
        {"optimizer.params.betas=[0.9, 0.95]", NULL,
         "'optimizer.params.betas' was [0.9,0.999] in the checkpoint and is "
         "[0.9,0.95] now"},
        {"scheduler.type=Linear", NULL, "'scheduler.type' was \"Constant\" in the checkpoint and is \"Linear\" now"},
        {"train.max_steps=7", NULL, "'train.max_steps' was unset in the checkpoint and is 7 now"},
        {"train.epochs=7", NULL, "'train.epochs' was unset in the checkpoint and is 7 now"},
        {"train.device=cpu", NULL, "'train.device' was \"auto\" in the checkpoint and is \"cpu\" now"},
        {"gradient_clipping=1", NULL, "'gradient_clipping' was 0.0 in the checkpoint and is 1.0 now"},
        {"data.validation=v", NULL, "'data.validation' was unset in the checkpoint and is [\"v\"] now"},
        {"train.eval_batches=3", NULL, "'train.eval_batches' was 0 in the checkpoint and is 3 now"},
    };
    struct run_spec *first = load_good(BASE, NULL, 0);
    resolve(first);
    json_t *stored = spec_to_json(first);
    spec_free(first);
    char *text = json_dumps(stored, 0); /* the form of the manifest */
    json_decref(stored);
    stored = json_loads(text, 0, NULL);
    free(text);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec = load_good(BASE, &cases[i].set, 1);
        resolve(spec);
        struct spec_report report = {0};
        assert_int_equal(spec_compare(spec, stored, false, false, &report), cases[i].error ? STATUS_USAGE : STATUS_OK);
        if (cases[i].error) expect_line(&report.errors, cases[i].error);
        if (cases[i].notice) expect_line(&report.notices, cases[i].notice);
        if (!cases[i].error && !cases[i].notice) assert_int_equal(report.notices.count, 0);
        spec_report_release(&report);
        spec_free(spec);
    }
    /* other paths to the same model and the same data */
    for (int same = 0; same < 4; same++) {
        bool same_model = same & 1, same_data = same & 2;
        const char *moved[] = {"model.pretrained=x", "data.train=[y]"};
        struct run_spec *spec = load_good(BASE, moved, 2);
        resolve(spec);
        struct spec_report report = {0};
        assert_int_equal(spec_compare(spec, stored, same_model, same_data, &report),
                         same_model && same_data ? STATUS_OK : STATUS_USAGE);
        expect_line(same_model ? &report.notices : &report.errors,
                    "'model.pretrained' was \"models/gpt2\" in the checkpoint and is \"x\" now");
        expect_line(same_data ? &report.notices : &report.errors,
                    "'data.train' was [\"data/a\"] in the checkpoint and is [\"y\"] now");
        spec_report_release(&report);
        spec_free(spec);
    }
    /* a checkpoint of a version without a key: as if the run had used the default */
    json_object_del(stored, "zero_optimization.overlap_comm");
    json_object_set_new(stored, "some.future_key", json_true());
    struct run_spec *spec = load_good(BASE, NULL, 0);
    resolve(spec);
    struct spec_report report = {0};
    assert_int_equal(spec_compare(spec, stored, false, false, &report), STATUS_OK);
    assert_int_equal(report.notices.count, 0);
    spec_report_release(&report);
    spec_free(spec);
    json_decref(stored);
}

/* A run may go on with sums in any order, and says so. */
static void test_determinism_on_resume(void **state)
{
    (void)state;
    const char *const sets[] = {"train.deterministic=false"};
    struct run_spec *spec = load_good(BASE, NULL, 0), *changed = load_good(BASE, sets, 1);
    struct spec_report report = {0};
    json_t *stored = spec_to_json(spec);
    assert_int_equal(spec_compare(changed, stored, true, true, &report), STATUS_OK);
    assert_int_equal(report.notices.count, 1);
    expect_line(&report.notices, "'train.deterministic'");
    spec_report_release(&report);
    json_decref(stored);
    spec_free(spec);
    spec_free(changed);
}

/* A checkpoint from before train.logits_dtype wrote its logits in fp32, which a run in half precision does no more. */
static void test_logits_of_an_older_run(void **state)
{
    (void)state;
    static const struct {
        const char *sets[2];
        bool changes;
    } cases[] = {
        {{"bf16.enabled=true", "train.logits_dtype=auto"}, true},
        {{"fp16.enabled=true", "train.logits_dtype=auto"}, true},
        {{"bf16.enabled=true", "train.logits_dtype=fp32"}, false},
        {{"bf16.enabled=false", "train.logits_dtype=auto"}, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec = load_good(BASE, cases[i].sets, 2);
        resolve(spec);
        json_t *stored = spec_to_json(spec);
        json_object_del(stored, "train.logits_dtype");
        struct spec_report report = {0};
        assert_int_equal(spec_compare(spec, stored, true, true, &report), STATUS_OK);
        assert_int_equal(report.notices.count, cases[i].changes);
        if (cases[i].changes)
            expect_line(&report.notices, "'train.logits_dtype' was unset in the checkpoint and is \"auto\" now");
        spec_report_release(&report);
        json_decref(stored);
        spec_free(spec);
    }
}

/* data.document_mask follows from the data, or from the run that is resumed, where it is not given. */
static void test_document_mask(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        bool masks;
        enum spec_switch value;
    } cases[] = {
        {"data.shuffle=true", true, SPEC_ON},        {"data.shuffle=true", false, SPEC_OFF},
        {"data.packing=first_fit", true, SPEC_ON},   {"data.packing=false", true, SPEC_OFF},
        {"data.document_mask=auto", true, SPEC_ON},  {"data.document_mask=false", true, SPEC_OFF},
        {"data.document_mask=true", false, SPEC_ON},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec = load_good(BASE, &cases[i].set, 1);
        const bool given = spec->data.document_mask != SPEC_AUTO;
        spec_resolve_document_mask(spec, cases[i].masks);
        assert_int_equal(spec->data.document_mask, cases[i].value);
        assert_int_equal(spec_document_mask_was_auto(spec), !given);
        spec_resolve_document_mask(spec, !cases[i].masks); /* once */
        assert_int_equal(spec->data.document_mask, cases[i].value);
        char *text = yaml_of(spec);
        assert_non_null(strstr(text, given                       ? "\n  document_mask: "
                                     : cases[i].value == SPEC_ON ? "\n  # document_mask: true # derived\n"
                                                                 : "\n  # document_mask: false # derived\n"));
        free(text);
        spec_free(spec);
    }
    const char *packed = "data.document_mask=true";
    struct run_spec *before = load_good(BASE, &packed, 1);
    resolve(before);
    json_t *stored = spec_to_json(before);
    for (int i = 0; i < 3; i++) { /* true, false, and a checkpoint from before there was the key */
        struct run_spec *spec = load_good(BASE, NULL, 0);
        resolve(spec);
        spec_resolve_resumed(spec, stored);
        assert_int_equal(spec->data.document_mask, i == 0 ? SPEC_ON : SPEC_OFF);
        struct spec_report report = {0};
        assert_int_equal(spec_compare(spec, stored, true, true, &report), STATUS_OK);
        assert_int_equal(report.notices.count, 0);
        spec_free(spec);
        if (i == 0)
            json_object_set_new(stored, "data.document_mask", json_false());
        else
            json_object_del(stored, "data.document_mask");
    }
    json_decref(stored);
    spec_free(before);
}

/* model.train_pad_token, "auto" and false of which are the same: what a run did, its checkpoint says; before there was
 * the key, runs trained that embedding. */
static void test_train_pad_token(void **state)
{
    (void)state;
    static const struct {
        const char *was; /* NULL: the checkpoint has no such key */
        const char *now;
        enum spec_switch value;
        bool same;
    } cases[] = {
        {"auto", "auto", SPEC_AUTO, true}, {"auto", "false", SPEC_OFF, true},  {"false", "auto", SPEC_AUTO, true},
        {"true", "auto", SPEC_ON, true},   {"true", "false", SPEC_OFF, false}, {"auto", "true", SPEC_ON, false},
        {NULL, "auto", SPEC_ON, true},     {NULL, "true", SPEC_ON, true},      {NULL, "false", SPEC_OFF, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char set[2][64];
        const char *sets[2] = {set[0], set[1]};
        snprintf(set[0], sizeof set[0], "model.train_pad_token=%s", cases[i].was ? cases[i].was : "auto");
        snprintf(set[1], sizeof set[1], "model.train_pad_token=%s", cases[i].now);
        struct run_spec *before = load_good(BASE, &sets[0], 1), *now = load_good(BASE, &sets[1], 1);
        struct spec_report report = {0};
        resolve(before);
        resolve(now);
        spec_resolve_document_mask(before, false);
        json_t *stored = spec_to_json(before);
        if (!cases[i].was) json_object_del(stored, "model.train_pad_token");
        spec_resolve_resumed(now, stored);
        assert_int_equal(now->model.train_pad_token, cases[i].value);
        assert_int_equal(spec_compare(now, stored, true, true, &report), cases[i].same ? STATUS_OK : STATUS_USAGE);
        assert_int_equal(report.errors.count, !cases[i].same);
        assert_true(cases[i].same || strstr(report.errors.items[0], "'model.train_pad_token' was "));
        assert_int_equal(report.notices.count, 0);
        spec_report_release(&report);
        json_decref(stored);
        spec_free(before);
        spec_free(now);
    }
}

/* The YAML and the JSON of a mixture read back to the same sources; what a resumed run has to have again. */
static void test_mixture(void **state)
{
    (void)state;
    static const char *const mixtures[] = {"data.train=[{path: a, weight: 2}, {weight: 0.5, path: 'b/*.bin'}]",
                                           "data.train=[{path: a, epochs: 2.5}]"};
    for (int i = 0; i < 2; i++) {
        struct run_spec *spec = load_good(BASE, &mixtures[i], 1);
        assert_int_equal(spec->data.train.count, 2 - i);
        assert_int_equal(spec->data.amount, i ? SPEC_AMOUNT_EPOCHS : SPEC_AMOUNT_WEIGHT);
        assert_string_equal(spec->data.train.items[0], "a");
        assert_true(spec->data.amounts[0] == (i ? 2.5 : 2));
        if (i == 0) assert_string_equal(spec->data.train.items[1], "b/*.bin");
        if (i == 0) assert_true(spec->data.amounts[1] == 0.5);
        resolve(spec);
        char *text = yaml_of(spec);
        struct run_spec *again = load_good(text, NULL, 0);
        resolve(again);
        json_t *before = spec_to_json(spec), *after = spec_to_json(again);
        assert_true(json_equal(json_object_get(before, "data.train"), json_object_get(after, "data.train")));
        assert_true(json_is_object(json_array_get(json_object_get(after, "data.train"), 0)));
        struct spec_report report = {0};
        assert_int_equal(spec_compare(again, before, true, false, &report), STATUS_OK);
        assert_int_equal(report.notices.count, 0);
        spec_free(again);

        const char *other = i ? "data.train=[{path: a, epochs: 2}]" : "data.train=[a, 'b/*.bin']";
        again = load_good(BASE, &other, 1);
        assert_int_equal(again->data.amount, i ? SPEC_AMOUNT_EPOCHS : SPEC_AMOUNT_NONE);
        resolve(again);
        assert_int_equal(spec_compare(again, before, true, false, &report), STATUS_USAGE);
        expect_line(&report.errors, i ? "'data.train' was [{\"path\":\"a\",\"epochs\":2.5}] in the checkpoint and is "
                                        "[{\"path\":\"a\",\"epochs\":2.0}] now: that would change the run"
                                      : "and is [\"a\",\"b/*.bin\"] now: that would change the run");
        spec_report_release(&report);
        spec_free(again);
        spec_free(spec);
        json_decref(before);
        json_decref(after);
        free(text);
    }
}

static void test_help(void **state)
{
    (void)state;
    for (int as_json = 0; as_json < 2; as_json++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        (as_json ? spec_print_json : spec_print_help)(out);
        fclose(out);
        for (const struct spec_key *key = spec_keys; key->path; key++)
            if (key->type != KEY_SECTION) assert_non_null(strstr(text, key->path));
        assert_true((text[0] == '{') == (as_json == 1));
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_text_without_a_file),
        cmocka_unit_test(test_usual_spec),
        cmocka_unit_test(test_home_folder),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_deepspeed_schedule),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_train_pad_token),
        cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_determinism_on_resume),
        cmocka_unit_test(test_logits_of_an_older_run),
        cmocka_unit_test(test_document_mask),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_two_names),
        cmocka_unit_test(test_model_mapping),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_deepspeed_file),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_effective_yaml),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
