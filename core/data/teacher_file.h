/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_file.h: what a teacher expects after each token of a set, as `ztrain score --top-k K` writes it:
 *
 *     magic       "ztteach\1"     8 bytes
 *     data        u64             the fingerprint of the token set
 *     model       u64             as in logps_file.h
 *     tokens      i64             of the set
 *     K, V        i32[2]          tokens that a row has, of a vocabulary of V
 *     rows        of each token: i32[K] the most probable next tokens, rising; f16[K] their log-probabilities
 *
 * Ids are kept plus 1: a row of zeros was not computed, as its target does not count. Numbers are little-endian. */
#pragma once

#include "core/data/token_set.h"

struct teacher_header {
    char magic[8]; /* set by teacher_file_create() */
    uint64_t data, model;
    int64_t tokens;
    int32_t K, V;
};

struct teacher_file {
    char *path; /* owned */
    int fd;
    struct teacher_header header;
};

/* Opens a file. STATUS_DATA: it is none, or not whole. */
enum status teacher_file_open(const char *path, bool writes, struct teacher_file **file, struct error *err);

/* Makes a file whose rows are not computed. */
enum status teacher_file_create(const char *path, struct teacher_header header, struct error *err);
void teacher_file_close(struct teacher_file *file); /* may be NULL */
RELEASER(teacher_file_drop, struct teacher_file, teacher_file_close)

/* Rows of tokens [first, first + count): ids, -1 of rows that were not computed, and logps (count, K). Several threads
 * may read. */
enum status teacher_file_read(const struct teacher_file *file, int64_t first, int64_t count, int32_t *ids, float *logps,
                              struct error *err);
enum status teacher_file_write(const struct teacher_file *file, int64_t token, const int32_t *ids, const float *logps,
                               struct error *err);
