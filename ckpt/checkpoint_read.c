/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_read.c: verifies, reads and loads the contents of checkpoints. Every frame is compared with its checksum
 * before its contents are used.
 *
 * A range of a unit may lie in the slices of several writers: element e of a unit is in file e / slice, at e % slice.
 * Threads read the frames ahead (rankfile.h), also those of the next files and ranges. */
#include "ckpt/checkpoint_read.h"

#include "core/model/adapter.h"
#include "core/spec/adapter_config.h"

#include <sys/resource.h>

enum { OPEN_FILES = 64 }; /* that are allowed however low the process's limit is */

/* Elements [first, first + count) of a unit; count may be 0. */
struct range {
    int state, unit;
    int64_t first, count;
};

/* What is being read: frames [frame, end) of one rank's file. */
struct span {
    int rank;
    int64_t frame, end;       /* end 0: not known before the file is open */
    int64_t first, count, at; /* values of the rank's slice, and the place of the first one in the range */
};

struct stream {
    struct checkpoint_reader *reader;
    struct retry retry;
    const struct range *ranges;     /* NULL: frames of the files in their order, which are only verified */
    struct rankfile_stream *frames; /* NULL: there are none */
    /* of the threads that read, one at a time */
    int range;            /* that `span` belongs to */
    int64_t done, values; /* elements of it before the end of `span`, and what the file has for them */
    struct span span;
};

static void stream_release(struct stream *stream)
{
    rankfile_stream_free(stream->frames);
}

/* ---- files --------------------------------------------------------------- */

/* Half of the descriptors that the process may have. Fewer files would be opened anew for each unit of each state. */
static int most_read_rank_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 2 < OPEN_FILES) return OPEN_FILES;
    return limit.rlim_cur / 2 < MANIFEST_MAX_WORLD ? (int)(limit.rlim_cur / 2) : MANIFEST_MAX_WORLD;
}

static void forget_file(struct checkpoint_reader *reader, int rank)
{
    reader->num_open -= reader->files[rank] != NULL;
    rankfile_close(TAKEN(reader->files[rank]));
}

void checkpoint_reader_close_files(struct checkpoint_reader *reader)
{
    for (int rank = 0; reader->num_open && rank < reader->manifest->facts.world; rank++) forget_file(reader, rank);
    free(TAKEN(reader->files));
}

static enum status file_of(struct checkpoint_reader *reader, int rank, struct rankfile **out, struct error *err)
{
    const struct manifest *manifest = reader->manifest;
    if (!reader->files) {
        reader->files = memory_zeroed((size_t)manifest->facts.world, sizeof *reader->files);
        reader->most_open = most_read_rank_files();
    }
    if (!reader->files[rank]) {
        const struct manifest_file *file = &manifest->files[rank];
        struct rankfile_shape shape = manifest_shape(manifest, rank);
        struct rankfile_facts facts = {file->bytes, file->num_frames, file->checksum};
        char path[FS_PATH_MAX];
        if (reader->num_open == reader->most_open && reader->files[reader->newest])
            forget_file(reader, reader->newest); /* the next range begins with the others */
        for (int other = 0; reader->num_open == reader->most_open; other++) forget_file(reader, other);
        TRY(fs_join(path, reader->folder, file->name, STATUS_CHECKPOINT, err));
        TRY(rankfile_open(path, &shape, &facts, &reader->files[rank], err));
        reader->num_open++;
        reader->newest = rank;
    }
    *out = reader->files[rank];
    return STATUS_OK;
}

/* Values of a file for elements [from, to) of a unit, which lie in one slice; moments in 8 bits have fewer. */
static int64_t read_values(const struct manifest *manifest, const struct range *range, int64_t from, int64_t to)
{
    return range->state == STATE_MASTER ? to - from : moment_map_words(&manifest->map, range->unit, from, to);
}

/* The part of a range that begins after its first `done` elements and ends with it or with a rank's slice. */
static struct span read_span(const struct manifest *manifest, const struct range *range, int64_t done, int64_t *count)
{
    const int64_t slice = manifest->slice[range->unit], first = range->first + done, own = first / slice * slice;
    *count = min64(range->count - done, own + slice - first);
    return (struct span){.rank = (int)(first / slice),
                         .first = read_values(manifest, range, own, first),
                         .count = read_values(manifest, range, first, first + *count)};
}

/* ---- the threads that read ----------------------------------------------- */

static void next_read_span(struct stream *stream)
{
    while (stream->done == stream->ranges[stream->range].count) {
        stream->range++;
        stream->done = stream->values = 0;
    }
    int64_t count;
    stream->span = read_span(stream->reader->manifest, &stream->ranges[stream->range], stream->done, &count);
    stream->span.at = stream->values;
    stream->values += stream->span.count;
    stream->done += count;
}

static enum status name_read_frame(void *context, struct read_ahead_piece *piece, struct error *err)
{
    struct stream *stream = context;
    struct span *span = &stream->span;
    struct rankfile *file = NULL;
    struct retry retry = stream->retry;
    enum status status;
    if (span->frame == span->end && stream->ranges)
        next_read_span(stream);
    else if (span->frame == span->end) /* all files have as many frames */
        *span = (struct span){.rank = span->rank + 1, .end = span->end};
    do status = file_of(stream->reader, span->rank, &file, err);
    while (retry_again(&retry, &status, err));
    TRY(status);
    if (span->end == 0) {
        const struct range *range = &stream->ranges[stream->range];
        rankfile_frames(file, range->state, range->unit, span->first, span->count, &span->frame, &span->end);
    }
    rankfile_name(file, span->frame++, span->first, span->count, span->at, piece);
    return STATUS_OK;
}

/* The file of a frame that could not be read is opened anew, even if the read is not retried: others use it later. */
static enum status read_frame_again(void *context, struct read_ahead_piece *piece, enum status status,
                                    struct error *err)
{
    struct stream *stream = context;
    const int rank = rankfile_rank(piece);
    struct retry retry = stream->retry;
    struct rankfile *file = NULL;
    forget_file(stream->reader, rank);
    while (retry_again(&retry, &status, err)) {
        status = file_of(stream->reader, rank, &file, err);
        if (status == STATUS_OK) status = rankfile_read_again(file, piece, err);
        if (status != STATUS_OK) forget_file(stream->reader, rank);
    }
    return status;
}

/* ---- reading ------------------------------------------------------------- */

static int64_t frames_to_read(const struct manifest *manifest, const struct range *range)
{
    int64_t frames = 0;
    for (int64_t done = 0, n; done < range->count; done += n) {
        const struct span span = read_span(manifest, range, done, &n);
        frames += (span.first + span.count - 1) / RANKFILE_FRAME_ELEMENTS - span.first / RANKFILE_FRAME_ELEMENTS + 1;
    }
    return frames;
}

static enum status begin_read_stream(struct stream *stream, int64_t frames, struct error *err)
{
    const struct read_ahead_source source = {.context = stream, .next = name_read_frame, .again = read_frame_again};
    return frames ? rankfile_stream_new(&source, frames, &stream->frames, err) : STATUS_OK;
}

static enum status begin_ranges(struct stream *stream, const struct checkpoint *checkpoint, const struct range *ranges,
                                int count, struct error *err)
{
    *stream = (struct stream){.reader = reader_of(checkpoint), .retry = checkpoint->retry, .ranges = ranges};
    int64_t frames = 0;
    for (int i = 0; i < count; i++) frames += frames_to_read(stream->reader->manifest, &ranges[i]);
    return begin_read_stream(stream, frames, err);
}

static enum status read_range(struct stream *stream, const struct range *range, float *out, struct error *err)
{
    int64_t frames = frames_to_read(stream->reader->manifest, range);
    return frames ? rankfile_stream_next(stream->frames, frames, out, err) : STATUS_OK;
}

bool checkpoint_stores(const struct checkpoint *checkpoint, int unit)
{
    return unit < reader_of(checkpoint)->manifest->num_trained;
}

enum status checkpoint_read(const struct checkpoint *checkpoint, enum state_kind state, int unit, int64_t first,
                            int64_t count, float *out, struct error *err)
{
    ASSERT(unit >= 0 && checkpoint_stores(checkpoint, unit) && first >= 0 && count >= 0);
    ASSERT(count <= reader_of(checkpoint)->manifest->units[unit].numel - first);
    const struct range range = {(int)state, unit, first, count};
    RELEASED(stream_release) struct stream stream = {0};
    TRY(begin_ranges(&stream, checkpoint, &range, 1, err));
    return read_range(&stream, &range, out, err);
}

/* ---- verifying ----------------------------------------------------------- */

/* Share `part` of `parts` of the frames of all files in their order; rank files have equally many frames. */
static void read_part_frames(const struct manifest *manifest, int part, int parts, int64_t *first, int64_t *count)
{
    ASSERT(part >= 0 && part < parts);
    const int64_t all = manifest->files[0].num_frames * manifest->facts.world;
    const int64_t share = all / parts, longer = all % parts; /* the first `longer` shares have one frame more */
    *first = share * part + (part < longer ? part : longer);
    *count = share + (part < longer);
}

enum status checkpoint_check_part(const struct checkpoint *checkpoint, int part, int parts, struct error *err)
{
    const struct manifest *manifest = reader_of(checkpoint)->manifest;
    const int64_t each = manifest->files[0].num_frames;
    int64_t first, count;
    read_part_frames(manifest, part, parts, &first, &count);
    if (count)
        TRY(manifest_check_files(manifest, checkpoint->path, (int)(first / each), (int)((first + count - 1) / each) + 1,
                                 err));
    return part < parts - 1
               ? STATUS_OK
               : manifest_check_files(manifest, checkpoint->path, manifest->facts.world, manifest->num_files, err);
}

enum status checkpoint_verify_part(const struct checkpoint *checkpoint, int part, int parts, struct error *err)
{
    RELEASED(stream_release) struct stream stream = {.reader = reader_of(checkpoint)};
    const struct manifest *manifest = stream.reader->manifest;
    const int64_t each = manifest->files[0].num_frames;
    int64_t first, count;
    read_part_frames(manifest, part, parts, &first, &count);
    stream.span = (struct span){.rank = (int)(first / each), .frame = first % each, .end = each};
    TRY(begin_read_stream(&stream, count, err));
    if (count) TRY(rankfile_stream_next(stream.frames, count, NULL, err));
    for (int i = manifest->facts.world; i < manifest->num_files && part == parts - 1; i++) {
        OWNED char *data = NULL;
        TRY(manifest_read_file(checkpoint->path, &manifest->files[i], &data, err));
    }
    return STATUS_OK;
}

enum status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err)
{
    return checkpoint_verify_part(checkpoint, 0, 1, err);
}

/* ---- loading ------------------------------------------------------------- */

enum status checkpoint_check_table(const struct checkpoint *checkpoint, const struct tensor_table *table,
                                   struct error *err)
{
    const struct manifest *manifest = reader_of(checkpoint)->manifest;
    char theirs[320] = "no more tensors", ours[320] = "no more tensors", shape[SHAPE_TEXT];
    if ((manifest->facts.adapter != NULL) != table->adapted)
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' is of %s, and this model of %s", checkpoint->path,
                         manifest->facts.adapter ? "an adapter" : "a whole model",
                         table->adapted ? "an adapter" : "a whole model");
    if (manifest->num_units - manifest->num_trained != table->num_frozen)
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' has %d units with frozen tensors, this model %d",
                         checkpoint->path, manifest->num_units - manifest->num_trained, table->num_frozen);
    for (int i = 0; i < manifest->num_tensors || i < table->num_tensors; i++) {
        const struct manifest_tensor *a = i < manifest->num_tensors ? &manifest->tensors[i] : NULL;
        const struct tensor_info *b = i < table->num_tensors ? &table->tensors[i] : NULL;
        if (!a || !b || strcmp(a->name, b->name) != 0 || a->ndim != b->ndim ||
            memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0) {
            const char *form = "'%.96s' of shape %s";
            if (a) snprintf(theirs, sizeof theirs, form, a->name, shape_text(a->ndim, a->shape, shape));
            if (b) snprintf(ours, sizeof ours, form, b->name, shape_text(b->ndim, b->shape, shape));
            error_set(err, STATUS_CHECKPOINT,
                      "the checkpoint '%s' is of another model: tensor %d is %s there and %s in this model",
                      checkpoint->path, i, theirs, ours);
            return error_hint(err,
                              "resume with the model that the checkpoint was trained with (ztrain inspect shows it)");
        }
        if (a->unit != b->unit || a->offset != b->offset)
            return error_set(err, STATUS_CHECKPOINT,
                             "the checkpoint '%s' has '%s' at element %" PRId64 " of unit %d, this model at element "
                             "%" PRId64 " of unit %d",
                             checkpoint->path, a->name, a->offset, a->unit, b->offset, b->unit);
    }
    if (manifest->num_units != table->num_units)
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' has %d units, this model %d", checkpoint->path,
                         manifest->num_units, table->num_units);
    for (int u = 0; u < table->num_units; u++)
        if (manifest->units[u].numel != table->units[u].numel)
            return error_set(err, STATUS_CHECKPOINT,
                             "the checkpoint '%s' has %" PRId64 " elements in unit %d, this model %" PRId64,
                             checkpoint->path, manifest->units[u].numel, u, table->units[u].numel);
    return STATUS_OK;
}

enum status checkpoint_check_base(const struct checkpoint *checkpoint, const struct checkpoint_base *base,
                                  struct error *err)
{
    const struct checkpoint_base *was = &checkpoint->base;
    if (base->hash == was->hash) return STATUS_OK;
    error_set(err, STATUS_CHECKPOINT,
              "the %s in '%s' was trained on another base: the frozen weights of %s have the hash %s, and those it was "
              "trained on %s",
              checkpoint->adapter ? "adapter" : "multimodal model", checkpoint->path,
              base->folder ? base->folder : "the model", hash_digits(base->hash).text, hash_digits(was->hash).text);
    if (was->folder && base->folder && !strcmp(was->folder, base->folder))
        return error_hint(err, "the weights in this folder have changed since; restore them");
    if (was->folder) return error_hint(err, "its base was the folder '%s'", was->folder);
    return error_hint(err, "its base were initial values with run.seed %" PRId64, was->seed);
}

enum status checkpoint_model(const struct checkpoint *checkpoint, struct model_desc *desc, struct tensor_table *table,
                             struct error *err)
{
    memset(desc, 0, sizeof *desc);
    memset(table, 0, sizeof *table);
    TRY(model_desc_from_json(checkpoint->model, checkpoint->path, desc, err));
    tensor_table_build_for(desc, checkpoint->moment_blocks, table);
    if (!checkpoint->adapter) return STATUS_OK;
    RELEASED(adapter_config_release) struct adapter_config config = {0};
    TRY(adapter_config_from_json(checkpoint->adapter, checkpoint->path, &config, err));
    config.settings.on = true;
    return adapter_apply(&config.settings, desc, table, NULL, err);
}

static enum status read_state_slices(struct stream *stream, int count, const struct shard_layout *layout,
                                     struct state_slices slices, struct error *err)
{
    for (const struct range *range = stream->ranges; range < stream->ranges + count; range++) {
        float *own;
        TRY(state_slice(slices, SLICE_WRITE, (enum state_kind)range->state, range->unit, &own, err));
        TRY(read_range(stream, range, own, err));
        const int64_t read = read_values(stream->reader->manifest, range, range->first, range->first + range->count);
        const int64_t words = state_words(layout, (enum state_kind)range->state, range->unit);
        memset(own + read, 0, (size_t)(words - read) * sizeof *own); /* padding */
    }
    return STATUS_OK;
}

enum status checkpoint_load(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err)
{
    ASSERT(rank >= 0 && rank < layout->world && layout->num_units == table->num_units);
    TRY(checkpoint_check_table(checkpoint, table, err));
    const bool in_blocks = reader_of(checkpoint)->manifest->facts.moment_blocks;
    const int stored = reader_of(checkpoint)->manifest->facts.num_states;
    const bool weights = slices.weights_only && slices.count == 1;
    if (in_blocks != table->moment_blocks && !weights)
        return error_set(err, STATUS_CHECKPOINT,
                         "the checkpoint '%s' has moments in %s, this run in %s; hint: set optimizer.type as it was",
                         checkpoint->path, in_blocks ? "8 bits" : "fp32", in_blocks ? "fp32" : "8 bits");
    if (stored != slices.count && !weights)
        return error_set(err, STATUS_USAGE,
                         "the checkpoint '%s' has %d kinds of state, the optimizer of this run %d; hint: set "
                         "optimizer.type and its momentum as they were, or start a new run from an export",
                         checkpoint->path, stored, slices.count);
    OWNED struct range *ranges = memory_alloc((size_t)(slices.count * layout->num_units) * sizeof *ranges);
    int num = 0;
    for (int s = 0; s < slices.count; s++)
        for (int u = 0; u < layout->num_trained; u++) { /* a slice may hold nothing but padding */
            const int64_t size = layout->slice[u], first = size * rank;
            const int64_t own = max64(0, min64(size, table->units[u].numel - first));
            ranges[num++] = (struct range){s, u, own ? first : 0, own};
        }
    RELEASED(stream_release) struct stream stream = {0};
    TRY(begin_ranges(&stream, checkpoint, ranges, num, err));
    return read_state_slices(&stream, num, layout, slices, err);
}
