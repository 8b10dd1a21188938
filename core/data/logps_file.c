/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/logps_file.h"

#include "core/core.h"

static const char logps_magic[8] = "ztlogps\1";

enum status logps_create(const char *path, const struct logps_header *header, int64_t documents, struct error *err)
{
    const int64_t bytes = logps_bytes(documents, header->together > 0), first = logps_offset(documents, false, 0);
    OWNED char *file = memory_alloc((size_t)bytes);
    memcpy(file, logps_magic, sizeof logps_magic);
    memcpy(file + sizeof logps_magic, header, sizeof *header);
    memset(file + first, 0xff, (size_t)(bytes - first)); /* NaN */
    return fs_write_file(path, file, (size_t)bytes, STATUS_DATA, err);
}

enum status logps_read(const char *path, int64_t documents, struct logps_header *header, double **logps,
                       double **mismatched, struct error *err)
{
    const size_t most = (size_t)logps_bytes(documents, true);
    OWNED char *file = NULL;
    size_t bytes;
    *logps = *mismatched = NULL;
    TRY(fs_read_file(path, most, STATUS_DATA, &file, &bytes, err));
    if (bytes < (size_t)logps_offset(0, false, 0) || memcmp(file, logps_magic, sizeof logps_magic) != 0)
        return error_set(err, STATUS_DATA, "'%s' has no log-probabilities; hint: ztrain score writes them", path);
    memcpy(header, file + sizeof logps_magic, sizeof *header);
    if (bytes != (size_t)logps_bytes(documents, header->together > 0))
        return error_set(err, STATUS_DATA,
                         "'%s' has %zu bytes, expected %lld for %lld documents; hint: it belongs to other data", path,
                         bytes, (long long)logps_bytes(documents, header->together > 0), (long long)documents);
    const size_t size = (size_t)documents * sizeof **logps;
    *logps = memory_alloc(size);
    memcpy(*logps, file + logps_offset(documents, false, 0), size);
    if (!header->together) return STATUS_OK;
    *mismatched = memory_alloc(size);
    memcpy(*mismatched, file + logps_offset(documents, true, 0), size);
    return STATUS_OK;
}
