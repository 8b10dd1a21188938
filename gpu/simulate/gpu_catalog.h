/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_catalog.h: GPUs by name, for plans of a GPU that need not be here. Peaks come from gpu/peaks.h. */
#pragma once

#include "core/dtype.h"
#include "core/status.h"

/* What a step reaches of the data sheet's rates. */
struct gpu_rates {
    double clock;     /* the multiprocessors' without a power limit, to that of the data sheet's FLOP/s */
    double sustained; /* FLOP/s of large bf16 products within the power limit, to the data sheet's */
    double attention; /* the shares of attention kernels and */
    double memory;    /* of kernels that move bytes, to those of an H100 (op_estimate.c) */
    bool mma_sync;    /* products with the instructions of Ampere (gemm_estimate.c) */
};

struct gpu_model {
    const char *option; /* "h100" */
    const char *name;   /* as its driver names it */
    double memory_gib;  /* that the driver reports */
    int sms;            /* multiprocessors */
    int shared_kib;     /* shared memory of each */
    bool hopper;        /* of compute capability 9.0 */
    double l2_mib;
    double host_link; /* bytes/s between it and the host, each way: PCIe, by the data sheet */
    double link;      /* bytes/s that it sends and receives at the same time: NVLink, else PCIe */
    struct gpu_rates rates;
    double flops[DTYPE_COUNT]; /* FLOP/s of products by the data sheet (fp32: without TF32) */
    double bytes;              /* bytes/s of its memory by the data sheet */
};

/* The GPU of a plan that names none: "h100". */
extern const char gpu_catalog_usual[];

/* Fills *model with the GPU that --device names, e.g. "h100" or, as its driver has it, "NVIDIA H100 80GB HBM3", in any
 * case. STATUS_USAGE lists the names. */
enum status gpu_catalog_find(const char *option, struct gpu_model *model, struct error *err);
