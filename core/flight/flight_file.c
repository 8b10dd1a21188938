/* SPDX-License-Identifier: Apache-2.0 */
#include "core/flight/flight_file.h"

#include <xxhash.h>

enum { HEAD_BYTES = 4096, VERSION = 2 };

static const char *const reasons[] = {"running", "failure", "sigquit", "stall", "ended"}; /* of enum flight_reason */
_Static_assert(COUNT_OF(reasons) == FLIGHT_REASON_COUNT, "every reason has a name");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the words of files are in memory's order");

/* ---- the head ------------------------------------------------------------ */

/* The inside of a JSON string: what is not printable ASCII becomes '?'. */
static const char *flight_quoted(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (const char *c = text; *c && n + 3 < size; c++) {
        if (*c == '"' || *c == '\\') out[n++] = '\\';
        out[n++] = *c >= ' ' && *c <= '~' ? *c : '?';
    }
    out[n] = 0;
    return out;
}

static void print_flight_head(char text[HEAD_BYTES], const struct flight_head *h, const struct flight_image *image)
{
    char host[140], error[1600], waiting[400], tensor[280];
    snprintf(text, HEAD_BYTES,
             "{\"rank\": %d, \"world\": %d, \"host\": \"%s\", \"pid\": %d, \"reason\": \"%s\", \"code\": %d, "
             "\"culprit\": %d, \"failure\": \"%s\", \"error\": \"%s\", \"witness\": %d, \"process\": \"%c\", "
             "\"asked\": %d, \"written\": %" PRId64 ", \"wall\": %" PRId64
             ", \"interval\": %.3f, \"waiting\": \"%s\", \"bad_first\": %" PRId64 ", \"bad_last\": %" PRId64
             ", \"bad_rank\": %d, \"bad_tensor\": \"%s\", \"phase\": %" PRIu64 ", \"phase_since\": %" PRIu64
             ", \"step\": %" PRIu64 ", \"micro\": %" PRIu64 ", \"next\": %" PRIu64 ", \"median_step\": %" PRId64 "}",
             h->rank, h->world, flight_quoted(h->host, host, sizeof host), h->pid, reasons[h->reason], h->code,
             h->culprit, failure_name((int)h->failure), flight_quoted(h->error, error, sizeof error), h->witness,
             h->process, h->asked, h->written, h->wall, h->interval, flight_quoted(h->waiting, waiting, sizeof waiting),
             h->bad_first, h->bad_last, h->bad_rank, flight_quoted(h->bad_tensor, tensor, sizeof tensor), image->phase,
             image->phase_since, image->step, image->micro, image->next, flight_median_step(image));
}

/* ---- writing ------------------------------------------------------------- */

static int flight_write_at(int fd, const void *data, size_t bytes, off_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : EIO;
        done += (size_t)n;
    }
    return 0;
}

static int file_write_entries(int fd, const struct flight_image *image, int first, int end)
{
    const size_t size = sizeof image->entries[0];
    return flight_write_at(fd, image->entries[first], (size_t)(end - first) * size,
                           2 * HEAD_BYTES + first * (off_t)size);
}

static int write_head(struct flight_file *file, const struct flight_head *head, const struct flight_image *image)
{
    char block[HEAD_BYTES] = "", text[HEAD_BYTES];
    print_flight_head(text, head, image);
    const size_t length = strlen(text);
    const int n = snprintf(block, HEAD_BYTES, "ztrain-flight %d %016" PRIx64 " %zu %" PRIu64 "\n", VERSION,
                           (uint64_t)XXH3_64bits(text, length), length, ++file->count);
    ASSERT(n > 0 && (size_t)n + length <= HEAD_BYTES);
    memcpy(block + n, text, length);
    return flight_write_at(file->fd, block, sizeof block, (off_t)(file->count % 2) * HEAD_BYTES);
}

int flight_file_create(struct flight_file *file, const char *path, const struct flight_head *head,
                       const struct flight_image *image)
{
    char temporary[FS_PATH_MAX + 32];
    snprintf(temporary, sizeof temporary, "%s" FLIGHT_FILE_TORN "%d", path, (int)getpid());
    file->count = 0;
    file->fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd < 0) return errno;
    static const char empty[HEAD_BYTES];
    int reason = flight_write_at(file->fd, empty, sizeof empty, 0);
    reason = reason ? reason : file_write_entries(file->fd, image, 0, FLIGHT_ENTRIES);
    reason = reason ? reason : write_head(file, head, image);
    reason = reason || rename(temporary, path) == 0 ? reason : errno;
    file->last = *image;
    if (reason) {
        unlink(temporary);
        flight_file_close(file);
    }
    return reason;
}

int flight_file_renew(struct flight_file *file, const struct flight_head *head, const struct flight_image *image)
{
    int first = FLIGHT_ENTRIES, end = 0;
    for (int e = 0; e < FLIGHT_ENTRIES; e++)
        if (memcmp(file->last.entries[e], image->entries[e], sizeof image->entries[e]) != 0) {
            first = first < e ? first : e;
            end = e + 1;
        }
    int reason = first < end ? file_write_entries(file->fd, image, first, end) : 0;
    reason = reason ? reason : write_head(file, head, image);
    if (!reason) file->last = *image;
    return reason;
}

void flight_file_close(struct flight_file *file)
{
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

/* ---- reading ------------------------------------------------------------- */

static json_t *flight_parse_head(const char block[HEAD_BYTES], uint64_t *count)
{
    int version, used = 0;
    uint64_t hash;
    size_t length;
    char first[128] = "";
    memcpy(first, block, sizeof first - 1);
    if (sscanf(first, "ztrain-flight %d %16" SCNx64 " %5zu %18" SCNu64 "%n", &version, &hash, &length, count, &used) !=
            4 ||
        version != VERSION || first[used] != '\n' || length > HEAD_BYTES - (size_t)used - 1)
        return NULL;
    const char *text = block + used + 1;
    return XXH3_64bits(text, length) == hash ? json_loadb(text, length, 0, NULL) : NULL;
}

/* false: the JSON is not a head, or a number is out of range. */
static bool file_take_head(json_t *json, struct flight_record *r)
{
    struct flight_head *h = &r->head;
    const char *host, *error, *waiting, *tensor, *process, *reason, *failure;
    const struct {
        const char *name;
        int64_t *to;
    } longs[] = {{"written", &h->written},     {"wall", &h->wall},
                 {"bad_first", &h->bad_first}, {"bad_last", &h->bad_last},
                 {"phase", &r->phase},         {"phase_since", &r->phase_since},
                 {"step", &r->step},           {"micro", &r->micro},
                 {"next", &r->next},           {"median_step", &r->median_step}};
    if (json_unpack(json, "{si si si si si si si si sF ss ss ss ss ss ss ss}", "rank", &h->rank, "world", &h->world,
                    "pid", &h->pid, "code", &h->code, "culprit", &h->culprit, "witness", &h->witness, "asked",
                    &h->asked, "bad_rank", &h->bad_rank, "interval", &h->interval, "host", &host, "error", &error,
                    "waiting", &waiting, "bad_tensor", &tensor, "process", &process, "reason", &reason, "failure",
                    &failure) != 0)
        return false;
    snprintf(h->host, sizeof h->host, "%s", host);
    snprintf(h->error, sizeof h->error, "%s", error);
    snprintf(h->waiting, sizeof h->waiting, "%s", waiting);
    snprintf(h->bad_tensor, sizeof h->bad_tensor, "%s", tensor);
    h->process = process[0] ? process[0] : '?';
    bool moderate = true;
    for (size_t i = 0; i < COUNT_OF(longs); i++) {
        *longs[i].to = json_integer_value(json_object_get(json, longs[i].name));
        moderate &= *longs[i].to >= 0 && *longs[i].to < INT64_C(1) << 62;
    }
    for (int i = 0; i < FLIGHT_REASON_COUNT; i++)
        if (!strcmp(reason, reasons[i])) h->reason = (enum flight_reason)i;
    for (int i = 0; i < FAILURE_COUNT; i++)
        if (!strcmp(failure, failure_name(i))) h->failure = (enum failure)i;
    return moderate && h->world > 0 && h->rank >= 0 && h->rank < h->world && h->world <= 1 << 20;
}

static int compare_flight_entries(const void *a, const void *b)
{
    const struct flight_entry *x = a, *y = b;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

static void file_read_entries(const char *data, struct flight_record *r)
{
    r->entries = memory_zeroed(FLIGHT_ENTRIES, sizeof *r->entries);
    for (int e = 0; e < FLIGHT_ENTRIES; e++) {
        uint64_t words[FLIGHT_ENTRY_WORDS];
        struct flight_entry entry;
        memcpy(words, data + (size_t)e * sizeof words, sizeof words);
        if (flight_decode(words, &entry) && (entry.entry - 1) % FLIGHT_ENTRIES == (uint64_t)e)
            r->entries[r->count++] = entry;
        else
            r->torn += words[0] != 0 || words[7] != 0;
    }
    qsort(r->entries, (size_t)r->count, sizeof *r->entries, compare_flight_entries);
}

bool flight_record_parse(const char *data, size_t size, struct flight_record *record)
{
    *record = (struct flight_record){.count = 0};
    if (size < FLIGHT_FILE_BYTES) return false;
    uint64_t counts[2] = {0, 0};
    json_t *heads[2] = {flight_parse_head(data, &counts[0]), flight_parse_head(data + HEAD_BYTES, &counts[1])};
    const int newest = !heads[0] || (heads[1] && counts[1] > counts[0]);
    const bool fine = heads[newest] && file_take_head(heads[newest], record);
    json_decref(heads[0]);
    json_decref(heads[1]);
    if (fine) file_read_entries(data + 2 * HEAD_BYTES, record);
    return fine;
}

enum status flight_record_read(const char *path, struct flight_record *record, struct error *err)
{
    OWNED char *data = NULL;
    size_t size;
    *record = (struct flight_record){.count = 0};
    TRY(fs_read_file(path, 4 * FLIGHT_FILE_BYTES, STATUS_CHECKPOINT, &data, &size, err));
    if (flight_record_parse(data, size, record)) return STATUS_OK;
    return error_set(err, STATUS_CHECKPOINT,
                     "'%s' is not a flight record of this version of ztrain, or one that is damaged", path);
}

void flight_record_release(struct flight_record *record)
{
    free(TAKEN(record->entries));
    record->count = 0;
}

double flight_wall(const struct flight_record *record, int64_t clock)
{
    return 1e-9 * (double)record->head.wall + 1e-9 * (double)(clock - record->head.written);
}

/* ---- the end of a start -------------------------------------------------- */

enum { LINE_BYTES = 80 };

/* -1, with errno: it cannot be opened. */
static int open_end(const char *flight, int flags)
{
    char path[FS_PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/ended", flight);
    return open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666); /* a pipe of this name is not waited for */
}

int flight_ended_write(const char *flight, const struct flight_end *end)
{
    char line[LINE_BYTES];
    const int length = snprintf(line, sizeof line, "%s %" PRId64 "\n", end->start, end->wall);
    const int fd = open_end(flight, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) return errno;
    const ssize_t written = write(fd, line, (size_t)length);
    int reason = written == length ? 0 : written < 0 ? errno : ENOSPC;
    if (close(fd) != 0 && !reason) reason = errno;
    return reason;
}

int flight_ended_delete(const char *flight)
{
    char path[FS_PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/ended", flight);
    return unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
}

bool flight_ended_read(const char *flight, struct flight_end *end)
{
    char line[LINE_BYTES + 1] = "", newline = 0;
    RELEASED(fs_close) int fd = open_end(flight, O_RDONLY);
    const ssize_t count = read(fd, line, LINE_BYTES);
    return count > 0 && sscanf(line, "%39s %18" SCNd64 "%c", end->start, &end->wall, &newline) == 3 &&
           newline == '\n' && end->wall >= 0;
}

/* ---- starts -------------------------------------------------------------- */

/* 0: the name has none. */
static int64_t flight_head_count(const char *name)
{
    int64_t count;
    int day, time, part;
    return sscanf(name, "%18" SCNd64 "-%8d-%6d-%3d", &count, &day, &time, &part) == 4 && count > 0 ? count : 0;
}

int flight_start_compare(const char *a, const char *b)
{
    const int64_t x = flight_head_count(a), y = flight_head_count(b);
    return x == y ? strcmp(a, b) : x < y ? -1 : 1;
}

static int is_flight_start(const struct dirent *entry)
{
    return entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
}

static int by_flight_start(const struct dirent **a, const struct dirent **b)
{
    return flight_start_compare((*a)->d_name, (*b)->d_name);
}

int flight_starts(const char *flight, struct dirent ***names)
{
    return scandir(flight, names, is_flight_start, by_flight_start);
}

int64_t flight_start_next(const char *flight)
{
    int64_t last = 0;
    struct flight_end end;
    OWNED_DIR *entries = io_opendir(flight);
    for (struct dirent *entry; entries && (entry = io_readdir(entries));) {
        const int64_t count = flight_head_count(entry->d_name);
        last = count > last ? count : last;
    }
    if (flight_ended_read(flight, &end) && flight_head_count(end.start) > last) last = flight_head_count(end.start);
    return last + 1;
}

void flight_start_name(int64_t count, struct timespec now, char name[FLIGHT_START_BYTES])
{
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    const int n = snprintf(name, FLIGHT_START_BYTES, "%04" PRId64 "-", count);
    const size_t time = strftime(name + n, 20, "%Y%m%d-%H%M%S", &utc);
    snprintf(name + n + time, FLIGHT_START_BYTES - (size_t)n - time, "-%03ld", now.tv_nsec / 1000000);
}
