/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of training state: the same on any number of ranks that have the same canonical slices, and of any number of
 * threads; other values have other hashes. */
#include "ckpt/state_hash.h"
#include "core/memory.h"
#include "core/piece_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmocka.h>

enum { HASH_UNITS = 3, HASH_TRAINED = 2, HASH_STATES = 2 };

/* Ranks in one process: what each has to exchange is known. */
struct comm {
    int world, exchanges;
    const struct state_hash *ranks; /* (world) */
    int fails;                      /* at this exchange, from 1; 0: never */
};

enum status comm_exchange(struct comm *comm, const void *own, size_t bytes, void *all, struct error *err)
{
    const size_t from = (size_t)((const char *)own - (const char *)comm->ranks[0].parts);
    assert_true(bytes <= COMM_EXCHANGE_MAX);
    if (++comm->exchanges == comm->fails) return error_set(err, STATUS_PEER, "a rank is lost");
    for (int r = 0; r < comm->world; r++)
        memcpy((char *)all + (size_t)r * bytes, (const char *)comm->ranks[r].parts + from, bytes);
    return STATUS_OK;
}

static void hash_table(struct tensor_table *table)
{
    static struct unit_info units[HASH_UNITS] = {
        {"embedding", 0, 1, 1000003, .owner = 0}, {"block 0", 1, 1, 77, .owner = 1}, {"frozen", 2, 1, 300, .owner = 0}};
    *table = (struct tensor_table){.num_units = HASH_UNITS, .num_frozen = 1, .units = units};
}

/* Element i of a unit; 0 in the padding. */
static float hash_value(const struct tensor_table *table, int kind, int unit, int64_t i)
{
    return i < table->units[unit].numel ? (float)(i * 7 + unit * 3 + kind) * 0.125f : 0;
}

/* The hashes of W canonical slices as `world` ranks compute them. changed: this element of unit 1 is another; -1: none.
 */
static enum status hash_of_ranks(int world, int virtual_ranks, int64_t changed, int fails, int *exchanges,
                                 uint64_t hashes[HASH_STATES], struct error *err)
{
    struct tensor_table table;
    struct shard_layout layout;
    hash_table(&table);
    shard_layout_init_parts(&layout, &table, world, virtual_ranks / world);
    layout.num_trained = HASH_TRAINED;
    struct state_hash *ranks = memory_zeroed((size_t)world, sizeof *ranks);
    for (int r = 0; r < world; r++) {
        state_hash_init(&ranks[r], &layout, r, HASH_STATES);
        for (int kind = 0; kind < HASH_STATES; kind++)
            for (int unit = 0; unit < layout.num_trained; unit++) {
                const int64_t count = layout.slice[unit];
                float *slice = memory_alloc((size_t)count * sizeof *slice);
                for (int64_t i = 0; i < count; i++) {
                    slice[i] = hash_value(&table, kind, unit, r * count + i);
                    if (unit == 1 && kind == 1 && r * count + i == changed) slice[i] += 1;
                }
                state_hash_add(&ranks[r], (enum state_kind)kind, unit, slice);
                free(slice);
            }
    }
    struct comm comm = {.world = world, .ranks = ranks, .fails = fails};
    const enum status status = state_hash_join(&ranks[0], &comm, hashes, err);
    *exchanges = comm.exchanges;
    for (int r = 0; r < world; r++) state_hash_release(&ranks[r]);
    free(ranks);
    shard_layout_release(&layout);
    return status;
}

static void test_the_number_of_ranks_changes_nothing(void **unused)
{
    (void)unused;
    uint64_t one[HASH_STATES], other[HASH_STATES];
    int exchanges;
    assert_int_equal(hash_of_ranks(1, 4, -1, 0, &exchanges, one, NULL), STATUS_OK);
    for (int world = 2; world <= 4; world *= 2) {
        assert_int_equal(hash_of_ranks(world, 4, -1, 0, &exchanges, other, NULL), STATUS_OK);
        assert_memory_equal(one, other, sizeof one);
    }
    assert_int_equal(hash_of_ranks(2, 2, -1, 0, &exchanges, other, NULL), STATUS_OK);
    assert_true(one[0] != other[0]); /* other canonical slices */
    assert_int_equal(hash_of_ranks(2, 4, 76, 0, &exchanges, other, NULL), STATUS_OK);
    assert_true(one[0] == other[0] && one[1] != other[1]); /* one value of one kind */
}

/* 4,096 slices of two kinds are 64 KiB: one exchange; of 32,768 slices several. */
static void test_many_slices_are_exchanged_in_parts(void **unused)
{
    (void)unused;
    struct error err;
    uint64_t one[HASH_STATES], two[HASH_STATES];
    int exchanges;
    assert_int_equal(hash_of_ranks(1, 32768, -1, 0, &exchanges, one, NULL), STATUS_OK);
    assert_int_equal(exchanges, 8);
    assert_int_equal(hash_of_ranks(2, 32768, -1, 0, &exchanges, two, NULL), STATUS_OK);
    assert_int_equal(exchanges, 4);
    assert_memory_equal(one, two, sizeof one);
    assert_int_equal(hash_of_ranks(2, 32768, -1, 3, &exchanges, two, &err), STATUS_PEER);
    assert_string_equal(err.text, "a rank is lost");
    assert_int_equal(exchanges, 3);
}

/* By the words of docs/checkpoint-format.md. */
static void test_the_hash_is_the_documented_one(void **unused)
{
    (void)unused;
    struct tensor_table table;
    uint64_t hashes[HASH_STATES], slices[2];
    int exchanges;
    hash_table(&table);
    assert_int_equal(hash_of_ranks(1, 2, -1, 0, &exchanges, hashes, NULL), STATUS_OK);
    for (int v = 0; v < 2; v++) {
        slices[v] = 0;
        for (int unit = 0; unit < HASH_TRAINED; unit++) {
            const int64_t count = ((table.units[unit].numel + 1) / 2 + 63) / 64 * 64;
            float *values = memory_alloc((size_t)count * sizeof *values);
            uint64_t pieces[2];
            size_t bytes = (size_t)count * sizeof *values, first = bytes < 1 << 20 ? bytes : 1 << 20;
            for (int64_t i = 0; i < count; i++) values[i] = hash_value(&table, 0, unit, v * count + i);
            pieces[0] = XXH3_64bits(values, first);
            pieces[1] = XXH3_64bits((char *)values + first, bytes - first);
            slices[v] = XXH3_64bits_withSeed(pieces, (first < bytes ? 2 : 1) * sizeof *pieces, slices[v]);
            free(values);
        }
    }
    assert_true(hashes[0] == XXH3_64bits(slices, sizeof slices));
}

static void test_the_number_of_threads_changes_nothing(void **unused)
{
    (void)unused;
    const size_t bytes = ((size_t)70 << 20) + 3; /* more than 64 pieces */
    char *memory = memory_alloc(bytes);
    for (size_t i = 0; i < bytes; i++) memory[i] = (char)(i * 31 + (i >> 13));
    const uint64_t hash = piece_hash(5, memory, bytes);
#ifdef _OPENMP
    for (int threads = 1; threads <= 3; threads += 2) {
        omp_set_num_threads(threads);
        assert_true(piece_hash(5, memory, bytes) == hash);
    }
#endif
    memory[bytes - 1] ^= 1;
    assert_true(piece_hash(5, memory, bytes) != hash);
    assert_true(piece_hash(6, memory, 0) == 6);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_number_of_ranks_changes_nothing),
        cmocka_unit_test(test_many_slices_are_exchanged_in_parts),
        cmocka_unit_test(test_the_hash_is_the_documented_one),
        cmocka_unit_test(test_the_number_of_threads_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
