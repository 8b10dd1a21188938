/* SPDX-License-Identifier: Apache-2.0 */
/* test_peaks.c: the table of GPU peaks, the FLOPs of a token, and MFU against figures computed by hand. */
#include "core/model/model_config.h"
#include "gpu/model/transformer.h"
#include "gpu/peaks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void check_peak(const char *name, double bf16, double tf32, double fp32)
{
    double half = peaks_flops(name, DTYPE_BF16, false), with = peaks_flops(name, DTYPE_F32, true);
    double without = peaks_flops(name, DTYPE_F32, false);
    if (fabs(half - bf16 * 1e12) > 1e6 || fabs(with - tf32 * 1e12) > 1e6 || fabs(without - fp32 * 1e12) > 1e6)
        fail_msg("%s: %g, %g, %g", name, half, with, without);
    assert_true(peaks_flops(name, DTYPE_F16, false) == half);
}

/* Names as drivers print them. */
static void names_find_their_peak(void **state)
{
    (void)state;
    check_peak("NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9);
    check_peak("NVIDIA H100 PCIe", 756.5, 378, 51.2);
    check_peak("NVIDIA H100 NVL", 835.5, 417.5, 60);
    check_peak("NVIDIA H200", 989.4, 494.7, 66.9);
    check_peak("NVIDIA H200 NVL", 835.5, 417.5, 60);
    check_peak("NVIDIA GH200 480GB", 989.4, 494.7, 66.9);
    check_peak("NVIDIA A100-SXM4-80GB", 312, 156, 19.5);
    check_peak("NVIDIA A100-PCIE-40GB", 312, 156, 19.5);
    check_peak("A100-SXM4-40GB", 312, 156, 19.5);
    check_peak("NVIDIA A10", 125, 62.5, 31.2);
    check_peak("NVIDIA A10G", 70, 35, 31.5);
    check_peak("NVIDIA L40S", 362, 183, 91.6);
    check_peak("NVIDIA L40", 181, 90.5, 90.5);
    check_peak("NVIDIA L4", 121, 60, 30.3);
    check_peak("NVIDIA B200", 2250, 1125, 75);
    check_peak("NVIDIA GB200", 2500, 1250, 80);
    check_peak("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6);
    check_peak("NVIDIA GeForce RTX 3090 Ti", 80, 40, 40);
    check_peak("NVIDIA GeForce RTX 3090", 71, 35.6, 35.6);
    check_peak("NVIDIA GeForce RTX 5090", 209.5, 104.8, 104.8);
    check_peak("NVIDIA RTX A6000", 154.8, 77.4, 38.7);
    check_peak("NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1);
    check_peak("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 251.9, 126);
}

static void names_find_their_memory(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double rate; /* GB/s */
    } cases[] = {{"NVIDIA H100 80GB HBM3", 3352},
                 {"NVIDIA H100 PCIe", 2039},
                 {"NVIDIA H200", 4800},
                 {"NVIDIA A100-SXM4-80GB", 2039},
                 {"NVIDIA A100 80GB PCIe", 1935},
                 {"NVIDIA A100-PCIE-40GB", 1555},
                 {"NVIDIA A100-SXM4-40GB", 1555},
                 {"NVIDIA B200", 7700},
                 {"NVIDIA L40S", 864},
                 {"NVIDIA GeForce RTX 3090", 936},
                 {"NVIDIA GeForce RTX 4090", 1008},
                 {"NVIDIA GeForce RTX 5090", 1792},
                 {"NVIDIA RTX A6000", 768},
                 {"NVIDIA RTX 6000 Ada Generation", 960},
                 {"Tesla V100-SXM2-16GB", 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (fabs(peaks_bytes(cases[i].name) - cases[i].rate * 1e9) > 1)
            fail_msg("%s: %g", cases[i].name, peaks_bytes(cases[i].name));
}

static void other_names_have_none(void **state)
{
    static const char *const names[] = {"NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                                        "NVIDIA GeForce RTX 4090 Laptop GPU",
                                        "NVIDIA GeForce RTX 4090 D",
                                        "NVIDIA GeForce RTX 5090 D v2",
                                        "NVIDIA H1000",
                                        "NVIDIA A1000",
                                        "Tesla V100-SXM2-16GB",
                                        "NVIDIA RTX 6000",
                                        "",
                                        "NVIDIA RTX PRO 6000 Blackwell Max-Q"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (peaks_find(names[i])) fail_msg("'%s' has a peak", names[i]);
    assert_true(peaks_flops("Radeon", DTYPE_BF16, false) == 0);
}

/* Of layers that are alike. */
static double flops_of(struct model_desc *desc, int64_t seq_length)
{
    struct layer_desc layers[32];
    for (int64_t i = 0; i < desc->num_layers; i++)
        layers[i] = (struct layer_desc){.head_dim = desc->head_dim,
                                        .num_kv_heads = desc->num_kv_heads,
                                        .intermediate_size = desc->intermediate_size,
                                        .kv_source = i};
    desc->layers = layers;
    return transformer_flops_per_token(desc, NULL, seq_length);
}

/* GPT-2 124M: 12 blocks of 12 · 768² and the head's 50257 · 768 are 123,532,032 parameters in products, so a token
 * costs 6 · 123,532,032 + 6 · 12 · 768 · 1024 = 797,815,296 FLOPs. */
static void mfu_of_gpt2(void **state)
{
    (void)state;
    struct model_desc desc = {.family = FAMILY_GPT2,
                              .mlp = MLP_GELU,
                              .weights_in_out = true,
                              .tied = true,
                              .vocab_size = 50257,
                              .hidden_size = 768,
                              .num_layers = 12,
                              .num_heads = 12,
                              .num_kv_heads = 12,
                              .head_dim = 64,
                              .intermediate_size = 3072,
                              .max_positions = 1024};
    double flops = flops_of(&desc, 1024);
    assert_true(flops == 797815296.0);
    double peak = peaks_flops("NVIDIA H200", DTYPE_BF16, false);
    /* 682,075 tokens a second are 544.17 TFLOP/s, 55 % of one H200; the same on two are half of it */
    assert_true(fabs(peaks_mfu(flops, 682075, 1, peak) - 0.55) < 1e-5);
    assert_true(fabs(peaks_mfu(flops, 682075, 2, peak) - 0.275) < 1e-5);
    assert_true(peaks_mfu(flops, 682075, 1, 0) == -1);
}

/* Llama 3 8B: W of q, k, v 6144 · 4096, o 4096², gate and up 28672 · 4096, down 4096 · 14336, 32 blocks, head
 * 128256 · 4096: 7,504,658,432 parameters in products; at T = 8192 6 · 32 · 4096 · 8192 more: 51,470,401,536. */
static void mfu_of_llama(void **state)
{
    (void)state;
    struct model_desc desc = {.family = FAMILY_LLAMA,
                              .mlp = MLP_SWIGLU,
                              .vocab_size = 128256,
                              .hidden_size = 4096,
                              .num_layers = 32,
                              .num_heads = 32,
                              .num_kv_heads = 8,
                              .head_dim = 128,
                              .intermediate_size = 14336,
                              .max_positions = 8192};
    double flops = flops_of(&desc, 8192);
    assert_true(flops == 6 * 7504658432.0 + 6442450944.0);
    assert_true(flops == 51470401536.0);
    assert_true(fabs(peaks_mfu(flops, 12302.6, 1, 989.4e12) - 0.64) < 1e-5);
}

/* BERT base, 2 labels: 12 blocks of 12 · 768² in products; attention sees all tokens, twice the causal pairs; the
 * pooler's 768² and the head's 2 · 768 count once for the 128 tokens of a sample. */
static void flops_of_bert(void **state)
{
    (void)state;
    struct model_desc desc = {.family = FAMILY_BERT,
                              .mlp = MLP_GELU_ERF,
                              .bidirectional = true,
                              .pooler = true,
                              .num_labels = 2,
                              .vocab_size = 30522,
                              .hidden_size = 768,
                              .num_layers = 12,
                              .num_heads = 12,
                              .num_kv_heads = 12,
                              .head_dim = 64,
                              .intermediate_size = 3072,
                              .max_positions = 512};
    const double once = (768.0 * 768 + 2 * 768) / 128;
    assert_true(flops_of(&desc, 128) == 6 * (84934656.0 + once) + 12 * 12 * 768 * 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_find_their_peak), cmocka_unit_test(names_find_their_memory),
        cmocka_unit_test(other_names_have_none), cmocka_unit_test(mfu_of_gpt2),
        cmocka_unit_test(mfu_of_llama),          cmocka_unit_test(flops_of_bert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
