/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/peaks.h"

/* The first row whose words all occur in the name is used, so the more specific name comes first. Sources, NVIDIA's
 * own: the data sheets "H100 Tensor Core GPU" (SXM, PCIe and NVL), "H200 Tensor Core GPU" (SXM and NVL), "GH200 Grace
 * Hopper Superchip" (the 96 GB one), "A100 Tensor Core GPU", "A30", "A10", "A40", "RTX A6000", "L40S", "L40", "L4",
 * "RTX 6000 Ada", "DGX/HGX B200" and "B300" (an eighth of the whole), "GB200 NVL72" and "GB300 NVL72" (a 72nd), the
 * Blackwell architecture brief (B100), and the white papers of GA102, AD102 and GB202 (RTX 3090, 4090, 5090, RTX PRO
 * 6000: the rate with sums in fp32); A10G by its cloud provider. Half of figures with sparsity. */
/* clang-format off */
static const struct gpu_peak table[] = {
    {"GB300", 2500, 1250, 80, 8000}, {"GB200", 2500, 1250, 80, 8000}, {"B300", 2250, 1125, 75, 7700},
    {"B200", 2250, 1125, 75, 7700}, {"B100", 1750, 875, 60, 8000}, {"GH200", 989.4, 494.7, 66.9, 4000},
    {"H200 NVL", 835.5, 417.5, 60, 4800}, {"H200", 989.4, 494.7, 66.9, 4800}, {"H100 PCIe", 756.5, 378, 51.2, 2039},
    {"H100 NVL", 835.5, 417.5, 60, 3938}, {"H100", 989.4, 494.7, 66.9, 3352}, {"H800 PCIe", 756.5, 378, 51.2, 2039},
    {"H800", 989.4, 494.7, 66.9, 3352}, {"H20", 148, 74, 44, 4000}, {"A100 SXM4 80GB", 312, 156, 19.5, 2039},
    {"A100 80GB", 312, 156, 19.5, 1935}, {"A100", 312, 156, 19.5, 1555}, {"A800 SXM4 80GB", 312, 156, 19.5, 2039},
    {"A800 80GB", 312, 156, 19.5, 1935}, {"A800", 312, 156, 19.5, 1555}, {"A40", 149.7, 74.8, 37.4, 696},
    {"A30", 165, 82, 10.3, 933}, {"A10", 125, 62.5, 31.2, 600}, {"A10G", 70, 35, 31.5, 600},
    {"L40S", 362, 183, 91.6, 864}, {"L40", 181, 90.5, 90.5, 864}, {"L20", 119.5, 59.8, 59.8, 864},
    {"L4", 121, 60, 30.3, 300}, {"RTX PRO 6000 Blackwell", 503.8, 251.9, 126, 1792},
    {"RTX 6000 Ada", 364.2, 182.1, 91.1, 960}, {"RTX A6000", 154.8, 77.4, 38.7, 768},
    {"RTX 5090", 209.5, 104.8, 104.8, 1792}, {"RTX 4090", 165.2, 82.6, 82.6, 1008}, {"RTX 3090 Ti", 80, 40, 40, 1008},
    {"RTX 3090", 71, 35.6, 35.6, 936}};
/* clang-format on */

/* Words in a name that mean a slower GPU than the one in the table. */
static const char *const other_products[] = {"MIG", "Laptop", "Max", "D", "v2"};

static bool peak_is_separator(char c)
{
    return c == '\0' || isspace((unsigned char)c) || c == '-';
}

static bool peak_has_word(const char *name, const char *word, size_t length)
{
    for (const char *at = name; *at; at++) {
        bool starts = at == name || peak_is_separator(at[-1]);
        if (starts && strncmp(at, word, length) == 0 && peak_is_separator(at[length])) return true;
    }
    return false;
}

static bool peak_has_all_words(const char *name, const char *words)
{
    while (*words) {
        size_t length = strcspn(words, " ");
        if (!peak_has_word(name, words, length)) return false;
        words += length;
        words += strspn(words, " ");
    }
    return true;
}

const struct gpu_peak *peaks_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(other_products); i++)
        if (peak_has_word(name, other_products[i], strlen(other_products[i]))) return NULL;
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (peak_has_all_words(name, table[i].words)) return &table[i];
    return NULL;
}

double peaks_flops(const char *name, enum dtype dtype, bool tf32)
{
    const struct gpu_peak *peak = peaks_find(name);
    if (!peak) return 0;
    return 1e12 * (dtype != DTYPE_F32 ? peak->half : tf32 ? peak->tf32 : peak->fp32);
}

double peaks_bytes(const char *name)
{
    const struct gpu_peak *peak = peaks_find(name);
    return peak ? 1e9 * peak->memory : 0;
}

double peaks_mfu(double flops_per_token, double tokens_per_s, int ranks, double peak_flops)
{
    ASSERT(ranks > 0);
    return peak_flops > 0 ? flops_per_token * tokens_per_s / (peak_flops * ranks) : -1;
}
