/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/shard_file.h"

#include "core/core.h"
#include "core/data/permute.h"
#include "core/retry.h"

#include <sodium.h>

static const double read_patience = 30; /* seconds */

static enum status shard_open_facts(const char *path, int *fd, struct stat *facts, struct error *err)
{
    struct error why;
    const enum status status = fs_open_regular(path, O_RDONLY, STATUS_DATA, fd, facts, &why);
    if (status != STATUS_OK && why.cause == ENOENT && fs_exists(path))
        return error_set(err, STATUS_DATA, "cannot open '%s': it is a broken link", path);
    if (status != STATUS_OK && err) *err = why;
    return status;
}

enum status shard_file_open(struct shard_file *file, struct error *err)
{
    struct stat facts;
    TRY(shard_open_facts(file->path, &file->fd, &facts, err));
    file->bytes = facts.st_size;
    file->inode = facts.st_ino;
    file->written = facts.st_mtim;
    return STATUS_OK;
}

void shard_file_close(struct shard_file *file)
{
    fs_close(&file->fd);
}

static enum status check_unchanged(const struct shard_file *file, const struct stat *facts, struct error *err)
{
    const char *what = NULL;
    if (facts->st_ino != file->inode)
        what = "replaced by another file";
    else if (facts->st_size != file->bytes)
        what = facts->st_size < file->bytes ? "truncated" : "made longer";
    else if (facts->st_mtim.tv_sec != file->written.tv_sec || facts->st_mtim.tv_nsec != file->written.tv_nsec)
        what = "written again";
    if (!what) return STATUS_OK;
    return error_set(err, STATUS_DATA,
                     "'%s' was %s while in use (%lld bytes, %lld when it was opened); hint: data of a run must not "
                     "change; put them back, and resume",
                     file->path, what, (long long)facts->st_size, (long long)file->bytes);
}

/* anew: through a new descriptor. */
static enum status read_once(const struct shard_file *file, bool anew, int64_t offset, int64_t count, void *out,
                             struct error *err)
{
    struct stat facts;
    RELEASED(fs_close) int own = -1;
    const bool opens = anew || file->fd < 0;
    if (opens) TRY(shard_open_facts(file->path, &own, &facts, err));
    const int fd = opens ? own : file->fd;
    if (!opens && fstat(fd, &facts) != 0) return error_system(err, STATUS_DATA, errno, "cannot read '%s'", file->path);
    TRY(check_unchanged(file, &facts, err));
    return fs_pread(fd, file->path, out, (size_t)count, offset, STATUS_DATA, err);
}

enum status shard_file_read(const struct shard_file *file, int64_t offset, int64_t count, void *out, struct error *err)
{
    struct retry retry = {.limit = read_patience};
    struct error why = {.code = STATUS_OK};
    enum status status;
    bool anew = false; /* a descriptor that is stale stays so */
    do {
        status = read_once(file, anew, offset, count, out, &why);
        anew = true;
    } while (status != STATUS_OK && error_is_transient(&why) && retry_again(&retry, &status, &why));
    if (status != STATUS_OK && err) *err = why;
    return status;
}

enum { BLOCK = 1 << 16, DIGEST = 16 };

static const char *const ends[] = {".bin", ".mask", ".types", ".labels", ".labels.json"};

struct head {
    char magic[8];
    uint64_t sizes[COUNT_OF(ends)];
};

static const char head_magic[8] = "ztrain\0\1";

static uint64_t shard_blocks_of(uint64_t bytes)
{
    return bytes / BLOCK + (bytes % BLOCK != 0);
}

enum status shard_digests_size(const struct shard_file *idx, int64_t at, int64_t *bytes, struct error *err)
{
    struct head head;
    *bytes = 0;
    if (idx->bytes - at < (int64_t)sizeof head) return STATUS_OK;
    TRY(shard_file_read(idx, at, sizeof head, &head, err));
    if (memcmp(head.magic, head_magic, sizeof head_magic) != 0) return STATUS_OK;
    *bytes = sizeof head;
    for (size_t i = 0; i < COUNT_OF(ends); i++) /* at most 5 · 2^52 */
        *bytes += (int64_t)shard_blocks_of(head.sizes[i]) * DIGEST;
    return STATUS_OK;
}

static enum status compare_blocks(const struct shard_file *idx, int64_t list, const struct shard_file *file,
                                  int64_t blocks, uint64_t seed, struct error *err)
{
    unsigned char block[BLOCK], written[DIGEST], found[DIGEST];
    const uint64_t all = shard_blocks_of((uint64_t)file->bytes);
    for (uint64_t i = 0; i < all && i < (uint64_t)blocks; i++) {
        const int64_t number = (int64_t)permute_index(i, all, seed, 0), first = number * BLOCK;
        const int64_t size = file->bytes - first < BLOCK ? file->bytes - first : BLOCK;
        TRY(shard_file_read(idx, list + number * DIGEST, DIGEST, written, err));
        TRY(shard_file_read(file, first, size, block, err));
        crypto_generichash(found, DIGEST, block, (unsigned long long)size, NULL, 0);
        if (memcmp(found, written, DIGEST) != 0)
            return error_set(err, STATUS_DATA,
                             "'%s' and '%s' do not belong together: bytes %lld to %lld are not those that were written "
                             "with the index; hint: they are of two runs of ztrain-tokenize, or one was copied or "
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
            "are of two runs of ztrain-tokenize, or one was copied or changed later; make the set again",
            path, idx->path, (long long)file->bytes, (unsigned long long)size);
    return compare_blocks(idx, list, file, blocks, seed, err);
}

enum status shard_digests_check(const struct shard_file *idx, int64_t at, const struct shard_file *bin,
                                const struct shard_file *mask, int64_t blocks, uint64_t seed, struct error *err)
{
    struct head head;
    if (sodium_init() < 0) return error_set(err, STATUS_DEVICE, "cannot initialise libsodium");
    TRY(shard_file_read(idx, at, sizeof head, &head, err));
    const int prefix = (int)strlen(bin->path) - 4;
    int64_t list = at + (int64_t)sizeof head;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (head.sizes[i] == 0) continue;
        OWNED char *path = memory_printf("%.*s%s", prefix, bin->path, ends[i]);
        RELEASED(shard_file_close) struct shard_file closed = {.path = fs_is_absent(path) ? NULL : path, .fd = -1};
        const struct shard_file *file = i == 0 ? bin : i == 1 ? mask : &closed;
        if (file == &closed && closed.path) TRY(shard_file_open(&closed, err));
        TRY(compare_file(idx, list, path, file, head.sizes[i], blocks, seed, err));
        list += (int64_t)shard_blocks_of(head.sizes[i]) * DIGEST;
    }
    return STATUS_OK;
}
