/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/terminal.h"

#include "core/memory.h"

#include <float.h>
#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <wchar.h>

enum { FEWEST_COLUMNS = 40, MOST_COLUMNS = 180, USUAL_COLUMNS = 100 };

struct terminal terminal;

void terminal_start(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS"), *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    const bool dumb = term && !strcmp(term, "dumb");
    terminal.columns = columns ? atoi(columns) : 0;
    if (terminal.columns <= 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) terminal.columns = size.ws_col;
    if (terminal.columns <= 0) terminal.columns = USUAL_COLUMNS;
    terminal.columns = terminal.columns < FEWEST_COLUMNS ? FEWEST_COLUMNS
                       : terminal.columns > MOST_COLUMNS ? MOST_COLUMNS
                                                         : terminal.columns;
    setlocale(LC_CTYPE, ""); /* numbers stay as they are */
    terminal.utf8 = !dumb && !strcmp(nl_langinfo(CODESET), "UTF-8");
    terminal.colour = isatty(STDOUT_FILENO) && !dumb && !(no_colour && *no_colour);
}

/* Columns of the first character by the locale: 0 to 2; one in a locale without UTF-8. *bytes: its length. */
static int terminal_character_width(const char *text, int *bytes)
{
    mbstate_t state = {0};
    wchar_t point;
    *bytes = 1;
    while (((unsigned char)text[*bytes] & 0xC0) == 0x80) ++*bytes;
    if (*bytes == 1 || mbrtowc(&point, text, (size_t)*bytes, &state) != (size_t)*bytes) return 1;
    const int width = wcwidth(point);
    return width < 0 ? 1 : width;
}

int terminal_width(const char *text)
{
    int n = 0;
    for (int bytes; *text; text += bytes) n += terminal_character_width(text, &bytes);
    return n;
}

const char *terminal_tail(const char *text, int columns)
{
    int width = terminal_width(text);
    for (int bytes; *text && (width > columns || terminal_character_width(text, &bytes) == 0); text += bytes)
        width -= terminal_character_width(text, &bytes);
    return text;
}

void terminal_put(enum ink ink, int columns, const char *text)
{
    static const char *const codes[] = {"", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[36m"};
    const int room = abs(columns), width = terminal_width(text), cut = room && width > room;
    int blanks = cut || !room ? 0 : room - width;
    printf("%*s%s", columns < 0 ? blanks : 0, "", terminal.colour ? codes[ink] : "");
    int left = cut ? room - 1 : width;
    for (int bytes, wide; *text && (wide = terminal_character_width(text, &bytes)) <= left; text += bytes) {
        if (terminal.utf8 || !(*text & 0x80))
            fwrite(text, 1, (size_t)bytes, stdout);
        else
            putchar('?');
        left -= wide;
    }
    if (cut) blanks = left; /* of a wide character that did not fit */
    fputs(!cut ? "" : terminal.utf8 ? "…" : "~", stdout);
    printf("%s%*s", terminal.colour && ink ? "\033[0m" : "", columns > 0 ? blanks : 0, "");
}

/* ---- lines --------------------------------------------------------------- */

/* Bytes up to the end of a phrase, with its comma or colon; or of a word. */
static size_t terminal_piece_length(const char *text, bool word)
{
    size_t n = 0;
    for (; text[n]; n++) {
        const char before = n ? text[n - 1] : ' ';
        const bool together = isdigit((unsigned char)before) && isalpha((unsigned char)text[n + 1]);
        if (text[n] == ' ' && (word ? !together : before == ',' || before == ':')) break;
    }
    return n;
}

void terminal_line_put(struct terminal_line *line, enum ink ink, const char *text)
{
    const int most = terminal.columns, room = most - line->indent;
    while (*text) {
        size_t done = 0, before = strspn(text, " ");
        text += before;
        const size_t bytes = terminal_piece_length(text, false);
        OWNED char *phrase = memory_printf("%.*s", (int)bytes, text);
        const bool whole = terminal_width(phrase) <= room;
        while (done < bytes) {
            const size_t n = whole ? bytes : terminal_piece_length(phrase + done, true);
            OWNED char *piece = memory_printf("%.*s", (int)n, phrase + done);
            const int width = terminal_width(piece);
            if (line->column > line->indent && line->column + (int)before + width > most) { /* on the next line */
                printf("\n%*s", line->indent, "");
                line->column = line->indent;
                before = 0;
            }
            printf("%*s", (int)before, "");
            terminal_put(ink, width > room ? room : 0, piece);
            line->column += (int)before + (width > room ? room : width);
            done += n;
            before = strspn(phrase + done, " ");
            done += before;
        }
        text += bytes;
    }
}

/* ---- figures ------------------------------------------------------------- */

const char *figure_plain(double value, char out[FIGURE_MAX])
{
    const double size = fabs(value);
    if (!isfinite(value) || value == 0)
        snprintf(out, FIGURE_MAX, "%s", value == 0 ? "0" : "-");
    else if (size < 0.1 || size >= 1e6)
        snprintf(out, FIGURE_MAX, "%.3g", value);
    else
        snprintf(out, FIGURE_MAX, "%.*f", size >= 1000 ? 1 : size >= 100 ? 2 : size >= 10 ? 3 : 4, value);
    return out;
}

static const char *terminal_figure(double value, const char *unit, char out[FIGURE_MAX])
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    size_t p = 0;
    while (fabs(value) >= 999.5 && p + 1 < COUNT_OF(prefixes)) {
        value /= 1000;
        p++;
    }
    const int digits = p == 0 && value == floor(value) ? 0 : fabs(value) >= 99.95 ? 1 : 2;
    snprintf(out, FIGURE_MAX, isfinite(value) ? "%.*f%s%s%s" : "-", digits, value, *prefixes[p] || *unit ? " " : "",
             prefixes[p], unit);
    return out;
}

const char *figure_si(double value, char out[FIGURE_MAX])
{
    return terminal_figure(value, "", out);
}

const char *figure_bytes(double value, char out[FIGURE_MAX])
{
    return terminal_figure(value, "B", out);
}

const char *figure_percent(double share, char out[FIGURE_MAX])
{
    snprintf(out, FIGURE_MAX, isfinite(share) ? "%.1f %%" : "-", 100 * share);
    return out;
}

const char *figure_count(int64_t value, char out[FIGURE_MAX])
{
    char digits[FIGURE_MAX];
    const int n = snprintf(digits, sizeof digits, "%" PRId64, value), sign = digits[0] == '-';
    int used = 0;
    for (int i = 0; i < n && used < FIGURE_MAX - 2; i++) {
        if (i > sign && (n - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = 0;
    return out;
}

const char *figure_time(double seconds, char out[FIGURE_MAX])
{
    const int64_t s = seconds > 0 ? (int64_t)(fmin(seconds, 1e15) + 0.5) : 0;
    if (!isfinite(seconds))
        snprintf(out, FIGURE_MAX, "-");
    else if (s >= 86400)
        snprintf(out, FIGURE_MAX, "%" PRId64 " d %d:%02d:%02d", s / 86400, (int)(s / 3600 % 24), (int)(s / 60 % 60),
                 (int)(s % 60));
    else if (s >= 3600)
        snprintf(out, FIGURE_MAX, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(out, FIGURE_MAX, "%d:%02d", (int)(s / 60), (int)(s % 60));
    return out;
}

/* ---- sparklines ---------------------------------------------------------- */

static struct thin_cell sparkline_column(const struct thin *thin, int series, int column, int columns)
{
    struct thin_cell all = {.count = 0};
    const int64_t n = thin->count;
    const int first = (int)(n * column / columns), past = (int)(n * (column + 1) / columns);
    for (int b = first; b < (past > first ? past : first + 1) && b < thin->count; b++)
        thin_join(&all, thin_at(thin, b, series));
    return all;
}

/* The mean on the scale of the line, within what a double holds; NAN: there is no mean. */
static double sparkline_height(const struct thin_cell *cell, bool log_scale)
{
    const double mean = thin_mean(cell), height = log_scale ? log(mean) : mean;
    return isinf(height) ? copysign(DBL_MAX, height) : height;
}

char *sparkline(const struct thin *thin, int series, int columns, bool log_scale, bool utf8)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const signs[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
    const struct thin_cell total = thin_total(thin, series);
    if (columns > thin->count) columns = thin->count;
    log_scale = log_scale && total.min > 0;
    double low = INFINITY, high = -INFINITY;
    for (int c = 0; c < columns; c++) {
        const struct thin_cell cell = sparkline_column(thin, series, c, columns);
        low = cell.count ? fmin(low, sparkline_height(&cell, log_scale)) : low;
        high = cell.count ? fmax(high, sparkline_height(&cell, log_scale)) : high;
    }
    /* halves: a difference may overflow a double. Heights that differ by rounding alone are the same, as in page.js */
    double range = high / 2 - low / 2;
    if (range <= 0.5e-9 * (log_scale ? 1 : fmax(fabs(low), fabs(high)))) range = 0;
    char *text;
    FILE *out = memory_stream(&text, NULL);
    for (int c = 0; c < columns; c++) {
        const struct thin_cell cell = sparkline_column(thin, series, c, columns);
        const double height = sparkline_height(&cell, log_scale);
        const char *mark = " ";
        if (cell.bad || (cell.count && isnan(height)))
            mark = utf8 ? "×" : "!";
        else if (cell.count) {
            const double share = (height / 2 - low / 2) / range;
            const int level = !(range > 0 && isfinite(share)) ? 3
                              : share < 0                     ? 0
                              : share > 1                     ? 7
                                                              : (int)(share * 7.999);
            mark = utf8 ? blocks[level] : signs[level];
        }
        fputs(mark, out);
    }
    fclose(out);
    return text;
}
