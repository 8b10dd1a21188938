/* step_samples.h: which samples a step trains on, computed without reading data. */
#pragma once

#include "core/data/token_stream.h"

/* The numbers, from 0, of the samples of global step `step` (from 1), over all ranks and in their order. config: of a
 * training stream; its rank and world have no effect. samples: (batch_size). sources: (batch_size), the number of each
 * sample's source, 0 without a mixture. A sample is what token_stream.h says: with packing, its tokens begin at token
 * sample · seq_length of the set; without it, it is a document; with `fit`, one of its samples. */
void step_samples(const struct token_stream_config *config, int64_t step, int64_t *samples, int *sources);
