/* SPDX-License-Identifier: Apache-2.0 */
/* spec_pairs.h: a run.yaml as a flat list, "train.epochs" = "2", to show and to compare. It is taken as it stands: it
 * may be of another version of ztrain. */
#pragma once

#include "core/status.h"

struct spec_pair {
    char *key, *value; /* value: a list on one line, [1, 2] */
};

struct spec_pairs {
    struct spec_pair *items;
    int count;
};

/* STATUS_CHECKPOINT: the file is absent, cannot be read or is not a YAML mapping; then `pairs` is empty. */
enum status spec_pairs_read(struct spec_pairs *pairs, const char *path, struct error *err);
void spec_pairs_release(struct spec_pairs *pairs);

/* The value of a key; NULL: it is not set. */
const char *spec_pairs_find(const struct spec_pairs *pairs, const char *key);
