/* gemm_cache.c: reads and writes the file of gemm_cache.h. Every byte is checked: lines that do not parse, or whose
 * checksum is wrong, are skipped. */
#include "gpu/gemm_cache.h"

#include "core/heartbeat.h"
#include "core/log.h"
#include "core/memory.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* MAX_ENTRIES bounds the memory that a file can take; a run has about fifty choices. */
enum { MAX_ENTRIES = 1 << 16, LINE_SIZE = 1024, PATH_SIZE = 4096, LOCK_POLL_MS = 20 };

static const char magic[] = "ztrain gemm cache 6";

/* What is chosen for. */
enum kind { KIND_GEMM, KIND_ATTENTION, KIND_COUNT };
static const struct {
    const char *name;
    int fields;
} kinds[KIND_COUNT] = {{"gemm", GEMM_KEY_FIELDS}, {"attention", ATTENTION_KEY_FIELDS}};

enum { MOST_FIELDS = ATTENTION_KEY_FIELDS };
_Static_assert((int)GEMM_KEY_FIELDS <= (int)MOST_FIELDS, "every key has a place");

/* The fields after those of its kind are 0. */
struct cache_key {
    int64_t kind, fields[MOST_FIELDS];
};

struct entry {
    struct cache_key key;
    struct gemm_choice choice;
    bool stale;      /* not to be found: it is measured again */
    bool used;       /* found or made by this process */
    bool added;      /* since the lock */
    bool had_before; /* added: in place of the file's choice, which is `before` */
    struct gemm_choice before;
};

struct entries {
    struct entry *all; /* owned (count) */
    int count, room;
};

struct gemm_cache {
    char gpu[128];
    size_t version;
    char path[PATH_SIZE], folder[PATH_SIZE];
    int lock_fd; /* -1: not locked */
    bool again;
    bool discards[KIND_COUNT]; /* what was added is not kept */
    bool follows;              /* complete choices were imported */
    struct timespec opened;
    struct entries file, imported;
};

/* ---- where it is --------------------------------------------------------- */

bool gemm_cache_folder(char *folder, size_t size)
{
    const char *own = getenv("ZTRAIN_GEMM_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own)
        return *own && snprintf(folder, size, "%s", own) < (int)size;
    if (xdg && *xdg)
        return snprintf(folder, size, "%s/ztrain", xdg) < (int)size;
    return home && *home && snprintf(folder, size, "%s/.cache/ztrain", home) < (int)size;
}

void gemm_cache_file_words(const char *gpu, char *name)
{
    for (; *gpu; gpu++)
        *name++ = isalnum((unsigned char)*gpu) ? *gpu : '-';
    *name = '\0';
}

struct gemm_cache *gemm_cache_open(const char *gpu, size_t cublaslt_version)
{
    struct gemm_cache *cache = calloc(1, sizeof *cache);
    if (!cache || !gemm_cache_folder(cache->folder, sizeof cache->folder)) {
        free(cache);
        return NULL;
    }
    cache->lock_fd = -1;
    clock_gettime(CLOCK_REALTIME, &cache->opened);
    cache->version = cublaslt_version;
    snprintf(cache->gpu, sizeof cache->gpu, "%s", gpu);
    char name[sizeof cache->gpu];
    gemm_cache_file_words(cache->gpu, name);
    if (snprintf(cache->path, sizeof cache->path, "%.3900s/gemm-%s-%zu.txt", cache->folder, name, cublaslt_version) >=
        (int)sizeof cache->path) {
        free(cache);
        return NULL;
    }
    return cache;
}

void gemm_cache_close(struct gemm_cache *cache)
{
    if (!cache)
        return;
    if (cache->lock_fd >= 0)
        close(cache->lock_fd);
    free(cache->file.all);
    free(cache->imported.all);
    free(cache);
}

const char *gemm_cache_path(const struct gemm_cache *cache)
{
    return cache->path;
}

/* ---- entries ------------------------------------------------------------- */

static struct cache_key key_of_product(const struct gemm_key *key)
{
    struct cache_key whole = {.kind = KIND_GEMM};
    memcpy(whole.fields, key, sizeof *key);
    return whole;
}

static struct cache_key key_of_attention(const struct attention_key *key)
{
    struct cache_key whole = {.kind = KIND_ATTENTION};
    memcpy(whole.fields, key, sizeof *key);
    return whole;
}

static struct entry *find(const struct entries *entries, const struct cache_key *key)
{
    for (int i = 0; i < entries->count; i++)
        if (memcmp(&entries->all[i].key, key, sizeof *key) == 0)
            return &entries->all[i];
    return NULL;
}

static bool find_choice(const struct gemm_cache *cache, const struct cache_key *key, struct gemm_choice *choice)
{
    struct entry *entry = cache ? find(&cache->imported, key) : NULL;
    if (cache && !entry)
        entry = find(&cache->file, key);
    if (!entry || entry->stale)
        return false;
    entry->used = true;
    *choice = entry->choice;
    return true;
}

bool gemm_cache_find(const struct gemm_cache *cache, const struct gemm_key *key, struct gemm_choice *choice)
{
    const struct cache_key whole = key_of_product(key);
    return find_choice(cache, &whole, choice);
}

bool gemm_cache_find_attention(const struct gemm_cache *cache, const struct attention_key *key,
                               struct attention_choice *choice)
{
    const struct cache_key whole = key_of_attention(key);
    struct gemm_choice found;
    if (!find_choice(cache, &whole, &found))
        return false;
    const uint64_t *data = found.algorithm.data;
    *choice =
        (struct attention_choice){(int64_t)data[0], (int64_t)data[1], (int64_t)data[2], data[3], found.microseconds};
    return true;
}

static void set(struct entries *entries, const struct entry *entry)
{
    struct entry *at = find(entries, &entry->key);
    if (at) {
        *at = *entry;
        return;
    }
    if (entries->count == entries->room) {
        int room = entries->room ? 2 * entries->room : 64;
        struct entry *all = room <= MAX_ENTRIES ? realloc(entries->all, (size_t)room * sizeof *all) : NULL;
        if (!all)
            return; /* the choice will be made again */
        entries->all = all;
        entries->room = room;
    }
    entries->all[entries->count++] = *entry;
}

static void put_choice(struct gemm_cache *cache, const struct cache_key *key, const struct gemm_choice *choice)
{
    if (!cache)
        return;
    struct entry entry = {.key = *key, .choice = *choice, .used = true, .added = true};
    struct entry *imported = find(&cache->imported, key);
    const struct entry *there = find(&cache->file, key);
    if (imported) /* of no use here, or it would have been found and taken */
        imported->choice = *choice;
    if (there) {
        entry.had_before = !there->added || there->had_before;
        entry.before = there->added ? there->before : there->choice;
    }
    set(&cache->file, &entry);
}

void gemm_cache_put(struct gemm_cache *cache, const struct gemm_key *key, const struct gemm_choice *choice)
{
    const struct cache_key whole = key_of_product(key);
    put_choice(cache, &whole, choice);
}

void gemm_cache_put_attention(struct gemm_cache *cache, const struct attention_key *key,
                              const struct attention_choice *choice)
{
    const struct cache_key whole = key_of_attention(key);
    const struct gemm_choice words = {
        .algorithm = {{(uint64_t)choice->piece, (uint64_t)choice->proposal, (uint64_t)choice->engine, choice->kernel}},
        .microseconds = choice->microseconds};
    put_choice(cache, &whole, &words);
}

void gemm_cache_measure_again(struct gemm_cache *cache)
{
    if (cache)
        cache->again = true;
}

void gemm_cache_do_not_keep(struct gemm_cache *cache)
{
    if (cache)
        cache->discards[KIND_GEMM] = true;
}

void gemm_cache_do_not_keep_attention(struct gemm_cache *cache)
{
    if (cache)
        cache->discards[KIND_ATTENTION] = true;
}

/* ---- lines --------------------------------------------------------------- */

/* Prints an entry's line without its checksum; returns its length. */
static int print_entry(const struct entry *entry, char *line, size_t size)
{
    const int64_t kind = entry->key.kind;
    int n = snprintf(line, size, "%s ", kinds[kind].name);
    for (int i = 0; i < kinds[kind].fields; i++)
        n += snprintf(line + n, size - (size_t)n, "%" PRId64 " ", entry->key.fields[i]);
    const struct gemm_choice *choice = &entry->choice;
    n += snprintf(line + n, size - (size_t)n, "%d ", (int)choice->way);
    for (size_t i = 0; i < COUNT_OF(choice->algorithm.data); i++)
        n += snprintf(line + n, size - (size_t)n, "%016" PRIx64, choice->algorithm.data[i]);
    n += snprintf(line + n, size - (size_t)n, " %.2f", choice->microseconds);
    ASSERT(n > 0 && n < (int)size);
    return n;
}

/* Parses 16 hexadecimal digits and moves *text to the character after them. */
static bool parse_hex(const char **text, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < 16; i++) {
        char c = **text;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        *value = *value << 4 | (uint64_t)digit;
        ++*text;
    }
    return true;
}

/* Parses the first word and the space after it; KIND_COUNT: another one. */
static enum kind parse_kind(const char **text)
{
    for (int i = 0; i < KIND_COUNT; i++) {
        const size_t length = strlen(kinds[i].name);
        if (strncmp(*text, kinds[i].name, length) == 0 && (*text)[length] == ' ') {
            *text += length + 1;
            return (enum kind)i;
        }
    }
    return KIND_COUNT;
}

/* Parses `count` numbers, each with the space after it. */
static bool parse_numbers(const char **text, int64_t *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        char *end;
        errno = 0;
        numbers[i] = strtoll(*text, &end, 10);
        if (end == *text || *end != ' ' || errno)
            return false;
        *text = end + 1;
    }
    return true;
}

/* Parses a line, which comes without its newline. */
static bool parse_entry(const char *line, struct entry *entry)
{
    uint64_t checksum;
    int64_t way;
    const char *last = strrchr(line, ' '), *text = last ? last + 1 : NULL;
    if (!last || !parse_hex(&text, &checksum) || *text || XXH64(line, (size_t)(last - line), 0) != checksum)
        return false;
    text = line;
    const enum kind kind = parse_kind(&text);
    entry->key = (struct cache_key){.kind = kind};
    if (kind == KIND_COUNT || !parse_numbers(&text, entry->key.fields, kinds[kind].fields) ||
        !parse_numbers(&text, &way, 1))
        return false;
    struct gemm_choice *choice = &entry->choice;
    for (size_t i = 0; i < COUNT_OF(choice->algorithm.data); i++)
        if (!parse_hex(&text, &choice->algorithm.data[i]))
            return false;
    char *end;
    choice->microseconds = strtod(text, &end);
    choice->way = (enum gemm_way)way;
    return end == last && *text == ' ' && choice->microseconds >= 0 && way >= 0 && way < GEMM_WAY_COUNT;
}

/* ---- the file ------------------------------------------------------------ */

/* Prints the head of the file for this GPU and library version; returns its length. */
static int print_head(const struct gemm_cache *cache, char *head, size_t size)
{
    return snprintf(head, size, "%s\ngpu %s\ncublaslt %zu\n", magic, cache->gpu, cache->version);
}

/* Whether the file's choices are older than this process. */
static bool is_older(const struct gemm_cache *cache, FILE *file)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0)
        return true;
    const struct timespec *opened = &cache->opened, *written = &info.st_mtim;
    return written->tv_sec != opened->tv_sec ? written->tv_sec < opened->tv_sec : written->tv_nsec < opened->tv_nsec;
}

static void read_file(struct gemm_cache *cache)
{
    char line[LINE_SIZE], expected[LINE_SIZE], head[LINE_SIZE] = "";
    int damaged = 0;
    cache->file.count = 0;
    FILE *file = memory_fopen(cache->path, "re");
    if (!file) {
        if (errno != ENOENT)
            log_warn("cannot read the choices of kernels '%s': %s", cache->path, strerror(errno));
        return;
    }
    print_head(cache, expected, sizeof expected);
    for (int i = 0; i < 3 && fgets(line, sizeof line, file); i++)
        strncat(head, line, sizeof head - strlen(head) - 1);
    if (strcmp(head, expected) != 0) {
        log_warn("'%s' does not hold the choices of kernels for this GPU; it will be replaced", cache->path);
        fclose(file);
        return;
    }
    const bool stale = cache->again && is_older(cache, file);
    while (fgets(line, sizeof line, file)) {
        struct entry entry = {.stale = stale};
        size_t length = strcspn(line, "\n");
        bool whole = line[length] == '\n';
        line[length] = '\0';
        if (whole && parse_entry(line, &entry))
            set(&cache->file, &entry);
        else
            damaged++;
    }
    fclose(file);
    if (damaged)
        log_warn("'%s': %d damaged lines are ignored; what they had is measured again", cache->path, damaged);
}

static bool write_entry(FILE *file, const struct entry *entry)
{
    char line[LINE_SIZE];
    const int n = print_entry(entry, line, sizeof line);
    return fprintf(file, "%s %016" PRIx64 "\n", line, (uint64_t)XXH64(line, (size_t)n, 0)) > 0;
}

/* Whether what was added for the key is not kept. */
static bool is_discarded(const struct gemm_cache *cache, const struct entry *entry)
{
    return entry->added && cache->discards[entry->key.kind];
}

/* Whether the file lacks a choice that is kept. */
static bool has_changed(const struct gemm_cache *cache)
{
    for (int i = 0; i < cache->file.count; i++)
        if (cache->file.all[i].added && !is_discarded(cache, &cache->file.all[i]))
            return true;
    return false;
}

/* Writes what is kept of an entry. */
static bool write_kept(const struct gemm_cache *cache, FILE *file, const struct entry *entry)
{
    const struct entry before = {.key = entry->key, .choice = entry->before};
    if (!is_discarded(cache, entry))
        return write_entry(file, entry);
    return !entry->had_before || write_entry(file, &before);
}

static enum status write_file(const struct gemm_cache *cache, struct error *err)
{
    char temporary[PATH_SIZE + 32], line[LINE_SIZE];
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", cache->path, (long)getpid());
    FILE *file = memory_fopen(temporary, "we");
    if (!file)
        return error_set(err, STATUS_DEVICE, "cannot create '%s': %s", temporary, strerror(errno));
    print_head(cache, line, sizeof line);
    bool written = fputs(line, file) >= 0;
    for (int i = 0; written && i < cache->file.count; i++)
        written = write_kept(cache, file, &cache->file.all[i]);
    written = fflush(file) == 0 && fsync(fileno(file)) == 0 && written;
    int code = errno;
    written = fclose(file) == 0 && written;
    if (written && rename(temporary, cache->path) == 0)
        return STATUS_OK;
    code = written ? errno : code;
    unlink(temporary);
    return error_set(err, STATUS_DEVICE, "cannot write '%s': %s", cache->path, strerror(code));
}

/* ---- choices of another process ------------------------------------------ */

char *gemm_cache_export(const struct gemm_cache *cache)
{
    char head[LINE_SIZE], *text = NULL;
    size_t size;
    FILE *file = cache ? open_memstream(&text, &size) : NULL;
    if (!file)
        return NULL;
    print_head(cache, head, sizeof head);
    bool written = fputs(head, file) >= 0;
    for (int i = 0; written && i < cache->file.count; i++)
        if (cache->file.all[i].used)
            written = write_entry(file, &cache->file.all[i]);
    written = fclose(file) == 0 && written;
    if (written)
        return text;
    free(text);
    return NULL;
}

void gemm_cache_import(struct gemm_cache *cache, const char *text, bool complete)
{
    char line[LINE_SIZE];
    if (!cache)
        return;
    print_head(cache, line, sizeof line);
    if (strncmp(text, line, strlen(line)) != 0)
        return;
    cache->follows |= complete;
    for (text += strlen(line); *text; text += strcspn(text, "\n") + 1) {
        struct entry entry = {.stale = false};
        const size_t length = strcspn(text, "\n");
        if (length >= sizeof line || !text[length])
            return;
        memcpy(line, text, length);
        line[length] = '\0';
        if (parse_entry(line, &entry))
            set(&cache->imported, &entry);
    }
}

bool gemm_cache_follows(const struct gemm_cache *cache)
{
    return cache && cache->follows;
}

bool gemm_cache_find_imported(const struct gemm_cache *cache, const struct gemm_key *key, struct gemm_choice *choice)
{
    const struct cache_key whole = key_of_product(key);
    const struct entry *entry = cache ? find(&cache->imported, &whole) : NULL;
    if (entry)
        *choice = entry->choice;
    return entry != NULL;
}

/* Makes the folder and those above it. */
static void make_folders(const char *path)
{
    char part[PATH_SIZE];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(part, 0777);
        *slash = '/';
    }
    mkdir(part, 0777); /* a failure shows when the lock file is opened */
}

void gemm_cache_make_folder(void)
{
    char folder[PATH_SIZE];
    if (gemm_cache_folder(folder, sizeof folder))
        make_folders(folder);
}

void gemm_cache_lock(struct gemm_cache *cache)
{
    char name[PATH_SIZE + 8];
    struct slow_call slow;
    if (!cache)
        return;
    ASSERT(cache->lock_fd < 0);
    heartbeat_slow_begin(&slow, "opening", cache->folder, -1);
    make_folders(cache->folder);
    snprintf(name, sizeof name, "%s.lock", cache->path);
    cache->lock_fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (cache->lock_fd < 0)
        log_warn("cannot create '%s': %s; each process measures kernels for itself, and a resumed run may "
                 "choose others; hint: ZTRAIN_GEMM_CACHE names a folder that can be written",
                 name, strerror(errno));
    heartbeat_slow_end(&slow);
    /* The kernel releases the lock of a process that died. A file system without locks excludes no other process. */
    while (cache->lock_fd >= 0 && flock(cache->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            break;
        struct timespec pause = {0, LOCK_POLL_MS * 1000000L};
        nanosleep(&pause, NULL);
        heartbeat_beat();
    }
    memset(cache->discards, 0, sizeof cache->discards);
    heartbeat_slow_begin(&slow, "reading", cache->path, -1);
    read_file(cache);
    heartbeat_slow_end(&slow);
}

void gemm_cache_unlock(struct gemm_cache *cache)
{
    struct error err;
    struct slow_call slow;
    if (!cache)
        return;
    heartbeat_slow_begin(&slow, "writing", cache->path, -1);
    if (has_changed(cache) && write_file(cache, &err) != STATUS_OK)
        log_warn("%s; kernels are measured again next time", err.text);
    if (cache->lock_fd >= 0)
        close(cache->lock_fd);
    heartbeat_slow_end(&slow);
    cache->lock_fd = -1;
}
