/* SPDX-License-Identifier: Apache-2.0 */
/* logps_file.h: log-probabilities of a token set's documents under a model, as `ztrain score` writes them:
 *
 *     magic       "ztlogps\1"      8 bytes
 *     data        u64              the fingerprint of the token set; 0: not known
 *     model       u64              a hash of the weights and the type of the computation; 0: not known
 *     together    i32              KTO: the samples that a micro-batch holds; 0: there are no mismatched ones
 *     longest     i32              with it: tokens that mismatched samples are cut to
 *     logps       f64[documents]   the sum over the tokens whose loss mask is 1
 *     mismatched  f64[documents]   with `together`: of the mismatched sample of each document (sample_reader.h)
 *
 * Numbers are little-endian. */
#pragma once

#include "core/status.h"

struct logps_header {
    uint64_t data, model;
    int32_t together, longest;
};

/* A new file of the right size whose numbers are NaN: not computed yet. */
enum status logps_create(const char *path, const struct logps_header *header, int64_t documents, struct error *err);

/* STATUS_DATA: an open file has another header. path: of the file, for messages. */
enum status logps_check(int fd, const char *path, const struct logps_header *wanted, struct error *err);

/* Writes one number; mismatched: only if the header has `together`. */
enum status logps_write(int fd, const char *path, int64_t documents, bool mismatched, int64_t document, double logp,
                        struct error *err);

/* Reads a file: logps (documents), mismatched (documents, or *mismatched NULL), both owned by the caller. STATUS_DATA:
 * it is none, or of another number of documents. Numbers may be NaN. */
enum status logps_read(const char *path, int64_t documents, struct logps_header *header, double **logps,
                       double **mismatched, struct error *err);
