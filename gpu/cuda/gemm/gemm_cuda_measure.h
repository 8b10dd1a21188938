/* gemm_cuda_measure.h: the algorithms of announced products, chosen by measuring. */
#pragma once

#include "gpu/ops.h"

/* ops_prepare() for the linear ops: takes the algorithms of these products from the cache on disk, or measures them and
 * adds them to the cache, which is locked. Without a cache, nothing is measured. */
enum status gemm_cuda_prepare(struct device *device, const struct linear_products *products, struct error *err);
