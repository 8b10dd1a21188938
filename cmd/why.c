/* SPDX-License-Identifier: Apache-2.0 */
/* why.c: `ztrain why RUN` names the rank that died, stood still or diverged, by the flight records; at any time. */
#include "cmd/command_line.h"
#include "core/flight/flight_verdict.h"

enum { MOST_ROWS = 64, LAST_ENTRIES = 40, WHERE_MAX = 160 };
static const double other_process = 2; /* seconds after a record's last renewal: it is not the rank's process */

static const char USAGE[] =
    "usage: ztrain why RUN [--start NAME] [--rank R]\n\n"
    "Names the rank of a run that was killed, stood still, was slow or diverged, with what it did last, from the "
    "flight\n"
    "records of all ranks in RUN/flight. Also works while the run lasts; SIGQUIT makes the ranks write them at once.\n"
    "If the run has ended in order since, it says so.\n\n"
    "  RUN             a run folder\n"
    "  --start NAME    an earlier start of the run, by its folder in RUN/flight; default: the newest\n"
    "  --rank R        also print what this rank recorded last\n";

struct question {
    const char *run, *start, *rank_text;
    int64_t rank; /* -1: none */
};

/* The records of one start. */
struct flight_records {
    char folder[FS_PATH_MAX];
    struct flight_record *records; /* (count) owned */
    int count, world;
    struct flight_view *views; /* (world) owned */
};

static int why_is_record(const struct dirent *entry)
{
    return !strncmp(entry->d_name, "rank-", 5) && fs_has_suffix(entry->d_name, ".ring");
}

static void why_free_names(struct dirent **names, int count)
{
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

static enum status why_no_records(const char *folder, struct error *err)
{
    error_set(err, STATUS_CHECKPOINT, "there are no flight records in '%s'", folder);
    return error_hint(
        err, "a run that ends in order deletes them, and `ztrain report RUN` shows where it ended; the first of "
             "several adapters has those of all; else RUN is not a run folder");
}

/* Lists the starts in RUN/flight, or the records of one, in order. *count 0: also if there is no folder. */
static enum status why_list_folder(const char *folder, bool records, struct dirent ***names, int *count,
                                   struct error *err)
{
    *names = NULL;
    *count = records ? scandir(folder, names, why_is_record, alphasort) : flight_starts(folder, names);
    if (*count < 0 && errno != ENOENT && errno != ENOTDIR)
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot read '%s'", folder);
    *count = *count < 0 ? 0 : *count;
    return STATUS_OK;
}

/* Which starts of a run there are; "": there is none. */
struct starts {
    char newest[NAME_MAX + 1]; /* that has a folder */
    char chosen[NAME_MAX + 1]; /* that has records, the newest */
    char before[NAME_MAX + 1]; /* the one before that that has records */
    struct flight_end end;     /* the last that ended in order; "": it is not known, or earlier than the chosen one */
};

static enum status why_find_starts(const char *flight, struct starts *starts, struct error *err)
{
    struct dirent **names, **records;
    char folder[FS_PATH_MAX];
    int count;
    enum status status = STATUS_OK;
    *starts = (struct starts){.newest = ""};
    TRY(why_list_folder(flight, false, &names, &count, err));
    if (count) snprintf(starts->newest, sizeof starts->newest, "%s", names[count - 1]->d_name);
    for (int i = count - 1; i >= 0 && status == STATUS_OK && !*starts->before; i--) {
        int found = 0;
        status = fs_join(folder, flight, names[i]->d_name, STATUS_CHECKPOINT, err);
        if (status == STATUS_OK) status = why_list_folder(folder, true, &records, &found, err);
        if (status == STATUS_OK) why_free_names(records, found);
        if (found) snprintf(*starts->chosen ? starts->before : starts->chosen, NAME_MAX + 1, "%s", names[i]->d_name);
    }
    why_free_names(names, count);
    if (!flight_ended_read(flight, &starts->end) || flight_start_compare(starts->end.start, starts->chosen) <= 0)
        starts->end.start[0] = 0;
    return status;
}

static enum status why_read_records(struct flight_records *all, struct error *err)
{
    struct dirent **names;
    char path[FS_PATH_MAX];
    struct error damage = {.code = STATUS_OK};
    int count;
    TRY(why_list_folder(all->folder, true, &names, &count, err));
    all->records = memory_zeroed((size_t)count + 1, sizeof *all->records);
    for (int i = 0; i < count; i++) {
        struct flight_record *record = &all->records[all->count];
        if (fs_join(path, all->folder, names[i]->d_name, STATUS_CHECKPOINT, &damage) == STATUS_OK &&
            flight_record_read(path, record, &damage) == STATUS_OK) {
            all->world = record->head.world > all->world ? record->head.world : all->world;
            all->count++;
        } else {
            log_warn("a record is left out: %s", damage.text);
        }
    }
    why_free_names(names, count);
    if (!count) return why_no_records(all->folder, err);
    return all->count ? STATUS_OK : error_set(err, STATUS_CHECKPOINT, "%s", damage.text);
}

/* The state of the process of a record, if it can be seen from here and has not ended with a word. */
static char why_state_now(const struct flight_head *head)
{
    int64_t began; /* in clock ticks after the machine's */
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    if (strcmp(host, head->host) != 0 || head->reason == FLIGHT_FAILURE || head->reason == FLIGHT_ENDED) return '?';
    const char state = machine_process(head->pid, &began);
    const double boot = clock_seconds(CLOCK_REALTIME) - clock_seconds(CLOCK_BOOTTIME);
    if (began && boot + (double)began / (double)sysconf(_SC_CLK_TCK) > 1e-9 * (double)head->wall + other_process)
        return 'X'; /* another process has the number */
    return state;
}

/* ---- printing ------------------------------------------------------------ */

/* "3.2 s", "5 min" */
static const char *why_age_text(double seconds, char out[32])
{
    const bool minutes = seconds >= 100, hours = seconds >= 6000;
    snprintf(out, 32, hours ? "%.0f h" : minutes ? "%.0f min" : "%.1f s", seconds / (hours ? 3600 : minutes ? 60 : 1));
    return out;
}

static const char *why_source_text(const struct flight_view *view, double now, char out[96])
{
    static const char *const reasons[] = {"running", "failed", "running, SIGQUIT", "running, slow step",
                                          "ended in order"}; /* of enum flight_reason */
    _Static_assert(COUNT_OF(reasons) == FLIGHT_REASON_COUNT, "every reason has a text");
    const struct flight_head *head = &view->record->head;
    const char *process = view->process == 'X' ? "gone" : view->process == 'T' ? "stopped" : "stuck";
    if (head->witness >= 0) {
        snprintf(out, 96, "%s; written by rank %d", process, head->witness);
        return out;
    }
    if (view->process == 'X' || view->process == 'T') return process;
    if (head->reason != FLIGHT_FAILURE && head->reason != FLIGHT_ENDED &&
        flight_is_overdue(view->record, 1e-9 * (double)head->wall - view->ahead, now))
        return "not renewed";
    return reasons[head->reason];
}

static void why_say_where(const struct flight_view *view, char where[WHERE_MAX], char since[32])
{
    const struct flight_entry *entry = view->now;
    if (entry) {
        flight_describe(entry, where);
        flight_time(flight_wall(view->record, entry->start), since);
    } else {
        snprintf(where, WHERE_MAX, "%s (step %" PRId64 ")", flight_kind_name((enum flight_kind)view->record->phase),
                 view->record->step);
        flight_time(flight_wall(view->record, view->record->phase_since), since);
    }
}

static void why_print_table(const struct flight_records *all, const struct flight_verdict *verdict)
{
    const double now = clock_seconds(CLOCK_REALTIME);
    char where[WHERE_MAX] = "", since[32], age[32], source[96];
    double written = 0;
    int width = 20; /* of the column that says where */
    for (int r = 0; r < all->world; r++)
        if (all->views[r].record) {
            why_say_where(&all->views[r], where, since);
            width = (int)strlen(where) > width ? (int)strlen(where) : width;
        }
    for (int i = 0; i < all->count; i++) written = fmax(written, 1e-9 * (double)all->records[i].head.wall);
    printf("\n  %5s  %-16s %8s  %8s %8s  %-*s %-12s  %8s  %s\n", "rank", "host", "process", "data", "control", width,
           "is in", "since", "last sign", "record");
    for (int r = 0; r < all->world; r++) {
        const struct flight_view *view = &all->views[r];
        const char mark = r == verdict->rank ? '*' : ' ';
        if (r >= MOST_ROWS && r != verdict->rank) continue;
        if (!view->record) {
            printf("%c %5d  no record\n", mark, r);
            continue;
        }
        why_say_where(view, where, since);
        printf("%c %5d  %-16s %8d  %8" PRId64 " %8" PRId64 "  %-*s %-12s  %8s  %s\n", mark, r,
               PRINTABLE(view->record->head.host), view->record->head.pid, view->done[0], view->done[1], width, where,
               since, why_age_text(now - view->moved, age), why_source_text(view, now, source));
    }
    if (all->world > MOST_ROWS) printf("  of %d ranks, the first %d\n", all->world, MOST_ROWS);
    printf("\ndata, control: the last collective of the channel that is over; last sign: ago\n"
           "records: %s, written %s ago\n",
           PRINTABLE(all->folder), why_age_text(now - written, age));
}

static enum status why_print_rank(const struct flight_records *all, int64_t rank, struct error *err)
{
    if (rank >= all->world || !all->views[rank].record)
        return error_set(err, STATUS_USAGE, "--rank %" PRId64 ": there is no record of this rank", rank);
    const struct flight_record *record = all->views[rank].record;
    char where[160], since[32];
    const int first = record->count > LAST_ENTRIES ? record->count - LAST_ENTRIES : 0;
    printf("\nrank %" PRId64 ", the last %d of its %" PRId64 " entries%s\n", rank, record->count - first, record->next,
           record->torn ? "; torn ones are left out" : "");
    for (int i = first; i < record->count; i++) {
        const struct flight_entry *entry = &record->entries[i];
        printf("  %s  ", flight_time(flight_wall(record, entry->start), since));
        if (entry->end)
            printf("%10.3f ms", 1e-6 * (double)(entry->end - entry->start));
        else
            printf("%13s", "not over");
        printf("  %s\n", flight_describe(entry, where));
    }
    return STATUS_OK;
}

static void why_print_paragraph(const char *text)
{
    const char *shown = PRINTABLE(text);
    wrapped_put(stdout, 110, "", shown, strlen(shown));
}

static enum status why_tell_records(struct flight_records *all, int64_t rank, struct error *err)
{
    struct flight_verdict verdict;
    char date[32];
    bool ended = true;
    int64_t wall = 0;
    TRY(why_read_records(all, err));
    all->views = memory_zeroed((size_t)all->world, sizeof *all->views);
    for (int i = 0; i < all->count; i++) {
        const struct flight_record *record = &all->records[i];
        flight_view_init(&all->views[record->head.rank], record, why_state_now(&record->head));
    }
    flight_compare_clocks(all->views, all->world);
    flight_judge(all->views, all->world, clock_seconds(CLOCK_REALTIME), &verdict);
    for (int i = 0; i < all->count; i++) {
        ended &= all->records[i].head.reason == FLIGHT_ENDED;
        wall = all->records[i].head.wall > wall ? all->records[i].head.wall : wall;
    }
    if (ended) /* all of them say so */
        printf("The run ended in order at %s.\n", clock_date((double)(wall / 1000000000), date));
    why_print_paragraph(verdict.text);
    why_print_table(all, &verdict);
    return rank >= 0 ? why_print_rank(all, rank, err) : STATUS_OK;
}

static enum status why_answer(const struct question *question, struct flight_records *all, struct error *err)
{
    char flight[FS_PATH_MAX];
    struct starts starts;
    bool there;
    TRY(fs_join(flight, question->run, "flight", STATUS_CHECKPOINT, err));
    TRY(fs_find_dir(flight, &there, STATUS_CHECKPOINT, err));
    if (!fs_is_dir(question->run))
        return error_set(err, STATUS_CHECKPOINT, "there is no run folder '%s'", question->run);
    if (question->start) {
        TRY(fs_join(all->folder, flight, question->start, STATUS_CHECKPOINT, err));
        if (fs_is_dir(all->folder)) return why_tell_records(all, question->rank, err);
    }
    TRY(why_find_starts(flight, &starts, err));
    if (question->start && *starts.chosen) {
        error_set(err, STATUS_CHECKPOINT, "there is no start '%s' in '%s'", question->start, flight);
        return error_hint(err, "the newest one with records is %s", starts.chosen);
    }
    if (question->start) return why_no_records(flight, err);
    if (*starts.end.start) {
        char text[4 * NAME_MAX], newer[NAME_MAX + 64] = "", records[2 * NAME_MAX + 100] = "", date[32];
        if (flight_start_compare(starts.newest, starts.end.start) > 0)
            snprintf(newer, sizeof newer, " A newer start, %s, has left no records.", starts.newest);
        if (*starts.chosen)
            snprintf(records, sizeof records, " The records are of a start before it: --start %s reads them.",
                     starts.chosen);
        snprintf(text, sizeof text, "The run ended in order at %s (start %s).%s%s",
                 clock_date((double)starts.end.wall, date), starts.end.start, newer, records);
        why_print_paragraph(text);
        if (question->rank < 0) return STATUS_OK;
        return error_set(err, STATUS_USAGE,
                         "--rank %" PRId64 ": the newest start has no record of this rank; add --start NAME",
                         question->rank);
    }
    if (!*starts.chosen) return why_no_records(flight, err);
    const bool newer = strcmp(starts.newest, starts.chosen) != 0;
    if (newer || *starts.before) printf("records of the start %s", PRINTABLE(starts.chosen));
    if (newer) printf("; the newer start %s has left none", PRINTABLE(starts.newest));
    if (*starts.before) printf("; of the one before it: --start %s", PRINTABLE(starts.before));
    if (newer || *starts.before) printf("\n\n");
    TRY(fs_join(all->folder, flight, starts.chosen, STATUS_CHECKPOINT, err));
    return why_tell_records(all, question->rank, err);
}

enum status cmd_why(int argc, char **argv, struct error *err)
{
    static const struct option_row options[] = {OPTION(struct question, start, "start", "NAME"),
                                                OPTION(struct question, rank_text, "rank", "R")};
    static const struct command_line line = {"why", USAGE, "run", 1, "ztrain why RUN", options, COUNT_OF(options)};
    struct question question = {.rank = -1};
    TRY(command_line_parse(&line, argc, argv, &question, err));
    TRY(option_integer("rank", question.rank_text, "a number", 0, INT32_MAX, &question.rank, err));
    struct flight_records all = {.count = 0};
    enum status status = why_answer(&question, &all, err);
    for (int i = 0; i < all.count; i++) flight_record_release(&all.records[i]);
    free(all.records);
    free(all.views);
    return status;
}
