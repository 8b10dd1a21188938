/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.h: writes TensorBoard's event files: TFRecords, each of them a protobuf Event and one write().
 *
 *   record   length (8 bytes, little-endian) | masked CRC-32C of the length | Event | masked CRC-32C of the Event
 *
 * Formats: tensorflow/core/util/event.proto, framework/summary.proto, and lib/io/record_writer.cc of TensorFlow. */
#pragma once

#include "core/metrics/metrics.h"

struct tensorboard;

/* Creates `folder` and an event file. step: of the first event; TensorBoard drops later ones of earlier files. */
enum status tensorboard_open(const char *folder, int64_t step, struct tensorboard **out, struct error *err);

/* One event with all the scalars that are finite. STATUS_CHECKPOINT: cannot write. */
enum status tensorboard_scalars(struct tensorboard *t, int64_t step, const struct scalar *scalars, int count,
                                struct error *err);

/* A text for the tab "Text", where it is shown as Markdown. */
enum status tensorboard_text(struct tensorboard *t, const char *tag, const char *text, struct error *err);

void tensorboard_close(struct tensorboard *t); /* NULL is allowed */
RELEASER(tensorboard_drop, struct tensorboard, tensorboard_close)
