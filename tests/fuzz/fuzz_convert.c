/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_convert.c: any bytes as the configuration of another trainer; after a NUL as a DeepSpeed configuration beside
 * it. What converts must be YAML with keys, and the rest must be refused without a word of a run spec. */
#include "core/spec/spec.h"
#include "core/spec/spec_tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Puts the bytes into a file in memory, and writes its name. */
static void put(int *fd, const uint8_t *data, size_t size, char path[32])
{
    if (*fd < 0) *fd = memfd_create("source", 0);
    ASSERT(ftruncate(*fd, 0) == 0 && pwrite(*fd, data, size, 0) == (ssize_t)size);
    snprintf(path, 32, "/proc/self/fd/%d", *fd);
}

static void check_yaml(const char *text, size_t size)
{
    struct spec_arena arena = {0};
    const char *sources[] = {"run.yaml", ""};
    struct spec_context ctx = {.arena = &arena, .sources = sources, .num_sources = 2};
    const struct spec_node *root = spec_parse_yaml(&ctx, 0, text, size);
    ASSERT(root && root->kind == NODE_MAPPING && root->count > 0 && ctx.errors.count == 0);
    spec_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fds[2] = {-1, -1};
    char file[32], deepspeed[32];
    const uint8_t *second = size ? memchr(data, 0, size) : NULL;
    put(&fds[0], data, second ? (size_t)(second - data) : size, file);
    if (second) put(&fds[1], second + 1, size - (size_t)(second + 1 - data), deepspeed);
    const char *files[] = {file};
    const struct convert_request request = {
        .files = files, .num_files = 1, .deepspeed = second ? deepspeed : NULL, .world = size % 3 ? 0 : 8};
    struct string_list notes = {0}, errors = {0};
    struct error err = {.code = STATUS_OK};
    char *text = NULL;
    size_t written = 0;
    FILE *out = open_memstream(&text, &written);
    ASSERT(out);
    const enum status status = spec_convert(&request, out, &notes, &errors, &err);
    fclose(out);
    if (status == STATUS_OK) {
        ASSERT(errors.count == 0);
        check_yaml(text, written);
    } else {
        ASSERT(status == STATUS_USAGE && *err.text && written == 0);
    }
    free(text);
    string_list_release(&notes);
    string_list_release(&errors);
    return 0;
}
