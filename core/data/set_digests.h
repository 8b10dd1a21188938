/* set_digests.h: whether the files of a shard are of one run of scripts/tokenize.py.
 *
 * After the document index, where Megatron-LM does not look, PREFIX.idx has
 *
 *     magic     "ztrain\0\1"          8 bytes
 *     sizes     u64[5]                bytes of PREFIX.bin, .mask, .types, .labels, .labels.json; 0: not of the set
 *     digests   u8[16] for each block of 64 KiB of these files, in this order: its BLAKE2b of 16 bytes
 *
 * An index without them (of Megatron-LM, of an earlier version) is good for any files that fit. A file that the set
 * does not have, such as a mask that was made for it later, is not compared. */
#pragma once

#include "core/data/shard_file.h"

/* The bytes from `at` on that these parts of an opened index take by their own account; *bytes = 0: there are none. */
enum status set_digests_size(const struct shard_file *idx, int64_t at, int64_t *bytes, struct error *err);

/* Compares the files of a shard with the digests at byte `at` of its index: all sizes, and up to `blocks` blocks of
 * each file, which `seed` chooses. bin and mask (path NULL: there is none) are open; the others are found by the path
 * of bin. STATUS_DATA names the file that is missing or differs. */
enum status set_digests_check(const struct shard_file *idx, int64_t at, const struct shard_file *bin,
                              const struct shard_file *mask, int64_t blocks, uint64_t seed, struct error *err);
