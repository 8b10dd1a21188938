/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_test.h: the self-test of a GPU: its ops on small shapes against the CPU's, and a captured step of a small model
 * against the same step op by op. `ztrain doctor --gpu-test` prints it; a run begins with it on every new combination
 * of GPU, driver, libraries and build of ztrain. (Collectives: comm/transport_check.c. cuDNN: gpu/cuda/autotune.h.)
 *
 * gpu-test-NAME.txt of a model of GPU, in the folder of gpu/autotune_cache.h, has a line for each test:
 *
 *     HASH AVOID CHECKSUM    16 hexadecimal digits of XXH64 over what was tested; what to avoid (enum device_part), a
 *                            number; 16 of XXH64 over the line before it
 *
 * Lines are appended, each with one write; the last one of a hash counts; one that does not parse is skipped. A line
 * after one that was cut off begins with a newline of its own. */
#pragma once

#include "cmd/engine/engine.h"

/* Called for each check, in order: "op norm_fwd", and what is wrong, or "". */
typedef void (*gpu_test_line)(const char *check, const char *differs);

/* Runs all checks on an open GPU. *avoid: the parts of the device (enum device_part) that were wrong, but have an
 * alternative that was right; they are switched off. STATUS_DEVICE names a check without one. report may be NULL. */
enum status gpu_test_run(struct device *device, gpu_test_line report, unsigned *avoid, struct error *err);

/* Before the products of a run are announced: tests its GPU unless that was done before (ZTRAIN_GPU_TEST: never or
 * always), and switches off, with a warning, what was wrong on the GPU of any rank. Collective. */
enum status gpu_test_before_run(struct engine *engine, struct error *err);
