/* device_choices.h: the kernels that ops_prepare() has chosen by measuring, handed from rank to rank, so that those on
 * other machines compute with the same ones (cmd/train/prepare.c), and kept for a resume (cmd/run/run_kernels.h). */
#pragma once

#include "gpu/device.h"

/* The choices as a text, after ops_prepare(), without those of device_take_choices(). Its first three lines name the
 * format, the GPU model and the library version, before ops_prepare() as well. Owned by the caller; NULL: this device
 * chooses nothing. */
char *device_choices(struct device *device);

/* To be called before ops_prepare(), which takes these choices then, where the device is of the same model with the
 * same libraries. Of two choices for one product the later counts. complete: they are rank 0's, which has chosen for
 * all ranks; where it could not choose, this rank does not, either. */
void device_take_choices(struct device *device, const char *text, bool complete);
