/* device_choices.h: the kernels that ops_prepare() has chosen by measuring, handed from rank to rank, so that those on
 * other machines compute with the same ones (cmd/train/prepare.c). */
#ifndef ZTRAIN_GPU_DEVICE_CHOICES_H
#define ZTRAIN_GPU_DEVICE_CHOICES_H

#include "gpu/device.h"

/* The choices as a text, after ops_prepare(). Owned by the caller; NULL: this device chooses nothing. */
char *device_choices(struct device *device);

/* To be called before ops_prepare(), which takes these choices then, where the device is of the same model with the
 * same libraries. */
void device_take_choices(struct device *device, const char *text);

#endif
