/* SPDX-License-Identifier: Apache-2.0 */
/* dynamic_map.c: the dynamic 8-bit type's values, and bitsandbytes' way to its codes. Decade d = 0 … 6 divides [0.1, 1]
 * × 10^(d-6) into 2^d parts (unsigned: 2^(d+1)). Their middles, in a signed map with their negatives, 0 and 1 are the
 * map. Bounds are rounded once, as fused multiply and add; in double their sums are exact. */
#include "core/quantization/dynamic_map.h"

enum { DECADES = 7 };

/* Bound `i` of the parts of [0.1, 1]: the lower half of them is counted from 0.1, the other one from 1. */
static float dynamic_map_bound(int i, int parts)
{
    const float low = 0.1f, step = (1.0f - low) / (float)parts;
    return i < (parts + 1) / 2 ? (float)((double)low + (double)step * i) : (float)(1.0 - (double)step * (parts - i));
}

/* Fills the middles of all parts, in rising order; returns their number. */
static int dynamic_map_middles(int parts_of_first, float *middles)
{
    static const float scale[DECADES] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
    int n = 0;
    for (int d = 0; d < DECADES; d++) {
        const int parts = parts_of_first << d;
        for (int i = 0; i < parts; i++) {
            const float sum = dynamic_map_bound(i, parts) + dynamic_map_bound(i + 1, parts);
            middles[n++] = scale[d] * (sum / 2);
        }
    }
    return n;
}

void dynamic_map_signed(float map[DYNAMIC_MAP_SIZE])
{
    float *zero = map + DYNAMIC_MAP_SIZE / 2 - 1;
    const int n = dynamic_map_middles(1, zero + 1);
    ASSERT(n == DYNAMIC_MAP_SIZE / 2 - 1);
    *zero = 0;
    for (int i = 1; i <= n; i++) zero[-i] = -zero[i];
    zero[n + 1] = 1;
}

void dynamic_map_unsigned(float map[DYNAMIC_MAP_SIZE])
{
    const int n = dynamic_map_middles(2, map + 1);
    ASSERT(n == DYNAMIC_MAP_SIZE - 2);
    map[0] = 0;
    map[n + 1] = 1;
}

static void dynamic_map_thresholds(const float map[DYNAMIC_MAP_SIZE], float thresholds[DYNAMIC_MAP_SIZE + 1])
{
    thresholds[0] = -INFINITY;
    for (int code = 1; code < DYNAMIC_MAP_SIZE; code++) {
        float x = map[code - 1] + (map[code] - map[code - 1]) * 0.5f; /* right to a few roundings */
        while (dynamic_map_code(map, x) >= code) x = nextafterf(x, -INFINITY);
        while (dynamic_map_code(map, x) < code) x = nextafterf(x, INFINITY);
        thresholds[code] = x;
    }
    thresholds[DYNAMIC_MAP_SIZE] = INFINITY;
}

void dynamic_lookup_init(struct dynamic_lookup *lookup, const float map[DYNAMIC_MAP_SIZE])
{
    const uint32_t base = (127 - DYNAMIC_LOOKUP_OCTAVES) << 7;
    dynamic_map_thresholds(map, lookup->thresholds);
    int code = 0;
    for (int key = DYNAMIC_LOOKUP_KEYS - 1; key >= 0; key--) {
        const float least = -float_of_bits(((base + (uint32_t)key + 1) << 16) - 1);
        while (lookup->thresholds[code + 1] <= least) code++;
        lookup->starts[1][key] = (uint8_t)code;
    }
    for (int key = 0; key < DYNAMIC_LOOKUP_KEYS; key++) {
        const float least = key ? float_of_bits((base + (uint32_t)key) << 16) : 0;
        while (lookup->thresholds[code + 1] <= least) code++;
        lookup->starts[0][key] = (uint8_t)code;
    }
}

uint8_t dynamic_map_code_of_grid(const float map[DYNAMIC_MAP_SIZE], float x)
{
    const float clamped = x < -1 ? -1 : x > 1 ? 1 : x, place = (1 + clamped) * 0.5f;
    const int point = (int)(float)((double)place * 65535 + 0.5);
    const float value = (float)(point / 65535.0 * 2 - 1);
    int code = 0;
    for (int bit = DYNAMIC_MAP_SIZE / 2; bit > 0; bit /= 2) code += value >= map[code + bit] ? bit : 0;
    const int up = code < DYNAMIC_MAP_SIZE - 1 ? code + 1 : code;
    return (uint8_t)(map[up] - value < value - map[code] ? up : code);
}
