/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a rank file of known slices, as they are and with all checksums set right: refused with words, or every
 * element can be read. */
#include "ckpt/rankfile.h"
#include "tests/unit/fixtures/rankfile_range.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER = 64, ENTRY = 40, FRAMES = 4, TABLE = 8 + FRAMES * ENTRY };

static const int64_t slices[] = {100, 5};
static const char *const state_names[] = {"one", "two"};
static const struct rankfile_shape shape = {1, 3, 2, 2, slices, state_names, NULL};

static void read_all(const uint8_t *data, size_t size, uint64_t index_checksum)
{
    struct rankfile_facts facts = {(int64_t)size, FRAMES, index_checksum};
    struct rankfile *file;
    struct error err = {.code = STATUS_OK};
    char path[64];
    float out[100];
    int fd = memfd_create("rank", 0);
    ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (rankfile_open(path, &shape, &facts, &file, &err) == STATUS_OK) {
        bool valid = rankfile_verify(file, &err) == STATUS_OK;
        ASSERT(valid || err.text[0]);
        for (int i = 0; i < 4; i++) {
            enum status status = rankfile_range(file, i / 2, i % 2, 1, slices[i % 2] - 2, out, &err);
            ASSERT(!valid || status == STATUS_OK);
        }
        rankfile_close(file);
    } else {
        ASSERT(err.code == STATUS_CHECKPOINT && err.text[0]);
    }
    close(fd);
}

/* Makes the checksums of frames (as far as the table's entries lie in the file) and of the header right; returns the
 * index's. */
static uint64_t seal(uint8_t *data, size_t size)
{
    uint8_t index[HEADER + TABLE], *table = data + size - TABLE;
    uint64_t checksum = XXH3_64bits(data, 56);
    memcpy(data + 56, &checksum, sizeof checksum);
    for (int i = 0; i < FRAMES; i++) {
        uint8_t *entry = table + 8 + i * ENTRY;
        uint32_t stored;
        uint64_t offset;
        memcpy(&stored, entry + 20, sizeof stored);
        memcpy(&offset, entry + 24, sizeof offset);
        if (offset > size || stored > size - offset) continue;
        checksum = XXH3_64bits(data + offset, stored);
        memcpy(entry + 32, &checksum, sizeof checksum);
    }
    memcpy(index, data, HEADER);
    memcpy(index + HEADER, table, TABLE);
    return XXH3_64bits(index, sizeof index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_all(data, size, 0);
    if (size < HEADER + TABLE || size > 1 << 20) return 0;
    uint8_t *copy = malloc(size);
    memcpy(copy, data, size);
    read_all(copy, size, seal(copy, size));
    free(copy);
    return 0;
}
