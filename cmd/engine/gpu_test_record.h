/* gpu_test_record.h: which machines have passed the self-test of their GPU (gpu_test.h).
 *
 * There is one text file for each model of GPU, gpu-test-NAME.txt, next to the choices of matrix products
 * (gpu/autotune_cache.h). A line for each test:
 *
 *     HASH AVOID CHECKSUM    16 hexadecimal digits of XXH64 over what was tested; what to avoid (enum device_part), a
 *                            number; 16 of XXH64 over the line before it
 *
 * Lines are appended, each with one write, and the last one of a hash counts. A line that does not parse is skipped:
 * the GPU is tested again. A line after one that was cut off begins with a newline of its own. What was tested includes
 * the program's build ID; without one there are no records, and the GPU is tested at every start. */
#pragma once

#include "gpu/device.h"

/* Whether this GPU, with its driver, the libraries and this build of ztrain, was tested; *avoid: with this outcome. */
bool gpu_test_record_find(const struct device *device, unsigned *avoid);

/* Remembers a test. A file that cannot be written is a line of the log: the test will be repeated. */
void gpu_test_record_add(const struct device *device, unsigned avoid);
