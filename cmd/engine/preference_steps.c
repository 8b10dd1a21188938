/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/preference_steps.h"

static enum status weigh_micro_batch(void *context, const struct batch *batch, struct error *err)
{
    struct preference_steps *steps = context;
    return preference_steps_add(steps, batch, (int)(batch->micro % steps->turns), err);
}

struct preference_steps *preference_steps_new(const struct preference_settings *settings, struct comm *comm, int turns,
                                              int64_t max_tokens)
{
    struct preference_steps *steps = memory_zeroed(1, sizeof *steps);
    *steps = (struct preference_steps){.head = {.row_losses = memory_zeroed((size_t)max_tokens, sizeof(float)),
                                                .row_scale = memory_zeroed((size_t)max_tokens, sizeof(float)),
                                                .weigh = weigh_micro_batch,
                                                .context = steps},
                                       .settings = settings,
                                       .comm = comm,
                                       .turns = turns,
                                       .losses = memory_zeroed((size_t)turns, sizeof(double)),
                                       .sums = memory_zeroed((size_t)turns * PREFERENCE_SUMS, sizeof(double))};
    return steps;
}

void preference_steps_free(struct preference_steps *steps)
{
    if (!steps) return;
    free(steps->head.row_losses);
    free(steps->head.row_scale);
    free(steps->losses);
    free(steps->sums);
    free(steps);
}

void preference_steps_begin(struct preference_steps *steps)
{
    memset(steps->losses, 0, (size_t)steps->turns * sizeof *steps->losses);
    memset(steps->sums, 0, (size_t)steps->turns * PREFERENCE_SUMS * sizeof *steps->sums);
}

enum status preference_steps_add(struct preference_steps *steps, const struct batch *batch, int turn, struct error *err)
{
    double kl[2] = {0, 0};
    if (!steps->comm) return STATUS_OK;
    if (steps->settings->loss == PREFERENCE_KTO) {
        preference_kl(batch, steps->head.row_losses, kl);
        TRY(comm_sum(steps->comm, kl, COUNT_OF(kl), err));
    }
    preference_weigh(steps->settings, batch, steps->head.row_losses, kl[1] > 0 ? fmax(kl[0] / kl[1], 0) : 0,
                     steps->head.row_scale, &steps->losses[turn], steps->sums + turn * PREFERENCE_SUMS);
    return STATUS_OK;
}
