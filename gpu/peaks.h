/* SPDX-License-Identifier: Apache-2.0 */
/* peaks.h: the peak rates of GPUs, and the share of them that a run uses (MFU). Peaks are the vendor's data-sheet
 * figures for dense products (without 2:4 sparsity) with sums in fp32, by the name that the driver reports; a name that
 * is not in the table has none. MFU (model FLOPs utilisation) counts the FLOPs that the model needs
 * (transformer_flops_per_token()), not those that were executed. */
#pragma once

#include "core/dtype.h"

struct gpu_peak {
    const char *words; /* separated by spaces; all must occur in the GPU's name */
    double half;       /* TFLOP/s in bf16 and fp16 */
    double tf32, fp32; /* TFLOP/s; fp32 without tensor cores */
    double memory;     /* GB/s */
};

/* By a GPU's name ("NVIDIA H100 80GB HBM3"). NULL: the table has none, as for a part of a GPU (MIG) or a laptop's. */
const struct gpu_peak *peaks_find(const char *name);

/* FLOP/s of a GPU in that dtype, fp32 with or without TF32; 0: unknown. */
double peaks_flops(const char *name, enum dtype dtype, bool tf32);

double peaks_bytes(const char *name); /* bytes/s of its memory; 0: unknown */

/* tokens_per_s: of all ranks together; peak_flops: of one rank's device. -1 if the peak is unknown (0). */
double peaks_mfu(double flops_per_token, double tokens_per_s, int ranks, double peak_flops);
