/* SPDX-License-Identifier: Apache-2.0 */
/* report_views.h: the report as text (report_terminal.c), and as a page for a browser (report_page.c): one HTML file
 * that needs no other and no network.
 *
 * It is cmd/report/page.html with style, script and the runs' data in place of @STYLE@, @SCRIPT@ and @DATA@. All text
 * of the runs is in the data, as JSON in which every "<" is escaped; the script enters it as text, never as HTML. */
#pragma once

#include "cmd/report/terminal.h"
#include "cmd/report/watched_run.h"

#define REPORT_PAGE_BEGIN "<!doctype html>" /* of every page */

enum { PAGE_BUCKETS = 3 * REPORT_BUCKETS }; /* of all runs together, so that the page stays of a few MB */

/* Writes the page, which takes the place of an older one at once. Thins the runs to PAGE_BUCKETS. reload: seconds after
 * which the page loads itself again; 0: never. STATUS_CHECKPOINT: it cannot be written. */
enum status report_page(const char *path, struct watched_run *runs, int count, double reload, struct error *err);

/* Prints one run in full, or several as a table with what differs in their specs. */
void report_terminal(const struct watched_run *runs, int count);
