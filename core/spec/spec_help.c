/* SPDX-License-Identifier: Apache-2.0 */
/* spec_help.c: --help-spec, made from the key table. spec_pages.c makes the same table into pages. */
#include "core/spec/spec_keys.h"

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

void spec_help_value(FILE *out, const struct spec_key *key)
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

void spec_help_types(FILE *out, const struct spec_key *key)
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

const char *spec_help_default(const struct spec_key *key)
{
    return key->fallback ? key->fallback : key->flags & (KEY_REQUIRED | KEY_NEEDED) ? "required" : "unset";
}

/* ---- plain text ---------------------------------------------------------- */

void spec_help_wrapped(FILE *out, const char *begin, int indent, const char *text, size_t size)
{
    enum { WIDTH = 100 };
    int column = fprintf(out, "%s", begin);
    for (const char *word = text, *end = text + size; word < end;) {
        int length = (int)strcspn(word, " ");
        if (word + length > end)
            length = (int)(end - word);
        if (column > indent && column + 1 + length > WIDTH)
            column = fprintf(out, "\n%*s", indent, "") - 1;
        column += column > indent ? fprintf(out, " %.*s", length, word) : fprintf(out, "%.*s", length, word);
        word += length + (word[length] == ' ');
    }
    fputc('\n', out);
}

static void spec_help_below(FILE *out, const char *text)
{
    spec_help_wrapped(out, "        ", 8, text, strlen(text));
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
