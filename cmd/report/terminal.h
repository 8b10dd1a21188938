/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h: fields, figures and sparklines for a terminal of any kind. */
#pragma once

#include "cmd/report/thin.h"

#include <stdbool.h>

/* stdout, once terminal_start() has looked at it. */
extern struct terminal {
    int columns;
    bool utf8, colour;
} terminal;

enum ink { INK_PLAIN, INK_BOLD, INK_DIM, INK_GOOD, INK_BAD, INK_LINE };

/* $COLUMNS or the terminal's width (100 without a terminal), from 40 to 180; block characters where the locale is
 * UTF-8 and TERM is not "dumb", colours on a terminal without NO_COLOR. Sets the locale of characters. */
void terminal_start(void);

/* Columns of a text in UTF-8 on the terminal. */
int terminal_width(const char *text);

/* The longest end of a text that fits into that many columns, from the beginning of a character; a part of `text`. */
const char *terminal_tail(const char *text, int columns);

/* Prints a text in a field of |columns| columns (0: as long as it is), cut if it is longer: to its right end if
 * `columns` is negative, else to its left end. Characters that are not ASCII become "?" without UTF-8. */
void terminal_put(enum ink ink, int columns, const char *text);

/* A line of at most `columns` characters: the mean of each part of a series, "×" ("!") where a value is not finite, a
 * blank where there is none. log_scale counts if all values are positive. The caller frees it. */
char *sparkline(const struct thin *thin, int series, int columns, bool log_scale, bool utf8);

enum { FIGURE_MAX = 40 };

/* Numbers as people read them. Each writes into `out` and returns it; "-" for NAN. */
const char *figure_plain(double value, char out[FIGURE_MAX]);   /* "3.2158", "1.5e-05" */
const char *figure_si(double value, char out[FIGURE_MAX]);      /* "124.4 M" */
const char *figure_bytes(double value, char out[FIGURE_MAX]);   /* "1.50 GB" */
const char *figure_percent(double share, char out[FIGURE_MAX]); /* "41.2 %" */
const char *figure_count(int64_t value, char out[FIGURE_MAX]);  /* "1,240" */
const char *figure_time(double seconds, char out[FIGURE_MAX]);  /* "1:02:33", "1 d 3:46:40" */

/* The same for a block's lifetime: printf("%s", FIGURE(si, x)). */
#define FIGURE(kind, value) figure_##kind((value), (char[FIGURE_MAX]){0})

/* A line that continues on the next one, after `indent` blanks, where it would be wider than the terminal. */
struct terminal_line {
    int indent, column; /* column: where the line has come to */
};

/* Prints a text of phrases, which end with a comma or colon. A phrase that the line has no room for begins the next
 * one; one longer than a line is broken at its blanks, but not after a number, and a word longer than a line is cut. */
void terminal_line_put(struct terminal_line *line, enum ink ink, const char *text);
