/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/command_line.h"

enum status option_unknown(const char *command, const char *word, const struct option_row *rows, size_t count,
                           struct error *err)
{
    enum { MOST = 32 };
    const char *names[MOST + 1] = {"help"};
    ASSERT(count <= MOST);
    for (size_t k = 0; k < count; k++) names[1 + k] = rows[k].name;
    const char *nearest = nearest_name(word, names, 1 + count);
    error_set(err, STATUS_USAGE, "unknown option '%s'", word);
    if (nearest) return error_hint(err, "did you mean --%s?", nearest);
    return error_hint(err, "ztrain %s%s--help lists the options", command, *command ? " " : "");
}

const struct option_row *option_find(const struct option_row *rows, size_t count, const char *word, const char **value)
{
    const size_t length = strcspn(word, "=");
    *value = word[length] ? word + length + 1 : NULL;
    for (size_t k = 0; k < count; k++)
        if (!strncmp(word, "--", 2) && strlen(rows[k].name) == length - 2 &&
            !strncmp(rows[k].name, word + 2, length - 2))
            return &rows[k];
    return NULL;
}

enum status option_take_value(const struct option_row *row, int argc, char **argv, int *i, const char **value,
                              struct error *err)
{
    if (!row->value) return *value ? error_set(err, STATUS_USAGE, "--%s takes no value", row->name) : STATUS_OK;
    if (!*value && *i + 1 < argc) *value = argv[++*i];
    if (!*value || (!**value && row->kind == OPTION_USUAL))
        return error_set(err, STATUS_USAGE, "--%s needs a value: --%s %s", row->name, row->name, row->value);
    return STATUS_OK;
}

enum status option_integer(const char *option, const char *text, const char *what, int64_t least, int64_t most,
                           int64_t *number, struct error *err)
{
    char *end;
    if (!text) return STATUS_OK;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    const bool whole = !*end && end != text && !errno;
    if (whole) *number = parsed;
    if (!whole || parsed < least || parsed > most)
        return error_set(err, STATUS_USAGE, "--%s must be %s from %" PRId64 " to %" PRId64 ", not '%s'", option, what,
                         least, most, PRINTABLE(text));
    return STATUS_OK;
}

enum status option_real(const char *option, const char *text, const char *what, double least, double most,
                        double *number, struct error *err)
{
    char *end;
    if (!text) return STATUS_OK;
    const double parsed = strtod(text, &end);
    if (*end || end == text || !(parsed >= least && parsed <= most))
        return error_set(err, STATUS_USAGE, "--%s must be %s, not '%s'", option, what, PRINTABLE(text));
    *number = parsed;
    return STATUS_OK;
}

enum status command_line_parse(const struct command_line *line, int argc, char **argv, void *into, struct error *err)
{
    const char **words = into;
    int found = 0;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(line->usage, stdout);
            return STATUS_HELPED;
        }
        const struct option_row *row = option_find(line->options, line->count, argv[i], &value);
        if (row) {
            void *field = (char *)into + row->offset;
            TRY(option_take_value(row, argc, argv, &i, &value, err));
            if (value && row->kind == OPTION_LIST)
                string_list_add(field, value);
            else if (value)
                *(const char **)field = value;
            else
                *(bool *)field = true;
        } else if (argv[i][0] == '-') {
            return option_unknown(line->command, argv[i], line->options, line->count, err);
        } else if (!line->word) {
            return error_set(err, STATUS_USAGE, "%s: unexpected argument '%s'; hint: ztrain %s --help", line->command,
                             PRINTABLE(argv[i]), line->command);
        } else if (found == line->words && found > 1) {
            return error_set(err, STATUS_USAGE, "more than %d %ss in one %s", found, line->word, line->command);
        } else if (found == line->words) {
            return error_set(err, STATUS_USAGE, "one %s at a time: '%s' and '%s'; hint: ztrain %s --help", line->word,
                             PRINTABLE(words[0]), PRINTABLE(argv[i]), line->command);
        } else {
            words[found++] = argv[i];
        }
    }
    if (line->word && !found)
        return error_set(err, STATUS_USAGE, "no %s was named; hint: %s", line->word, line->example);
    return STATUS_OK;
}

enum status command_check_out(const char *out, bool force, struct error *err)
{
    char folder[FS_PATH_MAX];
    struct stat facts;
    fs_parent(out, folder);
    if (!fs_is_dir(folder))
        return error_set(err, STATUS_USAGE, "--out %s: there is no folder '%s'", PRINTABLE(out), PRINTABLE(folder));
    const bool special = io_stat(out, &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
    if (force || special || !fs_exists(out)) return STATUS_OK;
    error_set(err, STATUS_USAGE, "'%s' is there already", PRINTABLE(out));
    return error_hint(err, "--force replaces it; --out names another file");
}
