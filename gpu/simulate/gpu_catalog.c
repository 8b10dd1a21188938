/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/simulate/gpu_catalog.h"

#include "gpu/peaks.h"

#include <strings.h>

/* Multiprocessors, shared memory, L2 and links (PCIe x 16 to the host) are from NVIDIA's data sheets and the white
 * papers of GA100, GA102, GH100, AD102, GB202 and the Blackwell architecture; GPUs without NVLink talk over PCIe.
 * Memory is what CUDA counts (cudaGetDeviceProperties, as PyTorch prints it when it is exhausted).
 *
 * Rates: shares of the data sheet's, fitted together to the tokens/s that LLM.Q has published of Qwen2.5 0.5B, 1.5B and
 * 3B on five GPUs (docs/plan-speed.md); other GPUs have those of their nearest relative, by power and tensor cores.
 *   - H100: 700 of 989 TFLOP/s, the rate of large cublasLt products at 700 W with random values.
 *   - GeForce cards run above the clock of the data sheet, and their tensor cores, at half rate with sums in fp32,
 * reach it within the power limit.
 *   - L40S, RTX PRO 6000: full tensor cores, which 350 and 600 W do not sustain. LLM.Q's authors measured 230 of 362
 *     TFLOP/s on an L40S with a product of 32768 x 32768.
 *   - Attention: fewer tensor FLOPs for each exponential than on Hopper, so kernels come closer to the peak.
 *   - GDDR: a third of an H100's bytes/s for each multiprocessor, so fewer bytes under way fill it. */
#define HOPPER(sustained) 1.082, sustained, 1, 1, false
#define AMPERE(sustained) 1, sustained, 1, 1, true
#define GEFORCE40(sustained) 1.08, sustained, 1.7, 1.15, true
#define GEFORCE50(sustained) 1.15, sustained, 1.7, 1.15, true
#define L40S(sustained) 1, sustained, 1.2, 1.15, true

#define PRO_6000 "NVIDIA RTX PRO 6000 Blackwell Server Edition"
static const struct gpu_model models[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 79.1, 132, 228, true, 50, 64e9, 450e9, .rates = {HOPPER(0.7075)}},
    {"h100-pcie", "NVIDIA H100 PCIe", 79.1, 114, 228, true, 50, 64e9, 64e9, .rates = {HOPPER(0.60)}},
    {"h100-nvl", "NVIDIA H100 NVL", 93.0, 132, 228, true, 50, 64e9, 300e9, .rates = {HOPPER(0.65)}},
    {"gh200", "NVIDIA GH200 480GB", 94.5, 132, 228, true, 50, 450e9, 450e9, .rates = {HOPPER(0.7075)}},
    {"h200", "NVIDIA H200", 139.8, 132, 228, true, 50, 64e9, 450e9, .rates = {HOPPER(0.7075)}},
    {"a100", "NVIDIA A100-SXM4-80GB", 79.1, 108, 164, false, 40, 32e9, 300e9, .rates = {AMPERE(0.82)}},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 39.4, 108, 164, false, 40, 32e9, 300e9, .rates = {AMPERE(0.82)}},
    {"a100-pcie", "NVIDIA A100 80GB PCIe", 79.1, 108, 164, false, 40, 32e9, 32e9, .rates = {AMPERE(0.75)}},
    {"a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 39.4, 108, 164, false, 40, 32e9, 32e9, .rates = {AMPERE(0.75)}},
    {"a10", "NVIDIA A10", 22.0, 72, 100, false, 6, 32e9, 32e9, .rates = {AMPERE(0.75)}},
    {"a40", "NVIDIA A40", 44.4, 84, 100, false, 6, 32e9, 32e9, .rates = {AMPERE(0.75)}},
    {"b200", "NVIDIA B200", 178.3, 148, 228, false, 126, 64e9, 900e9, .rates = {HOPPER(0.70)}},
    {"l4", "NVIDIA L4", 22.0, 58, 100, false, 48, 32e9, 32e9, .rates = {L40S(0.60)}},
    {"l40", "NVIDIA L40", 44.4, 142, 100, false, 96, 32e9, 32e9, .rates = {GEFORCE40(0.95)}},
    {"l40s", "NVIDIA L40S", 44.4, 142, 100, false, 96, 32e9, 32e9, .rates = {L40S(0.56)}},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 23.5, 82, 100, false, 6, 32e9, 32e9, .rates = {GEFORCE40(0.95)}},
    {"rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 23.5, 84, 100, false, 6, 32e9, 32e9, .rates = {GEFORCE40(0.95)}},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 23.5, 128, 100, false, 72, 32e9, 32e9, .rates = {GEFORCE40(0.95)}},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 31.3, 170, 100, false, 96, 64e9, 64e9, .rates = {GEFORCE50(1.1)}},
    {"rtx-a6000", "NVIDIA RTX A6000", 47.4, 84, 100, false, 6, 32e9, 32e9, .rates = {AMPERE(0.75)}},
    {"rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", 47.4, 142, 100, false, 96, 32e9, 32e9, .rates = {L40S(0.56)}},
    {"rtx-pro6000", PRO_6000, 94.9, 188, 100, false, 128, 64e9, 64e9, .rates = {L40S(0.76)}}};

const char gpu_catalog_usual[] = "h100";

enum status gpu_catalog_find(const char *option, struct gpu_model *model, struct error *err)
{
    char names[512] = "";
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        if (strcasecmp(option, models[i].option) == 0 || strcasecmp(option, models[i].name) == 0) {
            *model = models[i];
            model->bytes = peaks_bytes(model->name);
            for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
                model->flops[dtype] = peaks_flops(model->name, (enum dtype)dtype, false);
            return STATUS_OK;
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", models[i].option);
    }
    return error_set(err, STATUS_USAGE, "--device: no GPU '%s' is known; hint: one of %s", option, names);
}
