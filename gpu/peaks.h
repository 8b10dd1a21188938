/* peaks.h: what GPUs could compute at most, and how much of it a run uses.
 *
 * Peaks are the vendor's data-sheet figures for dense products (without 2:4 sparsity) with sums in fp32, by the name
 * that the driver gives a GPU. MFU (model FLOPs utilisation) counts what the model needs, not what was computed:
 *
 *     MFU = (6 · matmul parameters + 6 · layers · d_attention · T) · tokens/s ÷ peak
 *
 * the first two factors being transformer_flops_per_token(). A wrong peak makes a wrong MFU, so a name that is not in
 * the table has none. */
#ifndef ZTRAIN_GPU_PEAKS_H
#define ZTRAIN_GPU_PEAKS_H

#include "core/dtype.h"

#include <stdbool.h>

struct gpu_peak {
    const char *words; /* all of them are words of the GPU's name */
    double half;       /* TFLOP/s in bf16 and fp16 */
    double tf32, fp32; /* TFLOP/s; fp32: without tensor cores */
    double memory;     /* GB/s */
};

/* The row of a GPU's name ("NVIDIA H100 80GB HBM3"), or NULL: not in the table, a part of a GPU (MIG), a laptop's. */
const struct gpu_peak *peaks_find(const char *name);

/* FLOP/s of a GPU in that dtype, fp32 with or without TF32; 0: unknown. */
double peaks_flops(const char *name, enum dtype dtype, bool tf32);

/* Bytes per second that its memory can be read or written at; 0: unknown. */
double peaks_bytes(const char *name);

/* Of all ranks together; peak_flops: of one rank's device, 0 if unknown (then the answer is -1). */
double peaks_mfu(double flops_per_token, double tokens_per_s, int ranks, double peak_flops);

#endif
