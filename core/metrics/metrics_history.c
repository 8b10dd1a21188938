/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/metrics_history.h"

#include "core/core.h"
#include "core/faults.h"
#include "core/metrics/metrics_reader.h"

/* ---- the lines of a history ---------------------------------------------- */

/* The steps without a line, up to a step that has one. */
struct holes {
    int64_t reached; /* the last step that is known to have a line, or to need none */
    int64_t steps;   /* number of steps without a line */
    int ranges;
    char text[160]; /* the first ranges: "54 to 139, 200" */
};

enum { HOLES_NAMED = 4 };

static void history_holes_reach(struct holes *holes, int64_t step)
{
    int64_t from = holes->reached + 1, to = step - 1;
    if (step > holes->reached) holes->reached = step;
    if (from > to) return;
    holes->steps += to - from + 1;
    const char *comma = holes->ranges ? ", " : "";
    size_t used = strlen(holes->text), room = sizeof holes->text - used;
    if (++holes->ranges > HOLES_NAMED)
        snprintf(holes->text + used, room, "%s", holes->ranges == HOLES_NAMED + 1 ? ", …" : "");
    else if (from == to)
        snprintf(holes->text + used, room, "%s%" PRId64, comma, from);
    else
        snprintf(holes->text + used, room, "%s%" PRId64 " to %" PRId64, comma, from, to);
}

struct survey {
    struct holes holes;     /* up to the resumed checkpoint's step */
    int64_t left_out;       /* lines, including a torn last one */
    int64_t damaged, first; /* lines in the middle, and the number of the first */
    bool open_end;          /* the last line that stays has no newline */
    bool has_checkpoint;    /* the file has the line of the resumed checkpoint */
};

/* Whether the line reports an evaluation, the end of an epoch, or a checkpoint that was written after those. */
static bool history_after_eval(const struct metrics_reader *line)
{
    return json_object_get(line->object, "eval_loss") || json_object_get(line->object, "sample") ||
           json_object_get(line->object, "epoch_end") ||
           !strncmp(metrics_reader_folder(line, "checkpoint"), "epoch-", 6) ||
           !strncmp(metrics_reader_folder(line, "resumed_from"), "epoch-", 6);
}

static bool survey_line(struct survey *survey, const struct metrics_reader *line, const struct metrics_history *history)
{
    const bool ends = line->text[line->length - 1] == '\n', last = line->step == history->step;
    if (!line->object || line->step > history->step || (last && history->evaluation_due && history_after_eval(line))) {
        survey->left_out++;
        if (!line->object && ends && !survey->damaged++) survey->first = line->number;
        return false;
    }
    survey->open_end = !ends;
    if (json_object_get(line->object, "loss")) history_holes_reach(&survey->holes, line->step);
    if (last && !strcmp(metrics_reader_folder(line, "checkpoint"), basename(history->checkpoint)))
        survey->has_checkpoint = true;
    return true;
}

/* Reads a file. The lines that stay also go to `kept`, unless it is NULL, each with a newline. */
static enum status read_history(const char *path, const struct metrics_history *history, FILE *kept,
                                struct survey *survey, struct error *err)
{
    RELEASED(metrics_reader_close) struct metrics_reader line = {0};
    bool begun = false;
    *survey = (struct survey){.left_out = 0};
    TRY(metrics_reader_open(&line, path, err));
    while (metrics_reader_next(&line)) {
        if (line.object && !begun && json_object_get(line.object, "resumed_from"))
            survey->holes.reached = line.step; /* a run that branched off: the steps before belong to another run */
        begun |= line.object != NULL;
        if (survey_line(survey, &line, history) && kept) {
            fwrite(line.text, 1, line.length, kept);
            fputs(survey->open_end ? "\n" : "", kept);
        }
    }
    history_holes_reach(&survey->holes, history->step + 1);
    return metrics_reader_check(&line, err);
}

/* path.NUMBER, or path for number 0 */
static enum status history_numbered(const char *path, int number, char out[FS_PATH_MAX], struct error *err)
{
    int n = number ? snprintf(out, FS_PATH_MAX, "%s.%d", path, number) : snprintf(out, FS_PATH_MAX, "%s", path);
    if (n < 0 || n >= FS_PATH_MAX) return error_set(err, STATUS_CHECKPOINT, "path too long: '%.200s…'", path);
    return STATUS_OK;
}

/* keeps: the name of the file that keeps damaged lines. */
static void history_warn_of_losses(const char *path, const char *from, const char *keeps, const struct survey *survey)
{
    const struct holes *holes = &survey->holes;
    if (survey->damaged == 1)
        log_warn("'%s': line %" PRId64 " is damaged; it is left out of the new file, and '%s' keeps it", from,
                 survey->first, keeps);
    else if (survey->damaged)
        log_warn("'%s': %" PRId64 " lines are damaged, the first is line %" PRId64
                 "; they are left out of the new file, and '%s' keeps them",
                 from, survey->damaged, survey->first, keeps);
    if (holes->steps == 1)
        log_warn(
            "'%s' lacks the line of step %s: it was lost, and the summary at the end of the run leaves the step out",
            path, holes->text);
    else if (holes->steps)
        log_warn("'%s' lacks the lines of steps %s (%" PRId64 " in all): they were lost, and the summary at the end of "
                 "the run leaves these steps out",
                 path, holes->text, holes->steps);
}

/* Writes the lines of `from` that stay (NULL: none) to a new file, which then replaces `path`. */
static enum status rewrite(const char *path, const char *from, const struct metrics_history *history, struct error *err)
{
    struct survey survey;
    OWNED char *text = NULL;
    size_t bytes;
    FILE *kept = memory_stream(&text, &bytes);
    enum status status = from ? read_history(from, history, kept, &survey, err) : STATUS_OK;
    fclose(kept);
    TRY(status);
    TRY(metrics_keep(path, history->former, err));
    return fs_write_file(path, text, bytes, STATUS_CHECKPOINT, err);
}

enum status metrics_history_take(const char *path, const struct metrics_history *history, bool *open_end,
                                 bool *has_checkpoint, struct error *err)
{
    char former[FS_PATH_MAX], from[FS_PATH_MAX];
    struct survey survey = {.left_out = 0};
    *open_end = *has_checkpoint = false;
    if (history->from < 0) return fs_exists(path) ? rewrite(path, NULL, history, err) : STATUS_OK;
    TRY(history_numbered(path, history->former, former, err));
    TRY(history_numbered(path, history->from, from, err));
    if (history->from || fs_exists(path))
        TRY(read_history(from, history, NULL, &survey, err));
    else
        history_holes_reach(&survey.holes, history->step + 1);
    history_warn_of_losses(path, from, history->from ? from : former, &survey);
    *has_checkpoint = survey.has_checkpoint;
    if (survey.left_out || history->from || fs_exists(former)) return rewrite(path, from, history, err);
    *open_end = survey.open_end;
    return STATUS_OK;
}

/* ---- files of other histories -------------------------------------------- */

enum status metrics_history_leave(const char *path, struct error *err)
{
    char aside[FS_PATH_MAX];
    struct stat facts;
    int number = 1;
    if (io_stat(path, &facts) && errno == ENOENT) return STATUS_OK;
    do TRY(history_numbered(path, number++, aside, err));
    while (!io_lstat(aside, &facts));
    return io_rename(path, aside)
               ? error_set(err, STATUS_CHECKPOINT, "cannot move '%s' aside: %s", path, strerror(errno))
               : STATUS_OK;
}

enum metrics_number metrics_history_number(const char *path, int number)
{
    char other[FS_PATH_MAX];
    struct stat own, facts;
    if (history_numbered(path, number, other, NULL) != STATUS_OK) return METRICS_NUMBER_TAKEN;
    if (io_lstat(other, &facts)) return METRICS_NUMBER_FREE;
    bool same = !io_lstat(path, &own) && own.st_dev == facts.st_dev && own.st_ino == facts.st_ino;
    return same ? METRICS_NUMBER_KEPT : METRICS_NUMBER_TAKEN;
}

enum status metrics_keep(const char *path, int number, struct error *err)
{
    char former[FS_PATH_MAX], folder[FS_PATH_MAX];
    if (!fs_exists(path) || metrics_history_number(path, number) == METRICS_NUMBER_KEPT) return STATUS_OK;
    TRY(history_numbered(path, number, former, err));
    if (FAULT(LINK, io_link(path, former))) {
        if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK)
            return error_set(err, STATUS_CHECKPOINT, "cannot keep '%s' as '%s': %s", path, former, strerror(errno));
        return fs_copy_file(path, former, STATUS_CHECKPOINT, err); /* this file system has no hard links */
    }
    fs_parent(path, folder);
    return fs_sync_dir(folder, STATUS_CHECKPOINT, err);
}

static bool history_next(struct metrics_reader *reader)
{
    while (metrics_reader_next(reader))
        if (reader->object) return true;
    return false;
}

/* Whether <path>.NUMBER (0: <path>) has the line. *branch_step is set as by metrics_find(). */
static bool history_has(const char *path, int number, const struct metrics_checkpoint_line *line, int64_t *branch_step)
{
    char name[FS_PATH_MAX];
    bool has = false, same = true;
    RELEASED(metrics_reader_close) struct metrics_reader own = {.file = NULL}, other = {.file = NULL};
    *branch_step = 0;
    if (history_numbered(path, number, name, NULL) == STATUS_OK) metrics_reader_open(&other, name, NULL);
    metrics_reader_open(&own, path, NULL);
    while (history_next(&other)) {
        same = same && history_next(&own) && own.length == other.length && !memcmp(own.text, other.text, own.length);
        if (same && other.step > *branch_step) /* a checkpoint's line may come after those of later steps */
            *branch_step = other.step;
        if (other.step == line->step && !strcmp(metrics_reader_folder(&other, "checkpoint"), line->name) &&
            json_integer_value(json_object_get(other.object, "bytes")) == line->bytes)
            has = true;
    }
    return has;
}

static int history_highest_number(const char *path)
{
    char folder[FS_PATH_MAX];
    const char *name = basename(path);
    size_t length = strlen(name);
    long highest = 0;
    fs_parent(path, folder);
    OWNED_DIR *entries = io_opendir(folder);
    for (struct dirent *entry; entries && (entry = io_readdir(entries));) {
        char *end = NULL;
        if (strncmp(entry->d_name, name, length) != 0 || entry->d_name[length] != '.') continue;
        long n = strtol(entry->d_name + length + 1, &end, 10);
        if (!*end && n > highest && n < INT_MAX) highest = n;
    }
    return (int)highest;
}

int metrics_find(const char *path, const struct metrics_checkpoint_line *line, int first, int64_t *branch_step)
{
    if (history_has(path, first, line, branch_step)) return first;
    if (first && history_has(path, 0, line, branch_step)) return 0;
    for (int number = history_highest_number(path); number > 0; number--)
        if (number != first && history_has(path, number, line, branch_step)) return number;
    return -1;
}
