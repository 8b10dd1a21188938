/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/autotune_cache.h"

#include "core/core.h"

#include <sys/file.h>
#include <xxhash.h>

/* MOST_ENTRIES bounds the memory that a file can take; a run has about fifty configs. */
enum { MOST_ENTRIES = 1 << 16, MOST_FAULTY = 1024, LINE_SIZE = 1024, NOTE_SIZE = 192, PATH_SIZE = 4096 };

static const struct {
    const char *name;
    int fields; /* of its keys */
} ops[AUTOTUNE_OPS] = {{"gemm", 21}, {"attention", 22}};

/* In the order in which they count. */
enum origin { ADDED, IMPORTED, FROM_FILE, ORIGINS };

struct entry {
    struct autotune_key key;
    struct autotune_config config;
    enum origin origin;
    bool fresh; /* ADDED since the lock: to be written */
    bool stale; /* FROM_FILE: not to be found, but kept in the file */
    bool used;  /* found or added by this process */
};

struct autotune_cache {
    char gpu[128];
    size_t version;
    char path[PATH_SIZE], folder[PATH_SIZE]; /* empty: there is none, and the cache is apart */
    bool apart;                              /* the file does not count */
    int lock_fd;                             /* -1: not locked */
    int note_fd;                             /* of the file .trial; -1: not open */
    bool again, follows;
    bool discards[AUTOTUNE_OPS]; /* what was added is not written */
    struct timespec opened;
    struct entry *entries; /* owned (count) */
    int count;
    uint64_t faulty[MOST_FAULTY]; /* hashes of candidates */
    int num_faulty;
};

/* ---- where it is --------------------------------------------------------- */

bool autotune_cache_folder(char *folder, size_t size)
{
    const char *own = getenv("ZTRAIN_GEMM_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own) return *own && snprintf(folder, size, "%s", own) < (int)size;
    if (xdg && *xdg) return snprintf(folder, size, "%s/ztrain", xdg) < (int)size;
    return home && *home && snprintf(folder, size, "%s/.cache/ztrain", home) < (int)size;
}

void autotune_cache_make_folder(void)
{
    char folder[PATH_SIZE];
    struct error ignored; /* a failure shows when a file is opened there */
    if (autotune_cache_folder(folder, sizeof folder)) fs_mkdirs(folder, STATUS_DEVICE, &ignored);
}

void autotune_cache_file_words(const char *gpu, char *name)
{
    for (; *gpu; gpu++) *name++ = isalnum((unsigned char)*gpu) ? *gpu : '-';
    *name = '\0';
}

struct autotune_cache *autotune_cache_open(const char *gpu, size_t cublaslt_version, bool apart)
{
    struct autotune_cache *cache = memory_zeroed(1, sizeof *cache);
    char name[sizeof cache->gpu];
    cache->lock_fd = cache->note_fd = -1;
    clock_gettime(CLOCK_REALTIME, &cache->opened);
    cache->version = cublaslt_version;
    cache->apart = apart;
    snprintf(cache->gpu, sizeof cache->gpu, "%s", gpu);
    autotune_cache_file_words(cache->gpu, name);
    if (autotune_cache_folder(cache->folder, sizeof cache->folder) &&
        snprintf(cache->path, sizeof cache->path, "%.3900s/gemm-%s-%zu.txt", cache->folder, name, cublaslt_version) <
            (int)sizeof cache->path)
        return cache;
    if (apart) {
        cache->path[0] = '\0';
        return cache;
    }
    free(cache);
    return NULL;
}

void autotune_cache_close(struct autotune_cache *cache)
{
    if (!cache) return;
    if (cache->lock_fd >= 0) close(cache->lock_fd);
    if (cache->note_fd >= 0) close(cache->note_fd);
    free(cache->entries);
    free(cache);
}

const char *autotune_cache_path(const struct autotune_cache *cache)
{
    return cache->path;
}

/* ---- entries ------------------------------------------------------------- */

static struct entry *entry_of(const struct autotune_cache *cache, enum origin origin, const struct autotune_key *key)
{
    for (int i = 0; cache && i < cache->count; i++)
        if (cache->entries[i].origin == origin && memcmp(&cache->entries[i].key, key, sizeof *key) == 0)
            return &cache->entries[i];
    return NULL;
}

bool autotune_cache_find(struct autotune_cache *cache, const struct autotune_key *key, struct autotune_config *config)
{
    struct entry *entry = NULL;
    for (int origin = 0; origin < ORIGINS && !entry; origin++) entry = entry_of(cache, (enum origin)origin, key);
    if (!entry || entry->stale) return false;
    entry->used = true;
    *config = entry->config;
    return true;
}

bool autotune_cache_find_imported(struct autotune_cache *c, const struct autotune_key *key, struct autotune_config *out)
{
    const struct entry *entry = entry_of(c, IMPORTED, key);
    if (entry) *out = entry->config;
    return entry != NULL;
}

static void set_entry(struct autotune_cache *cache, const struct entry *entry)
{
    struct entry *at = entry_of(cache, entry->origin, &entry->key);
    if (!at && cache->count == MOST_ENTRIES) return; /* it will be tuned again */
    if (!at) {
        cache->entries = memory_grow(cache->entries, (size_t)cache->count, sizeof *cache->entries);
        at = &cache->entries[cache->count++];
    }
    *at = *entry;
}

void autotune_cache_put(struct autotune_cache *c, const struct autotune_key *key, const struct autotune_config *found)
{
    const struct entry entry = {.key = *key, .config = *found, .origin = ADDED, .fresh = true, .used = true};
    if (c) set_entry(c, &entry);
}

void autotune_cache_tune_again(struct autotune_cache *cache)
{
    if (cache) cache->again = true;
}

void autotune_cache_discard(struct autotune_cache *cache, enum autotune_op op)
{
    if (cache) cache->discards[op] = true;
}

/* ---- lines --------------------------------------------------------------- */

static void autotune_cache_print(FILE *file, const struct entry *entry)
{
    char line[LINE_SIZE];
    const struct autotune_config *config = &entry->config;
    int n = snprintf(line, sizeof line, "%s ", ops[entry->key.op].name);
    for (int i = 0; i < ops[entry->key.op].fields; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%" PRId64 " ", entry->key.fields[i]);
    n += snprintf(line + n, sizeof line - (size_t)n, "%" PRId64 " ", config->fusion);
    for (int i = 0; i < AUTOTUNE_KERNEL_WORDS; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%016" PRIx64, config->kernel[i]);
    n += snprintf(line + n, sizeof line - (size_t)n, " %.2f", config->microseconds);
    ASSERT(n > 0 && n < (int)sizeof line);
    fprintf(file, "%s %016" PRIx64 "\n", line, (uint64_t)XXH64(line, (size_t)n, 0));
}

/* 16 hexadecimal digits; moves *text behind them. */
static bool autotune_cache_hex(const char **text, uint64_t *value)
{
    int length = 0;
    const bool found = sscanf(*text, "%16" SCNx64 "%n", value, &length) == 1 && length == 16;
    *text += length;
    return found;
}

/* line: without its newline. Its checksum stands for what is in it, save for ops and fusions that this build lacks. */
static bool autotune_cache_parse(const char *line, struct entry *entry)
{
    uint64_t checksum;
    char *end;
    const char *last = strrchr(line, ' '), *text = last ? last + 1 : NULL;
    if (!last || !autotune_cache_hex(&text, &checksum) || *text || XXH64(line, (size_t)(last - line), 0) != checksum)
        return false;
    struct autotune_config *config = &entry->config;
    const size_t name = strcspn(line, " ");
    int op = 0;
    while (op < AUTOTUNE_OPS && (strlen(ops[op].name) != name || strncmp(line, ops[op].name, name) != 0)) op++;
    if (op == AUTOTUNE_OPS) return false;
    entry->key = (struct autotune_key){.op = op};
    text = line + name;
    for (int i = 0; i < ops[op].fields; i++, text = end) entry->key.fields[i] = strtoll(text, &end, 10);
    config->fusion = strtoll(text, &end, 10);
    text = end + (*end == ' ');
    for (int i = 0; i < AUTOTUNE_KERNEL_WORDS; i++)
        if (!autotune_cache_hex(&text, &config->kernel[i])) return false;
    config->microseconds = strtod(text, &end);
    return end == last && config->microseconds >= 0 && config->fusion >= 0 && config->fusion < AUTOTUNE_FUSIONS;
}

/* ---- the file ------------------------------------------------------------ */

static int print_head(const struct autotune_cache *cache, char *head, size_t size)
{
    return snprintf(head, size, "ztrain gemm cache 6\ngpu %s\ncublaslt %zu\n", cache->gpu, cache->version);
}

static bool is_older(const struct autotune_cache *cache, FILE *file)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0) return true;
    const struct timespec *opened = &cache->opened, *written = &info.st_mtim;
    return written->tv_sec != opened->tv_sec ? written->tv_sec < opened->tv_sec : written->tv_nsec < opened->tv_nsec;
}

static void forget_file(struct autotune_cache *cache)
{
    int kept = 0;
    for (int i = 0; i < cache->count; i++)
        if (cache->entries[i].origin != FROM_FILE) cache->entries[kept++] = cache->entries[i];
    cache->count = kept;
}

static void read_file(struct autotune_cache *cache)
{
    char line[LINE_SIZE], expected[LINE_SIZE], head[LINE_SIZE] = "";
    int damaged = 0;
    forget_file(cache);
    FILE *file = memory_fopen(cache->path, "re");
    if (!file) {
        if (errno != ENOENT) log_warn("cannot read the choices of kernels '%s': %s", cache->path, strerror(errno));
        return;
    }
    print_head(cache, expected, sizeof expected);
    for (int i = 0; i < 3 && fgets(line, sizeof line, file); i++) strncat(head, line, sizeof head - strlen(head) - 1);
    if (strcmp(head, expected) != 0) {
        log_warn("'%s' does not hold the choices of kernels for this GPU; it will be replaced", cache->path);
        fclose(file);
        return;
    }
    struct entry entry = {.origin = FROM_FILE, .stale = cache->again && is_older(cache, file)};
    while (fgets(line, sizeof line, file)) {
        const size_t length = strcspn(line, "\n");
        const bool whole = line[length] == '\n';
        line[length] = '\0';
        if (whole && autotune_cache_parse(line, &entry))
            set_entry(cache, &entry);
        else
            damaged++;
    }
    fclose(file);
    if (damaged) log_warn("'%s': %d damaged lines are ignored; what they had is measured again", cache->path, damaged);
}

static bool is_new(const struct autotune_cache *cache, const struct entry *entry)
{
    return entry && entry->fresh && !cache->discards[entry->key.op];
}

static bool is_exported(const struct autotune_cache *cache, const struct entry *entry)
{
    (void)cache;
    return entry->used && entry->origin != IMPORTED;
}

static bool is_kept(const struct autotune_cache *cache, const struct entry *entry)
{
    return is_new(cache, entry) || (entry->origin == FROM_FILE && !is_new(cache, entry_of(cache, ADDED, &entry->key)));
}

/* The text of a file with the wanted entries; the caller frees it. */
static char *print_file(const struct autotune_cache *cache,
                        bool (*wanted)(const struct autotune_cache *cache, const struct entry *entry))
{
    char head[LINE_SIZE], *text;
    FILE *file = memory_stream(&text, NULL);
    print_head(cache, head, sizeof head);
    fputs(head, file);
    for (const struct entry *entry = cache->entries; entry < cache->entries + cache->count; entry++)
        if (wanted(cache, entry)) autotune_cache_print(file, entry);
    fclose(file);
    return text;
}

static void write_file(const struct autotune_cache *cache)
{
    struct error err;
    int fresh = 0;
    for (int i = 0; i < cache->count; i++) fresh += is_new(cache, &cache->entries[i]);
    if (fresh == 0) return;
    OWNED char *text = print_file(cache, is_kept);
    if (fs_write_file(cache->path, text, strlen(text), STATUS_DEVICE, &err) != STATUS_OK)
        log_warn("%s; kernels are measured again next time", err.text);
}

/* ---- configs of another process ------------------------------------------ */

char *autotune_cache_export(const struct autotune_cache *cache)
{
    return cache ? print_file(cache, is_exported) : NULL;
}

void autotune_cache_import(struct autotune_cache *cache, const char *text, bool complete)
{
    char line[LINE_SIZE];
    struct entry entry = {.origin = IMPORTED};
    if (!cache) return;
    const size_t head = (size_t)print_head(cache, line, sizeof line);
    if (strncmp(text, line, head) != 0) return;
    cache->follows |= complete;
    for (text += strlen(line); *text; text += strcspn(text, "\n") + 1) {
        const size_t length = strcspn(text, "\n");
        if (length >= sizeof line || !text[length]) return;
        memcpy(line, text, length);
        line[length] = '\0';
        if (autotune_cache_parse(line, &entry)) set_entry(cache, &entry);
    }
}

bool autotune_cache_follows(const struct autotune_cache *cache)
{
    return cache && cache->follows;
}

/* ---- candidates that fault ----------------------------------------------- */

/* Notes leave it out. */
static const char product_words[] = "the matrix product ";

/* Neither the time nor the number that is ignored is a part of it. */
static uint64_t hash_of(const struct autotune_key *key, const struct autotune_config *config)
{
    const uint64_t *kernel = config->kernel, attention[] = {kernel[0], kernel[2], kernel[3]};
    const uint64_t seed = XXH64(key->fields, (size_t)ops[key->op].fields * sizeof *key->fields, 0);
    return key->op == AUTOTUNE_ATTENTION ? XXH64(attention, sizeof attention, seed)
                                         : XXH64(kernel, sizeof config->kernel, seed);
}

static FILE *open_notes(const struct autotune_cache *cache, const char *suffix, const char *mode, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%.4000s%s", cache->path, suffix);
    return memory_fopen(path, mode);
}

/* Whether the line is a whole note: `text` is what it says after the hash. */
static bool autotune_cache_parse_note(const char *line, uint64_t *hash, const char **text)
{
    *text = line;
    return autotune_cache_hex(text, hash) && *(*text)++ == ' ' && **text > ' ' && strchr(*text, '\n');
}

/* Moves the note of a candidate whose process ended to FILE.faulty, and reads that. */
static void read_notes(struct autotune_cache *cache)
{
    char path[PATH_SIZE], faulty[PATH_SIZE], line[NOTE_SIZE];
    const char *text;
    uint64_t hash;
    FILE *file = open_notes(cache, ".trial", "re", path);
    if (file) {
        const bool running = fgets(line, sizeof line, file) && autotune_cache_parse_note(line, &hash, &text);
        fclose(file);
        FILE *all = running ? open_notes(cache, ".faulty", "ae", faulty) : NULL;
        if (running)
            log_warn("a process ended while it tried a kernel for %s%.*s: that kernel is left out from now on ('%s')",
                     *text == 'm' ? product_words : "", (int)strcspn(text, "\n"), text, faulty);
        const bool written = all && fputs(line, all) >= 0;
        if (running && (!all || fclose(all) != 0 || !written))
            log_warn("cannot write '%s': %s; what is noted there will be tried again", faulty, strerror(errno));
        unlink(path);
    }
    cache->num_faulty = 0;
    if (!(file = open_notes(cache, ".faulty", "re", faulty))) return;
    while (cache->num_faulty < MOST_FAULTY && fgets(line, sizeof line, file))
        if (autotune_cache_parse_note(line, &cache->faulty[cache->num_faulty], &text)) cache->num_faulty++;
    fclose(file);
}

void autotune_cache_note(struct autotune_cache *cache, const struct autotune_key *key,
                         const struct autotune_config *config, const char *words)
{
    char line[NOTE_SIZE], path[PATH_SIZE];
    if (!cache || !*cache->path) return;
    snprintf(path, sizeof path, "%.4000s.trial", cache->path);
    if (cache->note_fd < 0) cache->note_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (strncmp(words, product_words, sizeof product_words - 1) == 0) words += sizeof product_words - 1;
    const int n = snprintf(line, sizeof line, "%016" PRIx64 " %.160s\n", hash_of(key, config), words);
    /* best effort: without the note a fault is only not remembered */
    if (cache->note_fd >= 0 && (pwrite(cache->note_fd, line, (size_t)n, 0) != n || ftruncate(cache->note_fd, n) != 0))
        log_debug("cannot write '%s': %s", path, strerror(errno));
}

void autotune_cache_note_done(struct autotune_cache *cache)
{
    char path[PATH_SIZE];
    if (!cache || cache->note_fd < 0) return;
    close(cache->note_fd);
    cache->note_fd = -1;
    snprintf(path, sizeof path, "%.4000s.trial", cache->path);
    unlink(path);
}

bool autotune_cache_is_faulty(const struct autotune_cache *cache, const struct autotune_key *key,
                              const struct autotune_config *config)
{
    const uint64_t hash = cache && cache->num_faulty > 0 ? hash_of(key, config) : 0;
    for (int i = 0; cache && i < cache->num_faulty; i++)
        if (cache->faulty[i] == hash) return true;
    return false;
}

/* ---- the lock ------------------------------------------------------------ */

/* The kernel releases the lock of a process that died; a file system without locks excludes no other process. */
static void take_lock(struct autotune_cache *cache)
{
    char name[PATH_SIZE + 8];
    struct slow_call slow;
    heartbeat_slow_begin(&slow, "opening", cache->folder, -1);
    autotune_cache_make_folder();
    snprintf(name, sizeof name, "%s.lock", cache->path);
    cache->lock_fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (cache->lock_fd < 0 && !cache->apart)
        log_warn("cannot create '%s': %s; each process measures kernels for itself, and a resumed run may "
                 "choose others; hint: ZTRAIN_GEMM_CACHE names a folder that can be written",
                 name, strerror(errno));
    heartbeat_slow_end(&slow);
    while (cache->lock_fd >= 0 && flock(cache->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        heartbeat_pause(0.02);
    }
}

void autotune_cache_lock(struct autotune_cache *cache)
{
    if (!cache || !*cache->path) return;
    ASSERT(cache->lock_fd < 0);
    take_lock(cache);
    memset(cache->discards, 0, sizeof cache->discards);
    SLOW("reading", cache->path, -1);
    if (!cache->apart) read_file(cache);
    read_notes(cache);
}

void autotune_cache_unlock(struct autotune_cache *cache)
{
    if (!cache) return;
    SLOW("writing", cache->path, -1);
    if (!cache->apart) write_file(cache);
    fs_close(&cache->lock_fd);
    for (int i = 0; i < cache->count; i++) cache->entries[i].fresh = false;
}
