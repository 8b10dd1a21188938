/* SPDX-License-Identifier: Apache-2.0 */
/* init_inputs.c: what `ztrain init` takes: questions, the model, the data, the machine, the length of the run. */
#include "ckpt/huggingface/huggingface.h"
#include "cmd/init.h"
#include "core/data/data_summary.h"
#include "core/model/model_folder.h"
#include "gpu/open/device_open.h"

enum { INIT_TRIES = 3 };

/* Checks a flag or an answer against what is known by then, and keeps it in the place of an earlier one. */
typedef enum status init_take(struct init *t, const char *text, struct error *err);

void init_note(const char *format, ...)
{
    char text[1024], line[1100];
    WITH_ARGS(format, vsnprintf(text, sizeof text, format, args));
    snprintf(line, sizeof line, "ztrain: note: %s", PRINTABLE(text));
    log_line(line);
}

/* A line of the terminal without blanks around it, for free(); ~/ is HOME. NULL: the input ended. */
static char *init_read_answer(void)
{
    OWNED char *line = NULL;
    size_t room = 0;
    if (memory_getline(&line, &room, stdin) < 0) return NULL;
    char *start = line + strspn(line, " \t");
    size_t end = strlen(start);
    while (end > 0 && strchr(" \t\r\n", start[end - 1])) end--;
    start[end] = '\0';
    const char *home = strncmp(start, "~/", 2) == 0 ? getenv("HOME") : NULL;
    return home ? memory_printf("%s%s", home, start + 1) : memory_text(start);
}

static enum status init_ask(struct init *t, const char *question, const char *usual, init_take *take, struct error *err)
{
    for (int i = 0; i < INIT_TRIES; i++) {
        fprintf(stderr, usual ? "%s [%s]: " : "%s: ", question, usual);
        fflush(stderr);
        OWNED char *answer = init_read_answer();
        if (!answer) {
            fputc('\n', stderr);
            error_set(err, STATUS_USAGE, "the input ended at the question '%s'", question);
            return error_hint(err, "flags answer as well: ztrain init --help");
        }
        const enum status status = take(t, *answer || !usual ? answer : usual, err);
        if (status == STATUS_OK) return STATUS_OK;
        fprintf(stderr, "  %s\n", PRINTABLE(err->text));
    }
    error_set(err, STATUS_USAGE, "%d answers to the question '%s' were wrong", INIT_TRIES, question);
    return error_hint(err, "flags answer as well: ztrain init --help");
}

/* A flag: `given`, else the answer to `question` on a terminal (NULL: none), else `usual`. STATUS_USAGE: none. */
static enum status init_take_flag(struct init *t, const char *flag, const char *given, const char *question,
                                  const char *usual, init_take *take, struct error *err)
{
    if (!given && question && t->asks) return init_ask(t, question, usual, take, err);
    if (!given && !usual)
        return error_set(err, STATUS_USAGE, "--%s is missing; hint: ztrain init --model DIR --data PREFIX", flag);
    const enum status status = take(t, given ? given : usual, err);
    if (status == STATUS_OK || strncmp(err->text, "--", 2) == 0) /* gpu_catalog_find() names its option */
        return status;
    return error_prefix(err, "--%s", flag);
}

void init_release(struct init *t)
{
    label_set_close(t->labels);
    token_set_close(t->set);
    string_list_release(&t->data);
    string_list_release(&t->validation);
    string_list_release(&t->flags.data);
    model_desc_release(&t->desc);
    free(t->model);
}

/* YAML is UTF-8, and a run spec takes a ~ at the beginning for a home folder, which a shell has put in already. */
static enum status init_check_text(const char *text, struct error *err)
{
    if (text[0] == '~')
        return error_set(err, STATUS_USAGE, "'%s' begins with ~, which a run spec takes for a home folder; hint: ./%s",
                         PRINTABLE(text), PRINTABLE(text));
    json_auto_t *utf8 = json_string(text);
    return utf8 ? STATUS_OK : error_set(err, STATUS_USAGE, "'%s' is not text in UTF-8", PRINTABLE(text));
}

/* ---- the model ----------------------------------------------------------- */

static enum status init_take_model(struct init *t, const char *text, struct error *err)
{
    char folder[FS_PATH_MAX];
    TRY(init_check_text(text, err));
    const bool found = model_folder_find(text, folder);
    if (!found && !fs_exists(text)) return model_folder_missing(text, STATUS_DATA, err);
    model_desc_release(&t->desc);
    t->desc = (struct model_desc){.layers = NULL};
    TRY(model_desc_load(found ? folder : text, &t->desc, err));
    RELEASED(tensor_table_release) struct tensor_table table = {0};
    struct error ignored; /* those but `absent` are init_build()'s */
    bool absent = true;
    tensor_table_build(&t->desc, &table);
    const struct huggingface_source source = {.dir = folder, .desc = &t->desc, .table = &table};
    if (found) huggingface_check(&source, &absent, &ignored);
    t->params = table.num_params;
    t->pretrained = !absent;
    free(t->model);
    t->model = memory_text(text);
    if (!t->pretrained)
        init_note("'%s' is %s: the run trains from scratch (model.config), from random weights", text,
                  found ? "a folder without weights (safetensors)" : "a config.json");
    return STATUS_OK;
}

enum status init_find_method(const char *name, enum init_method *method, struct error *err)
{
    static const char *const names[] = {[INIT_FULL] = "full", [INIT_LORA] = "lora", [INIT_QLORA] = "qlora"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcasecmp(name, names[i]) == 0) {
            *method = (enum init_method)i;
            return STATUS_OK;
        }
    return error_set(err, STATUS_USAGE, "'%s' is not known; hint: full, lora or qlora", PRINTABLE(name));
}

static enum status init_take_method(struct init *t, const char *text, struct error *err)
{
    TRY(init_find_method(text, &t->method, err));
    if (t->method == INIT_QLORA && t->pretrained && t->desc.weights_in_out)
        return error_set(err, STATUS_USAGE, "the matrices of %s are (in, out), and are not quantized; hint: lora",
                         model_family_name(t->desc.family));
    if (t->method == INIT_FULL || t->pretrained) return STATUS_OK;
    error_set(err, STATUS_USAGE, "an adapter needs trained weights below it, and '%s' has none", t->model);
    return error_hint(err, "full trains from scratch");
}

/* ---- the data ------------------------------------------------------------ */

/* The options of ztrain-tokenize for what the first line of a .jsonl file holds. */
static const char *init_text_form(const char *path)
{
    OWNED char *line = NULL;
    size_t room = 0;
    FILE *file = fs_has_suffix(path, ".jsonl") ? memory_fopen(path, "r") : NULL;
    if (!file) return "";
    json_auto_t *document = memory_getline(&line, &room, file) < 0 ? NULL : json_loads(line, 0, NULL);
    fclose(file);
    if (json_object_get(document, "messages") || json_object_get(document, "conversations")) return " --chat-template";
    const bool pairs = json_object_get(document, "prompt") && json_object_get(document, "completion");
    return pairs ? " --completion prompt,completion" : "";
}

/* Data that are text yet: names the command that makes shards of them. */
static enum status init_refuse_text(const struct init *t, const char *name, size_t stem, struct error *err)
{
    char prefix[FS_PATH_MAX], folder[FS_PATH_MAX];
    const bool tokenizer = model_folder_find(t->model, folder) && tokenizer_folder_has(folder);
    if (!fs_exists(name)) return error_set(err, STATUS_DATA, "there is no file '%s'", PRINTABLE(name));
    snprintf(prefix, sizeof prefix, "%.*s", (int)stem, name);
    while (stem > 1 && prefix[stem - 1] == '/') prefix[--stem] = '\0';
    OWNED char *file = shell_word(name), *output = shell_word(prefix), *model = shell_word(t->model);
    error_set(err, STATUS_DATA, "'%s' is text, and ztrain trains on token shards", PRINTABLE(name));
    return error_hint(err, "ztrain-tokenize %s --output %s --tokenizer %s%s; then --data %s", file, output,
                      tokenizer ? model : "DIR", init_text_form(name), output);
}

static enum status init_find_text(const struct init *t, const struct string_list *shards, struct error *err)
{
    for (int i = 0; i < shards->count; i++) {
        const char *name = shards->items[i];
        const size_t stem = fs_is_dir(name) ? strlen(name) : spec_text_stem(name);
        TRY(init_check_text(name, err));
        if (stem > 0) return init_refuse_text(t, name, stem, err);
    }
    return STATUS_OK;
}

static enum status init_count_lengths(struct init *t, struct error *err)
{
    t->longest = 0;
    memset(t->within, 0, sizeof t->within);
    for (int64_t i = 0; i < token_set_documents(t->set); i++) {
        int64_t first, length;
        TRY(token_set_document(t->set, i, &first, &length, err));
        t->longest = max64(t->longest, length);
        for (int k = 0; k < INIT_LENGTHS; k++) t->within[k] += length <= INT64_C(1) << k;
    }
    return STATUS_OK;
}

static enum status init_read_labels(struct init *t, struct error *err)
{
    const char *bin = token_set_shard(t->set, 0, &(int64_t){0}, &(int64_t){0});
    label_set_close(TAKEN(t->labels));
    TRY(label_set_find(t->set, &t->labels, err));
    if (t->labels) {
        t->longest = t->labels->longest;
        if (!label_set_is_preference(t->labels)) return STATUS_OK;
        error_set(err, STATUS_DATA, "'%s' holds answers that people prefer or not", PRINTABLE(bin));
        return error_hint(err, "write the run spec by docs/preferences.md: ztrain init knows texts and labels");
    }
    if (t->desc.num_labels > 0) {
        error_set(err, STATUS_DATA, "the model is a classifier, and '%s' has no labels", PRINTABLE(bin));
        return error_hint(err, "ztrain-tokenize FILE --output PREFIX --tokenizer MODEL --label COLUMN writes labels");
    }
    return model_desc_check_causal(&t->desc, err);
}

static enum status init_take_shards(struct init *t, const struct string_list *shards, struct error *err)
{
    TRY(init_find_text(t, shards, err));
    token_set_close(TAKEN(t->set));
    TRY(token_set_open((const char *const *)shards->items, shards->count, &t->set, err));
    TRY(token_set_check(t->set, t->desc.vocab_size, NULL, err));
    TRY(init_read_labels(t, err));
    t->masked = token_set_has_mask(t->set) && !t->labels;
    if (t->masked) TRY(init_count_lengths(t, err));
    const char *bin; /* a glob may match PREFIX-validation as well as PREFIX */
    int64_t documents, tokens;
    for (int i = 0; (bin = token_set_shard(t->set, i, &documents, &tokens)); i++) {
        bool named = false;
        for (int k = 0; k < shards->count; k++) named |= strstr(shards->items[k], "-validation") != NULL;
        if (!named && fs_has_suffix(bin, "-validation.bin"))
            init_note("'%s' is trained on too: --data matches it", bin);
    }
    string_list_release(&t->data);
    t->data = (struct string_list){.count = 0};
    for (int i = 0; i < shards->count; i++) string_list_add(&t->data, shards->items[i]);
    return STATUS_OK;
}

static enum status init_take_data(struct init *t, const char *text, struct error *err)
{
    char *items[] = {(char *)(uintptr_t)text};
    return init_take_shards(t, &(struct string_list){1, items}, err);
}

static enum status init_take_validation(struct init *t, const char *text, struct error *err)
{
    RELEASED(token_set_drop) struct token_set *set = NULL;
    char *items[] = {(char *)(uintptr_t)text};
    const struct string_list shards = {1, items};
    TRY(init_find_text(t, &shards, err));
    TRY(token_set_open((const char *const *)items, 1, &set, err));
    const char *both = token_set_common(t->set, set);
    if (both) return error_set(err, STATUS_DATA, "'%s' is in the training data too", PRINTABLE(both));
    string_list_add(&t->validation, text);
    return STATUS_OK;
}

static enum status init_find_validation(struct init *t, struct error *err)
{
    for (int i = 0; i < t->data.count; i++) {
        const char *name = t->data.items[i];
        const bool ends = fs_has_suffix(name, ".bin") || fs_has_suffix(name, ".idx");
        OWNED char *prefix = memory_printf("%.*s-validation", (int)(strlen(name) - (ends ? 4 : 0)), name);
        OWNED char *index = memory_printf("%s.idx", prefix);
        if (fs_exists(index)) TRY(init_take_validation(t, prefix, err));
    }
    return STATUS_OK;
}

/* ---- the machine --------------------------------------------------------- */

/* What the driver says; a machine without one, or whose GPU does not open, has none. */
static void init_find_gpus(struct init_machine *machine)
{
    RELEASED(device_drop) struct device *device = NULL;
    struct error err;
    *machine = (struct init_machine){.gpus = 0};
    if (!device_cuda_available(machine->why)) return;
    if (device_open(DEVICE_CUDA, 0, 1, &device, &err) != STATUS_OK) {
        snprintf(machine->why, sizeof machine->why, "%.*s", (int)sizeof machine->why - 1, err.text);
        return;
    }
    machine->gpus = device_cuda_list(NULL, 0);
    machine->memory = (int64_t)device->memory_bytes;
    snprintf(machine->name, sizeof machine->name, "%s", device->name);
}

static const char *init_usual_gpus(struct init *t, char text[INIT_TEXT])
{
    const bool cpu = t->flags.device && strcasecmp(t->flags.device, "cpu") == 0;
    init_find_gpus(&t->machine);
    const int named = t->flags.device && !t->machine.gpus ? 1 : t->machine.gpus;
    snprintf(text, INIT_TEXT, "%d", cpu ? 0 : named);
    return text;
}

static enum status init_take_gpus(struct init *t, const char *text, struct error *err)
{
    const bool cpu = t->flags.device && strcasecmp(t->flags.device, "cpu") == 0;
    int64_t gpus = 0;
    TRY(option_integer("gpus", text, "a number", 0, 65536, &gpus, err));
    if (gpus > 0 && cpu) {
        error_set(err, STATUS_USAGE, "%" PRId64 " GPUs were asked for, and --device cpu", gpus);
        return error_hint(err, "one of the two; `ztrain --local-gpus N` starts N processes that share the cores");
    }
    if (gpus > 8 && gpus % 4 != 0)
        return error_set(err, STATUS_USAGE, "%" PRId64 " GPUs are not whole nodes of 8 or of 4", gpus);
    t->cuda = gpus > 0;
    t->ranks = gpus > 0 ? (int)gpus : 1;
    t->node_ranks = t->ranks <= 8 ? t->ranks : t->ranks % 8 == 0 ? 8 : 4;
    return STATUS_OK;
}

static enum status init_take_device(struct init *t, const char *text, struct error *err)
{
    const bool cpu = strcasecmp(text, "cpu") == 0;
    if (!cpu && !t->cuda) return error_set(err, STATUS_USAGE, "'%s' is a GPU, and --gpus is 0", text);
    if (cpu && t->cuda) return error_set(err, STATUS_USAGE, "'cpu' is no GPU; hint: --gpus 0");
    if (cpu) return STATUS_OK;
    TRY(gpu_catalog_find(text, &t->gpu, err));
    t->memory = (int64_t)(t->gpu.memory_gib * (1 << 30));
    return STATUS_OK;
}

static enum status init_take_memory(struct init *t, const char *text, struct error *err)
{
    int64_t bytes;
    if (!t->cuda) return error_set(err, STATUS_USAGE, "it is the memory of each GPU, and the run is on the CPU");
    if (!size_parse(text, &bytes)) {
        error_set(err, STATUS_USAGE, "'%s' is not a size", text);
        return error_hint(err, SIZE_FORMS);
    }
    if (bytes > t->memory)
        init_note("--memory %s is more than an %s has: the plan takes its %s", SIZE(format, bytes), t->gpu.option,
                  SIZE(round, t->memory));
    else
        t->memory = bytes;
    return STATUS_OK;
}

/* ---- samples and steps --------------------------------------------------- */

/* A power of two. With a mask: holds 99 % of the documents, and four average ones, so that samples are filled. */
static const char *init_usual_seq_length(const struct init *t, char text[INIT_TEXT])
{
    const int64_t documents = token_set_documents(t->set), tokens = token_set_tokens(t->set);
    const int64_t most = t->masked && t->desc.max_positions > 8192 ? 8192 : t->desc.max_positions;
    int64_t length = t->masked ? 256 : t->labels ? 16 : 2048;
    for (int k = 0; t->masked && k < INIT_LENGTHS && length < most; k++)
        if (INT64_C(1) << k >= length &&
            ((double)t->within[k] < 0.99 * (double)documents || (INT64_C(1) << k) * documents < 4 * tokens))
            length = INT64_C(2) << k;
    while (t->labels && length < t->labels->longest) length *= 2;
    snprintf(text, INIT_TEXT, "%" PRId64, length < most ? length : most);
    return text;
}

static enum status init_count_samples(struct init *t, struct error *err)
{
    RELEASED(first_fit_drop) struct first_fit *fit = NULL;
    struct data_summary summary;
    t->samples = token_set_samples(t->set, t->seq_length, !t->labels);
    if (!t->masked) return STATUS_OK;
    TRY(data_summary_read(t->set, 0, &summary, err));
    if (summary.learned == 0) {
        error_set(err, STATUS_DATA, "the loss mask of the data lets no token be learned");
        return error_hint(err, "`ztrain data PREFIX --show 3 --tokenizer DIR` shows what is");
    }
    TRY(first_fit_new(t->set, t->seq_length, &fit, err));
    t->samples = fit->samples;
    TRY(cut_count(t->set, t->seq_length, &t->cut, err));
    if (t->cut.documents == 0 || t->cut.targets == 0 || t->cut.target_left) return STATUS_OK;
    return error_set(err, STATUS_USAGE,
                     "%" PRId64 " cuts off all tokens that are learned: documents have up to %" PRId64 " tokens",
                     t->seq_length, t->longest);
}

static enum status init_take_seq_length(struct init *t, const char *text, struct error *err)
{
    if (option_integer("seq-length", text, "a number", 2, t->desc.max_positions, &t->seq_length, err) != STATUS_OK)
        return error_hint(err, "the model has %" PRId64 " positions", t->desc.max_positions);
    if (t->labels && t->labels->longest > t->seq_length) {
        error_set(err, STATUS_USAGE, "a document has %" PRId64 " tokens, and %" PRId64 " is the most",
                  t->labels->longest, t->seq_length);
        return error_hint(err, "ztrain-tokenize --max-length %" PRId64 " cuts texts and keeps their special tokens",
                          t->seq_length);
    }
    TRY(init_count_samples(t, err));
    if (t->samples >= t->ranks) return STATUS_OK;
    error_set(err, STATUS_USAGE,
              "the data make %" PRId64 " samples of %" PRId64 " tokens, fewer than the %d that a step needs",
              t->samples, t->seq_length, t->ranks);
    return error_hint(err, "a shorter --seq-length, fewer --gpus, or more data");
}

/* About 128 Ki tokens, in a power of two of samples on each rank; fewer, if an epoch had less than 50 steps. */
static const char *init_usual_batch(const struct init *t, char text[INIT_TEXT])
{
    int64_t batch = t->ranks;
    while (2 * batch * t->seq_length <= 128 << 10 && t->samples / (2 * batch) >= 50) batch *= 2;
    snprintf(text, INIT_TEXT, "%" PRId64, batch);
    return text;
}

static enum status init_take_batch(struct init *t, const char *text, struct error *err)
{
    const int ranks = t->ranks, most = ranks > 8 ? ranks : 8; /* a run on few may grow */
    TRY(option_integer("batch", text, "a number", 1, t->samples, &t->batch, err));
    t->virtual_ranks = ranks;
    for (int n = ranks; n <= most; n += ranks) t->virtual_ranks = t->batch % n == 0 ? n : t->virtual_ranks;
    if (t->virtual_ranks == 1) t->virtual_ranks = 0;
    if (t->batch % ranks == 0) return STATUS_OK;
    error_set(err, STATUS_USAGE, "%" PRId64 " samples of a step are not a multiple of %d GPUs", t->batch, ranks);
    return error_hint(err, "%" PRId64 " is the next one", (t->batch / ranks + 1) * ranks);
}

static enum status init_take_epochs(struct init *t, const char *text, struct error *err)
{
    TRY(option_real("epochs", text, "a number above 0, and at most 1e6", DBL_MIN, 1e6, &t->epochs, err));
    t->steps = spec_run_length(t->epochs, 0, t->samples / t->batch);
    return STATUS_OK;
}

static enum status init_take_lr(struct init *t, const char *text, struct error *err)
{
    return option_real("lr", text, "a number above 0, and at most 1", DBL_MIN, 1, &t->lr, err);
}

/* ---- flags and answers --------------------------------------------------- */

enum status init_take_inputs(struct init *t, struct error *err)
{
    const struct init_flags *f = &t->flags;
    TRY(init_take_flag(t, "model", f->model, "Model (a folder, or a name in the Hugging Face cache)", NULL,
                       init_take_model, err));
    TRY(init_take_flag(t, "method", f->method, t->pretrained ? "Method (full, lora or qlora)" : NULL, "full",
                       init_take_method, err));
    if (f->data.count > 0) {
        if (init_take_shards(t, &f->data, err) != STATUS_OK) return error_prefix(err, "--data");
    } else {
        TRY(init_take_flag(t, "data", NULL, "Data (the prefix of token shards)", NULL, init_take_data, err));
    }
    TRY(f->validation ? init_take_flag(t, "validation", f->validation, NULL, NULL, init_take_validation, err)
                      : init_find_validation(t, err));
    char text[INIT_TEXT];
    const char *usual = init_usual_gpus(t, text);
    TRY(init_take_flag(t, "gpus", f->gpus, f->device ? NULL : "GPUs (0: the CPU)", usual, init_take_gpus, err));
    if (!t->cuda && !t->asks && !f->gpus && !f->device)
        init_note("no --gpus, and no GPU here (%s): the run is on the CPU", t->machine.why);
    const char *device = t->cuda && !t->machine.gpus ? "Kind of GPU" : NULL;
    struct gpu_model model;
    struct error unknown;
    const bool known = t->machine.gpus > 0 && gpu_catalog_find(t->machine.name, &model, &unknown) == STATUS_OK;
    usual = !t->cuda ? "cpu" : known ? t->machine.name : gpu_catalog_usual;
    TRY(init_take_flag(t, "device", f->device, device, usual, init_take_device, err));
    if (!f->device && t->machine.gpus && t->memory > t->machine.memory) t->memory = t->machine.memory;
    if (f->memory) TRY(init_take_flag(t, "memory", f->memory, NULL, NULL, init_take_memory, err));
    if (t->cuda && !f->device && !(device && t->asks) && strcasecmp(t->gpu.name, t->machine.name) != 0)
        init_note("%s%s: the plan assumes an %s with %.1f GiB (--memory)",
                  t->machine.gpus ? "this machine's GPU is not known, " : "no --device", t->machine.name, t->gpu.name,
                  (double)t->memory / (double)(1 << 30));
    const char *epochs = t->masked || t->labels ? "3" : "1"; /* one pass over text, three over what is labelled */
    const char *lr = t->method != INIT_FULL ? "2e-4" : t->pretrained ? "2e-5" : "3e-4";
    TRY(init_take_flag(t, "seq-length", f->seq_length, NULL, init_usual_seq_length(t, text), init_take_seq_length,
                       err));
    TRY(init_take_flag(t, "batch", f->batch, NULL, init_usual_batch(t, text), init_take_batch, err));
    TRY(init_take_flag(t, "epochs", f->epochs, "Epochs", epochs, init_take_epochs, err));
    return init_take_flag(t, "lr", f->lr, NULL, lr, init_take_lr, err);
}
