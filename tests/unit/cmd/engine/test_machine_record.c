/* SPDX-License-Identifier: Apache-2.0 */
/* test_machine_record.c: what a checkpoint records about the machine, and the notice if a run continues elsewhere. */
#include "cmd/engine/machine_record.c"

#include "core/version.h"
#include "gpu/open/device_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct device *device;

static int open_device(void **state)
{
    (void)state;
    struct error err;
    return device_open(DEVICE_CPU, 0, 1, &device, &err) == STATUS_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    device_close(device);
    return 0;
}

static void kernels_come_back(void **state)
{
    (void)state;
    struct cpu_kernels kernels;
    json_t *machine = machine_record_to_json(device);
    assert_true(machine_record_kernels(machine, &kernels));
    assert_true(cpu_kernels_equal(&kernels, device_cpu_kernels(device)));
    assert_string_equal(json_string_value(json_object_get(machine, "cpu")), device->name);
    json_decref(machine);

    machine = json_pack("{s:s, s:s, s:b, s:b}", "device", "cpu", "isa", "avx512", "avx512_bf16", 1, "amx_bf16", 0);
    assert_true(machine_record_kernels(machine, &kernels));
    assert_true(kernels.isa == CPU_ISA_AVX512 && kernels.avx512_bf16 && !kernels.amx_bf16);
    assert_int_equal(kernels.bf16, CPU_BF16_DOT);
    json_object_set_new(machine, "bf16_products", json_string("widen"));
    assert_true(machine_record_kernels(machine, &kernels));
    assert_int_equal(kernels.bf16, CPU_BF16_WIDEN);
    json_object_set_new(machine, "isa", json_string("avx1024")); /* from a later ztrain */
    assert_false(machine_record_kernels(machine, &kernels));
    assert_false(machine_record_kernels(NULL, &kernels));
    json_decref(machine);
}

static void differences_are_named(void **state)
{
    static const struct run_spec spec = {.train.virtual_ranks = 0};
    (void)state;
    char text[1024];
    json_t *was = json_pack("{s:s, s:s, s:s, s:b}", "device", "cpu", "cpu", "one", "isa", "avx512", "avx512_bf16", 1);
    json_t *now = json_pack("{s:s, s:s, s:s, s:b}", "device", "cpu", "cpu", "two", "isa", "avx2", "avx512_bf16", 0);
    struct checkpoint checkpoint = {.manifest = json_pack("{s:s}", "ztrain_version", ZTRAIN_VERSION), .machine = was};
    assert_string_equal(machine_record_differences(&checkpoint, was, &spec, text, sizeof text), "");
    assert_string_equal(machine_record_differences(&checkpoint, now, &spec, text, sizeof text),
                        "isa: avx512, now avx2; avx512_bf16: yes, now no");
    json_t *gpu = json_pack("{s:s, s:s}", "device", "cuda", "gpu", "NVIDIA H100");
    machine_record_differences(&checkpoint, gpu, &spec, text, sizeof text);
    assert_non_null(strstr(text, "device: cpu, now cuda; gpu: none, now NVIDIA H100; isa: avx512, now none"));

    json_object_set_new(checkpoint.manifest, "ztrain_version", json_string("0.0.9"));
    assert_string_equal(machine_record_differences(&checkpoint, was, &spec, text, sizeof text),
                        "ztrain: 0.0.9, now " ZTRAIN_VERSION);
    json_object_del(checkpoint.manifest, "ztrain_version");
    json_object_set_new(was, "gemm_fp32", json_string("oneDNN 2.6.3")); /* of an earlier ztrain */
    json_object_set_new(was, "onednn_isa", json_integer(39));
    json_t *builtin = machine_record_to_json(device);
    machine_record_differences(&checkpoint, builtin, &spec, text, sizeof text);
    assert_non_null(strstr(text, "gemm_fp32: oneDNN 2.6.3, now builtin"));
    json_decref(builtin);
    checkpoint.machine = NULL; /* the checkpoint does not record it */
    assert_string_equal(machine_record_differences(&checkpoint, now, &spec, text, sizeof text), "");
    json_decref(checkpoint.manifest);
    json_decref(was);
    json_decref(now);
    json_decref(gpu);
}

/* With virtual ranks: NCCL carries what the ranks add, and a run goes on elsewhere only if it may. */
static void virtual_ranks_are_strict(void **state)
{
    (void)state;
    struct run_spec spec = {.train = {.virtual_ranks = 4, .virtual_ranks_strict = true}}, free_spec = spec,
                    plain = spec;
    char text[MACHINE_DIFFERENCES];
    struct error err;
    json_t *was = json_pack("{s:s, s:s, s:s}", "device", "cuda", "gpu", "NVIDIA H100", "NCCL", "2.27.3");
    json_t *now = json_pack("{s:s, s:s, s:s}", "device", "cuda", "gpu", "NVIDIA H100", "NCCL", "2.28.1");
    struct checkpoint checkpoint = {.manifest = json_pack("{s:s}", "ztrain_version", ZTRAIN_VERSION), .machine = was};
    free_spec.train.virtual_ranks_strict = false;
    plain.train.virtual_ranks = 0;
    assert_string_equal(machine_record_differences(&checkpoint, now, &spec, text, sizeof text), "");
    assert_string_equal(machine_record_differences(&checkpoint, now, &plain, text, sizeof text),
                        "NCCL: 2.27.3, now 2.28.1");
    assert_true(machine_record_is_strict(&spec));
    assert_false(machine_record_is_strict(&free_spec));
    assert_false(machine_record_is_strict(&plain));

    struct device gpu = {
        .kind = DEVICE_CUDA, .multiprocessors_left = 16, .lost_kernel = "the matrix product m 1 n 2 k 3"};
    machine_record_add_choices(now, &gpu, &plain);
    assert_null(json_object_get(now, "multiprocessors_left")); /* it follows from the ranks */
    machine_record_add_choices(now, &gpu, &spec);
    json_object_set_new(now, "gpu", json_string("NVIDIA A100"));
    machine_record_differences(&checkpoint, now, &spec, text, sizeof text);
    assert_string_equal(text, "gpu: NVIDIA H100, now NVIDIA A100; multiprocessors_left: none, now 16; "
                              "lost_kernel: none, now the matrix product m 1 n 2 k 3");
    assert_int_equal(machine_record_refuse(&checkpoint, now, text, &err), STATUS_USAGE);
    assert_non_null(strstr(err.text, "this one began on NVIDIA H100, and this NVIDIA A100 lacks them (gpu: "));
    assert_non_null(strstr(err.text, "; hint: train.virtual_ranks_strict: false continues"));
    json_decref(checkpoint.manifest);
    json_decref(was);
    json_decref(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_come_back),
        cmocka_unit_test(differences_are_named),
        cmocka_unit_test(virtual_ranks_are_strict),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
