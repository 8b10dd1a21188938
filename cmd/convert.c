/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c: `ztrain convert FILE…` turns another trainer's configuration into a run spec. */
#include "cmd/command_line.h"
#include "core/spec/spec.h"

static const char USAGE[] =
    "usage: ztrain convert FILE… [--deepspeed FILE] [--world N] [--out FILE [--force]]\n"
    "\n"
    "Prints a run spec that does what the files ask of another trainer; notes on stderr say what ztrain does not\n"
    "take over. Files, in YAML or JSON: arguments of Hugging Face's Trainer or of TRL's SFT, a configuration of\n"
    "axolotl or of LLaMA-Factory. A key of a later file counts before that of an earlier one.\n"
    "Exit code 0: also with notes; 2: a file cannot be read, is of an unknown kind, or FILE of --out is there.\n"
    "\n"
    "  FILE               a configuration\n"
    "  --deepspeed FILE   a DeepSpeed configuration; default: the one that the files name\n"
    "  --world N          the number of GPUs, which gives train_batch_size\n"
    "  --out FILE         writes the run spec there, not to stdout; FILE must not be there\n"
    "  --force            replaces FILE, but never a file that is read\n"
    "\n"
    "  ztrain convert axolotl.yaml --out run.yaml\n"
    "  ztrain convert training_args.json --deepspeed ds_config.json --world 8 > run.yaml\n";

enum { CONVERT_FILES = 16, CONVERT_MOST_RANKS = 1 << 20 };

struct convert_options {
    const char *files[CONVERT_FILES];
    const char *deepspeed, *world, *out;
    bool force;
};

static const struct option_row rows[] = {
    OPTION(struct convert_options, deepspeed, "deepspeed", "FILE"),
    OPTION(struct convert_options, world, "world", "N"),
    OPTION(struct convert_options, out, "out", "FILE"),
    OPTION(struct convert_options, force, "force", NULL),
};
static const struct command_line line = {
    "convert", USAGE, "configuration", CONVERT_FILES, "ztrain convert axolotl.yaml", rows, COUNT_OF(rows)};

/* Prints each line to stderr after its mark: "note: ". */
static void convert_print(const struct string_list *lines, const char *mark)
{
    for (int i = 0; i < lines->count; i++) {
        const size_t room = 4 * strlen(lines->items[i]) + 8;
        OWNED char *buffer = memory_alloc(room);
        fprintf(stderr, "%s%s\n", mark, printable(lines->items[i], buffer, room));
    }
}

enum status cmd_convert(int argc, char **argv, struct error *err)
{
    struct convert_options options = {.out = NULL};
    RELEASED(string_list_release) struct string_list notes = {0}, errors = {0};
    TRY(command_line_parse(&line, argc, argv, &options, err));
    int64_t world = 0;
    TRY(option_integer("world", options.world, "a number of ranks", 1, CONVERT_MOST_RANKS, &world, err));
    struct convert_request request = {
        .files = options.files, .deepspeed = options.deepspeed, .out = options.out, .world = (int)world};
    while (request.num_files < CONVERT_FILES && options.files[request.num_files]) request.num_files++;
    if (options.out) TRY(command_check_out(options.out, options.force, err));
    OWNED char *text = NULL;
    size_t size = 0;
    FILE *out = memory_stream(&text, &size);
    const enum status status = spec_convert(&request, out, &notes, &errors, err);
    fclose(out);
    convert_print(&errors, "ztrain: error: ");
    TRY(status);
    convert_print(&notes, "note: ");
    if (options.out) return named_file_write(options.out, text, size, STATUS_USAGE, err);
    fwrite(text, 1, size, stdout);
    return STATUS_OK;
}
