/* SPDX-License-Identifier: Apache-2.0 */
/* rankfile_write.c: a team of threads compresses a batch of frames, and the calling thread appends it. (In an ordered
 * section threads would wait for each other at every frame: three times as slow on a busy machine.) */
#include "ckpt/rankfile_frames.h"
#include "core/core.h"
#include "core/faults.h"

#include <xxhash.h>
#include <zstd_errors.h>

enum {
    BLOCK_BYTES = 128 * 1024, /* zstd's largest block */
    BATCH_FRAMES = 4,         /* per thread: compressed before they are written */
};
#define NUDGE_BYTES ((int64_t)32 << 20) /* writer_nudge() */

/* planes[k · count + i] = byte k of element i */
static void write_frame_planes(const float *in, size_t count, uint8_t *planes)
{
    const uint8_t *bytes = (const uint8_t *)in;
    uint8_t *p0 = planes, *p1 = p0 + count, *p2 = p1 + count, *p3 = p2 + count;
    for (size_t i = 0; i < count; i++) {
        p0[i] = bytes[4 * i];
        p1[i] = bytes[4 * i + 1];
        p2[i] = bytes[4 * i + 2];
        p3[i] = bytes[4 * i + 3];
    }
}

/* Writes a zstd frame of raw blocks (single segment, content size in 4 bytes). Returns its length. */
static size_t write_raw_frame(const uint8_t *content, size_t bytes, uint8_t *out)
{
    const uint32_t magic = 0xFD2FB528, size = (uint32_t)bytes;
    uint8_t *p = out + 9;
    memcpy(out, &magic, sizeof magic);
    out[4] = 0xA0;
    memcpy(out + 5, &size, sizeof size);
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        uint32_t head = (uint32_t)(n << 3) | (done + n == bytes); /* type 0 (raw), last or not */
        memcpy(p, &head, 3);
        memcpy(p + 3, content + done, n);
        p += 3 + n;
        done += n;
    }
    return (size_t)(p - out);
}

struct rankfile_writer {
    char *path; /* owned */
    int fd, level;
    struct rankfile_shape shape; /* its arrays are borrowed */
    int64_t num_frames, done;    /* frames in all, and written */
    struct rank_index *index;    /* owned */
    int64_t offset, nudged;      /* bytes written; bytes given to the kernel's write-back */
    int threads;
    struct frame_scratch *scratch; /* [threads] owned */
    uint8_t *batch;                /* [threads · BATCH_FRAMES][FRAME_MAX_STORED] owned */
};

static enum status write_error(const char *path, int64_t offset, struct error *err)
{
    const int code = errno;
    error_system(err, STATUS_CHECKPOINT, code, "cannot write '%s' at offset %" PRId64, path, offset);
    if (code == ENOSPC || code == EDQUOT)
        error_hint(err, "free space there, or keep fewer checkpoints (checkpoint.keep_last)");
    return STATUS_CHECKPOINT;
}

static enum status writer_append(struct rankfile_writer *writer, const void *data, size_t bytes, struct error *err)
{
    const uint8_t *p = data;
    while (bytes) {
        ssize_t n = fault_write(writer->fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return write_error(writer->path, writer->offset, err);
        p += n;
        bytes -= (size_t)n;
        writer->offset += n;
    }
    return STATUS_OK;
}

/* Starts write-back of the bytes since the last nudge, and waits for the window before that, so that no single call,
 * nor the fsync at the end, blocks so long that peers take this rank for dead. */
static enum status writer_nudge(struct rankfile_writer *writer, struct error *err)
{
    if (writer->offset - writer->nudged < NUDGE_BYTES) return STATUS_OK;
    int64_t from = writer->nudged > NUDGE_BYTES ? writer->nudged - NUDGE_BYTES : 0;
    if (io_sync_range(writer->fd, writer->nudged, writer->offset - writer->nudged, SYNC_FILE_RANGE_WRITE) ||
        (writer->nudged > from &&
         io_sync_range(writer->fd, from, writer->nudged - from,
                       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))) {
        /* if the file system cannot do this, fsync writes everything; but fsync would not report a real error again */
        if (errno != ENOSYS && errno != EINVAL && errno != ESPIPE && errno != EOPNOTSUPP)
            return write_error(writer->path, from, err);
    }
    writer->nudged = writer->offset;
    return STATUS_OK;
}

static size_t index_bytes(const struct rankfile_writer *writer)
{
    return sizeof *writer->index + (size_t)writer->num_frames * sizeof *writer->index->frames;
}

enum status rankfile_writer_new(const char *path, const struct rankfile_shape *shape, int level,
                                struct rankfile_writer **out, struct error *err)
{
    RELEASED(rankfile_writer_drop) struct rankfile_writer *writer = memory_zeroed(1, sizeof *writer);
    writer->fd = -1;
    writer->level = level;
    writer->shape = *shape;
    writer->num_frames = rankfile_num_frames(shape);
    ASSERT(writer->num_frames > 0);
    writer->threads = rankfile_team_size();
    writer->path = memory_text(path);
    writer->index = memory_zeroed(1, index_bytes(writer));
    writer->scratch = rankfile_scratch_new(writer->threads, level);
    writer->batch = memory_alloc((size_t)writer->threads * BATCH_FRAMES * FRAME_MAX_STORED);
    writer->fd = io_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        const bool absent = errno == ENOENT;
        error_system(err, STATUS_CHECKPOINT, errno, "cannot create '%s'", path);
        if (absent) error_hint(err, "all ranks must see the same run folder (run.dir on a shared file system)");
        return STATUS_CHECKPOINT;
    }
    writer->index->header = rankfile_header(shape);
    writer->index->head = rankfile_table_head(writer->num_frames);
    TRY(writer_append(writer, &writer->index->header, sizeof writer->index->header, err));
    *out = TAKEN(writer);
    return STATUS_OK;
}

/* Into `stored` (FRAME_MAX_STORED bytes); fills in everything of the frame but its offset. Called by a team. */
static void frame_compress(const struct rankfile_writer *writer, const float *slice, struct frame *frame,
                           uint8_t *stored)
{
    struct frame_scratch *scratch = &writer->scratch[rankfile_team_member()];
    size_t bytes = (size_t)frame->count * 4, length;
    write_frame_planes(slice + frame->first, frame->count, scratch->planes);
    if (writer->level == 0)
        length = write_raw_frame(scratch->planes, bytes, stored);
    else
        length = ZSTD_compress2(scratch->compress, stored, FRAME_MAX_STORED, scratch->planes, bytes);
    if (ZSTD_isError(length) && ZSTD_getErrorCode(length) == ZSTD_error_memory_allocation) memory_exhausted(0);
    if (ZSTD_isError(length)) BUG("cannot compress for '%s': %s", writer->path, ZSTD_getErrorName(length));
    frame->stored = (uint32_t)length;
    frame->checksum = XXH3_64bits(stored, length);
}

static enum status writer_batch(struct rankfile_writer *writer, int64_t begin, int64_t end, const float *slice,
                                struct error *err)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads(writer->threads) if (end - begin > 1)
    for (int64_t i = begin; i < end; i++) {
        frame_compress(writer, slice, &writer->index->frames[i],
                       writer->batch + (i - begin) * (int64_t)FRAME_MAX_STORED);
        heartbeat_beat();
    }
    for (int64_t i = begin; i < end; i++) {
        struct frame *frame = &writer->index->frames[i];
        frame->offset = writer->offset;
        TRY(writer_append(writer, writer->batch + (i - begin) * (int64_t)FRAME_MAX_STORED, frame->stored, err));
        TRY(writer_nudge(writer, err));
        heartbeat_beat();
    }
    return STATUS_OK;
}

enum status rankfile_writer_slice(struct rankfile_writer *writer, int state, int unit, const float *data,
                                  struct error *err)
{
    struct frame *frames = writer->index->frames;
    int64_t begin = writer->done, end = begin + frames_of(rankfile_elements(&writer->shape, state, unit));
    ASSERT(end <= writer->num_frames);
    for (int64_t i = begin; i < end; i++) rankfile_frame_place(&writer->shape, i ? &frames[i - 1] : NULL, &frames[i]);
    ASSERT(frames[begin].state == (uint32_t)state && frames[begin].unit == (uint32_t)unit);
    int64_t batch = (int64_t)writer->threads * BATCH_FRAMES;
    for (int64_t i = begin; i < end; i += batch)
        TRY(writer_batch(writer, i, i + batch < end ? i + batch : end, data, err));
    writer->done = end;
    return STATUS_OK;
}

enum status rankfile_writer_finish(struct rankfile_writer *writer, struct rankfile_facts *facts, struct error *err)
{
    ASSERT(writer->done == writer->num_frames);
    TRY(writer_append(writer, &writer->index->head, index_bytes(writer) - sizeof writer->index->header, err));
    if (FAULT(FSYNC, io_fsync(writer->fd))) return write_error(writer->path, writer->offset, err);
    heartbeat_beat();
    int fd = writer->fd;
    writer->fd = -1;
    if (io_close(fd)) /* some network file systems report a full disk only here */
        return write_error(writer->path, writer->offset, err);
    facts->bytes = writer->offset;
    facts->num_frames = writer->num_frames;
    facts->index_checksum = XXH3_64bits(writer->index, index_bytes(writer));
    return STATUS_OK;
}

void rankfile_writer_free(struct rankfile_writer *writer)
{
    if (!writer) return;
    if (writer->fd >= 0) io_close(writer->fd);
    rankfile_scratch_free(writer->scratch, writer->threads);
    free(writer->batch);
    free(writer->index);
    free(writer->path);
    free(writer);
}
