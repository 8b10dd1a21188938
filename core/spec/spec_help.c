/* spec_help.c: --help-spec and docs/run-spec.md, from the key table. The prose around the tables stands here, so that
 * the page is one output of the program and cannot disagree with it. */
#include "core/spec/spec_keys.h"

#include <string.h>

static const char intro[] =
    "# The run spec\n"
    "\n"
    "<!-- made by `ztrain --help-spec --markdown`; edit the key table in core/spec/spec_keys.c instead -->\n"
    "\n"
    "A run is described by one YAML file: `ztrain --config run.yaml`. Paths in it are relative to the current folder.\n"
    "Beside ztrain's own sections stand DeepSpeed's keys, under their names and with their meaning. They may also "
    "come\n"
    "from a DeepSpeed configuration in JSON (`--deepspeed ds_config.json`); a key that both files set is an error.\n"
    "\n"
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
    "```\n"
    "\n"
    "## How it is read\n"
    "\n"
    "- All errors are reported at once, as `file:line:column: message; hint`, with exit code 2. An unknown key is an\n"
    "  error everywhere, and so is a key that is set twice. What is wrong because it is absent stands at 1:1.\n"
    "- `--set a.b.c=VALUE` replaces a value after the files are read and before anything is checked. VALUE is YAML\n"
    "  (`[0.9, 0.95]`, `true`, `5e8`, `{stage: 3}`); `null` unsets a key that has no default. The last one wins.\n"
    "- `5e8`, `1e-5` and `5E+8` are numbers, and `5e8` is an integer where one is expected. NaN and infinity are\n"
    "  refused. Only `true` and `false` are truth values.\n"
    "- `\"auto\"` stands for a derived value where the table says \"or auto\"; elsewhere it is an error.\n"
    "- YAML anchors, aliases, tags and merge keys are refused. A file has at most 4 MiB and 64 levels.\n"
    "- `--dry-run` prints the effective spec, which is also written to `run.yaml` in the run's folder.\n"
    "\n"
    "## Batch sizes\n"
    "\n"
    "`train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x ranks. Two of the three\n"
    "give the third; `train_batch_size` or the micro batch alone means accumulation 1. What does not fit is an error\n"
    "that names the nearest values that do.\n"
    "\n"
    "A resumed run keeps its `train_batch_size` at any world size: the accumulation adapts, and the micro batch where\n"
    "the run spec does not give it, to no more than it was. What cannot be split lists the world sizes that can.\n"
    "\n"
    "## Length of a run\n"
    "\n"
    "`train.epochs` and `train.max_steps` set: whichever ends first. `epochs` alone: so many passes over the training\n"
    "data. `max_steps` alone: the data repeat until then. Neither: one epoch. An epoch is the whole global batches of\n"
    "the data; a rest that fills none is dropped, and the next epoch has a new order.\n"
    "\n"
    "## Resuming with a changed spec\n"
    "\n"
    "The spec is compared with the one in the checkpoint. In the tables, \"resume: error\" marks keys whose change "
    "would\n"
    "silently make another run of it, \"notice\" those that may change and are printed with both values, \"contents\" "
    "paths\n"
    "that may change if the same is found there: token shards with the same sizes in the same order and the same "
    "first\n"
    "tokens; a model with the same config, and for `model.pretrained` a folder of the same name, as base models and\n"
    "what was made of them have the same config.\n"
    "\n"
    "The model's config is compared with the one in the checkpoint by what it says, wherever it stands: another\n"
    "`rope_theta` in the `config.json` of the same folder is an error, too. The same said in the keys of transformers "
    "4\n"
    "or 5 is no difference, nor is what computes nothing: names, token ids, initialisation, dtypes of files.\n"
    "\n";

static const char metrics[] =
    "## metrics.jsonl\n"
    "\n"
    "The run's folder holds `metrics.jsonl`: a JSON object per line. Where a resumed run has to "
    "leave\n"
    "out lines of steps behind its checkpoint, or damaged ones, a new file takes its place, and the former one stays "
    "as\n"
    "`metrics.jsonl.N`. Kinds of lines:\n"
    "\n"
    "| line | fields |\n"
    "|---|---|\n"
    "| a step | `step` (from 1), `epoch`, `loss` (mean over the targets of the global batch), `grad_norm` (before "
    "clipping), `lr`, `loss_scale`, `skipped` (true: gradients were not finite, nothing was updated), `tokens` (since "
    "the "
    "run's start), `tokens_per_s`, `mfu` (null where the peak of the device is unknown), `memory_bytes` {`device`, "
    "`host`}, `seconds` {`step`, `data`, `forward`, `backward`, `reduce`, `optimizer`, `checkpoint`} (the middle four "
    "are null where the step was launched as a "
    "CUDA graph) |\n"
    "| an evaluation | `step`, `epoch`, `eval_loss`, `perplexity`, `eval_tokens` |\n"
    "| the end of an epoch | `epoch_end` (its number), `step`, `train_loss` (mean over the epoch's targets on all "
    "ranks) |\n"
    "| a checkpoint | `checkpoint` (its folder), `step`, `bytes`, `seconds_stalled` |\n"
    "| a resume | `resumed_from`, `step` |\n"
    "\n"
    "`loss`, `grad_norm`, `lr` and `eval_loss` are printed with enough digits to compare runs bit for bit.\n"
    "A loss that is not finite, or over no targets (documents of one token), is null.\n";

static const char *const type_names[KEY_TYPE_COUNT] = {
    [KEY_SECTION] = "section",
    [KEY_FOREIGN] = "section",
    [KEY_ALIAS] = "old name",
    [KEY_BOOL] = "true, false",
    [KEY_INT] = "integer",
    [KEY_REAL] = "number",
    [KEY_REAL_PAIR] = "[number, number]",
    [KEY_STRING] = "text",
    [KEY_STRING_LIST] = "text or list",
    [KEY_CHOICE] = "choice",
    [KEY_MODEL_CONFIG] = "path or mapping",
    [KEY_ANY] = "any",
};
_Static_assert(COUNT_OF(type_names) == KEY_TYPE_COUNT, "every type has a name");

static const char *const resume_names[] = {
    [RESUME_SILENT] = "-", [RESUME_NOTICE] = "notice", [RESUME_CONTENTS] = "contents", [RESUME_ERROR] = "error"};

/* "integer 0 to 3", "number above 0", "AdamW, Adam", "or auto" */
static void describe_type(const struct spec_key *key, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    if (key->type == KEY_CHOICE) {
        for (const struct spec_choice *choice = key->choices; choice->name; choice++)
            if (choice->verdict == VERDICT_USED)
                used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", choice->name);
    } else {
        used += (size_t)snprintf(text, size, "%s", type_names[key->type]);
    }
    if (key->min < key->max && (key->max >= 1e15 || key->flags & KEY_ABOVE_MIN))
        used += (size_t)snprintf(text + used, size - used, key->flags & KEY_ABOVE_MIN ? " above %.15g" : " from %.15g",
                                 key->min);
    else if (key->min < key->max)
        used += (size_t)snprintf(text + used, size - used, " %.15g to %.15g", key->min, key->max);
    if (key->flags & KEY_AUTO)
        used += (size_t)snprintf(text + used, size - used, ", or auto");
    ASSERT(used < size);
}

/* The schedules that have a parameter, "WarmupLR, WarmupDecayLR". */
static void print_schedules(FILE *out, const struct spec_key *key)
{
    const char *glue = "";
    for (int i = 0; i < SCHEDULE_COUNT && key->schedules; i++) {
        if (!(key->schedules & 1u << i))
            continue;
        fprintf(out, "%s%s", glue, schedule_name((enum schedule_type)i));
        glue = ", ";
    }
}

static const char *describe_default(const struct spec_key *key)
{
    return key->fallback ? key->fallback : key->flags & KEY_REQUIRED ? "required" : "unset";
}

/* ---- plain text ---------------------------------------------------------- */

/* Help in lines of at most 100 columns behind an indent. */
static void print_wrapped(FILE *out, const char *text)
{
    enum { INDENT = 8, WIDTH = 100 };
    int column = 0;
    for (const char *word = text; *word;) {
        int length = (int)strcspn(word, " ");
        if (column && column + 1 + length > WIDTH) {
            fputc('\n', out);
            column = 0;
        }
        column += column == 0 ? fprintf(out, "%*s%.*s", INDENT, "", length, word) : fprintf(out, " %.*s", length, word);
        word += length + (word[length] == ' ');
    }
    fputc('\n', out);
}

static void print_used(FILE *out)
{
    char type[256];
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->type == KEY_SECTION || key->verdict != VERDICT_USED || key->type == KEY_ALIAS)
            continue;
        describe_type(key, type, sizeof type);
        fprintf(out, "%s  (%s; %s%s)\n", key->path, type, key->flags & KEY_REQUIRED ? "" : "default ",
                describe_default(key));
        if (key->schedules) {
            fputs("        of ", out);
            print_schedules(out, key);
            fputc('\n', out);
        }
        print_wrapped(out, key->help);
    }
}

static void print_verdict(FILE *out, enum spec_verdict verdict, const char *title)
{
    fprintf(out, "\n%s\n", title);
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->verdict != verdict || key->type == KEY_SECTION || key->type == KEY_ALIAS)
            continue;
        fprintf(out, "%s", key->path);
        if (key->fallback)
            fprintf(out, "  (only %s)", key->fallback);
        fputc('\n', out);
        print_wrapped(out, key->help);
    }
}

static void print_text(FILE *out)
{
    fputs("Keys of the run spec (YAML; a.b stands for key b in section a). --set a.b=VALUE overrides.\n\n", out);
    print_used(out);
    print_verdict(out, VERDICT_LATER, "DeepSpeed's keys that are not supported yet:");
    print_verdict(out, VERDICT_NOTICE, "DeepSpeed's keys that have no effect here (accepted, with a notice):");
    print_verdict(out, VERDICT_REFUSED, "DeepSpeed's keys that are refused where they are on:");
    print_verdict(out, VERDICT_PASSIVE, "DeepSpeed's keys of features that are not supported yet (accepted):");
    fputs("\nOld names:\n", out);
    for (int i = 0; i < spec_num_keys; i++)
        if (spec_keys[i].type == KEY_ALIAS)
            fprintf(out, "%s: now %s\n", spec_keys[i].path, spec_keys[i].fallback);
}

/* ---- Markdown ------------------------------------------------------------ */

/* Text in a table's cell: a bar would end it. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++)
        fputs(*text == '|' ? "\\|" : (char[]){*text, 0}, out);
}

static void markdown_used(FILE *out)
{
    const char *open = NULL; /* the top-level section whose table is open; "": keys at top level */
    size_t open_length = 0;
    char type[256];
    fputs("## Keys\n", out);
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->type == KEY_SECTION || key->verdict != VERDICT_USED || key->type == KEY_ALIAS)
            continue;
        size_t length = strchr(key->path, '.') ? strcspn(key->path, ".") : 0;
        if (!open || length != open_length || strncmp(open, key->path, length) != 0) {
            if (length) {
                const char *name = key->path;
                int shown = (int)length;
                const struct spec_key *section = key;
                while (section->type != KEY_SECTION || strlen(section->path) != length)
                    section--;
                fprintf(out, "\n### %.*s: %s\n\n", shown, name, section->help);
            } else {
                fputs("\n### At top level: sizes of batches, clipping, output\n\n", out);
            }
            fputs("| key | value | default | resume | |\n|---|---|---|---|---|\n", out);
            open = key->path;
            open_length = length;
        }
        describe_type(key, type, sizeof type);
        fprintf(out, "| `%s` | %s | %s | %s | ", key->path, type, describe_default(key), resume_names[key->resume]);
        print_schedules(out, key);
        fputs(key->schedules ? ": " : "", out);
        print_cell(out, key->help);
        fputs(" |\n", out);
    }
}

static void markdown_verdict(FILE *out, enum spec_verdict verdict, const char *title, const char *about)
{
    fprintf(out, "\n### %s\n\n%s\n\n| key | accepted | |\n|---|---|---|\n", title, about);
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->verdict != verdict || key->type == KEY_SECTION || key->type == KEY_ALIAS)
            continue;
        const char *accepted = key->type == KEY_FOREIGN     ? "enabled: false"
                               : verdict == VERDICT_PASSIVE ? type_names[key->type]
                               : verdict == VERDICT_NOTICE  ? "any"
                               : key->fallback              ? key->fallback
                                                            : "-";
        fprintf(out, "| `%s` | %s | ", key->path, accepted);
        print_cell(out, key->help);
        fputs(" |\n", out);
    }
}

static void markdown_choices(FILE *out)
{
    fputs("\n### Optimizers and schedulers that DeepSpeed has beside these\n\n", out);
    for (int i = 0; i < spec_num_keys; i++) {
        for (const struct spec_choice *choice = spec_keys[i].choices; choice && choice->name; choice++)
            if (choice->verdict != VERDICT_USED && choice->verdict != VERDICT_SYNONYM)
                fprintf(out, "- `%s: %s`: %s\n", spec_keys[i].path, choice->name,
                        choice->verdict == VERDICT_LATER ? "not supported yet" : choice->why);
    }
}

static void print_markdown(FILE *out)
{
    fputs(intro, out);
    markdown_used(out);
    fputs("\n## DeepSpeed's other keys\n\nA section that is switched off (`enabled: false`) is always accepted.\n",
          out);
    markdown_verdict(out, VERDICT_LATER, "Not supported yet", "Any other value than the accepted one is an error.");
    markdown_choices(out);
    markdown_verdict(out, VERDICT_NOTICE, "No effect here",
                     "Accepted; where the value differs from DeepSpeed's default, a notice says why it has no effect.");
    markdown_verdict(out, VERDICT_REFUSED, "Refused", "An error where they are on, with the reason.");
    markdown_verdict(out, VERDICT_PASSIVE, "Parts of features that are not supported yet",
                     "Accepted as long as the feature's own switch is off; their type is checked.");
    fputs("\n### Old names\n\n", out);
    for (int i = 0; i < spec_num_keys; i++)
        if (spec_keys[i].type == KEY_ALIAS)
            fprintf(out, "- `%s`: now `%s`\n", spec_keys[i].path, spec_keys[i].fallback);
    fputc('\n', out);
    fputs(metrics, out);
}

void spec_print_help(FILE *out, bool markdown)
{
    if (markdown)
        print_markdown(out);
    else
        print_text(out);
}
