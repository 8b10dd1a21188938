/* SPDX-License-Identifier: Apache-2.0 */
/* spec_pages.c: --help-spec and --help-spec --markdown (the pages docs/run-spec*.md), made from the key table.
 *
 * A page begins with a line that names its file, where `make doc` divides the output. A cell has at most
 * PAGE_CELL_WORDS words: the other clauses of a longer explanation are in a list below the table. */
#include "core/printable.h"
#include "core/spec/spec_keys.h"

#include <ctype.h>
#include <string.h>

static const char *const type_names[KEY_TYPE_COUNT] = {
    [KEY_SECTION] = "section",
    [KEY_FOREIGN] = "section",
    [KEY_ALIAS] = "old name",
    [KEY_BOOL] = "true, false",
    [KEY_INT] = "integer",
    [KEY_REAL] = "number",
    [KEY_REAL_PAIR] = "[number, number]",
    [KEY_SIZE] = "size",
    [KEY_STRING] = "text",
    [KEY_STRING_LIST] = "text or list",
    [KEY_SOURCES] = "text or list",
    [KEY_PROMPTS] = "list",
    [KEY_MODULES] = "expression or list",
    [KEY_PATTERNS] = "mapping",
    [KEY_BLOCKS] = "integer or list",
    [KEY_CHOICE] = "choice",
    [KEY_MODEL_CONFIG] = "path or mapping",
    [KEY_ANY] = "any",
};
_Static_assert(COUNT_OF(type_names) == KEY_TYPE_COUNT, "every type has a name");

static void spec_help_value(FILE *out, const struct spec_key *key)
{
    const char *glue = "";
    if (key->type != KEY_CHOICE)
        fputs(type_names[key->type], out);
    for (const struct spec_choice *choice = key->choices; key->type == KEY_CHOICE && choice->name; choice++)
        if (choice->verdict == VERDICT_USED) {
            fprintf(out, "%s%s", glue, choice->name);
            glue = ", ";
        }
    const bool above = key->flags & KEY_ABOVE_MIN;
    if (key->min < key->max && (key->max >= 1e15 || above))
        fprintf(out, " %s %.15g", above ? "above" : "from", key->min);
    else if (key->min < key->max)
        fprintf(out, " %.15g to %.15g", key->min, key->max);
    if (key->flags & KEY_AUTO)
        fputs(", or auto", out);
}

static void spec_help_types(FILE *out, const struct spec_key *key)
{
    const char *glue = "";
    for (int i = 0; i < SCHEDULE_COUNT || i < OPTIMIZER_COUNT; i++) {
        bool schedule = key->schedules & 1u << i;
        if (!schedule && !(key->optimizers & 1u << i))
            continue;
        fprintf(out, "%s%s", glue,
                schedule ? schedule_name((enum schedule_type)i) : optimizer_name((enum optimizer_type)i));
        glue = ", ";
    }
}

static const char *spec_help_default(const struct spec_key *key)
{
    return key->fallback ? key->fallback : key->flags & (KEY_REQUIRED | KEY_NEEDED) ? "required" : "unset";
}

static void spec_help_below(FILE *out, const char *text)
{
    wrapped_put(out, 100, "        ", text, strlen(text));
}

static void spec_help_used(FILE *out)
{
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (key->type == KEY_SECTION || key->verdict != VERDICT_USED || key->type == KEY_ALIAS)
            continue;
        fprintf(out, "%s  (", key->path);
        spec_help_value(out, key);
        fprintf(out, "; %s%s)\n", key->flags & (KEY_REQUIRED | KEY_NEEDED) ? "" : "default ", spec_help_default(key));
        if (key->schedules || key->optimizers) {
            fputs("        for ", out);
            spec_help_types(out, key);
            fputc('\n', out);
        }
        spec_help_below(out, key->help);
    }
}

static void print_verdict(FILE *out, enum spec_verdict verdict, const char *title)
{
    fprintf(out, "\n%s\n", title);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (key->verdict != verdict || key->type == KEY_SECTION || key->type == KEY_ALIAS)
            continue;
        fprintf(out, "%s", key->path);
        if (key->fallback)
            fprintf(out, "  (only %s)", key->fallback);
        fputc('\n', out);
        spec_help_below(out, key->help);
    }
}

void spec_print_help(FILE *out)
{
    fputs("Keys of the run spec (YAML; a.b stands for key b in section a). --set a.b=VALUE overrides the file.\n\n",
          out);
    spec_help_used(out);
    print_verdict(out, VERDICT_LATER, "DeepSpeed's keys that are not supported yet:");
    print_verdict(out, VERDICT_NOTICE,
                  "Keys of DeepSpeed and PEFT that have no effect here (accepted, with a notice):");
    print_verdict(out, VERDICT_REFUSED, "Keys of DeepSpeed and PEFT that are refused when switched on:");
    fputs("\nOld names:\n", out);
    for (const struct spec_key *key = spec_keys; key->path; key++)
        if (key->type == KEY_ALIAS)
            fprintf(out, "%s: now %s\n", key->path, key->fallback);
}

/* ---- prose of the pages -------------------------------------------------- */

enum { PAGE_CELL_WORDS = 25, PAGE_MAX_SECTIONS = 6 };

struct spec_page {
    const char *file;
    const char *sections[PAGE_MAX_SECTIONS]; /* whose keys are on the page; TOP_LEVEL: the keys without a section */
    void (*print)(FILE *out);                /* NULL: their tables */
    const char *about;                       /* for the index */
    const char *opening;                     /* title, what the page is for, a command */
};

#define TOP_LEVEL "At top level"
#define TOP_LEVEL_HELP "sizes of batches, clipping, output"

static const char how_to_read[] =
    "## An example\n\n"
    "```yaml\n"
    "model:\n"
    "  config: models/tiny.json        # or pretrained: a Hugging Face folder\n"
    "data:\n"
    "  train: data/train               # data/train.bin and data/train.idx\n"
    "  validation: data/train-validation\n"
    "  seq_length: 1024\n"
    "train:\n"
    "  epochs: 1\n"
    "train_batch_size: 64\n"
    "train_micro_batch_size_per_gpu: 4\n"
    "gradient_clipping: 1.0\n"
    "optimizer: {type: AdamW, params: {lr: 3e-4, betas: [0.9, 0.95], weight_decay: 0.1}}\n"
    "scheduler: {type: Cosine, params: {warmup_steps: 100, min_lr: 3e-5}}\n"
    "bf16: {enabled: true}\n"
    "zero_optimization: {stage: 3}\n"
    "```\n\n"
    "`run`, `model`, `data`, `train`, `comm` and most of `checkpoint` are ztrain's own. The other keys\n"
    "have DeepSpeed's names and meaning, with a few more. They may also come from a DeepSpeed\n"
    "configuration (`--deepspeed ds_config.json`): JSON or, as DeepSpeed reads it, Hjson (comments, keys\n"
    "without quotes, trailing commas).\n\n"
    "## How the spec is read\n\n"
    "- ztrain reports all errors at once, as `file:line:column: message; hint`, and exits with 2. An\n"
    "  unknown key is an error, and so is a key that is set twice, or to different values in two files.\n"
    "  1:1 is the place of an absent key.\n"
    "- Paths are relative to the current folder. `~` or `~/` at the beginning is the home folder (HOME),\n"
    "  also in `--set`.\n"
    "- `--set a.b.c=VALUE` replaces a value after the files are read and before anything is checked.\n"
    "  VALUE is YAML (`[0.9, 0.95]`, `true`, `5e8`, `{stage: 3}`). `null` unsets a key that has no\n"
    "  default, and drops an unknown key of a file. The last `--set` of a key wins.\n"
    "- `5e8`, `1e-5` and `5E+8` are numbers, and `5e8` may be an integer. NaN and infinity are refused.\n"
    "  Truth values are `true` and `false`; DeepSpeed's keys also take 1 and 0.\n"
    "- Every key of DeepSpeed's takes `\"auto\"`. A value in the other file counts, as Trainer's arguments\n"
    "  do. If there is none, a key whose table says \"or auto\" follows from other keys, the ranks, the\n"
    "  model or the data, and any other has its default. The start prints each `KEY: auto → VALUE, from\n"
    "  ORIGIN`.\n"
    "- `optimizer.params.lr` has no default.\n"
    "- `gradient_clipping` is 1.0 with `--deepspeed` if neither file sets it, as in DeepSpeed since\n"
    "  0.19.3.\n"
    "- YAML anchors, aliases, tags and merge keys are refused. A file has at most 4 MiB and 64 levels.\n"
    "- `--dry-run` prints the effective spec. `run.yaml` in the run's folder holds it too.\n\n"
    "## Batch sizes\n\n"
    "`train_batch_size` = `train_micro_batch_size_per_gpu` × `gradient_accumulation_steps` × ranks. Two\n"
    "of the three sizes determine the third. If only `train_batch_size` or the micro-batch is set,\n"
    "accumulation is 1. Sizes that do not fit together are an error, which names the nearest values that\n"
    "do.\n\n"
    "A resumed run keeps its `train_batch_size` on any number of ranks, and accumulation adapts. The\n"
    "micro-batch may become smaller, but not larger unless the run spec sets it. If the batch cannot be\n"
    "split, the error lists the numbers of ranks that can.\n\n"
    "With `train.virtual_ranks: W` the formula has W in the place of the ranks. All sizes then stay when\n"
    "the number of ranks changes, which must divide W ([the same bits](determinism.md)).\n\n"
    "## Length of a run\n\n"
    "| set | the run ends |\n"
    "|---|---|\n"
    "| `train.epochs` | after so many passes over the training data; 1.5: half the steps of the last, rounded up |\n"
    "| `train.max_steps` | after so many steps; the data repeat until then |\n"
    "| both | with whichever comes first |\n"
    "| neither | after one epoch |\n\n"
    "An epoch consists of whole global batches. A rest of the data that does not fill one is dropped, and\n"
    "the next epoch has a new order.\n\n"
    "## Resuming with a changed spec\n\n"
    "A resume compares the spec with the checkpoint's. The column \"resume\" says what a changed value\n"
    "means:\n\n"
    "| resume | a changed value |\n"
    "|---|---|\n"
    "| error | is refused, since it would silently turn the run into another one |\n"
    "| notice | is allowed; both values are printed |\n"
    "| contents | is a path, and allowed if its contents are the same |\n"
    "| - | is allowed |\n\n"
    "The same contents are:\n\n"
    "- token shards of the same sizes, in the same order, with the same tokens as far as samples of them\n"
    "  show;\n"
    "- a model with the same config, and for `model.pretrained` a folder of the same name (a base model\n"
    "  and its fine-tuned versions have the same config).\n\n"
    "Configs are compared by their meaning, wherever they are stored: another `rope_theta` in the\n"
    "`config.json` of the same folder is an error. The keys of transformers 4 and 5 are equivalent. Keys\n"
    "without effect on the computation (names, token ids, initialisation, dtypes of files) are not\n"
    "compared.\n";

static const char *const resume_names[] = {
    [RESUME_SILENT] = "-", [RESUME_NOTICE] = "notice", [RESUME_CONTENTS] = "contents", [RESUME_ERROR] = "error"};

/* ---- keys ---------------------------------------------------------------- */

static void page_print_cell(FILE *out, const char *text, size_t size)
{
    for (const char *end = text + size; text < end; text++)
        fputs(*text == '|' ? "\\|" : (char[]){*text, 0}, out);
}

static int page_count_words(const char *text, size_t size)
{
    int words = 0;
    for (size_t i = 0; i < size; i++)
        words += text[i] != ' ' && (i == 0 || text[i - 1] == ' ');
    return words;
}

/* The length of a text's first clause, which ends at a "; " outside parentheses. */
static size_t page_clause(const char *text)
{
    int depth = 0;
    for (size_t i = 0; text[i]; i++) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (depth == 0 && text[i] == ';' && text[i + 1] == ' ')
            return i;
    }
    return strlen(text);
}

/* The bytes of an explanation that its cell holds, after `before` words of the cell: whole clauses. */
static size_t page_cell_size(const char *text, int before)
{
    size_t size = page_clause(text);
    while (text[size]) {
        size_t next = size + 2 + page_clause(text + size + 2);
        if (before + page_count_words(text, next) > PAGE_CELL_WORDS)
            break;
        size = next;
    }
    return size;
}

static int page_types(const struct spec_key *key)
{
    return __builtin_popcount(key->schedules) + __builtin_popcount(key->optimizers);
}

static bool page_has_row(const struct spec_key *key, const char *section)
{
    size_t length = strchr(key->path, '.') ? strcspn(key->path, ".") : 0;
    return key->type != KEY_SECTION && key->type != KEY_ALIAS && key->verdict == VERDICT_USED &&
           (length ? strlen(section) == length && strncmp(key->path, section, length) == 0
                   : strcmp(section, TOP_LEVEL) == 0);
}

static void page_print_row(FILE *out, const struct spec_key *key)
{
    fprintf(out, "| `%s` | ", key->path);
    spec_help_value(out, key);
    fprintf(out, " | %s | %s | ", spec_help_default(key), resume_names[key->resume]);
    spec_help_types(out, key);
    fputs(page_types(key) ? ": " : "", out);
    page_print_cell(out, key->help, page_cell_size(key->help, page_types(key)));
    fputs(" |\n", out);
}

static void page_print_rest(FILE *out, const struct spec_key *key)
{
    const char *text = key->help + page_cell_size(key->help, page_types(key));
    if (!*text)
        return;
    fprintf(out, "\n`%s`:\n\n", key->path);
    while (*text) {
        text += 2; /* "; " */
        size_t size = page_clause(text);
        wrapped_put(out, 100, "- ", text, size);
        text += size;
    }
}

static const char *page_section_help(const char *section)
{
    const struct spec_key *key = spec_key_find(section);
    return key ? key->help : TOP_LEVEL_HELP;
}

static void page_print_keys(FILE *out, const struct spec_page *page)
{
    for (const char *const *section = page->sections; *section; section++) {
        const char *help = page_section_help(*section);
        fprintf(out, "\n## %s\n\n%c%s.\n", *section, toupper((unsigned char)*help), help + 1);
        fputs("\n| key | value | default | resume | |\n|---|---|---|---|---|\n", out);
        for (const struct spec_key *key = spec_keys; key->path; key++)
            if (page_has_row(key, *section))
                page_print_row(out, key);
        for (const struct spec_key *key = spec_keys; key->path; key++)
            if (page_has_row(key, *section))
                page_print_rest(out, key);
    }
}

/* ---- DeepSpeed's other keys, other names --------------------------------- */

static void page_print_verdict(FILE *out, enum spec_verdict verdict, const char *title, const char *about)
{
    fprintf(out, "\n## %s\n\n%s\n\n| key | accepted | |\n|---|---|---|\n", title, about);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (key->verdict != verdict || key->type == KEY_SECTION || key->type == KEY_ALIAS)
            continue;
        const char *accepted = key->type == KEY_FOREIGN    ? "enabled: false"
                               : verdict == VERDICT_NOTICE ? "any"
                               : key->fallback             ? key->fallback
                                                           : "-";
        fprintf(out, "| `%s` | %s | ", key->path, accepted);
        page_print_cell(out, key->help, strlen(key->help));
        fputs(" |\n", out);
    }
}

static void page_print_refused(FILE *out)
{
    page_print_verdict(out, VERDICT_REFUSED, "Refused", "Switching one on is an error, which gives the reason.");
    page_print_verdict(out, VERDICT_LATER, "Not supported yet", "Any value but the accepted one is an error.");
    fputs("\n## Other values\n\n", out);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++)
            if (choice->verdict == VERDICT_LATER || choice->verdict == VERDICT_REFUSED)
                fprintf(out, "- `%s: %s`: %s\n", key->path, choice->name,
                        choice->verdict == VERDICT_LATER ? "not supported yet" : choice->why);
    }
}

static void page_print_without_effect(FILE *out)
{
    page_print_verdict(out, VERDICT_NOTICE, "No effect here",
                       "If the value differs from the default, a notice gives the reason why it has no effect.");
    fputs("\n## Old names\n\n", out);
    for (const struct spec_key *key = spec_keys; key->path; key++)
        if (key->type == KEY_ALIAS)
            fprintf(out, "- `%s`: now `%s`\n", key->path, key->fallback);
}

/* ---- pages --------------------------------------------------------------- */

#define SEE_RUN_SPEC                                                              \
    "\n[run-spec.md](run-spec.md) says how a spec is read, and what the column\n" \
    "[resume](run-spec.md#resuming-with-a-changed-spec) means.\n"

static void page_print_first(FILE *out);

#define PAGE(file_, print_, about_) .file = file_, .print = print_, .about = about_
#define KEY_PAGE(file_, ...) .file = file_, .sections = {__VA_ARGS__}

static const struct spec_page pages[] = {
    {PAGE("run-spec.md", page_print_first, NULL),
     .opening =
         "# The run spec\n\n"
         "One YAML file describes a run. This page says how it is read, and [where each key is](#the-sections).\n\n"
         "    ztrain --config run.yaml --dry-run       # prints the effective spec, or all errors\n"
         "    ztrain --help-spec                       # every key\n\n"},
    {KEY_PAGE("run-spec-model.md", "model", "peft"),
     .opening =
         "# The run spec: the model\n\n"
         "This page has the keys of the model, its tokenizer, its task and an adapter. To see what a model is:\n\n"
         "    ztrain plan --config run.yaml --set model.pretrained=Qwen/Qwen2.5-0.5B\n" SEE_RUN_SPEC},
    {KEY_PAGE("run-spec-data.md", "data"),
     .opening = "# The run spec: data\n\n"
                "This page has the keys that choose the data and cut them into samples. A dry run shows them:\n\n"
                "    ztrain --config run.yaml --set data.packing=first_fit --dry-run\n" SEE_RUN_SPEC},
    {KEY_PAGE("run-spec-train.md", "run", "train", TOP_LEVEL),
     .opening = "# The run spec: the run, its length and its batches\n\n"
                "This page has the keys of the run's folder, length, evaluation, device and batches. To try one:\n\n"
                "    ztrain --config run.yaml --set train.max_steps=100 --set run.name=short\n" SEE_RUN_SPEC},
    {KEY_PAGE("run-spec-optimizer.md", "optimizer", "scheduler", "bf16", "fp16", "data_types"),
     .opening = "# The run spec: optimizer, schedule, precision\n\n"
                "This page has the keys of the optimizer, the learning rate and the types that a run computes in.\n"
                "A dry run prints the first learning rates:\n\n"
                "    ztrain --config run.yaml --set scheduler.type=Cosine --dry-run\n" SEE_RUN_SPEC},
    {KEY_PAGE("run-spec-zero.md", "zero_optimization", "aio", "activation_checkpointing"),
     .opening = "# The run spec: sharding, offload, recomputation\n\n"
                "This page has the keys that make a model fit: ZeRO, offload to host memory and disk, recomputation.\n"
                "The plan searches for the fastest settings that fit:\n\n"
                "    ztrain plan --fit --config run.yaml --world 8 --memory 80GiB\n" SEE_RUN_SPEC},
    {KEY_PAGE("run-spec-checkpoint.md", "checkpoint", "comm"),
     .opening = "# The run spec: checkpoints, communication\n\n"
                "This page has the keys that say when checkpoints are written, which ones stay, and when a silent\n"
                "rank is given up. To see a run's checkpoints:\n\n"
                "    ztrain inspect runs/run\n" SEE_RUN_SPEC},
    {KEY_PAGE("run-spec-monitors.md", "comms_logger", "flops_profiler", "tensorboard", "csv_monitor"),
     .opening = "# The run spec: monitors and profiles\n\n"
                "This page has the keys of DeepSpeed's monitors and profilers. To profile one step:\n\n"
                "    ztrain --config run.yaml --set flops_profiler.enabled=true --set "
                "flops_profiler.profile_step=5\n" SEE_RUN_SPEC},
    {PAGE("run-spec-deepspeed.md", page_print_without_effect, "keys of DeepSpeed and PEFT without effect here"),
     .opening = "# The run spec: keys without effect\n\n"
                "This page lists keys of DeepSpeed and PEFT that ztrain accepts and does not need. A dry run\n"
                "prints a notice for each:\n\n"
                "    ztrain --config run.yaml --deepspeed ds_config.json --dry-run\n\n"
                "[run-spec-refused.md](run-spec-refused.md) lists the keys that are errors.\n"},
    {PAGE("run-spec-refused.md", page_print_refused, "keys of DeepSpeed and PEFT that are errors"),
     .opening = "# The run spec: keys that are refused\n\n"
                "This page lists features of DeepSpeed and PEFT that ztrain does not have. A dry run names each\n"
                "one:\n\n"
                "    ztrain --config run.yaml --deepspeed ds_config.json --dry-run\n\n"
                "A section that is switched off (`enabled: false`) is always accepted.\n"},
    {PAGE("run-spec-names.md", spec_print_names, "names of Trainer, Accelerate, LLaMA-Factory, axolotl and torchtune"),
     .opening = "# The run spec: names of other trainers\n\n"
                "This page translates the names of Hugging Face's Trainer and Accelerate, LLaMA-Factory, axolotl\n"
                "and torchtune. In a run spec they are errors, whose hint is a row of this table:\n\n"
                "    ztrain --config run.yaml --dry-run\n"},
};

static void page_print_first(FILE *out)
{
    fputs(how_to_read, out);
    fputs("\n## The sections\n\n| section | |\n|---|---|\n", out);
    for (size_t i = 0; i < COUNT_OF(pages); i++) {
        for (const char *const *section = pages[i].sections; *section; section++) {
            const bool top = strcmp(*section, TOP_LEVEL) == 0;
            fprintf(out, "| [%s](%s#%s) | %s |\n", *section, pages[i].file, top ? "at-top-level" : *section,
                    page_section_help(*section));
        }
        if (pages[i].about)
            fprintf(out, "| [%s](%s) | %s |\n", pages[i].file, pages[i].file, pages[i].about);
    }
}

void spec_print_pages(FILE *out)
{
    for (size_t i = 0; i < COUNT_OF(pages); i++) {
        fprintf(out, "<!-- %s: made by `make doc` from the key table in core/spec/spec_keys.c -->\n%s", pages[i].file,
                pages[i].opening);
        if (pages[i].print)
            pages[i].print(out);
        else
            page_print_keys(out, &pages[i]);
    }
}
