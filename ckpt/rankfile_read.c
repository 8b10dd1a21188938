/* SPDX-License-Identifier: Apache-2.0 */
/* rankfile_read.c: reads and verifies rank files: threads read frames ahead (read_ahead.h), and a team of threads
 * verifies and decompresses them. */
#include "ckpt/rankfile_frames.h"
#include "core/core.h"
#include "core/storage/uncached_read.h"

#include <xxhash.h>
#include <zstd_errors.h>

/* Joins elements [from, from + n) of a frame of `count` elements. */
static void read_frame_planes(const uint8_t *planes, size_t count, size_t from, size_t n, float *out)
{
    const uint8_t *p0 = planes + from, *p1 = p0 + count, *p2 = p1 + count, *p3 = p2 + count;
    uint8_t *bytes = (uint8_t *)out;
    for (size_t i = 0; i < n; i++) {
        bytes[4 * i] = p0[i];
        bytes[4 * i + 1] = p1[i];
        bytes[4 * i + 2] = p2[i];
        bytes[4 * i + 3] = p3[i];
    }
}

struct rankfile {
    char *path;        /* owned */
    atomic_int owners; /* who opened it, and pieces */
    int fd;
    struct uncached_file contents; /* of fd */
    struct rankfile_shape shape;   /* its arrays are borrowed */
    int64_t num_frames;
    struct rank_index *index; /* owned; checked */
};

/* "'path' is damaged at offset N: WHAT" */
static enum status damaged_rankfile(const char *path, int64_t offset, const char *what, struct error *err)
{
    return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged at offset %" PRId64 ": %s", path, offset, what);
}

/* Checks the header by itself, so that a wrong index checksum can be blamed on the header or on the table. */
static enum status header_check(const struct rankfile *file, const struct rank_header *header, struct error *err)
{
    const struct rank_header expected = rankfile_header(&file->shape);
    if (memcmp(header->magic, expected.magic, sizeof expected.magic) != 0)
        return damaged_rankfile(file->path, 0, "it does not begin like a rank file", err);
    if (header->checksum != XXH3_64bits(header, offsetof(struct rank_header, checksum)))
        return damaged_rankfile(file->path, 0, "the header does not match its checksum", err);
    if (header->version != RANKFILE_VERSION)
        return error_set(err, STATUS_CHECKPOINT, "'%s' has format version %u; this ztrain reads %d", file->path,
                         header->version, RANKFILE_VERSION);
    if (memcmp(header, &expected, sizeof expected) != 0)
        return damaged_rankfile(file->path, 0, "it is another rank's or another checkpoint's file", err);
    return STATUS_OK;
}

/* Checks that the table has the frames of this shape, and that they fill the file up to the table. */
static enum status table_check(const struct rankfile *file, int64_t table_offset, struct error *err)
{
    int64_t offset = sizeof(struct rank_header), at = table_offset + (int64_t)sizeof(struct table_head);
    struct frame expected;
    for (int64_t i = 0; i < file->num_frames; i++, at += (int64_t)sizeof expected) {
        const struct frame *frame = &file->index->frames[i];
        rankfile_frame_place(&file->shape, i ? frame - 1 : NULL, &expected);
        if (frame->state != expected.state || frame->unit != expected.unit || frame->first != expected.first ||
            frame->count != expected.count)
            return damaged_rankfile(file->path, at, "the table names another frame than the one expected here", err);
        if (frame->stored == 0 || frame->stored > FRAME_MAX_STORED || frame->offset != offset ||
            frame->stored > table_offset - offset)
            return damaged_rankfile(file->path, at, "a frame has an impossible offset or length", err);
        offset += frame->stored;
    }
    if (offset != table_offset)
        return damaged_rankfile(file->path, offset, "there are bytes between the last frame and the table", err);
    return STATUS_OK;
}

static enum status index_load(struct rankfile *file, int64_t bytes, const struct rankfile_facts *facts,
                              struct error *err)
{
    if (bytes != facts->bytes)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' is damaged at offset %" PRId64 ": it has %" PRId64
                         " bytes where the manifest has %" PRId64,
                         file->path, bytes < facts->bytes ? bytes : facts->bytes, bytes, facts->bytes);
    const struct table_head head = rankfile_table_head(file->num_frames);
    const size_t table_bytes = sizeof head + head.bytes, header_bytes = sizeof(struct rank_header);
    const int64_t table_offset = facts->bytes - (int64_t)table_bytes;
    if (facts->num_frames != file->num_frames || table_offset < (int64_t)header_bytes + file->num_frames)
        return damaged_rankfile(file->path, 0, "its size is impossible for these slices", err);

    struct rank_index *index = file->index = memory_alloc(header_bytes + table_bytes);
    TRY(fs_pread(file->fd, file->path, index, header_bytes, 0, STATUS_CHECKPOINT, err));
    TRY(fs_pread(file->fd, file->path, &index->head, table_bytes, table_offset, STATUS_CHECKPOINT, err));
    TRY(header_check(file, &index->header, err));
    if (XXH3_64bits(index, header_bytes + table_bytes) != facts->index_checksum)
        return damaged_rankfile(file->path, table_offset,
                                "the header and the frame table do not match the manifest's checksum", err);
    if (memcmp(&index->head, &head, sizeof head) != 0)
        return damaged_rankfile(file->path, table_offset, "the frame table does not begin here", err);
    return table_check(file, table_offset, err);
}

enum status rankfile_open(const char *path, const struct rankfile_shape *shape, const struct rankfile_facts *facts,
                          struct rankfile **out, struct error *err)
{
    RELEASED(rankfile_drop) struct rankfile *file = memory_zeroed(1, sizeof *file);
    file->fd = -1;
    atomic_init(&file->owners, 1);
    file->shape = *shape;
    file->num_frames = rankfile_num_frames(shape);
    ASSERT(file->num_frames > 0);
    file->path = memory_text(path);
    int64_t bytes;
    TRY(fs_open_read(path, STATUS_CHECKPOINT, &file->fd, &bytes, err));
    uncached_file_init(&file->contents, file->fd, file->path);
    TRY(index_load(file, bytes, facts, err));
    *out = TAKEN(file);
    return STATUS_OK;
}

void rankfile_close(struct rankfile *file)
{
    if (!file || atomic_fetch_sub(&file->owners, 1) > 1) return;
    if (file->fd >= 0) {
        uncached_file_release(&file->contents);
        io_close(file->fd);
    }
    free(file->index);
    free(file->path);
    free(file);
}

/* ---- streams ------------------------------------------------------------- */

struct rankfile_stream {
    struct read_ahead *ahead; /* owned */
    int threads;
    struct frame_scratch *scratch; /* [threads] owned */
};

static void rankfile_piece_release(void *context, struct read_ahead_piece *piece)
{
    (void)context;
    rankfile_close(piece->file);
}

static enum status read_piece(void *context, struct read_ahead_piece *piece, struct error *err)
{
    (void)context;
    const struct frame *frame = &piece->file->index->frames[piece->index];
    return uncached_read(&piece->file->contents, piece->bytes, frame->stored, frame->offset, STATUS_CHECKPOINT,
                         &piece->stored, err);
}

enum status rankfile_stream_new(const struct read_ahead_source *named, int64_t frames, struct rankfile_stream **out,
                                struct error *err)
{
    struct read_ahead_source source = *named;
    source.buffer_bytes = FRAME_MAX_STORED;
    source.read = read_piece;
    source.release = rankfile_piece_release;
    RELEASED(rankfile_stream_drop) struct rankfile_stream *stream = memory_zeroed(1, sizeof *stream);
    stream->threads = rankfile_team_size() < frames ? rankfile_team_size() : (int)frames;
    stream->scratch = rankfile_scratch_new(stream->threads, -1);
    TRY(read_ahead_new(&source, frames, stream->threads, &stream->ahead, err));
    *out = TAKEN(stream);
    return STATUS_OK;
}

void rankfile_stream_free(struct rankfile_stream *stream)
{
    if (!stream) return;
    read_ahead_free(stream->ahead);
    rankfile_scratch_free(stream->scratch, stream->threads);
    free(stream);
}

static struct rankfile *retain(struct rankfile *file)
{
    atomic_fetch_add(&file->owners, 1);
    return file;
}

void rankfile_name(struct rankfile *file, int64_t index, int64_t first, int64_t count, int64_t at,
                   struct read_ahead_piece *piece)
{
    const struct frame *frame = &file->index->frames[index];
    piece->file = retain(file);
    piece->index = index;
    piece->in_turn = !file->contents.able; /* not from a local disk; a file server wants one reader */
    piece->count = 0;
    if (!count) return;
    int64_t from = first > frame->first ? first : frame->first, last = frame->first + frame->count;
    int64_t to = first + count < last ? first + count : last;
    piece->from = from - frame->first;
    piece->count = to - from;
    piece->at = at + (from - first);
}

enum status rankfile_read_again(struct rankfile *file, struct read_ahead_piece *piece, struct error *err)
{
    rankfile_close(piece->file);
    piece->file = retain(file);
    return read_piece(NULL, piece, err);
}

int rankfile_rank(const struct read_ahead_piece *piece)
{
    return piece->file->shape.rank;
}

/* Verifies a frame and decompresses it into scratch->planes. Called by a team. */
static enum status frame_unpack(const struct rankfile *file, struct frame_scratch *scratch, const struct frame *frame,
                                const uint8_t *stored, struct error *err)
{
    size_t bytes = (size_t)frame->count * 4;
    const char *state = file->shape.state_name[frame->state];
    if (XXH3_64bits(stored, frame->stored) != frame->checksum)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' is damaged at offset %" PRId64 ": %u bytes (%s, unit %u, elements from %" PRId64
                         ") do not match their checksum",
                         file->path, frame->offset, frame->stored, state, frame->unit, frame->first);
    if (ZSTD_getFrameContentSize(stored, frame->stored) != bytes)
        return damaged_rankfile(file->path, frame->offset, "the frame's content size differs from the table's", err);
    size_t got = ZSTD_decompressDCtx(scratch->decompress, scratch->planes, bytes, stored, frame->stored);
    if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation) memory_exhausted(0);
    if (got != bytes)
        return damaged_rankfile(file->path, frame->offset,
                                ZSTD_isError(got) ? ZSTD_getErrorName(got) : "the frame ends too early", err);
    return STATUS_OK;
}

/* The failure of the lowest frame that failed. */
struct first_fault {
    _Atomic int64_t frame; /* INT64_MAX: none */
    enum status status;
    struct error err;
};

/* Called by a team. A frame after one that has failed is not verified. */
static void unpack_next(struct rankfile_stream *stream, float *out, struct first_fault *fault)
{
    struct read_ahead_piece *piece = read_ahead_take(stream->ahead);
    if (!piece) /* after the failure of a read, which its piece has noted */
        return;
    if (piece->status == STATUS_OK && piece->number < fault->frame) {
        struct frame_scratch *scratch = &stream->scratch[rankfile_team_member()];
        const struct frame *frame = &piece->file->index->frames[piece->index];
        piece->status = frame_unpack(piece->file, scratch, frame, piece->stored, &piece->err);
        if (piece->status == STATUS_OK && piece->count)
            read_frame_planes(scratch->planes, frame->count, (size_t)piece->from, (size_t)piece->count,
                              out + piece->at);
    }
#pragma omp critical(rankfile_fault)
    if (piece->status != STATUS_OK && piece->number < fault->frame) {
        fault->frame = piece->number;
        fault->status = piece->status;
        fault->err = piece->err;
    }
    read_ahead_give(stream->ahead, piece);
}

enum status rankfile_stream_next(struct rankfile_stream *stream, int64_t frames, float *out, struct error *err)
{
    struct first_fault fault = {.frame = INT64_MAX, .status = STATUS_OK};
    int threads = stream->threads < frames ? stream->threads : (int)frames;
    (void)threads; /* a build without OpenMP has one */
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < frames; i++) {
        unpack_next(stream, out, &fault);
        heartbeat_beat();
    }
    if (fault.status != STATUS_OK && err) *err = fault.err;
    return fault.status;
}

/* ---- one file ------------------------------------------------------------ */

void rankfile_frames(const struct rankfile *file, int state, int unit, int64_t first, int64_t count, int64_t *begin,
                     int64_t *end)
{
    const struct rankfile_shape *shape = &file->shape;
    ASSERT(state >= 0 && state < shape->num_states && unit >= 0 && unit < shape->num_units);
    ASSERT(first >= 0 && count > 0 && count <= rankfile_elements(shape, state, unit) - first);
    int64_t base = 0;
    for (int s = 0; s <= state; s++)
        for (int u = 0; u < (s < state ? shape->num_units : unit); u++)
            base += frames_of(rankfile_elements(shape, s, u));
    *begin = base + first / RANKFILE_FRAME_ELEMENTS;
    *end = base + (first + count - 1) / RANKFILE_FRAME_ELEMENTS + 1;
}

static enum status name_next_frame(void *file, struct read_ahead_piece *piece, struct error *err)
{
    (void)err;
    rankfile_name(file, piece->number, 0, 0, 0, piece);
    return STATUS_OK;
}

enum status rankfile_verify(struct rankfile *file, struct error *err)
{
    RELEASED(rankfile_stream_drop) struct rankfile_stream *stream = NULL;
    const struct read_ahead_source source = {.context = file, .next = name_next_frame};
    TRY(rankfile_stream_new(&source, file->num_frames, &stream, err));
    return rankfile_stream_next(stream, file->num_frames, NULL, err);
}
