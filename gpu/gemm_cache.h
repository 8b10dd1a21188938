/* gemm_cache.h: what was the fastest on this model of GPU, kept on disk: cublasLt's kernel for each matrix product, and
 * cuDNN's engine for each shape of attention.
 *
 * There is one text file for each GPU model and library version, gemm-NAME-VERSION.txt, in $ZTRAIN_GEMM_CACHE, or else
 * in $XDG_CACHE_HOME/ztrain, or else in ~/.cache/ztrain. An empty ZTRAIN_GEMM_CACHE means no cache and no measuring.
 *
 *     ztrain gemm cache 6
 *     gpu NVIDIA H200
 *     cublaslt 130100
 *     gemm KEY… WAY ALGORITHM MICROSECONDS CHECKSUM      one line per product: numbers; enum gemm_way; 128 hexadecimal
 *                                                        digits; 16 of XXH64
 *     attention KEY… 0 ALGORITHM MICROSECONDS CHECKSUM   one line per shape: struct attention_choice is the ALGORITHM
 *
 * Version 1 had no WAY, version 2 no first word, versions 3 and 4 no workspace and no multiprocessors in the keys,
 * version 5 no version of cuDNN in the keys of its products, and no kernels of cuDNN in the choices, only engines and
 * places among the proposals. Their files are replaced, and what they had is measured again.
 *
 * Entries are permanent: a choice that another process wrote earlier is used instead of a new measurement, so that all
 * ranks of a machine, and a run that continues tomorrow, compute with the same kernels and get the same bits. Between
 * gemm_cache_lock() and gemm_cache_unlock() one process measures and the others wait. A file that is damaged, has
 * another version or cannot be written causes a warning and never ends the run. */
#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What happens to a product before it is stored. */
enum gemm_epilogue {
    GEMM_PLAIN,
    GEMM_BIAS,          /* + a bias for each row */
    GEMM_GELU_AUX,      /* the product goes to aux, its GELU to D */
    GEMM_GELU_AUX_BIAS, /* both */
    GEMM_DGELU,         /* times the derivative of GELU at aux */
    GEMM_BGRADA,        /* also the sums of A over k */
    GEMM_BGRADB,        /* also the sums of B over k */
    GEMM_SWIGLU,        /* SiLU of a gate in memory times the product is stored as well: by cuDNN */
    GEMM_DSWIGLU,       /* the product is the gradient of SwiGLU, and that of gate and up is stored: by cuDNN */
    GEMM_EPILOGUE_COUNT
};

/* D (m, n) = op(A) · op(B), or D + op(A) · op(B); column-major, as in cublasLt. The choice of a kernel depends on these
 * members only. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldd, ld_aux;
    int64_t transpose_a, transpose_b;
    int64_t input, output; /* enum dtype of A and B, of D */
    int64_t epilogue;      /* enum gemm_epilogue */
    int64_t accumulate, tf32;
    int64_t workspace;                              /* bytes that the kernel may use */
    int64_t sm_target;                              /* multiprocessors that it may use; 0: all */
    int64_t align_a, align_b, align_d, align_extra; /* of the pointers, in bytes; 16 or more: 16 */
    int64_t cudnn; /* the version of cuDNN, 91900 for 9.19.0, with epilogues of cuDNN's; else 0 */
};
enum { GEMM_KEY_FIELDS = sizeof(struct gemm_key) / sizeof(int64_t) };

/* An algorithm as the library describes it: opaque. Of cuDNN: the engine, and the kernel (cudnn_plan_kernel()). */
struct gemm_algorithm {
    uint64_t data[8];
};

/* How a product with an epilogue is computed. */
enum gemm_way {
    GEMM_WAY_UNTIMED, /* the two were not timed against each other, or there is no epilogue */
    GEMM_WAY_FUSED,   /* by the epilogue */
    GEMM_WAY_UNFUSED, /* by the product without it, and a kernel */
    GEMM_WAY_COUNT
};

/* What was chosen for a product. */
struct gemm_choice {
    struct gemm_algorithm algorithm;
    enum gemm_way way;
    double microseconds; /* of the product by this algorithm, when it was measured */
};

/* What the choice for a shape of attention depends on, the version of cuDNN among it: attention_cudnn_choose.c lists
 * the numbers. */
enum { ATTENTION_KEY_FIELDS = 22 };
struct attention_key {
    int64_t fields[ATTENTION_KEY_FIELDS];
};

/* How cuDNN computes it. */
struct attention_choice {
    int64_t piece;            /* sequences at a time */
    int64_t proposal, engine; /* for people: the place among the proposals of the library, and its engine there */
    uint64_t kernel;          /* cudnn_plan_kernel() */
    double microseconds;      /* of the whole, when it was measured */
};

struct gemm_cache;

/* Finds the folder of the caches; false: there is none. The second makes it, if it can. */
bool gemm_cache_folder(char *folder, size_t size);
void gemm_cache_make_folder(void);

/* A GPU's name as file names have it: letters and digits, and '-' for every other character. name: room for
 * strlen(gpu) + 1 characters. */
void gemm_cache_file_words(const char *gpu, char *name);

/* Finds the name of the file, which gemm_cache_lock() reads. NULL: there is no cache. */
struct gemm_cache *gemm_cache_open(const char *gpu, size_t cublaslt_version);
void gemm_cache_close(struct gemm_cache *cache);

/* Waits until no other process is measuring, then reads the file. */
void gemm_cache_lock(struct gemm_cache *cache);

/* Writes a new file if choices were added since the lock (temporary name, rename), and lets other processes
 * continue. */
void gemm_cache_unlock(struct gemm_cache *cache);

/* Whether the cache has a choice. */
bool gemm_cache_find(const struct gemm_cache *cache, const struct gemm_key *key, struct gemm_choice *choice);

/* From now on choices of the file are as if they were not there, unless they were written after gemm_cache_open(): by
 * another rank that measures again. Choices of other products stay in the file. */
void gemm_cache_measure_again(struct gemm_cache *cache);

/* Choices for products that are added between the lock and the unlock will not be written, and are measured again next
 * time. What the file had for them before stays. */
void gemm_cache_do_not_keep(struct gemm_cache *cache);

/* Adds a choice, or replaces one that the library no longer accepts. */
void gemm_cache_put(struct gemm_cache *cache, const struct gemm_key *key, const struct gemm_choice *choice);

/* The same for attention. */
bool gemm_cache_find_attention(const struct gemm_cache *cache, const struct attention_key *key,
                               struct attention_choice *choice);
void gemm_cache_put_attention(struct gemm_cache *cache, const struct attention_key *key,
                              const struct attention_choice *choice);
void gemm_cache_do_not_keep_attention(struct gemm_cache *cache);

/* The choices that this process has found or made, as a text, for the ranks on other machines. Owned by the caller;
 * NULL: there are none, or no memory. */
char *gemm_cache_export(const struct gemm_cache *cache);

/* From now on the choices of such a text count more than those of the file, in which they are not written. complete:
 * another process has chosen for this one as well. A text of another GPU model or library version is ignored. */
void gemm_cache_import(struct gemm_cache *cache, const char *text, bool complete);

/* Whether a complete text was taken. The second is gemm_cache_find() in imported texts alone. */
bool gemm_cache_follows(const struct gemm_cache *cache);
bool gemm_cache_find_imported(const struct gemm_cache *cache, const struct gemm_key *key, struct gemm_choice *choice);

const char *gemm_cache_path(const struct gemm_cache *cache);
