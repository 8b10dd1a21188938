/* SPDX-License-Identifier: Apache-2.0 */
/* test_flight.c: the flight recorder keeps the last entries, open ones too, under several writers; its file is read
 * whatever is damaged in it; and the verdict names the rank that was planted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/flight/flight_verdict.h"

static struct flight_ring ring;
static struct flight_image image;
static char folder[] = "/tmp/ztrain-flight-XXXXXX", path[128];

static int start(void **state)
{
    (void)state;
    memset(&ring, 0, sizeof ring);
    flight_use(&ring);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    flight_use(NULL);
    return 0;
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/rank-00001.ring", folder);
    return 0;
}

static int delete_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* ---- the ring ------------------------------------------------------------ */

static void test_nothing_is_recorded_before_use(void **state)
{
    (void)state;
    flight_use(NULL);
    assert_int_equal(flight_begin(FLIGHT_DATA, -1, 0, -1), 0);
    flight_end(0);
    flight_phase(FLIGHT_STEP);
    flight_step(3);
    flight_copy(&ring, &image);
    assert_int_equal(image.next, 0);
    assert_int_equal(image.phase, FLIGHT_NONE);
}

static void test_an_entry_has_what_was_recorded(void **state)
{
    struct flight_entry entry;
    (void)state;
    flight_step(7);
    flight_micro(2);
    const int64_t before = flight_clock();
    uint64_t number = flight_begin(FLIGHT_REDUCE_SCATTER, 5, 4096, 123);
    flight_copy(&ring, &image);
    assert_true(flight_decode(image.entries[number - 1], &entry));
    assert_int_equal(entry.kind, FLIGHT_REDUCE_SCATTER);
    assert_int_equal(entry.unit, 5);
    assert_int_equal(entry.bytes, 4096);
    assert_int_equal(entry.number, 123);
    assert_int_equal(entry.step, 7);
    assert_int_equal(entry.micro, 2);
    assert_int_equal(entry.end, 0);
    assert_true(entry.start >= before && entry.start <= flight_clock());
    flight_end(number);
    flight_copy(&ring, &image);
    assert_true(flight_decode(image.entries[number - 1], &entry));
    assert_true(entry.end >= entry.start);
}

static void test_the_ring_keeps_the_last_entries(void **state)
{
    struct flight_entry entry;
    (void)state;
    uint64_t lost = flight_begin(FLIGHT_EVALUATION, -1, 0, -1);
    for (int i = 0; i < 2 * FLIGHT_ENTRIES; i++) flight_end(flight_begin(FLIGHT_FORWARD, i % 7, 0, -1));
    flight_end(lost); /* must not touch the entry that has its place */
    flight_copy(&ring, &image);
    assert_int_equal(image.next, 2 * FLIGHT_ENTRIES + 1);
    for (int e = 0; e < FLIGHT_ENTRIES; e++) {
        assert_true(flight_decode(image.entries[e], &entry));
        assert_true(entry.entry > FLIGHT_ENTRIES + 1 && entry.entry <= 2 * FLIGHT_ENTRIES + 1);
        assert_int_equal((entry.entry - 1) % FLIGHT_ENTRIES, e);
        assert_int_equal(entry.kind, FLIGHT_FORWARD);
    }
}

static void test_phases_become_entries_and_steps_are_timed(void **state)
{
    struct flight_entry entry;
    (void)state;
    flight_phase(FLIGHT_PREPARE);
    for (int step = 1; step <= 4; step++) flight_step(step);
    flight_phase(FLIGHT_CHECKPOINT);
    flight_step(5); /* after a checkpoint: the step before it is not timed to here */
    flight_copy(&ring, &image);
    assert_int_equal(image.steps, 3);
    assert_true(flight_median_step(&image) >= 0);
    assert_int_equal(image.step, 5);
    assert_true(flight_decode(image.entries[0], &entry));
    assert_int_equal(entry.kind, FLIGHT_PREPARE);
    assert_true(flight_decode(image.entries[5], &entry));
    assert_int_equal(entry.kind, FLIGHT_CHECKPOINT);
    image.steps = 3;
    for (int i = 0; i < 3; i++) image.step_times[i] = (uint64_t[]){30, 10, 20}[i];
    assert_int_equal(flight_median_step(&image), 20);
    image.steps = 2;
    assert_int_equal(flight_median_step(&image), 0);
}

static void test_any_changed_bit_but_the_end_is_noticed(void **state)
{
    struct flight_entry entry;
    uint64_t words[FLIGHT_ENTRY_WORDS];
    (void)state;
    flight_end(flight_begin(FLIGHT_ALL_GATHER, 2, 1 << 20, 9));
    flight_copy(&ring, &image);
    for (int word = 0; word < FLIGHT_ENTRY_WORDS; word++)
        for (int bit = 0; bit < 64 && word != 2; bit++) {
            memcpy(words, image.entries[0], sizeof words);
            words[word] ^= UINT64_C(1) << bit;
            assert_false(flight_decode(words, &entry));
        }
    memcpy(words, image.entries[0], sizeof words);
    words[2] = words[1] - 1;
    assert_false(flight_decode(words, &entry)); /* ends before it begins */
    memset(words, 0, sizeof words);
    assert_false(flight_decode(words, &entry));
}

/* Words with a check that fits, but numbers that no rank writes. */
static void test_numbers_that_cannot_be_are_left_out(void **state)
{
    struct flight_entry entry;
    uint64_t words[FLIGHT_ENTRY_WORDS];
    (void)state;
    flight_end(flight_begin(FLIGHT_ALL_GATHER, 2, 1 << 20, 9));
    flight_copy(&ring, &image);
    const uint64_t units[] = {UINT64_C(0x80000000), UINT64_C(0x80000001), UINT64_C(0xffffffff)};
    for (int i = 0; i < 3; i++) {
        memcpy(words, image.entries[0], sizeof words);
        words[6] = (words[6] & UINT64_C(0xffffffff)) | units[i] << 32;
        words[7] = flight_check(words);
        assert_false(flight_decode(words, &entry));
    }
    memcpy(words, image.entries[0], sizeof words);
    words[5] = INT64_MAX;
    words[7] = flight_check(words);
    assert_false(flight_decode(words, &entry));
}

enum { WRITERS = 3, EACH = 3000 };

static void *write_many(void *argument)
{
    for (int i = 0; i < EACH; i++) flight_end(flight_begin(FLIGHT_EXCHANGE, -1, (int64_t)(intptr_t)argument, i));
    return NULL;
}

/* Whatever is decoded while others write is an entry that one of them wrote as a whole. */
static void test_several_threads_write_while_one_reads(void **state)
{
    pthread_t threads[WRITERS];
    struct flight_entry entry;
    (void)state;
    for (int t = 0; t < WRITERS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, write_many, (void *)(intptr_t)(t + 1)), 0);
    for (int round = 0; round < 5; round++) {
        flight_copy(&ring, &image);
        for (int e = 0; e < FLIGHT_ENTRIES; e++)
            if (flight_decode(image.entries[e], &entry)) {
                assert_int_equal(entry.kind, FLIGHT_EXCHANGE);
                assert_in_range(entry.bytes, 1, WRITERS);
                assert_in_range(entry.number, 0, EACH - 1);
            }
    }
    for (int t = 0; t < WRITERS; t++) pthread_join(threads[t], NULL);
    flight_copy(&ring, &image);
    assert_int_equal(image.next, WRITERS * EACH);
    int torn = 0; /* a writer that had to wait while the others went around writes over what they have written */
    for (int e = 0; e < FLIGHT_ENTRIES; e++) torn += !flight_decode(image.entries[e], &entry);
    assert_in_range(torn, 0, WRITERS);
}

/* ---- the file ------------------------------------------------------------ */

static const struct flight_head sample_head = {.rank = 1,
                                               .world = 3,
                                               .pid = 4711,
                                               .host = "node\"7\\",
                                               .reason = FLIGHT_FAILURE,
                                               .code = STATUS_PEER,
                                               .culprit = 2,
                                               .failure = FAILURE_LEFT,
                                               .error = "rank 2 said \"no\"\nand left",
                                               .witness = -1,
                                               .process = '?',
                                               .asked = 15,
                                               .written = 5000000000,
                                               .wall = INT64_C(1795443276686948780),
                                               .interval = 1.5,
                                               .waiting = "reading '/x'",
                                               .bad_first = 4,
                                               .bad_last = 6,
                                               .bad_rank = 2,
                                               .bad_tensor = "wte.weight"};

static struct flight_file file = {.fd = -1};

static void write_sample(void)
{
    flight_step(6);
    flight_end(flight_begin(FLIGHT_DATA, -1, 0, -1));
    flight_begin(FLIGHT_BARRIER, -1, 0, 17);
    flight_copy(&ring, &image);
    assert_int_equal(flight_file_create(&file, path, &sample_head, &image), 0);
}

static void test_a_file_gives_back_what_was_written(void **state)
{
    struct flight_record record;
    struct error err;
    struct stat before, after;
    (void)state;
    write_sample();
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(before.st_size, FLIGHT_FILE_BYTES);
    for (int i = 0; i < FLIGHT_ENTRIES; i++) /* around the ring */
        flight_end(flight_begin(FLIGHT_BACKWARD, i, 0, -1));
    flight_copy(&ring, &image);
    assert_int_equal(flight_file_renew(&file, &sample_head, &image), 0);
    flight_file_close(&file);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    assert_int_equal(flight_record_read(path, &record, &err), STATUS_OK);
    const struct flight_head *h = &record.head;
    assert_int_equal(h->rank, 1);
    assert_int_equal(h->world, 3);
    assert_int_equal(h->pid, 4711);
    assert_string_equal(h->host, "node\"7\\");
    assert_int_equal(h->reason, FLIGHT_FAILURE);
    assert_int_equal(h->code, STATUS_PEER);
    assert_int_equal(h->culprit, 2);
    assert_int_equal(h->failure, FAILURE_LEFT);
    assert_string_equal(h->error, "rank 2 said \"no\"?and left");
    assert_int_equal(h->witness, -1);
    assert_true(h->wall == sample_head.wall && h->written == sample_head.written);
    assert_string_equal(h->waiting, "reading '/x'");
    assert_int_equal(h->asked, 15);
    assert_int_equal(h->bad_first, 4);
    assert_int_equal(h->bad_rank, 2);
    assert_string_equal(h->bad_tensor, "wte.weight");
    assert_int_equal(record.step, 6);
    assert_int_equal(record.phase, FLIGHT_STEP);
    assert_int_equal(record.count, FLIGHT_ENTRIES);
    assert_int_equal(record.torn, 0);
    assert_int_equal(record.entries[FLIGHT_ENTRIES - 1].entry, record.next);
    assert_int_equal(record.entries[0].unit, 0);
    assert_true(flight_wall(&record, 5000000000 + 2000000000) - 1795443278.6869 < 0.001);
    flight_record_release(&record);
}

/* Overwrites bytes of the file. */
static void damage(long at, const char *bytes, size_t count)
{
    FILE *out = fopen(path, "r+");
    assert_non_null(out);
    assert_int_equal(fseek(out, at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, count, out), count);
    fclose(out);
}

static void test_what_is_damaged_is_left_out(void **state)
{
    struct flight_record record;
    struct error err;
    (void)state;
    write_sample();
    struct flight_head later = sample_head;
    later.code = STATUS_DATA;
    assert_int_equal(flight_file_renew(&file, &later, &image), 0);
    flight_file_close(&file);
    damage(8192 + 30, "??", 2); /* of the first entry */
    assert_int_equal(flight_record_read(path, &record, &err), STATUS_OK);
    assert_int_equal(record.head.code, STATUS_DATA);
    assert_int_equal(record.count, 1);
    assert_int_equal(record.torn, 1);
    assert_int_equal(record.entries[0].kind, FLIGHT_BARRIER);
    flight_record_release(&record);
    damage(100, "\xff", 1); /* the second head, which was written last, is the one at 0 */
    assert_int_equal(flight_record_read(path, &record, &err), STATUS_OK);
    assert_int_equal(record.head.code, STATUS_PEER);
    flight_record_release(&record);
    damage(4096 + 14, "1", 1); /* the version */
    assert_int_equal(flight_record_read(path, &record, &err), STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "of this version"));
    assert_int_equal(truncate(path, 5000), 0);
    assert_int_equal(flight_record_read(path, &record, &err), STATUS_CHECKPOINT);
    unlink(path);
    assert_int_equal(flight_record_read(path, &record, &err), STATUS_CHECKPOINT);
}

/* ---- the names of starts ------------------------------------------------- */

static void test_starts_are_ordered_by_count(void **state)
{
    (void)state;
    static const char *const ordered[] = {"",
                                          "20200101-000000-000", /* of versions without a count */
                                          "20261126-143050-569",
                                          "99991231-235959-999",
                                          "0001-20261126-143050-569",
                                          "0002-19991231-000000-000", /* the clock was set back */
                                          "0002-20261126-143050-569",
                                          "9999-20261126-143050-569",
                                          "10000-20261126-143050-569"};
    for (int a = 0; a < (int)COUNT_OF(ordered); a++)
        for (int b = 0; b < (int)COUNT_OF(ordered); b++) {
            const int order = flight_start_compare(ordered[a], ordered[b]);
            assert_int_equal((order > 0) - (order < 0), (a > b) - (a < b));
        }
    char name[FLIGHT_START_BYTES];
    flight_start_name(7, (struct timespec){.tv_sec = 1795705850, .tv_nsec = 569999999}, name);
    assert_string_equal(name, "0007-20261126-151050-569");
}

static void test_a_new_start_counts_on(void **state)
{
    (void)state;
    char flight[] = "/tmp/test-flight-XXXXXX", start[96];
    assert_non_null(mkdtemp(flight));
    assert_int_equal(flight_start_next("/nowhere/at/all"), 1);
    assert_int_equal(flight_start_next(flight), 1);
    static const char *const names[] = {"20261126-143050-569", "0041-20261126-143050-569", "0009-20261127-000000-000"};
    static const int64_t next[] = {1, 42, 42};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(start, sizeof start, "%s/%s", flight, names[i]);
        assert_int_equal(mkdir(start, 0777), 0);
        assert_int_equal(flight_start_next(flight), next[i]);
    }
    const struct flight_end end = {.start = "0050-20261126-143050-569", .wall = 5};
    assert_int_equal(flight_ended_write(flight, &end), 0);
    static const int order[] = {0, 2, 1};
    struct dirent **starts;
    assert_int_equal(flight_starts(flight, &starts), 3); /* not its file */
    for (int i = 0; i < 3; i++) {
        assert_string_equal(starts[i]->d_name, names[order[i]]);
        free(starts[i]);
    }
    free(starts);
    assert_int_equal(flight_start_next(flight), 51);
    assert_int_equal(flight_ended_delete(flight), 0);
    snprintf(start, sizeof start, "%s/ended", flight);
    assert_int_equal(mkfifo(start, 0600), 0); /* nobody waits for its other end */
    assert_int_not_equal(flight_ended_write(flight, &end), 0);
    assert_int_equal(flight_start_next(flight), 42);
    assert_int_equal(unlink(start), 0);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(start, sizeof start, "%s/%s", flight, names[i]);
        assert_int_equal(rmdir(start), 0);
    }
    assert_int_equal(rmdir(flight), 0);
}

static void test_a_file_that_cannot_be_made_is_an_errno(void **state)
{
    (void)state;
    flight_copy(&ring, &image);
    assert_int_not_equal(flight_file_create(&file, "/nowhere/at/all", &sample_head, &image), 0);
    assert_int_equal(file.fd, -1);
}

/* ---- the verdict --------------------------------------------------------- */

enum { WORLD = 3, MOST = 100, SECOND = 1000000000 };
static struct flight_record records[WORLD];
static struct flight_entry entries[WORLD][MOST];
static struct flight_view views[WORLD];
static char processes[WORLD];
static struct flight_verdict verdict;
static double now; /* seconds since 1970 */

/* All ranks are in step 20 since second 100, and their records are of second 110. */
static int make_records(void **state)
{
    (void)state;
    now = 112;
    for (int r = 0; r < WORLD; r++) {
        records[r] = (struct flight_record){.phase = FLIGHT_STEP, .phase_since = 100LL * SECOND, .step = 20};
        records[r].entries = entries[r];
        records[r].head = (struct flight_head){.rank = r,
                                               .world = WORLD,
                                               .pid = 1000 + r,
                                               .host = "here",
                                               .culprit = -1,
                                               .witness = -1,
                                               .process = '?',
                                               .bad_rank = -1,
                                               .interval = 1,
                                               .written = 110LL * SECOND,
                                               .wall = 110LL * SECOND};
        processes[r] = 'S';
    }
    return 0;
}

/* Adds an entry of rank r: milliseconds after second 100; end 0: it is not over. */
static void add(int r, enum flight_kind kind, int64_t number, int begin, int end)
{
    struct flight_record *record = &records[r];
    assert_true(record->count < MOST);
    struct flight_entry *entry = &entries[r][record->count++];
    *entry = (struct flight_entry){.entry = (uint64_t)record->count,
                                   .kind = kind,
                                   .unit = -1,
                                   .number = number,
                                   .step = 20,
                                   .start = 100LL * SECOND + begin * 1000000LL,
                                   .end = end ? 100LL * SECOND + end * 1000000LL : 0};
}

/* All ranks end with an error about rank `culprit`. */
static void fail_all(int culprit, enum failure failure, int code, const char *text)
{
    for (int r = 0; r < WORLD; r++) {
        struct flight_head *head = &records[r].head;
        head->reason = FLIGHT_FAILURE;
        head->code = code;
        head->culprit = culprit;
        head->failure = failure;
        snprintf(head->error, sizeof head->error, "%s", text);
    }
}

static void expect(enum flight_finding finding, int rank, const char *word)
{
    for (int r = 0; r < WORLD; r++) flight_view_init(&views[r], records[r].entries ? &records[r] : NULL, processes[r]);
    flight_compare_clocks(views, WORLD);
    flight_judge(views, WORLD, now, &verdict);
    assert_int_equal(verdict.finding, finding);
    assert_int_equal(verdict.rank, rank);
    if (!strstr(verdict.text, word)) fail_msg("'%s' is not in: %s", word, verdict.text);
}

/* Ranks 0 and 2 wait in all-gather 5, which rank 1 has not reached. */
static void add_waiters(void)
{
    for (int r = 0; r < WORLD; r++) add(r, FLIGHT_ALL_GATHER, 4, 1000, 1010);
    add(0, FLIGHT_ALL_GATHER, 5, 1020, 0);
    add(2, FLIGHT_ALL_GATHER, 5, 1030, 0);
    add(1, FLIGHT_DATA, -1, 1015, 0);
}

static void test_verdict_nothing(void **state)
{
    (void)state;
    for (int r = 0; r < WORLD; r++) add(r, FLIGHT_ALL_GATHER, 4, 9000, 9010);
    expect(FLIGHT_FINE, -1, "3 of 3 ranks");
    add(0, FLIGHT_ALL_GATHER, 5, 9500, 0); /* the others' records are not old enough to accuse them */
    expect(FLIGHT_FINE, -1, "Nothing stands out");
}

static void test_verdict_missing_in_a_collective(void **state)
{
    (void)state;
    add_waiters();
    expect(FLIGHT_MISSING, 1, "in the data wait (step 20)");
    assert_non_null(strstr(verdict.text, "Rank 0 and another rank waited in the all-gather 5"));
    snprintf(records[1].head.waiting, sizeof records[1].head.waiting, "reading '/data/x.bin'");
    expect(FLIGHT_MISSING, 1, "reading '/data/x.bin'");
}

static void test_verdict_killed(void **state)
{
    (void)state;
    add_waiters();
    processes[1] = 'X';
    expect(FLIGHT_KILLED, 1, "was killed");
    processes[1] = 'S';
    fail_all(1, FAILURE_DIED, STATUS_PEER, "rank 1 on here (process 1001) died");
    records[1].head.reason = FLIGHT_RUNNING;
    records[1].head.witness = 0;
    records[1].head.process = 'X';
    expect(FLIGHT_KILLED, 1, "rank 1 on here (process 1001) died");
    assert_non_null(strstr(verdict.text, "in the data wait"));
}

static void test_verdict_all_were_killed(void **state)
{
    (void)state;
    add_waiters();
    memset(processes, 'X', sizeof processes);
    expect(FLIGHT_KILLED, 1, "2 other processes are gone in the same way");
}

/* The user ended it, not a lack of memory. */
static void test_verdict_interrupted(void **state)
{
    (void)state;
    add_waiters();
    memset(processes, 'X', sizeof processes);
    for (int r = 0; r < WORLD; r++) records[r].head.asked = SIGTERM;
    expect(FLIGHT_KILLED, 1, "was killed");
    assert_non_null(strstr(verdict.text, "(Terminated) had asked it to stop. "));
    assert_non_null(strstr(verdict.text, "killed for memory"));
    for (int r = 0; r < WORLD; r++) records[r].head.asked = SIGINT;
    expect(FLIGHT_KILLED, 1, "was interrupted: its process is gone");
    assert_non_null(strstr(verdict.text, "a second one ends a run at once"));
    assert_null(strstr(verdict.text, "memory"));
}

static void test_verdict_stopped(void **state)
{
    (void)state;
    add_waiters();
    processes[1] = 'T';
    expect(FLIGHT_STOPPED, 1, "SIGSTOP");
    processes[1] = 'S';
    fail_all(1, FAILURE_SILENT, STATUS_PEER, "rank 1 on here (process 1001) has been silent");
    records[1].head.reason = FLIGHT_RUNNING;
    records[1].head.witness = 2;
    records[1].head.process = 'D';
    expect(FLIGHT_STOPPED, 1, "stuck in the kernel");
}

static void test_verdict_own_error(void **state)
{
    (void)state;
    add_waiters();
    fail_all(1, FAILURE_ERROR, STATUS_DATA, "'/data/x.bin' ends at byte 7");
    records[2].head.reason = FLIGHT_RUNNING; /* it did not end by itself, and was killed then */
    processes[2] = 'X';
    expect(FLIGHT_ERRED, 1, "ends at byte 7");
}

static void test_verdict_of_a_rank_without_record(void **state)
{
    (void)state;
    add_waiters();
    fail_all(1, FAILURE_UNREACHABLE, STATUS_PEER, "rank 1 on there (process 9) cannot be reached");
    records[1].entries = NULL;
    expect(FLIGHT_NAMED, 1, "left no record");
}

static void test_verdict_failed_without_a_culprit(void **state)
{
    (void)state;
    fail_all(-1, FAILURE_NONE, STATUS_CHECKPOINT, "no space left");
    expect(FLIGHT_FAILED, -1, "no space left");
}

/* As run_agree() ends a job: the ranks without an error of their own name the lowest that has one. */
static void test_verdict_agreed_failure(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++)
        for (int r = 0; r < WORLD; r++) /* rank 2 was slow, which ended nothing */
            add(r, FLIGHT_ALL_GATHER, i + 1, 100 * i + (r == 2 ? 98 : 48), 100 * i + 100);
    fail_all(1, FAILURE_ERROR, STATUS_BROKEN, "rank 1 has failed (broken)");
    records[1].head.failure = FAILURE_NONE;
    snprintf(records[1].head.error, sizeof records[1].head.error, "rank 1 on here: step 20: silent corruption");
    expect(FLIGHT_ERRED, 1, "Rank 1 on here (process 1001) ended the job with an error of its own.");
    assert_non_null(strstr(verdict.text, "Rank 1 ended with exit code 8: \"rank 1 on here: step 20: silent"));
    fail_all(2, FAILURE_ERROR, STATUS_PEER, "rank 2 has failed (peer)");
    records[2].head.failure = FAILURE_SOFTWARE;
    snprintf(records[2].head.error, sizeof records[2].head.error, "rank 2 on here: GPU 0 (X): a fault of software");
    expect(FLIGHT_ERRED, 2,
           "(process 1002) ended the job: work on its GPU failed, by a fault of software, not of its node.");
    assert_non_null(strstr(verdict.text, "Rank 2 ended with exit code 6: \"rank 2 on here: GPU 0 (X): a fault of"));
    fail_all(2, FAILURE_ERROR, STATUS_DATA, "rank 2 has failed (data)");
    records[2].head.culprit = -1;
    records[2].head.failure = FAILURE_NONE;
    snprintf(records[2].head.error, sizeof records[2].head.error, "'/data/x.bin' ends at byte 7");
    expect(FLIGHT_ERRED, 2, "'/data/x.bin' ends at byte 7");
    records[2].entries = NULL;
    expect(FLIGHT_ERRED, 2, "rank 2 has failed (data)");
    fail_all(7, FAILURE_ERROR, STATUS_DATA, "rank 7 has failed (data)"); /* of a record that is damaged */
    expect(FLIGHT_FAILED, -1, "rank 7");
}

static void test_verdict_non_finite(void **state)
{
    (void)state;
    for (int r = 0; r < WORLD; r++) {
        records[r].head.bad_first = 18;
        records[r].head.bad_last = 20;
        records[r].head.bad_rank = 2;
        snprintf(records[r].head.bad_tensor, sizeof records[r].head.bad_tensor, "wte.weight");
    }
    expect(FLIGHT_NON_FINITE, 2, "step 18, in the gradient of wte.weight");
    fail_all(-1, FAILURE_NONE, STATUS_DIVERGED, "3 steps in a row had non-finite gradients");
    expect(FLIGHT_NON_FINITE, 2, "3 steps in a row");
    fail_all(1, FAILURE_DIVERGED, STATUS_DIVERGED, "step 30: the ranks' copies of the model have drifted apart");
    for (int r = 0; r < WORLD; r++) records[r].step = 30; /* which step 20 does not explain */
    expect(FLIGHT_NAMED, 1, "drifted apart");
    fail_all(-1, FAILURE_NONE, STATUS_DIVERGED,
             "step 30: ranks 0 (on here) and 1 (on here) hold different parameters of wte.weight");
    expect(FLIGHT_FAILED, -1, "no rank stands out");
    make_records(NULL);
    records[0].head.bad_first = records[0].head.bad_last = 3; /* long ago */
    expect(FLIGHT_FINE, -1, "Nothing stands out");
}

static void test_verdict_silent(void **state)
{
    (void)state;
    for (int r = 0; r < WORLD; r++) processes[r] = '?'; /* of other machines */
    records[2].head.wall -= 30LL * SECOND;
    records[2].head.written -= 30LL * SECOND;
    expect(FLIGHT_SILENT, 2, "has not renewed its record");
    for (int i = 0; i < 4; i++) /* its clock is behind by 30 seconds, as the ends of barriers show */
        for (int r = 0; r < WORLD; r++) add(r, FLIGHT_BARRIER, i + 1, 1000 * i, 1000 * i + 10);
    records[2].head.written += 30LL * SECOND;
    expect(FLIGHT_FINE, -1, "Nothing stands out");
    records[2].head.wall -= 20LL * SECOND; /* and its record is old */
    records[2].head.written -= 20LL * SECOND;
    expect(FLIGHT_SILENT, 2, "has not renewed its record");
}

static void test_verdict_all_are_silent(void **state)
{
    (void)state;
    now = 114;
    expect(FLIGHT_FINE, -1, "Nothing stands out");
    now = 3600;
    add(0, FLIGHT_ALL_GATHER, 5, 9500, 0);
    expect(FLIGHT_SILENT, -1, "Rank 0 waited in the all-gather 5");
    assert_non_null(strstr(verdict.text, "No rank has renewed its record since "));
    for (int r = 0; r < WORLD; r++) records[r].head.reason = FLIGHT_ENDED;
    expect(FLIGHT_FINE, -1, "Nothing stands out");
}

static void test_verdict_waits_for_a_rank_without_record(void **state)
{
    (void)state;
    records[1].entries = NULL;
    add(0, FLIGHT_ALL_GATHER, 5, 9000, 0);
    expect(FLIGHT_FINE, -1, "2 of 3 ranks have a record");
    add(2, FLIGHT_ALL_GATHER, 5, 7000, 0);
    expect(FLIGHT_MISSING, 1, "Rank 1 left no record, and the others wait in a collective");
}

static void test_verdict_different_collectives(void **state)
{
    (void)state;
    fail_all(-1, FAILURE_NONE, STATUS_BUG, "rank 0 is in a barrier … while rank 1 is in an exchange");
    add(0, FLIGHT_BARRIER, 8, 1000, 0);
    add(1, FLIGHT_EXCHANGE, 8, 1000, 0);
    add(2, FLIGHT_BARRIER, 8, 1000, 0);
    expect(FLIGHT_MISSING, 1, "in the exchange 8");
}

static void test_verdict_slow(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++)
        for (int r = 0; r < WORLD; r++) /* 100 ms each, of which the others wait 50 for rank 2 */
            add(r, FLIGHT_REDUCE_SCATTER, i + 1, 100 * i + (r == 2 ? 98 : 48), 100 * i + 100);
    records[1].head.wall += 3LL * SECOND; /* its clock is wrong */
    records[2].head.written += SECOND;
    records[2].head.wall += SECOND;
    expect(FLIGHT_SLOW, 2, "last to come in 30 of 30 collectives");
    for (int i = 0; i < 30; i += 3) { /* in a third of them rank 0 is late */
        const int64_t early = entries[0][i].start;
        entries[0][i].start = entries[2][i].start;
        entries[2][i].start = early;
    }
    expect(FLIGHT_FINE, -1, "Nothing stands out");
}

/* Ranks 0 and 1 waited for a minute before the first entry of rank 2, which its time does not have. */
static void test_verdict_waits_before_the_first_entry(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++)
        for (int r = 0; r < WORLD; r++)
            add(r, FLIGHT_ALL_GATHER, i + 1, 60000 + 100 * i + (r == 2 ? 98 : 97) - (i == 0 && r < 2 ? 60000 : 0),
                60000 + 100 * i + 100);
    expect(FLIGHT_FINE, -1, "Nothing stands out");
}

/* A millisecond in each collective: much where a step has many of them, and little where each is a step of its own. */
static void test_verdict_slow_by_little(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++)
        for (int r = 0; r < WORLD; r++) add(r, FLIGHT_ALL_GATHER, i + 1, 4 * i + (r == 1 ? 3 : 2), 4 * i + 4);
    expect(FLIGHT_SLOW, 1, "last to come in 30 of 30 collectives");
    for (int r = 0; r < WORLD; r++)
        for (int i = 0; i < 30; i++) entries[r][i].step = 20 + i;
    expect(FLIGHT_FINE, -1, "Nothing stands out");
}

int main(void)
{
#define RECORDING(test) cmocka_unit_test_setup_teardown(test, start, finish)
#define VERDICT(test) cmocka_unit_test_setup(test, make_records)
    const struct CMUnitTest tests[] = {
        RECORDING(test_nothing_is_recorded_before_use),
        RECORDING(test_an_entry_has_what_was_recorded),
        RECORDING(test_the_ring_keeps_the_last_entries),
        RECORDING(test_phases_become_entries_and_steps_are_timed),
        RECORDING(test_any_changed_bit_but_the_end_is_noticed),
        RECORDING(test_numbers_that_cannot_be_are_left_out),
        RECORDING(test_several_threads_write_while_one_reads),
        RECORDING(test_a_file_gives_back_what_was_written),
        RECORDING(test_what_is_damaged_is_left_out),
        RECORDING(test_a_file_that_cannot_be_made_is_an_errno),
        RECORDING(test_starts_are_ordered_by_count),
        RECORDING(test_a_new_start_counts_on),
        VERDICT(test_verdict_nothing),
        VERDICT(test_verdict_missing_in_a_collective),
        VERDICT(test_verdict_killed),
        VERDICT(test_verdict_all_were_killed),
        VERDICT(test_verdict_interrupted),
        VERDICT(test_verdict_stopped),
        VERDICT(test_verdict_own_error),
        VERDICT(test_verdict_of_a_rank_without_record),
        VERDICT(test_verdict_failed_without_a_culprit),
        VERDICT(test_verdict_agreed_failure),
        VERDICT(test_verdict_non_finite),
        VERDICT(test_verdict_silent),
        VERDICT(test_verdict_all_are_silent),
        VERDICT(test_verdict_waits_for_a_rank_without_record),
        VERDICT(test_verdict_different_collectives),
        VERDICT(test_verdict_slow),
        VERDICT(test_verdict_waits_before_the_first_entry),
        VERDICT(test_verdict_slow_by_little),
    };
    return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
