/* SPDX-License-Identifier: Apache-2.0 */
/* autotune_cache.h: the fastest kernels on this model of GPU, kept on disk: cublasLt's algorithm for each matrix
 * product, and cuDNN's engine for each shape of attention. One text file for each GPU model and library version,
 * gemm-NAME-VERSION.txt, in $ZTRAIN_GEMM_CACHE, $XDG_CACHE_HOME/ztrain, or ~/.cache/ztrain. An empty ZTRAIN_GEMM_CACHE
 * means no cache and no autotuning.
 *
 *     ztrain gemm cache 6
 *     gpu NVIDIA H200
 *     cublaslt 130100
 *     gemm KEY… FUSION KERNEL MICROSECONDS CHECKSUM      one line per product: numbers; enum gemm_fusion; 128
 *                                                        hexadecimal digits; 16 of XXH64
 *     attention KEY… 0 KERNEL MICROSECONDS CHECKSUM      one line per shape
 *
 * Entries are permanent, so that all ranks of a machine, and a run that continues tomorrow, compute with the same
 * kernels and get the same bits. Between autotune_cache_lock() and autotune_cache_unlock() one process tunes and the
 * others wait. A file that is damaged, has another version or cannot be written causes a warning.
 *
 * A kernel that faults ends the process. So a candidate is noted in FILE.trial before its first run. The next process
 * that finds a note there appends it to FILE.faulty: no process tries or takes it again, until someone deletes that.
 *
 *     HASH m M n N k K …    a line of either file: 16 hexadecimal digits of XXH64 over key and kernel, and words for
 *                           people
 *     HASH attention …      the same of a shape of attention and its engine */
#pragma once

#include "core/status.h"

enum autotune_op { AUTOTUNE_GEMM, AUTOTUNE_ATTENTION, AUTOTUNE_OPS };

/* What is tuned: the op, its shape, dtype, and all else that the best config depends on. */
enum { AUTOTUNE_KEY_FIELDS = 22 };
struct autotune_key {
    int64_t op;                          /* enum autotune_op */
    int64_t fields[AUTOTUNE_KEY_FIELDS]; /* the op's; the rest is 0 */
};

/* How it is computed. */
enum { AUTOTUNE_KERNEL_WORDS = 8, AUTOTUNE_FUSIONS = 3 };
struct autotune_config {
    uint64_t kernel[AUTOTUNE_KERNEL_WORDS]; /* as its library names it; attention: the piece (0: a trial has refused
                                               this form of the graph), a number that is ignored, the engine,
                                               cudnn_plan_kernel(), 0 for ztrain's kernels */
    int64_t fusion;                         /* of a product: enum gemm_fusion; else 0 */
    double microseconds;                    /* when it was timed; 0: it was not */
};

struct autotune_cache;

/* The folder of the caches; false: there is none. The second makes it, if it can. */
bool autotune_cache_folder(char *folder, size_t size);
void autotune_cache_make_folder(void);

/* A GPU's name as file names have it: '-' for all but letters and digits. name: strlen(gpu) + 1 characters. */
void autotune_cache_file_words(const char *gpu, char *name);

/* NULL: there is no cache. All functions below take NULL for one that is always empty. apart: for choices that nothing
 * measures: only what this process adds and imports counts, and the file is neither read nor written. The notes on
 * kernels that fault remain, if there is a folder; never NULL. */
struct autotune_cache *autotune_cache_open(const char *gpu, size_t cublaslt_version, bool apart);
void autotune_cache_close(struct autotune_cache *cache);
const char *autotune_cache_path(const struct autotune_cache *cache); /* not of NULL */

/* Waits until no other process is tuning, then reads the files. */
void autotune_cache_lock(struct autotune_cache *cache);

/* Writes a new file if configs were added since the lock, and lets other processes continue. */
void autotune_cache_unlock(struct autotune_cache *cache);

/* Whether the cache has a config for the key; the second: among imported ones. */
bool autotune_cache_find(struct autotune_cache *cache, const struct autotune_key *key, struct autotune_config *config);
bool autotune_cache_find_imported(struct autotune_cache *cache, const struct autotune_key *key,
                                  struct autotune_config *config);

/* Adds a config, or replaces one that the library no longer accepts. */
void autotune_cache_put(struct autotune_cache *c, const struct autotune_key *key, const struct autotune_config *config);

/* Configs of this op that were added since the lock will not be written, and are tuned again next time. */
void autotune_cache_discard(struct autotune_cache *cache, enum autotune_op op);

/* From now on configs of the file do not count, unless another rank that tunes again wrote them after
 * autotune_cache_open(). Those of other keys stay in the file. */
void autotune_cache_tune_again(struct autotune_cache *cache);

/* The configs that this process has found in the file or added, as a text. Owned by the caller; NULL: no cache. */
char *autotune_cache_export(const struct autotune_cache *cache);

/* From now on the configs of such a text, unless it is of another GPU model or library version, count more than those
 * of the file, in which they are not written. complete: another process has tuned for this one too. */
void autotune_cache_import(struct autotune_cache *cache, const char *text, bool complete);
bool autotune_cache_follows(const struct autotune_cache *cache); /* whether a complete text was taken */

/* Around the candidate's first run; the second is left out after a failure that ends the process. words: "the matrix
 * product m …" or "attention …", for people. */
void autotune_cache_note(struct autotune_cache *cache, const struct autotune_key *key,
                         const struct autotune_config *config, const char *words);
void autotune_cache_note_done(struct autotune_cache *cache);

/* Whether a process ended while it tried the candidate. */
bool autotune_cache_is_faulty(const struct autotune_cache *cache, const struct autotune_key *key,
                              const struct autotune_config *config);
