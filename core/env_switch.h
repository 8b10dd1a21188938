/* SPDX-License-Identifier: Apache-2.0 */
/* env_switch.h: environment variables that are switches, or choices between words. */
#pragma once

#include "core/status.h"

/* *on: the variable is 1; 0, empty and unset are off; else STATUS_USAGE. `meaning`: of 1, for the hint. */
enum status env_switch(const char *name, const char *meaning, bool *on, struct error *err);

/* The index of the variable's value among `count` words; -1: unset or empty. STATUS_USAGE: any other value. */
enum status env_choice(const char *name, const char *const *words, int count, int *index, struct error *err);

/* Leaves a struct without pointers in the variable, for this program if the process executes it again. */
void env_keep(const char *name, const void *data, size_t size);
bool env_kept(const char *name, void *data, size_t size); /* false: nothing of this size is there */
