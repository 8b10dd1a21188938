/* SPDX-License-Identifier: Apache-2.0 */
/* test_spec_deepspeed.c: DeepSpeed configurations beside a run spec, in the shapes in which tutorials and trainers have
 * them: what "auto" becomes, and what two files may set both. */
#include "tests/unit/fixtures/spec_case.h"

/* A run spec with what Trainer's arguments would give. */
#define ARGUMENTS                         \
    "model: {pretrained: m}\n"            \
    "data: {train: a, seq_length: 8}\n"   \
    "train_micro_batch_size_per_gpu: 2\n" \
    "optimizer: {params: {lr: 2e-5}}\n"

static struct run_spec *load_both(const char *yaml, const char *json, struct spec_report *report)
{
    struct run_spec *spec;
    if (load_deepspeed(yaml, json, &spec, report) != STATUS_OK) {
        print_error("refused:\n%s\n%s\n", yaml, json);
        print_lines(&report->errors);
        fail();
    }
    return spec;
}

/* The lines about "auto", for 3 ranks, a hidden size of 70 and 50 steps. */
static struct string_list auto_lines(struct run_spec *spec)
{
    struct error err;
    struct string_list lines = {0};
    assert_int_equal(spec_resolve_batch(spec, 3, "srun", &err), STATUS_OK);
    spec_resolve_model(spec, 70);
    spec_resolve_steps(spec, 50);
    spec_auto_print(spec, &lines);
    return lines;
}

static void test_auto_alone(void **state)
{
    (void)state;
    static const char json[] = /* a byte order mark is no part of the text */
        "\xef\xbb\xbf{\"train_batch_size\": \"auto\", \"gradient_accumulation_steps\": \"auto\", "
        "\"gradient_clipping\": \"auto\",\n"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": \"auto\", \"eps\": \"auto\", "
        "\"weight_decay\": \"auto\"}},\n"
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\", \"warmup_min_lr\": "
        "\"auto\", \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"}},\n"
        " \"fp16\": {\"enabled\": \"auto\", \"loss_scale\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"},\n"
        " \"amp\": {\"enabled\": \"auto\", \"opt_level\": \"auto\"},\n"
        " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": "
        "\"auto\", \"stage3_param_persistence_threshold\": \"auto\", \"stage3_max_live_parameters\": \"auto\", "
        "\"overlap_comm\": \"auto\"}}\n";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS, json, &report);
    struct string_list lines = auto_lines(spec);
    static const char *const expected[] = {
        "train_batch_size: auto → 6, from the other batch sizes and the number of ranks",
        "gradient_accumulation_steps: auto → 1, from the other batch sizes and the number of ranks",
        "gradient_clipping: auto → 1.0, from the default of Trainer's max_grad_norm",
        "optimizer.params.betas: auto → [0.9,0.999], from the optimizer's default",
        "optimizer.params.eps: auto → 1e-8, from the optimizer's default",
        "optimizer.params.weight_decay: auto → 0.0, from the optimizer's default",
        "scheduler.params.warmup_num_steps: auto → 0, from the default of Trainer's warmup_steps",
        "scheduler.params.total_num_steps: auto → 50, from the length of the run",
        "scheduler.params.warmup_min_lr: auto → 0.0, from the default",
        "scheduler.params.warmup_max_lr: auto → 2e-5, from optimizer.params.lr",
        "bf16.enabled: auto → false, from the run spec, which does not switch it on",
        "fp16.enabled: auto → false, from the run spec, which does not switch it on",
        "fp16.loss_scale: auto → 0.0, from the default",
        "zero_optimization.overlap_comm: auto → true, from the default",
        "zero_optimization.reduce_bucket_size: auto → 4900, from the model's hidden size, squared",
        "zero_optimization.stage3_prefetch_bucket_size: auto → 4410, from 0.9 x the model's hidden size, squared (it "
        "has no effect here)",
        "zero_optimization.stage3_param_persistence_threshold: auto → 700, from 10 x the model's hidden size (it has "
        "no "
        "effect here)",
        "zero_optimization.stage3_max_live_parameters: auto → 1000000000, from the default (it has no effect here)",
    };
    for (size_t i = 0; i < COUNT_OF(expected); i++) expect_line(&lines, expected[i]);
    assert_int_equal(lines.count, COUNT_OF(expected));
    assert_int_equal(report.notices.count, 0);
    assert_true(spec->gradient_clipping == 1 && spec->optimizer.beta1 == 0.9 && spec->optimizer.beta2 == 0.999);
    assert_true(spec->optimizer.lr == 2e-5 && spec->scheduler.warmup_max_lr < 0 && spec->scheduler.warmup_steps == 0);
    assert_int_equal(spec->zero.reduce_bucket_size, 4900);
    assert_int_equal(spec->scheduler.total_steps, 50);
    assert_int_equal(spec->dtype, DTYPE_F32);
    string_list_release(&lines);
    spec_report_release(&report);
    spec_free(spec);
}

/* The run spec fills "auto", wherever it is; the last --set counts. */
static void test_auto_from_the_run_spec(void **state)
{
    (void)state;
    static const char yaml[] = "model: {pretrained: m}\n"
                               "data: {train: a, seq_length: 8}\n"
                               "train_micro_batch_size_per_gpu: 2\n"
                               "gradient_clipping: 0.5\n"
                               "optimizer: {params: {lr: 2e-5, betas: [0.9, 0.95], weight_decay: auto}}\n"
                               "scheduler: {params: {warmup_num_steps: 30}}\n"
                               "bf16: {enabled: true}\n"
                               "zero_optimization: {reduce_bucket_size: 12}\n";
    static const char json[] =
        "{\"gradient_clipping\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\",\n"
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", "
        "\"weight_decay\": 0.1, \"eps\": \"auto\"}},\n"
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": \"auto\"}},\n"
        "\"bf16\": {\"enabled\": \"auto\"}, \"zero_optimization\": {\"stage\": 2, "
        "\"reduce_bucket_size\": \"auto\"}}";
    static const char *const sets[] = {"optimizer.params.eps=1e-6"};
    struct run_spec *spec;
    struct spec_report report = {0};
    const char *path = write_file("run.yaml", yaml, sizeof yaml - 1);
    assert_int_equal(spec_load(path, write_file("ds.json", json, sizeof json - 1), sets, 1, &spec, &report), STATUS_OK);
    assert_true(spec->gradient_clipping == 0.5 && spec->optimizer.lr == 2e-5 && spec->optimizer.beta2 == 0.95);
    assert_true(spec->optimizer.weight_decay == 0.1 && spec->optimizer.eps == 1e-6);
    assert_int_equal(spec->scheduler.warmup_steps, 30);
    assert_int_equal(spec->dtype, DTYPE_BF16);
    struct string_list lines = auto_lines(spec);
    assert_int_equal(spec->zero.reduce_bucket_size, 12);
    static const char *const expected[][2] = {
        {"gradient_clipping: auto → 0.5, from ", "run.yaml:4:1"},
        {"optimizer.params.lr: auto → 2e-5, from ", "run.yaml:5:22"},
        {"optimizer.params.betas: auto → [0.9,0.95], from ", "run.yaml:5:32"},
        {"optimizer.params.eps: auto → 1e-6, from ", "--set optimizer.params.eps"},
        {"optimizer.params.weight_decay: auto → 0.1, from ", "ds.json:2:"},
        {"scheduler.params.warmup_num_steps: auto → 30, from ", "run.yaml:6:22"},
        {"bf16.enabled: auto → true, from ", "run.yaml:7:8"},
        {"zero_optimization.reduce_bucket_size: auto → 12, from ", "run.yaml:8:21"},
        {"train_micro_batch_size_per_gpu: auto → 2, from ", "run.yaml:3:1"},
    };
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        const char *line = find_line(&lines, expected[i][0]);
        if (!line || !strstr(line, expected[i][1])) {
            print_lines(&lines);
            fail_msg("no line has '%s%s'", expected[i][0], expected[i][1]);
        }
    }
    assert_int_equal(lines.count, COUNT_OF(expected));
    string_list_release(&lines);
    spec_report_release(&report);
    spec_free(spec);
}

/* A size that follows from the model stays "auto" in the effective spec. */
static void test_derived_size_stays_auto(void **state)
{
    (void)state;
    struct run_spec *spec = load_good(BASE "zero_optimization: {stage: 3, reduce_bucket_size: auto}\n", NULL, 0);
    struct string_list lines = {0};
    struct error err;
    assert_int_equal(spec_resolve_batch(spec, 2, "srun", &err), STATUS_OK);
    json_t *stored = spec_to_json(spec); /* as a checkpoint has it, from before the model was known */
    spec_resolve_model(spec, 64);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    spec_write_yaml(spec, out);
    fclose(out);
    assert_non_null(strstr(text, "  reduce_bucket_size: auto # derived: 4096\n"));
    struct spec_report report = {0};
    assert_int_equal(spec_compare(spec, stored, true, true, &report), STATUS_OK);
    assert_int_equal(report.notices.count, 0);
    json_decref(stored);
    spec_report_release(&report);
    string_list_release(&lines);
    free(text);
    spec_free(spec);
}

/* A schedule that gives the learning rate of the whole run stands in for the optimizer's. */
static void test_learning_rate_of_the_schedule(void **state)
{
    (void)state;
    struct spec_report report = {0};
    struct run_spec *spec =
        load_both("model: {pretrained: m}\ndata: {train: a, seq_length: 8}\ntrain_batch_size: 6\n",
                  "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}, \"scheduler\": {\"type\": "
                  "\"WarmupLR\", \"params\": {\"warmup_max_lr\": 3e-4}}}",
                  &report);
    assert_true(spec->optimizer.lr == 3e-4);
    struct string_list lines = auto_lines(spec);
    expect_line(&lines, "optimizer.params.lr: auto → 0.0003, from scheduler.params.warmup_max_lr");
    string_list_release(&lines);
    spec_report_release(&report);
    spec_free(spec);
}

static void test_same_values(void **state)
{
    (void)state;
    struct spec_report report = {0};
    struct run_spec *spec = load_both(
        ARGUMENTS "bf16: {enabled: true}\nzero_optimization: {stage: 2, reduce_bucket_size: 5e8}\n"
                  "gradient_clipping: 1\n",
        "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 500000000},\n"
        "\"gradient_clipping\": 1.0, \"optimizer\": {\"params\": {\"lr\": 0.00002}}}",
        &report);
    assert_int_equal(report.notices.count, 0);
    spec_free(spec);
    spec_report_release(&report);
    static const struct {
        const char *yaml, *json, *fragment;
    } conflicts[] = {
        {"gradient_clipping: 1\n", "{\"gradient_clipping\": 1.5}",
         "ds.json:1:2: 'gradient_clipping' is 1.5 here and 1 at "},
        {"bf16: {enabled: true}\n", "{\"bf16\": {\"enabled\": false}}",
         "ds.json:1:11: 'bf16.enabled' is false here and true at "},
        {"data_types: {grad_accum_dtype: bf16}\n", "{\"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
         "'data_types.grad_accum_dtype' is fp32 here and bf16 at "},
        {"wandb: [1, 2]\n", "{\"wandb\": [1]}", "'wandb' is set here and at "},
        {"wandb: [1]\n", "{\"wandb\": 1}", "'wandb' is set here and at "},
        {"wandb: true\n", "{\"wandb\": {}}", "'wandb' is set here and at "},
    };
    for (size_t i = 0; i < COUNT_OF(conflicts); i++) {
        char yaml[512];
        snprintf(yaml, sizeof yaml, ARGUMENTS "%s", conflicts[i].yaml);
        assert_int_equal(load_deepspeed(yaml, conflicts[i].json, &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, conflicts[i].fragment);
        spec_report_release(&report);
    }
}

/* Keys in other places, under other names and of other types than in the table. */
static void test_taken_with_a_notice(void **state)
{
    (void)state;
    static const char json[] =
        "{\"_comment\": \"for 8 GPUs\", \"//\": 1, \"gradient_clipping\": True, \"grad_accum_dtype\": \"bf16\",\n"
        "\"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"},\n"
        "\"zero_optimization\": {\"stage\": 2},\n"
        "\"optimizer\": {\"type\": \"fusedadam\", \"params\": {\"lr\": \"2e-5\"}},\n"
        "\"scheduler\": {\"type\": \"warmuplr\"}, \"communication_data_type\": \"bfp16\",\n"
        "\"fp16\": {\"enabled\": \"false\", \"opt_level\": \"O2\"}, \"wandb\": {\"enabled\": true},\n"
        "\"comms_logger\": {\"prof_all\": false, \"enabled\": true}, \"compile\": {\"disable\": false}, \"bf16\": "
        "{\"loss_scale\": 0}}";
    static const char yaml[] = "model: {pretrained: m}\ndata: {train: a, seq_length: 8}\n"
                               "train_micro_batch_size_per_gpu: 2\n"
                               "zero_optimization: {offload_optimizer: {pin_memory: true}}\n";
    struct spec_report report = {0};
    struct run_spec *spec;
    assert_int_equal(load_deepspeed(yaml, json, &spec, &report), STATUS_OK);
    assert_int_equal(spec->grad_accum_dtype, DTYPE_BF16);
    spec_free(spec);
    static const char *const notices[] = {
        ":1:2: '_comment' is taken as a comment",
        ":1:28: '//' is taken as a comment",
        ":1:58: 'gradient_clipping' true is taken as 1.0, as in Python",
        ":1:64: 'grad_accum_dtype' is taken as data_types.grad_accum_dtype, where it belongs",
        ":2:1: 'offload_optimizer' is taken as zero_optimization.offload_optimizer, where it belongs",
        ":2:41: 'offload_param' is taken as zero_optimization.offload_param, where it belongs",
        ":2:59: 'zero_optimization.offload_param' has no effect at stage 2, which does not shard parameters",
        ":4:23: 'optimizer.type' FusedAdam is taken as AdamW",
        ":4:53: 'optimizer.params.lr' is text in quotes and is taken as 2e-5",
        ":5:63: 'communication_data_type' bfp16 is taken as bf16",
        ":6:21: 'fp16.enabled' is text in quotes and is taken as false",
        ":6:30: 'fp16.opt_level' has no effect here",
        ":6:50: 'wandb' has no effect here",
        ":7:18: 'comms_logger.prof_all' false without prof_ops records nothing",
        ":7:55: 'compile' has no effect here",
        ":7:95: 'bf16.loss_scale' has no effect here",
    };
    for (size_t i = 0; i < COUNT_OF(notices); i++) expect_line(&report.notices, notices[i]);
    assert_int_equal(report.notices.count, COUNT_OF(notices));
    spec_report_release(&report);

    static const char *const sets[] = {"grad_accum_dtype=fp32"}; /* an override may use the wrong place as well */
    const char *path = write_file("run.yaml", yaml, sizeof yaml - 1);
    assert_int_equal(spec_load(path, write_file("ds.json", json, sizeof json - 1), sets, 1, &spec, &report), STATUS_OK);
    assert_true(spec->gradient_clipping == 1 && spec->optimizer.lr == 2e-5);
    assert_int_equal(spec->optimizer.type, OPTIMIZER_ADAMW);
    assert_int_equal(spec->scheduler.type, SCHEDULE_WARMUP_LR);
    assert_int_equal(spec->zero.offload_optimizer.device, OFFLOAD_CPU);
    assert_int_equal(spec->zero.offload_param.device, OFFLOAD_NONE);
    assert_int_equal(spec->grad_accum_dtype, DTYPE_F32);
    assert_int_equal(spec->communication_data_type, DTYPE_BF16);
    assert_int_equal(spec->dtype, DTYPE_F32);
    spec_free(spec);
    spec_report_release(&report);
}

/* Trainer's page on ZeRO-Infinity prints aio within zero_optimization. */
static void test_aio_in_the_wrong_section(void **state)
{
    (void)state;
    static const char json[] = "{\"zero_optimization\": {\"stage\": 3,\n"
                               "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\"},\n"
                               "\"aio\": {\"block_size\": 262144, \"queue_depth\": 32},\n"
                               "\"overlap_comm\": true}, \"aio\": {\"queue_depth\": 32}}";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS, json, &report);
    expect_line(&report.notices, "ds.json:3:1: 'zero_optimization.aio' is taken as aio, at top level");
    assert_int_equal(report.notices.count, 1);
    assert_true(spec->aio.block_size == 262144 && spec->aio.queue_depth == 32 && spec->zero.overlap_comm);
    spec_free(spec);
    spec_report_release(&report);
}

/* Python's None and infinity, as json.dump writes them. */
static void test_null_and_infinity(void **state)
{
    (void)state;
    static const char json[] =
        "{\"steps_per_print\": Infinity, \"gradient_clipping\": null, \"bf16\": null,\n"
        "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": null, \"nvme_path\": null}}}";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS, json, &report);
    expect_line(&report.notices, "ds.json:1:21: 'steps_per_print' Infinity is taken as 1000000000");
    expect_line(&report.notices,
                "ds.json:2:63: 'zero_optimization.offload_param.device' is null and is taken as the default, none");
    assert_int_equal(report.notices.count, 2);
    assert_int_equal(spec->steps_per_print, 1000000000);
    assert_true(spec->gradient_clipping == 1); /* null sets nothing */
    assert_int_equal(spec->zero.offload_param.device, OFFLOAD_NONE);
    spec_free(spec);
    spec_report_release(&report);
    static const char *const wrong[][2] = {
        {"NaN", "'steps_per_print' must be an integer of at least 1, not"},
        {"-Infinity", "'steps_per_print' must be an integer of at least 1, not"},
        {"0", "'steps_per_print' must be an integer of at least 1, not"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"steps_per_print\": %s}", wrong[i][0]);
        assert_int_equal(load_deepspeed(ARGUMENTS, text, &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, wrong[i][1]);
        spec_report_release(&report);
    }
}

/* Numbers beyond the length of any run, which people write in order to print nothing. */
static void test_large_steps_per_print(void **state)
{
    (void)state;
    static const char *const large[] = {
        "1e16", "2000000000000000", "9223372036854775807", "99999999999999999999", "1.5e300", "1e999"};
    for (size_t i = 0; i < COUNT_OF(large); i++) {
        char text[64], expected[96];
        struct spec_report report = {0};
        snprintf(text, sizeof text, "{\"steps_per_print\": %s}", large[i]);
        snprintf(expected, sizeof expected, "'steps_per_print' %s is taken as 1000000000", large[i]);
        struct run_spec *spec = load_both(ARGUMENTS, text, &report);
        expect_line(&report.notices, expected);
        assert_int_equal(spec->steps_per_print, 1000000000);
        spec_free(spec);
        spec_report_release(&report);
    }
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS, "{\"steps_per_print\": 1e15}", &report); /* the largest number */
    assert_int_equal(spec->steps_per_print, 1000000000000000);
    assert_int_equal(report.notices.count, 0);
    spec_free(spec);
    spec_report_release(&report);
}

/* The line that says that neither file sets gradient_clipping, or NULL. */
static const char *clipping_line(struct run_spec *spec, struct string_list *lines)
{
    *lines = auto_lines(spec);
    return find_line(lines, "gradient_clipping: unset");
}

/* Where neither file sets it, DeepSpeed clips at 1.0; a resumed run keeps what it had. */
static void test_clipping_that_neither_file_sets(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *json, *set;
        double value;
        bool unset;
    } cases[] = {
        {"", "{\"bf16\": {\"enabled\": true}}", NULL, 1, true}, {"", NULL, NULL, 0, false}, /* no DeepSpeed file */
        {"gradient_clipping: 0\n", "{}", NULL, 0, false},       {"", "{\"gradient_clipping\": 0.0}", NULL, 0, false},
        {"", "{\"gradient_clipping\": 0.3}", NULL, 0.3, false}, {"", "{}", "gradient_clipping=0", 0, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char yaml[512];
        struct run_spec *spec;
        struct spec_report report = {0};
        struct string_list lines;
        snprintf(yaml, sizeof yaml, ARGUMENTS "%s", cases[i].yaml);
        const char *json = cases[i].json ? write_file("ds.json", cases[i].json, strlen(cases[i].json)) : NULL;
        assert_int_equal(spec_load(write_file("run.yaml", yaml, strlen(yaml)), json, &cases[i].set,
                                   cases[i].set != NULL, &spec, &report),
                         STATUS_OK);
        assert_true(spec->gradient_clipping == cases[i].value);
        const char *line = clipping_line(spec, &lines);
        assert_int_equal(line != NULL, cases[i].unset);
        if (line)
            assert_string_equal(
                line, "gradient_clipping: unset \u2192 1.0, from DeepSpeed's default; 0 switches clipping off");
        string_list_release(&lines);
        spec_free(spec);
        spec_report_release(&report);
    }
}

static void test_clipping_of_a_resumed_run(void **state)
{
    (void)state;
    static const struct {
        const char *stored;
        double value;
        const char *line;
    } cases[] = {
        {"{\"gradient_clipping\": 0.0}", 0, "gradient_clipping: unset \u2192 0.0, from the run as it began"},
        {"{\"gradient_clipping\": 0.7}", 0.7, "gradient_clipping: unset \u2192 0.7, from the run as it began"},
        {"{\"gradient_clipping\": 1}", 1, "gradient_clipping: unset \u2192 1.0, from DeepSpeed's default"},
        {"{}", 0, "gradient_clipping: unset \u2192 0.0, from the run as it began"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct spec_report report = {0};
        struct string_list lines;
        struct run_spec *spec = load_both(ARGUMENTS, "{\"zero_optimization\": {\"stage\": 1}}", &report);
        json_t *stored = json_loads(cases[i].stored, 0, NULL);
        spec_resolve_resumed(spec, stored);
        assert_true(spec->gradient_clipping == cases[i].value);
        assert_non_null(clipping_line(spec, &lines));
        expect_line(&lines, cases[i].line);
        json_object_set_new(stored, "gradient_clipping", json_real(cases[i].value));
        spec_compare(spec, stored, true, true, &report);
        assert_null(find_line(&report.notices, "gradient_clipping"));
        json_decref(stored);
        string_list_release(&lines);
        spec_free(spec);
        spec_report_release(&report);
    }
}

/* Python's 0 and 1 in the place of truth values. */
static void test_switches_of_0_and_1(void **state)
{
    (void)state;
    static const char json[] = "{\"bf16\": {\"enabled\": 1}, \"fp16\": {\"enabled\": 0}, \"wall_clock_breakdown\": 1, "
                               "\"autotuning\": {\"enabled\": 0},\n"
                               "\"amp\": {\"enabled\": 0}, \"comms_logger\": {\"enabled\": 1, \"verbose\": 0}, "
                               "\"zero_optimization\": {\"stage\": 2,\n"
                               "\"cpu_offload\": 1, \"offload_optimizer\": {\"pin_memory\": 0}, \"overlap_comm\": 0}}";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS "bf16: {enabled: true}\n", json, &report);
    assert_int_equal(spec->dtype, DTYPE_BF16);
    assert_true(spec->wall_clock_breakdown && spec->comms_logger.enabled && !spec->comms_logger.verbose);
    assert_true(!spec->zero.overlap_comm && !spec->zero.offload_optimizer.pin_memory);
    assert_int_equal(spec->zero.offload_optimizer.device, OFFLOAD_CPU);
    expect_line(&report.notices, "offload_optimizer.pin_memory' is false");
    assert_int_equal(report.notices.count, 1);
    spec_free(spec);
    spec_report_release(&report);
    static const char *const wrong[][2] = {
        {"{\"bf16\": {\"enabled\": 2}}", "'bf16.enabled' must be true or false, not '2'"},
        {"{\"bf16\": {\"enabled\": 1}, \"fp16\": {\"enabled\": 1}}", "cannot be simultaneously enabled"},
        {"{\"autotuning\": {\"enabled\": 1}}", "'autotuning' is not supported"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(load_deepspeed(ARGUMENTS, wrong[i][0], &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, wrong[i][1]);
        spec_report_release(&report);
    }
}

/* Keys of DeepSpeed since 0.19, and those that launchers and its own log have. `line`: of a notice, or else an error;
 * NULL: taken without a word. */
static void test_newer_keys(void **state)
{
    (void)state;
    static const struct {
        const char *json, *line;
        bool good;
    } cases[] = {
        {"\"managed_gradient_accumulation\": true, \"gradient_allreduce_op\": \"MEAN\", \"sequence_parallel_size\": 1, "
         "\"log_level\": null, \"disable_python_gc\": false",
         NULL, true},
        {"\"managed_gradient_accumulation\": false", "always the micro-batches of gradient_accumulation_steps", false},
        {"\"gradient_allreduce_op\": \"sum\"", "'gradient_allreduce_op' is not supported: a step has the mean", false},
        {"\"gradient_allreduce_op\": \"max\"", "'gradient_allreduce_op' must be mean or sum, not 'max'", false},
        {"\"sequence_parallel_size\": 4", "there is no sequence parallelism; hint: remove the key", false},
        {"\"zero_optimization\": {\"zeropp_loco_param\": {\"err_beta\": 0.8, \"reset_T\": 1024}}",
         "'zero_optimization.zeropp_loco_param' is not supported: gradients are not quantized", false},
        {"\"log_level\": \"warning\"", "'log_level' has no effect here", true},
        {"\"expert_parallel\": {\"enabled\": true, \"autoep_size\": 2}", "'expert_parallel' is not supported", false},
        {"\"expert_parallel\": {\"enabled\": 0, \"autoep_size\": 2}", NULL, true},
        {"\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 64}",
         "hint: remove the section, and restart with --resume auto", false},
        {"\"cuda_visible_devices\": \"0,1\"", "the environment chooses the GPUs: CUDA_VISIBLE_DEVICES=0,1", true},
        {"\"log\": {\"level\": \"info\"}", "'log' has no effect here", true},
        {"\"data_types\": {\"param_dtype\": \"bf16\"}", "bf16.enabled and fp16.enabled choose", false},
        {"\"data_types\": {\"keep_in_fp32_modules\": []}", "'data_types.keep_in_fp32_modules' has no effect", true},
        {"\"monitor_config\": {\"enabled\": true, \"tensorbord\": {}}",
         "unknown key 'tensorbord' in 'monitor_config'; hint: "
         "did you mean 'tensorboard'?",
         false},
        {"\"comms_config\": 3", "'comms_config' must be a section", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char json[512];
        struct run_spec *spec = NULL;
        struct spec_report report = {0};
        snprintf(json, sizeof json, "{%s}", cases[i].json);
        const enum status status = load_deepspeed(ARGUMENTS, json, &spec, &report);
        if ((status == STATUS_OK) != cases[i].good) fail_msg("%s: %d", json, (int)status);
        if (cases[i].line) expect_line(cases[i].good ? &report.notices : &report.errors, cases[i].line);
        assert_int_equal(report.notices.count + report.errors.count, cases[i].line != NULL);
        spec_free(spec);
        spec_report_release(&report);
    }
}

/* Sections in the objects by whose names DeepSpeed's log prints them. */
static void test_sections_within_others(void **state)
{
    (void)state;
    static const char json[] =
        "{\"comms_config\": {\"comms_logger_enabled\": true, \"comms_logger\": {\"enabled\": true}},\n"
        "\"monitor_config\": {\"enabled\": true, \"tensorboard\": {\"enabled\": 1, \"job_name\": \"j\"},\n"
        "\"csv_monitor\": {\"enabled\": false}}}";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS "tensorboard: {job_name: j}\n", json, &report);
    assert_true(spec->comms_logger.enabled && spec->tensorboard.enabled && !spec->csv_monitor.enabled);
    assert_string_equal(spec->tensorboard.job_name, "j");
    expect_line(&report.notices, "ds.json:1:49: 'comms_config.comms_logger' is taken as comms_logger, at top level");
    expect_line(&report.notices, "ds.json:2:37: 'monitor_config.tensorboard' is taken as tensorboard, at top level");
    expect_line(&report.notices, "ds.json:3:1: 'monitor_config.csv_monitor' is taken as csv_monitor, at top level");
    assert_int_equal(report.notices.count, 3);
    spec_free(spec);
    spec_report_release(&report);
}

/* "auto" asks for nothing, so an optimizer or scheduler may lack the parameter; a value asks for it. */
static void test_auto_of_absent_parameters(void **state)
{
    (void)state;
    static const char json[] =
        "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", "
        "\"weight_decay\": \"auto\"}},\n\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": "
        "\"auto\"}}, \"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": \"auto\"}}";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS, json, &report);
    assert_int_equal(spec->optimizer.type, OPTIMIZER_SGD);
    assert_true(spec->optimizer.lr == 2e-5);
    static const char *const notices[] = {
        "ds.json:1:56: 'optimizer.params.betas' is \"auto\" and is left out: it is not a parameter of SGD",
        "ds.json:1:73: 'optimizer.params.eps' is \"auto\" and is left out: it is not a parameter of SGD",
        ("ds.json:2:46: 'scheduler.params.total_num_steps' is \"auto\" and is left out: it is not a parameter of "
         "WarmupLR"),
    };
    for (size_t i = 0; i < COUNT_OF(notices); i++) expect_line(&report.notices, notices[i]);
    assert_int_equal(report.notices.count, COUNT_OF(notices));
    struct string_list lines = auto_lines(spec);
    assert_null(find_line(&lines, "betas"));
    string_list_release(&lines);
    spec_free(spec);
    spec_report_release(&report);
    assert_int_equal(
        load_deepspeed(ARGUMENTS, "{\"optimizer\": {\"type\": \"Lion\", \"params\": {\"eps\": 1e-8}}}", &spec, &report),
        STATUS_USAGE);
    expect_line(&report.errors,
                "'optimizer.params.eps' is not a parameter of Lion; hint: its parameters are lr, betas");
    spec_report_release(&report);
}

/* Trainer's warmup_ratio fills DeepSpeed's warmup_num_steps, and the effective spec says the same again. */
static void test_warmup_ratio_fills_auto(void **state)
{
    (void)state;
    static const char *const types[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{\"scheduler\": {\"type\": \"%s\", \"params\": {\"warmup_num_steps\": \"auto\"%s}}}", types[i],
                 i ? ", \"total_num_steps\": \"auto\"" : "");
        struct spec_report report = {0};
        struct run_spec *spec = load_both(ARGUMENTS "scheduler: {params: {warmup_ratio: 0.07}}\n", json, &report);
        assert_int_equal(report.notices.count, 0);
        struct string_list lines = auto_lines(spec);
        expect_line(&lines, "scheduler.params.warmup_num_steps: auto → 4, from scheduler.params.warmup_ratio");
        string_list_release(&lines);
        assert_int_equal(schedule_warmup(&spec->scheduler), 4); /* of 50 */
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        spec_write_yaml(spec, out);
        fclose(out);
        struct run_spec *again;
        assert_int_equal(spec_load(write_file("run.yaml", text, size), NULL, NULL, 0, &again, &report), STATUS_OK);
        assert_true(again->scheduler.warmup_ratio == 0.07 && again->scheduler.warmup_steps == 0);
        free(text);
        spec_free(again);
        spec_free(spec);
        spec_report_release(&report);
    }
}

/* Values of DeepSpeed's that mean nothing here. The same in the run spec is an error. */
static void test_values_without_meaning(void **state)
{
    (void)state;
    static const char json[] = "{\"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 0},\n"
                               "\"fp16\": {\"enabled\": true, \"min_loss_scale\": 0.0},\n"
                               "\"activation_checkpointing\": {\"cpu_checkpointing\": true},\n"
                               "\"checkpoint\": {\"tag_validation\": \"ignore\"}}";
    struct spec_report report = {0};
    struct run_spec *spec = load_both(ARGUMENTS, json, &report);
    expect_line(&report.notices, "ds.json:1:54: 'zero_optimization.sub_group_size' 0 is taken as the default, ");
    expect_line(&report.notices, "ds.json:2:45: 'fp16.min_loss_scale' 0 is taken as the default, 1");
    expect_line(&report.notices, "ds.json:3:30: 'activation_checkpointing.cpu_checkpointing' has no effect while");
    expect_line(&report.notices, "ds.json:4:16: 'checkpoint.tag_validation' has no effect here");
    assert_int_equal(report.notices.count, 4);
    assert_true(spec->loss_scaler.min_scale == 1 && !spec->cpu_checkpointing);
    spec_free(spec);
    spec_report_release(&report);
    assert_int_equal(load_deepspeed(ARGUMENTS "fp16: {enabled: true, min_loss_scale: 0}\n", "{}", &spec, &report),
                     STATUS_USAGE);
    expect_line(&report.errors, "'fp16.min_loss_scale' must be a number above 0");
    spec_report_release(&report);
}

/* --set KEY=null leaves out an unknown key of a file, but does not hide a typing error in the override itself. */
static void test_removed_keys(void **state)
{
    (void)state;
    static const char json[] = "{\"log\": 3, \"fp16\": {\"scale\": 1}, \"pipeline\": {\"stages\": 2}}";
    static const char *const sets[] = {"log=null", "fp16.scale=null", "pipeline=null", "logs=null"};
    struct run_spec *spec;
    struct spec_report report = {0};
    const char *yaml = write_file("run.yaml", ARGUMENTS, strlen(ARGUMENTS));
    const char *file = write_file("ds.json", json, sizeof json - 1);
    assert_int_equal(spec_load(yaml, file, sets, 3, &spec, &report), STATUS_OK);
    assert_int_equal(report.notices.count, 0);
    spec_free(spec);
    assert_int_equal(spec_load(yaml, file, sets, 4, &spec, &report), STATUS_USAGE);
    assert_int_equal(report.errors.count, 1);
    expect_line(&report.errors, "--set logs: unknown key 'logs'");
    spec_report_release(&report);
}

/* Each name of another trainer is unknown, and its hint is the row's: a key that ztrain uses, or why there is none. */
static void expect_foreign(const struct spec_foreign_name *row, const char *name)
{
    const struct spec_key *key = row->key ? spec_key_find(row->key) : NULL;
    char text[512], expected[256];
    assert_ptr_equal(spec_foreign_name_find(name), row);
    assert_true(row->key || row->note);
    if (spec_key_find(name) && strcmp(name, "peft") == 0) /* axolotl's section with that name holds something else */
        return;
    assert_null(spec_key_find(name));
    if (row->key && (!key || key->verdict != VERDICT_USED || key->type == KEY_ALIAS))
        fail_msg("the hint for %s names '%s', which is not a key in use", name, row->key);
    if (row->unlisted && row->use == FOREIGN_NOTHING) /* the hint is that of any name */
        return;
    snprintf(text, sizeof text, ARGUMENTS "%s: 1\n", name);
    snprintf(expected, sizeof expected, ":5:1: unknown key '%s'; hint: %s%s", name, key ? "write " : row->note,
             key ? row->key : "");
    struct run_spec *spec;
    struct spec_report report = {0};
    assert_int_equal(load_case(text, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, expected);
    assert_int_equal(report.errors.count, 1);
    spec_report_release(&report);
}

static void test_names_of_other_trainers(void **state)
{
    (void)state;
    int count = 0;
    for (int i = 0; i < spec_num_foreign_names; i++) {
        char names[4096], *rest = names, *name;
        assert_true(strlen(spec_foreign_names[i].names) < sizeof names);
        strcpy(names, spec_foreign_names[i].names);
        for (; (name = strsep(&rest, " ")); count++) expect_foreign(&spec_foreign_names[i], name);
    }
    assert_true(count > 140);
}

/* No spelling of a key or choice that is refused leads to it. */
static void test_hints_lead_to_what_there_is(void **state)
{
    (void)state;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        bool refused = key->verdict == VERDICT_REFUSED || key->verdict == VERDICT_LATER;
        if (!refused || strchr(key->path, '.')) continue;
        char text[512], wrong[128];
        snprintf(wrong, sizeof wrong, "'%s'?", key->path);
        snprintf(text, sizeof text, ARGUMENTS "%sx: 1\n", key->path); /* one letter more */
        struct run_spec *spec;
        struct spec_report report = {0};
        assert_int_equal(load_case(text, NULL, 0, &spec, &report), STATUS_USAGE);
        assert_null(find_line(&report.errors, wrong));
        spec_report_release(&report);
    }
    struct run_spec *spec;
    struct spec_report report = {0};
    static const char *const choices[] = {"optimizer.type=FusedLam", "optimizer.type=OneBitAda"};
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        assert_int_equal(load_case(BASE, &choices[i], 1, &spec, &report), STATUS_USAGE);
        assert_null(find_line(&report.errors, "did you mean 'FusedLamb'"));
        assert_null(find_line(&report.errors, "did you mean 'OneBitAdam'"));
        spec_report_release(&report);
    }
}

/* One configuration of each shape that public tutorials and trainers have; each loads beside the run spec that stands
 * for Trainer's arguments. */
#define AUTO_SIZES                                                                   \
    "\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", " \
    "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", "

static const struct {
    const char *name, *json;
    int stage;
} shapes[] = {
    {"Trainer, stage 2 with offload",
     "{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"initial_scale_power\": 16}, \"bf16\": {\"enabled\": "
     "\"auto\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": "
     "\"auto\", \"weight_decay\": \"auto\"}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": "
     "\"auto\", \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"}}, \"zero_optimization\": {\"stage\": 2, "
     "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}, \"allgather_partitions\": true, "
     "\"allgather_bucket_size\": 2e8, \"reduce_bucket_size\": 2e8}, " AUTO_SIZES "\"steps_per_print\": 2000}",
     2},
    {"LLaMA-Factory, stage 3",
     "{" AUTO_SIZES "\"zero_allow_untested_optimizer\": true, \"bf16\": {\"enabled\": \"auto\"}, "
     "\"zero_optimization\": {\"stage\": 3, \"overlap_comm\": false, \"contiguous_gradients\": true, "
     "\"sub_group_size\": 1e9, \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\", "
     "\"stage3_param_persistence_threshold\": \"auto\", \"stage3_max_live_parameters\": 1e9, "
     "\"stage3_gather_16bit_weights_on_model_save\": true}}",
     3},
    {"axolotl, stage 1 with a compiler",
     "{\"zero_optimization\": {\"stage\": 1, \"overlap_comm\": true}, \"bf16\": {\"enabled\": \"auto\"}, \"fp16\": "
     "{\"enabled\": \"auto\", \"auto_cast\": false}, \"compile\": {\"disable\": false, \"backend\": "
     "\"inductor\"}, " AUTO_SIZES "\"wall_clock_breakdown\": false}",
     1},
    {"Ray Train",
     "{\"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
     "{\"warmup_num_steps\": "
     "100}}, \"bf16\": {\"enabled\": true}, \"grad_accum_dtype\": \"bf16\", \"zero_optimization\": {\"stage\": 3, "
     "\"offload_optimizer\": {\"device\": \"none\"}, \"offload_param\": {\"device\": \"none\"}}, "
     "\"gradient_accumulation_steps\": 1, \"gradient_clipping\": true, \"steps_per_print\": 10}",
     3},
    {"Accelerate, as its launcher writes the file",
     "{\"zero_optimization\": {\"stage\": 3, \"stage3_gather_16bit_weights_on_model_save\": \"auto\", "
     "\"offload_optimizer\": {\"device\": \"none\", \"nvme_path\": null}, \"offload_param\": {\"device\": null}}, "
     "\"fp16\": "
     "{\"enabled\": \"auto\"}, " AUTO_SIZES "\"steps_per_print\": Infinity, \"zero_allow_untested_optimizer\": true}",
     3},
    {"DeepSpeed-Chat, with features switched off",
     "{\"train_batch_size\": 6, \"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"none\"}, "
     "\"stage3_param_persistence_threshold\": 1e4, \"stage3_max_live_parameters\": 3e7, \"memory_efficient_linear\": "
     "false}, \"fp16\": {\"enabled\": true, \"loss_scale_window\": 100}, \"prescale_gradients\": false, "
     "\"hybrid_engine\": "
     "{\"enabled\": false, \"max_out_tokens\": 512}, \"tensorboard\": {\"enabled\": false, \"output_path\": \"logs\"}}",
     2},
    {"a tutorial of DeepSpeed, in Hjson",
     "# for one node\n{\n  zero_optimization: true // stage 1\n  optimizer: {type: \"adam\", params: {lr: 0.00002, "
     "\"betas\": "
     "[0.8, 0.999],}}\n  scheduler: {\"type\": \"WarmupLR\", params: {warmup_min_lr: 0, warmup_max_lr: 2e-5}}\n"
     "  \"fp16\": {enabled: true, loss_scale: 0,}\n  /* printed rarely */ steps_per_print: 2000\n}\n",
     1},
};

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct spec_report report = {0};
        struct run_spec *spec = load_both(ARGUMENTS, shapes[i].json, &report);
        struct string_list lines = auto_lines(spec);
        assert_int_equal(spec->zero.stage, shapes[i].stage);
        assert_true(spec->optimizer.lr == 2e-5);
        assert_int_equal(spec->train_batch_size, 6);
        string_list_release(&lines);
        spec_report_release(&report);
        spec_free(spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_alone),
        cmocka_unit_test(test_auto_from_the_run_spec),
        cmocka_unit_test(test_derived_size_stays_auto),
        cmocka_unit_test(test_learning_rate_of_the_schedule),
        cmocka_unit_test(test_same_values),
        cmocka_unit_test(test_taken_with_a_notice),
        cmocka_unit_test(test_aio_in_the_wrong_section),
        cmocka_unit_test(test_removed_keys),
        cmocka_unit_test(test_null_and_infinity),
        cmocka_unit_test(test_large_steps_per_print),
        cmocka_unit_test(test_clipping_that_neither_file_sets),
        cmocka_unit_test(test_clipping_of_a_resumed_run),
        cmocka_unit_test(test_switches_of_0_and_1),
        cmocka_unit_test(test_newer_keys),
        cmocka_unit_test(test_sections_within_others),
        cmocka_unit_test(test_auto_of_absent_parameters),
        cmocka_unit_test(test_warmup_ratio_fills_auto),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_values_without_meaning),
        cmocka_unit_test(test_names_of_other_trainers),
        cmocka_unit_test(test_hints_lead_to_what_there_is),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
