/* SPDX-License-Identifier: Apache-2.0 */
#include "core/storage/record_file.h"

#include "core/core.h"

enum { NO_RECORD = -1 };

struct record_buffer {
    char *memory;
    int record; /* whose bytes are here, or on their way; NO_RECORD */
    struct io_request request;
};

struct record_file {
    struct disk_file *disk; /* owned */
    int records, count;     /* count: of buffers */
    int64_t *bytes;         /* (records): of each, rounded up to ASYNC_IO_ALIGN */
    int64_t *offset;        /* (records) */
    size_t buffer_bytes;
    struct record_buffer *buffers;
    pthread_mutex_t mutex; /* of the buffers' record, and of failure */
    struct error failure;  /* the first; code STATUS_OK: none */
};

int64_t record_file_bytes(const int64_t *bytes, int records)
{
    int64_t sum = 0;
    for (int i = 0; i < records; i++) sum += round_up(bytes[i], ASYNC_IO_ALIGN);
    return sum;
}

size_t record_file_buffer_bytes(const int64_t *bytes, int records)
{
    int64_t largest = 0;
    for (int i = 0; i < records; i++) largest = bytes[i] > largest ? bytes[i] : largest;
    return (size_t)round_up(largest, ASYNC_IO_ALIGN);
}

struct record_file *record_file_new(struct disk_file *disk, const int64_t *bytes, int records, int buffers)
{
    ASSERT(records > 0 && buffers > 0);
    struct record_file *file = memory_zeroed(1, sizeof *file);
    pthread_mutex_init(&file->mutex, NULL);
    file->disk = disk;
    file->records = records;
    file->count = buffers;
    file->buffer_bytes = record_file_buffer_bytes(bytes, records);
    file->bytes = memory_zeroed((size_t)records, sizeof *file->bytes);
    file->offset = memory_zeroed((size_t)records, sizeof *file->offset);
    file->buffers = memory_zeroed((size_t)buffers, sizeof *file->buffers);
    for (int i = 0; i < records; i++) {
        file->bytes[i] = round_up(bytes[i], ASYNC_IO_ALIGN);
        file->offset[i] = i ? file->offset[i - 1] + file->bytes[i - 1] : 0;
    }
    for (int i = 0; i < buffers; i++) file->buffers[i].record = NO_RECORD;
    return file;
}

void record_file_free(struct record_file *file)
{
    if (!file) return;
    for (int i = 0; i < file->count; i++) file->disk->wait(file->disk, &file->buffers[i].request, NULL);
    file->disk->close(file->disk);
    pthread_mutex_destroy(&file->mutex);
    free(file->bytes);
    free(file->offset);
    free(file->buffers);
    free(file);
}

void record_file_set_memory(struct record_file *file, void *memory)
{
    ASSERT((uintptr_t)memory % ASYNC_IO_ALIGN == 0);
    for (int i = 0; i < file->count; i++) file->buffers[i].memory = (char *)memory + (size_t)i * file->buffer_bytes;
}

void *record_file_buffer(const struct record_file *file, int buffer)
{
    ASSERT(buffer >= 0 && buffer < file->count && file->buffers[buffer].memory);
    return file->buffers[buffer].memory;
}

/* ---- transfers ----------------------------------------------------------- */

/* Later attempts cannot succeed (error_is_transient()): the bytes are lost. */
static void keep_failure(struct record_file *file, struct error *err)
{
    error_cause(err, 0);
    LOCKED(&file->mutex);
    if (file->failure.code == STATUS_OK) file->failure = *err;
}

static void finish(struct record_file *file, struct record_buffer *buffer)
{
    struct error err;
    if (file->disk->wait(file->disk, &buffer->request, &err) != STATUS_OK) keep_failure(file, &err);
}

static void start(struct record_file *file, struct record_buffer *buffer, int record, bool write)
{
    ASSERT(file->bytes[record] > 0);
    const struct io_transfer transfer = {
        .write = write, .data = buffer->memory, .bytes = file->bytes[record], .offset = file->offset[record]};
    file->disk->submit(file->disk, &buffer->request, &transfer);
}

static struct record_buffer *buffer_at(struct record_file *file, int record, int buffer)
{
    ASSERT(record >= 0 && record < file->records && buffer >= 0 && buffer < file->count);
    ASSERT(file->buffers[buffer].memory);
    return &file->buffers[buffer];
}

/* Gives the buffer to the record once neither is in flight: until its write is over, a reader finds it and waits. */
static void take_buffer(struct record_file *file, int record, struct record_buffer *buffer)
{
    struct record_buffer *other = NULL;
    finish(file, buffer);
    pthread_mutex_lock(&file->mutex);
    buffer->record = record;
    for (int i = 0; i < file->count; i++)
        if (&file->buffers[i] != buffer && file->buffers[i].record == record) other = &file->buffers[i];
    if (other) other->record = NO_RECORD;
    pthread_mutex_unlock(&file->mutex);
    if (other) finish(file, other);
}

void record_file_load(struct record_file *file, int record, int index)
{
    struct record_buffer *buffer = buffer_at(file, record, index);
    pthread_mutex_lock(&file->mutex);
    const bool holds = buffer->record == record;
    pthread_mutex_unlock(&file->mutex);
    if (holds) return;
    take_buffer(file, record, buffer);
    start(file, buffer, record, false);
}

void *record_file_use(struct record_file *file, int record, int index)
{
    struct record_buffer *buffer = buffer_at(file, record, index);
    record_file_load(file, record, index);
    finish(file, buffer);
    return buffer->memory;
}

void *record_file_claim(struct record_file *file, int record, int index)
{
    struct record_buffer *buffer = buffer_at(file, record, index);
    take_buffer(file, record, buffer);
    return buffer->memory;
}

void record_file_store(struct record_file *file, int record, int index)
{
    struct record_buffer *buffer = buffer_at(file, record, index);
    ASSERT(buffer->record == record);
    start(file, buffer, record, true);
}

enum status record_file_part(struct record_file *file, bool write, int record, int64_t offset, void *memory,
                             int64_t bytes, struct error *err)
{
    ASSERT(record >= 0 && record < file->records && offset >= 0 && offset + bytes <= file->bytes[record]);
    ASSERT(((uintptr_t)memory | (uint64_t)offset | (uint64_t)bytes) % ASYNC_IO_ALIGN == 0);
    for (int i = 0; write && i < file->count; i++)
        if (file->buffers[i].record == record) file->buffers[i].record = NO_RECORD;
    TRY(record_file_flush(file, err));
    struct io_request request = {0};
    const struct io_transfer transfer = {
        .write = write, .data = memory, .bytes = bytes, .offset = file->offset[record] + offset};
    file->disk->submit(file->disk, &request, &transfer);
    if (file->disk->wait(file->disk, &request, err) != STATUS_OK) keep_failure(file, err);
    return record_file_status(file, err);
}

enum status record_file_flush(struct record_file *file, struct error *err)
{
    for (int i = 0; i < file->count; i++) finish(file, &file->buffers[i]);
    return record_file_status(file, err);
}

enum status record_file_status(struct record_file *file, struct error *err)
{
    LOCKED(&file->mutex);
    enum status status = file->failure.code;
    if (status != STATUS_OK) *err = file->failure;
    return status;
}
