#include "cmd/report/figures.h"

#include "core/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const char *figure_plain(double value, char out[FIGURE_MAX])
{
    const double size = fabs(value);
    if (!isfinite(value))
        snprintf(out, FIGURE_MAX, "-");
    else if (value == 0)
        snprintf(out, FIGURE_MAX, "0");
    else if (size < 0.1 || size >= 1e6)
        snprintf(out, FIGURE_MAX, "%.3g", value);
    else
        snprintf(out, FIGURE_MAX, "%.*f", size >= 1000 ? 1 : size >= 100 ? 2 : size >= 10 ? 3 : 4, value);
    return out;
}

static const char *with_prefix(double value, const char *unit, char out[FIGURE_MAX])
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    size_t p = 0;
    if (!isfinite(value)) {
        snprintf(out, FIGURE_MAX, "-");
        return out;
    }
    while (fabs(value) >= 999.5 && p + 1 < COUNT_OF(prefixes)) {
        value /= 1000;
        p++;
    }
    const int digits = p == 0 && value == floor(value) ? 0 : fabs(value) >= 99.95 ? 1 : 2;
    snprintf(out, FIGURE_MAX, "%.*f%s%s%s", digits, value, *prefixes[p] || *unit ? " " : "", prefixes[p], unit);
    return out;
}

const char *figure_si(double value, char out[FIGURE_MAX])
{
    return with_prefix(value, "", out);
}

const char *figure_bytes(double value, char out[FIGURE_MAX])
{
    return with_prefix(value, "B", out);
}

const char *figure_percent(double share, char out[FIGURE_MAX])
{
    if (isfinite(share))
        snprintf(out, FIGURE_MAX, "%.1f %%", 100 * share);
    else
        snprintf(out, FIGURE_MAX, "-");
    return out;
}

const char *figure_count(int64_t value, char out[FIGURE_MAX])
{
    char digits[FIGURE_MAX];
    const int n = snprintf(digits, sizeof digits, "%" PRId64, value), sign = digits[0] == '-';
    int used = 0;
    for (int i = 0; i < n && used < FIGURE_MAX - 2; i++) {
        if (i > sign && (n - i) % 3 == 0)
            out[used++] = ',';
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
