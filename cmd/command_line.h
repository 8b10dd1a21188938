/* SPDX-License-Identifier: Apache-2.0 */
/* command_line.h: the commands of ztrain, and their words, parsed by a table of options. */
#pragma once

#include "core/core.h"

#include <float.h>

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
enum status command_line_parse(const struct command_line *line, int argc, char **argv, void *into, struct error *err);

/* Whether --out can write there: the folder exists, and no other regular file, unless `force`. Else STATUS_USAGE. */
enum status command_check_out(const char *out, bool force, struct error *err);

/* The option that `word` names as --NAME or --NAME=VALUE (*value, else NULL); NULL: none. */
const struct option_row *option_find(const struct option_row *rows, size_t count, const char *word, const char **value);

/* Takes an option's value from argv[++*i], unless *value has it; of a flag it stays NULL. */
enum status option_take_value(const struct option_row *row, int argc, char **argv, int *i, const char **value,
                              struct error *err);

/* Reads the whole number that is an option's value; text NULL: it was not given, and *number stays. what: "a number".
 * STATUS_USAGE: the text is not a number (*number stays), or the number is below `least` or above `most`. */
enum status option_integer(const char *option, const char *text, const char *what, int64_t least, int64_t most,
                           int64_t *number, struct error *err);

/* The same of any number from `least` to `most`, which `what` says; after an error *number stays. */
enum status option_real(const char *option, const char *text, const char *what, double least, double most,
                        double *number, struct error *err);

/* Sets "unknown option 'WORD'", with the nearest one or "ztrain COMMAND --help" as the hint ("": ztrain's own). */
enum status option_unknown(const char *command, const char *word, const struct option_row *rows, size_t count,
                           struct error *err);

/* ---- the commands -------------------------------------------------------- */

/* ztrain's first words. Each is run by cmd_WORD(), where argv[0] is the name: an exit code, or STATUS_HELPED. */
#define COMMANDS(X) \
    X(init)         \
    X(plan)         \
    X(convert) X(data) X(export) X(verify) X(inspect) X(report) X(sample) X(score) X(why) X(replay) X(doctor) X(version)

#define COMMAND(word) enum status cmd_##word(int argc, char **argv, struct error *err);
COMMANDS(COMMAND)
#undef COMMAND
enum status cmd_train(int argc, char **argv, struct error *err); /* ztrain --config run.yaml … */

/* Trains, or replays, with these options: starts a supervisor or a rank. argv: the process's. status: of the options,
 * with its err, which the ranks of a launcher have to learn of. */
struct options;
enum status train_with(const struct options *options, char **argv, enum status status, struct error *err);

/* A line per library after `indent`: name, version in use, the one built with if another; with `paths` its file. */
void version_print_libraries(const char *indent, bool paths);
