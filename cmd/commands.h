/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: the commands of ztrain; argv[0] is the name. Each returns the exit code as a status, or STATUS_HELPED. */
#pragma once

#include "core/status.h"

/* The words that ztrain takes as its first; each is run by cmd_WORD(). */
#define COMMANDS(X) \
    X(init)         \
    X(plan) X(convert) X(data) X(export) X(verify) X(inspect) X(report) X(sample) X(why) X(replay) X(doctor) X(version)

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
