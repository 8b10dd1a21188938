#include "core/data/set_digests.h"

#include "core/data/permute.h"
#include "core/fsutil.h"
#include "core/memory.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 16, DIGEST = 16 };

static const char *const ends[] = {".bin", ".mask", ".types", ".labels", ".labels.json"};

struct head {
    char magic[8];
    uint64_t sizes[COUNT_OF(ends)];
};

static const char head_magic[8] = "ztrain\0\1";

static uint64_t blocks_of(uint64_t bytes)
{
    return bytes / BLOCK + (bytes % BLOCK != 0);
}

enum status set_digests_size(const struct shard_file *idx, int64_t at, int64_t *bytes, struct error *err)
{
    struct head head;
    *bytes = 0;
    if (idx->bytes - at < (int64_t)sizeof head)
        return STATUS_OK;
    TRY(shard_file_read(idx, at, sizeof head, &head, err));
    if (memcmp(head.magic, head_magic, sizeof head_magic) != 0)
        return STATUS_OK;
    *bytes = sizeof head;
    for (size_t i = 0; i < COUNT_OF(ends); i++) /* at most 5 · 2^52 */
        *bytes += (int64_t)blocks_of(head.sizes[i]) * DIGEST;
    return STATUS_OK;
}

static enum status compare_blocks(const struct shard_file *idx, int64_t list, const struct shard_file *file,
                                  int64_t blocks, uint64_t seed, struct error *err)
{
    unsigned char block[BLOCK], written[DIGEST], found[DIGEST];
    const uint64_t all = blocks_of((uint64_t)file->bytes);
    for (uint64_t i = 0; i < all && i < (uint64_t)blocks; i++) {
        const int64_t number = (int64_t)permute_index(i, all, seed, 0), first = number * BLOCK;
        const int64_t size = file->bytes - first < BLOCK ? file->bytes - first : BLOCK;
        TRY(shard_file_read(idx, list + number * DIGEST, DIGEST, written, err));
        TRY(shard_file_read(file, first, size, block, err));
        crypto_generichash(found, DIGEST, block, (unsigned long long)size, NULL, 0);
        if (memcmp(found, written, DIGEST) != 0)
            return error_set(err, STATUS_DATA,
                             "'%s' and '%s' do not belong together: bytes %lld to %lld are not those that were written "
                             "with the index; hint: they are of two runs of scripts/tokenize.py, or one was copied or "
                             "changed later; make the set again",
                             file->path, idx->path, (long long)first, (long long)(first + size - 1));
    }
    return STATUS_OK;
}

/* file: opened, or with the path NULL if there is none. */
static enum status compare_file(const struct shard_file *idx, int64_t list, const char *path,
                                const struct shard_file *file, uint64_t size, int64_t blocks, uint64_t seed,
                                struct error *err)
{
    if (!file->path)
        return error_set(err, STATUS_DATA,
                         "'%s' is missing: it is of the set of '%s'; hint: copy all files of a set, or make it again",
                         path, idx->path);
    if ((uint64_t)file->bytes != size)
        return error_set(
            err, STATUS_DATA,
            "'%s' and '%s' do not belong together: %lld bytes, the index was written with %llu; hint: they "
            "are of two runs of scripts/tokenize.py, or one was copied or changed later; make the set again",
            path, idx->path, (long long)file->bytes, (unsigned long long)size);
    return compare_blocks(idx, list, file, blocks, seed, err);
}

enum status set_digests_check(const struct shard_file *idx, int64_t at, const struct shard_file *bin,
                              const struct shard_file *mask, int64_t blocks, uint64_t seed, struct error *err)
{
    struct head head;
    if (sodium_init() < 0)
        return error_set(err, STATUS_DEVICE, "cannot initialise libsodium");
    TRY(shard_file_read(idx, at, sizeof head, &head, err));
    const int prefix = (int)strlen(bin->path) - 4;
    int64_t list = at + (int64_t)sizeof head;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (head.sizes[i] == 0)
            continue;
        char *path = memory_printf("%.*s%s", prefix, bin->path, ends[i]);
        struct shard_file closed = {.path = fs_is_absent(path) ? NULL : path, .fd = -1};
        const struct shard_file *file = i == 0 ? bin : i == 1 ? mask : &closed;
        enum status status = file == &closed && closed.path ? shard_file_open(&closed, err) : STATUS_OK;
        if (status == STATUS_OK)
            status = compare_file(idx, list, path, file, head.sizes[i], blocks, seed, err);
        shard_file_close(&closed);
        free(path);
        TRY(status);
        list += (int64_t)blocks_of(head.sizes[i]) * DIGEST;
    }
    return STATUS_OK;
}
