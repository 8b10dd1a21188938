/* figures.h: numbers as people read them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { FIGURE_MAX = 40 };

/* Each writes into `out` and returns it; "-" for NAN. */
const char *figure_plain(double value, char out[FIGURE_MAX]);   /* "3.2158", "1.5e-05" */
const char *figure_si(double value, char out[FIGURE_MAX]);      /* "124.4 M" */
const char *figure_bytes(double value, char out[FIGURE_MAX]);   /* "1.50 GB" */
const char *figure_percent(double share, char out[FIGURE_MAX]); /* "41.2 %" */
const char *figure_count(int64_t value, char out[FIGURE_MAX]);  /* "1,240" */
const char *figure_time(double seconds, char out[FIGURE_MAX]);  /* "1:02:33", "1 d 3:46:40" */

/* The same for a block's lifetime: printf("%s", FIGURE(si, x)). */
#define FIGURE(kind, value) figure_##kind((value), (char[FIGURE_MAX]){0})
