/* SPDX-License-Identifier: Apache-2.0 */
/* report.c: `ztrain report RUN…`: curves of runs in the terminal or as a page. Their folders do not change. */
#include "cmd/command_line.h"
#include "cmd/report/report_views.h"
#include "cmd/run/stop_signal.h"

#include <signal.h>

enum { REPORT_RUNS = 32 };
/* Seconds: for which a disk that refuses a page is tried again, as a run tries a checkpoint; between two attempts. */
static const double patience = 30, first_pause = 0.2, longest_pause = 5;

static const char USAGE[] =
    "usage: ztrain report RUN… [--out FILE [--watch] [--interval SECONDS]]\n\n"
    "Shows what metrics.jsonl has, also while the runs train: a summary of one run with a sparkline for each\n"
    "metric, or a table of several runs with what differs in their specs. The text fits the terminal's width\n"
    "(COLUMNS); it is ASCII if the locale is not UTF-8 or TERM is dumb, and has colours on a terminal unless\n"
    "NO_COLOR is set.\n"
    "Exit code 4: a folder is absent or has no metrics.jsonl, the file has no sound line, or FILE cannot be written.\n"
    "It leaves out a torn last line, and damaged lines with a warning.\n\n"
    "  RUN                   a run folder, such as runs/NAME\n"
    "  --out FILE            write a page with the curves, an HTML file that needs no other file and no network;\n"
    "                        FILE may be a link, and without --watch a pipe or a device. It replaces only\n"
    "                        pages\n"
    "  --watch               write it again while one of the runs lasts; an open page loads itself again. The end of\n"
    "                        the last run ends this command with 0, and a signal (Ctrl-C) with 130\n"
    "  --interval SECONDS    with --watch: how often; default 5\n";

struct report {
    const char *names[REPORT_RUNS];
    const char *out, *interval;
    double seconds; /* between two pages */
    bool watch;
    int count; /* of the runs that are open */
    struct watched_run runs[REPORT_RUNS];
};

static void report_close(struct report *report)
{
    for (int r = 0; r < report->count; r++) watched_run_close(&report->runs[r]);
}

static volatile sig_atomic_t asked_to_end;

static void ask_report_to_end(int number)
{
    (void)number;
    asked_to_end = 1;
}

/* In parts: a signal that comes right before a sleep does not shorten it. */
static void pause_report(double seconds)
{
    for (double end = seconds_now() + seconds, left; !asked_to_end && (left = end - seconds_now()) > 0;)
        nanosleep(&(struct timespec){.tv_nsec = (long)(fmin(left, 0.25) * 1e9)}, NULL);
}

/* A disk that is full or fails for a moment is tried again. */
static enum status write_patiently(struct report *report, double reload, struct error *err)
{
    const double end = seconds_now() + patience;
    for (double pause = first_pause;; pause = fmin(2 * pause, longest_pause)) {
        const enum status status = report_page(report->out, report->runs, report->count, reload, err);
        if (status == STATUS_OK || !error_is_transient(err) || asked_to_end || seconds_now() >= end) return status;
        if (pause <= first_pause) log_warn("the page is tried again for %g s: %s", patience, err->text);
        pause_report(fmin(pause, end - seconds_now()));
    }
}

/* The last page does not load itself again. */
static enum status watch_runs(struct report *report, struct error *err)
{
    const struct sigaction end = {.sa_handler = ask_report_to_end}; /* after the page is whole */
    struct watched_run *runs = report->runs;
    const int count = report->count;
    bool changed, goes_on = false;
    if (named_file_is_special(report->out))
        return error_set(err, STATUS_CHECKPOINT, "--watch replaces the page before it, but '%s' is not a regular file",
                         report->out);
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGTERM, &end, NULL);
    if (!stop_signal_is_ignored(SIGHUP)) /* nohup */
        sigaction(SIGHUP, &end, NULL);
    for (int r = 0; r < count; r++) goes_on |= runs[r].state == RUN_RUNNING;
    if (goes_on)
        printf("writing %s every %g s while the run lasts; Ctrl-C ends this\n", PRINTABLE(report->out),
               report->seconds);
    for (changed = true; goes_on && !asked_to_end;) {
        if (changed) TRY(write_patiently(report, report->seconds, err));
        fflush(stdout);
        pause_report(report->seconds);
        changed = goes_on = false;
        for (int r = 0; r < count; r++) { /* what was added; of a run that has ended meanwhile the last lines too */
            const bool was_running = runs[r].state == RUN_RUNNING;
            bool more = false;
            TRY(watched_run_refresh(&runs[r], &more, err));
            changed = changed || more;
            if (was_running && runs[r].state != RUN_RUNNING) TRY(watched_run_refresh(&runs[r], &more, err));
            goes_on |= runs[r].state == RUN_RUNNING;
        }
    }
    TRY(write_patiently(report, 0, err));
    for (int r = 0; r < count; r++)
        printf("%s: %s, step %" PRId64 "\n", PRINTABLE(runs[r].name), run_state_words[runs[r].state],
               runs[r].metrics.last_step);
    if (!asked_to_end) return STATUS_OK;
    error_set(err, STATUS_INTERRUPTED, "ended by a signal");
    return error_mark_printed(err); /* as the user wished: no error to print */
}

/* Whether a file that FILE would replace is a page. *empty: it has no bytes. */
static enum status check_replaced_report(const char *out, bool *empty, struct error *err)
{
    static const char begin[] = REPORT_PAGE_BEGIN;
    char text[sizeof begin] = "";
    RELEASED(fs_close) int fd = -1;
    int64_t bytes;
    TRY(fs_open_read(out, STATUS_CHECKPOINT, &fd, &bytes, err));
    const size_t n = bytes < (int64_t)sizeof begin - 1 ? (size_t)bytes : sizeof begin - 1;
    TRY(fs_pread(fd, out, text, n, 0, STATUS_CHECKPOINT, err));
    *empty = !bytes;
    if (*empty || !strcasecmp(text, begin)) return STATUS_OK;
    error_set(err, STATUS_USAGE, "--out: '%s' is not a page, and would be replaced", out);
    return error_hint(err, "another name, such as report.html, or delete the file first");
}

static enum status check_report_out(const char *out, struct error *err)
{
    if (!out) return STATUS_OK;
    if (fs_is_dir(out)) {
        error_set(err, STATUS_CHECKPOINT, "--out: '%s' is a folder", out);
        return error_hint(err, "name a file in it, --out %s%sreport.html", out, fs_has_suffix(out, "/") ? "" : "/");
    }
    if (named_file_is_special(out)) return STATUS_OK;
    struct stat facts;
    bool empty = true;
    if (io_stat(out, &facts) == 0) TRY(check_replaced_report(out, &empty, err));
    if (!empty) return STATUS_OK;
    /* a run has empty files, such as its lock: FILE, or what the link leads to, may be one by its place and its name */
    char name[FS_PATH_MAX], above[FS_PATH_MAX], place[PATH_MAX], metrics[FS_PATH_MAX];
    TRY(named_file_target(out, name, STATUS_CHECKPOINT, err));
    fs_parent(name, above);
    if (fs_has_suffix(name, ".html") || fs_has_suffix(name, ".htm") || !realpath(above, place)) return STATUS_OK;
    for (; strcmp(place, "/") != 0; fs_parent(above, place)) {
        TRY(fs_join(metrics, place, "metrics.jsonl", STATUS_CHECKPOINT, err));
        if (fs_exists(metrics)) {
            error_set(err, STATUS_USAGE, "--out: '%s' would be a file of the run in '%s'", out, place);
            return error_hint(err, "a page in a run folder has a name such as report.html");
        }
        strcpy(above, place);
    }
    return STATUS_OK;
}

/* Opens the runs, each once. */
static enum status open_runs(struct report *report, struct error *err)
{
    for (int i = 0; i < REPORT_RUNS && report->names[i]; i++) {
        struct watched_run *run = &report->runs[report->count++];
        TRY(watched_run_open(run, report->names[i], err));
        for (struct watched_run *other = report->runs; other < run; other++)
            if (run->metrics.device == other->metrics.device && run->metrics.inode == other->metrics.inode) {
                log_warn("'%s' is the same run as '%s', and is shown once", PRINTABLE(report->names[i]),
                         PRINTABLE(other->folder));
                watched_run_close(run);
                report->count--;
                break;
            }
    }
    watched_runs_name(report->runs, report->count);
    return STATUS_OK;
}

enum status cmd_report(int argc, char **argv, struct error *err)
{
    static const struct option_row rows[] = {OPTION(struct report, out, "out", "FILE"),
                                             OPTION(struct report, interval, "interval", "SECONDS"),
                                             OPTION(struct report, watch, "watch", NULL)};
    static const struct command_line line = {"report", USAGE,         "run", REPORT_RUNS, "ztrain report runs/NAME",
                                             rows,     COUNT_OF(rows)};
    RELEASED(report_close) struct report report = {.seconds = 5};
    TRY(command_line_parse(&line, argc, argv, &report, err));
    TRY(option_real("interval", report.interval, "0.1 to 86400 seconds", 0.1, 86400, &report.seconds, err));
    if (report.interval && !report.watch) return error_set(err, STATUS_USAGE, "--interval is an option of --watch");
    if (report.watch && !report.out)
        return error_set(err, STATUS_USAGE, "--watch writes a page; hint: ztrain report RUN --out report.html --watch");
    TRY(check_report_out(report.out, err));
    TRY(open_runs(&report, err));
    if (report.watch) return watch_runs(&report, err);
    if (report.out) return report_page(report.out, report.runs, report.count, 0, err);
    signal(SIGPIPE, SIG_DFL); /* a reader that has seen enough (head) ends this without a message */
    terminal_start();
    report_terminal(report.runs, report.count);
    return STATUS_OK;
}
