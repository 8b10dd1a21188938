/* token_files.h: token shards for tests, written to a temporary folder that a group's setup makes.
 *
 * Most shards count: token i of the stream is i modulo the vocabulary, so a token shows where it came from. */
#pragma once

#include "core/data/permute.h"
#include "core/data/token_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static inline const char *at(const char *name)
{
    static char paths[8][128];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%.60s", folder, name);
    return path;
}

static inline void write_file(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(at(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Writes bytes over a part of a file, or after its end. */
static inline void patch(const char *name, int64_t offset, const void *bytes, size_t count)
{
    int fd = open(at(name), O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, offset), count);
    close(fd);
}

static inline int64_t put(unsigned char *out, int64_t position, const void *value, size_t bytes)
{
    memcpy(out + position, value, bytes);
    return position + (int64_t)bytes;
}

/* PREFIX.bin and PREFIX.idx: documents of the given lengths, tokens counting up from `first` modulo vocab. */
static inline void megatron(const char *prefix, int token_bytes, const int *lengths, int documents, int64_t first,
                            int vocab)
{
    char name[64];
    int64_t total = 0, position = 0;
    for (int i = 0; i < documents; i++)
        total += lengths[i];
    unsigned char *bin = malloc((size_t)(total * token_bytes) + 1);
    for (int64_t i = 0; i < total; i++) {
        uint32_t id = (uint32_t)((first + i) % vocab);
        memcpy(bin + i * token_bytes, &id, (size_t)token_bytes);
    }
    snprintf(name, sizeof name, "%s.bin", prefix);
    write_file(name, bin, (size_t)(total * token_bytes));
    free(bin);

    uint64_t version = 1, sequences = (uint64_t)documents, entries = sequences + 1;
    uint8_t code = token_bytes == 2 ? 8 : 4;
    unsigned char *idx = malloc(34 + 20 * (size_t)documents + 8);
    position = put(idx, 0, "MMIDIDX\0", 9);
    position = put(idx, position, &version, 8);
    position = put(idx, position, &code, 1);
    position = put(idx, position, &sequences, 8);
    position = put(idx, position, &entries, 8);
    for (int i = 0; i < documents; i++)
        position = put(idx, position, &lengths[i], 4);
    for (int64_t i = 0, pointer = 0; i < documents; pointer += (int64_t)lengths[i] * token_bytes, i++)
        position = put(idx, position, &pointer, 8);
    for (int64_t i = 0; i <= documents; i++)
        position = put(idx, position, &i, 8);
    snprintf(name, sizeof name, "%s.idx", prefix);
    write_file(name, idx, (size_t)position);
    free(idx);
}

static inline void llmc(const char *name, int32_t magic, int32_t version, int count, int64_t first, int vocab)
{
    int token_bytes = magic == 20240520 ? 2 : 4;
    size_t size = 1024 + (size_t)(count * token_bytes);
    unsigned char *bytes = calloc(1, size);
    int32_t header[3] = {magic, version, count};
    memcpy(bytes, header, sizeof header);
    for (int i = 0; i < count; i++) {
        uint32_t id = (uint32_t)((first + i) % vocab);
        memcpy(bytes + 1024 + i * token_bytes, &id, (size_t)token_bytes);
    }
    write_file(name, bytes, size);
    free(bytes);
}

static inline int setup(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_data.XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static inline struct token_set *open_one(const char *pattern)
{
    struct error err;
    struct token_set *set = NULL;
    const char *path = at(pattern);
    if (token_set_open(&path, 1, &set, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return set;
}
