/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/csv_monitor.h"

enum { SERIES_MAX = 32, FILE_BYTES_MAX = 1 << 30 };

struct series {
    char *tag, *path;
    int fd;
};

struct csv_monitor {
    char *folder;
    struct csv_history history;
    int count;
    struct series series[SERIES_MAX];
};

enum status csv_monitor_open(const char *folder, const struct csv_history *history, struct csv_monitor **out,
                             struct error *err)
{
    TRY(fs_mkdirs(folder, STATUS_CHECKPOINT, err));
    *out = memory_alloc(sizeof **out);
    **out = (struct csv_monitor){.folder = memory_text(folder), .history = *history};
    return STATUS_OK;
}

void csv_monitor_close(struct csv_monitor *m)
{
    if (!m) return;
    for (int i = 0; i < m->count; i++) {
        io_close(m->series[i].fd);
        free(m->series[i].tag);
        free(m->series[i].path);
    }
    free(m->folder);
    free(m);
}

/* The length of the beginning of a file that stays: the heading, and rows of steps before the first to come. */
static size_t csv_kept_bytes(const char *text, size_t bytes, int64_t first_step)
{
    const char *end = memchr(text, '\n', bytes), *row = end ? end + 1 : text;
    while ((end = memchr(row, '\n', (size_t)(text + bytes - row))) && strtoll(row, NULL, 10) < first_step)
        row = end + 1;
    return (size_t)(row - text);
}

/* Cuts the file at the first row that the run repeats. *empty: nothing is left, or nothing was there. */
static enum status csv_cut(int64_t first_step, const char *path, bool *empty, struct error *err)
{
    OWNED char *text = NULL;
    size_t bytes;
    *empty = !fs_exists(path);
    if (*empty) return STATUS_OK;
    TRY(fs_read_file(path, FILE_BYTES_MAX, STATUS_CHECKPOINT, &text, &bytes, err));
    size_t kept = csv_kept_bytes(text, bytes, first_step);
    *empty = kept == 0;
    RELEASED(fs_close) int fd = kept < bytes ? io_open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (kept == bytes) return STATUS_OK;
    if (fd >= 0 && io_ftruncate(fd, (off_t)kept) == 0) return STATUS_OK;
    return error_system(err, STATUS_CHECKPOINT, errno, "cannot cut '%s'", path);
}

static enum status open_series(struct csv_monitor *m, const char *tag, struct series **out, struct error *err)
{
    char name[256], path[FS_PATH_MAX], heading[300];
    bool empty;
    ASSERT(m->count < SERIES_MAX);
    snprintf(name, sizeof name, "%s.csv", tag);
    for (char *c = name; *c; c++)
        if (*c == '/' || *c == ' ') *c = '_';
    TRY(fs_join(path, m->folder, name, STATUS_CHECKPOINT, err));
    bool evaluates = !strncmp(tag, "Eval", strlen("Eval"));
    TRY(csv_cut(evaluates ? m->history.first_eval : m->history.first_train, path, &empty, err));
    int fd = io_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return error_system(err, STATUS_CHECKPOINT, errno, "cannot create '%s'", path);
    *out = &m->series[m->count++];
    **out = (struct series){.tag = memory_text(tag), .path = memory_text(path), .fd = fd};
    const char *slash = strrchr(tag, '/');
    snprintf(heading, sizeof heading, "step,%s\r\n", slash ? slash + 1 : tag);
    return empty ? fs_write(fd, path, heading, strlen(heading), STATUS_CHECKPOINT, err) : STATUS_OK;
}

/* The shortest of the usual formats from which the value is read back. */
static void csv_format(double value, char *text, size_t size)
{
    for (int digits = 6; digits <= 17; digits += digits < 15 ? 9 : 2) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

enum status csv_monitor_scalars(struct csv_monitor *m, int64_t step, const struct scalar *scalars, int count,
                                struct error *err)
{
    for (int i = 0; i < count; i++) {
        struct series *series = NULL;
        char number[64], row[128];
        if (!isfinite(scalars[i].value)) continue;
        for (int k = 0; k < m->count && !series; k++)
            if (!strcmp(m->series[k].tag, scalars[i].tag)) series = &m->series[k];
        if (!series) TRY(open_series(m, scalars[i].tag, &series, err));
        csv_format(scalars[i].value, number, sizeof number);
        const int bytes = snprintf(row, sizeof row, "%" PRId64 ",%s\r\n", step, number);
        TRY(fs_write(series->fd, series->path, row, (size_t)bytes, STATUS_CHECKPOINT, err));
    }
    return STATUS_OK;
}
