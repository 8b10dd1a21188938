/* SPDX-License-Identifier: Apache-2.0 */
/* test_agree.c: ranks that fail together end with one code, and each of their errors is printed once. */
#include "tests/unit/fixtures/ranks.h"

#include "comm/agree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { WORLD = 4 };

/* ---- outcomes, with an exchange through a table ----------------------- */

struct table {
    struct outcome outcomes[WORLD];
    int rank;
    bool complete; /* false: the first pass, in which each rank only leaves its outcome */
};

static enum status exchange_by_table(void *context, const void *own, size_t bytes, void *all, struct error *err)
{
    struct table *table = context;
    assert_int_equal(bytes, sizeof table->outcomes[0]);
    memcpy(&table->outcomes[table->rank], own, bytes);
    if (!table->complete) return error_set(err, STATUS_PEER, "the first pass");
    memcpy(all, table->outcomes, sizeof table->outcomes);
    return STATUS_OK;
}

/* What WORLD ranks with these messages (NULL: no failure) and codes agree on; abouts: whom they are about. */
static void reach(const char *const texts[WORLD], const int abouts[WORLD], const enum status codes[WORLD],
                  enum status results[WORLD], int lowest[WORLD], struct error errors[WORLD])
{
    struct table table = {.complete = false};
    struct outcome own, all[WORLD];
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < WORLD; r++) {
            const struct agree_ranks ranks = {r, WORLD, exchange_by_table, &table};
            enum status status = texts[r] ? codes[r] : STATUS_OK;
            table.rank = r;
            table.complete = pass == 1;
            errors[r] = (struct error){.code = STATUS_OK};
            if (texts[r]) error_set(&errors[r], codes[r], "%s", texts[r]);
            error_blame(&errors[r], abouts[r], FAILURE_NONE);
            results[r] = agree_through(&ranks, &own, sizeof own, all, status, &lowest[r], &errors[r]);
        }
}

static void test_who_prints(void **state)
{
    (void)state;
    static const struct {
        const char *texts[WORLD];
        int abouts[WORLD];
        bool prints[WORLD];
    } cases[] = {
        {{"no file", "no file", "no file", "no file"}, {-1, -1, -1, -1}, {true, false, false, false}},
        {{NULL, "no file", NULL, "no file"}, {-1, -1, -1, -1}, {false, true, false, false}},
        {{NULL, "no file", "no disk", "no file"}, {-1, -1, -1, -1}, {false, true, true, false}},
        {{"no file; hint: one", "no file; hint: another", NULL, NULL}, {-1, -1, -1, -1}, {true, false, false, false}},
        {{"rank 0 is lost: A=0", NULL, "rank 2 is lost: A=2", NULL}, {0, -1, 2, -1}, {true, false, false, false}},
        {{"rank 2 on n1: no disk", NULL, "rank 2 on n1: no disk", NULL}, {2, -1, 2, -1}, {true, false, false, false}},
        {{NULL, "rank 0 is lost", "rank 3 is lost", "rank 0 is lost"}, {0, 0, 3, 0}, {false, true, true, false}},
        {{NULL, "no rank 0 at a", "no rank 0 at b", "no rank 2"}, {0, 0, 0, 2}, {false, true, false, true}},
    };
    static const enum status codes[WORLD] = {STATUS_DATA, STATUS_USAGE, STATUS_DEVICE, STATUS_CHECKPOINT};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        enum status results[WORLD];
        struct error errors[WORLD];
        int lowest[WORLD], expected = 0;
        while (!cases[c].texts[expected]) expected++;
        reach(cases[c].texts, cases[c].abouts, codes, results, lowest, errors);
        for (int r = 0; r < WORLD; r++)
            if (results[r] != codes[expected] || errors[r].code != codes[expected] || lowest[r] != expected ||
                errors[r].printed == cases[c].prints[r] || !errors[r].text[0])
                fail_msg("case %zu, rank %d: %d %d, lowest %d, printed %d, '%s'", c, r, results[r], errors[r].code,
                         lowest[r], errors[r].printed, errors[r].text);
    }
}

static void test_no_failure(void **state)
{
    (void)state;
    const char *const texts[WORLD] = {NULL, NULL, NULL, NULL};
    const int abouts[WORLD] = {0};
    const enum status codes[WORLD] = {STATUS_OK, STATUS_OK, STATUS_OK, STATUS_OK};
    enum status results[WORLD];
    struct error errors[WORLD];
    int lowest[WORLD];
    reach(texts, abouts, codes, results, lowest, errors);
    for (int r = 0; r < WORLD; r++) assert_true(results[r] == STATUS_OK && lowest[r] == -1 && !errors[r].printed);
}

/* A rank that cannot reach the others keeps its own error, or takes that of the exchange if it had none. */
static void test_exchange_that_fails(void **state)
{
    (void)state;
    struct table table = {.complete = false};
    const struct agree_ranks ranks = {0, WORLD, exchange_by_table, &table};
    struct outcome own, all[WORLD];
    struct error err = {.code = STATUS_OK};
    int lowest = 0;
    assert_int_equal(agree_through(&ranks, &own, sizeof own, all, STATUS_OK, &lowest, &err), STATUS_PEER);
    assert_string_equal(err.text, "the first pass");
    assert_int_equal(lowest, -1);
    error_set(&err, STATUS_DATA, "no file");
    assert_int_equal(agree_through(&ranks, &own, sizeof own, all, STATUS_DATA, &lowest, &err), STATUS_DATA);
    assert_string_equal(err.text, "no file");
    assert_false(err.printed);
}

/* ---- agree, between processes -------------------------------------------- */

static struct error error;

static void agree_in_rank(struct bootstrap *boot, void *context)
{
    (void)context;
    const struct comm_config config = {.timeout_seconds = 20};
    struct comm *comm;
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    CHECK_OK(agree(comm, STATUS_OK, &error));
    enum status status = boot->rank == 0 ? STATUS_OK : error_set(&error, STATUS_DATA, "no file");
    CHECK(agree(comm, status, &error) == STATUS_DATA);
    CHECK(error.code == STATUS_DATA && error.printed == (boot->rank != 1));
    CHECK_OK(agree(comm, STATUS_OK, &error)); /* the ranks are still together */
    comm_close(comm);
}

static void test_agree(void **state)
{
    (void)state;
    assert_true(ranks_run(3, NULL, agree_in_rank, NULL));
}

static void agree_alone(struct bootstrap *boot, void *context)
{
    (void)context;
    const struct comm_config config = {.timeout_seconds = 20};
    struct comm *comm;
    CHECK_OK(comm_open(boot, &config, &comm, &error));
    CHECK(agree(comm, error_set(&error, STATUS_DATA, "no file"), &error) == STATUS_DATA && !error.printed);
    comm_close(comm);
}

static void test_agree_alone(void **state)
{
    (void)state;
    assert_true(ranks_run(1, NULL, agree_alone, NULL));
}

static void agree_on_start(struct bootstrap *boot, void *context)
{
    const uint64_t *fingerprints = context;
    bool same = fingerprints[0] == fingerprints[1];
    boot->start_seconds = 20;
    enum status status = agree_at_start(boot, fingerprints[boot->rank], STATUS_OK, &error);
    CHECK(status == (same ? STATUS_OK : STATUS_USAGE));
    CHECK(same || (strstr(error.text, "rank 1 on node1 has another run spec") && error.printed == (boot->rank != 0)));
}

static void test_agree_at_start(void **state)
{
    (void)state;
    static const int nodes[] = {0, 1};
    uint64_t same[] = {7, 7}, different[] = {7, 8};
    assert_true(ranks_run(2, nodes, agree_on_start, same));
    assert_true(ranks_run(2, nodes, agree_on_start, different));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_prints),          cmocka_unit_test(test_no_failure),
        cmocka_unit_test(test_exchange_that_fails), cmocka_unit_test(test_agree),
        cmocka_unit_test(test_agree_alone),         cmocka_unit_test(test_agree_at_start)};
    return cmocka_run_group_tests_name("agree", tests, NULL, NULL);
}
