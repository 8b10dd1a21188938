/* SPDX-License-Identifier: Apache-2.0 */
/* input_upload.h: the micro-batches of a step on their way to the device, while the step before is still running.
 *
 *     host      pack s+1 (one of two pinned buffers)
 *     upload            host -> staged ──┐
 *     compute   step s ──────────────────┴─ staged -> inputs, whose addresses a graph has captured ── step s+1
 *
 * The host waits for the copy of two steps before, the upload until the staged inputs of the step before are taken. */
#pragma once

#include "gpu/arena.h"
#include "gpu/device.h"

struct input_upload;

enum status input_upload_new(struct device *device, struct input_upload **upload, struct error *err);
void input_upload_free(struct input_upload *upload); /* waits for its copies; may be NULL */
RELEASER(input_upload_drop, struct input_upload, input_upload_free)

/* inputs: device memory, where the step reads them. device: the rank's memory; host: device_alloc_host()'s. First dry,
 * then real. */
void input_upload_layout(struct input_upload *u, void *inputs, size_t bytes, struct arena *device, struct arena *host);

/* The host memory that the next input_upload_send() sends: `bytes` to be written. */
void *input_upload_room(struct input_upload *upload);

/* Copies them to the inputs, in the order of the compute stream. */
void input_upload_send(struct input_upload *upload, struct stream *compute);
