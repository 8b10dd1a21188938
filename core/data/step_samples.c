#include "core/data/step_samples.h"

#include "core/data/permute.h"

static void samples_of_mixture(const struct token_stream_config *config, int64_t step, int64_t *samples, int *sources)
{
    struct mixture_cursor cursor;
    mixture_begin(&cursor, config->mixture);
    mixture_seek(&cursor, (step - 1) * config->batch_size);
    for (int64_t i = 0; i < config->batch_size; i++)
        sources[i] = mixture_next(&cursor, &samples[i]);
}

void step_samples(const struct token_stream_config *config, int64_t step, int64_t *samples, int *sources)
{
    if (config->mixture) {
        samples_of_mixture(config, step, samples, sources);
        return;
    }
    const int64_t steps = token_stream_steps_per_epoch(config), all = token_stream_samples(config);
    const int64_t epoch = 1 + (step - 1) / steps, first = (step - 1) % steps * config->batch_size;
    for (int64_t i = 0; i < config->batch_size; i++) {
        samples[i] = first + i;
        if (config->shuffle)
            samples[i] = (int64_t)permute_index((uint64_t)samples[i], (uint64_t)all, config->seed, (uint64_t)epoch);
        sources[i] = 0;
    }
}
