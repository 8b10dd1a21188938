/* SPDX-License-Identifier: Apache-2.0 */
/* memory_tunables.h: the settings of a run spec that decide how much memory a rank takes, as a table: values, what they
 * cost, their lines of the run spec. `plan --fit` and the advice of memory_limit.c search it.
 *
 * To add one: a constant in enum memory_tunable_name, its values, a row, and the field of the run spec in
 * memory_setting_of() and memory_setting_apply(). */
#pragma once

#include "core/spec/spec.h"

enum memory_tunable_name {
    TUNABLE_STAGE,
    TUNABLE_RECOMPUTE,
    TUNABLE_OPTIMIZER,
    TUNABLE_PARAM,
    TUNABLE_INPUTS,
    TUNABLE_STATES,
    TUNABLE_COUNT
};

enum { TUNABLE_LINES = 3 };
struct memory_tunable_value {
    const char *name;                 /* "block", for tables: at most 9 characters */
    const char *lines[TUNABLE_LINES]; /* "activation_checkpointing.policy=block", as --set takes it; NULL: none; a line
                                      that ends with "=" takes the spec's nvme_path */
    int price;                        /* how late advice turns the tunable that far */
    int moves;    /* the same for each doubling of a step's micro-batches, as something moves in each of them */
    double doubt; /* part of the step's time by which an estimate may be too short */
    bool rounds;  /* results are rounded differently from the first value's */
};

struct memory_tunable {
    const char *title; /* "recompute"; bf16: which states have that type */
    int count;
    const struct memory_tunable_value *values; /* the first one is DeepSpeed's default */
};
extern const struct memory_tunable memory_tunables[TUNABLE_COUNT];

/* A point of the search: samples of a micro-batch, and each tunable's value; -1: not in the table, never changed. */
struct memory_setting {
    int64_t micro;
    int values[TUNABLE_COUNT];
};

/* A setting, and what it costs. */
struct memory_choice {
    struct memory_setting setting;
    size_t device,
        node;    /* bytes: of a rank's device; of the host memory that a node's ranks take; device 0: no choice */
    size_t disk; /* bytes that a node's ranks take of their disk */
    int price;
    bool rounds;
    double seconds, mfu; /* of a step; 0 until it was walked through */
};

/* The setting of a spec whose batch sizes are resolved. */
void memory_setting_of(const struct run_spec *spec, struct memory_setting *setting);

/* Copies the spec with another setting, at the same train_batch_size. *copy borrows what `spec` owns. */
void memory_setting_apply(const struct memory_setting *setting, const struct run_spec *spec, int world,
                          struct run_spec *copy);

/* The next setting that ztrain can run at the spec's train_batch_size; after micro 0 the first. false: no more. */
bool memory_setting_next(const struct run_spec *spec, int world, struct memory_setting *setting);

/* How much a setting costs next to the spec's, for advice. samples: of a step on each rank. */
int memory_setting_price(const struct memory_setting *setting, const struct memory_setting *from, int64_t samples);

/* Part of the step's time by which an estimate may be too short: copies slow each other down, disks are shared. */
double memory_setting_doubt(const struct memory_setting *setting);

bool memory_setting_uses_disk(const struct memory_setting *setting);

/* Whether results are rounded differently from those of `from`. */
bool memory_setting_rounds(const struct memory_setting *setting, const struct memory_setting *from);

/* Adds each line of a value of tunable k, "key=value". copy: the spec with the setting. */
void memory_tunable_lines(int k, int value, const struct run_spec *copy, struct string_list *lines);

/* Those lines that turn the spec's setting `from` into this one, with commas. */
enum { MEMORY_SETTING_TEXT = 512 };
void memory_setting_text(const struct memory_setting *setting, const struct memory_setting *from,
                         const struct run_spec *copy, char text[MEMORY_SETTING_TEXT]);
