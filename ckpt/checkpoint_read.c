/* checkpoint_read.c: verifies, reads and loads the contents of checkpoints.
 *
 * Every frame is compared with its checksum before its contents are used, and the manifest covers the checksums. So the
 * contents of a checkpoint that was opened by its manifest alone are verified as they are read.
 *
 * Contents come from a stream (checkpoint_stream.h): a thread reads frames while those before them are verified and
 * decompressed. One thread at a time may read from a checkpoint. */
#include "ckpt/checkpoint.h"

#include "ckpt/checkpoint_stream.h"
#include "core/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------- */

enum status checkpoint_read(const struct checkpoint *checkpoint, enum state_kind state, int unit, int64_t first,
                            int64_t count, float *out, struct error *err)
{
    const struct manifest *manifest = reader_of(checkpoint)->manifest;
    ASSERT(unit >= 0 && unit < manifest->num_units && first >= 0 && count >= 0);
    ASSERT(count <= manifest->units[unit].numel - first);
    const struct checkpoint_range range = {(int)state, unit, first, count};
    struct checkpoint_stream *stream;
    TRY(checkpoint_stream_new(&reader_of(checkpoint)->files, &checkpoint->retry, &range, 1, &stream, err));
    enum status status = checkpoint_stream_next(stream, out, err);
    checkpoint_stream_free(stream);
    return status;
}

enum status checkpoint_verify_part(const struct checkpoint *checkpoint, int part, int parts, struct error *err)
{
    struct reader *reader = reader_of(checkpoint);
    const struct manifest *manifest = reader->manifest;
    struct checkpoint_stream *stream;
    TRY(checkpoint_stream_new_part(&reader->files, part, parts, &stream, err));
    enum status status = checkpoint_stream_verify(stream, err);
    checkpoint_stream_free(stream);
    for (int i = manifest->world; i < manifest->num_files && part == parts - 1 && status == STATUS_OK; i++) {
        char *data = NULL;
        status = manifest_read_file(checkpoint->path, &manifest->files[i], &data, err);
        free(data);
    }
    return status;
}

enum status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err)
{
    return checkpoint_verify_part(checkpoint, 0, 1, err);
}

/* ---- loading ------------------------------------------------------------- */

/* "'wte.weight' of shape (256, 64)" */
static void tensor_text(const char *name, int ndim, const int64_t *shape, char out[192])
{
    if (ndim == 1)
        snprintf(out, 192, "'%.96s' of shape (%" PRId64 ")", name, shape[0]);
    else
        snprintf(out, 192, "'%.96s' of shape (%" PRId64 ", %" PRId64 ")", name, shape[0], shape[1]);
}

enum status checkpoint_check_table(const struct checkpoint *checkpoint, const struct tensor_table *table,
                                   struct error *err)
{
    const struct manifest *manifest = reader_of(checkpoint)->manifest;
    enum status status = STATUS_OK;
    char theirs[192] = "no more tensors", ours[192] = "no more tensors";
    if (manifest->num_units - manifest->num_trained != table->num_frozen)
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' has %d units with frozen tensors, this model %d",
                         checkpoint->path, manifest->num_units - manifest->num_trained, table->num_frozen);
    int most = manifest->num_tensors > table->num_tensors ? manifest->num_tensors : table->num_tensors;
    for (int i = 0; i < most && status == STATUS_OK; i++) {
        const struct manifest_tensor *a = i < manifest->num_tensors ? &manifest->tensors[i] : NULL;
        const struct tensor_info *b = i < table->num_tensors ? &table->tensors[i] : NULL;
        if (a && b && !strcmp(a->name, b->name) && a->ndim == b->ndim && a->shape[0] == b->shape[0] &&
            a->shape[1] == b->shape[1]) {
            if (a->unit != b->unit || a->offset != b->offset)
                return error_set(err, STATUS_CHECKPOINT,
                                 "the checkpoint '%s' has '%s' at element %" PRId64 " of unit %d, this model at "
                                 "element %" PRId64 " of unit %d",
                                 checkpoint->path, a->name, a->offset, a->unit, b->offset, b->unit);
            continue;
        }
        if (a)
            tensor_text(a->name, a->ndim, a->shape, theirs);
        if (b)
            tensor_text(b->name, b->ndim, b->shape, ours);
        status = error_set(err, STATUS_CHECKPOINT,
                           "the checkpoint '%s' is of another model: tensor %d is %s there and "
                           "%s in this model",
                           checkpoint->path, i, theirs, ours);
        error_hint(err, "resume with the model that the checkpoint was trained with (ztrain inspect shows it)");
    }
    if (status == STATUS_OK && manifest->num_units != table->num_units)
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' has %d units, this model %d", checkpoint->path,
                         manifest->num_units, table->num_units);
    for (int u = 0; status == STATUS_OK && u < table->num_units; u++)
        if (manifest->units[u].numel != table->units[u].numel)
            status = error_set(err, STATUS_CHECKPOINT,
                               "the checkpoint '%s' has %" PRId64 " elements in unit %d, this model %" PRId64,
                               checkpoint->path, manifest->units[u].numel, u, table->units[u].numel);
    return status;
}

/* context: the manifest */
static bool is_frozen_there(void *context, const struct tensor_info *tensor)
{
    const struct manifest *manifest = context;
    for (int i = manifest->num_tensors - 1; i >= 0 && manifest->tensors[i].unit >= manifest->num_trained; i--)
        if (!strcmp(manifest->tensors[i].name, tensor->name))
            return true;
    return false;
}

void checkpoint_freeze_table(const struct checkpoint *checkpoint, struct tensor_table *table)
{
    struct manifest *manifest = reader_of(checkpoint)->manifest;
    if (manifest->num_trained < manifest->num_units)
        tensor_table_freeze(table, is_frozen_there, manifest);
}

/* The range of a unit that a rank owns; its slice may have padding after it, or hold nothing else. */
static struct checkpoint_range own_range(const struct tensor_table *table, const struct shard_layout *layout, int rank,
                                         int state, int unit)
{
    int64_t size = layout->slice[unit], first = size * rank, left = table->units[unit].numel - first;
    int64_t count = left < 0 ? 0 : left < size ? left : size;
    return (struct checkpoint_range){state, unit, count ? first : 0, count};
}

/* Reads the ranges, unit by unit of each state, into the rank's slices. */
static enum status load_slices(struct checkpoint_stream *stream, const struct checkpoint_range *ranges, int count,
                               const struct shard_layout *layout, struct state_slices slices, struct error *err)
{
    for (int i = 0; i < count; i++) {
        const struct checkpoint_range *range = &ranges[i];
        float *own;
        TRY(state_slice(slices, SLICE_WRITE, (enum state_kind)range->state, range->unit, &own, err));
        TRY(checkpoint_stream_next(stream, own, err));
        memset(own + range->count, 0, (size_t)(layout->slice[range->unit] - range->count) * sizeof *own); /* padding */
    }
    return STATUS_OK;
}

enum status checkpoint_load(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err)
{
    ASSERT(rank >= 0 && rank < layout->world && layout->num_units == table->num_units);
    TRY(checkpoint_check_table(checkpoint, table, err));
    const int stored = reader_of(checkpoint)->manifest->num_states;
    if (stored != slices.count)
        return error_set(err, STATUS_USAGE,
                         "the checkpoint '%s' has %d kinds of state, the optimizer of this run %d; hint: set "
                         "optimizer.type and its momentum as they were, or start a new run from an export",
                         checkpoint->path, stored, slices.count);
    struct checkpoint_range *ranges = memory_alloc((size_t)(slices.count * layout->num_units) * sizeof *ranges);
    int num = 0;
    for (int s = 0; s < slices.count; s++)
        for (int u = 0; u < state_units(layout, (enum state_kind)s); u++)
            ranges[num++] = own_range(table, layout, rank, s, u);
    struct checkpoint_stream *stream = NULL;
    enum status status =
        checkpoint_stream_new(&reader_of(checkpoint)->files, &checkpoint->retry, ranges, num, &stream, err);
    if (status == STATUS_OK)
        status = load_slices(stream, ranges, num, layout, slices, err);
    checkpoint_stream_free(stream);
    free(ranges);
    return status;
}
