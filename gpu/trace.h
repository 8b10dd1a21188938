/* trace.h: named ranges of the calling thread for profilers: NVTX ranges, which Nsight Systems shows above the kernels
 * that were launched in them. A range costs a few nanoseconds while no profiler is attached, and nothing in builds
 * without CUDA. */
#ifndef ZTRAIN_GPU_TRACE_H
#define ZTRAIN_GPU_TRACE_H

/* Ranges nest. A range that is still open after an error does no harm. */
void trace_begin(const char *name);
void trace_end(void);

#endif
