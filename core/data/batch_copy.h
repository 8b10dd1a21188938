/* batch_copy.h: a micro-batch that outlives the next one of its stream. */
#pragma once

#include "core/data/token_stream.h"

/* A copy in one piece of memory, which the caller frees with free(). It has no counts of a mixture's sources. */
struct batch *batch_copy(const struct batch *batch);
