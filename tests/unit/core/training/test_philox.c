/* SPDX-License-Identifier: Apache-2.0 */
/* test_philox.c: the published known answers; the normal stream's bits and moments, the same for any division. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/training/philox.h"

/* Known answers of the authors' Random123 library for philox4x32, 10 rounds. */
static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } answers[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        uint32_t out[4];
        philox4x32(answers[i].key, answers[i].counter, out);
        assert_memory_equal(out, answers[i].out, sizeof out);
    }
}

static void test_u64(void **state)
{
    (void)state;
    assert_true(philox_u64(0, 0, 0) == 0xe169c58d6627e8d5u);
    /* both halves of seed, stream and index matter */
    const uint64_t high = (uint64_t)1 << 40;
    uint64_t seen[] = {philox_u64(1, 2, 3),       philox_u64(2, 2, 3),        philox_u64(1, 3, 3),
                       philox_u64(1, 2, 4),       philox_u64(1 | high, 2, 3), philox_u64(1, 2 | high, 3),
                       philox_u64(1, 2, 3 | high)};
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++)
        for (size_t j = 0; j < i; j++) assert_true(seen[i] != seen[j]);
}

/* Box-Muller in double, computed from the random words. */
static void test_normal_values(void **state)
{
    (void)state;
    enum { BLOCKS = 20000 };
    float *values = malloc(4 * BLOCKS * sizeof *values);
    philox_normal(7, 3, 0, 4 * BLOCKS, values);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint32_t key[2] = {7, 0}, counter[4] = {b, 0, 3, 0}, w[4];
        philox4x32(key, counter, w);
        for (int p = 0; p < 2; p++) {
            double r = sqrt(-2 * log((w[2 * p] >> 1) * 0x1p-31 + 0x1p-32));
            double angle = 6.283185307179586 * (w[2 * p + 1] * 0x1p-32);
            assert_true(fabs(r * cos(angle) - values[4 * b + 2 * (uint32_t)p]) < 5e-6);
            assert_true(fabs(r * sin(angle) - values[4 * b + 2 * (uint32_t)p + 1]) < 5e-6);
        }
    }
    free(values);
}

/* The bits must be the same on every machine and with every compiler: they are compared by a hash. */
static void test_normal_bits(void **state)
{
    (void)state;
    enum { COUNT = 1 << 16 };
    float *values = malloc(COUNT * sizeof *values);
    philox_normal(0x123456789abcdef0u, 0xfedcba9876543210u, 1, COUNT, values);
    uint32_t hash = 2166136261u;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        hash = (hash ^ bits) * 16777619u;
    }
    free(values);
    assert_int_equal(hash, 0x72324c1c);
}

static void test_normal_moments(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20 };
    float *values = malloc(COUNT * sizeof *values);
    philox_normal(42, 0, 12345, COUNT, values);
    double sum = 0, square = 0, cube = 0, fourth = 0, next = 0;
    for (int i = 0; i < COUNT; i++) {
        double x = values[i];
        sum += x;
        square += x * x;
        cube += x * x * x;
        fourth += x * x * x * x;
        next += i ? x * values[i - 1] : 0;
    }
    free(values);
    /* five standard errors each */
    double error = 5 / sqrt(COUNT);
    assert_true(fabs(sum / COUNT) < error);
    assert_true(fabs(square / COUNT - 1) < error * sqrt(2));
    assert_true(fabs(cube / COUNT) < error * sqrt(15));
    assert_true(fabs(fourth / COUNT - 3) < error * sqrt(96));
    assert_true(fabs(next / COUNT) < error);
}

/* Any range, generated alone, equals that range of the whole stream. */
static void test_normal_pieces(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    float whole[COUNT], piece[COUNT + 1];
    const int64_t base = ((int64_t)1 << 34) - 700; /* the block's number exceeds 32 bits here */
    philox_normal(9, 8, base, COUNT, whole);
    for (int first = 0; first < COUNT; first += 37) {
        for (int count = 0; count <= COUNT - first; count += 61) {
            piece[count] = 77;
            philox_normal(9, 8, base + first, count, piece);
            assert_memory_equal(piece, whole + first, (size_t)count * sizeof *piece);
            assert_true(piece[count] == 77);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),  cmocka_unit_test(test_u64),
        cmocka_unit_test(test_normal_values),  cmocka_unit_test(test_normal_bits),
        cmocka_unit_test(test_normal_moments), cmocka_unit_test(test_normal_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
