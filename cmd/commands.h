/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: the commands of ztrain. argv[0] is the command's name. Each returns the process's exit code as a status,
 * and its error in *err for main() to print. */
#pragma once

#include "core/status.h"

#include <stdbool.h>

/* The words that ztrain takes as its first; each is run by cmd_WORD(). */
#define COMMANDS(X) \
    X(init)         \
    X(plan) X(convert) X(data) X(export) X(verify) X(inspect) X(report) X(sample) X(why) X(replay) X(doctor) X(version)

enum status cmd_train(int argc, char **argv, struct error *err);   /* ztrain --config run.yaml … */
enum status cmd_init(int argc, char **argv, struct error *err);    /* ztrain init --model DIR --data PREFIX … */
enum status cmd_plan(int argc, char **argv, struct error *err);    /* ztrain plan --config run.yaml … */
enum status cmd_convert(int argc, char **argv, struct error *err); /* ztrain convert FILE… */
enum status cmd_data(int argc, char **argv, struct error *err);    /* ztrain data PREFIX… */
enum status cmd_export(int argc, char **argv, struct error *err);  /* ztrain export DIR --out HFDIR --dtype fp32|bf16 */
enum status cmd_verify(int argc, char **argv, struct error *err);  /* ztrain verify DIR */
enum status cmd_inspect(int argc, char **argv, struct error *err); /* ztrain inspect DIR [--tensors] */
enum status cmd_report(int argc, char **argv, struct error *err);  /* ztrain report RUN… */
enum status cmd_sample(int argc, char **argv, struct error *err);  /* ztrain sample DIR --prompt TEXT */
enum status cmd_why(int argc, char **argv, struct error *err);     /* ztrain why RUN */
enum status cmd_replay(int argc, char **argv, struct error *err);  /* ztrain replay RUN --step S */
enum status cmd_doctor(int argc, char **argv, struct error *err);  /* ztrain doctor */
enum status cmd_version(int argc, char **argv, struct error *err); /* ztrain version */

/* Trains, or replays, with these options: starts a supervisor or a rank. argv: the process's. status: of the options,
 * with its err, which the ranks of a launcher have to learn of. */
struct options;
enum status train_with(const struct options *options, char **argv, enum status status, struct error *err);

/* For version and doctor: a line per library, after `indent`: name, version in use, version it was built with if that
 * differs, and with `paths` the file it was loaded from. */
void version_print_libraries(const char *indent, bool paths);
