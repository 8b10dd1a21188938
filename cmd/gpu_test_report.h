/* gpu_test_report.h: `ztrain doctor --gpu-test`: the self-test of this machine's first visible GPU, a line for each
 * check. */
#pragma once

#include "core/status.h"

/* STATUS_DEVICE: there is no GPU, or one of its checks failed. A part of it that runs can do without is a line, and no
 * error. */
enum status gpu_test_report(struct error *err);
