/* SPDX-License-Identifier: Apache-2.0 */
/* emulation_traffic.cc: counts by sectors of 32 bytes, of which masks say what was read and what was written. */
#include "emulation_traffic.h"

#include "emulation.h"

#include <algorithm>
#include <unordered_map>

namespace emulation
{
bool traffic_counts;

namespace
{
enum { SECTOR = 32 };
struct sector {
    uint64_t read, written;           /* bytes, as often as they were */
    uint32_t read_mask, written_mask; /* a bit for each byte */
};
std::unordered_map<uintptr_t, sector> sectors;

double bytes_of(uint32_t mask)
{
    return __builtin_popcount(mask);
}
} // namespace

void traffic_access(bool write, const void *p, size_t bytes)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    while (bytes) {
        const uintptr_t first = at % SECTOR;
        const size_t n = std::min<size_t>(bytes, SECTOR - first);
        const uint32_t mask = static_cast<uint32_t>(((uint64_t{1} << n) - 1) << first);
        sector &s = sectors[at / SECTOR];
        (write ? s.written : s.read) += n;
        (write ? s.written_mask : s.read_mask) |= mask;
        at += n;
        bytes -= n;
    }
}
} // namespace emulation

using namespace emulation;

extern "C" {
void emulation_traffic_begin(void)
{
    guard lock(big_lock);
    sectors.clear();
    traffic_counts = true;
}

void emulation_traffic_end(struct emulation_traffic *traffic)
{
    guard lock(big_lock);
    traffic_counts = false;
    *traffic = {};
    for (const auto &entry : sectors) {
        const sector &s = entry.second;
        const double read = bytes_of(s.read_mask);
        const bool shared = static_cast<double>(s.read) > TRAFFIC_SHARED * read;
        traffic->touched += read + bytes_of(s.written_mask);
        traffic->moved += static_cast<double>(s.written) + (shared ? read : static_cast<double>(s.read));
        traffic->shared += shared ? read : 0;
    }
    sectors.clear();
}
}
