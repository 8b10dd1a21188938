/* SPDX-License-Identifier: Apache-2.0 */
/* slice_file.c: see slice_file.h. In walks the buffer of a piece follows from its number. One is in use and one is
 * written: two fewer than the buffers are read ahead, at least one where there are two.
 *
 * Streams have the buffers after those: the readers', of which that with the oldest read is used next, then one or two
 * for each writer. When the work runs, record_file.h knows whether a buffer still holds a piece's latest bytes. */
#include "comm/zero/slice_file.h"

#include "core/memory.h"
#include "core/round_up.h"
#include "core/storage/record_file.h"

enum { NO_RECORD = -1, WRITERS_MAX = 2 };

/* A buffer for reading. */
struct reader {
    int record;    /* that was last assigned to it; NO_RECORD */
    uint64_t turn; /* of its last read */
};

struct slice_file {
    struct slice_file_config config;
    int records;
    int *first;     /* (num_units + 1): the unit's first record */
    int64_t *bytes; /* (records) */
    int walkers;    /* buffers of walks */
    int count;      /* of all buffers */
    size_t buffer_bytes;
    struct record_file *disk; /* NULL until slice_file_open() */
    /* streams; all of it is used when work is enqueued */
    int num_readers, each_writer; /* buffers for reading, and of each writer */
    struct reader *readers;
    uint64_t turn;
    int next_writer[WRITERS_MAX];
    int writing[WRITERS_MAX]; /* the buffer of the last slice_file_begin_write() */
};

/* ---- pieces -------------------------------------------------------------- */

static int record_of(const struct slice_file *file, int unit, int64_t at)
{
    ASSERT(unit >= file->config.first && unit < file->config.end && at >= 0 && at < file->config.layout->slice[unit]);
    return file->first[unit] + (int)(at / file->config.piece);
}

static int64_t piece_count(const struct slice_file *file, int unit, int64_t at)
{
    return min64(file->config.layout->slice[unit] - at, file->config.piece);
}

/* Bytes of elements [from, to) of the own slice in a part; those after the first one are moments. */
static int64_t part_between(const struct slice_file *file, int part, int unit, int64_t from, int64_t to)
{
    const struct shard_layout *layout = file->config.layout;
    const int64_t own = layout->slice[unit] * file->config.rank;
    const int64_t words = part ? moment_map_words(&layout->map, unit, own + from, own + to) : to - from;
    return words * (int64_t)dtype_size(file->config.dtype[part]);
}

/* Bytes of a part of the piece at `at`, the same for all ranks. */
static int64_t part_bytes(const struct slice_file *file, int part, int unit, int64_t at)
{
    const struct shard_layout *layout = file->config.layout;
    int64_t words = piece_count(file, unit, at);
    if (part) words = moment_map_room(&layout->map, unit, layout->slice[unit], layout->world, at, words);
    return round_up(words * (int64_t)dtype_size(file->config.dtype[part]), ASYNC_IO_ALIGN);
}

/* Bytes of the record of that piece before `part`; of all parts: its size. */
static int64_t part_offset(const struct slice_file *file, int part, int unit, int64_t at)
{
    int64_t offset = 0;
    for (int p = 0; p < part; p++) offset += part_bytes(file, p, unit, at);
    return offset;
}

/* ---- creation ------------------------------------------------------------ */

static void count_records(struct slice_file *file)
{
    const struct slice_file_config *config = &file->config;
    const int64_t piece = config->piece;
    const int units = config->layout->num_units;
    file->first = memory_zeroed((size_t)units + 1, sizeof *file->first);
    for (int u = 0; u < units; u++) {
        const bool here = u >= config->first && u < config->end;
        file->first[u + 1] = file->first[u] + (here ? (int)((config->layout->slice[u] + piece - 1) / piece) : 0);
    }
    file->records = file->first[units];
    file->bytes = memory_zeroed((size_t)file->records, sizeof *file->bytes);
    for (int u = config->first; u < config->end; u++)
        for (int64_t at = 0; at < config->layout->slice[u]; at += piece)
            file->bytes[record_of(file, u, at)] = part_offset(file, config->parts, u, at);
    file->buffer_bytes = record_file_buffer_bytes(file->bytes, file->records);
}

static void count_buffers(struct slice_file *file)
{
    const struct slice_file_config *config = &file->config;
    file->walkers = config->walk_buffers < file->records ? config->walk_buffers : file->records;
    file->count = file->walkers;
    if (!config->stream_buffers) return;
    ASSERT(config->writers > 0 && config->writers <= WRITERS_MAX && config->parts == 1);
    file->each_writer = config->stream_buffers > 2 * config->writers ? 2 : 1;
    int rest = config->stream_buffers - config->writers * file->each_writer;
    file->num_readers = rest > 1 ? rest : 1;
    file->count += file->num_readers + config->writers * file->each_writer;
    file->readers = memory_zeroed((size_t)file->num_readers, sizeof *file->readers);
    for (int i = 0; i < file->num_readers; i++) file->readers[i].record = NO_RECORD;
}

struct slice_file *slice_file_new(const struct slice_file_config *config)
{
    ASSERT(config->first < config->end && config->end <= config->layout->num_units);
    ASSERT(config->parts <= SLICE_FILE_PARTS && config->piece > 0 && config->piece % SLICE_FILE_ALIGN == 0);
    struct slice_file *file = memory_zeroed(1, sizeof *file);
    file->config = *config;
    count_records(file);
    count_buffers(file);
    return file;
}

enum status slice_file_open(struct slice_file *file, const struct disk *disk, struct error *err)
{
    const struct slice_file_config *config = &file->config;
    const struct disk_file_config place = {.name = config->name,
                                           .folder = config->folder,
                                           .rank = config->rank,
                                           .bytes = slice_file_bytes(file),
                                           .io = config->io};
    struct disk_file *opened;
    TRY(disk->open(disk, &place, &opened, err));
    file->disk = record_file_new(opened, file->bytes, file->records, file->count);
    return STATUS_OK;
}

void slice_file_free(struct slice_file *file)
{
    if (!file) return;
    record_file_free(file->disk);
    free(file->readers);
    free(file->first);
    free(file->bytes);
    free(file);
}

void slice_file_layout(struct slice_file *file, struct arena *host, enum mem_kind kind)
{
    char *memory = arena_take(host, kind, (size_t)file->count * file->buffer_bytes + ASYNC_IO_ALIGN);
    if (memory && file->disk) record_file_set_memory(file->disk, (void *)round_up((int64_t)memory, ASYNC_IO_ALIGN));
}

int64_t slice_file_bytes(const struct slice_file *file)
{
    return record_file_bytes(file->bytes, file->records);
}

enum status slice_file_status(struct slice_file *file, struct error *err)
{
    return file->disk ? record_file_status(file->disk, err) : STATUS_OK;
}

/* ---- walks --------------------------------------------------------------- */

static int walk_buffer(const struct slice_file *file, int record)
{
    return record % file->walkers;
}

/* Pieces that are read ahead. */
static int depth(const struct slice_file *file)
{
    int most = file->walkers > 2 ? file->walkers - 2 : file->walkers - 1;
    return file->config.read_ahead ? most : 0;
}

static void load_from(struct slice_file *file, int record, int count)
{
    for (int next = record; next < record + count && next < file->records; next++)
        record_file_load(file->disk, next, walk_buffer(file, next));
}

void slice_file_walk_to(struct slice_file *file, int unit, int64_t at, void *parts[])
{
    const int record = record_of(file, unit, at);
    const int64_t first = at - at % file->config.piece;
    load_from(file, record, 1 + depth(file)); /* this one first */
    char *memory = record_file_use(file->disk, record, walk_buffer(file, record));
    for (int p = 0; p < file->config.parts; p++)
        parts[p] = memory + part_offset(file, p, unit, first) + part_between(file, p, unit, first, at);
}

void slice_file_walk_store(struct slice_file *file, int unit, int64_t at)
{
    struct error ignored; /* it stays in the file's status */
    const int record = record_of(file, unit, at);
    record_file_store(file->disk, record, walk_buffer(file, record));
    if (!file->config.write_behind) (void)record_file_flush(file->disk, &ignored);
}

void slice_file_walk_ahead(struct slice_file *file)
{
    load_from(file, 0, depth(file));
}

/* ---- streams ------------------------------------------------------------- */

enum record_step { LOAD, USE, CLAIM, STORE };

struct record_work {
    struct record_file *disk;
    enum record_step step;
    int record, buffer;
};

static void slice_file_run_work(void *argument)
{
    const struct record_work *work = argument;
    switch (work->step) {
    case LOAD: record_file_load(work->disk, work->record, work->buffer); break;
    case USE: record_file_use(work->disk, work->record, work->buffer); break;
    case CLAIM: record_file_claim(work->disk, work->record, work->buffer); break;
    case STORE: record_file_store(work->disk, work->record, work->buffer); break;
    }
}

static void enqueue_work(struct slice_file *file, int record, int buffer, enum record_step step, struct stream *stream)
{
    const struct record_work work = {file->disk, step, record, buffer};
    stream_submit(stream, slice_file_run_work, &work, sizeof work);
}

/* The buffer in which the record was read last, else the one of the oldest read, which it gets. */
static struct reader *reader_of(struct slice_file *file, int record)
{
    struct reader *chosen = &file->readers[0];
    for (struct reader *reader = file->readers; reader < file->readers + file->num_readers; reader++) {
        if (reader->record == record) return reader;
        if (reader->turn < chosen->turn) chosen = reader;
    }
    chosen->record = record;
    return chosen;
}

static int reader_buffer(const struct slice_file *file, const struct reader *reader)
{
    return file->walkers + (int)(reader - file->readers);
}

static void enqueue_loads(struct slice_file *file, int unit, int64_t at, int pieces, struct stream *stream)
{
    const int64_t slice = file->config.layout->slice[unit];
    for (int i = 0; i < pieces && at < slice; i++, at += file->config.piece) {
        struct reader *reader = reader_of(file, record_of(file, unit, at));
        reader->turn = ++file->turn;
        enqueue_work(file, reader->record, reader_buffer(file, reader), LOAD, stream);
    }
}

void slice_file_read_ahead(struct slice_file *file, int unit, struct stream *stream)
{
    enqueue_loads(file, unit, 0, file->num_readers - 1, stream);
}

void slice_file_h2d(struct slice_file *file, int unit, void *memory, struct stream *stream)
{
    const int64_t slice = file->config.layout->slice[unit], piece = file->config.piece;
    const size_t size = dtype_size(file->config.dtype[0]);
    const int64_t ahead = file->num_readers * piece;
    enqueue_loads(file, unit, 0, file->num_readers, stream);
    for (int64_t at = 0; at < slice; at += piece) {
        const struct reader *reader = reader_of(file, record_of(file, unit, at));
        const int buffer = reader_buffer(file, reader);
        enqueue_work(file, reader->record, buffer, USE, stream);
        stream_copy_in_order(stream, (char *)memory + (size_t)at * size, record_file_buffer(file->disk, buffer),
                             (size_t)piece_count(file, unit, at) * size);
        enqueue_loads(file, unit, at + ahead, 1, stream);
    }
}

void *slice_file_begin_write(struct slice_file *file, int unit, int64_t at, int writer, struct stream *stream)
{
    ASSERT(writer >= 0 && writer < file->config.writers && at % file->config.piece == 0);
    const int turn = file->next_writer[writer]++ % file->each_writer;
    const int buffer = file->walkers + file->num_readers + writer * file->each_writer + turn;
    file->writing[writer] = buffer;
    enqueue_work(file, record_of(file, unit, at), buffer, CLAIM, stream);
    return record_file_buffer(file->disk, buffer);
}

void slice_file_end_write(struct slice_file *file, int unit, int64_t at, int writer, struct stream *stream)
{
    enqueue_work(file, record_of(file, unit, at), file->writing[writer], STORE, stream);
}

void slice_file_d2h(struct slice_file *file, int unit, const void *memory, struct stream *stream)
{
    const int64_t slice = file->config.layout->slice[unit], piece = file->config.piece;
    const size_t size = dtype_size(file->config.dtype[0]);
    for (int64_t at = 0; at < slice; at += piece) {
        void *address = slice_file_begin_write(file, unit, at, 0, stream);
        stream_copy(stream, address, (const char *)memory + (size_t)at * size,
                    (size_t)piece_count(file, unit, at) * size);
        slice_file_end_write(file, unit, at, 0, stream);
    }
}

/* ---- between steps ------------------------------------------------------- */

/* Pieces of moments in 8 bits end anywhere, and the disk takes aligned addresses: bytes are moved from or to these. */
enum status slice_file_transfer(struct slice_file *file, bool write, int unit, int part, void *memory,
                                struct error *err)
{
    const int64_t slice = file->config.layout->slice[unit], piece = file->config.piece;
    const int64_t last = (slice - 1) / piece * piece;
    for (int64_t i = 0; i < slice; i += piece) {
        const int64_t at = write ? last - i : i, bytes = part_bytes(file, part, unit, at);
        const int64_t place = part_between(file, part, unit, 0, at), count = piece_count(file, unit, at);
        const size_t own = (size_t)part_between(file, part, unit, at, at + count);
        char *exact = (char *)memory + place, *aligned = (char *)memory + round_up(place, ASYNC_IO_ALIGN);
        if (write && aligned != exact) memmove(aligned, exact, own);
        TRY(record_file_part(file->disk, write, record_of(file, unit, at), part_offset(file, part, unit, at), aligned,
                             bytes, err));
        if (!write && aligned != exact) memmove(exact, aligned, own);
    }
    return STATUS_OK;
}
