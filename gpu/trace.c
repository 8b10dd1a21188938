#include "gpu/trace.h"

#if ZTRAIN_CUDA && __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>

void trace_begin(const char *name)
{
    nvtxRangePushA(name);
}

void trace_end(void)
{
    nvtxRangePop();
}

#else

void trace_begin(const char *name)
{
    (void)name;
}

void trace_end(void)
{
}

#endif
