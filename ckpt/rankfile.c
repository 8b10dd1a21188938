/* rankfile.c: writes, reads and verifies rank files.
 *
 *   offset 0   u32 0x184D2A50  u32 56         head of a skippable zstd frame
 *          8   "ZTRRANK\0"                    magic
 *         16   u32 version, rank, world, states, units, elements per frame
 *         40   u64 frames, u64 elements of all slices of all states
 *         56   u64 XXH3 of bytes 0 … 55
 *         64   frame 0, frame 1, …            zstd frames, without gaps
 *              u32 0x184D2A51  u32 40·frames  head of a skippable zstd frame
 *              entries of 40 bytes            u32 state, unit; u64 first; u32 count, stored; u64 offset, checksum
 *
 * All numbers are little-endian. The sizes of the slices determine the number of frames and the elements of each; a
 * reader learns only `stored` and `checksum` from the table.
 *
 * Threads: an OpenMP team compresses (or reads and decompresses) frames; each thread has its own buffers. Frames are
 * compressed in batches, and the calling thread appends each batch, so the file is written front to back. (With an
 * ordered section instead, threads wait for each other at every frame, which is three times as slow on a busy machine.)
 * `struct outcome` collects the errors of the team; the frame of lowest index wins. */
#include "ckpt/rankfile.h"

#include "core/faults.h"
#include "core/fsutil.h"
#include "core/io.h"
#include "core/liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the rank file's byte planes and numbers are written for little-endian machines"
#endif

enum {
    VERSION = 1,
    HEADER_BYTES = 64,
    ENTRY_BYTES = 40,
    TABLE_HEAD_BYTES = 8,
    FRAME_RAW_BYTES = RANKFILE_FRAME_ELEMENTS * 4,
    BLOCK_BYTES = 128 * 1024, /* zstd's largest block */
    MAX_THREADS = 16,         /* the disk is the limit; more would only cost memory */
    BATCH_FRAMES = 4,         /* per thread: compressed before they are written */
};
#define SKIPPABLE_HEADER 0x184D2A50u
#define SKIPPABLE_TABLE 0x184D2A51u
#define FRAME_MAX_STORED ZSTD_COMPRESSBOUND(FRAME_RAW_BYTES)

/* The kernel is told to write back whenever this much has been written; see writer_nudge(). */
#define NUDGE_BYTES ((int64_t)32 << 20)

static const char magic[8] = "ZTRRANK";

struct frame {
    uint32_t state, unit;
    int64_t first; /* in the slice */
    uint32_t count, stored;
    int64_t offset;
    uint64_t checksum;
};

/* The buffers of one thread. */
struct scratch {
    uint8_t *planes; /* FRAME_RAW_BYTES */
    uint8_t *stored; /* FRAME_MAX_STORED; reading only */
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
};

/* The result of a team's work: the failure of the lowest frame. */
struct outcome {
    int64_t frame; /* INT64_MAX: none failed */
    enum status status;
    struct error err;
};

/* ---- bytes, planes, raw blocks ------------------------------------------- */

static void put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static void put_u64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* planes[k · count + i] = byte k of element i */
static void planes_split(const float *in, size_t count, uint8_t *planes)
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

/* Joins elements [from, from + n) of a frame of `count` elements. */
static void planes_join(const uint8_t *planes, size_t count, size_t from, size_t n, float *out)
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

/* Writes a zstd frame of raw blocks (single segment, content size in 4 bytes). Returns its length. */
static size_t raw_frame(const uint8_t *content, size_t bytes, uint8_t *out)
{
    uint8_t *p = out;
    put_u32(p, 0xFD2FB528u);
    p[4] = 0xA0;
    put_u32(p + 5, (uint32_t)bytes);
    p += 9;
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        uint32_t head = (uint32_t)(n << 3) | (done + n == bytes); /* type 0 (raw), last or not */
        p[0] = (uint8_t)head, p[1] = (uint8_t)(head >> 8), p[2] = (uint8_t)(head >> 16);
        memcpy(p + 3, content + done, n);
        p += 3 + n;
        done += n;
    }
    return (size_t)(p - out);
}

/* ---- threads and errors -------------------------------------------------- */

static int team_size(void)
{
#ifdef _OPENMP
    int n = omp_get_max_threads();
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
#else
    return 1;
#endif
}

static int team_member(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

static void scratch_free(struct scratch *scratch, int threads)
{
    if (!scratch)
        return;
    for (int i = 0; i < threads; i++) {
        free(scratch[i].planes);
        free(scratch[i].stored);
        ZSTD_freeCCtx(scratch[i].compress);
        ZSTD_freeDCtx(scratch[i].decompress);
    }
    free(scratch);
}

/* Byte planes of floats have a skewed distribution of bytes but hardly any repetition: a search for short matches costs
 * time and finds matches that do not pay. Up to level 3, only long matches are searched, in a small table (2.3 times as
 * fast as zstd's level 3, and smaller: docs/checkpoint-format.md has the measurements); higher levels are zstd's. */
static bool set_level(ZSTD_CCtx *compress, int level)
{
    bool ok = !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_compressionLevel, level));
    if (level <= 3)
        ok = ok && !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_strategy, ZSTD_fast)) &&
             !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_minMatch, 7)) &&
             !ZSTD_isError(ZSTD_CCtx_setParameter(compress, ZSTD_c_hashLog, 12));
    return ok;
}

/* level: of compression; 0: no compression; -1: for reading */
static struct scratch *scratch_new(int threads, int level)
{
    struct scratch *scratch = calloc((size_t)threads, sizeof *scratch);
    for (int i = 0; scratch && i < threads; i++) {
        struct scratch *s = &scratch[i];
        s->planes = malloc(FRAME_RAW_BYTES);
        bool ok = s->planes != NULL;
        if (level > 0) {
            s->compress = ZSTD_createCCtx();
            ok = ok && s->compress && set_level(s->compress, level);
        } else if (level < 0) {
            s->stored = malloc(FRAME_MAX_STORED);
            s->decompress = ZSTD_createDCtx();
            ok = ok && s->stored && s->decompress;
        }
        if (!ok) {
            scratch_free(scratch, threads);
            return NULL;
        }
    }
    return scratch;
}

static enum status out_of_memory(const char *path, struct error *err)
{
    return error_set(err, STATUS_DEVICE, "out of memory for the checkpoint file '%s'", path);
}

static void outcome_init(struct outcome *outcome)
{
    outcome->frame = INT64_MAX;
    outcome->status = STATUS_OK;
}

/* Any thread. */
static void outcome_note(struct outcome *outcome, int64_t frame, enum status status, const struct error *err)
{
#pragma omp critical(rankfile_outcome)
    if (frame < outcome->frame) {
        outcome->frame = frame;
        outcome->status = status;
        outcome->err = *err;
    }
}

/* Whether work on `frame` can still matter: no earlier frame has failed. */
static bool outcome_open(struct outcome *outcome, int64_t frame)
{
    bool open;
#pragma omp critical(rankfile_outcome)
    open = frame < outcome->frame;
    return open;
}

static enum status outcome_report(const struct outcome *outcome, struct error *err)
{
    if (outcome->status != STATUS_OK && err)
        *err = outcome->err;
    return outcome->status;
}

/* ---- the shape of a file ------------------------------------------------- */

static int64_t frames_of(int64_t elements)
{
    return elements / RANKFILE_FRAME_ELEMENTS + (elements % RANKFILE_FRAME_ELEMENTS != 0);
}

/* The number of elements of all slices of all states, or -1 (overflow). */
static int64_t shape_elements(const struct rankfile_shape *shape)
{
    int64_t sum = 0;
    for (int unit = 0; unit < shape->num_units; unit++)
        if (shape->slice[unit] < 1 || __builtin_add_overflow(sum, shape->slice[unit], &sum))
            return -1;
    if (__builtin_mul_overflow(sum, (int64_t)shape->num_states, &sum) || sum > INT64_MAX / 8)
        return -1;
    return sum;
}

int64_t rankfile_num_frames(const struct rankfile_shape *shape)
{
    if (shape_elements(shape) < 0)
        return -1;
    int64_t frames = 0;
    for (int unit = 0; unit < shape->num_units; unit++)
        frames += frames_of(shape->slice[unit]);
    frames *= shape->num_states;
    return frames <= (int64_t)(UINT32_MAX / ENTRY_BYTES) ? frames : -1;
}

static void header_encode(const struct rankfile_shape *shape, uint8_t *header)
{
    put_u32(header, SKIPPABLE_HEADER);
    put_u32(header + 4, HEADER_BYTES - 8);
    memcpy(header + 8, magic, sizeof magic);
    put_u32(header + 16, VERSION);
    put_u32(header + 20, (uint32_t)shape->rank);
    put_u32(header + 24, (uint32_t)shape->world);
    put_u32(header + 28, (uint32_t)shape->num_states);
    put_u32(header + 32, (uint32_t)shape->num_units);
    put_u32(header + 36, RANKFILE_FRAME_ELEMENTS);
    put_u64(header + 40, (uint64_t)rankfile_num_frames(shape));
    put_u64(header + 48, (uint64_t)shape_elements(shape));
    put_u64(header + 56, XXH3_64bits(header, 56));
}

static void entry_encode(const struct frame *frame, uint8_t *entry)
{
    put_u32(entry, frame->state);
    put_u32(entry + 4, frame->unit);
    put_u64(entry + 8, (uint64_t)frame->first);
    put_u32(entry + 16, frame->count);
    put_u32(entry + 20, frame->stored);
    put_u64(entry + 24, (uint64_t)frame->offset);
    put_u64(entry + 32, frame->checksum);
}

/* Fills in state, unit, first and count of the frame that follows `before` (NULL: of the first frame). */
static void frame_place(const struct rankfile_shape *shape, const struct frame *before, struct frame *frame)
{
    frame->state = before ? before->state : 0;
    frame->unit = before ? before->unit : 0;
    frame->first = before ? before->first + before->count : 0;
    if (frame->first == shape->slice[frame->unit]) {
        frame->first = 0;
        if (++frame->unit == (uint32_t)shape->num_units) {
            frame->unit = 0;
            frame->state++;
        }
    }
    int64_t left = shape->slice[frame->unit] - frame->first;
    frame->count = (uint32_t)(left < RANKFILE_FRAME_ELEMENTS ? left : RANKFILE_FRAME_ELEMENTS);
}

/* ---- writing ------------------------------------------------------------- */

struct rankfile_writer {
    char *path; /* owned */
    int fd;
    int level;
    struct rankfile_shape shape; /* its arrays are borrowed */
    int64_t num_frames, done;    /* frames in all, and written */
    struct frame *frames;        /* [num_frames] owned */
    int64_t offset, nudged;      /* bytes written; bytes given to the kernel's write-back */
    int threads;
    struct scratch *scratch; /* [threads] owned */
    uint8_t *batch;          /* [threads · BATCH_FRAMES][FRAME_MAX_STORED] owned */
    XXH3_state_t *index;     /* hash of the header, and at the end of the table */
};

static enum status write_error(const char *path, int64_t offset, struct error *err)
{
    int code = errno;
    enum status status =
        error_set(err, STATUS_CHECKPOINT, "cannot write '%s' at offset %" PRId64 ": %s", path, offset, strerror(code));
    if (code == ENOSPC || code == EDQUOT)
        error_hint(err, "free space there, or keep fewer checkpoints (checkpoint.keep_last)");
    error_cause(err, code);
    return status;
}

static enum status writer_append(struct rankfile_writer *writer, const void *data, size_t bytes, struct error *err)
{
    const uint8_t *p = data;
    while (bytes) {
        ssize_t n = fault_write(writer->fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return write_error(writer->path, writer->offset, err);
        p += n;
        bytes -= (size_t)n;
        writer->offset += n;
    }
    return STATUS_OK;
}

/* sync_file_range() as a slow call (liveness.h) */
static int sync_range(int fd, int64_t from, int64_t bytes, unsigned flags)
{
    struct slow_call slow;
    liveness_slow_begin(&slow, "writing", NULL, fd);
    int result = sync_file_range(fd, from, bytes, flags);
    liveness_slow_end(&slow);
    return result;
}

/* Starts write-back of the bytes since the last nudge, and waits for the window before that: the fsync at the end then
 * has little to do, and no single call blocks so long that peers take this rank for dead. */
static enum status writer_nudge(struct rankfile_writer *writer, struct error *err)
{
    if (writer->offset - writer->nudged < NUDGE_BYTES)
        return STATUS_OK;
    int64_t from = writer->nudged > NUDGE_BYTES ? writer->nudged - NUDGE_BYTES : 0;
    if (sync_range(writer->fd, writer->nudged, writer->offset - writer->nudged, SYNC_FILE_RANGE_WRITE) ||
        (writer->nudged > from &&
         sync_range(writer->fd, from, writer->nudged - from,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))) {
        /* if the file system cannot do this, fsync writes everything; but fsync would not report a real error again */
        if (errno != ENOSYS && errno != EINVAL && errno != ESPIPE && errno != EOPNOTSUPP)
            return write_error(writer->path, from, err);
    }
    writer->nudged = writer->offset;
    return STATUS_OK;
}

enum status rankfile_writer_new(const char *path, const struct rankfile_shape *shape, int level,
                                struct rankfile_writer **out, struct error *err)
{
    enum status status = STATUS_OK;
    struct rankfile_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return out_of_memory(path, err);
    writer->fd = -1;
    writer->level = level;
    writer->shape = *shape;
    writer->num_frames = rankfile_num_frames(shape);
    ASSERT(writer->num_frames > 0);
    writer->threads = team_size();
    writer->path = strdup(path);
    writer->frames = calloc((size_t)writer->num_frames, sizeof *writer->frames);
    writer->scratch = scratch_new(writer->threads, level);
    writer->batch = malloc((size_t)writer->threads * BATCH_FRAMES * FRAME_MAX_STORED);
    writer->index = XXH3_createState();
    if (!writer->path || !writer->frames || !writer->scratch || !writer->batch || !writer->index)
        TRY_GOTO(out_of_memory(path, err));

    writer->fd = io_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        int code = errno;
        status = error_set(err, STATUS_CHECKPOINT, "cannot create '%s': %s", path, strerror(code));
        error_cause(err, code);
        if (code == ENOENT)
            error_hint(err, "all ranks must see the same run folder (run.dir on a shared file system)");
        goto fail;
    }
    uint8_t header[HEADER_BYTES];
    header_encode(shape, header);
    XXH3_64bits_reset(writer->index);
    XXH3_64bits_update(writer->index, header, sizeof header);
    TRY_GOTO(writer_append(writer, header, sizeof header, err));
    *out = writer;
    return STATUS_OK;
fail:
    rankfile_writer_free(writer);
    return status;
}

/* Splits a frame into planes, compresses them into `stored` (FRAME_MAX_STORED bytes), and fills in everything of the
 * frame but its offset. Called by a team. */
static enum status frame_compress(const struct rankfile_writer *writer, struct scratch *scratch, const float *slice,
                                  struct frame *frame, uint8_t *stored, struct error *err)
{
    size_t bytes = (size_t)frame->count * 4, length;
    planes_split(slice + frame->first, frame->count, scratch->planes);
    if (writer->level == 0) {
        length = raw_frame(scratch->planes, bytes, stored);
    } else {
        length = ZSTD_compress2(scratch->compress, stored, FRAME_MAX_STORED, scratch->planes, bytes);
        if (ZSTD_isError(length) && ZSTD_getErrorCode(length) == ZSTD_error_memory_allocation)
            return out_of_memory(writer->path, err);
        if (ZSTD_isError(length))
            return error_set(err, STATUS_BUG, "cannot compress for '%s': %s", writer->path, ZSTD_getErrorName(length));
    }
    frame->stored = (uint32_t)length;
    frame->checksum = XXH3_64bits(stored, length);
    return STATUS_OK;
}

/* Compresses and appends the frames [begin, end), at most one batch. */
static enum status writer_batch(struct rankfile_writer *writer, int64_t begin, int64_t end, const float *slice,
                                struct error *err)
{
    struct outcome outcome;
    outcome_init(&outcome);
#pragma omp parallel for schedule(dynamic, 1) num_threads(writer->threads) if (end - begin > 1)
    for (int64_t i = begin; i < end; i++) {
        struct error bad;
        enum status status = frame_compress(writer, &writer->scratch[team_member()], slice, &writer->frames[i],
                                            writer->batch + (i - begin) * (int64_t)FRAME_MAX_STORED, &bad);
        if (status != STATUS_OK)
            outcome_note(&outcome, i, status, &bad);
        liveness_tick();
    }
    TRY(outcome_report(&outcome, err));
    for (int64_t i = begin; i < end; i++) {
        struct frame *frame = &writer->frames[i];
        frame->offset = writer->offset;
        TRY(writer_append(writer, writer->batch + (i - begin) * (int64_t)FRAME_MAX_STORED, frame->stored, err));
        TRY(writer_nudge(writer, err));
        liveness_tick();
    }
    return STATUS_OK;
}

enum status rankfile_writer_slice(struct rankfile_writer *writer, int state, int unit, const float *data,
                                  struct error *err)
{
    int64_t begin = writer->done, end = begin + frames_of(writer->shape.slice[unit]);
    ASSERT(end <= writer->num_frames);
    for (int64_t i = begin; i < end; i++)
        frame_place(&writer->shape, i ? &writer->frames[i - 1] : NULL, &writer->frames[i]);
    ASSERT(writer->frames[begin].state == (uint32_t)state && writer->frames[begin].unit == (uint32_t)unit);
    int64_t batch = (int64_t)writer->threads * BATCH_FRAMES;
    for (int64_t i = begin; i < end; i += batch)
        TRY(writer_batch(writer, i, i + batch < end ? i + batch : end, data, err));
    writer->done = end;
    return STATUS_OK;
}

enum status rankfile_writer_finish(struct rankfile_writer *writer, struct rankfile_facts *facts, struct error *err)
{
    ASSERT(writer->done == writer->num_frames);
    size_t bytes = TABLE_HEAD_BYTES + (size_t)writer->num_frames * ENTRY_BYTES;
    uint8_t *table = malloc(bytes);
    if (!table)
        return out_of_memory(writer->path, err);
    put_u32(table, SKIPPABLE_TABLE);
    put_u32(table + 4, (uint32_t)(bytes - TABLE_HEAD_BYTES));
    for (int64_t i = 0; i < writer->num_frames; i++)
        entry_encode(&writer->frames[i], table + TABLE_HEAD_BYTES + i * ENTRY_BYTES);
    XXH3_64bits_update(writer->index, table, bytes);
    enum status status = writer_append(writer, table, bytes, err);
    free(table);
    TRY(status);
    if (fault_fsync(writer->fd))
        return write_error(writer->path, writer->offset, err);
    liveness_tick();
    int fd = writer->fd;
    writer->fd = -1;
    if (io_close(fd)) /* some network file systems report a full disk only here */
        return write_error(writer->path, writer->offset, err);
    facts->bytes = writer->offset;
    facts->num_frames = writer->num_frames;
    facts->index_checksum = XXH3_64bits_digest(writer->index);
    return STATUS_OK;
}

void rankfile_writer_free(struct rankfile_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        io_close(writer->fd);
    scratch_free(writer->scratch, writer->threads);
    free(writer->batch);
    XXH3_freeState(writer->index);
    free(writer->frames);
    free(writer->path);
    free(writer);
}

/* ---- reading ------------------------------------------------------------- */

struct rankfile {
    char *path; /* owned */
    int fd;
    struct rankfile_shape shape; /* its arrays are borrowed */
    int64_t num_frames;
    struct frame *frames; /* [num_frames] owned; checked */
    int64_t *first_frame; /* [num_units] owned: first frame of the unit's slice of state 0; one state has
                           * frames_per_state frames */
    int64_t frames_per_state;
};

/* "'path' is damaged at offset N: WHAT" */
static enum status damaged(const char *path, int64_t offset, const char *what, struct error *err)
{
    return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged at offset %" PRId64 ": %s", path, offset, what);
}

/* Checks the header by itself, so that a wrong index checksum can be blamed on the header or on the table. */
static enum status header_check(const char *path, const struct rankfile_shape *shape, const uint8_t *header,
                                struct error *err)
{
    uint8_t expected[HEADER_BYTES];
    if (memcmp(header + 8, magic, sizeof magic) != 0)
        return damaged(path, 0, "it does not begin like a rank file", err);
    if (get_u64(header + 56) != XXH3_64bits(header, 56))
        return damaged(path, 0, "the header does not match its checksum", err);
    if (get_u32(header + 16) != VERSION)
        return error_set(err, STATUS_CHECKPOINT, "'%s' has format version %u; this ztrain reads %d", path,
                         get_u32(header + 16), VERSION);
    header_encode(shape, expected);
    if (memcmp(header, expected, HEADER_BYTES) != 0)
        return damaged(path, 0, "it is another rank's or another checkpoint's file", err);
    return STATUS_OK;
}

/* Decodes the table and checks that it has the frames of this shape, and that they fill the file up to the table. */
static enum status table_decode(struct rankfile *file, const uint8_t *table, int64_t table_offset, struct error *err)
{
    int64_t offset = HEADER_BYTES;
    for (int64_t i = 0; i < file->num_frames; i++) {
        const uint8_t *entry = table + TABLE_HEAD_BYTES + i * ENTRY_BYTES;
        int64_t at = table_offset + TABLE_HEAD_BYTES + i * ENTRY_BYTES;
        struct frame *frame = &file->frames[i];
        frame_place(&file->shape, i ? frame - 1 : NULL, frame);
        if (get_u32(entry) != frame->state || get_u32(entry + 4) != frame->unit ||
            get_u64(entry + 8) != (uint64_t)frame->first || get_u32(entry + 16) != frame->count)
            return damaged(file->path, at, "the table names another frame than the one expected here", err);
        frame->stored = get_u32(entry + 20);
        frame->offset = offset;
        frame->checksum = get_u64(entry + 32);
        if (frame->stored == 0 || frame->stored > FRAME_MAX_STORED || get_u64(entry + 24) != (uint64_t)offset ||
            frame->stored > table_offset - offset)
            return damaged(file->path, at, "a frame has an impossible offset or length", err);
        offset += frame->stored;
    }
    if (offset != table_offset)
        return damaged(file->path, offset, "there are bytes between the last frame and the table", err);
    return STATUS_OK;
}

/* Reads and checks header and table. bytes: the size of the file. */
static enum status index_load(struct rankfile *file, int64_t bytes, const struct rankfile_facts *facts,
                              struct error *err)
{
    enum status status = STATUS_OK;
    uint8_t *index = NULL; /* header, then table with its head */
    if (bytes != facts->bytes)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' is damaged at offset %" PRId64 ": it has %" PRId64
                         " bytes where the manifest has %" PRId64,
                         file->path, bytes < facts->bytes ? bytes : facts->bytes, bytes, facts->bytes);
    int64_t table_bytes = TABLE_HEAD_BYTES + file->num_frames * ENTRY_BYTES;
    int64_t table_offset = facts->bytes - table_bytes;
    if (facts->num_frames != file->num_frames || table_offset < HEADER_BYTES + file->num_frames)
        return damaged(file->path, 0, "its size is impossible for these slices", err);

    index = malloc((size_t)(HEADER_BYTES + table_bytes));
    file->frames = malloc((size_t)file->num_frames * sizeof *file->frames);
    if (!index || !file->frames)
        TRY_END(out_of_memory(file->path, err));
    TRY_END(fs_pread(file->fd, file->path, index, HEADER_BYTES, 0, STATUS_CHECKPOINT, err));
    TRY_END(fs_pread(file->fd, file->path, index + HEADER_BYTES, (size_t)table_bytes, table_offset, STATUS_CHECKPOINT,
                     err));
    TRY_END(header_check(file->path, &file->shape, index, err));
    if (XXH3_64bits(index, (size_t)(HEADER_BYTES + table_bytes)) != facts->index_checksum)
        TRY_END(damaged(file->path, table_offset, "the header and the frame table do not match the manifest's checksum",
                        err));
    if (get_u32(index + HEADER_BYTES) != SKIPPABLE_TABLE ||
        get_u32(index + HEADER_BYTES + 4) != (uint32_t)(table_bytes - TABLE_HEAD_BYTES))
        TRY_END(damaged(file->path, table_offset, "the frame table does not begin here", err));
    TRY_END(table_decode(file, index + HEADER_BYTES, table_offset, err));
end:
    free(index);
    return status;
}

enum status rankfile_open(const char *path, const struct rankfile_shape *shape, const struct rankfile_facts *facts,
                          struct rankfile **out, struct error *err)
{
    enum status status = STATUS_OK;
    struct rankfile *file = calloc(1, sizeof *file);
    if (!file)
        return out_of_memory(path, err);
    file->fd = -1;
    file->shape = *shape;
    file->num_frames = rankfile_num_frames(shape);
    ASSERT(file->num_frames > 0);
    file->path = strdup(path);
    file->first_frame = malloc((size_t)shape->num_units * sizeof *file->first_frame);
    if (!file->path || !file->first_frame)
        TRY_GOTO(out_of_memory(path, err));
    for (int unit = 0; unit < shape->num_units; unit++) {
        file->first_frame[unit] = file->frames_per_state;
        file->frames_per_state += frames_of(shape->slice[unit]);
    }
    int64_t bytes;
    TRY_GOTO(fs_open_read(path, STATUS_CHECKPOINT, &file->fd, &bytes, err));
    TRY_GOTO(index_load(file, bytes, facts, err));
    *out = file;
    return STATUS_OK;
fail:
    rankfile_close(file);
    return status;
}

void rankfile_close(struct rankfile *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        io_close(file->fd);
    free(file->frames);
    free(file->first_frame);
    free(file->path);
    free(file);
}

/* Reads, verifies and decompresses a frame into scratch->planes. Called by a team. */
static enum status frame_read(const struct rankfile *file, struct scratch *scratch, const struct frame *frame,
                              struct error *err)
{
    size_t bytes = (size_t)frame->count * 4;
    TRY(fs_pread(file->fd, file->path, scratch->stored, frame->stored, frame->offset, STATUS_CHECKPOINT, err));
    const char *state = file->shape.state_name[frame->state];
    if (XXH3_64bits(scratch->stored, frame->stored) != frame->checksum)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' is damaged at offset %" PRId64 ": %u bytes (%s, unit %u, elements from %" PRId64
                         ") do not match their checksum",
                         file->path, frame->offset, frame->stored, state, frame->unit, frame->first);
    if (ZSTD_getFrameContentSize(scratch->stored, frame->stored) != bytes)
        return damaged(file->path, frame->offset, "the frame's content size differs from the table's", err);
    size_t got = ZSTD_decompressDCtx(scratch->decompress, scratch->planes, bytes, scratch->stored, frame->stored);
    if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation)
        return out_of_memory(file->path, err);
    if (got != bytes)
        return damaged(file->path, frame->offset,
                       ZSTD_isError(got) ? ZSTD_getErrorName(got) : "the frame ends too early", err);
    return STATUS_OK;
}

/* Reads the frames [begin, end) of one slice; out gets elements [first, first + count) of the slice (NULL: the frames
 * are only verified). */
static enum status frames_read(struct rankfile *file, int64_t begin, int64_t end, int64_t first, int64_t count,
                               float *out, struct error *err)
{
    int threads = team_size() < end - begin ? team_size() : (int)(end - begin);
    struct scratch *scratches = scratch_new(threads, -1);
    if (!scratches)
        return out_of_memory(file->path, err);
    struct outcome outcome;
    outcome_init(&outcome);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = begin; i < end; i++) {
        if (!outcome_open(&outcome, i))
            continue;
        struct scratch *scratch = &scratches[team_member()];
        const struct frame *frame = &file->frames[i];
        struct error bad;
        enum status status = frame_read(file, scratch, frame, &bad);
        if (status != STATUS_OK) {
            outcome_note(&outcome, i, status, &bad);
        } else if (out) {
            int64_t from = first > frame->first ? first : frame->first;
            int64_t last = frame->first + frame->count, to = first + count < last ? first + count : last;
            planes_join(scratch->planes, frame->count, (size_t)(from - frame->first), (size_t)(to - from),
                        out + (from - first));
        }
        liveness_tick();
    }
    scratch_free(scratches, threads);
    return outcome_report(&outcome, err);
}

enum status rankfile_read(struct rankfile *file, int state, int unit, int64_t first, int64_t count, float *out,
                          struct error *err)
{
    ASSERT(state >= 0 && state < file->shape.num_states && unit >= 0 && unit < file->shape.num_units);
    ASSERT(first >= 0 && count >= 0 && count <= file->shape.slice[unit] - first);
    if (count == 0)
        return STATUS_OK;
    int64_t base = state * file->frames_per_state + file->first_frame[unit];
    return frames_read(file, base + first / RANKFILE_FRAME_ELEMENTS,
                       base + (first + count - 1) / RANKFILE_FRAME_ELEMENTS + 1, first, count, out, err);
}

enum status rankfile_verify(struct rankfile *file, struct error *err)
{
    return frames_read(file, 0, file->num_frames, 0, 0, NULL, err);
}
