/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_settings.h: `peft` of the run spec: an adapter on a frozen base, in the names of PEFT's LoraConfig. */
#pragma once

#include "core/dtype.h"
#include "core/string_list.h"

#include <stdbool.h>
#include <stdint.h>

/* Names of modules: one regular expression that has to match a module's whole name (as re.fullmatch), or a list, whose
 * items are the whole name or what follows a dot in it. Neither: none. */
struct module_names {
    const char *expression; /* NULL: the list */
    struct string_list list;
};

/* rank_pattern, alpha_pattern: the first item counts whose pattern, a regular expression, matches a module's whole name
 * or what follows a dot in it. */
struct pattern_value {
    const char *pattern;
    double value;
};

/* Strings and arrays lie in the spec's arena. */
struct adapter_settings {
    bool on; /* there is an adapter, and the base is frozen */
    int64_t r;
    double lora_alpha, lora_dropout;
    bool use_rslora;                                     /* the scale is lora_alpha / sqrt(r), else lora_alpha / r */
    bool all_linear;                                     /* target_modules: all-linear */
    struct module_names target_modules, exclude_modules; /* targets empty: the family's, as in PEFT */
    struct string_list modules_to_save;                  /* trained as a whole */
    struct pattern_value *rank_pattern, *alpha_pattern;
    int num_rank_patterns, num_alpha_patterns;
    int64_t *layers_to_transform;      /* blocks that have adapters */
    int num_layers_to_transform;       /* 0: all */
    struct string_list layers_pattern; /* names of the list of blocks, expressions; empty: any */
    bool ensure_weight_tying;          /* a tied embedding in modules_to_save is trained as one matrix with the head */
    enum dtype base_dtype;             /* in which the frozen tensors are kept; DTYPE_COUNT: that of compute */
};
