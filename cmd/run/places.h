/* SPDX-License-Identifier: Apache-2.0 */
/* places.h: `--local-gpus N --max-restarts K --min-gpus M`: the places of the ranks, and how many ranks a start has.
 *
 * A place is a GPU, known by its UUID; on the CPU device, and if ranks share a GPU, a rank's process. It is left out if
 * the driver does not list it, or once its rank has failed with exit code 8, or in two starts in a row without a newer
 * checkpoint. A start that has gained a checkpoint and fails later lets all return; one that fails again before a
 * checkpoint is left out at once.
 *
 * The number of ranks is the largest, from M to N, that the rest has places for and that can share the batch: a divisor
 * of train.virtual_ranks. A GPU beyond the N-th stands in for one that is left out. */
#pragma once

#include "core/spec/spec.h"

enum { PLACES_MAX = 64 /* one for each rank that a supervisor starts */, PLACE_NAME_MAX = 80 };

struct place_out {
    char name[PLACE_NAME_MAX];
    int rank;    /* that it had when it failed */
    bool broken; /* with exit code 8; else twice without a newer checkpoint */
    bool tried;  /* it has returned, and no checkpoint has been gained with it yet */
};

struct places {
    bool gpus;                             /* they are GPUs */
    int count;                             /* of this start's ranks */
    char used[PLACES_MAX][PLACE_NAME_MAX]; /* (count) their places */
    char suspect[PLACE_NAME_MAX];          /* whose rank the start before failed by; "": not known */
    bool suspect_changed;                  /* without a newer checkpoint: the start before that failed by another */
    int num_out;
    struct place_out out[PLACES_MAX];
};

/* What the supervisor before this one has left in the environment; false: nothing, this is the first start. */
bool places_read(struct places *places);
void places_write(const struct places *places);

/* Takes note that a start has failed with `code`, because of `rank` (-1: not known). gained: it had a newer checkpoint
 * than the start before, or there was none before. Returns whether the next start may end otherwise though nothing was
 * gained: a place is left out from now on, or, once, another one than before failed. */
bool places_failed(struct places *places, int rank, enum status code, bool gained);

/* What places_choose() goes by. */
struct places_wish {
    int least, most;       /* --min-gpus, --local-gpus */
    struct run_spec *spec; /* its batch sizes change */
    const char *resume;    /* the run folder or checkpoint from which the start continues; NULL: it begins */
    int64_t step;          /* of that checkpoint, for the message; -1: not known, or none */
};

/* Asks for the GPUs, sets `count` and `used`; logs a change of ranks. STATUS_DEVICE: fewer than `least` can be. */
enum status places_choose(struct places *places, const struct places_wish *wish, struct error *err);

/* CUDA_VISIBLE_DEVICES of this start's ranks; NULL: as it is. The caller frees it. */
char *places_visible(const struct places *places);
