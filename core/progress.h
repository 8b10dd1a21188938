/* progress.h: a counter that says "this rank is alive and getting somewhere".
 *
 * Ops, collectives and I/O tick it once per piece of work; comm/ lets it live in shared memory, where peers that wait
 * for this rank watch it: silence (no tick) of comm.timeout_seconds names a rank as hanging, however long a step takes.
 * One relaxed atomic add; any thread. */
#ifndef ZTRAIN_CORE_PROGRESS_H
#define ZTRAIN_CORE_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic(_Atomic uint64_t *) progress_counter; /* points at a private counter until comm/ moves it */

static inline void progress_tick(void)
{
    _Atomic uint64_t *counter = atomic_load_explicit(&progress_counter, memory_order_acquire);
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Around what may take long and cannot tick, as a library that is loaded or compiles: the rank ticks meanwhile, for at
 * most ten minutes; then its silence counts. begin gives what end takes; NULL: no thread was to be had, and what is
 * done has to be quick. errno stays. */
struct slow_call;
struct slow_call *progress_slow_begin(void);
void progress_slow_end(struct slow_call *call); /* may be NULL */

/* fsync(), which is slow on a busy or distant disk. Sets errno like fsync(). */
int progress_fsync(int fd);

#endif
