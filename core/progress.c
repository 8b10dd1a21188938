#include "core/progress.h"

static _Atomic uint64_t private_counter;
_Atomic(_Atomic uint64_t *) progress_counter = &private_counter;
