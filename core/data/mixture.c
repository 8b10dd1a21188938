#include "core/data/mixture.h"

#include "core/data/permute.h"

bool mixture_has_mask(const struct mixture *mixture)
{
    for (int s = 0; s < mixture->order.count; s++)
        if (token_set_has_mask(mixture->sources[s].set))
            return true;
    return false;
}

void mixture_begin(struct mixture_cursor *cursor, const struct mixture *mixture)
{
    cursor->mixture = mixture;
    interleave_begin(&cursor->at, &mixture->order);
}

int mixture_next(struct mixture_cursor *cursor, int64_t *sample)
{
    const struct mixture *mixture = cursor->mixture;
    const int s = interleave_next(&cursor->at);
    const int64_t j = cursor->at.taken[s] - 1, size = mixture->sizes[s];
    *sample = j % size;
    if (mixture->shuffle) { /* each source by a seed of its own, or sources of one size would have one order */
        const uint64_t seed = mixture->seed + (uint64_t)s * UINT64_C(0x9e3779b97f4a7c15);
        *sample = (int64_t)permute_index((uint64_t)(j % size), (uint64_t)size, seed, (uint64_t)(j / size) + 1);
    }
    return s;
}

void mixture_seek(struct mixture_cursor *cursor, int64_t t)
{
    interleave_seek(&cursor->at, t);
}
