/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_spec.c: any bytes as a run spec. What is accepted must be written and read back to the same; the rest must be
 * refused with at least one line. Text that starts with a brace or a comment also goes through the reader of
 * DeepSpeed's files. */
#include "core/spec/spec.h"
#include "core/spec/spec_tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Loads a text, from a file in memory. */
static enum status load(const char *text, size_t size, struct run_spec **spec, struct spec_report *report)
{
    static int fd = -1;
    char path[32];
    if (fd < 0) fd = memfd_create("run.yaml", 0);
    ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, text, size, 0) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return spec_load(path, NULL, NULL, 0, spec, report);
}

static void resolve(struct run_spec *spec)
{
    struct error err;
    if (spec_resolve_batch(spec, 2, "the fuzzer", &err) == STATUS_OK) spec_resolve_steps(spec, 7);
}

/* Written and read back; resolved as the spec is. */
static void round_trip(const struct run_spec *spec, bool resolved)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ASSERT(out);
    spec_write_yaml(spec, out);
    fclose(out);
    struct run_spec *again;
    struct spec_report report = {0};
    ASSERT(load(text, size, &again, &report) == STATUS_OK);
    if (resolved) resolve(again);
    json_t *a = spec_to_json(spec), *b = spec_to_json(again);
    ASSERT(json_equal(a, b));
    json_decref(a);
    json_decref(b);
    spec_free(again);
    spec_report_release(&report);
    free(text);
}

static void read_json(const char *text, size_t size)
{
    struct spec_arena arena = {0};
    const char *sources[] = {"run.yaml", "ds.json"};
    struct spec_context ctx = {.arena = &arena, .sources = sources, .num_sources = 2};
    const struct spec_node *root = spec_parse_json(&ctx, 1, text, size);
    ASSERT(root || ctx.errors.count > 0); /* a key set twice is an error beside a tree */
    spec_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = size ? (const char *)data : "";
    struct run_spec *spec;
    struct spec_report report = {0};
    if (load(text, size, &spec, &report) == STATUS_OK) {
        ASSERT(report.errors.count == 0);
        round_trip(spec, false);
        resolve(spec);
        round_trip(spec, true);
        spec_free(spec);
    } else {
        ASSERT(report.errors.count > 0 && !spec);
    }
    spec_report_release(&report);
    if (size && strchr("{#/", text[0])) read_json(text, size);
    return 0;
}
