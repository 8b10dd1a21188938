/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/teacher_file.h"

#include "core/core.h"
#include "core/dtype.h"

static const char teacher_magic[8] = "ztteach\1";
enum { TEACHER_HEADER = 32 };

static int64_t row_bytes(const struct teacher_file *file)
{
    return file->K * (int64_t)(sizeof(int32_t) + sizeof(uint16_t));
}

static int64_t row_offset(const struct teacher_file *file, int64_t token)
{
    return TEACHER_HEADER + token * row_bytes(file);
}

enum status teacher_file_open(const char *path, bool writes, struct teacher_file **file, struct error *err)
{
    char header[TEACHER_HEADER];
    int64_t bytes;
    *file = NULL;
    RELEASED(teacher_file_drop) struct teacher_file *new = memory_zeroed(1, sizeof *new);
    new->path = memory_text(path);
    new->fd = -1;
    TRY(fs_open_read(path, STATUS_DATA, &new->fd, &bytes, err));
    if (bytes >= TEACHER_HEADER) TRY(fs_pread(new->fd, path, header, sizeof header, 0, STATUS_DATA, err));
    if (bytes < TEACHER_HEADER || memcmp(header, teacher_magic, sizeof teacher_magic) != 0)
        return error_set(err, STATUS_DATA, "'%s' has no teacher; hint: ztrain score --top-k K writes one", path);
    memcpy(&new->data, header + 8, sizeof new->data);
    memcpy(&new->tokens, header + 16, sizeof new->tokens);
    memcpy(&new->K, header + 24, sizeof new->K);
    memcpy(&new->V, header + 28, sizeof new->V);
    if (writes) {
        io_close(new->fd);
        new->fd = io_open(path, O_RDWR | O_CLOEXEC);
        if (new->fd < 0) return error_system(err, STATUS_DATA, errno, "cannot write '%s'", path);
    }
    if (new->K < 1 || new->V < new->K || new->tokens < 0 || bytes != row_offset(new, new->tokens))
        return error_set(err, STATUS_DATA, "'%s' is damaged: %lld bytes for %lld tokens of %d each", path,
                         (long long)bytes, (long long)new->tokens, new->K);
    *file = TAKEN(new);
    return STATUS_OK;
}

enum status teacher_file_create(const struct teacher_file *wanted, struct error *err)
{
    char header[TEACHER_HEADER];
    RELEASED(fs_close) int fd = io_open(wanted->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return error_system(err, STATUS_DATA, errno, "cannot make '%s'", wanted->path);
    memcpy(header, teacher_magic, sizeof teacher_magic);
    memcpy(header + 8, &wanted->data, sizeof wanted->data);
    memcpy(header + 16, &wanted->tokens, sizeof wanted->tokens);
    memcpy(header + 24, &wanted->K, sizeof wanted->K);
    memcpy(header + 28, &wanted->V, sizeof wanted->V);
    TRY(fs_write(fd, wanted->path, header, sizeof header, STATUS_DATA, err));
    OWNED char *row = memory_alloc((size_t)row_bytes(wanted));
    memset(row, 0xff, (size_t)row_bytes(wanted));
    for (int64_t token = 0; token < wanted->tokens; token++)
        TRY(fs_write(fd, wanted->path, row, (size_t)row_bytes(wanted), STATUS_DATA, err));
    return STATUS_OK;
}

void teacher_file_close(struct teacher_file *file)
{
    if (!file) return;
    if (file->fd >= 0) io_close(file->fd);
    free(file->path);
    free(file);
}

enum status teacher_file_read(const struct teacher_file *file, int64_t first, int64_t count, int32_t *ids, float *logps,
                              struct error *err)
{
    const size_t bytes = (size_t)row_bytes(file), K = (size_t)file->K;
    OWNED char *rows = memory_alloc((size_t)count * bytes);
    TRY(fs_pread(file->fd, file->path, rows, (size_t)count * bytes, row_offset(file, first), STATUS_DATA, err));
    for (size_t r = 0; r < (size_t)count; r++) {
        uint16_t half;
        memcpy(ids + r * K, rows + r * bytes, K * sizeof *ids);
        for (size_t k = 0; k < K; k++) {
            memcpy(&half, rows + r * bytes + K * sizeof *ids + k * sizeof half, sizeof half);
            logps[r * K + k] = f16_to_f32(half);
        }
    }
    return STATUS_OK;
}

enum status teacher_file_write(const struct teacher_file *file, int64_t token, const int32_t *ids, const float *logps,
                               struct error *err)
{
    const size_t bytes = (size_t)row_bytes(file), K = (size_t)file->K;
    OWNED char *row = memory_alloc(bytes);
    memcpy(row, ids, K * sizeof *ids);
    for (size_t k = 0; k < K; k++) {
        const uint16_t half = f16_from_f32(logps[k]);
        memcpy(row + K * sizeof *ids + k * sizeof half, &half, sizeof half);
    }
    if (io_pwrite(file->fd, row, bytes, row_offset(file, token)) == (ssize_t)bytes) return STATUS_OK;
    return error_system(err, STATUS_DATA, errno, "cannot write '%s'", file->path);
}
