/* plan_speed.h: `ztrain plan --speed`: how fast a run would be on GPUs that need not be here, as an estimate. */
#pragma once

#include "cmd/engine/simulated_run.h"

/* Prints the plan of a spec whose batch sizes are resolved. STATUS_USAGE: see simulated_machine_find(). */
enum status plan_speed(const struct machine_question *question, struct run_spec *spec, struct error *err);
