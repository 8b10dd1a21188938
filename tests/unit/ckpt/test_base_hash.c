/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_hash.c: the hash of an adapter's base is the documented one, and depends on no number of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <xxhash.h>

#include "ckpt/base_hash.h"
#include "core/memory.h"

/* ---- a communicator of ranks that this process plays in turn -------------- */

struct comm {
    int world;
    const uint64_t *parts; /* [world] */
    bool fails;
};

int comm_rank(const struct comm *comm)
{
    (void)comm;
    return 0;
}

int comm_world(const struct comm *comm)
{
    return comm->world;
}

enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    (void)own;
    if (comm->fails) return error_set(err, STATUS_PEER, "a rank is lost");
    memcpy(all, comm->parts, bytes * (size_t)comm->world);
    return STATUS_OK;
}

/* ---- a table --------------------------------------------------------------- */

enum { BASE_UNITS = 4, BASE_TRAINED = 2, BASE_RANKS = 7 };

static struct unit_info base_units[BASE_UNITS] = {{"embedding", 0, 1, 100, .frozen = 2},
                                                  {"block 0", 1, 1, 77, .frozen = 3, .owner = 1},
                                                  {"embedding, frozen", 2, 1, 1003, .owner = 0},
                                                  {"f", 3, 1, 77, .owner = 1}};
static const struct tensor_table base_table = {
    .num_units = BASE_UNITS, .num_frozen = BASE_UNITS - BASE_TRAINED, .adapted = true, .units = base_units};

static float base_value(int unit, int64_t i)
{
    return (float)(i * 7 + unit * 1000) * 0.125f;
}

/* ---- the slices of one rank ------------------------------------------------ */

struct base_rank {
    struct shard_layout layout;
    float *values; /* one buffer for all slices, as on a GPU */
    int fails;     /* at this unit; 0: never */
};

static enum status base_get(void *owner, enum slice_access access, enum state_kind kind, int unit, float **slice,
                            struct error *err)
{
    struct base_rank *rank = owner;
    (void)access, (void)kind;
    if (rank->fails && unit == rank->fails) return error_set(err, STATUS_DEVICE, "no memory");
    *slice = rank->values;
    return STATUS_OK;
}

/* Fills all slices of a rank, as an import does. changed: this element of the last unit is another; -1: none. */
static enum status base_fill(struct base_rank *rank, int number, int64_t changed, uint64_t *part, struct error *err)
{
    struct base_hash hash;
    const struct state_slices slices = base_hash_watch(
        &hash, &base_table, &rank->layout, number, (struct state_slices){.owner = rank, .count = 1, .get = base_get});
    for (int u = 0; u < BASE_UNITS; u++) {
        const int64_t size = rank->layout.slice[u], first = size * number;
        float *slice;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, u, &slice, err));
        for (int64_t i = 0; i < size; i++) /* padding is not hashed, whatever it holds */
            slice[i] = first + i < base_units[u].numel ? base_value(u, first + i) : 99.0f;
        if (u == BASE_UNITS - 1 && changed >= first && changed < first + size) slice[changed - first] += 1;
    }
    *part = base_hash_end(&hash);
    return STATUS_OK;
}

static uint64_t base_hash_of(int world, int parts, int64_t changed)
{
    uint64_t all[BASE_RANKS] = {0}, sum;
    struct error err;
    for (int r = 0; r < world; r++) {
        struct base_rank rank = {.fails = 0};
        shard_layout_init_parts(&rank.layout, &base_table, world, parts);
        rank.values = memory_alloc((size_t)rank.layout.max_padded * sizeof *rank.values);
        assert_int_equal(base_fill(&rank, r, changed, &all[r], &err), STATUS_OK);
        shard_layout_release(&rank.layout);
        free(rank.values);
    }
    struct comm comm = {.world = world, .parts = all};
    sum = all[0];
    assert_int_equal(base_hash_join(&comm, &sum, &err), STATUS_OK);
    return sum;
}

static void test_the_number_of_ranks_changes_nothing(void **unused)
{
    (void)unused;
    const uint64_t one = base_hash_of(1, 1, -1);
    for (int world = 1; world <= BASE_RANKS; world++)
        for (int parts = 1; parts <= 3; parts++) assert_true(base_hash_of(world, parts, -1) == one);
    assert_true(base_hash_of(2, 1, 76) != one && base_hash_of(2, 1, 0) != one);
    assert_true(base_hash_of(2, 1, 76) == base_hash_of(3, 1, 76));
}

/* By the words of docs/checkpoint-format.md. */
static void test_it_is_the_documented_one(void **unused)
{
    (void)unused;
    uint64_t sum = 0;
    for (int u = BASE_TRAINED; u < BASE_UNITS; u++)
        for (int64_t i = 0; i < base_units[u].numel; i += 16) {
            float block[16];
            int64_t n = 0;
            for (; n < 16 && i + n < base_units[u].numel; n++) block[n] = base_value(u, i + n);
            sum +=
                XXH3_64bits_withSeed(block, (size_t)n * 4, ((uint64_t)(u - BASE_TRAINED) << 48) + (uint64_t)(i / 16));
        }
    assert_true(base_hash_of(1, 1, -1) == sum);
}

/* A base of stored bytes, in two pieces. */
static void test_bytes_in_pieces(void **unused)
{
    (void)unused;
    char bytes[1000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 31);
    const uint64_t whole = base_hash_bytes(3, 0, bytes, sizeof bytes);
    assert_true(base_hash_bytes(3, 0, bytes, 128) + base_hash_bytes(3, 128, bytes + 128, sizeof bytes - 128) == whole);
    assert_true(base_hash_bytes(2, 0, bytes, sizeof bytes) != whole);
    assert_true(base_hash_bytes(3, 0, bytes, 0) == 0);
}

static void test_failures(void **unused)
{
    (void)unused;
    struct base_rank rank = {.fails = 3};
    struct error err;
    uint64_t part = 0;
    shard_layout_init(&rank.layout, &base_table, 1);
    rank.values = memory_alloc((size_t)rank.layout.max_padded * sizeof *rank.values);
    assert_int_equal(base_fill(&rank, 0, -1, &part, &err), STATUS_DEVICE);
    shard_layout_release(&rank.layout);
    free(rank.values);
    struct comm comm = {.world = 2, .fails = true};
    assert_int_equal(base_hash_join(&comm, &part, &err), STATUS_PEER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_number_of_ranks_changes_nothing),
        cmocka_unit_test(test_it_is_the_documented_one),
        cmocka_unit_test(test_bytes_in_pieces),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
