/* SPDX-License-Identifier: Apache-2.0 */
/* activation_verbs.h: the two verbs by which the transformer lets activations leave the device between forward and
 * backward; gpu/activation_store.h implements them over host memory.
 *
 *   keep   forward has enqueued its last read of the block's input, which lies in `buffer`. From now on the buffer of
 *          the next block may be written
 *   fetch  work enqueued on `stream` from now on may read the block's input in `buffer`, where forward had it
 *
 * Block l's input lies in buffer l % buffers. In a training micro-batch with tokens keep is called for blocks 0 … L-1,
 * then fetch for L-1 … the first one of backward, each after the work of the block before it was enqueued; in other
 * passes neither. */
#pragma once

#include "gpu/device.h"

struct activation_verbs {
    void *self;
    int buffers; /* at least 2 */
    void (*keep)(void *self, int64_t block, void *buffer, size_t bytes, struct stream *stream);
    void (*fetch)(void *self, int64_t block, void *buffer, size_t bytes, struct stream *stream);
};
