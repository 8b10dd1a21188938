/* report_page.h: the report as a page for a browser: one HTML file that needs no other and no network.
 *
 * The page is cmd/report/page.html with its style, its script and the runs' data in place of @STYLE@, @SCRIPT@ and
 * @DATA@. All text of the runs is in the data, as JSON in which every "<" is escaped, and the script enters it into the
 * page as text, never as HTML. */
#pragma once

#include "cmd/report/watched_run.h"
#include "core/status.h"

#define REPORT_PAGE_BEGIN "<!doctype html>" /* of every page */

enum { PAGE_BUCKETS = 3 * REPORT_BUCKETS }; /* of all runs together, so that the page stays of a few MB */

/* Writes the page, which takes the place of an older one at once. Thins the runs to PAGE_BUCKETS. reload: seconds after
 * which the page loads itself again; 0: never. STATUS_CHECKPOINT: it cannot be written. */
enum status report_page(const char *path, struct watched_run *runs, int count, double reload, struct error *err);
