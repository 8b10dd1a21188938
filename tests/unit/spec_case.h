/* spec_case.h: run specs from text and files, for the tests of the run spec's reader. */
#ifndef TESTS_SPEC_CASE_H
#define TESTS_SPEC_CASE_H

#include "core/spec/spec.h"
#include "core/spec/spec_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Three lines that are enough for a run but for the learning rate, which the loaders below add; the lines that a case
 * adds start in line 4. */
#define BASE                                 \
    "model: {pretrained: models/gpt2}\n"     \
    "data: {train: data/a, seq_length: 8}\n" \
    "train_batch_size: 8\n"

static char folder[] = "/tmp/ztrain-test-spec-XXXXXX";

static inline int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

/* Writes a file of the test folder; its path is in a static buffer per name. */
static inline const char *write_file(const char *name, const char *text, size_t size)
{
    static char paths[2][sizeof folder + 32];
    char *path = paths[strcmp(name, "ds.json") == 0];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    fclose(file);
    return path;
}

static inline void print_lines(const struct string_list *lines)
{
    for (int i = 0; i < lines->count; i++)
        print_error("    %s\n", lines->items[i]);
}

/* A line that holds `fragment`, or NULL. */
static inline const char *find_line(const struct string_list *lines, const char *fragment)
{
    for (int i = 0; i < lines->count; i++)
        if (strstr(lines->items[i], fragment))
            return lines->items[i];
    return NULL;
}

static inline void expect_line(const struct string_list *lines, const char *fragment)
{
    if (!find_line(lines, fragment)) {
        print_error("no line has '%s'; lines:\n", fragment);
        print_lines(lines);
        fail();
    }
}

/* Loads a text with overrides, and with a learning rate unless the text or an override has one. */
static inline enum status load_case(const char *text, const char *const *sets, int num_sets, struct run_spec **spec,
                                    struct spec_report *report)
{
    const char *all[16] = {"optimizer.params.lr=1e-3"};
    bool has_lr = strstr(text, " lr:") || strstr(text, "{lr:");
    assert_true(num_sets < 15);
    for (int i = 0; i < num_sets; i++) {
        all[1 + i] = sets[i];
        has_lr = has_lr || strncmp(sets[i], "optimizer=", 10) == 0;
    }
    return spec_load(write_file("run.yaml", text, strlen(text)), NULL, all + has_lr, num_sets + !has_lr, spec, report);
}

/* Loads a spec that has to be good. */
static inline struct run_spec *load_good(const char *text, const char *const *sets, int num_sets)
{
    struct run_spec *spec;
    struct spec_report report = {0};
    if (load_case(text, sets, num_sets, &spec, &report) != STATUS_OK) {
        print_error("refused:\n%s\n", text);
        print_lines(&report.errors);
        fail();
    }
    assert_int_equal(report.errors.count, 0);
    spec_report_release(&report);
    return spec;
}

static inline enum status load_deepspeed(const char *yaml, const char *json, struct run_spec **spec,
                                         struct spec_report *report)
{
    const char *path = write_file("run.yaml", yaml, strlen(yaml));
    return spec_load(path, write_file("ds.json", json, strlen(json)), NULL, 0, spec, report);
}

#endif
