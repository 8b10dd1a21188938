/* SPDX-License-Identifier: Apache-2.0 */
/* spec_pairs.h: a run.yaml as a flat object, {"train.epochs": "2"}, to show and to compare. It is taken as it stands:
 * it may be of another version of ztrain. */
#pragma once

#include "core/status.h"

#include <jansson.h>

/* A new reference. STATUS_CHECKPOINT: the file cannot be read or is no YAML mapping; *pairs is NULL. */
enum status spec_pairs_read(json_t **pairs, const char *path, struct error *err);

/* The value of a key; NULL: it is not set. */
static inline const char *spec_pairs_find(const json_t *pairs, const char *key)
{
    return json_string_value(json_object_get(pairs, key));
}
