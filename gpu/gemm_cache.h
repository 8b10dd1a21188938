/* gemm_cache.h: which kernel of cublasLt was the fastest for a product on this kind of GPU, kept on disk.
 *
 * One text file per GPU and library version, gemm-NAME-VERSION.txt, in $ZTRAIN_GEMM_CACHE, else in
 * $XDG_CACHE_HOME/ztrain, else in ~/.cache/ztrain. ZTRAIN_GEMM_CACHE set to nothing: no cache, and nothing is measured.
 *
 *     ztrain gemm cache 1
 *     gpu NVIDIA H200
 *     cublaslt 130100
 *     KEY… ALGORITHM MICROSECONDS CHECKSUM      one line per product: numbers; 128 hexadecimal digits; 16 of XXH64
 *
 * What is in the file stays: a choice that another process has written before wins over an own measurement, so that all
 * ranks of a machine, and a run that goes on tomorrow, compute with the same kernels and get the same bits. Between
 * gemm_cache_lock() and gemm_cache_unlock() one process measures, the others wait. A file that is damaged, of another
 * version or cannot be written costs a notice, never the run. */
#ifndef ZTRAIN_GPU_GEMM_CACHE_H
#define ZTRAIN_GPU_GEMM_CACHE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is done to a product on its way to memory. */
enum gemm_epilogue {
    GEMM_PLAIN,
    GEMM_BIAS,          /* + a bias for each row */
    GEMM_GELU_AUX,      /* the product goes to aux, its GELU to D */
    GEMM_GELU_AUX_BIAS, /* both */
    GEMM_DGELU,         /* times the derivative of GELU at aux */
    GEMM_BGRADA,        /* also the sums of A over k */
    GEMM_BGRADB,        /* also the sums of B over k */
    GEMM_EPILOGUE_COUNT
};

/* D (m, n) = op(A) · op(B), or added to D: column-major, as cublasLt counts. All that the choice depends on. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldd, ld_aux;
    int64_t transpose_a, transpose_b;
    int64_t input, output; /* enum dtype of A and B, of D */
    int64_t epilogue;      /* enum gemm_epilogue */
    int64_t accumulate, tf32;
    int64_t align_a, align_b, align_d, align_extra; /* of the pointers, bytes; 16 stands for more too */
};
enum { GEMM_KEY_FIELDS = sizeof(struct gemm_key) / sizeof(int64_t) };

/* An algorithm as the library describes it: opaque. */
struct gemm_algorithm {
    uint64_t data[8];
};

struct gemm_cache;

/* Finds the file's name. NULL if there is to be no cache. */
struct gemm_cache *gemm_cache_open(const char *gpu, size_t cublaslt_version);
void gemm_cache_close(struct gemm_cache *cache);

/* Waits until no other process measures, then reads the file. */
void gemm_cache_lock(struct gemm_cache *cache);

/* Writes what was added since the lock (temporary name, rename), lets others go on. */
void gemm_cache_unlock(struct gemm_cache *cache);

/* Whether a choice is known. microseconds: how long the product took when it was measured; may be NULL. */
bool gemm_cache_find(const struct gemm_cache *cache, const struct gemm_key *key, struct gemm_algorithm *algorithm,
                     double *microseconds);

/* Adds a choice, or replaces one that the library no longer takes. */
void gemm_cache_put(struct gemm_cache *cache, const struct gemm_key *key, const struct gemm_algorithm *algorithm,
                    double microseconds);

const char *gemm_cache_path(const struct gemm_cache *cache);

#endif
