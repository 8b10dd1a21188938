/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cuda.h: the launchers in the CUDA op table, each `cuda_<op>(stream, args)`, and the workspace that they need. A
 * launcher enqueues its work and returns: it allocates nothing, waits for nothing, and reports a failed launch through
 * cuda_check(). Scratch memory is the stream's workspace. Results repeat bit for bit: no float atomics, and orders of
 * summation that depend only on shapes. */
#pragma once

#include "gpu/cuda/device_cuda.h"
#include "gpu/ops.h"

__BEGIN_DECLS

#define OPS_CUDA_LAUNCHER(op) void cuda_##op(struct stream *stream, const struct op##_args *args);
OPS_LIST(OPS_CUDA_LAUNCHER)
#undef OPS_CUDA_LAUNCHER

extern const struct op_table ops_cuda_table;

/* Loads the kernels' modules, before anything is launched: later, a module that the driver has to compile would look
 * like a hang. */
enum status ops_cuda_load(struct cuda_device *cuda, struct error *err);

__END_DECLS
