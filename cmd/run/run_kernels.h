/* SPDX-License-Identifier: Apache-2.0 */
/* run_kernels.h: the kernels that a run computes with, as kernels-GPU.txt in its folder, for each model of rank 0's
 * GPU: a resumed run on another machine must compute with the same. Rank 0 only. */
#pragma once

#include "ckpt/checkpoint.h"
#include "cmd/run/run_folder.h"
#include "gpu/device.h"

/* Gives the device the choices of the checkpoint's run, before it measures; returns their text (owned), or NULL. */
char *run_kernels_take(struct device *device, const struct run_home *home, const struct checkpoint *checkpoint);

/* Then: the text of `taken` (or NULL) and of what the device has chosen too. Owned by the caller, or NULL. */
char *run_kernels_join(struct device *device, const char *taken);

/* Writes the text into the run folder; a failure is a warning. */
void run_kernels_write(const char *folder, const struct device *device, const char *text);
