/* SPDX-License-Identifier: Apache-2.0 */
/* published_speed.c: steps of other trainers, in bf16 without products in FP8: LLM.Q's of 524,288 tokens in sequences
 * of 1024, torchtitan's in sequences of 8192 with FSDP2 and torch.compile (H100 of 500 W), llm-foundry's in sequences
 * of 2048 with FSDP, NeMo's in sequences of 4096 with even loads. Each recomputes what its memory asks for. */
#include "gpu/simulate/published_speed.h"

#define TITAN "torchtitan", "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
#define NEMO "NeMo AutoModel", "github.com/NVIDIA-NeMo/Automodel, docs/performance-summary.md"
#define FOUNDRY "llm-foundry", "github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md"

static const struct published_speed others[] = {
    {"Llama 3.1 8B", 8.03, "h100", 8, 8 * 6667.0, TITAN}, {"Llama 3.1 8B", 8.03, "h100", 128, 128 * 6514.0, TITAN},
    {"MPT 30B", 30.0, "h100", 8, 16022, FOUNDRY},         {"MPT 70B", 64.9, "h100", 64, 66523, FOUNDRY},
    {"MPT 125M", 0.125, "a100", 8, 1142641, FOUNDRY},     {"MPT 760M", 0.76, "a100", 8, 259472, FOUNDRY},
    {"MPT 1B", 1.32, "a100", 8, 164109, FOUNDRY},         {"MPT 3B", 2.65, "a100", 8, 86491, FOUNDRY},
    {"MPT 7B", 6.66, "a100", 8, 37130, FOUNDRY},          {"MPT 13B", 12.9, "a100", 8, 18097, FOUNDRY},
    {"MPT 70B", 64.9, "a100", 64, 26274, FOUNDRY},        {"MPT 7B", 6.66, "a100-40gb", 8, 29436, FOUNDRY},
    {"Qwen3 30B A3B", 3.35, "h100", 8, 8 * 12040.0, NEMO}};
enum { MIXTURES = 1 }; /* the last rows */

/* LLM.Q's; 0: not published. */
enum { QWENS = 5 };
static const struct {
    const char *name;
    double billions;
} qwens[QWENS] = {
    {"Qwen2.5 0.5B", 0.49}, {"Qwen2.5 1.5B", 1.54}, {"Qwen2.5 3B", 3.09}, {"Qwen2.5 7B", 7.62}, {"Qwen2.5 14B", 14.8}};
#define LLMQ(file) "github.com/IST-DASLab/llmq, " file
static const struct {
    const char *gpu;
    int gpus;
    double tokens[QWENS];
    const char *source;
} llmq[] = {{"h100", 1, {149e3, 59100, 30900, 13840, 6330}, LLMQ("benchmarks/H100x1.md")},
            {"h100", 8, {1165e3, 457e3, 239500, 112e3, 48900}, LLMQ("benchmarks/H100x8.md")},
            {"rtx4090", 1, {39840, 14070, 7006, 2777}, LLMQ("benchmarks/4090x1.md")},
            {"rtx4090", 4, {154e3, 52e3, 26e3, 11e3}, LLMQ("README.md")},
            {"rtx5090", 1, {55e3, 17e3, 8600, 3100}, LLMQ("README.md")},
            {"rtx5090", 4, {0, 71200, 32e3, 13900}, LLMQ("README.md")},
            {"l40s", 1, {44e3, 17e3, 8900, 3900}, LLMQ("README.md")},
            {"l40s", 4, {169e3, 65e3, 35e3, 15e3}, LLMQ("README.md")},
            {"rtx-pro6000", 1, {86200, 32430, 17185, 8079}, LLMQ("benchmarks/Pro6000x1.md")},
            {"rtx-pro6000", 8, {673e3, 255e3, 135e3, 62e3}, LLMQ("README.md")}};

/* Another GPU counts as much as 20 times the size, or 400 times the GPUs. */
static double distance(const struct published_speed *speed, const struct gpu_model *gpu, double billions, int gpus)
{
    const double other = 3, of_gpus = 0.5;
    struct gpu_model its;
    struct error err;
    double far = fabs(log(speed->billions / billions)) + of_gpus * fabs(log((double)speed->gpus / gpus));
    if (strcmp(speed->gpu, gpu->option) != 0 && gpu_catalog_find(speed->gpu, &its, &err) == STATUS_OK)
        far += other + fabs(log(its.flops[DTYPE_BF16] / gpu->flops[DTYPE_BF16]));
    return far;
}

struct published_speed published_speed_nearest(const struct gpu_model *gpu, double active, bool mixture, int gpus)
{
    struct published_speed nearest = {.tokens = 0};
    double least = INFINITY;
    for (size_t i = 0; i < COUNT_OF(llmq) * QWENS + COUNT_OF(others); i++) {
        const size_t row = i / QWENS, q = i % QWENS;
        const struct published_speed speed =
            row < COUNT_OF(llmq)
                ? (struct published_speed){qwens[q].name,       qwens[q].billions, llmq[row].gpu,   llmq[row].gpus,
                                           llmq[row].tokens[q], "LLM.Q",           llmq[row].source}
                : others[i - COUNT_OF(llmq) * QWENS];
        const bool same = mixture == (i >= COUNT_OF(llmq) * QWENS + COUNT_OF(others) - MIXTURES);
        const double far = distance(&speed, gpu, 1e-9 * active, gpus) + (same ? 0 : log(2)); /* as twice the size */
        if (speed.tokens > 0 && far < least) {
            nearest = speed;
            least = far;
        }
    }
    return nearest;
}
