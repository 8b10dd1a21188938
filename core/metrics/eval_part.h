/* SPDX-License-Identifier: Apache-2.0 */
/* eval_part.h: what is done of an evaluation that a stop broke off, in the checkpoint. A resume does the rest. */
#pragma once

#include "core/status.h"

#include <jansson.h>

struct eval_part {
    int64_t samples; /* that are counted, by all ranks together: the first ones in the order of the validation data */
    uint64_t data;   /* a fingerprint of the evaluation's samples, as far as they are sampled (token_set_check()), and
                        of how they are cut: only a part of the same data continues */
    int world;       /* (virtual) ranks */
    double *losses;  /* [world] owned: each one's sum, so that the same ranks come to the same bits in the end */
    int num_counts;
    double *counts; /* [num_counts] owned: whole numbers, over all ranks: targets, then the counts of eval_metric.h */
};

/* Returns a new object. NULL: a number is not finite. */
json_t *eval_part_to_json(const struct eval_part *part);

/* path: for messages. The caller always releases *part. STATUS_CHECKPOINT: no such object, or wrong numbers. */
enum status eval_part_from_json(const json_t *object, const char *path, struct eval_part *part, struct error *err);

void eval_part_release(struct eval_part *part); /* all zero: nothing */
