/* SPDX-License-Identifier: Apache-2.0 */
/* test_places.c: which places are left out after failures, and how many ranks the next start has. */
#include "cmd/run/places.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct error error;
static struct places places;

static void begin(int count)
{
    places = (struct places){.gpus = true, .count = count};
    for (int i = 0; i < count; i++) snprintf(places.used[i], PLACE_NAME_MAX, "GPU-%c", 'a' + i);
}

/* "GPU-b(b)": the places that are out; "?" after those that are tried again. */
static const char *out(void)
{
    static char text[512];
    *text = '\0';
    for (int i = 0; i < places.num_out; i++) {
        const struct place_out *place = &places.out[i];
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s(%c%d)%s", used ? " " : "", place->name,
                 place->broken ? 'b' : 't', place->rank, place->tried ? "?" : "");
    }
    return text;
}

static void test_a_broken_device_is_left_out_at_once(void **state)
{
    (void)state;
    begin(4);
    assert_true(places_failed(&places, 1, STATUS_BROKEN, true));
    assert_string_equal(out(), "GPU-b(b1)");
    assert_true(places_failed(&places, 0, STATUS_BROKEN, false));
    assert_string_equal(out(), "GPU-b(b1) GPU-a(b0)");
    assert_false(places_failed(&places, -1, STATUS_BROKEN, false)); /* whose it is is not known */
    assert_false(places_failed(&places, 4, STATUS_BROKEN, false));
    assert_string_equal(out(), "GPU-b(b1) GPU-a(b0)");
}

static void test_two_failures_without_a_checkpoint(void **state)
{
    (void)state;
    begin(4);
    assert_false(places_failed(&places, 3, STATUS_PEER, true));
    assert_string_equal(places.suspect, "GPU-d");
    assert_true(places_failed(&places, 2, STATUS_PEER, false));  /* another one has another start, once */
    assert_false(places_failed(&places, 1, STATUS_PEER, false)); /* and not a third one */
    assert_false(places_failed(&places, 1, STATUS_PEER, true));  /* the same, but there was a checkpoint */
    assert_string_equal(out(), "");
    assert_true(places_failed(&places, 1, STATUS_PEER, false));
    assert_string_equal(out(), "GPU-b(t1)");
    assert_true(places_failed(&places, 2, STATUS_PEER, false));
    assert_string_equal(out(), "GPU-b(t1)");
    assert_true(places_failed(&places, 2, STATUS_PEER, false));
    assert_string_equal(out(), "GPU-b(t1) GPU-c(t2)");
    assert_false(places_failed(&places, -1, STATUS_PEER, false)); /* two unknown ones are not the same one */
    assert_false(places_failed(&places, -1, STATUS_PEER, false));
    assert_string_equal(out(), "GPU-b(t1) GPU-c(t2)");
}

static void test_places_return_after_a_checkpoint(void **state)
{
    (void)state;
    begin(4);
    assert_true(places_failed(&places, 3, STATUS_BROKEN, true));
    assert_false(places_failed(&places, 0, STATUS_PEER, true));
    assert_string_equal(out(), "GPU-d(b3)?");
    assert_true(places_failed(&places, 3, STATUS_PEER, false)); /* once is enough now */
    assert_string_equal(out(), "GPU-d(t3)");
    assert_false(places_failed(&places, 0, STATUS_PEER, true));
    assert_string_equal(out(), "GPU-d(t3)?");
    assert_false(places_failed(&places, 1, STATUS_PEER, true)); /* it has worked */
    assert_string_equal(out(), "");
}

static void test_the_environment(void **state)
{
    (void)state;
    struct places again;
    unsetenv("ZTRAIN_RESTART_PLACES");
    assert_false(places_read(&again));
    begin(3);
    places_failed(&places, 2, STATUS_BROKEN, true);
    places_failed(&places, 1, STATUS_PEER, true);
    places_failed(&places, 0, STATUS_BROKEN, false);
    places_failed(&places, 1, STATUS_PEER, false);
    assert_string_equal(out(), "GPU-c(b2)? GPU-a(b0)");
    assert_true(places.suspect_changed && !strcmp(places.suspect, "GPU-b"));
    places_write(&places);
    assert_true(places_read(&again));
    assert_memory_equal(&again, &places, sizeof places);
    char *visible = places_visible(&again);
    assert_string_equal(visible, "GPU-a,GPU-b,GPU-c");
    free(visible);
    static const char *const damaged[] = {
        "", "gpu same", "gpu same -", "cpu same - +", "cpu same - +0 x", "cpu same - +0 b-=x", "cpu same - +0 b-1"};
    for (size_t i = 0; i < COUNT_OF(damaged); i++) {
        setenv("ZTRAIN_RESTART_PLACES", damaged[i], 1);
        assert_false(places_read(&again));
        assert_true(again.count == 0 && again.num_out == 0);
    }
    unsetenv("ZTRAIN_RESTART_PLACES");
}

static struct run_spec *load(const char *virtual_ranks)
{
    char text[512];
    struct run_spec *spec;
    struct spec_report report = {0};
    snprintf(text, sizeof text,
             "model: {config: a}\ndata: {train: x, seq_length: 8}\ntrain_batch_size: 24\n"
             "optimizer: {params: {lr: 1e-3}}\ntrain: {epochs: 1, device: cpu%s}\n",
             virtual_ranks);
    const enum status status = spec_load_text("run.yaml", text, NULL, 0, &spec, &report);
    for (int i = 0; i < report.errors.count; i++) print_error("%s\n", report.errors.items[i]);
    assert_int_equal(status, STATUS_OK);
    spec_report_release(&report);
    assert_int_equal(spec_resolve_batch(spec, 8, "test", &error), STATUS_OK);
    return spec;
}

static void test_how_many_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *virtual_ranks;
        int lost, least, ranks;
    } cases[] = {{", virtual_ranks: 8", 0, 1, 8},
                 {", virtual_ranks: 8", 1, 1, 4},
                 {", virtual_ranks: 8", 5, 1, 2},
                 {", virtual_ranks: 24", 1, 1, 6},
                 {"", 1, 1, 6},
                 {"", 3, 1, 4},
                 {"", 7, 1, 1},
                 {", virtual_ranks: 8", 1, 5, 0},
                 {"", 4, 5, 0},
                 {"", 1, 7, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec = load(cases[i].virtual_ranks);
        const struct places_wish wish = {.least = cases[i].least, .most = 8, .spec = spec, .step = -1};
        places = (struct places){.count = 0};
        assert_int_equal(places_choose(&places, &wish, &error), STATUS_OK);
        assert_true(places.count == 8 && !places.gpus && !places_visible(&places));
        for (int k = 0; k < cases[i].lost; k++) assert_true(places_failed(&places, k, STATUS_BROKEN, false));
        const enum status status = places_choose(&places, &wish, &error);
        assert_int_equal(places.count, cases[i].ranks);
        assert_int_equal(status, cases[i].ranks ? STATUS_OK : STATUS_DEVICE);
        if (cases[i].ranks)
            assert_int_equal(atoi(places.used[0]), cases[i].lost);
        else
            assert_non_null(strstr(error.text, cases[i].lost == 4
                                                   ? "4 of 8 ranks are left, fewer than --min-gpus 5: rank 0"
                                                   : "7 of 8 ranks are left, and no number of ranks from"));
        spec_free(spec);
    }
}

static void test_gpus_that_are_gone_are_not_the_cpu(void **state)
{
    (void)state;
    struct run_spec *spec = load("");
    const struct places_wish wish = {.least = 1, .most = 2, .spec = spec, .step = -1};
    begin(2);
    assert_int_equal(places_choose(&places, &wish, &error), STATUS_DEVICE);
    assert_string_equal(error.text, "0 of 2 GPUs are left, fewer than --min-gpus 1: 0 GPUs are there");
    setenv("ZTRAIN_SHARE_GPUS", "maybe", 1);
    assert_int_equal(places_choose(&places, &wish, &error), STATUS_USAGE);
    unsetenv("ZTRAIN_SHARE_GPUS");
    spec_free(spec);
}

/* As CUDA_VISIBLE_DEVICES takes them. */
static void test_names_of_gpus(void **state)
{
    (void)state;
    const unsigned char uuid[DEVICE_UUID_BYTES] = {0x5c, 0x1d, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0xff},
                        none[16] = {0};
    char name[PLACE_NAME_MAX];
    place_name_gpu(NULL, 1, uuid, name);
    assert_string_equal(name, "GPU-5c1d0102-0304-0506-0708-090a0b0c0dff");
    place_name_gpu("4,5", 1, uuid, name);
    assert_string_equal(name, "GPU-5c1d0102-0304-0506-0708-090a0b0c0dff");
    place_name_gpu("MIG-a,MIG-b", 1, uuid, name);
    assert_string_equal(name, "MIG-b");
    place_name_gpu("4,5", 1, none, name);
    assert_string_equal(name, "5");
    place_name_gpu(NULL, 1, none, name);
    assert_string_equal(name, "1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_broken_device_is_left_out_at_once),
        cmocka_unit_test(test_two_failures_without_a_checkpoint),
        cmocka_unit_test(test_places_return_after_a_checkpoint),
        cmocka_unit_test(test_the_environment),
        cmocka_unit_test(test_names_of_gpus),
        cmocka_unit_test(test_how_many_ranks),
        cmocka_unit_test(test_gpus_that_are_gone_are_not_the_cpu),
    };
    return cmocka_run_group_tests_name("places", tests, NULL, NULL);
}
