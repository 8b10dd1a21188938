/* SPDX-License-Identifier: Apache-2.0 */
/* spec_pages.c: the key table as --help-spec, and as JSON, from which scripts/spec-pages.py makes docs/run-spec*.md. */
#include "core/spec/spec_keys.h"

static const char *const type_names[] = {SPEC_KEY_TYPES(LISTED_WORD)};

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
        wrapped_put(out, 100, "        ", key->help, strlen(key->help));
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
        wrapped_put(out, 100, "        ", key->help, strlen(key->help));
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

/* ---- JSON ---------------------------------------------------------------- */

/* What print(out, key) prints. */
static json_t *spec_printed(const struct spec_key *key, void (*print)(FILE *out, const struct spec_key *key))
{
    OWNED char *text = NULL;
    FILE *out = memory_stream(&text, NULL);
    print(out, key);
    fclose(out);
    return json_string(text);
}

static json_t *spec_key_json(const struct spec_key *key)
{
    static const char *const verdicts[] = {
        [VERDICT_USED] = "used", [VERDICT_LATER] = "later", [VERDICT_NOTICE] = "notice", [VERDICT_REFUSED] = "refused"};
    static const char *const resume_names[] = {
        [RESUME_SILENT] = "-", [RESUME_NOTICE] = "notice", [RESUME_CONTENTS] = "contents", [RESUME_ERROR] = "error"};
    json_t *refused = json_object();
    for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++)
        if (choice->verdict == VERDICT_LATER || choice->verdict == VERDICT_REFUSED)
            json_object_set_new(refused, choice->name,
                                json_string(choice->verdict == VERDICT_LATER ? "not supported yet" : choice->why));
    const char *kind = key->type == KEY_SECTION   ? "section"
                       : key->type == KEY_FOREIGN ? "foreign"
                       : key->type == KEY_ALIAS   ? "alias"
                                                  : verdicts[key->verdict];
    return json_pack("{ss ss ss ss so ss ss? so ss? so}", "key", key->path, "kind", kind, "verdict",
                     verdicts[key->verdict], "resume", resume_names[key->resume], "value",
                     spec_printed(key, spec_help_value), "default", spec_help_default(key), "fallback", key->fallback,
                     "types", spec_printed(key, spec_help_types), "help", key->help, "refused", refused);
}

void spec_print_json(FILE *out)
{
    json_auto_t *keys = json_array(), *names = json_array();
    for (const struct spec_key *key = spec_keys; key->path; key++) json_array_append_new(keys, spec_key_json(key));
    for (int i = 0; i < spec_num_foreign_names; i++) {
        const struct spec_foreign_name *row = &spec_foreign_names[i];
        if (!row->unlisted)
            json_array_append_new(names,
                                  json_pack("{ss ss? ss?}", "names", row->names, "key", row->key, "note", row->note));
    }
    json_auto_t *whole = json_pack("{sO sO}", "keys", keys, "names", names);
    json_dumpf(whole, out, JSON_INDENT(1));
    fputc('\n', out);
}
