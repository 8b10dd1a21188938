#include "ckpt/checkpoint_stream.h"

#include "core/fsutil.h"
#include "core/memory.h"

#include <stdlib.h>
#include <sys/resource.h>

enum { OPEN_FILES = 64 }; /* that are allowed however low the process's limit is */

/* What is being read: frames [frame, end) of one rank's file. */
struct span {
    int rank;
    int64_t frame, end;
    int64_t first, count, at; /* elements of the rank's slice, and the place of the first one in the range */
};

struct checkpoint_stream {
    struct checkpoint_files *files;
    struct retry retry;
    const struct checkpoint_range *ranges; /* NULL: frames of the files in their order */
    int count, taken;                      /* ranges in all; that the caller has */
    int64_t in_share;                      /* without ranges: frames to verify */
    struct rankfile_stream *frames;        /* NULL: there are none */
    /* of the threads that read, one at a time */
    int range;    /* that `span` belongs to */
    int64_t done; /* elements of it before the end of `span` */
    struct span span;
};

/* ---- files --------------------------------------------------------------- */

/* Half of the descriptors that the process may have. Each range of a load goes through the files of all writers whose
 * slices it has, so fewer would be opened anew for each unit of each state. */
static int most_open(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 2 < OPEN_FILES)
        return OPEN_FILES;
    return limit.rlim_cur / 2 < MANIFEST_MAX_WORLD ? (int)(limit.rlim_cur / 2) : MANIFEST_MAX_WORLD;
}

void checkpoint_files_init(struct checkpoint_files *files, const char *folder, const struct manifest *manifest)
{
    *files = (struct checkpoint_files){.folder = folder, .manifest = manifest, .most_open = most_open()};
    files->files = memory_zeroed((size_t)manifest->world, sizeof *files->files);
}

/* Closes a rank's file if it is open; after a failure it is opened anew. */
static void forget_file(struct checkpoint_files *files, int rank)
{
    if (!files->files[rank])
        return;
    rankfile_close(files->files[rank]);
    files->files[rank] = NULL;
    files->num_open--;
}

void checkpoint_files_close(struct checkpoint_files *files)
{
    for (int rank = 0; files->num_open && rank < files->manifest->world; rank++)
        forget_file(files, rank);
}

void checkpoint_files_release(struct checkpoint_files *files)
{
    if (files->files)
        checkpoint_files_close(files);
    free(files->files);
}

/* Opens the file of a rank, if it is not open yet, and checks its index. */
static enum status file_of(struct checkpoint_files *files, int rank, struct rankfile **out, struct error *err)
{
    if (!files->files[rank]) {
        const struct manifest_file *file = &files->manifest->files[rank];
        struct rankfile_shape shape = manifest_shape(files->manifest, rank);
        struct rankfile_facts facts = {file->bytes, file->num_frames, file->checksum};
        char path[FS_PATH_MAX];
        if (files->num_open == files->most_open && files->files[files->newest])
            forget_file(files, files->newest); /* the next range begins with the others */
        else if (files->num_open == files->most_open)
            checkpoint_files_close(files);
        TRY(fs_join(path, files->folder, file->name, STATUS_CHECKPOINT, err));
        TRY(rankfile_open(path, &shape, &facts, &files->files[rank], err));
        files->num_open++;
        files->newest = rank;
    }
    *out = files->files[rank];
    return STATUS_OK;
}

/* ---- the course of the threads ------------------------------------------- */

/* Moves to the next span of the ranges: as much of the range as one writer's slice has. The frames follow once the file
 * is open. */
static void next_span(struct checkpoint_stream *stream)
{
    while (stream->done == stream->ranges[stream->range].count) {
        stream->range++;
        stream->done = 0;
    }
    const struct checkpoint_range *range = &stream->ranges[stream->range];
    int64_t slice = stream->files->manifest->slice[range->unit], first = range->first + stream->done;
    int64_t left = range->count - stream->done, room = slice - first % slice;
    stream->span = (struct span){
        .rank = (int)(first / slice), .first = first % slice, .count = left < room ? left : room, .at = stream->done};
    stream->done += stream->span.count;
}

/* Finds the frames of a new span; those of a file that is only verified are known from the manifest. */
static void find_frames(struct checkpoint_stream *stream, const struct rankfile *file)
{
    struct span *span = &stream->span;
    const struct checkpoint_range *range = &stream->ranges[stream->range];
    if (span->end == 0)
        rankfile_frames(file, range->state, range->unit, span->first, span->count, &span->frame, &span->end);
}

/* Moves on to the next frame: in the span, or in that of the next file or range. */
static void next_frame(struct checkpoint_stream *stream)
{
    struct span *span = &stream->span;
    if (span->end && span->frame == span->end && !stream->ranges)
        *span = (struct span){.rank = span->rank + 1, .end = stream->files->manifest->files[span->rank + 1].num_frames};
    else if (span->frame == span->end)
        next_span(stream);
}

static enum status name_frame(void *context, struct read_ahead_piece *piece, struct error *err)
{
    struct checkpoint_stream *stream = context;
    struct span *span = &stream->span;
    struct rankfile *file = NULL;
    struct retry retry = stream->retry;
    enum status status;
    next_frame(stream);
    do
        status = file_of(stream->files, span->rank, &file, err);
    while (retry_again(&retry, &status, err));
    TRY(status);
    if (stream->ranges)
        find_frames(stream, file);
    rankfile_name(file, span->frame++, piece);
    if (stream->ranges)
        rankfile_want(piece->place, span->first, span->count, span->at);
    return STATUS_OK;
}

/* The file of a frame that could not be read is opened anew, even if the read is not retried: others use it later. */
static enum status read_frame_again(void *context, struct read_ahead_piece *piece, enum status status,
                                    struct error *err)
{
    struct checkpoint_stream *stream = context;
    const int rank = rankfile_rank(((const struct rankfile_piece *)piece->place)->file);
    struct retry retry = stream->retry;
    struct rankfile *file = NULL;
    forget_file(stream->files, rank);
    while (retry_again(&retry, &status, err)) {
        status = file_of(stream->files, rank, &file, err);
        if (status == STATUS_OK)
            status = rankfile_read_again(file, piece, err);
        if (status != STATUS_OK)
            forget_file(stream->files, rank);
    }
    return status;
}

/* ---- the caller's side --------------------------------------------------- */

/* How many frames hold elements [first, first + count) of a slice. */
static int64_t frames_between(int64_t first, int64_t count)
{
    return count ? (first + count - 1) / RANKFILE_FRAME_ELEMENTS - first / RANKFILE_FRAME_ELEMENTS + 1 : 0;
}

static int64_t frames_of_range(const struct manifest *manifest, const struct checkpoint_range *range)
{
    int64_t slice = manifest->slice[range->unit], frames = 0;
    for (int64_t done = 0; done < range->count;) {
        int64_t first = (range->first + done) % slice, left = range->count - done;
        int64_t n = left < slice - first ? left : slice - first;
        frames += frames_between(first, n);
        done += n;
    }
    return frames;
}

/* Begins to read `frames` frames. Takes the stream over, also on failure. */
static enum status begin(struct checkpoint_stream *stream, int64_t frames, struct checkpoint_stream **out,
                         struct error *err)
{
    const struct rankfile_source source = {.context = stream, .next = name_frame, .again = read_frame_again};
    enum status status = frames ? rankfile_stream_new(&source, frames, &stream->frames, err) : STATUS_OK;
    if (status == STATUS_OK)
        *out = stream;
    else
        free(stream);
    return status;
}

enum status checkpoint_stream_new(struct checkpoint_files *files, const struct retry *retry,
                                  const struct checkpoint_range *ranges, int count, struct checkpoint_stream **out,
                                  struct error *err)
{
    struct checkpoint_stream *stream = memory_zeroed(1, sizeof *stream);
    *stream = (struct checkpoint_stream){.files = files, .retry = *retry, .ranges = ranges, .count = count};
    int64_t frames = 0;
    for (int i = 0; i < count; i++)
        frames += frames_of_range(files->manifest, &ranges[i]);
    return begin(stream, frames, out, err);
}

void checkpoint_part_frames(const struct manifest *manifest, int part, int parts, int64_t *first, int64_t *count)
{
    ASSERT(part >= 0 && part < parts);
    const int64_t all = manifest->files[0].num_frames * manifest->world;
    const int64_t share = all / parts, longer = all % parts; /* the first `longer` shares have one frame more */
    *first = share * part + (part < longer ? part : longer);
    *count = share + (part < longer);
}

enum status checkpoint_stream_new_part(struct checkpoint_files *files, int part, int parts,
                                       struct checkpoint_stream **out, struct error *err)
{
    const int64_t each = files->manifest->files[0].num_frames;
    int64_t first, frames;
    checkpoint_part_frames(files->manifest, part, parts, &first, &frames);
    struct checkpoint_stream *stream = memory_zeroed(1, sizeof *stream);
    stream->files = files;
    stream->in_share = frames;
    stream->span = (struct span){.rank = (int)(first / each), .frame = first % each, .end = each};
    return begin(stream, stream->in_share, out, err);
}

enum status checkpoint_stream_next(struct checkpoint_stream *stream, float *out, struct error *err)
{
    ASSERT(stream->taken < stream->count);
    int64_t frames = frames_of_range(stream->files->manifest, &stream->ranges[stream->taken++]);
    return frames ? rankfile_stream_next(stream->frames, frames, out, err) : STATUS_OK;
}

enum status checkpoint_stream_verify(struct checkpoint_stream *stream, struct error *err)
{
    ASSERT(!stream->ranges);
    return stream->in_share ? rankfile_stream_next(stream->frames, stream->in_share, NULL, err) : STATUS_OK;
}

void checkpoint_stream_free(struct checkpoint_stream *stream)
{
    if (!stream)
        return;
    rankfile_stream_free(stream->frames);
    free(stream);
}
