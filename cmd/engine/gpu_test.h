/* gpu_test.h: the self-test of a GPU: its ops on small shapes against the CPU device's, and a captured step of a small
 * model against the same step op by op. `ztrain doctor --gpu-test` prints it; a run begins with it on every new
 * combination of GPU, driver, libraries and build of ztrain.
 *
 * The collectives of several GPUs are checked at every start (transport_check.h), and cuDNN's attention for every
 * shape of a run (gpu/cuda/autotune.h).
 *
 * Which machines have passed is remembered in a text file for each model of GPU, gpu-test-NAME.txt, next to the choices
 * of matrix products (gpu/autotune_cache.h). A line for each test:
 *
 *     HASH AVOID CHECKSUM    16 hexadecimal digits of XXH64 over what was tested; what to avoid (enum device_part), a
 *                            number; 16 of XXH64 over the line before it
 *
 * Lines are appended, each with one write, and the last one of a hash counts. A line that does not parse is skipped:
 * the GPU is tested again. A line after one that was cut off begins with a newline of its own. What was tested includes
 * the program's build ID; without one there are no records, and the GPU is tested at every start. */
#pragma once

#include "cmd/engine/engine.h"

/* Called for each check, in order: "op norm_fwd", and what is wrong, or "". */
typedef void (*gpu_test_line)(void *context, const char *check, const char *differs);

/* Runs all checks on an open GPU. *avoid: the parts of the device (enum device_part) that compute something else, but
 * have an alternative, which was right; they are switched off. STATUS_DEVICE: a check without an alternative failed;
 * the message names it. report may be NULL. */
enum status gpu_test_run(struct device *device, gpu_test_line report, void *context, unsigned *avoid,
                         struct error *err);

/* Before the products of a run are announced: tests its GPU unless that was done before, and switches off, with a
 * warning, what computed something else on the GPU of any rank. Collective; all ranks fail if one does. ZTRAIN_GPU_TEST
 * is never or always: no test, or one at every start. */
enum status gpu_test_before_run(struct engine *engine, struct error *err);
