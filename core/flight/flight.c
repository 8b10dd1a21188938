/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c: the words of an entry:
 *
 *     0  its number, 0 while it is being written        4  bytes
 *     1  start                                          5  step
 *     2  end, 0 until it is over                        6  unit + 1 (32 bits), micro-batch (16), kind (16)
 *     3  number of the collective                       7  check: a hash of the words 0, 1, 3 to 6
 *
 * Only the end is written later, by one store, if the slot still has the same entry. */
#include "core/flight/flight.h"

#include "core/round_up.h"

_Atomic(struct flight_ring *) flight_ring_in_use;

const char *flight_kind_name(enum flight_kind kind)
{
    static const char *const names[] = {FLIGHT_KINDS(LISTED_WORD)};
    return kind >= 0 && kind < FLIGHT_KIND_COUNT ? names[kind] : "?";
}

int64_t flight_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void flight_use(struct flight_ring *ring)
{
    atomic_store_explicit(&flight_ring_in_use, ring, memory_order_release);
}

static inline uint64_t flight_load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void flight_store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

uint64_t flight_check(const uint64_t words[FLIGHT_ENTRY_WORDS])
{
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < FLIGHT_ENTRY_WORDS - 1; i++)
        if (i != 2) hash = (hash ^ words[i]) * UINT64_C(0xff51afd7ed558ccd) + (hash >> 29);
    return hash;
}

/* end 0: it is open. Returns the entry's number. */
static uint64_t record(struct flight_ring *ring, enum flight_kind kind, int unit, int64_t bytes, int64_t number,
                       int64_t start, int64_t end)
{
    const uint64_t entry = atomic_fetch_add_explicit(&ring->next, 1, memory_order_relaxed) + 1;
    _Atomic uint64_t *slot = ring->entries[(entry - 1) % FLIGHT_ENTRIES];
    uint64_t words[FLIGHT_ENTRY_WORDS] = {entry,           (uint64_t)start,         (uint64_t)end, (uint64_t)number,
                                          (uint64_t)bytes, flight_load(&ring->step)};
    words[6] = (uint64_t)(uint32_t)(unit + 1) << 32 | (flight_load(&ring->micro) & 0xffff) << 16 | (uint64_t)kind;
    words[7] = flight_check(words);
    flight_store(&slot[0], 0);
    for (int i = 1; i < FLIGHT_ENTRY_WORDS; i++) flight_store(&slot[i], words[i]);
    atomic_store_explicit(&slot[0], entry, memory_order_release);
    return entry;
}

uint64_t flight_begin(enum flight_kind kind, int unit, int64_t bytes, int64_t number)
{
    struct flight_ring *ring = atomic_load_explicit(&flight_ring_in_use, memory_order_acquire);
    return ring ? record(ring, kind, unit, bytes, number, flight_clock(), 0) : 0;
}

void flight_end(uint64_t entry)
{
    struct flight_ring *ring = atomic_load_explicit(&flight_ring_in_use, memory_order_acquire);
    if (!ring || !entry) return;
    _Atomic uint64_t *slot = ring->entries[(entry - 1) % FLIGHT_ENTRIES];
    if (flight_load(&slot[0]) == entry) flight_store(&slot[2], (uint64_t)flight_clock());
}

static void change_phase(struct flight_ring *ring, enum flight_kind phase, int64_t now)
{
    const uint64_t before = flight_load(&ring->phase);
    if (before != FLIGHT_NONE)
        record(ring, (enum flight_kind)before, -1, 0, -1, (int64_t)flight_load(&ring->phase_since), now);
    flight_store(&ring->phase_since, (uint64_t)now);
    flight_store(&ring->phase, (uint64_t)phase);
}

void flight_phase(enum flight_kind phase)
{
    struct flight_ring *ring = atomic_load_explicit(&flight_ring_in_use, memory_order_acquire);
    if (ring) change_phase(ring, phase, flight_clock());
}

void flight_step(int64_t step)
{
    struct flight_ring *ring = atomic_load_explicit(&flight_ring_in_use, memory_order_acquire);
    if (!ring) return;
    const int64_t now = flight_clock();
    if (flight_load(&ring->phase) == FLIGHT_STEP) {
        const uint64_t steps = flight_load(&ring->steps);
        flight_store(&ring->step_times[steps % FLIGHT_STEP_TIMES], (uint64_t)now - flight_load(&ring->phase_since));
        atomic_store_explicit(&ring->steps, steps + 1, memory_order_release);
    }
    change_phase(ring, FLIGHT_STEP, now);
    flight_store(&ring->step, (uint64_t)step);
    flight_store(&ring->micro, 0);
}

void flight_micro(int64_t micro)
{
    struct flight_ring *ring = atomic_load_explicit(&flight_ring_in_use, memory_order_acquire);
    if (ring) flight_store(&ring->micro, (uint64_t)micro);
}

void flight_copy(const struct flight_ring *ring, struct flight_image *image)
{
    image->next = atomic_load_explicit(&ring->next, memory_order_acquire);
    image->phase = flight_load(&ring->phase);
    image->phase_since = flight_load(&ring->phase_since);
    image->step = flight_load(&ring->step);
    image->micro = flight_load(&ring->micro);
    image->steps = flight_load(&ring->steps);
    for (int i = 0; i < FLIGHT_STEP_TIMES; i++) image->step_times[i] = flight_load(&ring->step_times[i]);
    for (int e = 0; e < FLIGHT_ENTRIES; e++)
        for (int i = 0; i < FLIGHT_ENTRY_WORDS; i++) image->entries[e][i] = flight_load(&ring->entries[e][i]);
}

bool flight_decode(const uint64_t words[FLIGHT_ENTRY_WORDS], struct flight_entry *entry)
{
    if (words[0] == 0 || words[7] != flight_check(words)) return false;
    const int64_t unit = (int64_t)(words[6] >> 32) - 1;
    *entry = (struct flight_entry){.entry = words[0],
                                   .start = (int64_t)words[1],
                                   .end = (int64_t)words[2],
                                   .number = (int64_t)words[3],
                                   .bytes = (int64_t)words[4],
                                   .step = (int64_t)words[5],
                                   .kind = (int)(words[6] & 0xffff),
                                   .micro = (int)(words[6] >> 16 & 0xffff),
                                   .unit = unit < INT32_MAX ? (int)unit : -2};
    const int64_t most = INT64_C(1) << 62; /* sums and differences of what is read here do not overflow */
    return entry->start >= 0 && entry->start < most && (entry->end == 0 || entry->end >= entry->start) &&
           entry->end < most && entry->number >= -1 && entry->number < most && entry->bytes >= 0 && entry->step >= 0 &&
           entry->step < most && entry->unit >= -1;
}

int64_t flight_median_step(const struct flight_image *image)
{
    int64_t times[FLIGHT_STEP_TIMES];
    const int count = image->steps < FLIGHT_STEP_TIMES ? (int)image->steps : FLIGHT_STEP_TIMES;
    if (count < 3) return 0;
    for (int i = 0; i < count; i++) times[i] = (int64_t)image->step_times[i];
    qsort(times, (size_t)count, sizeof times[0], compare_int64);
    return times[count / 2];
}
