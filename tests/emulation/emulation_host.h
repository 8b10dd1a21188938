/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_host.h: cuda_emulation.h for the run time itself, which is host code. It leaves out the variables of a kernel,
 * because the headers of CUDA's libraries have members of those names. */
#pragma once

#include "cuda_emulation.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef warpSize
