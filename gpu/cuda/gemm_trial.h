/* gemm_trial.h: algorithms of matrix products and engines of attention that are run for the first time, noted on disk
 * before they run.
 *
 * A kernel that faults ends the process: CUDA's context is lost. The next process finds in PATH.trial which one was
 * running, names it, and appends it to PATH.faulty, whose algorithms no process tries or takes again; PATH is the file
 * of the choices (gpu/gemm_cache.h). To try them again, e.g. with another driver, delete PATH.faulty.
 *
 *     HASH m M n N k K      a line of either file: 16 hexadecimal digits of XXH64 over product and algorithm, and its
 *                           size for people
 *     HASH attention …      the same of a shape of attention and its engine */
#pragma once

#include "gpu/gemm_cache.h"

struct gemm_trial;

/* path: of the choices. NULL: out of memory; every function takes it, and does nothing then. */
struct gemm_trial *gemm_trial_open(const char *path);
void gemm_trial_close(struct gemm_trial *trial);

/* Reads the files; to be called while gemm_cache_lock() keeps other processes from trying. Warns of an algorithm that
 * was on trial when its process ended. */
void gemm_trial_begin(struct gemm_trial *trial);

/* The algorithm runs between these two. If it has failed in a way that ends the process, the second is left out. */
void gemm_trial_note(struct gemm_trial *trial, const struct gemm_key *key, const struct gemm_algorithm *algorithm);
void gemm_trial_done(struct gemm_trial *trial);

/* The same for attention. words: what is on trial, for people, at most 160 characters. */
void gemm_trial_note_attention(struct gemm_trial *trial, const struct attention_key *key,
                               const struct attention_choice *choice, const char *words);
bool gemm_trial_is_faulty_attention(const struct gemm_trial *trial, const struct attention_key *key,
                                    const struct attention_choice *choice);

bool gemm_trial_is_faulty(const struct gemm_trial *trial, const struct gemm_key *key,
                          const struct gemm_algorithm *algorithm);
