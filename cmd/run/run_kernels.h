/* run_kernels.h: the kernels that a run computes with, kept in its folder as kernels-GPU.txt, one file for each model
 * of rank 0's GPU: a text of gpu/device_choices.h. The folder of choices that ZTRAIN_GEMM_CACHE names may belong to one
 * machine, and a resumed run whose rank 0 is on another one must compute with the same kernels. Rank 0 only. */
#pragma once

#include "ckpt/checkpoint.h"
#include "cmd/run/run_home.h"
#include "gpu/device.h"

/* Before anything is measured: gives the device the choices of the run that the checkpoint belongs to, and returns
 * their text (owned by the caller). NULL: there are none, they are of another GPU model or library version, they cannot
 * be read, or ZTRAIN_GEMM_MEASURE=again. */
char *run_kernels_take(struct device *device, const struct run_home *home, const struct checkpoint *checkpoint);

/* After that: the text of `taken` (owned, NULL is allowed) and of what the device has chosen besides. Owned by the
 * caller; NULL: the device chooses nothing. */
char *run_kernels_join(struct device *device, char *taken);

/* Writes the text into the run folder; a failure is a warning. */
void run_kernels_write(const char *folder, const struct device *device, const char *text);
