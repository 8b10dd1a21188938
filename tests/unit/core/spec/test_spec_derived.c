/* SPDX-License-Identifier: Apache-2.0 */
/* test_spec_derived.c: what follows from the run spec's keys: batch sizes, virtual ranks, steps, Muon's learning rates.
 */
#include "tests/unit/fixtures/spec_case.h"

static void test_batch(void **state)
{
    (void)state;
    static const struct {
        int train, micro, accumulation, world; /* 0: not given */
        int expect[3];                         /* or {0}: refused with these words */
        const char *fragment;
    } cases[] = {
        {12, 0, 0, 2, {12, 6, 1}, NULL},
        {0, 4, 0, 2, {8, 4, 1}, NULL},
        {0, 4, 3, 2, {24, 4, 3}, NULL},
        {12, 2, 0, 3, {12, 2, 2}, NULL},
        {12, 0, 2, 3, {12, 2, 2}, NULL},
        {12, 2, 2, 3, {12, 2, 2}, NULL},
        {12,
         0,
         0,
         5,
         {0},
         "12 != 2 * 1 * 5 (world size 5: srun); hint: the nearest values of train_batch_size "
         "that fit are 10 and 15; possible world sizes: 1, 2, 3, 4, 6, 12"},
        {12,
         5,
         0,
         2,
         {0},
         "12 != 5 * 1 * 2 (world size 2: srun); hint: the nearest values of train_batch_size "
         "that fit are 10 and 20"},
        {3,
         5,
         0,
         2,
         {0},
         "train_batch_size 3 is less than one micro batch of 5 on each of 2 ranks (world size 2: srun); hint: the "
         "smallest train_batch_size that fits is 10"},
        {8,
         0,
         0,
         100,
         {0},
         "train_batch_size 8 is less than one sample on each of 100 ranks (world size 100: srun); hint: the smallest "
         "train_batch_size that fits is 100; possible world sizes: 1, 2, 4, 8"},
        {8,
         0,
         2,
         8,
         {0},
         "train_batch_size 8 is less than one sample in each of 2 accumulation steps on each of 8 ranks (world size 8: "
         "srun); hint: the smallest train_batch_size that fits is 16; possible world sizes: 1, 2, 4"},
        {12,
         0,
         5,
         1,
         {0},
         "12 != 2 * 5 * 1 (world size 1: srun); hint: the nearest values of train_batch_size "
         "that fit are 10 and 15"},
        {12,
         2,
         2,
         2,
         {0},
         "12 != 2 * 2 * 2 (world size 2: srun); hint: set train_batch_size to 8, or "
         "gradient_accumulation_steps to 3; possible world sizes: 3"},
        {13, 2, 2, 2, {0}, "13 != 2 * 2 * 2 (world size 2: srun); hint: set train_batch_size to 8, or remove it"},
        {0, 1000000000, 1000000000, 1000000000, {0}, "is more than 1000000000 samples; hint: "},
        {1000000000, 1000000000, 1000000000, 1000000000, {0}, "hint: make the micro batch or the accumulation smaller"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[512];
        size_t used = (size_t)snprintf(text, sizeof text, "model: {config: m}\ndata: {train: a, seq_length: 8}\n");
        const char *const names[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                     "gradient_accumulation_steps"};
        const int given[] = {cases[i].train, cases[i].micro, cases[i].accumulation};
        for (int j = 0; j < 3; j++)
            if (given[j]) used += (size_t)snprintf(text + used, sizeof text - used, "%s: %d\n", names[j], given[j]);
        struct run_spec *spec = load_good(text, NULL, 0);
        struct error err = {0};
        enum status status = spec_resolve_batch(spec, cases[i].world, "srun", &err);
        if (cases[i].fragment) {
            assert_int_equal(status, STATUS_USAGE);
            const char *sentence = "run.yaml:3:1: Check batch related parameters. train_batch_size is not equal to "
                                   "micro_batch_per_gpu * gradient_acc_step * world_size ";
            bool contradicts = strstr(cases[i].fragment, " != "); /* DeepSpeed's sentence */
            assert_non_null(strstr(err.text, contradicts ? sentence : "run.yaml:3:1: "));
            assert_int_equal(strstr(err.text, " 0 * ") || strstr(err.text, " * 0 "), 0);
            assert_non_null(strstr(err.text, "; hint: "));
            if (!strstr(err.text, cases[i].fragment)) fail_msg("%s", err.text);
        } else {
            assert_int_equal(status, STATUS_OK);
            assert_int_equal(spec->train_batch_size, cases[i].expect[0]);
            assert_int_equal(spec->train_micro_batch_size_per_gpu, cases[i].expect[1]);
            assert_int_equal(spec->gradient_accumulation_steps, cases[i].expect[2]);
        }
        spec_free(spec);
    }
}

/* Another world size gives other derived values, and no error about the first ones. */
static void test_batch_twice(void **state)
{
    (void)state;
    struct run_spec *spec = load_good(BASE, NULL, 0);
    struct error err;
    assert_int_equal(spec_resolve_batch(spec, 2, "srun", &err), STATUS_OK);
    assert_int_equal(spec->train_micro_batch_size_per_gpu, 4);
    assert_int_equal(spec_resolve_batch(spec, 4, "srun", &err), STATUS_OK);
    assert_int_equal(spec->train_micro_batch_size_per_gpu, 2);
    spec_free(spec);
}

/* A run of batch 12 (micro batch 3, two ranks, accumulation 2) is resumed at other world sizes. */
static void test_batch_of_a_resumed_run(void **state)
{
    (void)state;
    static const struct {
        int train, micro, accumulation, world;
        int expect[3];        /* train, micro, accumulation */
        const char *fragment; /* of the error */
    } cases[] = {
        /* train_batch_size alone: the micro batch is no larger than it was */
        {12, 0, 0, 2, {12, 3, 2}, NULL},
        {12, 0, 0, 1, {12, 3, 4}, NULL},
        {12, 0, 0, 3, {12, 2, 2}, NULL},
        {12, 0, 0, 4, {12, 3, 1}, NULL},
        {12, 0, 0, 6, {12, 2, 1}, NULL},
        {12, 0, 0, 12, {12, 1, 1}, NULL},
        {12,
         0,
         0,
         5,
         {0},
         "cannot be split over 5 ranks (world size 5: srun); hint: possible world sizes: 1, 2, 3, 4, 6, 12"},
        /* a given micro batch stays */
        {12, 3, 0, 1, {12, 3, 4}, NULL},
        {12, 3, 0, 4, {12, 3, 1}, NULL},
        {0, 3, 2, 1, {12, 3, 4}, NULL},
        {0, 3, 2, 4, {12, 3, 1}, NULL},
        {12, 3, 2, 4, {12, 3, 1}, NULL},
        {12, 2, 0, 2, {12, 2, 3}, NULL},
        {0, 1, 0, 3, {12, 1, 4}, NULL},
        {12,
         3,
         0,
         3,
         {0},
         "into micro batches of 3 on 3 ranks (world size 3: srun); hint: possible world sizes: 1, 2, 4"},
        {0, 3, 2, 6, {0}, "hint: possible world sizes: 1, 2, 4"},
        {12, 5, 0, 1, {0}, "hint: train_micro_batch_size_per_gpu must divide train_batch_size"},
        /* at the old world size values that fit stay; the accumulation is adapted like the others */
        {12, 0, 3, 2, {12, 2, 3}, NULL},
        {12, 0, 2, 1, {12, 3, 4}, NULL},
        {0, 6, 1, 2, {12, 6, 1}, NULL},
        /* spec_compare() refuses another batch */
        {8, 0, 0, 2, {8, 4, 1}, NULL},
    };
    json_t *stored = json_pack("{s:i, s:i, s:i}", "train_batch_size", 12, "train_micro_batch_size_per_gpu", 3,
                               "gradient_accumulation_steps", 2);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[512];
        size_t used = (size_t)snprintf(text, sizeof text, "model: {config: m}\ndata: {train: a, seq_length: 8}\n");
        const char *const names[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                     "gradient_accumulation_steps"};
        const int given[] = {cases[i].train, cases[i].micro, cases[i].accumulation};
        for (int j = 0; j < 3; j++)
            if (given[j]) used += (size_t)snprintf(text + used, sizeof text - used, "%s: %d\n", names[j], given[j]);
        struct run_spec *spec = load_good(text, NULL, 0);
        struct error err = {0};
        enum status status = spec_resolve_batch_resumed(spec, cases[i].world, "srun", stored, 2, &err);
        if (status != (cases[i].fragment ? STATUS_USAGE : STATUS_OK) ||
            (cases[i].fragment && !strstr(err.text, cases[i].fragment)))
            fail_msg("case %zu: %d, %s", i, (int)status, err.text);
        if (status == STATUS_OK && (spec->train_batch_size != cases[i].expect[0] ||
                                    spec->train_micro_batch_size_per_gpu != cases[i].expect[1] ||
                                    spec->gradient_accumulation_steps != cases[i].expect[2]))
            fail_msg("case %zu: %d x %d", i, (int)spec->train_micro_batch_size_per_gpu,
                     (int)spec->gradient_accumulation_steps);
        spec_free(spec);
    }
    json_decref(stored);
}

/* A spec with W virtual ranks. The sizes: those of the spec, 0: not given. */
static struct run_spec *load_virtual(int virtual_ranks, int train, int micro, int accumulation)
{
    char text[512];
    size_t used = (size_t)snprintf(text, sizeof text,
                                   "model: {config: m}\ndata: {train: a, seq_length: 8}\ntrain: {virtual_ranks: %d}\n",
                                   virtual_ranks);
    const char *const names[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
    const int given[] = {train, micro, accumulation};
    for (int i = 0; i < 3; i++)
        if (given[i]) used += (size_t)snprintf(text + used, sizeof text - used, "%s: %d\n", names[i], given[i]);
    return load_good(text, NULL, 0);
}

/* Virtual ranks take the place of the ranks: the sizes are the same on any number of ranks that divides them. */
static void test_batch_of_virtual_ranks(void **state)
{
    (void)state;
    static const struct {
        int virtual_ranks;
        const char *divisors;
    } counts[] = {{1, "1"}, {8, "1, 2, 4, 8"}, {12, "1, 2, 3, 4, 6, 12"}, {24, "1, 2, 3, 4, 6, 8, 12, 24"}};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        const int virtual_ranks = counts[i].virtual_ranks;
        for (int world = 1; world <= 2 * virtual_ranks; world++) {
            struct run_spec *spec = load_virtual(virtual_ranks, 6 * virtual_ranks, 2, 0);
            struct error err = {0};
            char expected[256];
            const enum status status = spec_resolve_batch(spec, world, "srun", &err);
            assert_int_equal(status, virtual_ranks % world ? STATUS_USAGE : STATUS_OK);
            snprintf(expected, sizeof expected,
                     "train.virtual_ranks %d cannot be divided among %d ranks (world size %d: srun); hint: possible "
                     "world sizes: %s",
                     virtual_ranks, world, world, counts[i].divisors);
            if (status != STATUS_OK) {
                assert_string_equal(err.text, expected);
            } else {
                assert_int_equal(spec->train_batch_size, 6 * virtual_ranks);
                assert_int_equal(spec->train_micro_batch_size_per_gpu, 2);
                assert_int_equal(spec->gradient_accumulation_steps, 3);
                assert_int_equal(spec_turns(spec, world), virtual_ranks / world);
                assert_int_equal(spec_micros(spec, world), 3 * virtual_ranks / world);
            }
            spec_free(spec);
        }
    }
}

/* Sizes that follow from virtual ranks, and those that do not fit them. */
static void test_batch_sizes_of_virtual_ranks(void **state)
{
    (void)state;
    static const struct {
        int train, micro, accumulation, world;
        int expect[3];
        const char *fragment;
    } cases[] = {
        {24, 0, 0, 2, {24, 3, 1}, NULL},
        {0, 2, 0, 4, {16, 2, 1}, NULL},
        {0, 2, 5, 1, {80, 2, 5}, NULL},
        {48, 0, 3, 8, {48, 2, 3}, NULL},
        {12, 0, 0, 2, {0}, "12 != 1 * 1 * 8 (world size 8: train.virtual_ranks); hint: the nearest values"},
        {12, 0, 0, 2, {0}, " that fit are 8 and 16; possible values of train.virtual_ranks: 1, 2, 3, 4, 6, 12"},
        {4, 0, 0, 1, {0}, "less than one sample on each of 8 ranks (world size 8: train.virtual_ranks)"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec = load_virtual(8, cases[i].train, cases[i].micro, cases[i].accumulation);
        struct error err = {0};
        const enum status status = spec_resolve_batch(spec, cases[i].world, "srun", &err);
        assert_int_equal(status, cases[i].fragment ? STATUS_USAGE : STATUS_OK);
        if (cases[i].fragment && !strstr(err.text, cases[i].fragment)) fail_msg("case %zu: %s", i, err.text);
        if (status == STATUS_OK) {
            assert_int_equal(spec->train_batch_size, cases[i].expect[0]);
            assert_int_equal(spec->train_micro_batch_size_per_gpu, cases[i].expect[1]);
            assert_int_equal(spec->gradient_accumulation_steps, cases[i].expect[2]);
        }
        spec_free(spec);
    }
}

/* A run of 8 virtual ranks (batch 48, micro batch 3, accumulation 2) is resumed on other ranks and with other keys. */
static void test_virtual_ranks_of_a_resumed_run(void **state)
{
    (void)state;
    static const struct {
        int virtual_ranks, train, micro, world;
        const char *batch, *compare; /* fragments of the errors; NULL: none */
    } cases[] = {
        {8, 48, 3, 8, NULL, NULL},
        {8, 48, 3, 1, NULL, NULL},
        {8, 0, 3, 4, NULL, "'train_batch_size' was 48 in the checkpoint and is 24 now"},
        {8, 48, 3, 3, "cannot be divided among 3 ranks", NULL},
        {8, 48, 2, 8,
         "'train_micro_batch_size_per_gpu' was 3 in the checkpoint and is 2 now: with train.virtual_ranks that would "
         "change the run; hint: set it back",
         NULL},
        {8, 48, 0, 2, "'train_micro_batch_size_per_gpu' was 3 in the checkpoint and is 6 now", NULL},
        {4, 48, 3, 4, NULL, "'train.virtual_ranks' was 8 in the checkpoint and is 4 now"},
        {16, 48, 0, 4, NULL, "'train.virtual_ranks' was 8 in the checkpoint and is 16 now"},
        {0, 48, 3, 8, NULL, "'train.virtual_ranks' was 8 in the checkpoint and is 0 now"},
    };
    struct run_spec *first = load_virtual(8, 48, 3, 0);
    assert_int_equal(spec_resolve_batch(first, 2, "srun", NULL), STATUS_OK);
    json_t *stored = spec_to_json(first);
    spec_free(first);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec = load_virtual(cases[i].virtual_ranks, cases[i].train, cases[i].micro, 0);
        struct spec_report report = {0};
        struct error err = {0};
        const enum status status = spec_resolve_batch_resumed(spec, cases[i].world, "srun", stored, 2, &err);
        if (status != (cases[i].batch ? STATUS_USAGE : STATUS_OK) ||
            (cases[i].batch && !strstr(err.text, cases[i].batch)))
            fail_msg("case %zu: %d, %s", i, (int)status, err.text);
        if (status == STATUS_OK)
            assert_int_equal(spec_compare(spec, stored, true, true, &report),
                             cases[i].compare ? STATUS_USAGE : STATUS_OK);
        if (cases[i].compare)
            expect_line(&report.errors, cases[i].compare);
        else if (status == STATUS_OK)
            assert_int_equal(report.notices.count, 0); /* the same bits: nothing has changed */
        spec_report_release(&report);
        spec_free(spec);
    }
    json_decref(stored);
}

/* A key that has no effect says so; true is in every effective spec. */
static void test_strict_without_virtual_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *sets[2];
        int notices;
    } cases[] = {
        {{"train.virtual_ranks=0", "train.virtual_ranks_strict=false"}, 1},
        {{"train.virtual_ranks=0", "train.virtual_ranks_strict=true"}, 0},
        {{"train.virtual_ranks=2", "train.virtual_ranks_strict=false"}, 0},
    };
    static const char text[] = BASE "optimizer: {params: {lr: 1}}\n";
    const char *path = write_file("run.yaml", text, sizeof text - 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct spec_report report = {0};
        struct run_spec *spec;
        assert_int_equal(spec_load(path, NULL, cases[i].sets, 2, &spec, &report), STATUS_OK);
        assert_int_equal(report.notices.count, cases[i].notices);
        if (cases[i].notices)
            expect_line(&report.notices, "'train.virtual_ranks_strict' has no effect without train.virtual_ranks");
        spec_report_release(&report);
        spec_free(spec);
    }
}

static void test_steps(void **state)
{
    (void)state;
    static const struct {
        const char *train;
        int64_t per_epoch, steps;
    } cases[] = {
        {"", 7, 7},
        {"train: {epochs: 3}\n", 7, 21},
        {"train: {max_steps: 300}\n", 7, 300},
        {"train: {epochs: 3, max_steps: 20}\n", 7, 20},
        {"train: {epochs: 2, max_steps: 20}\n", 7, 14},
        {"train: {epochs: 1e15}\n", INT64_MAX / 2, INT64_MAX},
        {"train: {epochs: 1e15}\n", 1, 1000000000000000},
        {"train: {epochs: 0.5}\n", 7, 4}, /* rounded up, as in Trainer */
        {"train: {epochs: 1.5}\n", 8, 12},
        {"train: {epochs: 1.1}\n", 10, 11}, /* though 1.1 is a little more in binary */
        {"train: {epochs: 1e-9}\n", 7, 1},
        {"train: {epochs: 2.5, max_steps: 3}\n", 4, 3},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, BASE "scheduler: {type: Linear}\n%s", cases[i].train);
        struct run_spec *spec = load_good(text, NULL, 0);
        assert_int_equal(spec_resolve_steps(spec, cases[i].per_epoch), cases[i].steps);
        assert_int_equal(spec->scheduler.total_steps, cases[i].steps);
        spec_free(spec);
    }
    struct run_spec *spec = load_good(BASE "scheduler: {type: Linear, params: {total_steps: 5}}\n", NULL, 0);
    assert_int_equal(spec_resolve_steps(spec, 9), 9);
    assert_int_equal(spec->scheduler.total_steps, 5);
    spec_free(spec);
}

/* The length that the schedule of a resumed run had, where it followed the run's. */
static void test_former_steps(void **state)
{
    (void)state;
    static const struct {
        const char *before, *now;
        int64_t former;
    } cases[] = {
        {"max_steps: 30}\nscheduler: {type: Cosine}", "max_steps: 60}\nscheduler: {type: Cosine}", 30},
        {"epochs: 1.5}\nscheduler: {type: Linear}", "epochs: 3}\nscheduler: {type: Linear}", 12},
        {"epochs: 2}\nscheduler: {type: Linear}", "epochs: 2}\nscheduler: {type: Linear}", 16},
        {"max_steps: 30}\nscheduler: {type: Cosine}",
         "max_steps: 60}\nscheduler: {type: Cosine, params: {total_steps: 30}}", 0},
        {"max_steps: 30}\nscheduler: {type: Cosine, params: {total_steps: 30}}",
         "max_steps: 60}\nscheduler: {type: Cosine}", 0}, /* spec_compare() says it */
        {"max_steps: 30}\nscheduler: {type: Linear}", "max_steps: 60}\nscheduler: {type: Cosine}", 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[2][512];
        snprintf(text[0], sizeof text[0], BASE "train: {%s\n", cases[i].before);
        snprintf(text[1], sizeof text[1], BASE "train: {%s\n", cases[i].now);
        struct run_spec *before = load_good(text[0], NULL, 0), *now = load_good(text[1], NULL, 0);
        json_t *stored = spec_to_json(before);
        assert_int_equal(spec_former_steps(now, 8), 0);
        spec_resolve_resumed(now, stored);
        assert_int_equal(spec_former_steps(now, 8), cases[i].former);
        json_decref(stored);
        spec_free(before);
        spec_free(now);
    }
}

/* Muon's own defaults, and its two learning rates. */
static void test_muon(void **state)
{
    (void)state;
    struct run_spec *spec = load_good(BASE "optimizer: {type: muon, params: {lr: 0.004, muon_lr: 0.02}}\n", NULL, 0);
    const struct optimizer_settings *muon = &spec->optimizer;
    assert_int_equal(muon->type, OPTIMIZER_MUON);
    assert_true(muon->momentum == 0.95 && muon->nesterov && muon->ns_steps == 5 && muon->weight_decay == 0);
    assert_true(muon->beta1 == 0.9 && muon->beta2 == 0.95 && muon->eps == 1e-10 && muon->bias_correction);
    assert_int_equal(muon->adjust_lr_fn, ADJUST_ORIGINAL);
    assert_true(optimizer_base_lr(muon) == 0.004 && optimizer_muon_factor(muon) == 5);
    spec_free(spec);
    static const char *const none[] = {"optimizer={type: Muon, params: {muon_lr: 0.02, adam_lr: 0.01}}"};
    spec = load_good(BASE, none, 1); /* lr would not be used */
    assert_true(optimizer_base_lr(&spec->optimizer) == 0.01 && optimizer_muon_factor(&spec->optimizer) == 2);
    spec_free(spec);
    static const char *const half[] = {"optimizer={type: Muon, params: {muon_lr: 0.02}}"};
    struct spec_report report = {0};
    assert_int_equal(load_case(BASE, half, 1, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, "'optimizer.params.lr' is missing");
    spec_report_release(&report);
    report = (struct spec_report){0};
    assert_int_equal(load_case(BASE "optimizer: {type: Muon, params: {lr: 1e-3, muon_lr: 0.02, ns_method: gram}}\n"
                                    "scheduler: {type: WarmupLR, params: {warmup_max_lr: 0.003}}\n"
                                    "zero_optimization: {save_muon_momentum_buffer_in_memory: true}\n",
                               NULL, 0, &spec, &report),
                     STATUS_OK);
    expect_line(&report.notices, "'optimizer.params.muon_lr' and adam_lr have no effect with this schedule");
    expect_line(&report.notices, "'optimizer.params.ns_method' has no effect here: the iteration is the standard one");
    expect_line(&report.notices, "'zero_optimization.save_muon_momentum_buffer_in_memory' has no effect here");
    assert_true(optimizer_muon_factor(&spec->optimizer) == 1);
    spec_report_release(&report);
    spec_free(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_batch_twice),
        cmocka_unit_test(test_batch_of_a_resumed_run),
        cmocka_unit_test(test_batch_of_virtual_ranks),
        cmocka_unit_test(test_batch_sizes_of_virtual_ranks),
        cmocka_unit_test(test_virtual_ranks_of_a_resumed_run),
        cmocka_unit_test(test_strict_without_virtual_ranks),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_former_steps),
        cmocka_unit_test(test_muon),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
