/* report_terminal.h: the report as text: a summary with sparklines of one run, a table of several. */
#pragma once

#include "cmd/report/terminal.h"
#include "cmd/report/watched_run.h"

/* Prints one run in full, or several as a table with what differs in their specs. */
void report_terminal(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count);
