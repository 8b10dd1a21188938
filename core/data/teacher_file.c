/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/teacher_file.h"

#include "core/core.h"
#include "core/dtype.h"

static const char teacher_magic[8] = "ztteach\1";

static const float f16_lowest = -65504; /* below it is infinity */

static int64_t row_bytes(const struct teacher_header *header)
{
    return header->K * (int64_t)(sizeof(int32_t) + sizeof(uint16_t));
}

static int64_t row_offset(const struct teacher_header *header, int64_t token)
{
    return (int64_t)sizeof *header + token * row_bytes(header);
}

enum status teacher_file_open(const char *path, bool writes, struct teacher_file **file, struct error *err)
{
    struct stat st;
    *file = NULL;
    RELEASED(teacher_file_drop) struct teacher_file *new = memory_zeroed(1, sizeof *new);
    struct teacher_header *header = &new->header;
    new->path = memory_text(path);
    TRY(fs_open_regular(path, writes ? O_RDWR : O_RDONLY, STATUS_DATA, &new->fd, &st, err));
    if (st.st_size >= (off_t)sizeof *header) TRY(fs_pread(new->fd, path, header, sizeof *header, 0, STATUS_DATA, err));
    if (memcmp(header->magic, teacher_magic, sizeof teacher_magic) != 0)
        return error_set(err, STATUS_DATA, "'%s' has no teacher; hint: ztrain score --top-k K writes one", path);
    if (header->K < 1 || header->V < header->K || header->tokens < 0 ||
        st.st_size != row_offset(header, header->tokens))
        return error_set(err, STATUS_DATA, "'%s' is damaged: %lld bytes for %lld tokens of %d each", path,
                         (long long)st.st_size, (long long)header->tokens, header->K);
    *file = TAKEN(new);
    return STATUS_OK;
}

enum status teacher_file_create(const char *path, struct teacher_header header, struct error *err)
{
    memcpy(header.magic, teacher_magic, sizeof teacher_magic);
    return fs_make_file(path, &header, sizeof header, row_offset(&header, header.tokens), STATUS_DATA, err);
}

void teacher_file_close(struct teacher_file *file)
{
    if (!file) return;
    fs_close(&file->fd);
    free(file->path);
    free(file);
}

enum status teacher_file_read(const struct teacher_file *file, int64_t first, int64_t count, int32_t *ids, float *logps,
                              struct error *err)
{
    const size_t bytes = (size_t)row_bytes(&file->header), K = (size_t)file->header.K;
    OWNED char *rows = memory_alloc((size_t)count * bytes);
    TRY(fs_pread(file->fd, file->path, rows, (size_t)count * bytes, row_offset(&file->header, first), STATUS_DATA,
                 err));
    for (size_t r = 0; r < (size_t)count; r++) {
        uint16_t half;
        memcpy(ids + r * K, rows + r * bytes, K * sizeof *ids);
        for (size_t k = 0; k < K; k++) {
            ids[r * K + k]--;
            memcpy(&half, rows + r * bytes + K * sizeof *ids + k * sizeof half, sizeof half);
            logps[r * K + k] = f16_to_f32(half);
        }
    }
    return STATUS_OK;
}

enum status teacher_file_write(const struct teacher_file *file, int64_t token, const int32_t *ids, const float *logps,
                               struct error *err)
{
    const size_t bytes = (size_t)row_bytes(&file->header), K = (size_t)file->header.K;
    OWNED char *row = memory_alloc(bytes);
    for (size_t k = 0; k < K; k++) {
        const int32_t id = ids[k] + 1;
        const uint16_t half = f16_from_f32(logps[k] < f16_lowest ? f16_lowest : logps[k]);
        memcpy(row + k * sizeof id, &id, sizeof id);
        memcpy(row + K * sizeof *ids + k * sizeof half, &half, sizeof half);
    }
    if (io_pwrite(file->fd, row, bytes, row_offset(&file->header, token)) == (ssize_t)bytes) return STATUS_OK;
    return error_system(err, STATUS_DATA, errno, "cannot write '%s'", file->path);
}
