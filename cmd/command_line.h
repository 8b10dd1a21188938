/* SPDX-License-Identifier: Apache-2.0 */
/* command_line.h: the words of a command, parsed by a table of its options. */
#pragma once

#include "core/core.h"

/* A usual option is a flag if it has no value, else a text that is not empty. */
enum option_kind { OPTION_USUAL, OPTION_MAYBE_EMPTY, OPTION_COUNT, OPTION_LIST };

struct option_row {
    const char *name, *value; /* without dashes; of its value in help and errors: "FILE", NULL: it takes none */
    size_t offset;            /* of its field in the command's struct: bool, const char *; a list: struct
                               * string_list (options.c: an array); a count: int */
    enum option_kind kind;
    int scope;        /* options.c: the commands that have it */
    const char *help; /* options.c */
};

/* A usual one. value_: NULL for a flag. */
#define OPTION(type, field, name_, value_)                              \
    {                                                                   \
        .name = name_, .value = value_, .offset = offsetof(type, field) \
    }

struct command_line {
    const char *command, *usage; /* "verify"; the text of --help */
    const char *word;            /* what a word names: "folder"; NULL: it takes none */
    int words;                   /* at most */
    const char *example;         /* "ztrain verify DIR" */
    const struct option_row *options;
    size_t count;
};

/* Parses argv[1 …] into the command's struct, which begins with a `const char *` for each word; strings are borrowed;
 * the caller releases lists, after an error too. STATUS_HELPED: --help is printed; STATUS_USAGE names the word. */
enum status command_line_parse(const struct command_line *line, int argc, char **argv, void *arguments,
                               struct error *err);

/* Whether --out can write there: the folder exists, and no other regular file, unless `force`. Else STATUS_USAGE. */
enum status command_check_out(const char *out, bool force, struct error *err);

/* The option that `word` names as --NAME or --NAME=VALUE (*value, else NULL); NULL: none. */
const struct option_row *option_find(const struct option_row *rows, size_t count, const char *word, const char **value);

/* Takes an option's value from argv[++*i], unless *value has it; of a flag it stays NULL. */
enum status option_take_value(const struct option_row *row, int argc, char **argv, int *i, const char **value,
                              struct error *err);

/* Reads the whole number that is an option's value; text NULL: it was not given, and *number stays. what: "a number".
 * STATUS_USAGE: the text is not a number, or the number is below `least` or above `most`. */
enum status option_integer(const char *option, const char *text, const char *what, int64_t least, int64_t most,
                           int64_t *number, struct error *err);

/* Sets "unknown option 'WORD'", with the nearest one or "ztrain COMMAND --help" as the hint ("": ztrain's own). */
enum status option_unknown(const char *command, const char *word, const struct option_row *rows, size_t count,
                           struct error *err);
