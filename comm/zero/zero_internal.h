/* zero_internal.h: what the files of ZeRO share. Calls go one way: zero_replicas.c (compares copies) -> zero.c
 * (creation, memory, access to slices) -> zero_verbs.c (the four verbs: gathering and reducing) <- zero_step.c (the end
 * of a step: norm, clipping, update). */
#ifndef ZTRAIN_COMM_ZERO_ZERO_INTERNAL_H
#define ZTRAIN_COMM_ZERO_ZERO_INTERNAL_H

#include "comm/zero/zero.h"
#include "gpu/stopwatch.h"

/* Units share places: at stage 3 for gathered parameters, at stages 2 and 3 for gradients before their reduction. See
 * zero_place(). */
enum { PLACES = 4 };

struct gather_place {
    char *memory;                      /* compute dtype, room for the largest unit that lives here; NULL: unused */
    int unit;                          /* its parameters are here, or being gathered; -1: none */
    int holds;                         /* acquires that were not released yet */
    struct event *gathered, *released; /* on the communication stream; on the compute stream */
};

struct bucket {
    float *memory;         /* NULL: unused */
    int unit;              /* its gradients are or were here, and its gaps are zero; -1: none, all is zero */
    struct event *reduced; /* the reduction has read it */
};

/* The host's copy of a step's results. */
struct step_record {
    struct step_state state;
    int64_t bad_index;
};

/* Elements [offset, offset + count) of a unit with the same weight decay. */
struct decay_range {
    int64_t offset, count;
    bool decays;
};

struct zero {
    struct zero_config config;
    struct device *device;
    struct comm *comm; /* NULL in a plan */
    int rank, world, units;
    struct param_verbs verbs;

    /* whether an array is kept whole; else it holds the own slices, one after the other (the shard) */
    bool params_whole, grads_whole, state_whole[STATE_KIND_COUNT];
    char *params;                   /* compute dtype */
    float *state[STATE_KIND_COUNT]; /* fp32; in fp32 state[STATE_MASTER] is params */
    float *grads;                   /* fp32 */
    struct gather_place places[PLACES];
    struct bucket buckets[PLACES];
    double *reports;                /* device, (world, units + 1): see decide_step; read by peers */
    struct step_state *step;        /* device */
    struct step_schedule *schedule; /* device */
    int64_t *bad_index;             /* device: first non-finite element of grads in a skipped step */

    struct stream *stream;             /* communication */
    struct event *computed;            /* a point of the compute stream that communication waits for */
    struct event *updated;             /* the own slices hold their latest values (compute stream) */
    struct event **reduced, **fetched; /* (units): gradients reduced; updated parameters gathered (stages 1, 2) */
    struct event *drained;             /* all communication so far */

    int micro; /* of the step, from 0; -1 before the first */
    bool last_micro;
    bool *open;                 /* (units): grads() was called, grads_ready() not yet */
    int32_t *bad_rank;          /* (units): the lowest that contributed a non-finite value to the own slice */
    struct decay_range *ranges; /* of the state kept here; those of unit u: first_range[u] up to first_range[u + 1] */
    int *first_range;           /* (units + 1) */

    struct step_record *records; /* (ZERO_STEPS), pinned host memory: step n in records[n % ZERO_STEPS] */
    int32_t *bad_rank_records;   /* (ZERO_STEPS, units): bad_rank of step n from n % ZERO_STEPS · units */
    struct event *done[ZERO_STEPS];
    int64_t begun, ended, collected; /* steps of this process */
    bool positioned;                 /* zero_set_position() was called */
    struct stopwatch *stopwatch;     /* owned; NULL in a plan */

    float *host_slice; /* pinned, as large as the largest slice; NULL until a device with its own memory needs it */
    size_t host_slice_bytes;
    float *written; /* the slice to which host_slice has to be copied; NULL: none */
    size_t written_bytes;
};

static inline bool zero_parallel(const struct zero *zero)
{
    return zero->world > 1;
}

/* Index of element `offset` of `unit` in an array that is kept whole, or in one of own slices (then it must lie in the
 * own slice). */
static inline int64_t zero_index(const struct zero *zero, bool whole, int unit, int64_t offset)
{
    const struct shard_layout *layout = zero->config.layout;
    if (whole)
        return layout->shard_offset[unit] * zero->world + offset;
    return layout->shard_offset[unit] + offset - layout->slice[unit] * zero->rank;
}

/* Offset of the own slice in the unit, in elements. */
static inline int64_t zero_own(const struct zero *zero, int unit)
{
    return zero->config.layout->slice[unit] * zero->rank;
}

static inline char *zero_param(const struct zero *zero, int unit, int64_t offset)
{
    return zero->params + (size_t)zero_index(zero, zero->params_whole, unit, offset) * dtype_size(zero->config.dtype);
}

static inline float *zero_state_at(const struct zero *zero, enum state_kind state, int unit, int64_t offset)
{
    return zero->state[state] + zero_index(zero, zero->state_whole[state], unit, offset);
}

static inline float *zero_grad(const struct zero *zero, int unit, int64_t offset)
{
    return zero->grads + zero_index(zero, zero->grads_whole, unit, offset);
}

/* The place in which `unit` is gathered and its gradients are collected. */
int zero_place(const struct zero *zero, int unit);

/* For a device with its own memory: copies a written host_slice to its place, and allocates host_slice if necessary. */
enum status zero_host_buffer(struct zero *zero, struct error *err);

/* Fills zero->verbs. */
void zero_verbs_init(struct zero *zero);

/* Forgets which parameters are gathered, because they have changed. */
void zero_places_clear(struct zero *zero);

/* Gathers `unit` from the own slice `send` of every rank into `recv` (shard_padded elements), cut into pieces. */
void zero_gather(struct zero *zero, int unit, const void *send, void *recv, enum dtype dtype);

#endif
