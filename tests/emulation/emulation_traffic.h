/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_traffic.h: the bytes that kernels ask device memory for, counted while a program wants them.
 *
 * Every access of a kernel counts with its bytes, and a copy or a fill with its range, so that reading a row twice is
 * seen although a cache may serve the second time. Only bytes that are read more than TRAFFIC_SHARED times over belong
 * to what all rows share (weights, tables, a row's index): caches serve them, and they count once. */
#pragma once

#ifdef __cplusplus
#include <stddef.h>

namespace emulation
{
enum { TRAFFIC_SHARED = 8 };
extern bool traffic_counts;
void traffic_access(bool write, const void *p, size_t bytes);
} // namespace emulation

extern "C" {
#endif

struct emulation_traffic {
    double moved;   /* bytes read and written */
    double touched; /* the same, each byte read at most once and written at most once: what cannot be spared */
    double shared;  /* of `touched`: read more than TRAFFIC_SHARED times over */
};

/* Counts from here on. The device must be idle at both calls. */
void emulation_traffic_begin(void);
void emulation_traffic_end(struct emulation_traffic *traffic);

#ifdef __cplusplus
}
#endif
