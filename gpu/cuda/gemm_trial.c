#include "gpu/cuda/gemm_trial.h"

#include "core/log.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { TRIAL_PATH = 4096, TRIAL_LINE = 192, MOST_FAULTY = 1024 };

struct gemm_trial {
    char running[TRIAL_PATH], faulty[TRIAL_PATH]; /* the files */
    int fd;                                       /* of the former; -1: not open */
    uint64_t hashes[MOST_FAULTY];
    int count;
};

static uint64_t hash_of_trial(const struct gemm_key *key, const struct gemm_algorithm *algorithm)
{
    return XXH64(algorithm, sizeof *algorithm, XXH64(key, sizeof *key, 0));
}

/* Neither the time that was measured nor the place among the proposals is a part of it. */
static uint64_t hash_of_attention(const struct attention_key *key, const struct attention_choice *choice)
{
    const int64_t how[] = {choice->piece, choice->engine, (int64_t)choice->kernel};
    return XXH64(how, sizeof how, XXH64(key, sizeof *key, 0));
}

struct gemm_trial *gemm_trial_open(const char *path)
{
    struct gemm_trial *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->fd = -1;
    if (snprintf(t->running, sizeof t->running, "%.4000s.trial", path) < (int)sizeof t->running &&
        snprintf(t->faulty, sizeof t->faulty, "%.4000s.faulty", path) < (int)sizeof t->faulty)
        return t;
    free(t);
    return NULL;
}

void gemm_trial_close(struct gemm_trial *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    free(t);
}

/* Reads a line; false: it is none, or was written in part. */
static bool parse_trial(const char *line, uint64_t *hash)
{
    int of_product = 0, of_attention = 0;
    return ((sscanf(line, "%16" SCNx64 " m %n", hash, &of_product) == 1 && of_product > 0) ||
            (sscanf(line, "%16" SCNx64 " attention %n", hash, &of_attention) == 1 && of_attention > 0)) &&
           strchr(line, '\n');
}

static void read_faulty(struct gemm_trial *t)
{
    char line[TRIAL_LINE];
    t->count = 0;
    FILE *file = memory_fopen(t->faulty, "re");
    if (!file)
        return;
    while (t->count < MOST_FAULTY && fgets(line, sizeof line, file))
        if (parse_trial(line, &t->hashes[t->count]))
            t->count++;
    fclose(file);
}

static void add_faulty(const struct gemm_trial *t, const char *line)
{
    FILE *file = memory_fopen(t->faulty, "ae");
    bool written = file && fputs(line, file) >= 0;
    if (file)
        written = fclose(file) == 0 && written;
    if (!written)
        log_warn("cannot write '%s': %s; what is noted there will be tried again", t->faulty, strerror(errno));
}

void gemm_trial_begin(struct gemm_trial *t)
{
    char line[TRIAL_LINE];
    uint64_t hash;
    if (!t)
        return;
    FILE *file = memory_fopen(t->running, "re");
    if (file) {
        const bool running = fgets(line, sizeof line, file) && parse_trial(line, &hash);
        fclose(file);
        if (running) {
            const char *words = line + 17;
            log_warn("a process ended while it tried a kernel for %s%.*s: that kernel is left out from now on ('%s')",
                     *words == 'm' ? "the matrix product " : "", (int)strcspn(words, "\n"), words, t->faulty);
            add_faulty(t, line);
        }
        unlink(t->running);
    }
    read_faulty(t);
}

static void note_line(struct gemm_trial *t, uint64_t hash, const char *words)
{
    char line[TRIAL_LINE];
    if (t->fd < 0)
        t->fd = open(t->running, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    const int n = snprintf(line, sizeof line, "%016" PRIx64 " %.160s\n", hash, words);
    /* best effort: without the note a fault is only not remembered */
    if (t->fd >= 0 && (pwrite(t->fd, line, (size_t)n, 0) != n || ftruncate(t->fd, n) != 0))
        log_debug("cannot write '%s': %s", t->running, strerror(errno));
}

void gemm_trial_note(struct gemm_trial *t, const struct gemm_key *key, const struct gemm_algorithm *algorithm)
{
    char words[96];
    if (!t)
        return;
    snprintf(words, sizeof words, "m %" PRId64 " n %" PRId64 " k %" PRId64, key->m, key->n, key->k);
    note_line(t, hash_of_trial(key, algorithm), words);
}

void gemm_trial_note_attention(struct gemm_trial *t, const struct attention_key *key,
                               const struct attention_choice *choice, const char *words)
{
    if (t)
        note_line(t, hash_of_attention(key, choice), words);
}

void gemm_trial_done(struct gemm_trial *t)
{
    if (!t || t->fd < 0)
        return;
    close(t->fd);
    t->fd = -1;
    unlink(t->running);
}

static bool is_noted(const struct gemm_trial *t, uint64_t hash)
{
    for (int i = 0; i < t->count; i++)
        if (t->hashes[i] == hash)
            return true;
    return false;
}

bool gemm_trial_is_faulty(const struct gemm_trial *t, const struct gemm_key *key,
                          const struct gemm_algorithm *algorithm)
{
    return t && t->count > 0 && is_noted(t, hash_of_trial(key, algorithm));
}

bool gemm_trial_is_faulty_attention(const struct gemm_trial *t, const struct attention_key *key,
                                    const struct attention_choice *choice)
{
    return t && t->count > 0 && is_noted(t, hash_of_attention(key, choice));
}
