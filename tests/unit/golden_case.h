/* golden_case.h: reads a folder of tests/golden for unit tests. Aborts if a file is not as expected. */
#pragma once

#include "core/model/model_config.h"
#include "core/model/tensor_table.h"

#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_FOLDER "tests/golden/"

static inline void golden_check(bool good, const char *what, const char *path)
{
    if (!good) {
        fprintf(stderr, "%s: %s; hint: run tests from the repository's root\n", path, what);
        abort();
    }
}

/* Returns a whole file, with a zero byte after it; the caller frees it. */
static inline char *golden_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    golden_check(file != NULL, "cannot open", path);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *data = calloc(1, (size_t)length + 1);
    golden_check(data && fread(data, 1, (size_t)length, file) == (size_t)length, "cannot read", path);
    fclose(file);
    *bytes = (size_t)length;
    return data;
}

static inline json_t *golden_expected(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, GOLDEN_FOLDER "%s/expected.json", name);
    json_t *expected = json_load_file(path, 0, NULL);
    golden_check(expected != NULL, "not JSON", path);
    return expected;
}

static inline double golden_number(const json_t *object, const char *a, const char *b, const char *c)
{
    const json_t *value = json_object_get(object, a);
    value = b ? json_object_get(value, b) : value;
    value = c ? json_object_get(value, c) : value;
    golden_check(json_is_number(value), "number expected", a);
    return json_number_value(value);
}

/* Puts one tensor of a safetensors file, as fp32, where `table` has it in the flat ranges units[]. */
static inline bool golden_place(const struct tensor_table *table, float *const *units, const char *name,
                                const char *data, const char *dtype)
{
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[i];
        const char *prefix = "transformer.";
        bool same = !strcmp(tensor->name, name);
        bool same_but_prefix =
            !strncmp(tensor->name, prefix, strlen(prefix)) && !strcmp(tensor->name + strlen(prefix), name);
        if (!same && !same_but_prefix)
            continue;
        float *out = units[tensor->unit] + tensor->offset;
        for (int64_t k = 0; k < tensor->numel; k++) {
            uint16_t half;
            if (!strcmp(dtype, "F32")) {
                memcpy(&out[k], data + 4 * k, 4);
            } else {
                golden_check(!strcmp(dtype, "BF16"), "F32 or BF16 expected", name);
                memcpy(&half, data + 2 * k, 2);
                out[k] = bf16_to_f32(half);
            }
        }
        return true;
    }
    return false;
}

/* Reads the tensors of tests/golden/NAME/FILES (a pattern) into units[] (fp32, laid out as in the table); all of the
 * table's tensors must be there. */
static inline void golden_tensors(const char *name, const char *files, const struct tensor_table *table,
                                  float *const *units)
{
    char pattern[256];
    snprintf(pattern, sizeof pattern, GOLDEN_FOLDER "%s/%s", name, files);
    glob_t matches;
    golden_check(glob(pattern, 0, NULL, &matches) == 0, "no such file", pattern);
    int found = 0;
    for (size_t i = 0; i < matches.gl_pathc; i++) {
        size_t bytes;
        char *data = golden_file(matches.gl_pathv[i], &bytes);
        uint64_t header;
        memcpy(&header, data, sizeof header);
        json_t *entries = json_loadb(data + 8, (size_t)header, 0, NULL);
        golden_check(entries != NULL, "not a safetensors header", matches.gl_pathv[i]);
        const char *key;
        json_t *entry;
        json_object_foreach(entries, key, entry)
        {
            json_t *offsets = json_object_get(entry, "data_offsets");
            const char *dtype = json_string_value(json_object_get(entry, "dtype"));
            if (offsets)
                found += golden_place(table, units, key,
                                      data + 8 + header + json_integer_value(json_array_get(offsets, 0)), dtype);
        }
        json_decref(entries);
        free(data);
    }
    globfree(&matches);
    golden_check(found == table->num_tensors, "tensors are missing", pattern);
}

/* Tokens of NAME/PART.bin, and the lengths of the documents of NAME/PART.idx. */
struct golden_tokens {
    uint16_t *tokens;
    int32_t *lengths;
    int64_t num_tokens, num_documents;
};

static inline struct golden_tokens golden_tokens_read(const char *name, const char *part)
{
    enum { SIZES = 9 + 8 + 1 + 8 + 8 }; /* bytes before the lengths: magic, version, dtype code, two counts */
    char path[256];
    size_t bytes;
    snprintf(path, sizeof path, GOLDEN_FOLDER "%s/%s.idx", name, part);
    char *index = golden_file(path, &bytes);
    uint64_t documents;
    memcpy(&documents, index + 18, sizeof documents);
    golden_check(bytes > SIZES + documents * sizeof(int32_t), "too short", path);
    struct golden_tokens out = {.num_documents = (int64_t)documents, .lengths = malloc(documents * sizeof(int32_t))};
    memcpy(out.lengths, index + SIZES, documents * sizeof(int32_t));
    free(index);
    snprintf(path, sizeof path, GOLDEN_FOLDER "%s/%s.bin", name, part);
    out.tokens = (uint16_t *)(void *)golden_file(path, &bytes);
    out.num_tokens = (int64_t)(bytes / sizeof(uint16_t));
    return out;
}

static inline void golden_tokens_release(struct golden_tokens *tokens)
{
    free(tokens->tokens);
    free(tokens->lengths);
}
