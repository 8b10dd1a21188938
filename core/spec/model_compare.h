/* model_compare.h: whether a run that is resumed trains the model that it began with. */
#pragma once

#include "core/model/model_config.h"
#include "core/string_list.h"

/* Adds a line to `differences` for each key of config.json that makes `now` compute something else than `was`, which
 * the run began with. The line has both values. */
void model_desc_compare(const struct model_desc *was, const struct model_desc *now, struct string_list *differences);
