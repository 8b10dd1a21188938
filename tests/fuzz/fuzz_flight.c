/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the head and the entries of a flight record, with the checks that fit them: left out, or a verdict. */
#include "core/flight/flight_verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEADS = 8192, MOST_WORLD = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void judge(const struct flight_record *record)
{
    static struct flight_view views[MOST_WORLD];
    static struct flight_verdict verdict;
    const int world = record->head.world;
    if (world > MOST_WORLD) return;
    for (int r = 0; r < world; r++) flight_view_init(&views[r], NULL, '?');
    flight_view_init(&views[record->head.rank], record, record->head.process);
    flight_compare_clocks(views, world);
    flight_judge(views, world, 1e9, &verdict);
    ASSERT(verdict.text[0] && verdict.rank < world);
}

/* The input: the JSON of the head, a NUL, then entries. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char file[FLIGHT_FILE_BYTES];
    struct flight_record record;
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    const size_t length = end ? (size_t)(end - data) : size, rest = size - length;
    if (length > HEADS / 2 - 100) return 0;
    memset(file, 0, sizeof file);
    int n = snprintf(file, 100, "ztrain-flight 2 %016" PRIx64 " %zu 1\n", (uint64_t)XXH3_64bits(data, length), length);
    memcpy(file + n, data, length);
    for (size_t at = 0; at + 56 <= rest && at / 56 < FLIGHT_ENTRIES; at += 56) {
        uint64_t words[FLIGHT_ENTRY_WORDS];
        memcpy(words, data + length + at, 56);
        words[0] = at / 56 + 1;
        words[7] = flight_check(words);
        memcpy(file + HEADS + at / 56 * sizeof words, words, sizeof words);
    }
    if (flight_record_parse(file, sizeof file, &record)) judge(&record);
    flight_record_release(&record);
    return 0;
}
