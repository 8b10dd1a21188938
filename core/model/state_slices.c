#include "core/model/state_slices.h"

const char *const state_kind_names[] = {
    [STATE_MASTER] = "master", [STATE_EXP_AVG] = "exp_avg", [STATE_EXP_AVG_SQ] = "exp_avg_sq"};
