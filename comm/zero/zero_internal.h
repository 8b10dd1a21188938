/* SPDX-License-Identifier: Apache-2.0 */
/* zero_internal.h: what the files of ZeRO share. Each calls only files below it:
 *
 *     zero_check.c -> zero_hash.c; zero_snapshot.c
 *     zero.c (creation, memory, slices); zero_step.c (the end of a step) -> zero_muon.c
 *     zero_gather_reduce.c (the verbs)
 *     zero_offload.c, zero_offload_params.c, zero_base.c
 *     zero_update.c, slice_file.c */
#pragma once

#include "comm/zero/slice_file.h"
#include "comm/zero/zero.h"
#include "core/memory.h"
#include "core/round_up.h"

/* Units share slots (zero_slot()): at stage 3 for gathered parameters, at stages 2 and 3 for gradients. */
enum { SLOTS = 4 };

struct gather_slot {
    char *memory;                      /* compute dtype, its largest unit with the frozen one after it; NULL: unused */
    char *staging;                     /* offload_param: room for its own slices; world 1: `memory` */
    int unit;                          /* its parameters are here, or being gathered; -1: none */
    int holds;                         /* acquires that were not released yet */
    struct event *gathered, *released; /* on the communication stream; on the compute stream */
    struct event *staged, *d2h_done;   /* `staging` is filled; is copied to host memory */
};

/* zero_offload_params.c */
struct offloaded_params {
    int resident;             /* nvme: the units before it are in host memory; cpu: all are */
    struct slice_file *disk;  /* owned: the own slices of the others; NULL: there are none */
    int64_t piece;            /* elements of its pieces */
    struct stream *h2d, *d2h; /* copies to and from device memory */
};

struct bucket {
    float *memory;         /* NULL: unused */
    int unit;              /* its gradients are or were here, and its gaps are zero; -1: none, all is zero */
    struct event *reduced; /* the reduction has read it */
};

/* A unit's gradients in config.comm_dtype */
struct comm_buffer {
    void *memory;       /* NULL: unused */
    struct event *sent; /* the reduction has read it */
};

/* A unit whose gradients are complete, but not reduced yet */
struct due_unit {
    int unit;
    const void *send; /* of config.comm_dtype */
};

/* The host's copy of a step's results */
struct step_record {
    struct step_state state;
    int64_t bad_index;      /* the first non-finite element of the gradients on the device, in a skipped step, */
    int64_t host_bad_index; /* of those in host memory */
};

/* Elements [offset, offset + count) of a unit with the same weight decay. */
struct decay_range {
    int64_t offset, count;
    bool decays;
    bool blocks;                      /* its moments are in 8 bits */
    const struct tensor_info *matrix; /* that Muon updates, and that has this part; NULL: another optimizer's */
    int64_t second; /* optimizer Muon, matrix NULL: the element of state[STATE_EXP_AVG_SQ] with its first value */
    int joined;     /* ranges, this one and those after it, that one launch updates; 0: a range before it has it */
};

/* zero_muon.c */
struct zero_muon {
    bool on;                           /* there are matrices that it updates; else the rest is unused */
    int64_t seconds;                   /* elements of state[STATE_EXP_AVG_SQ]: the matrices have no second moments */
    int64_t room;                      /* elements of the largest block (zero_padded) */
    uint16_t *updates;                 /* bf16, room for a block's updates; world > 1: twice, and peers read them */
    struct orthogonalize_args scratch; /* device, room for the largest matrix */
};

enum { OFFLOAD_BUFFERS = 2 }; /* one is copied while the next one is written */

struct h2d_buffer {
    char *memory; /* host, compute dtype, room for a piece; NULL if master weights in host memory go up as they are */
    struct event *h2d_done; /* the copy up has read it */
};

struct d2h_buffer {
    void *memory;           /* device, config.grad_dtype, room for the largest own slice; NULL: unused */
    struct event *filled;   /* it holds the sum of the micro-batches so far */
    struct event *d2h_done; /* the copy down has read it */
};

/* The optimizer's state of the last units, which forward needs last, in host memory. */
struct zero_offload {
    int first_unit;                            /* units: none is offloaded, and the rest is unused */
    int64_t piece;                             /* elements that the host updates at a time, where it has to cut */
    struct slice_file *disk;                   /* owned; nvme: the state is there, and `state` is NULL */
    struct slice_file *grads_disk;             /* the same for `grads` */
    char *state[STATE_KIND_COUNT];             /* host, zero_state_dtype(): own slices of these units in turn */
    char *grads;                               /* config.grad_dtype: sums over the micro-batches so far */
    struct step_state *step;                   /* host: the decision about the step */
    struct h2d_buffer copies[OFFLOAD_BUFFERS]; /* used in turn */
    struct d2h_buffer staging[OFFLOAD_BUFFERS];
    uint64_t next_copy, next_staging;
    struct stream *d2h, *h2d, *host;    /* copies down; copies up; AdamW */
    struct event *decided;              /* *step is in host memory */
    struct event *written;              /* a point of `host` that `h2d` waits for */
    struct event *searched[ZERO_STEPS]; /* host_bad_index of step n is known: n % ZERO_STEPS */
};

/* A slice that the caller of zero_slices() is filling in host_slice */
struct written_slice {
    void *slice; /* NULL: none */
    bool host;   /* it is in host memory, else on the device */
    int64_t count;
    enum dtype dtype;
    struct slice_file *disk; /* or there; NULL: none */
    int unit, part;
    bool sparse; /* zero_is_sparse() */
};

/* Called by the verbs in a checked step: zero_check.c. */
struct zero_observer {
    /* The unit's gradients (zero_padded, of one micro-batch or all) are computed on `stream`. */
    enum status (*gradients)(struct zero *zero, int unit, const float *grads, struct stream *stream, struct error *err);
    /* The own slice of their sum (config.grad_dtype) is complete on the communication stream. */
    enum status (*reduced)(struct zero *zero, int unit, const void *slice, struct error *err);
    /* The unit and those gathered with it are in its slot, once the communication stream is there. */
    enum status (*gathered)(struct zero *zero, int unit, const char *slot, struct error *err);
};

/* A unit as it is kept and gathered. With experts shared by groups of ranks each group has a range of an experts' unit,
 * which is whole for its ranks. */
struct zero_unit {
    int ranks;           /* that share its slices: all, or those of a group */
    int next;            /* of those that are gathered together: the trained ones, then their frozen tensors; 0: none */
    int64_t place;       /* elements before it in their slot, and in their bucket */
    int64_t whole, room; /* elements, and words of a moment, before it in an array that is kept whole */
    struct event *settled; /* offload_param: the own slice in host memory holds its latest values */
    /* of a trained one: */
    struct decay_range *ranges;        /* in zero.ranges, up to those of the next unit */
    struct event *reduced;             /* its gradients are */
    struct event *fetched;             /* its updated parameters are gathered (stages 1, 2) */
    struct event *d2h_done, *h2d_done; /* offloaded: its gradients are in host memory; its parameters on the device */
    bool open;                         /* grads() was called, grads_ready() not yet */
};

struct zero {
    struct zero_config config;
    struct device *device;
    struct comm *comm; /* NULL: a dry layout */
    int rank, world;
    int units;              /* that have optimizer state; */
    int all_units;          /* with the frozen ones after them, unless config.base keeps these */
    struct zero_unit *unit; /* (all_units + 1) */
    int backward_end;       /* the last unit that backward acquires, here or for another one whose base this is */
    struct param_verbs verbs;

    /* Whether an array is kept whole; else it holds the own slices, one after the other. What is offloaded is in
     * `offload` instead. */
    bool params_whole, grads_whole, state_whole[STATE_KIND_COUNT];
    char *params;            /* compute dtype; of frozen units that are bytes, words of its size */
    char *decoded[SLOTS];    /* compute dtype: the values of those bytes; NULL: unused */
    int decoded_unit[SLOTS]; /* whose they are; -1: none's */
    int64_t decoded_numel[SLOTS];
    char *state[STATE_KIND_COUNT]; /* zero_state_dtype(); state[STATE_MASTER] may be params */
    char *grads;                   /* config.grad_dtype */
    struct gather_slot slots[SLOTS];
    struct offloaded_params offloaded_params;
    struct bucket buckets[SLOTS]; /* slots 2 and 3 may share their memory */
    struct comm_buffer comm_buffers[SLOTS];
    struct due_unit due[COMM_GROUP_MAX]; /* in the order in which backward finished them */
    int num_due;
    void *inbox;                    /* see data_op.inbox; NULL: unused */
    int64_t inbox_numel;            /* elements of config.comm_dtype */
    double *reports;                /* device, (world × parts, units + 1): see decide_step; read by peers */
    double *extra;                  /* the same, (world × parts, extra_sums); or NULL */
    double *extra_records;          /* pinned, (ZERO_STEPS) copies of it; or NULL */
    struct step_state *step;        /* device */
    struct step_schedule *schedule; /* device */
    int64_t *bad_index;             /* device: the first non-finite element of grads in a skipped step */

    struct stream *stream;  /* communication */
    struct event *computed; /* a point of the compute stream that communication waits for */
    struct event *updated;  /* the own slices hold their latest values (compute stream) */
    struct event *drained;  /* all communication so far */
    struct event **events;  /* owned: all events */
    int num_events;

    int micro; /* of the step, from 0; -1 before the first */
    bool last_micro;
    int32_t *bad_rank;                    /* (units): the lowest with a non-finite value in the own slice */
    struct decay_range *ranges;           /* of the state kept here */
    struct decay_segment *segments;       /* (ranges): weight decay, and end in the joined ranges */
    struct decay_segment *range_segments; /* device: the same */

    struct step_record *records; /* (ZERO_STEPS), pinned: step n in records[n % ZERO_STEPS] */
    int32_t *bad_rank_records;   /* (ZERO_STEPS, units): row n % ZERO_STEPS is bad_rank of step n */
    struct event *done[ZERO_STEPS];
    int64_t begun, ended, collected; /* steps of this process */
    bool positioned;                 /* zero_set_position() was called */
    struct zero_offload offload;
    struct zero_muon muon;

    struct zero_check *check;             /* owned; NULL: zero_check_enable() was not called */
    const struct zero_observer *observer; /* NULL: none */

    float *host_slice; /* pinned, the largest slice, aligned for the disk in host_slice_memory; NULL until needed */
    bool host_slice_planned; /* it is in the host's arena, else owned */
    size_t host_slice_bytes;
    void *host_slice_memory;
    uint16_t *host_halves;        /* after host_slice: the slice in its own dtype, if that is bf16 */
    bool has_snapshot;            /* zero_snapshot.c */
    float *snapshot;              /* host memory; NULL: none, or not laid out yet */
    struct written_slice written; /* to which host_slice has to be copied */
};

static inline bool zero_parallel(const struct zero *zero)
{
    return zero->world > 1;
}

/* Elements of the unit that this rank has where it is whole, with padding; */
static inline int64_t zero_padded(const struct zero *zero, int unit)
{
    return zero->config.layout->slice[unit] * zero->unit[unit].ranks;
}

/* the first of them. */
static inline int64_t zero_first(const struct zero *zero, int unit)
{
    return zero->rank / zero->unit[unit].ranks * zero_padded(zero, unit);
}

static inline bool zero_offloads_params(const struct zero *zero)
{
    return zero->config.zero.offload_param.device != OFFLOAD_NONE;
}

/* Whether the own slice is all that this rank computes with: there is nothing to gather. */
static inline bool zero_is_resident(const struct zero *zero, int unit)
{
    return zero->world > 1 && zero->unit[unit].ranks == 1 && !zero_offloads_params(zero);
}

/* The ranks that share the unit's slices. */
static inline struct comm_group zero_group(const struct zero *zero, int unit)
{
    const int ranks = zero->unit[unit].ranks;
    return (struct comm_group){ranks == zero->world ? 0 : ranks, 1};
}

/* Index of element `offset` of `unit` in an array that is kept whole, or in one of own slices. */
static inline int64_t zero_index(const struct zero *zero, bool whole, int unit, int64_t offset)
{
    const struct shard_layout *layout = zero->config.layout;
    if (whole) return zero->unit[unit].whole + offset - zero_first(zero, unit);
    return layout->shard_offset[unit] + offset - layout->slice[unit] * zero->rank;
}

/* The same in words of a moment (shard.h); without blocks it is zero_index(). */
static inline int64_t zero_moment_index(const struct zero *zero, bool whole, int unit, int64_t offset)
{
    const struct shard_layout *layout = zero->config.layout;
    const int64_t rank = offset / layout->slice[unit], first = rank * layout->slice[unit];
    const int64_t words = moment_map_words(&layout->map, unit, first, offset);
    const int64_t before = rank - zero->rank / zero->unit[unit].ranks * zero->unit[unit].ranks;
    if (whole) return zero->unit[unit].room + layout->room[unit] * before + words;
    return layout->room_offset[unit] + layout->room[unit] * (rank - zero->rank) + words;
}

/* Offset of the own slice in the unit. */
static inline int64_t zero_own(const struct zero *zero, int unit)
{
    return zero->config.layout->slice[unit] * zero->rank;
}

static inline size_t zero_slice_bytes(const struct zero *zero, int unit, enum dtype dtype)
{
    return (size_t)zero->config.layout->slice[unit] * dtype_size(dtype);
}

static inline char *zero_param(const struct zero *zero, int unit, int64_t offset)
{
    return zero->params + (size_t)zero_index(zero, zero->params_whole, unit, offset) * dtype_size(zero->config.dtype);
}

static inline bool zero_is_offloaded(const struct zero *zero, int unit)
{
    return unit >= zero->offload.first_unit && unit < zero->units;
}

/* The unit with the frozen tensors of `unit` that are kept here; 0: none. */
static inline int zero_frozen(const struct zero *zero, int unit)
{
    return zero->config.base ? 0 : zero->config.table->units[unit].frozen;
}

/* Words of the own slices of the units before `unit`. */
static inline int64_t zero_words_before(const struct zero *zero, enum state_kind state, int unit)
{
    const struct shard_layout *layout = zero->config.layout;
    return state == STATE_MASTER ? layout->shard_offset[unit] : layout->room_offset[unit];
}

/* Elements of the largest own slice of units [first, end). */
static inline int64_t zero_largest_slice(const struct zero *zero, int first, int end)
{
    int64_t largest = 0;
    for (int u = first; u < end; u++) largest = max64(zero->config.layout->slice[u], largest);
    return largest;
}

static inline enum dtype zero_state_dtype(const struct zero *zero, enum state_kind state)
{
    return state == STATE_MASTER ? zero->config.master_dtype : zero->config.moment_dtype;
}

/* A frozen unit has only STATE_MASTER: its parameters. */
static inline enum dtype zero_slice_dtype(const struct zero *zero, enum state_kind state, int unit)
{
    return unit < zero->units ? zero_state_dtype(zero, state) : zero->config.dtype;
}

/* Kinds of state that the optimizer has, with the master weights. */
static inline int zero_states(const struct zero *zero)
{
    return 1 + optimizer_moments(&zero->config.optimizer);
}

/* Whether the master weights are the parameters. */
static inline bool zero_one_copy(const struct zero *zero)
{
    return zero->config.master_dtype == zero->config.dtype;
}

static inline int zero_head(const struct zero *zero)
{
    return tensor_table_head(zero->config.table);
}

/* A block, or its experts. */
static inline bool zero_is_block(const struct zero *zero, int unit)
{
    return unit > 0 && unit < zero->units && unit != zero_head(zero);
}

/* Whether this state of the unit has values for some of its ranges only. */
static inline bool zero_is_sparse(const struct zero *zero, enum state_kind state, int unit)
{
    const bool empty = zero->config.table->units[unit].num_tensors == 0;
    return zero->muon.on && state == STATE_EXP_AVG_SQ && (zero_is_block(zero, unit) || empty);
}

static inline float *zero_second_at(const struct zero *zero, const struct decay_range *range)
{
    ASSERT(zero->muon.on && !range->matrix);
    return (float *)zero->state[STATE_EXP_AVG_SQ] + range->second;
}

/* In host memory if the unit is offloaded; then the element is in the own slice. */
static inline void *zero_state_at(const struct zero *zero, enum state_kind state, int unit, int64_t offset)
{
    const size_t size = dtype_size(zero_state_dtype(zero, state));
    ASSERT(!zero_is_sparse(zero, state, unit) && (unit < zero->units || state == STATE_MASTER));
    if (unit >= zero->units) return zero_param(zero, unit, offset);
    if (zero->muon.on && state == STATE_EXP_AVG_SQ) {
        const struct decay_range *range = zero->unit[unit].ranges;
        return zero_second_at(zero, range) + (offset - range->offset);
    }
    const bool moment = state != STATE_MASTER, offloaded = zero_is_offloaded(zero, unit);
    const bool whole = !offloaded && zero->state_whole[state];
    int64_t index = (moment ? zero_moment_index : zero_index)(zero, whole, unit, offset);
    if (offloaded) index -= zero_words_before(zero, state, zero->offload.first_unit);
    return (offloaded ? zero->offload.state[state] : zero->state[state]) + (size_t)index * size;
}

/* Adds n gradients of a micro-batch to `dst`; those of the first overwrite it. */
static inline void zero_accumulate(const struct zero *zero, int64_t n, void *dst, enum dtype dst_dtype, const void *src,
                                   enum dtype src_dtype, struct stream *stream)
{
    RUN_OP(zero->device->ops, accumulate, stream, .dst_dtype = dst_dtype, .src_dtype = src_dtype, .n = n, .dst = dst,
           .src = src, .scale = 1, .accumulate = zero->micro > 0);
}

/* In config.grad_dtype. */
static inline void *zero_grad(const struct zero *zero, int unit, int64_t offset)
{
    size_t index = (size_t)zero_index(zero, zero->grads_whole, unit, offset);
    return zero->grads + index * dtype_size(zero->config.grad_dtype);
}

static inline bool zero_ordered(const struct zero *zero)
{
    return zero->config.training && zero->config.ordered;
}

static inline bool zero_narrow_comm(const struct zero *zero)
{
    return zero->config.training && (zero_parallel(zero) || zero_ordered(zero)) && zero->config.comm_dtype != DTYPE_F32;
}

/* Where backward computes a unit's gradients. */
enum grads_home {
    GRADS_IN_PLACE,     /* where they are kept */
    GRADS_IN_BUCKET,    /* of one micro-batch */
    GRADS_SUM_IN_BUCKET /* world 1, offloaded fp32: the sum so far comes from the host first */
};

static inline enum grads_home zero_grads_home(const struct zero *zero, int unit)
{
    const bool offloaded = zero_is_offloaded(zero, unit), fp32 = zero->config.grad_dtype == DTYPE_F32;
    if (zero_ordered(zero)) return GRADS_IN_BUCKET;
    if (!zero->config.training || (fp32 && (zero->grads_whole || (!zero_parallel(zero) && !offloaded))))
        return GRADS_IN_PLACE;
    return fp32 && !zero_parallel(zero) ? GRADS_SUM_IN_BUCKET : GRADS_IN_BUCKET;
}

static inline bool zero_uses_bucket(const struct zero *zero, int unit)
{
    return zero_grads_home(zero, unit) != GRADS_IN_PLACE;
}

/* The reduced gradients are this times those of the scaled loss. */
static inline float zero_grad_factor(const struct zero *zero)
{
    return zero_narrow_comm(zero) && zero->config.comm_factor > 0 ? zero->config.comm_factor : 1;
}

/* Whether offloaded master weights are the parameters in host memory; with a disk the two have a copy each. */
static inline bool zero_master_is_params(const struct zero *zero)
{
    return zero_offloads_params(zero) && zero_one_copy(zero) && !zero->offload.disk && !zero->offloaded_params.disk;
}

static inline bool zero_param_on_disk(const struct zero *zero, int unit)
{
    return zero->offloaded_params.disk && unit >= zero->offloaded_params.resident;
}

static inline bool zero_gathers_on_demand(const struct zero *zero)
{
    return zero->config.zero.stage == 3 && (zero_parallel(zero) || zero_offloads_params(zero));
}

/* See zero_gather_reduce.c. */
static inline int zero_slot(const struct zero *zero, int unit)
{
    const int owner = zero->config.table->units[unit].owner;
    if (owner == 0) return 0;
    if (owner == zero_head(zero)) return zero->config.tied ? 1 : 0;
    return 2 + (owner - 1) % 2;
}

/* The unit's place in the slot of gathered parameters. */
static inline char *zero_in_slot(const struct zero *zero, const struct gather_slot *slot, int unit)
{
    if (zero_is_resident(zero, unit)) return zero_param(zero, unit, zero_own(zero, unit));
    return slot->memory + (size_t)zero->unit[unit].place * dtype_size(zero->config.dtype);
}

/* The next of the trained units that are acquired together; -1: none. */
static inline int zero_next(const struct zero *zero, int unit)
{
    return unit_next(zero->config.table, unit);
}

/* The next of those that are gathered together: these, then their frozen tensors; -1: none. */
static inline int zero_next_gathered(const struct zero *zero, int unit)
{
    return zero->unit[unit].next ? zero->unit[unit].next : -1;
}

/* Whether the trained units acquired with two others lie at the same places. */
static inline bool zero_alike(const struct zero *zero, int a, int b)
{
    while (tensor_units_alike(zero->config.table, a, b) && zero->unit[a].place == zero->unit[b].place) {
        a = zero_next(zero, a);
        b = zero_next(zero, b);
        if (a < 0 || b < 0) return a == b;
    }
    return false;
}

/* Creates the events of a list that ends with NULL. zero_free() frees them. */
static inline enum status zero_new_events(struct zero *zero, struct event **const *list, struct error *err)
{
    for (; *list; list++) {
        TRY(event_new(zero->device, *list, err));
        zero->events = memory_grow(zero->events, (size_t)zero->num_events, sizeof *zero->events);
        zero->events[zero->num_events++] = **list;
    }
    return STATUS_OK;
}
#define ZERO_NEW_EVENTS(zero, err, ...) TRY(zero_new_events(zero, (struct event * *const[]){__VA_ARGS__, NULL}, err))

/* The communication stream waits for what `compute` has done so far, and the other way round. */
static inline void zero_follow_compute(const struct zero *zero, struct stream *compute)
{
    event_record(zero->computed, compute);
    stream_wait(zero->stream, zero->computed);
}

static inline void zero_follow_comm(const struct zero *zero, struct stream *compute)
{
    event_record(zero->drained, zero->stream);
    stream_wait(compute, zero->drained);
}

/* Parameters from master weights. */
static inline void zero_cast(const struct zero *zero, const struct op_table *ops, int64_t count, const void *master,
                             void *param, struct stream *stream)
{
    RUN_OP(ops, cast, stream, .dst_dtype = zero->config.dtype, .src_dtype = zero->config.master_dtype, .n = count,
           .dst = param, .src = master);
}

/* The first failure of a disk. */
enum status zero_disk_status(const struct zero *zero, struct error *err);

/* Copies a written host_slice to its place, and allocates host_slice if necessary. */
enum status zero_host_buffer(struct zero *zero, struct error *err);

/* Continues *hash over memory of the device or the host. Waits for copies. */
enum status zero_hash(struct zero *zero, const void *memory, bool in_host, size_t bytes, uint64_t *hash,
                      struct error *err);

/* The parameters in the compute dtype, and the kinds of state */
enum { ARRAY_PARAMS, ARRAY_STATE, ARRAY_COUNT = ARRAY_STATE + STATE_KIND_COUNT };

const char *zero_array_name(int array);
char *zero_array_at(const struct zero *zero, int array, int unit, int64_t offset);

/* Elements [first, end) of a unit that the rank keeps in an array; none: on a disk, or another array's. */
struct zero_kept {
    int64_t first, end;
    bool in_host;
    enum dtype dtype;
};
struct zero_kept zero_kept_of(const struct zero *zero, int array, int unit);

/* Continues *hash over elements that are kept; in a sparse unit over those that it has. */
enum status zero_hash_array(struct zero *zero, int array, int unit, int64_t offset, int64_t count, uint64_t *hash,
                            struct error *err);

/* Whether the hashes (world) are equal, those of each group of `ranks` neighbours. If not, fills difference->other (a
 * rank with the most frequent one; in a tie that of the lowest ranks), majority, and rank (the lowest with another
 * hash). */
bool zero_same_hashes(const uint64_t *hashes, int world, int ranks, struct replica_difference *difference);

/* Whether products write the gradients of a block's matrices, of each micro-batch, where they are reduced from. */
static inline bool zero_sends_matrices(const struct zero *zero, int unit)
{
    const struct zero_config *config = &zero->config;
    return config->training && zero_parallel(zero) && !zero_ordered(zero) && !zero->grads_whole &&
           config->comm_dtype == DTYPE_BF16 && config->dtype == DTYPE_BF16 && zero_grad_factor(zero) == 1 &&
           zero_is_block(zero, unit);
}

/* Whether products write them in bf16: there, or with world 1, added to the accumulator. The bucket lacks them then. */
static inline bool zero_gives_matrix_sums(const struct zero *zero, int unit)
{
    const struct zero_config *config = &zero->config;
    const bool accumulates = config->training && !zero_parallel(zero) && zero->offload.first_unit == zero->units &&
                             config->grad_dtype == DTYPE_BF16 && config->dtype == DTYPE_BF16;
    return (accumulates && zero_is_block(zero, unit)) || zero_sends_matrices(zero, unit);
}

/* The unit's flat range in bf16, which has its matrices' gradients; NULL: the bucket has them. */
static inline void *zero_matrix_sums(struct zero *zero, int unit)
{
    const size_t place = (size_t)zero->unit[unit].place * dtype_size(DTYPE_BF16);
    if (zero_sends_matrices(zero, unit)) return (char *)zero->comm_buffers[zero_slot(zero, unit)].memory + place;
    return zero_gives_matrix_sums(zero, unit) ? zero_grad(zero, unit, zero_first(zero, unit)) : NULL;
}

/* Whether a product wrote the tensor's gradient there. */
static inline bool zero_in_matrix_sums(const struct zero *zero, const struct tensor_info *tensor)
{
    return tensor_is_matrix(tensor) && zero_gives_matrix_sums(zero, tensor->unit);
}

/* Whether the unit's bucket has something. */
static inline bool zero_fills_bucket(const struct zero *zero, int unit)
{
    const struct unit_info *info = &zero->config.table->units[unit];
    bool fills = !zero_sends_matrices(zero, unit);
    for (int t = 0; t < info->num_tensors; t++)
        fills |= !tensor_is_matrix(&zero->config.table->tensors[info->first_tensor + t]);
    return fills && zero_uses_bucket(zero, unit);
}

/* Takes the memory of decoded units; zeroes it. */
void zero_base_layout(struct zero *zero, struct arena *local);
void zero_base_clear(struct zero *zero, struct stream *compute);

/* The slot of decoded units that it belongs to. */
static inline int zero_base_slot(const struct zero *zero, int unit)
{
    const int slot = zero_slot(zero, unit);
    return slot == 3 ? 2 : slot;
}

/* The values of the unit's frozen tensors, which are at `bytes`, for work on `compute`: decoded, if they are stored.
 * The caller sets decoded_unit[] after it has those of all units that are acquired together. */
const void *zero_base_decode(struct zero *zero, int unit, const char *bytes, struct stream *compute);

/* Which elements of its unit a tensor has; of bytes, words. */
struct zero_words {
    int64_t first, count;
};
struct zero_words zero_tensor_words(const struct zero *zero, const struct tensor_info *tensor);

enum status zero_offload_params_init(struct zero *zero, struct error *err);
void zero_offload_params_release(struct zero *zero);

/* nvme: starts to read the own slice of `unit` (-1: none), which will be gathered before it is updated, unless it is in
 * its slot. */
void zero_read_ahead(struct zero *zero, int unit);

/* Enqueues the copy of the own slice (`together`: of all units that are gathered with it, in turn) to its slot's
 * staging, which is returned; `stream` waits for it. */
void *zero_param_h2d(struct zero *zero, int unit, bool together, struct stream *stream);

/* After an update on the device: offloaded parameters go down. */
void zero_param_end_update(struct zero *zero, int unit, struct stream *compute);

void zero_master_d2h(struct zero *zero, int unit, struct stream *compute);

/* Forgets which units are gathered. */
void zero_slots_clear(struct zero *zero);

/* Fills `joined` of all ranges, and z->segments. */
void zero_join_ranges(struct zero *zero);
float zero_weight_decay(const struct zero *zero, const struct decay_range *range);

/* Runs the optimizer's op of `ops`; blocks: m and v are struct moment_block. args: n, weight decay, segments, addresses
 * (NULL: no such state; param NULL: it is the master weights); dtypes and settings are filled here. */
void zero_update(const struct zero *zero, const struct op_table *ops, bool blocks, struct adam_args args,
                 struct stream *stream);

/* On the device, for `range` of z->ranges and all that are joined to it. args: addresses of its first element. */
void zero_update_joined(const struct zero *zero, const struct decay_range *range, struct adam_args args,
                        struct stream *stream);

/* The first offloaded unit; those from it on have at least the fraction `ratio` of the state. */
int zero_offload_first(const struct zero_config *config);

/* After an error zero_offload_close() frees what exists. */
enum status zero_offload_open(struct zero *zero, struct error *err);
void zero_offload_close(struct zero *zero);
/* received: device memory that reductions write. */
void zero_offload_layout(struct zero *zero, struct arena *local, struct arena *received, struct arena *host);

/* World 1, after the first micro-batch: fills the unit's place in the bucket with the sum so far, for work on `stream`.
 */
void zero_offload_fill_bucket(struct zero *zero, int unit, struct bucket *bucket, struct stream *stream);

/* Where `stream` writes the unit's gradients next; z->micro > 0: adds them to the values there. */
struct d2h_buffer *zero_offload_staging(struct zero *zero, int unit, struct stream *stream);

/* Copies the unit's own slice of the gradients down, after `ready`; then records `free` (may be NULL). At stages 2 and
 * 3 the last micro-batch's sum of squares goes into the report, followed by z->unit[unit].reduced. */
void zero_offload_d2h(struct zero *zero, int unit, const void *grads, struct event *ready, struct event *free);

/* After decide_step: the host learns the decision, and searches the gradients of a skipped step. */
void zero_offload_begin_update(struct zero *zero, struct stream *compute);

/* Updates an offloaded unit on the host and copies its parameters up (h2d_done). cast_only: only the parameters. */
void zero_offload_update(struct zero *zero, int unit, bool cast_only);

void zero_offload_sync(struct zero *zero);

void zero_offload_read_ahead(struct zero *zero);

void zero_muon_layout(struct zero *zero, struct arena *local, struct arena *shared);

/* Updates the matrices of a block; to be called for all blocks in turn. */
void zero_muon_update(struct zero *zero, int unit, struct stream *compute);

/* Copies a sparse unit's second moments in [first, first + count) to `values`, or back; elements without one stay. */
void zero_muon_copy_seconds(struct zero *zero, int unit, int64_t first, int64_t count, float *values, bool back,
                            struct stream *stream);

/* Stage 0: gathers a sparse unit's second moments. */
void zero_muon_gather_seconds(struct zero *zero, int unit);

/* Elements of `extra`. */
static inline int64_t zero_extra_count(const struct zero *zero)
{
    return zero->config.layout->parts * zero->config.extra_sums * (int64_t)zero->world;
}

/* This rank's reports, of canonical slice `part`: (units + 1). */
static inline double *zero_report(const struct zero *zero, int part)
{
    return zero->reports + ((int64_t)zero->rank * zero->config.layout->parts + part) * (zero->units + 1);
}

/* The sum of squares of a canonical slice of `grads`, the own slice of the unit's gradients, for its report. */
static inline struct sumsq_args zero_part_squares(const struct zero *zero, int unit, int part, const void *grads)
{
    const int64_t n = shard_part(zero->config.layout, unit);
    return (struct sumsq_args){.dtype = zero->config.grad_dtype,
                               .n = n,
                               .x = (const char *)grads + (size_t)(part * n) * dtype_size(zero->config.grad_dtype),
                               .out = &zero_report(zero, part)[unit]};
}

/* Sums a unit's bf16 values (zero_padded) over the ranks; `recv`, the own slice, may lie in `send`. */
void zero_sum_halves(struct zero *zero, int unit, const void *send, void *recv);

/* Gathers the ranks' own slices `send` of a unit into `recv` (zero_padded), in pieces. */
void zero_gather(struct zero *zero, enum comm_purpose purpose, int unit, const void *send, void *recv,
                 enum dtype dtype);

/* Stage 0: gathers the ranks' slices of a kind of state. */
void zero_gather_state(struct zero *zero, enum state_kind state, int unit);
