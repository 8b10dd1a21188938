/* SPDX-License-Identifier: Apache-2.0 */
/* spec_pages.c: --help-spec and --help-spec --markdown (the tables of docs/run-spec*.md), made from the key table.
 *
 * The tables of a page begin with a line that names its file; what stands above that line there is written by hand. A
 * cell has at most PAGE_CELL_WORDS words: the other clauses of a longer explanation are in a list below the table. */
#include "core/spec/spec_keys.h"

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
    if (key->type != KEY_CHOICE) fputs(type_names[key->type], out);
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
    if (key->flags & KEY_AUTO) fputs(", or auto", out);
}

static void spec_help_types(FILE *out, const struct spec_key *key)
{
    const char *glue = "";
    for (int i = 0; i < SCHEDULE_COUNT || i < OPTIMIZER_COUNT; i++) {
        bool schedule = key->schedules & 1u << i;
        if (!schedule && !(key->optimizers & 1u << i)) continue;
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
        if (key->type == KEY_SECTION || key->verdict != VERDICT_USED || key->type == KEY_ALIAS) continue;
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
        if (key->verdict != verdict || key->type == KEY_SECTION || key->type == KEY_ALIAS) continue;
        fprintf(out, "%s", key->path);
        if (key->fallback) fprintf(out, "  (only %s)", key->fallback);
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
        if (key->type == KEY_ALIAS) fprintf(out, "%s: now %s\n", key->path, key->fallback);
}

enum { PAGE_CELL_WORDS = 25, PAGE_MAX_SECTIONS = 6 };

struct spec_page {
    const char *file;
    const char *sections[PAGE_MAX_SECTIONS]; /* whose keys are on the page; TOP_LEVEL: the keys without a section */
    void (*print)(FILE *out);                /* NULL: their tables */
    const char *about;                       /* for the index */
};

#define TOP_LEVEL "At top level"
#define TOP_LEVEL_HELP "sizes of batches, clipping, output"

static const char *const resume_names[] = {
    [RESUME_SILENT] = "-", [RESUME_NOTICE] = "notice", [RESUME_CONTENTS] = "contents", [RESUME_ERROR] = "error"};

/* ---- keys ---------------------------------------------------------------- */

static void page_print_cell(FILE *out, const char *text, size_t size)
{
    for (const char *end = text + size; text < end; text++) fputs(*text == '|' ? "\\|" : (char[]){*text, 0}, out);
}

static int page_count_words(const char *text, size_t size)
{
    int words = 0;
    for (size_t i = 0; i < size; i++) words += text[i] != ' ' && (i == 0 || text[i - 1] == ' ');
    return words;
}

/* The length of a text's first clause, which ends at a "; " outside parentheses. */
static size_t page_clause(const char *text)
{
    int depth = 0;
    for (size_t i = 0; text[i]; i++) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (depth == 0 && text[i] == ';' && text[i + 1] == ' ') return i;
    }
    return strlen(text);
}

/* The bytes of an explanation that its cell holds, after `before` words of the cell: whole clauses. */
static size_t page_cell_size(const char *text, int before)
{
    size_t size = page_clause(text);
    while (text[size]) {
        size_t next = size + 2 + page_clause(text + size + 2);
        if (before + page_count_words(text, next) > PAGE_CELL_WORDS) break;
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
    if (!*text) return;
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
            if (page_has_row(key, *section)) page_print_row(out, key);
        for (const struct spec_key *key = spec_keys; key->path; key++)
            if (page_has_row(key, *section)) page_print_rest(out, key);
    }
}

/* ---- DeepSpeed's other keys, other names --------------------------------- */

static void page_print_verdict(FILE *out, enum spec_verdict verdict, const char *title, const char *about)
{
    fprintf(out, "\n## %s\n\n%s\n\n| key | accepted | |\n|---|---|---|\n", title, about);
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (key->verdict != verdict || key->type == KEY_SECTION || key->type == KEY_ALIAS) continue;
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
        if (key->type == KEY_ALIAS) fprintf(out, "- `%s`: now `%s`\n", key->path, key->fallback);
}

/* ---- pages --------------------------------------------------------------- */

static void page_print_first(FILE *out);

static const struct spec_page pages[] = {
    {"run-spec.md", {NULL}, page_print_first, NULL},
    {"run-spec-model.md", {"model", "peft"}, NULL, NULL},
    {"run-spec-data.md", {"data"}, NULL, NULL},
    {"run-spec-train.md", {"run", "train", TOP_LEVEL}, NULL, NULL},
    {"run-spec-optimizer.md", {"optimizer", "scheduler", "bf16", "fp16", "data_types"}, NULL, NULL},
    {"run-spec-zero.md", {"zero_optimization", "aio", "activation_checkpointing"}, NULL, NULL},
    {"run-spec-checkpoint.md", {"checkpoint", "comm"}, NULL, NULL},
    {"run-spec-monitors.md", {"comms_logger", "flops_profiler", "tensorboard", "csv_monitor"}, NULL, NULL},
    {"run-spec-deepspeed.md", {NULL}, page_print_without_effect, "keys of DeepSpeed and PEFT without effect here"},
    {"run-spec-refused.md", {NULL}, page_print_refused, "keys of DeepSpeed and PEFT that are errors"},
    {"run-spec-names.md", {NULL}, spec_print_names, "names of Trainer, Accelerate, LLaMA-Factory, axolotl, torchtune"},
};

static void page_print_first(FILE *out)
{
    fputs("\n## The sections\n\n| section | |\n|---|---|\n", out);
    for (size_t i = 0; i < COUNT_OF(pages); i++) {
        for (const char *const *section = pages[i].sections; *section; section++) {
            const bool top = strcmp(*section, TOP_LEVEL) == 0;
            fprintf(out, "| [%s](%s#%s) | %s |\n", *section, pages[i].file, top ? "at-top-level" : *section,
                    page_section_help(*section));
        }
        if (pages[i].about) fprintf(out, "| [%s](%s) | %s |\n", pages[i].file, pages[i].file, pages[i].about);
    }
}

void spec_print_pages(FILE *out)
{
    for (size_t i = 0; i < COUNT_OF(pages); i++) {
        fprintf(out, "<!-- %s: what follows is made by `make doc` from the key table in core/spec/spec_keys.c -->\n",
                pages[i].file);
        if (pages[i].print)
            pages[i].print(out);
        else
            page_print_keys(out, &pages[i]);
    }
}
