/* SPDX-License-Identifier: Apache-2.0 */
/* flight_verdict.c: the table `judges` has the findings, the surest first. Each finds a rank and begins the text. */
#include "core/flight/flight_verdict.h"

#include <signal.h>

static const double renewals_missed = 5; /* intervals without a new record: the rank is silent */
static const double late_seconds = 2;    /* after the others began to wait, a rank is missing */

/* ---- views --------------------------------------------------------------- */

/* The one that ended last, or, of those that are not over, began last. */
static void keep_latest(const struct flight_entry **kept, const struct flight_entry *entry)
{
    if (!*kept || (entry->end ? entry->end >= (*kept)->end : entry->start >= (*kept)->start)) *kept = entry;
}

void flight_view_init(struct flight_view *view, const struct flight_record *record, char process)
{
    int64_t moved = 0;
    *view = (struct flight_view){.record = record, .process = process};
    for (int i = 0; record && i < record->count; i++) {
        const struct flight_entry *entry = &record->entries[i];
        const int channel = flight_channel(entry->kind);
        const int64_t sign = entry->end ? entry->end : entry->start;
        moved = sign > moved ? sign : moved;
        keep_latest(entry->end ? &view->last : &view->now, entry);
        if (!entry->end) keep_latest(channel < 0 ? &view->work : &view->wait, entry);
        if (channel < 0) continue;
        if (entry->number > view->begun[channel]) view->begun[channel] = entry->number;
        if (entry->end && entry->number > view->done[channel]) view->done[channel] = entry->number;
    }
    if (!record) return;
    if (record->head.witness >= 0) view->process = record->head.process;
    moved = record->phase_since > moved ? record->phase_since : moved;
    view->moved = flight_wall(record, moved);
}

/* ---- clocks -------------------------------------------------------------- */

enum { LEAST_COMMON = 3 }; /* collectives, for a comparison of clocks */

/* The first entry from *at on of a collective that ends for all ranks at about the same time; NULL: none. */
static const struct flight_entry *verdict_next_meeting(const struct flight_record *record, int *at)
{
    for (; *at < record->count; (*at)++) {
        const struct flight_entry *entry = &record->entries[*at];
        if (entry->end && (entry->kind == FLIGHT_BARRIER || entry->kind == FLIGHT_EXCHANGE)) return entry;
    }
    return NULL;
}

static int verdict_compare_seconds(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds by which a rank's clock is ahead of another's, by common collectives; 0: too few. (FLIGHT_ENTRIES). */
static double verdict_clock_ahead(const struct flight_record *own, const struct flight_record *other, double *scratch)
{
    const struct flight_entry *a, *b;
    int i = 0, j = 0, count = 0;
    while ((a = verdict_next_meeting(own, &i)) && (b = verdict_next_meeting(other, &j))) {
        if (a->number == b->number && count < FLIGHT_ENTRIES)
            scratch[count++] = flight_wall(own, a->end) - flight_wall(other, b->end);
        i += a->number <= b->number;
        j += b->number <= a->number;
    }
    if (count < LEAST_COMMON) return 0;
    qsort(scratch, (size_t)count, sizeof *scratch, verdict_compare_seconds);
    return scratch[count / 2];
}

void flight_compare_clocks(struct flight_view *views, int world)
{
    OWNED double *scratch = memory_zeroed(FLIGHT_ENTRIES, sizeof *scratch);
    const struct flight_record *first = NULL;
    for (int r = 0; r < world; r++) {
        if (!first) first = views[r].record;
        if (views[r].record) views[r].ahead = verdict_clock_ahead(views[r].record, first, scratch);
    }
}

/* ---- words --------------------------------------------------------------- */

const char *flight_time(double seconds, char out[32])
{
    const time_t whole = (time_t)floor(seconds);
    struct tm local;
    localtime_r(&whole, &local);
    size_t n = strftime(out, 24, "%H:%M:%S", &local);
    snprintf(out + n, 32 - n, ".%03d", (int)((seconds - (double)whole) * 1000));
    return out;
}

const char *flight_describe(const struct flight_entry *entry, char out[160])
{
    char unit[32] = "", bytes[32] = "", number[32] = "", micro[32] = "";
    if (entry->number >= 0) snprintf(number, sizeof number, " %" PRId64, entry->number);
    if (entry->unit >= 0) snprintf(unit, sizeof unit, " of unit %d", entry->unit);
    if (entry->bytes >= 1000000)
        snprintf(bytes, sizeof bytes, ", %.1f MB", 1e-6 * (double)entry->bytes);
    else if (entry->bytes > 0)
        snprintf(bytes, sizeof bytes, ", %" PRId64 " bytes", entry->bytes);
    if (entry->micro > 1) snprintf(micro, sizeof micro, ", micro-batch %d", entry->micro);
    snprintf(out, 160, "%s%s%s%s (step %" PRId64 "%s)", flight_kind_name((enum flight_kind)entry->kind), number, unit,
             bytes, entry->step, micro);
    return out;
}

struct trial {
    const struct flight_view *views; /* (world) */
    int world;
    double now;
    const struct flight_head *failure; /* of a rank that ended with an error: the one that says most; NULL: none did */
    int erred;                         /* the rank whose own error ended the job; -1: none, or all of them */
    const struct flight_head *own;     /* its record of that; NULL: none */
    int named;                         /* the rank that the job's error is about; -1: none */
    struct flight_verdict *verdict;
};

__attribute__((format(printf, 2, 3))) static void say(struct trial *t, const char *format, ...)
{
    char *text = t->verdict->text;
    const size_t used = strlen(text);
    WITH_ARGS(format, vsnprintf(text + used, sizeof t->verdict->text - used, format, args));
}

static void verdict_accuse(struct trial *t, int rank)
{
    const struct flight_record *record = t->views[rank].record;
    t->verdict->rank = rank;
    if (record)
        say(t, "Rank %d on %s (process %d)", record->head.rank, record->head.host, record->head.pid);
    else
        say(t, "Rank %d", rank);
}

/* " It was in …, since …." */
static void say_where(struct trial *t, const struct flight_view *view)
{
    const struct flight_record *record = view->record;
    char where[160], time[32];
    if (!record) return;
    if (view->now) {
        say(t, " It was in the %s, since %s", flight_describe(view->now, where),
            flight_time(flight_wall(record, view->now->start), time));
        if (view->work && view->work != view->now && flight_channel(view->now->kind) == 1) /* of the same thread */
            say(t, ", a part of the %s", flight_kind_name((enum flight_kind)view->work->kind));
        say(t, ".");
    } else if (view->last) {
        say(t, " It was in the phase '%s' of step %" PRId64 ", after the %s, which ended at %s.",
            flight_kind_name((enum flight_kind)record->phase), record->step, flight_describe(view->last, where),
            flight_time(flight_wall(record, view->last->end), time));
    }
    if (*record->head.waiting) say(t, " A call was in progress: %s.", record->head.waiting);
}

/* " Rank 0 and 2 others waited in the barrier 17 since …." */
static void verdict_say_waiting(struct trial *t)
{
    const struct flight_view *first = NULL;
    char where[160], time[32];
    int others = -1;
    for (int r = 0; r < t->world; r++)
        if (r != t->verdict->rank && t->views[r].wait) {
            others++;
            if (!first) first = &t->views[r];
        }
    if (!first) return;
    say(t, " Rank %d", first->record->head.rank);
    if (others == 1)
        say(t, " and another rank");
    else if (others > 1)
        say(t, " and %d others", others);
    say(t, " waited in the %s since %s.", flight_describe(first->wait, where),
        flight_time(flight_wall(first->record, first->wait->start), time));
}

/* ---- the job's error ----------------------------------------------------- */

/* Of a rank that ended with an error; else NULL. */
static const struct flight_head *failure_of(const struct flight_view *view)
{
    const bool failed = view->record && view->record->head.reason == FLIGHT_FAILURE;
    return failed ? &view->record->head : NULL;
}

/* An error about a rank says more than one about none, and that more than one that repeats another rank's. */
static int worth(const struct flight_head *failure)
{
    const bool repeats = failure->failure == FAILURE_ERROR && failure->culprit != failure->rank;
    return repeats ? 0 : failure->culprit < 0 ? 1 : 2;
}

static void verdict_say_error(struct trial *t)
{
    const struct flight_head *failure = t->own ? t->own : t->failure;
    if (failure) say(t, " Rank %d ended with exit code %d: \"%s\".", failure->rank, failure->code, failure->error);
}

/* Whether a process that is gone or stopped explains anything. After a failure all processes end, also by force. */
static bool verdict_may_explain(const struct trial *t, int rank)
{
    return !t->failure || (t->erred < 0 && t->named == rank);
}

/* ---- judges -------------------------------------------------------------- */

/* By the first rank's clock. */
static double common(const struct flight_view *view, double wall)
{
    return wall - view->ahead;
}

static double written(const struct flight_view *view)
{
    return common(view, 1e-9 * (double)view->record->head.wall);
}

/* Of two ranks (rank -1: none yet) the one whose last sign is earlier. */
static int verdict_earlier(const struct trial *t, int rank, int other)
{
    const struct flight_view *a = rank < 0 ? NULL : &t->views[rank], *b = &t->views[other];
    return !a || common(b, b->moved) < common(a, a->moved) ? other : rank;
}

static bool verdict_was_killed(struct trial *t)
{
    int rank = -1, count = 0;
    char time[32];
    for (int r = 0; r < t->world; r++) {
        const struct flight_record *record = t->views[r].record;
        if (record && t->views[r].process == 'X' && record->head.reason != FLIGHT_FAILURE &&
            record->head.reason != FLIGHT_ENDED && verdict_may_explain(t, r)) {
            count++;
            rank = verdict_earlier(t, rank, r);
        }
    }
    if (rank < 0) return false;
    const struct flight_view *view = &t->views[rank];
    const int asked = view->record->head.asked;
    verdict_accuse(t, rank);
    say(t, " was %s: its process is gone and left no error of its own; its last sign is of %s.",
        asked == SIGINT ? "interrupted" : "killed", flight_time(view->moved, time));
    if (asked == SIGINT)
        say(t, " SIGINT (Ctrl-C) had asked it to stop, and a second one ends a run at once, without a checkpoint.");
    else if (asked)
        say(t, " Signal %d (%s) had asked it to stop.", asked, strsignal(asked));
    if (count > 1)
        say(t, " %d other process%s gone in the same way; this one fell silent first.", count - 1,
            count > 2 ? "es are" : " is");
    say_where(t, view);
    if (count < t->world) verdict_say_waiting(t);
    verdict_say_error(t);
    if (asked != SIGINT) say(t, " dmesg and sacct show whether it was killed for memory.");
    return true;
}

static bool verdict_stands_still(struct trial *t)
{
    char time[32];
    int stopped_now = 0, rank = -1;
    for (int r = t->world - 1; r >= 0; r--) {
        const struct flight_view *view = &t->views[r];
        const bool stopped = view->process == 'T';
        const bool stuck = view->process == 'D' && view->record && view->record->head.witness >= 0;
        stopped_now += stopped;
        if (view->record && (stopped || stuck) && verdict_may_explain(t, r)) rank = r;
    }
    if (rank < 0) return false;
    verdict_accuse(t, rank);
    say(t, " stood still: its process was %s; its last sign is of %s.",
        t->views[rank].process == 'T' ? "stopped (SIGSTOP, a debugger, or a job that was suspended)"
                                      : "stuck in the kernel (a file server or a driver that does not answer)",
        flight_time(t->views[rank].moved, time));
    if (stopped_now > 1)
        say(t, " So %s %d other%s: the whole job may be suspended.", stopped_now > 2 ? "are" : "is", stopped_now - 1,
            stopped_now > 2 ? "s" : "");
    return true;
}

static bool verdict_had_non_finite(struct trial *t)
{
    const struct flight_record *record = NULL;
    for (int r = 0; r < t->world && !record; r++)
        if (t->views[r].record && t->views[r].record->head.bad_first) record = t->views[r].record;
    if (!record || (t->failure && t->failure->code != STATUS_DIVERGED) || record->head.bad_last + 2 < record->step)
        return false;
    const struct flight_head *head = &record->head;
    if (head->bad_rank >= 0 && head->bad_rank < t->world)
        verdict_accuse(t, head->bad_rank);
    else
        say(t, "A rank that is not known");
    say(t, " had the first non-finite value, in step %" PRId64 "%s%s; the last was in step %" PRId64 ".",
        head->bad_first, *head->bad_tensor ? ", in the gradient of " : "", head->bad_tensor, head->bad_last);
    return true;
}

static bool verdict_begin_named(struct trial *t, int rank, const char *what)
{
    if (rank < 0) return false;
    verdict_accuse(t, rank);
    say(t, "%s%s", t->views[rank].record ? "" : ", which left no record,", what);
    return true;
}

static bool verdict_has_erred(struct trial *t)
{
    const bool software = t->own && t->own->failure == FAILURE_SOFTWARE;
    return verdict_begin_named(t, t->erred,
                               software
                                   ? " ended the job: work on its GPU failed, by a fault of software, not of its node."
                                   : " ended the job with an error of its own.");
}

static bool verdict_is_named(struct trial *t)
{
    return verdict_begin_named(t, t->named, " is the one that the job's error names.");
}

bool flight_is_overdue(const struct flight_record *record, double wall, double now)
{
    return now - wall >= fmax(renewals_missed * record->head.interval, renewals_missed);
}

static bool verdict_is_silent(struct trial *t)
{
    int rank = -1;
    double newest = 0;
    char time[32];
    for (int r = 0; r < t->world; r++) {
        if (!t->views[r].record) continue;
        newest = fmax(newest, written(&t->views[r]));
        if (rank < 0 || written(&t->views[r]) < written(&t->views[rank])) rank = r;
    }
    const struct flight_record *record = rank < 0 ? NULL : t->views[rank].record;
    if (!record || record->head.reason == FLIGHT_ENDED || !flight_is_overdue(record, written(&t->views[rank]), newest))
        return false;
    verdict_accuse(t, rank);
    say(t,
        " has not renewed its record since %s, and others have: its process or its machine stands still, or cannot "
        "write to the run folder.",
        flight_time(1e-9 * (double)record->head.wall, time));
    return true;
}

/* The job is over without a word, or none of its ranks can write. */
static bool verdict_are_all_silent(struct trial *t)
{
    double newest = 0; /* at least one rank has a record */
    char time[32];
    for (int r = 0; r < t->world; r++) {
        const struct flight_record *record = t->views[r].record;
        if (!record) continue;
        newest = fmax(newest, 1e-9 * (double)record->head.wall);
        if (record->head.reason == FLIGHT_FAILURE || record->head.reason == FLIGHT_ENDED ||
            !flight_is_overdue(record, newest, t->now))
            return false;
    }
    say(t,
        "No rank has renewed its record since %s, by this machine's clock %.0f s ago: all processes have ended without "
        "a word, with their machines or by force, or none of them can write to the run folder.",
        flight_time(newest, time), t->now - newest);
    return true;
}

/* Whether `late` had not reached `wait` of `view` when that rank had waited for some seconds. */
static bool has_not_reached(const struct flight_view *late, const struct flight_view *view)
{
    const int channel = flight_channel(view->wait->kind);
    if (!late->record || late->begun[channel] >= view->wait->number) return false;
    const double waits = common(view, flight_wall(view->record, view->wait->start));
    return failure_of(late) || failure_of(view) || written(late) - waits >= late_seconds;
}

static bool verdict_is_missing(struct trial *t)
{
    int rank = -1;
    for (int w = 0; w < t->world; w++)
        for (int r = 0; r < t->world && t->views[w].wait; r++)
            if (has_not_reached(&t->views[r], &t->views[w])) rank = verdict_earlier(t, rank, r);
    if (rank < 0) return false;
    verdict_accuse(t, rank);
    say(t,
        " is the one that the others wait for: it has not reached the collective that they are in (its last are "
        "%" PRId64 " of the data channel and %" PRId64 " of the control channel).",
        t->views[rank].begun[0], t->views[rank].begun[1]);
    return true;
}

static bool verdict_has_no_record(struct trial *t)
{
    int rank = -1, others = -1;
    bool waits = false;
    for (int r = t->world - 1; r >= 0; r--) {
        const struct flight_view *view = &t->views[r];
        if (!view->record) {
            rank = r;
            others++;
        } else if (view->wait) {
            waits |= written(view) - common(view, flight_wall(view->record, view->wait->start)) >= late_seconds;
        }
    }
    if (rank < 0 || !waits || t->failure) return false;
    verdict_accuse(t, rank);
    if (others > 0) say(t, " and %d other%s", others, others == 1 ? "" : "s");
    say(t, " left no record, and the others wait in a collective, probably for %s.", others > 0 ? "them" : "it");
    return true;
}

/* ---- ranks in different collectives -------------------------------------- */

static bool verdict_same_number(const struct flight_entry *a, const struct flight_entry *b)
{
    return a && b && a->number == b->number && flight_channel(a->kind) == flight_channel(b->kind);
}

static bool verdict_same_op(const struct flight_entry *a, const struct flight_entry *b)
{
    return a->kind == b->kind && a->bytes == b->bytes;
}

/* The rank with the rarest operation of those in collective number `wait->number`; of two the second. */
static int odd_one(const struct trial *t, const struct flight_entry *wait)
{
    int odd = -1, fewest = t->world + 1;
    for (int r = 0; r < t->world; r++) {
        const struct flight_entry *own = t->views[r].wait;
        int count = 0;
        if (!verdict_same_number(own, wait)) continue;
        for (int other = 0; other < t->world; other++)
            count += verdict_same_number(t->views[other].wait, own) && verdict_same_op(t->views[other].wait, own);
        if (count <= fewest) {
            fewest = count;
            odd = r;
        }
    }
    return odd;
}

/* Ranks are in the same number of the order, and in different collectives. */
static bool verdict_is_elsewhere(struct trial *t)
{
    char where[160];
    for (int w = 0; w < t->world; w++) {
        const struct flight_entry *wait = t->views[w].wait;
        const int odd = wait ? odd_one(t, wait) : -1;
        if (odd < 0 || verdict_same_op(t->views[odd].wait, wait)) continue;
        verdict_accuse(t, odd);
        say(t, " is in another collective than the others: in the %s,", flight_describe(t->views[odd].wait, where));
        say(t, " while rank %d is in the %s.", w, flight_describe(wait, where));
        return true;
    }
    return false;
}

/* ---- slow ranks ---------------------------------------------------------- */

static const double slow_share = 0.75;                /* of all waiting is for a slow rank, */
static const double slow_time = 0.2;                  /* … and this part of the time, */
static const double slow_step = 0.002;                /* … and these seconds in each step */
enum { SLOW_LEAST = 20, CELLS = 4 * FLIGHT_ENTRIES }; /* collectives that are compared, at least */

/* A collective that is over ends for all ranks at about the same time: the last to come was in it the shortest. */
struct cell {
    int64_t number;
    int seen, last; /* ranks; the last one */
    double shortest, sum;
    double before; /* from the first entry of the last one to its arrival: nobody is seen to wait for it longer */
};

/* Nanoseconds of the earliest start; a phase is recorded when it is over. */
static int64_t verdict_first_start(const struct flight_record *record)
{
    int64_t first = INT64_MAX;
    for (int i = 0; record && i < record->count; i++)
        first = record->entries[i].start < first ? record->entries[i].start : first;
    return first;
}

static void add_times(struct cell *cells, const struct flight_record *record)
{
    int64_t before[2] = {0, 0};
    const int64_t first = verdict_first_start(record);
    for (int i = 0; record && i < record->count; i++) {
        const struct flight_entry *entry = &record->entries[i];
        const int channel = flight_channel(entry->kind);
        if (channel < 0 || !entry->end || entry->number <= before[channel]) /* or the second piece of one */
            continue;
        before[channel] = entry->number;
        struct cell *cell = &cells[channel * CELLS + entry->number % CELLS];
        const double seconds = 1e-9 * (double)(entry->end - entry->start);
        if (cell->seen == 0 || cell->number < entry->number)
            *cell = (struct cell){.number = entry->number, .shortest = INFINITY};
        if (cell->number != entry->number) continue;
        cell->seen++;
        cell->sum += seconds;
        if (seconds < cell->shortest) {
            cell->shortest = seconds;
            cell->before = 1e-9 * (double)(entry->start - first);
            cell->last = record->head.rank;
        }
    }
}

/* A rank came last in `times` collectives; the others waited for it, on average. */
struct lateness {
    int times;
    double seconds;
};

/* late: (world). Returns the number of collectives that all ranks have recorded. */
static int verdict_measure_lateness(const struct trial *t, struct lateness *late)
{
    OWNED struct cell *cells = memory_zeroed((size_t)2 * CELLS, sizeof *cells);
    int compared = 0;
    for (int r = 0; r < t->world; r++) add_times(cells, t->views[r].record);
    for (int c = 0; c < 2 * CELLS; c++) {
        const struct cell *cell = &cells[c];
        if (cell->seen != t->world) continue;
        compared++;
        late[cell->last].times++;
        late[cell->last].seconds += fmin((cell->sum - cell->shortest) / (t->world - 1) - cell->shortest, cell->before);
    }
    return compared;
}

static bool verdict_is_slow(struct trial *t)
{
    if (t->failure || t->world < 2) return false;
    OWNED struct lateness *late = memory_zeroed((size_t)t->world, sizeof *late);
    const int compared = verdict_measure_lateness(t, late);
    double all = 0;
    int rank = 0;
    for (int r = 0; r < t->world; r++) {
        all += late[r].seconds;
        rank = late[r].seconds > late[rank].seconds ? r : rank;
    }
    const struct lateness worst = late[rank];
    const struct flight_record *record = t->views[rank].record;
    if (compared < SLOW_LEAST) /* else all ranks have records with entries */
        return false;
    int64_t last = 0;
    for (int i = 0; i < record->count; i++) last = record->entries[i].start > last ? record->entries[i].start : last;
    const double span = 1e-9 * (double)(last - verdict_first_start(record)); /* from the first to the last start */
    const int64_t steps = record->entries[record->count - 1].step - record->entries[0].step + 1;
    if (worst.seconds < slow_share * all || worst.seconds < slow_time * span ||
        worst.seconds < slow_step * (double)steps)
        return false;
    verdict_accuse(t, rank);
    say(t, " is slow: it was the last to come in %d of %d collectives, and the others waited for it %.3g of %.3g s.",
        worst.times, compared, worst.seconds, span);
    return true;
}

/* ---- the verdict --------------------------------------------------------- */

static bool verdict_has_failed(struct trial *t)
{
    if (t->failure) say(t, "The job has failed, and no rank stands out in the records.");
    return t->failure != NULL;
}

static bool verdict_is_fine(struct trial *t)
{
    int64_t least = INT64_MAX, most = 0;
    int count = 0;
    for (int r = 0; r < t->world; r++)
        if (t->views[r].record) {
            const int64_t step = t->views[r].record->step;
            least = step < least ? step : least;
            most = step > most ? step : most;
            count++;
        }
    say(t, "Nothing stands out: %d of %d %s a record, ", count, t->world, t->world == 1 ? "rank has" : "ranks have");
    if (least == most)
        say(t, "all in step %" PRId64 ".", most);
    else
        say(t, "in steps %" PRId64 " to %" PRId64 ".", least, most);
    return true;
}

enum { WHERE = 1, WAITING = 2, ERROR = 4 };

static const struct {
    enum flight_finding finding;
    bool (*judge)(struct trial *t);
    unsigned tail; /* what is said after the judge's words */
} judges[] = {{FLIGHT_KILLED, verdict_was_killed, 0},
              {FLIGHT_STOPPED, verdict_stands_still, WHERE | WAITING | ERROR},
              {FLIGHT_NON_FINITE, verdict_had_non_finite, ERROR},
              {FLIGHT_MISSING, verdict_is_elsewhere, ERROR},
              {FLIGHT_ERRED, verdict_has_erred, WHERE | WAITING | ERROR},
              {FLIGHT_NAMED, verdict_is_named, WHERE | WAITING | ERROR},
              {FLIGHT_SILENT, verdict_is_silent, WHERE | WAITING},
              {FLIGHT_MISSING, verdict_is_missing, WHERE | WAITING | ERROR},
              {FLIGHT_MISSING, verdict_has_no_record, WAITING},
              {FLIGHT_SILENT, verdict_are_all_silent, WAITING},
              {FLIGHT_SLOW, verdict_is_slow, 0},
              {FLIGHT_FAILED, verdict_has_failed, ERROR},
              {FLIGHT_FINE, verdict_is_fine, 0}};

void flight_judge(const struct flight_view *views, int world, double now, struct flight_verdict *verdict)
{
    struct trial trial = {.views = views, .world = world, .now = now, .erred = -1, .verdict = verdict}, *t = &trial;
    size_t j = 0;
    verdict->rank = -1;
    verdict->text[0] = 0;
    for (int r = t->world - 1; r >= 0; r--) {
        const struct flight_head *head = failure_of(&t->views[r]);
        if (head && (!t->failure || worth(head) >= worth(t->failure))) t->failure = head;
        if (head && (head->failure == FAILURE_ERROR || head->failure == FAILURE_SOFTWARE) && head->culprit < t->world)
            t->erred = head->culprit;
    }
    t->own = t->erred >= 0 ? failure_of(&t->views[t->erred]) : NULL;
    t->named = t->erred >= 0 ? t->erred : t->failure && t->failure->culprit < t->world ? t->failure->culprit : -1;
    while (!judges[j].judge(t)) j++;
    verdict->finding = judges[j].finding;
    if (judges[j].tail & WHERE) say_where(t, &views[verdict->rank]);
    if (judges[j].tail & WAITING) verdict_say_waiting(t);
    if (judges[j].tail & ERROR) verdict_say_error(t);
}
