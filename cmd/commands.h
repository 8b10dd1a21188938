/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: the commands of ztrain. argv[0] is the command's name. Each returns the process's exit code as a status,
 * or STATUS_HELPED, and its error in *err for main() to print. */
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

/* For version and doctor: a line per library, after `indent`: name, version in use, version it was built with if that
 * differs, and with `paths` the file it was loaded from. */
void version_print_libraries(const char *indent, bool paths);
