/* SPDX-License-Identifier: Apache-2.0 */
/* zero_check.c: see zero_check.h. While a pass runs, z->observer has the verbs call the functions below. */
#include "comm/zero/zero_check.h"

#include "comm/zero/zero_internal.h"

struct zero_check {
    int pass;
    int64_t step;
    bool noted, flipped;
    int64_t bytes;          /* hashed since the note, of parameters and state */
    double seconds;         /* for which they were hashed */
    uint64_t *state[2];     /* (ARRAY_COUNT, tensors): before the step; before its update */
    uint64_t *gradients[2]; /* (tensors): computed here */
    uint64_t *reduced[2];   /* (units): own slices */
    uint64_t *gathered;     /* (units) */
    uint64_t *all;          /* (world): scratch */
    uint64_t memory[];
};

struct finding {
    int32_t kind, array, unit, tensor; /* array of FINDING_STATE; tensor -1: none */
};

void zero_check_enable(struct zero *z)
{
    const size_t units = (size_t)z->units, tensors = (size_t)z->config.table->num_tensors;
    const size_t words = 2 * (ARRAY_COUNT + 1) * tensors + 3 * units + (size_t)z->world;
    struct zero_check *c = memory_zeroed(1, sizeof *c + words * sizeof *c->memory);
    uint64_t *next = c->memory;
    for (int pass = 0; pass < 2; pass++) {
        c->state[pass] = next;
        c->gradients[pass] = next += ARRAY_COUNT * tensors;
        c->reduced[pass] = next += tensors;
        next += units;
    }
    c->gathered = next;
    c->all = next + units;
    ASSERT(!z->check);
    z->check = c;
}

/* ---- planted flips ------------------------------------------------------- */

/* Test builds: ZTRAIN_FLIP=WHAT:RANK:STEP flips a bit of this rank in the first pass of a checked step. WHAT:
 * gradients, parameters, or a state by its name. */
static void check_flip(struct zero *z, const char *what, char *memory, bool in_host)
{
#ifdef ZTRAIN_FAULTS
    struct zero_check *c = z->check;
    const char *fault = getenv("ZTRAIN_FLIP");
    char wanted[16];
    unsigned char byte;
    long long step;
    int rank;
    if (c->flipped || !fault || sscanf(fault, "%15[a-z_]:%d:%lld", wanted, &rank, &step) != 3 ||
        strcmp(wanted, what) != 0 || rank != z->rank || step != c->step)
        return;
    c->flipped = true;
    if (in_host || z->device->kind == DEVICE_CPU) {
        *memory ^= 4;
        return;
    }
    stream_copy(z->stream, &byte, memory, sizeof byte);
    stream_sync(z->stream);
    byte ^= 4;
    stream_copy(z->stream, memory, &byte, sizeof byte);
    stream_sync(z->stream);
#else
    (void)z, (void)what, (void)memory, (void)in_host;
#endif
}

/* ---- parameters and state ------------------------------------------------ */

static enum status check_hash_tensor(struct zero *z, int array, int unit, const struct tensor_info *tensor,
                                     uint64_t *hash, struct error *err)
{
    const struct zero_kept kept = zero_kept_of(z, array, unit);
    const struct zero_words words = zero_tensor_words(z, tensor);
    const int64_t from = max64(words.first, kept.first), count = min64(words.first + words.count, kept.end) - from;
    *hash = 0;
    if (count <= 0) return STATUS_OK;
    z->check->bytes += count * (int64_t)dtype_size(kept.dtype);
    return zero_hash_array(z, array, unit, from, count, hash, err);
}

/* hashes: (ARRAY_COUNT, tensors) */
static enum status check_hash_state(struct zero *z, uint64_t *hashes, struct error *err)
{
    const struct tensor_table *table = z->config.table;
    const double start = seconds_now();
    stream_wait(z->stream, z->updated);
    stream_sync(z->stream);
    zero_offload_sync(z);
    if (zero_offloads_params(z)) stream_sync(z->offloaded_params.d2h);
    for (int array = 0; array < ARRAY_COUNT; array++)
        for (int t = 0; t < table->num_tensors; t++)
            TRY(check_hash_tensor(z, array, table->tensors[t].unit, &table->tensors[t],
                                  &hashes[array * table->num_tensors + t], err));
    z->check->seconds += seconds_now() - start;
    return STATUS_OK;
}

static void check_flip_state(struct zero *z)
{
    const int unit = z->units > 2 ? 1 : 0;
    for (int array = 0; array < ARRAY_COUNT; array++) {
        const struct zero_kept kept = zero_kept_of(z, array, unit);
        if (kept.first < kept.end &&
            (array == ARRAY_PARAMS || !zero_is_sparse(z, (enum state_kind)(array - ARRAY_STATE), unit)))
            check_flip(z, zero_array_name(array), zero_array_at(z, array, unit, kept.first), kept.in_host);
    }
}

enum status zero_check_note(struct zero *z, struct error *err)
{
    z->check->bytes = 0;
    z->check->seconds = 0;
    TRY(check_hash_state(z, z->check->state[0], err));
    z->check->noted = true;
    return STATUS_OK;
}

bool zero_check_is_noted(const struct zero *z)
{
    return z->check->noted;
}

/* ---- a pass -------------------------------------------------------------- */

/* Of one or all micro-batches. */
static enum status check_gradients(struct zero *z, int unit, const float *grads, struct stream *stream,
                                   struct error *err)
{
    const struct unit_info *info = &z->config.table->units[unit];
    const int64_t whole = zero_first(z, unit), whole_end = whole + zero_padded(z, unit);
    const char *sums = zero_matrix_sums(z, unit);
    stream_sync(stream);
    if (z->check->pass == 0) check_flip(z, "gradients", (char *)(uintptr_t)(grads ? (const char *)grads : sums), false);
    for (int t = info->first_tensor; t < info->first_tensor + info->num_tensors; t++) {
        const struct tensor_info *tensor = &z->config.table->tensors[t];
        const bool summed = zero_in_matrix_sums(z, tensor);
        const int64_t first = max64(tensor->offset, whole), end = min64(tensor->offset + tensor->numel, whole_end);
        if (first >= end) continue;
        const size_t size = dtype_size(summed ? DTYPE_BF16 : DTYPE_F32);
        const char *from = (summed ? sums : (const char *)grads) + (size_t)(first - whole) * size;
        TRY(zero_hash(z, from, false, (size_t)(end - first) * size, &z->check->gradients[z->check->pass][t], err));
    }
    return STATUS_OK;
}

static enum status check_reduced(struct zero *z, int unit, const void *slice, struct error *err)
{
    stream_sync(z->stream);
    return zero_hash(z, slice, false, zero_slice_bytes(z, unit, z->config.grad_dtype),
                     &z->check->reduced[z->check->pass][unit], err);
}

/* The first time it is gathered. Experts that ranks share are not compared. */
static enum status check_gathered(struct zero *z, int unit, const char *slot, struct error *err)
{
    const size_t size = dtype_size(z->config.dtype);
    if (!zero_parallel(z) || z->check->gathered[unit]) return STATUS_OK;
    stream_sync(z->stream);
    for (int u = unit; u >= 0; u = zero_next_gathered(z, u))
        if (z->unit[u].ranks == z->world)
            TRY(zero_hash(z, slot + (size_t)z->unit[u].place * size, false, (size_t)zero_padded(z, u) * size,
                          &z->check->gathered[unit], err));
    return STATUS_OK;
}

static const struct zero_observer observer = {check_gradients, check_reduced, check_gathered};

static void check_wait_for_all(struct zero *z, struct stream *compute)
{
    stream_sync(compute);
    stream_sync(z->stream);
    zero_offload_sync(z);
    if (z->offload.first_unit < z->units) stream_sync(z->offload.d2h);
}

enum status zero_check_pass(struct zero *z, int pass, int64_t step, struct stream *compute, struct error *err)
{
    struct zero_check *c = z->check;
    ASSERT(c->noted && z->begun == z->ended + 1);
    c->pass = pass;
    c->step = step;
    check_wait_for_all(z, compute);
    TRY(comm_status(z->comm, err));
    TRY(comm_barrier(z->comm, err)); /* peers have read this rank's gradients, so these may change */
    zero_rewind_step(z);
    memset(c->gradients[pass], 0, (size_t)z->config.table->num_tensors * sizeof *c->gradients[pass]);
    memset(c->reduced[pass], 0, (size_t)z->units * sizeof *c->reduced[pass]);
    if (pass == 0) {
        memset(c->gathered, 0, (size_t)z->units * sizeof *c->gathered);
        check_flip_state(z);
    }
    z->observer = &observer;
    return STATUS_OK;
}

void zero_check_drop(struct zero *z)
{
    z->observer = NULL;
    z->check->noted = false;
}

/* ---- the result ---------------------------------------------------------- */

/* The first element in which the arrays differ; count: none. */
static int zero_check_difference(uint64_t *const hashes[2], int count)
{
    int i = 0;
    while (i < count && hashes[0][i] == hashes[1][i]) i++;
    return i;
}

static struct finding check_find_alone(const struct zero *z, const double *losses)
{
    const struct zero_check *c = z->check;
    const struct tensor_table *table = z->config.table;
    const int tensors = table->num_tensors, state = zero_check_difference(c->state, ARRAY_COUNT * tensors);
    if (state < ARRAY_COUNT * tensors)
        return (struct finding){FINDING_STATE, state / tensors, table->tensors[state % tensors].unit, state % tensors};
    const int gradient = zero_check_difference(c->gradients, tensors);
    if (gradient < tensors) return (struct finding){FINDING_GRADIENTS, 0, table->tensors[gradient].unit, gradient};
    const size_t turns = (size_t)z->config.layout->parts;
    if (memcmp(losses, losses + turns, turns * sizeof *losses) != 0) return (struct finding){FINDING_LOSS, 0, -1, -1};
    const int unit = zero_check_difference(c->reduced, z->units);
    if (unit < z->units) return (struct finding){FINDING_REDUCED, 0, unit, -1};
    return (struct finding){FINDING_NONE, 0, -1, -1};
}

/* `own` becomes a finding on the ranks that differ from most, or on all if there are no such. *difference: of the first
 * unit that differs, the same on all ranks. */
static enum status check_compare_gathered(struct zero *z, struct finding *own, struct replica_difference *difference,
                                          struct error *err)
{
    struct zero_check *c = z->check;
    for (int u = 0; zero_gathers_on_demand(z) && zero_parallel(z) && u <= zero_head(z); u++) {
        TRY(comm_exchange(z->comm, &c->gathered[u], sizeof c->gathered[u], c->all, err));
        if (zero_same_hashes(c->all, z->world, z->world, difference)) continue;
        const bool split = !difference->majority;
        if ((split || c->all[z->rank] != c->all[difference->other]) && own->kind > FINDING_GATHERED)
            *own = (struct finding){split ? FINDING_SPLIT : FINDING_GATHERED, 0, u, -1};
        return STATUS_OK;
    }
    return STATUS_OK;
}

static void describe_finding(const struct zero *z, const struct finding *finding, struct zero_check_result *result)
{
    const struct tensor_table *table = z->config.table;
    result->unit = finding->unit < 0 ? NULL : &table->units[finding->unit];
    result->tensor = finding->tensor < 0 ? NULL : &table->tensors[finding->tensor];
    const bool gathered = finding->kind == FINDING_GATHERED || finding->kind == FINDING_SPLIT;
    result->what = finding->kind == FINDING_STATE  ? zero_array_name(finding->array)
                   : gathered                      ? "parameters"
                   : finding->kind == FINDING_LOSS ? "loss"
                                                   : "gradients";
}

enum status zero_check_compare(struct zero *z, const double *losses, struct stream *compute,
                               struct zero_check_result *result, struct error *err)
{
    struct zero_check *c = z->check;
    struct finding own;
    struct replica_difference difference = {.rank = -1, .other = -1};
    *result = (struct zero_check_result){.finding = FINDING_NONE, .rank = -1, .other = -1};
    check_wait_for_all(z, compute);
    TRY(comm_status(z->comm, err));
    TRY(check_hash_state(z, c->state[1], err));
    zero_check_drop(z);
    log_debug("%.1f MB of parameters and state were hashed in %.4f s", (double)c->bytes / 1e6, c->seconds);
    own = check_find_alone(z, losses);
    TRY(check_compare_gathered(z, &own, &difference, err));
    OWNED struct finding *all = memory_alloc((size_t)z->world * sizeof *all);
    TRY(comm_exchange(z->comm, &own, sizeof own, all, err));
    for (int r = 0; r < z->world; r++) {
        if (all[r].kind < (int32_t)result->finding) {
            *result = (struct zero_check_result){.finding = (enum zero_finding)all[r].kind, .rank = r, .other = -1};
            describe_finding(z, &all[r], result);
        }
        result->ranks += all[r].kind == (int32_t)result->finding && result->finding != FINDING_NONE;
    }
    if (result->finding == FINDING_SPLIT) {
        result->rank = difference.rank;
        result->other = difference.other;
    }
    return STATUS_OK;
}
