/* spec_help.c: --help-spec and docs/run-spec.md, made from the key table and the prose here. */
#include "core/spec/spec_keys.h"

#include <string.h>

static const char intro[] =
    "# The run spec\n"
    "\n"
    "<!-- made by `ztrain --help-spec --markdown`; edit the key table in core/spec/spec_keys.c instead -->\n"
    "\n"
    "One YAML file describes a run: `ztrain --config run.yaml`. Paths in it are relative to the current folder;\n"
    "`~` or `~/` at the beginning of a path is the home folder (HOME), also in `--set`.\n"
    "It has sections of ztrain's and, next to them, DeepSpeed's keys with their names and meaning. DeepSpeed's\n"
    "keys may also come from a DeepSpeed configuration (`--deepspeed ds_config.json`), which may be JSON or, as for\n"
    "DeepSpeed, Hjson: comments, keys without quotes, trailing commas. A key that both files set to\n"
    "different values is an error.\n"
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
    "## How the spec is read\n"
    "\n"
    "- All errors are reported at once, as `file:line:column: message; hint`, with exit code 2. An unknown key\n"
    "  is an error everywhere, and so is a key that is set twice. An error about an absent key is placed at\n"
    "  1:1.\n"
    "- `--set a.b.c=VALUE` replaces a value after the files are read and before anything is checked. VALUE is\n"
    "  YAML (`[0.9, 0.95]`, `true`, `5e8`, `{stage: 3}`); `null` unsets a key that has no default, and leaves out an "
    "unknown key of a file. If a key is\n"
    "  set more than once, the last `--set` wins.\n"
    "- `5e8`, `1e-5` and `5E+8` are numbers, and `5e8` is an integer where one is expected. NaN and infinity\n"
    "  are refused. The only truth values are `true` and `false`, in DeepSpeed's keys also 1 and 0.\n"
    "- `\"auto\"` is taken for every key of DeepSpeed's. If the other file has a value, that counts, as Trainer's\n"
    "  arguments do; else the value follows from other keys, the ranks, the model or the data where the table says\n"
    "  \"or auto\", and elsewhere it is the default. The start prints each `KEY: auto \u2192 VALUE, from ORIGIN`.\n"
    "- `optimizer.params.lr` has no default.\n"
    "- With `--deepspeed`, `gradient_clipping` is 1.0 where neither file sets it, as in DeepSpeed since 0.19.3.\n"
    "- YAML anchors, aliases, tags and merge keys are refused. A file has at most 4 MiB and 64 levels.\n"
    "- `--dry-run` prints the effective spec, which is also written to `run.yaml` in the run's folder.\n"
    "\n"
    "## Batch sizes\n"
    "\n"
    "`train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x ranks. Two of the\n"
    "three sizes determine the third; `train_batch_size` or the micro batch alone means accumulation 1. Sizes\n"
    "that do not fit together are an error, which names the nearest values that do.\n"
    "\n"
    "A resumed run keeps its `train_batch_size` at any world size. The accumulation adapts; unless the run spec\n"
    "sets the micro batch, it may become smaller than before, but not larger. If the batch cannot be split, the\n"
    "error lists the world sizes that can.\n"
    "\n"
    "## Length of a run\n"
    "\n"
    "If both `train.epochs` and `train.max_steps` are set, the run ends with whichever comes first. `epochs`\n"
    "alone means that many passes over the training data; with `max_steps` alone the data repeat until then;\n"
    "with neither, the run is one epoch. `epochs: 1.5` is one epoch and half the steps of another, rounded up.\n"
    "An epoch consists of whole global batches: a rest of the data that does not fill one is dropped, and the\n"
    "next epoch has a new order.\n"
    "\n"
    "## Resuming with a changed spec\n"
    "\n"
    "The spec is compared with the one in the checkpoint. The column \"resume\" of the tables shows what a changed\n"
    "value means:\n"
    "\n"
    "- error: the change would silently turn the run into another one, and is refused;\n"
    "- notice: the change is allowed, and both values are printed;\n"
    "- contents: a path may change if it leads to the same contents: token shards of the same sizes in the same\n"
    "  order with the same tokens, as far as samples of them show; a model with the same config and, for\n"
    "  `model.pretrained`, a folder of the same name, because a base model and its fine-tuned versions have\n"
    "  the same config;\n"
    "- \"-\": the change is allowed.\n"
    "\n"
    "The model's config is compared with the one in the checkpoint by its meaning, wherever it is stored:\n"
    "another `rope_theta` in the `config.json` of the same folder is an error as well. The keys of transformers\n"
    "4 and 5 are equivalent, and keys that have no effect on the computation (names, token ids, initialisation,\n"
    "dtypes of files) are not compared.\n"
    "\n";

static const char metrics[] =
    "## metrics.jsonl\n"
    "\n"
    "The run's folder holds `metrics.jsonl`, one JSON object per line. If a resumed run has to leave out lines\n"
    "(of steps after its checkpoint, or damaged ones), a new file takes its place, and the former file stays as\n"
    "`metrics.jsonl.N`. The kinds of lines:\n"
    "\n"
    "| line | fields |\n"
    "|---|---|\n"
    "| a step | `step` (from 1), `epoch`, `loss` (mean over the targets of the global batch), `grad_norm` (before "
    "clipping), `lr`, `loss_scale`, `skipped` (true: the gradients were not finite and nothing was updated), `tokens` "
    "(since the start of the run), `targets` (of this step: the tokens whose prediction counts), `tokens_per_s`, `mfu` "
    "(null if the peak of the device is unknown), `memory_bytes` {`device`: the total of the memory plan, `host`: the "
    "resident memory of the process, on the CPU device with the plan's}, `seconds` {`step`, `data`, `forward`, "
    "`backward`, `reduce`, `optimizer`, `checkpoint`} (the middle four are null if the step was launched as a CUDA "
    "graph); of a mixture also `sources` {PATH: {`samples` (taken since the start of the run), `epochs` (passes over "
    "the source that they are), `targets` (of this step)}} |\n"
    "| an evaluation | `step`, `epoch`, `eval_loss`, `perplexity`, `eval_tokens`; of a classifier `accuracy`, `f1` and "
    "`eval_samples` instead of the last two |\n"
    "| a continuation of `train.samples`, after an evaluation | `step`, `epoch`, `sample` (the number of the prompt, "
    "from 1), `prompt`, `text`; of a prompt of token ids `prompt_tokens`, `tokens` |\n"
    "| the end of an epoch | `epoch_end` (its number), `step`, `train_loss` (mean over the epoch's targets on all "
    "ranks) |\n"
    "| an epoch inside which the run ends or stops | `epoch_part` (its number), `step`, `train_loss` (mean over its "
    "targets so far) |\n"
    "| the early end of the run (`train.early_stopping`) | `early_stop` (the metric), `step`, `best`, `evaluations` "
    "(since the best one) |\n"
    "| silent corruption, which ends the run (`train.check_interval_steps`, checkpoints) | `corruption` (what differs: "
    "gradients, parameters, exp_avg, …), `step`, `rank` and `host` or, where neither of two can be accused, `ranks`, "
    "`tensor` |\n"
    "| a loss that stands out (`train.spike_factor`) | `loss_spike` (the factor), `step`, `epoch`, `spike_loss`, "
    "`mean_loss` (the running mean before it), `spike_grad_norm`, `samples` (the numbers of the step's samples in the "
    "training data, from 0; of a mixture {PATH: numbers}) |\n"
    "| a checkpoint | `checkpoint` (its folder), `step`, `bytes`, `seconds_stalled` (training waited), `seconds_total` "
    "(until it was whole) |\n"
    "| a resume | `resumed_from`, `step` |\n"
    "| a restart of the ranks (`--max-restarts`) | `restart` (its number), `step`, `exit_code`, `cause` |\n"
    "| the failure after which the ranks are not started again | `gave_up` (after how many restarts), `step` (of the "
    "newest checkpoint, or 0), `exit_code`, `cause` |\n"
    "\n"
    "`loss`, `grad_norm`, `lr` and `eval_loss` are printed with enough digits to compare runs bit for bit. A\n"
    "loss that is not finite, or that is a mean over no targets (documents of one token, or a loss mask of zeros), is "
    "null.\n";

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
    [KEY_CHOICE] = "choice",
    [KEY_MODEL_CONFIG] = "path or mapping",
    [KEY_ANY] = "any",
};
_Static_assert(COUNT_OF(type_names) == KEY_TYPE_COUNT, "every type has a name");

static const char *const resume_names[] = {
    [RESUME_SILENT] = "-", [RESUME_NOTICE] = "notice", [RESUME_CONTENTS] = "contents", [RESUME_ERROR] = "error"};

/* "integer 0 to 3", "number above 0", "AdamW, Adam", "or auto" */
static void print_type(FILE *out, const struct spec_key *key)
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

/* The schedules or optimizers that have a parameter, "WarmupLR, WarmupDecayLR". */
static void print_types(FILE *out, const struct spec_key *key)
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

static const char *describe_default(const struct spec_key *key)
{
    return key->fallback ? key->fallback : key->flags & (KEY_REQUIRED | KEY_NEEDED) ? "required" : "unset";
}

/* ---- plain text ---------------------------------------------------------- */

static void spec_help_wrapped(FILE *out, const char *text)
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

static void spec_help_used(FILE *out)
{
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->type == KEY_SECTION || key->verdict != VERDICT_USED || key->type == KEY_ALIAS)
            continue;
        fprintf(out, "%s  (", key->path);
        print_type(out, key);
        fprintf(out, "; %s%s)\n", key->flags & (KEY_REQUIRED | KEY_NEEDED) ? "" : "default ", describe_default(key));
        if (key->schedules || key->optimizers) {
            fputs("        for ", out);
            print_types(out, key);
            fputc('\n', out);
        }
        spec_help_wrapped(out, key->help);
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
        spec_help_wrapped(out, key->help);
    }
}

static void spec_help_text(FILE *out)
{
    fputs("Keys of the run spec (YAML; a.b stands for key b in section a). --set a.b=VALUE overrides the file.\n\n",
          out);
    spec_help_used(out);
    print_verdict(out, VERDICT_LATER, "DeepSpeed's keys that are not supported yet:");
    print_verdict(out, VERDICT_NOTICE, "DeepSpeed's keys that have no effect here (accepted, with a notice):");
    print_verdict(out, VERDICT_REFUSED, "DeepSpeed's keys that are refused when switched on:");
    fputs("\nOld names:\n", out);
    for (int i = 0; i < spec_num_keys; i++)
        if (spec_keys[i].type == KEY_ALIAS)
            fprintf(out, "%s: now %s\n", spec_keys[i].path, spec_keys[i].fallback);
}

/* ---- Markdown ------------------------------------------------------------ */

static void spec_help_cell(FILE *out, const char *text)
{
    for (; *text; text++)
        fputs(*text == '|' ? "\\|" : (char[]){*text, 0}, out);
}

static void spec_help_markdown_used(FILE *out)
{
    const char *open = NULL; /* the top-level section whose table is open; "": keys at top level */
    size_t open_length = 0;
    fputs("## Keys\n", out);
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->type == KEY_SECTION || key->verdict != VERDICT_USED || key->type == KEY_ALIAS)
            continue;
        size_t length = strchr(key->path, '.') ? strcspn(key->path, ".") : 0;
        if (!open || length != open_length || strncmp(open, key->path, length) != 0) {
            const struct spec_key *section = key;
            while (length && (section->type != KEY_SECTION || strlen(section->path) != length))
                section--;
            if (length)
                fprintf(out, "\n### %s: %s\n\n", section->path, section->help);
            else
                fputs("\n### At top level: sizes of batches, clipping, output\n\n", out);
            fputs("| key | value | default | resume | |\n|---|---|---|---|---|\n", out);
            open = key->path;
            open_length = length;
        }
        fprintf(out, "| `%s` | ", key->path);
        print_type(out, key);
        fprintf(out, " | %s | %s | ", describe_default(key), resume_names[key->resume]);
        print_types(out, key);
        fputs(key->schedules || key->optimizers ? ": " : "", out);
        spec_help_cell(out, key->help);
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
        const char *accepted = key->type == KEY_FOREIGN    ? "enabled: false"
                               : verdict == VERDICT_NOTICE ? "any"
                               : key->fallback             ? key->fallback
                                                           : "-";
        fprintf(out, "| `%s` | %s | ", key->path, accepted);
        spec_help_cell(out, key->help);
        fputs(" |\n", out);
    }
}

static void spec_help_markdown_choices(FILE *out)
{
    fputs("\n### DeepSpeed's other optimizers and schedulers\n\n", out);
    for (int i = 0; i < spec_num_keys; i++) {
        for (const struct spec_choice *choice = spec_keys[i].choices; choice && choice->name; choice++)
            if (choice->verdict != VERDICT_USED && choice->verdict != VERDICT_ALIAS &&
                choice->verdict != VERDICT_SYNONYM)
                fprintf(out, "- `%s: %s`: %s\n", spec_keys[i].path, choice->name,
                        choice->verdict == VERDICT_LATER ? "not supported yet" : choice->why);
    }
}

static void spec_help_markdown(FILE *out)
{
    fputs(intro, out);
    spec_help_markdown_used(out);
    fputs("\n## DeepSpeed's other keys\n\nA section that is switched off (`enabled: false`) is always accepted.\n",
          out);
    markdown_verdict(out, VERDICT_LATER, "Not supported yet", "Any value other than the accepted one is an error.");
    spec_help_markdown_choices(out);
    markdown_verdict(
        out, VERDICT_NOTICE, "No effect here",
        "Accepted; if the value differs from DeepSpeed's default, a notice gives the reason why it has no effect.");
    markdown_verdict(out, VERDICT_REFUSED, "Refused", "Switching one on is an error, which gives the reason.");
    fputs("\n### Old names\n\n", out);
    for (int i = 0; i < spec_num_keys; i++)
        if (spec_keys[i].type == KEY_ALIAS)
            fprintf(out, "- `%s`: now `%s`\n", spec_keys[i].path, spec_keys[i].fallback);
    fputs("\n## Names of other trainers\n\n"
          "Names of Hugging Face's Trainer and Accelerate, LLaMA-Factory, axolotl and torchtune. In a run spec they "
          "are errors, whose hint is\nthe row of this table.\n\n",
          out);
    spec_print_names(out);
    fputc('\n', out);
    fputs(metrics, out);
}

void spec_print_help(FILE *out, bool markdown)
{
    if (markdown)
        spec_help_markdown(out);
    else
        spec_help_text(out);
}
