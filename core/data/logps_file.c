/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/logps_file.h"

#include "core/core.h"

static const char logps_magic[8] = "ztlogps\1";
enum { LOGPS_NUMBERS = sizeof logps_magic + sizeof(struct logps_header) };

/* Of a file of so many numbers: the next one begins there. */
static int64_t logps_bytes(int64_t numbers)
{
    return LOGPS_NUMBERS + numbers * (int64_t)sizeof(double);
}

enum status logps_create(const char *path, const struct logps_header *header, int64_t documents, struct error *err)
{
    const size_t bytes = (size_t)logps_bytes(header->together ? 2 * documents : documents);
    OWNED char *file = memory_alloc(bytes);
    memset(file, 0xff, bytes); /* NaN */
    memcpy(file, logps_magic, sizeof logps_magic);
    memcpy(file + sizeof logps_magic, header, sizeof *header);
    return fs_write_file(path, file, bytes, STATUS_DATA, err);
}

enum status logps_check(int fd, const char *path, const struct logps_header *wanted, struct error *err)
{
    struct logps_header header;
    TRY(fs_pread(fd, path, &header, sizeof header, sizeof logps_magic, STATUS_DATA, err));
    if (memcmp(&header, wanted, sizeof header) == 0) return STATUS_OK;
    return error_set(err, STATUS_DATA, "'%s' is written by another command", path);
}

enum status logps_write(int fd, const char *path, int64_t documents, bool mismatched, int64_t document, double logp,
                        struct error *err)
{
    const int64_t at = logps_bytes(mismatched ? documents + document : document);
    if (io_pwrite(fd, &logp, sizeof logp, at) == (ssize_t)sizeof logp) return STATUS_OK;
    return error_system(err, STATUS_DATA, errno, "cannot write '%s'", path);
}

enum status logps_read(const char *path, int64_t documents, struct logps_header *header, double **logps,
                       double **mismatched, struct error *err)
{
    const size_t size = (size_t)documents * sizeof **logps;
    OWNED char *file = NULL;
    size_t bytes;
    *logps = *mismatched = NULL;
    const enum status status = fs_read_file(path, (size_t)logps_bytes(2 * documents), STATUS_DATA, &file, &bytes, err);
    if (status != STATUS_OK) return error_hint(err, "ztrain score writes log-probabilities of these documents");
    if (bytes < LOGPS_NUMBERS || memcmp(file, logps_magic, sizeof logps_magic) != 0)
        return error_set(err, STATUS_DATA, "'%s' has no log-probabilities; hint: ztrain score writes them", path);
    memcpy(header, file + sizeof logps_magic, sizeof *header);
    const int64_t wanted = logps_bytes(header->together ? 2 * documents : documents);
    if (bytes != (size_t)wanted)
        return error_set(err, STATUS_DATA,
                         "'%s' has %zu bytes, expected %lld for %lld documents; hint: it belongs to other data", path,
                         bytes, (long long)wanted, (long long)documents);
    *logps = memory_alloc(size);
    memcpy(*logps, file + LOGPS_NUMBERS, size);
    if (!header->together) return STATUS_OK;
    *mismatched = memory_alloc(size);
    memcpy(*mismatched, file + LOGPS_NUMBERS + size, size);
    return STATUS_OK;
}
