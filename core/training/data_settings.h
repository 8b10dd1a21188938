/* SPDX-License-Identifier: Apache-2.0 */
/* data_settings.h: the run spec's section data. */
#pragma once

#include "core/string_list.h"

#include <stdbool.h>
#include <stdint.h>

enum spec_switch { SPEC_AUTO, SPEC_ON, SPEC_OFF };
enum spec_packing { SPEC_PACKING_NONE, SPEC_PACKING_CUT, SPEC_PACKING_FIRST_FIT };

/* The unit of a mixture's amounts. NONE: data.train is not a mixture, and its shards form one stream. */
enum spec_amount { SPEC_AMOUNT_NONE, SPEC_AMOUNT_WEIGHT, SPEC_AMOUNT_EPOCHS };

struct data_settings {
    struct string_list train, validation; /* in the spec's arena; validation.count 0: none */
    enum spec_amount amount;              /* of data.train */
    double *amounts; /* (train.count) in the spec's arena: of each source, above 0; NULL unless a mixture */
    int64_t seq_length;
    bool shuffle;
    enum spec_packing packing;
    enum spec_switch document_mask; /* AUTO until spec_resolve_document_mask() */
};
