/* SPDX-License-Identifier: Apache-2.0 */
/* shard_file.h: one file of a token shard, which must stay as it was when it was opened, and digests of a shard's
 * files. Every read compares the file's inode, size and time with those of the first opening: a file that was replaced,
 * truncated or rewritten under a run is STATUS_DATA with its name. A file that stays open may be renamed or deleted.
 * Several threads may read a file; opening and closing it is one thread's. */
#pragma once

#include "core/status.h"

#include <sys/types.h>

struct shard_file {
    char *path;    /* own; NULL: there is no such file */
    int fd;        /* -1: opened for each read */
    int64_t bytes; /* this and the rest: when it was first opened */
    ino_t inode;
    struct timespec written;
};

/* Opens file->path, a regular file, and remembers what it is. STATUS_DATA names it. */
enum status shard_file_open(struct shard_file *file, struct error *err);

/* Closes the descriptor; reads open the file again. */
void shard_file_close(struct shard_file *file);

/* Reads exactly `count` bytes at `offset`; retries while a disk or a file server fails. On success err is unchanged. */
enum status shard_file_read(const struct shard_file *file, int64_t offset, int64_t count, void *out, struct error *err);

/* Whether the files of a shard are of one run of ztrain-tokenize.
 *
 * After the document index, where Megatron-LM does not look, PREFIX.idx has
 *
 *     magic     "ztrain\0\1"          8 bytes
 *     sizes     u64[5]                bytes of PREFIX.bin, .mask, .types, .labels, .labels.json; 0: not of the set
 *     digests   u8[16] for each block of 64 KiB of these files, in this order: its BLAKE2b of 16 bytes
 *
 * An index without them (of Megatron-LM, of an earlier version) is good for any files that fit. A file that the set
 * does not have, such as a mask that was made for it later, is not compared. */

/* The bytes from `at` on that these parts of an opened index take by their own account; *bytes = 0: there are none. */
enum status shard_digests_size(const struct shard_file *idx, int64_t at, int64_t *bytes, struct error *err);

/* Compares a shard's files with the digests at byte `at` of its index: sizes, and `blocks` blocks of each, which `seed`
 * chooses. bin and mask (path NULL: none) are open. STATUS_DATA names the file that is missing or differs. */
enum status shard_digests_check(const struct shard_file *idx, int64_t at, const struct shard_file *bin,
                                const struct shard_file *mask, int64_t blocks, uint64_t seed, struct error *err);
