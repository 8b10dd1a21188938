/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the command line of training and planning. One table drives parsing and --help. */
#pragma once

#include "cmd/engine/simulated_run.h"
#include "cmd/run/run_state.h"

enum { OPTIONS_MAX_SET = 256 };

struct options {
    bool plan;                        /* of `ztrain plan`, not of training */
    const char *config;               /* --config FILE */
    const char *text;                 /* ztrain score's run spec if it has no config; NULL otherwise */
    const char *deepspeed;            /* --deepspeed FILE, or NULL */
    const char *set[OPTIONS_MAX_SET]; /* --set KEY=VALUE */
    int num_set;
    int local_gpus;                  /* --local-gpus N; 0: not given */
    int min_gpus;                    /* --min-gpus M; 0: not given */
    int world;                       /* plan --world N; 0: not given */
    bool speed, fit;                 /* plan --speed, --fit */
    struct machine_question machine; /* plan --device, --link, --assume, --memory, --node-memory */
    int row;                         /* plan --fit --row N; 0: not given */
    const char *price;               /* plan --speed --price X, or NULL */
    bool bytes;                      /* plan --bytes */
    bool dry_run, help, help_spec, json, version;
    bool verbose;             /* details that otherwise go to the log file only */
    struct rank_options rank; /* what ranks take; all zero in planning */
};

/* Parses argv[1 …]; argv[0] is "plan" for that command; the strings are borrowed. STATUS_USAGE names the option. */
enum status options_parse(int argc, char **argv, struct options *options, struct error *err);

/* The texts of `ztrain --help` and `ztrain plan --help`. */
void options_help(FILE *out);
void options_help_plan(FILE *out);

/* Prints every error line to stderr and notices to stdout, unless `quiet`. err: "3 errors in the run spec 'x.yaml'". */
enum status options_load_spec(const struct options *options, bool quiet, struct run_spec **spec, struct error *err);
