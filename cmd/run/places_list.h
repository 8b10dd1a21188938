/* SPDX-License-Identifier: Apache-2.0 */
/* places_list.h: the places that there are on this machine (places.h). */
#pragma once

#include "cmd/run/places.h"

struct place_list {
    bool gpus;
    int count;
    char names[PLACES_MAX][PLACE_NAME_MAX]; /* (count) as CUDA_VISIBLE_DEVICES takes them, or "0", "1", … */
};

/* The GPUs that a new process sees, in its order; on the CPU device, and where ranks share a GPU, `most` processes. The
 * driver is asked in a child, since it may be gone, may hang, and keeps its first answer. If it has no GPU, the places
 * are processes, whose ranks say why, unless the start before ran on GPUs (were_gpus). STATUS_DEVICE: the driver does
 * not answer. */
enum status places_list(enum spec_device device, int most, bool were_gpus, struct place_list *list, struct error *err);
