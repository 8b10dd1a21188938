/* SPDX-License-Identifier: Apache-2.0 */
/* run_kernels.h: the kernels that a run computes with, a text of gpu/device.h, in its folder as kernels-GPU.txt
 * for each model of rank 0's GPU: a resumed run whose rank 0 is on another machine must compute with the same kernels.
 * Rank 0 only. */
#pragma once

#include "ckpt/checkpoint.h"
#include "cmd/run/run_home.h"
#include "gpu/device.h"

/* Before anything is measured: gives the device the choices of the checkpoint's run, and returns their text (owned by
 * the caller). NULL: there are none that it can take, or ZTRAIN_GEMM_MEASURE=again. */
char *run_kernels_take(struct device *device, const struct run_home *home, const struct checkpoint *checkpoint);

/* After that: the text of `taken` (owned, NULL is allowed) and of what the device has also chosen. Owned by the
 * caller; NULL: the device chooses nothing. */
char *run_kernels_join(struct device *device, char *taken);

/* Writes the text into the run folder; a failure is a warning. */
void run_kernels_write(const char *folder, const struct device *device, const char *text);
