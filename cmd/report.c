/* report.c: `ztrain report RUN…` shows the curves of runs: as a summary in the terminal, or as a page for a browser. It
 * reads run folders and changes nothing in them. */
#include "cmd/commands.h"
#include "cmd/report/report_page.h"
#include "cmd/report/report_terminal.h"
#include "cmd/unknown_word.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_RUNS = 32 };

static const char *const OPTIONS[] = {"out", "help"};
static const char USAGE[] =
    "usage: ztrain report RUN… [--out FILE]\n"
    "\n"
    "Shows what the metrics.jsonl of runs tells, also while they train: a summary of one run with a sparkline for\n"
    "each metric, or a table of several runs with what differs in their specs. The text fits the terminal's width\n"
    "(COLUMNS); it is ASCII where the locale is not UTF-8 or TERM is dumb, and has colours on a terminal unless\n"
    "NO_COLOR is set.\n"
    "Exit code 4: a folder is absent or has no metrics.jsonl, the file has no sound line, or FILE cannot be written.\n"
    "A torn last line and damaged lines are left out, with a warning for the latter.\n"
    "\n"
    "  RUN           a run folder, such as runs/NAME\n"
    "  --out FILE    write a page with the curves, an HTML file that needs no other file and no network\n";

struct report_options {
    const char *runs[REPORT_RUNS];
    int count;
    const char *out;
    bool help;
};

/* Whether argv[*i] is NAME VALUE or NAME=VALUE; *value: NULL if it is missing. Moves *i to the value. */
static bool takes(const char *name, int argc, char **argv, int *i, const char **value)
{
    const size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0 || (argv[*i][length] && argv[*i][length] != '='))
        return false;
    if (argv[*i][length])
        *value = argv[*i] + length + 1;
    else
        *value = *i + 1 < argc ? argv[++*i] : NULL;
    return true;
}

static enum status parse(int argc, char **argv, struct report_options *options, struct error *err)
{
    *options = (struct report_options){.count = 0};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            options->help = true;
        else if (takes("--out", argc, argv, &i, &options->out)) {
            if (!options->out || !*options->out)
                return error_set(err, STATUS_USAGE, "--out needs a value: --out FILE");
        } else if (argv[i][0] == '-')
            return unknown_option("report", argv[i], OPTIONS, COUNT_OF(OPTIONS), err);
        else if (options->count == REPORT_RUNS)
            return error_set(err, STATUS_USAGE, "more than %d runs in one report", REPORT_RUNS);
        else
            options->runs[options->count++] = argv[i];
    }
    if (!options->count && !options->help)
        return error_set(err, STATUS_USAGE, "no run was named; hint: ztrain report runs/NAME");
    return STATUS_OK;
}

enum status cmd_report(int argc, char **argv, struct error *err)
{
    struct report_options options;
    TRY(parse(argc, argv, &options, err));
    if (options.help) {
        fputs(USAGE, stdout);
        return STATUS_OK;
    }
    struct watched_run *runs = memory_zeroed((size_t)options.count, sizeof *runs);
    enum status status = STATUS_OK;
    int opened = 0;
    while (status == STATUS_OK && opened < options.count) {
        status = watched_run_open(&runs[opened], options.runs[opened], err);
        opened++;
    }
    if (status == STATUS_OK)
        watched_runs_name(runs, options.count);
    if (status == STATUS_OK && options.out)
        status = report_page(options.out, runs, options.count, 0, err);
    else if (status == STATUS_OK) {
        const struct terminal_style style = terminal_style_of_stdout();
        report_terminal(stdout, &style, runs, options.count);
    }
    for (int r = 0; r < opened; r++)
        watched_run_close(&runs[r]);
    free(runs);
    return status;
}
