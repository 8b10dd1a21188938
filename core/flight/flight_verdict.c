#include "core/flight/flight_verdict.h"

#include "core/flight/flight_slow.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double renewals_missed = 5; /* intervals without a new record: the rank is silent */
static const double late_seconds = 2;    /* after the others began to wait, a rank is missing */

/* ---- words --------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void say(struct flight_verdict *verdict, const char *format, ...)
{
    const size_t used = strlen(verdict->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->text + used, sizeof verdict->text - used, format, arguments);
    va_end(arguments);
}

const char *flight_time(double seconds, char out[32])
{
    const time_t whole = (time_t)floor(seconds);
    struct tm local;
    localtime_r(&whole, &local);
    size_t n = strftime(out, 24, "%H:%M:%S", &local);
    snprintf(out + n, 32 - n, ".%03d", (int)((seconds - (double)whole) * 1000));
    return out;
}

const char *flight_place(const struct flight_entry *entry, char out[160])
{
    char unit[32] = "", bytes[32] = "", number[32] = "", micro[32] = "";
    if (entry->number >= 0)
        snprintf(number, sizeof number, " %" PRId64, entry->number);
    if (entry->unit >= 0)
        snprintf(unit, sizeof unit, " of unit %d", entry->unit);
    if (entry->bytes >= 1000000)
        snprintf(bytes, sizeof bytes, ", %.1f MB", 1e-6 * (double)entry->bytes);
    else if (entry->bytes > 0)
        snprintf(bytes, sizeof bytes, ", %" PRId64 " bytes", entry->bytes);
    if (entry->micro > 1)
        snprintf(micro, sizeof micro, ", micro-batch %d", entry->micro);
    snprintf(out, 160, "%s%s%s%s (step %" PRId64 "%s)", flight_kind_name((enum flight_kind)entry->kind), number, unit,
             bytes, entry->step, micro);
    return out;
}

static void name_rank(struct flight_verdict *verdict, const struct flight_view *view)
{
    const struct flight_head *head = &view->record->head;
    say(verdict, "Rank %d on %s (process %d)", head->rank, head->host, head->pid);
}

/* Where a rank was: " It was in …, since …." */
static void say_place(struct flight_verdict *verdict, const struct flight_view *view)
{
    const struct flight_record *record = view->record;
    char place[160], time[32];
    if (view->now) {
        say(verdict, " It was in the %s, since %s", flight_place(view->now, place),
            flight_time(flight_wall(record, view->now->start), time));
        if (view->work && view->work != view->now && flight_channel(view->now->kind) == 1) /* of the same thread */
            say(verdict, ", a part of the %s", flight_kind_name((enum flight_kind)view->work->kind));
        say(verdict, ".");
    } else if (view->last) {
        say(verdict, " It was in the phase '%s' of step %" PRId64 ", after the %s, which ended at %s.",
            flight_kind_name((enum flight_kind)record->phase), record->step, flight_place(view->last, place),
            flight_time(flight_wall(record, view->last->end), time));
    }
    if (*record->head.waiting)
        say(verdict, " A call was in progress: %s.", record->head.waiting);
}

/* Who waits: " Rank 0 and 2 others have waited in the barrier 17 since …." culprit: a rank that does not count. */
static void say_waiting(struct flight_verdict *verdict, const struct flight_view *views, int world, int culprit)
{
    const struct flight_view *first = NULL;
    char place[160], time[32];
    int others = -1;
    for (int r = 0; r < world; r++)
        if (r != culprit && views[r].wait) {
            others++;
            if (!first)
                first = &views[r];
        }
    if (!first)
        return;
    say(verdict, " Rank %d", first->record->head.rank);
    if (others == 1)
        say(verdict, " and another rank");
    else if (others > 1)
        say(verdict, " and %d others", others);
    say(verdict, " waited in the %s since %s.", flight_place(first->wait, place),
        flight_time(flight_wall(first->record, first->wait->start), time));
}

/* ---- the job's error ----------------------------------------------------- */

/* The rank that an error is about in the words of comm/control/verdict.c, "rank 3 has failed (…)", with which a rank
 * ends that has no error of its own; -1: it is another error. */
static int failed_rank(const char *error)
{
    int rank = -1, used = 0;
    return sscanf(error, "rank %9d has failed%n", &rank, &used) == 1 && used ? rank : -1;
}

/* How much a failure's text says of the culprit: the job's error, an error of the rank's own, or neither. */
static int worth(const struct flight_head *failure)
{
    return failure->speaker >= -1 ? 2 : failed_rank(failure->error) < 0;
}

/* The record of a rank that has ended with an error, the one that says most of whose error the job's is; or NULL. */
static const struct flight_head *failure_of(const struct flight_view *views, int world)
{
    const struct flight_head *found = NULL;
    for (int r = 0; r < world; r++) {
        const struct flight_head *head = views[r].record ? &views[r].record->head : NULL;
        if (head && head->reason == FLIGHT_FAILURE && (!found || worth(head) > worth(found)))
            found = head;
    }
    return found;
}

/* The rank whose own error ended the job; -1: none, or all of them. Ranks that agreed on the failure do not speak, but
 * those without an error of their own name the lowest that has one. */
static int speaker_of(const struct flight_view *views, int world)
{
    const struct flight_head *failure = failure_of(views, world);
    int rank = failure ? failure->speaker : -1;
    for (int r = 0; r < world && rank < 0; r++)
        if (views[r].record && views[r].record->head.reason == FLIGHT_FAILURE)
            rank = failed_rank(views[r].record->head.error);
    return rank < world ? rank : -1;
}

/* The rank that the error is about: its own, or the first that the text names as "rank 3 on HOST"; -1: none. */
static int subject_of(const struct flight_view *views, int world)
{
    const struct flight_head *failure = failure_of(views, world);
    int rank = speaker_of(views, world);
    for (const char *at = failure ? failure->error : ""; rank < 0 && (at = strstr(at, "rank ")); at++) {
        int used = 0;
        if (sscanf(at, "rank %9d on%n", &rank, &used) != 1 || !used)
            rank = -1;
    }
    return rank < world ? rank : -1;
}

/* The error of the rank that it is about, if it has one of its own; else the one that says most. */
static void say_error(struct flight_verdict *verdict, const struct flight_view *views, int world)
{
    const struct flight_head *failure = failure_of(views, world);
    const int speaker = speaker_of(views, world);
    if (speaker >= 0 && views[speaker].record && views[speaker].record->head.reason == FLIGHT_FAILURE)
        failure = &views[speaker].record->head;
    if (failure)
        say(verdict, " Rank %d ended with exit code %d: \"%s\".", failure->rank, failure->code, failure->error);
}

/* Whether a process that is gone or stopped explains anything. After a failure all processes end, also by force. */
static bool may_explain(const struct flight_view *views, int world, int rank)
{
    const struct flight_head *failure = failure_of(views, world);
    return !failure || (speaker_of(views, world) < 0 && subject_of(views, world) == rank);
}

/* ---- findings, the surest first ------------------------------------------ */

static bool find(struct flight_verdict *verdict, enum flight_finding finding, int rank)
{
    verdict->finding = finding;
    verdict->rank = rank;
    return true;
}

/* Whether the rank has ended without a word: it neither failed with an error nor ended in order. */
static bool ended_mute(const struct flight_view *view)
{
    return view->record && view->process == 'X' && view->record->head.reason != FLIGHT_FAILURE &&
           view->record->head.reason != FLIGHT_ENDED;
}

/* A time of the rank by the first rank's clock. */
static double common(const struct flight_view *view, double wall)
{
    return wall - view->ahead;
}

static double written(const struct flight_view *view)
{
    return common(view, 1e-9 * (double)view->record->head.wall);
}

static bool judge_killed(struct flight_verdict *v, const struct flight_view *views, int world)
{
    int rank = -1, count = 0;
    char time[32];
    for (int r = 0; r < world; r++)
        if (ended_mute(&views[r]) && may_explain(views, world, r)) {
            count++;
            if (rank < 0 || common(&views[r], views[r].moved) < common(&views[rank], views[rank].moved))
                rank = r;
        }
    if (rank < 0)
        return false;
    const int asked = views[rank].record->head.asked;
    name_rank(v, &views[rank]);
    say(v, " was %s: its process is gone and left no error of its own; its last sign is of %s.",
        asked == SIGINT ? "interrupted" : "killed", flight_time(views[rank].moved, time));
    if (asked == SIGINT)
        say(v, " SIGINT (Ctrl-C) had asked it to stop, and a second one ends a run at once, without a checkpoint.");
    else if (asked)
        say(v, " Signal %d (%s) had asked it to stop.", asked, strsignal(asked));
    if (count > 1)
        say(v, " %d other process%s gone in the same way; this one fell silent first.", count - 1,
            count > 2 ? "es are" : " is");
    say_place(v, &views[rank]);
    if (count < world)
        say_waiting(v, views, world, rank);
    say_error(v, views, world);
    if (asked != SIGINT)
        say(v, " dmesg and sacct show whether it was killed for memory.");
    return find(v, FLIGHT_KILLED, rank);
}

static bool judge_stopped(struct flight_verdict *v, const struct flight_view *views, int world)
{
    char time[32];
    int stopped_now = 0;
    for (int r = 0; r < world; r++)
        stopped_now += views[r].process == 'T';
    for (int r = 0; r < world; r++) {
        const struct flight_view *view = &views[r];
        const bool stopped = view->process == 'T', stuck = view->process == 'D' && view->record->head.witness >= 0;
        if (!view->record || (!stopped && !stuck) || !may_explain(views, world, r))
            continue;
        name_rank(v, view);
        say(v, " stood still: its process was %s; its last sign is of %s.",
            stopped ? "stopped (SIGSTOP, a debugger, or a job that was suspended)"
                    : "stuck in the kernel (a file server or a driver that does not answer)",
            flight_time(view->moved, time));
        if (stopped_now > 1)
            say(v, " So %s %d other%s: the whole job may be suspended.", stopped_now > 2 ? "are" : "is",
                stopped_now - 1, stopped_now > 2 ? "s" : "");
        say_place(v, view);
        say_waiting(v, views, world, r);
        say_error(v, views, world);
        return find(v, FLIGHT_STOPPED, r);
    }
    return false;
}

static bool judge_non_finite(struct flight_verdict *v, const struct flight_view *views, int world)
{
    const struct flight_head *failure = failure_of(views, world), *head = NULL;
    const struct flight_record *record = NULL;
    for (int r = 0; r < world && !head; r++)
        if (views[r].record && views[r].record->head.bad_first) {
            record = views[r].record;
            head = &record->head;
        }
    if (!head || (failure && failure->code != STATUS_DIVERGED) || head->bad_last + 2 < record->step)
        return false;
    if (head->bad_rank >= 0 && head->bad_rank < world && views[head->bad_rank].record)
        name_rank(v, &views[head->bad_rank]);
    else if (head->bad_rank >= 0)
        say(v, "Rank %d", head->bad_rank);
    else
        say(v, "A rank that is not known");
    say(v, " had the first non-finite value, in step %" PRId64 "%s%s; the last was in step %" PRId64 ".",
        head->bad_first, *head->bad_tensor ? ", in the gradient of " : "", head->bad_tensor, head->bad_last);
    say_error(v, views, world);
    return find(v, FLIGHT_NON_FINITE, head->bad_rank);
}

static bool judge_failure(struct flight_verdict *v, const struct flight_view *views, int world)
{
    const int rank = subject_of(views, world);
    const bool own = speaker_of(views, world) >= 0;
    if (rank < 0)
        return false;
    if (views[rank].record)
        name_rank(v, &views[rank]);
    else
        say(v, "Rank %d, which left no record,", rank);
    say(v, own ? " ended the job with an error of its own." : " is the one that the job's error names.");
    if (views[rank].record)
        say_place(v, &views[rank]);
    say_waiting(v, views, world, rank);
    say_error(v, views, world);
    return find(v, own ? FLIGHT_ERRED : FLIGHT_NAMED, rank);
}

bool flight_is_overdue(const struct flight_record *record, double wall, double now)
{
    return now - wall >= fmax(renewals_missed * record->head.interval, renewals_missed);
}

static bool judge_silent(struct flight_verdict *v, const struct flight_view *views, int world)
{
    int rank = -1;
    double newest = 0;
    char time[32];
    for (int r = 0; r < world; r++) {
        if (!views[r].record)
            continue;
        newest = fmax(newest, written(&views[r]));
        if (rank < 0 || written(&views[r]) < written(&views[rank]))
            rank = r;
    }
    if (rank < 0 || views[rank].record->head.reason == FLIGHT_ENDED ||
        !flight_is_overdue(views[rank].record, written(&views[rank]), newest))
        return false;
    name_rank(v, &views[rank]);
    say(v,
        " has not renewed its record since %s, and others have: its process or its machine stands still, or cannot "
        "write to the run folder.",
        flight_time(1e-9 * (double)views[rank].record->head.wall, time));
    say_place(v, &views[rank]);
    say_waiting(v, views, world, rank);
    return find(v, FLIGHT_SILENT, rank);
}

/* The job is over without a word, or none of its ranks can write. */
static bool judge_lost(struct flight_verdict *v, const struct flight_view *views, int world, double now)
{
    double newest = 0; /* at least one rank has a record */
    char time[32];
    for (int r = 0; r < world; r++) {
        const struct flight_record *record = views[r].record;
        if (!record)
            continue;
        newest = fmax(newest, 1e-9 * (double)record->head.wall);
        if (record->head.reason == FLIGHT_FAILURE || record->head.reason == FLIGHT_ENDED ||
            !flight_is_overdue(record, newest, now))
            return false;
    }
    say(v,
        "No rank has renewed its record since %s, by this machine's clock %.0f s ago: all processes have ended without "
        "a word, with their machines or by force, or none of them can write to the run folder.",
        flight_time(newest, time), now - newest);
    say_waiting(v, views, world, -1);
    return find(v, FLIGHT_SILENT, -1);
}

/* Whether `late` had not reached `wait` of `view` at a time when that rank had waited for some seconds. */
static bool has_not_reached(const struct flight_view *late, const struct flight_view *view)
{
    const int channel = flight_channel(view->wait->kind);
    if (!late->record || late->begun[channel] >= view->wait->number)
        return false;
    const double waits = common(view, flight_wall(view->record, view->wait->start));
    const bool failed = late->record->head.reason == FLIGHT_FAILURE || view->record->head.reason == FLIGHT_FAILURE;
    return failed || written(late) - waits >= late_seconds;
}

static bool judge_missing(struct flight_verdict *v, const struct flight_view *views, int world)
{
    int rank = -1;
    for (int w = 0; w < world; w++)
        for (int r = 0; r < world && views[w].wait; r++)
            if (has_not_reached(&views[r], &views[w]) &&
                (rank < 0 || common(&views[r], views[r].moved) < common(&views[rank], views[rank].moved)))
                rank = r;
    if (rank < 0)
        return false;
    name_rank(v, &views[rank]);
    say(v,
        " is the one that the others wait for: it has not reached the collective that they are in (its last are "
        "%" PRId64 " of the data channel and %" PRId64 " of the control channel).",
        views[rank].begun[0], views[rank].begun[1]);
    say_place(v, &views[rank]);
    say_waiting(v, views, world, rank);
    say_error(v, views, world);
    return find(v, FLIGHT_MISSING, rank);
}

/* Ranks wait for some seconds, and others have no record that would show where they are. */
static bool judge_unrecorded(struct flight_verdict *v, const struct flight_view *views, int world)
{
    int rank = -1, others = -1;
    bool waits = false;
    for (int r = world - 1; r >= 0; r--)
        if (!views[r].record) {
            rank = r;
            others++;
        } else if (views[r].wait) {
            waits |= written(&views[r]) - common(&views[r], flight_wall(views[r].record, views[r].wait->start)) >=
                     late_seconds;
        }
    if (rank < 0 || !waits || failure_of(views, world))
        return false;
    say(v, "Rank %d", rank);
    if (others > 0)
        say(v, " and %d other%s", others, others == 1 ? "" : "s");
    say(v, " left no record, and the others wait in a collective, probably for %s.", others > 0 ? "them" : "it");
    say_waiting(v, views, world, rank);
    return find(v, FLIGHT_MISSING, rank);
}

/* ---- ranks in different collectives -------------------------------------- */

static bool same_operation(const struct flight_entry *a, const struct flight_entry *b)
{
    return a->kind == b->kind && a->bytes == b->bytes;
}

/* The rank whose operation fewest others are in, of those in collective number `wait->number`; *alike: how many. */
static int odd_one(const struct flight_view *views, int world, const struct flight_entry *wait, int *alike)
{
    int odd = -1;
    *alike = world + 1;
    for (int r = 0; r < world; r++) {
        const struct flight_entry *own = views[r].wait;
        int count = 0;
        if (!own || own->number != wait->number || flight_channel(own->kind) != flight_channel(wait->kind))
            continue;
        for (int other = 0; other < world; other++)
            count += views[other].wait && views[other].wait->number == own->number &&
                     flight_channel(views[other].wait->kind) == flight_channel(own->kind) &&
                     same_operation(views[other].wait, own);
        if (count <= *alike) { /* of two ranks the second */
            *alike = count;
            odd = r;
        }
    }
    return odd;
}

/* Ranks that came to the same number in the order of collectives with different ones. */
static bool judge_different(struct flight_verdict *v, const struct flight_view *views, int world)
{
    char place[160];
    for (int w = 0; w < world; w++) {
        const struct flight_entry *wait = views[w].wait;
        int alike;
        const int odd = wait ? odd_one(views, world, wait, &alike) : -1;
        if (odd < 0 || same_operation(views[odd].wait, wait))
            continue;
        name_rank(v, &views[odd]);
        say(v, " is in another collective than the others: in the %s,", flight_place(views[odd].wait, place));
        say(v, " while rank %d is in the %s.", w, flight_place(wait, place));
        say_error(v, views, world);
        return find(v, FLIGHT_MISSING, odd);
    }
    return false;
}

/* ---- slow ranks ---------------------------------------------------------- */

static bool judge_slow(struct flight_verdict *v, const struct flight_view *views, int world)
{
    struct flight_slow slow;
    if (failure_of(views, world) || !flight_find_slow(views, world, &slow))
        return false;
    name_rank(v, &views[slow.rank]);
    say(v, " is slow: it was the last to come in %d of %d collectives, and the others waited for it %.3g of %.3g s.",
        slow.times, slow.compared, slow.seconds, slow.span);
    return find(v, FLIGHT_SLOW, slow.rank);
}

/* ---- the verdict --------------------------------------------------------- */

static void say_nothing_found(struct flight_verdict *v, const struct flight_view *views, int world)
{
    int64_t least = INT64_MAX, most = 0;
    int count = 0;
    for (int r = 0; r < world; r++)
        if (views[r].record) {
            const int64_t step = views[r].record->step;
            least = step < least ? step : least;
            most = step > most ? step : most;
            count++;
        }
    if (failure_of(views, world)) {
        say(v, "The job has failed, and no rank stands out in the records.");
        say_error(v, views, world);
        find(v, FLIGHT_FAILED, -1);
        return;
    }
    find(v, FLIGHT_FINE, -1);
    say(v, "Nothing stands out: %d of %d %s a record, ", count, world, world == 1 ? "rank has" : "ranks have");
    if (least == most)
        say(v, "all in step %" PRId64 ".", most);
    else
        say(v, "in steps %" PRId64 " to %" PRId64 ".", least, most);
}

void flight_judge(const struct flight_view *views, int world, double now, struct flight_verdict *verdict)
{
    verdict->text[0] = 0;
    if (judge_killed(verdict, views, world) || judge_stopped(verdict, views, world) ||
        judge_non_finite(verdict, views, world) || judge_different(verdict, views, world) ||
        judge_failure(verdict, views, world) || judge_silent(verdict, views, world) ||
        judge_missing(verdict, views, world) || judge_unrecorded(verdict, views, world) ||
        judge_lost(verdict, views, world, now) || judge_slow(verdict, views, world))
        return;
    say_nothing_found(verdict, views, world);
}
