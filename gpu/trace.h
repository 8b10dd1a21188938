/* trace.h: named ranges of the calling thread for profilers (Nsight Systems shows NVTX ranges above the kernels that
 * were launched in them). Without such a tool attached a range costs a few nanoseconds; in builds without CUDA nothing.
 */
#ifndef ZTRAIN_GPU_TRACE_H
#define ZTRAIN_GPU_TRACE_H

/* Ranges nest. A range that an error leaves open does no harm. */
void trace_begin(const char *name);
void trace_end(void);

#endif
