/* SPDX-License-Identifier: Apache-2.0 */
/* library_places.h: finds NVIDIA's libraries where a machine may have them, so that one with PyTorch needs no toolkit.
 *
 * Searched in this order, until a file opens:
 *
 *   1. the folders of $ZTRAIN_CUDA_LIBRARIES, separated by colons: each has the libraries itself, or is a Python's
 *      site-packages folder. A file that is there and does not open ends the search: it was asked for. A folder that is
 *      not there causes a warning.
 *   2. the dynamic linker's places (LD_LIBRARY_PATH, ld.so.conf)
 *   3. a toolkit: $CUDA_HOME/lib64, $CUDA_PATH/lib64, /usr/local/cuda/lib64
 *   4. $CONDA_PREFIX/lib, and the site-packages folders below $VIRTUAL_ENV, $CONDA_PREFIX, the prefix of the python3 of
 *      PATH, ~/.local, /usr/local and /usr
 *
 * In a site-packages folder PyTorch's packages have their libraries in nvidia/NAME/lib (CUDA 12: cublas, cudnn, nccl;
 * CUDA 13: cu13, cudnn, nccl). */
#pragma once

#include <stddef.h>

/* Opens a soname (libnccl.so.2) with RTLD_NOW | RTLD_LOCAL. NULL: `why` is the reason of the first file of that name
 * that did not open, else the dynamic linker's, with the packages that have the file. Any thread. */
void *library_places_open(const char *file, char *why, size_t size);
