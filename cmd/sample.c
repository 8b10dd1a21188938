/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c: `ztrain sample DIR --prompt TEXT` continues a prompt with a checkpoint, a run's, or a model folder. */
#include "ckpt/huggingface/huggingface.h"
#include "cmd/command_line.h"
#include "core/model/adapter.h"
#include "core/model/end_tokens.h"
#include "core/model/model_folder.h"
#include "core/spec/adapter_config.h"
#include "core/text/tokenizer.h"
#include "gpu/model/generate.h"
#include "gpu/model/sampler.h"
#include "gpu/open/device_open.h"

static const char USAGE[] =
    "usage: ztrain sample DIR --prompt TEXT [options]\n\n"
    "Continues a prompt with a trained model, and prints the continuation as it comes, until the model ends it\n"
    "(eos_token_id), it has --max-tokens, or the model's context is full.\n\n"
    "  DIR                  a checkpoint, a run folder (its newest valid checkpoint), a Hugging Face folder, a PEFT\n"
    "                       folder, or the name of a model in the local Hugging Face cache (Qwen/Qwen2.5-0.5B)\n"
    "  --best               take the run folder's checkpoint with the best evaluation\n"
    "  --base DIR           the base model of an adapter, if its folder has moved\n"
    "  --prompt TEXT        the prompt; the tokenizer.json of the folder (byte-level BPE) turns it into tokens; an\n"
    "                       empty one begins from the tokenizer's or the model's first token (bos_token_id)\n"
    "  --prompt-tokens IDS  the prompt as token ids with commas; the continuation is printed in the same way\n"
    "  --max-tokens N       at most this many tokens (default: 128)\n"
    "  --temperature X      0: always the most probable token (greedy); higher: more even. Default: 0, or 1 with one\n"
    "                       of the next three\n"
    "  --top-k K            draw from the K most probable tokens (default: 0, all)\n"
    "  --top-p P            draw from the most probable tokens that together reach P (default: 1, all)\n"
    "  --seed S             seed of the draws (default: 1234): the same seed draws the same tokens\n"
    "  --device NAME        auto, cpu or cuda (default: auto)\n"
    "  --dtype TYPE         fp32, bf16 or fp16 (default: what the run computes in; of a Hugging Face folder fp32 on\n"
    "                       the CPU, and on a GPU the dtype of its config.json)\n";

struct arguments {
    const char *dir;
    const char *prompt, *prompt_tokens, *max_tokens, *temperature, *top_k, *top_p, *seed; /* or NULL */
    const char *dtype, *base, *device;                                                    /* device: never NULL */
    bool best;
};

static const struct option_row options[] = {
    {.name = "prompt", .value = "TEXT", .offset = offsetof(struct arguments, prompt), .kind = OPTION_MAYBE_EMPTY},
    OPTION(struct arguments, prompt_tokens, "prompt-tokens", "IDS"),
    OPTION(struct arguments, max_tokens, "max-tokens", "N"),
    OPTION(struct arguments, temperature, "temperature", "X"),
    OPTION(struct arguments, top_k, "top-k", "K"),
    OPTION(struct arguments, top_p, "top-p", "P"),
    OPTION(struct arguments, seed, "seed", "S"),
    OPTION(struct arguments, device, "device", "NAME"),
    OPTION(struct arguments, dtype, "dtype", "TYPE"),
    OPTION(struct arguments, base, "base", "DIR"),
    OPTION(struct arguments, best, "best", NULL),
};
static const struct command_line command_line = {
    "sample",         USAGE, "folder", 1, "ztrain sample DIR --prompt TEXT, or --prompt-tokens 1,2,3", options,
    COUNT_OF(options)};

/* ---- the model ----------------------------------------------------------- */

/* A trained model that continues a prompt, alone on one device. */
struct sample_model {
    const struct arguments *a; /* borrowed */
    const char *folder;        /* `found`, checkpoint->path, or an adapter's base: config.json, tokenizer.json … */
    char found[FS_PATH_MAX];
    struct checkpoint *checkpoint; /* owned; NULL: a Hugging Face folder */
    struct adapter_config adapter; /* owned: of a PEFT folder, whose settings are on */
    struct peft_base base;         /* of a checkpoint's adapter, and of a PEFT folder */
    struct model_desc desc;
    struct end_tokens ends;

    enum dtype dtype;
    struct tensor_table table;
    struct shard_layout layout; /* of one rank: its slices are whole units */
    struct device *device;
    struct stream *stream;
    struct transformer *transformer;
    struct generator *generator;
    void *memory; /* the arena */
    size_t bytes; /* its size */
    void **units; /* owned [num_units]: the units' parameters, in the arena */
    void *workspace;
    struct param_verbs verbs;

    struct token_list prompt;    /* owned */
    struct tokenizer *tokenizer; /* owned; NULL: the prompt is given as ids, and so is the continuation */
    int64_t max_tokens;          /* of the continuation; once it is prepared, at most as many as there is room for */
    struct sampler_settings settings;
};

static enum status read_sample_settings(struct sample_model *m, struct error *err)
{
    const struct arguments *a = m->a;
    const bool draws = a->top_k || a->top_p || a->seed;
    struct sampler_settings *s = &m->settings;
    int64_t seed = 1234;
    *s = (struct sampler_settings){.temperature = draws ? 1 : 0, .top_p = 1};
    m->max_tokens = 128;
    TRY(option_integer("max-tokens", a->max_tokens, "a whole number", 1, INT32_MAX, &m->max_tokens, err));
    TRY(option_integer("top-k", a->top_k, "a whole number", 0, INT32_MAX, &s->top_k, err));
    TRY(option_integer("seed", a->seed, "a whole number", 0, INT64_MAX, &seed, err));
    TRY(option_real("temperature", a->temperature, "0 (greedy) or higher", 0, DBL_MAX, &s->temperature, err));
    TRY(option_real("top-p", a->top_p, "above 0 and at most 1", DBL_MIN, 1, &s->top_p, err));
    s->seed = (uint64_t)seed;
    if (s->temperature == 0 && draws)
        return error_set(err, STATUS_USAGE,
                         "--temperature 0 takes the most probable token: --top-k, --top-p and --seed have no effect "
                         "with it; hint: leave them out, or set a temperature above 0");
    return STATUS_OK;
}

static bool sample_has_file(const char *dir, const char *name)
{
    char path[FS_PATH_MAX];
    return fs_join(path, dir, name, STATUS_DATA, NULL) == STATUS_OK && fs_exists(path);
}

static enum status read_peft_description(struct sample_model *m, struct error *err)
{
    const char *dir = m->found;
    TRY(adapter_config_load(dir, &m->adapter, err));
    m->adapter.settings.on = true;
    if (m->adapter.task_type && !strcmp(m->adapter.task_type, "SEQ_CLS")) {
        error_set(err, STATUS_USAGE, "'%s' is a classifier's adapter, which has no next token to sample",
                  PRINTABLE(dir));
        return error_hint(err, "name that of a causal language model");
    }
    const char *base = m->a->base ? m->a->base : m->adapter.base_model;
    if (!base || !model_folder_find(base, m->base.folder)) {
        error_set(err, STATUS_DATA, "the base model of the adapter '%s' is not there: '%s'", PRINTABLE(dir),
                  PRINTABLE(base ? base : "base_model_name_or_path is not set"));
        return error_hint(err, "--base DIR names its folder, wherever it is now");
    }
    if (!tokenizer_folder_has(dir)) m->folder = m->base.folder;
    m->base.source =
        (struct huggingface_source){.dir = m->base.folder, .desc = &m->desc, .table = &m->table, .quiet = true};
    return model_desc_load(m->base.folder, &m->desc, err);
}

static enum status read_description(struct sample_model *m, struct error *err)
{
    const struct arguments *a = m->a;
    const char *dir = m->found;
    const bool checkpoints = sample_has_file(dir, "manifest.json") || sample_has_file(dir, "checkpoints");
    const bool config = sample_has_file(dir, "config.json"),
               peft = !config && sample_has_file(dir, ADAPTER_CONFIG_FILE);
    const bool folder = (config && !checkpoints) || peft;
    if (folder && a->best)
        return error_set(err, STATUS_USAGE, "--best is for runs, and '%s' is a %s folder", PRINTABLE(dir),
                         peft ? "PEFT" : "Hugging Face");
    if (folder) m->folder = dir;
    if (peft) return read_peft_description(m, err);
    if (folder && a->base)
        return error_set(err, STATUS_USAGE, "--base is for adapters, and '%s' is a whole model; hint: leave it out",
                         PRINTABLE(dir));
    if (folder) {
        m->base.source = (struct huggingface_source){.dir = dir, .desc = &m->desc, .table = &m->table, .quiet = true};
        return model_desc_load(dir, &m->desc, err);
    }
    if (sample_has_file(dir, "model.safetensors") || sample_has_file(dir, "model.safetensors.index.json"))
        return error_set(err, STATUS_DATA, "'%s' has safetensors, but no config.json that describes the model",
                         PRINTABLE(dir));
    TRY((a->best ? checkpoint_open_best : checkpoint_open)(dir, false, &m->checkpoint, err));
    m->folder = m->checkpoint->path;
    TRY(checkpoint_model(m->checkpoint, &m->desc, &m->table, err));
    if (m->checkpoint->adapter) return peft_base_find(m->checkpoint, a->base, &m->desc, &m->table, &m->base, err);
    if (a->base)
        return error_set(err, STATUS_USAGE, "--base is for adapters, and '%s' is of a whole model; hint: leave it out",
                         PRINTABLE(m->folder));
    return STATUS_OK;
}

/* Finds the model, and reads its description. After an error too, close_model() frees everything. */
static enum status open_model(struct sample_model *m, struct error *err)
{
    const char *dir = m->a->dir;
    bool there;
    if (!model_folder_find(dir, m->found)) {
        TRY(fs_find_dir(dir, &there, STATUS_CHECKPOINT, err));
        if (model_folder_is_name(dir)) return model_folder_missing(dir, STATUS_USAGE, err);
        error_set(err, STATUS_USAGE, "'%s' is not a folder", PRINTABLE(dir));
        return error_hint(err, "name a checkpoint, a run or a Hugging Face folder");
    }
    TRY(read_description(m, err));
    if (m->desc.num_labels > 0)
        error_set(err, STATUS_USAGE, "'%s' is a classifier, which has no next token to sample", PRINTABLE(m->folder));
    else if (m->desc.bidirectional)
        error_set(err, STATUS_USAGE, "'%s' is a %s model, which looks both ways and has no next token to sample",
                  PRINTABLE(m->folder), model_family_name(m->desc.family));
    else
        return end_tokens_read(m->folder, m->desc.source, &m->ends, err);
    return error_hint(err, "name a causal language model");
}

static enum status sample_acquire_unit(void *self, int unit, enum param_pass pass, struct stream *stream,
                                       struct unit_params *params, struct error *err)
{
    (void)pass, (void)stream, (void)err;
    const struct sample_model *m = self;
    const struct unit_info *units = m->table.units;
    *params = (struct unit_params){.trained = {NULL}};
    for (int part = 0, u = unit; u >= 0 && part < UNIT_PARTS; u = unit_next(&m->table, u), part++) {
        params->trained[part] = m->units[u];
        params->frozen[part] = units[u].frozen ? m->units[units[u].frozen] : NULL;
    }
    return STATUS_OK;
}

static void sample_release_unit(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    (void)self, (void)unit, (void)pass, (void)stream;
}

static void lay_out(struct sample_model *m, struct arena *arena, size_t workspace)
{
    for (int u = 0; u < m->table.num_units; u++)
        m->units[u] = arena_take(arena, MEM_PARAMS, (size_t)m->layout.slice[u] * dtype_size(m->dtype));
    transformer_layout(m->transformer, arena);
    generator_layout(m->generator, arena);
    m->workspace = arena_take(arena, MEM_WORKSPACE, workspace);
}

/* Takes units one by one from a reader, as fp32, to the device. */
struct staging {
    struct sample_model *model;
    float *floats;   /* owned: the largest unit */
    void *converted; /* owned: the same in the model's dtype; NULL: fp32 */
    int unit;        /* in floats, not on the device yet; -1: none */
};

static void sample_staging_flush(struct staging *s)
{
    struct sample_model *m = s->model;
    if (s->unit < 0) return;
    const int64_t n = m->layout.slice[s->unit];
    const void *from = s->floats;
    if (s->converted) {
        const struct cast_args cast = {
            .dst_dtype = m->dtype, .src_dtype = DTYPE_F32, .n = n, .dst = s->converted, .src = s->floats};
        m->device->host_ops->cast(NULL, &cast);
        from = s->converted;
    }
    for (int64_t layer = 0; layer < m->desc.num_layers; layer++) {
        const struct tensor_info *bias = tensor_find(&m->table, (int)layer + 1, ROLE_ROUTER_CORRECTION);
        if (bias && bias->unit == s->unit)
            transformer_set_correction(m->transformer, layer, s->floats + bias->offset, m->stream);
    }
    stream_copy(m->stream, m->units[s->unit], from, (size_t)n * dtype_size(m->dtype));
    stream_sync(m->stream);
    s->unit = -1;
}

static enum status sample_staging_get(void *owner, enum slice_access access, enum state_kind kind, int unit,
                                      float **slice, struct error *err)
{
    struct staging *s = owner;
    (void)err;
    ASSERT(kind == STATE_MASTER && access == SLICE_WRITE);
    sample_staging_flush(s);
    memset(s->floats, 0, (size_t)s->model->layout.slice[unit] * sizeof *s->floats);
    s->unit = unit;
    *slice = s->floats;
    return STATUS_OK;
}

/* The base of a checkpoint's adapter, which is compared with the one it was trained on. */
static enum status read_checkpoint_base(const struct sample_model *m, struct state_slices slices, struct error *err)
{
    RELEASED(model_desc_release) struct model_desc desc = {0};
    RELEASED(tensor_table_release) struct tensor_table stored = {0}; /* the same tensors; frozen units may be bytes */
    struct huggingface_source source = m->base.source;
    RELEASED(huggingface_drop) struct huggingface_reader *reader = NULL;
    TRY(checkpoint_model(m->checkpoint, &desc, &stored, err));
    peft_base_store(m->checkpoint, &m->desc, &stored);
    source.table = &stored;
    TRY(huggingface_open(&source, 0, (uint64_t)m->checkpoint->base.seed, &reader, err));
    TRY(peft_base_check(m->checkpoint, &stored, reader, source.dir, err));
    for (int u = 0; u < stored.num_units; u++) {
        float *unit;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, u, &unit, err));
        TRY(huggingface_values(reader, u, 0, stored.units[u].numel, unit, err));
    }
    return STATUS_OK;
}

static enum status read_weights(struct sample_model *m, struct error *err)
{
    const int64_t largest = m->layout.max_padded;
    OWNED float *floats = malloc((size_t)largest * sizeof *floats);
    OWNED void *converted = m->dtype == DTYPE_F32 ? NULL : malloc((size_t)largest * dtype_size(m->dtype));
    struct staging s = {.model = m, .unit = -1, .floats = floats, .converted = converted};
    const struct state_slices slices = {.owner = &s, .count = 1, .get = sample_staging_get};
    if (!floats || (m->dtype != DTYPE_F32 && !converted))
        return error_set(err, STATUS_DEVICE, "cannot read the weights: out of memory for %" PRId64 " values", largest);
    if (m->checkpoint) TRY(checkpoint_check_table(m->checkpoint, &m->table, err));
    if (!m->checkpoint)
        TRY(huggingface_load(&m->base.source, &m->layout, 0, 0, slices, err));
    else if (m->checkpoint->adapter)
        TRY(read_checkpoint_base(m, slices, err));
    for (int u = 0; m->checkpoint && u < m->layout.num_trained; u++) {
        float *unit;
        TRY(state_slice(slices, SLICE_WRITE, STATE_MASTER, u, &unit, err));
        TRY(checkpoint_read(m->checkpoint, STATE_MASTER, u, 0, m->table.units[u].numel, unit, err));
    }
    if (m->adapter.settings.on) TRY(peft_load(m->found, &m->desc, &m->table, &m->layout, 0, slices, err));
    sample_staging_flush(&s);
    return STATUS_OK;
}

/* Opens the device and reads the weights. prompt, context: tokens of the prompt, and of the whole sequence. */
static enum status start_model(struct sample_model *m, int64_t prompt, int64_t context, struct error *err)
{
    const struct arguments *a = m->a;
    char why[256];
    const bool cuda = strcmp(a->device, "cpu") != 0 && device_cuda_available(why);
    if (!cuda && !strcmp(a->device, "cuda")) return error_set(err, STATUS_DEVICE, "--device cuda: %s", why);
    TRY(device_open(cuda ? DEVICE_CUDA : DEVICE_CPU, 0, 0, &m->device, err));
    TRY(stream_new(m->device, STREAM_COMPUTE, &m->stream, err));
    const bool stored = m->device->kind == DEVICE_CUDA && m->desc.has_torch_dtype;
    m->dtype = a->dtype        ? dtype_find(a->dtype)
               : m->checkpoint ? m->checkpoint->dtype
               : stored        ? m->desc.torch_dtype
                               : DTYPE_F32;
    m->verbs = (struct param_verbs){.self = m, .acquire = sample_acquire_unit, .release = sample_release_unit};
    if (!m->checkpoint) {
        tensor_table_build(&m->desc, &m->table);
        TRY(adapter_apply(&m->adapter.settings, &m->desc, &m->table, NULL, err));
    }
    shard_layout_init(&m->layout, &m->table, 1);
    m->units = memory_zeroed((size_t)m->table.num_units, sizeof *m->units);
    const struct transformer_config config = {
        .desc = &m->desc,
        .table = &m->table,
        .dtype = m->dtype,
        .settings = {.deterministic = true, .logits_dtype = DTYPE_F32},
        .batch = {.max_tokens = prompt, .max_seqs = 1, .max_seq = (int32_t)prompt},
        .max_position = context,
        .logit_chunk = 1,
    };
    TRY(transformer_new(&config, m->device, &m->transformer, err));
    m->generator = generator_new(m->transformer, context);
    struct op_limits limits;
    struct arena arena;
    transformer_op_limits(m->transformer, &limits);
    const size_t workspace = ops_workspace_bytes(m->device, &limits);
    arena_init_dry(&arena);
    lay_out(m, &arena, workspace);
    TRY(device_alloc(m->device, arena.used, &m->memory, err));
    m->bytes = arena.used;
    arena_init(&arena, m->memory, m->bytes);
    lay_out(m, &arena, workspace);
    arena_finish(&arena);
    stream_set_workspace(m->stream, m->workspace, workspace);
    TRY(transformer_start(m->transformer, m->stream, err));
    return read_weights(m, err);
}

/* A model of zeros is allowed; zeros are left. */
static void close_model(struct sample_model *m)
{
    generator_free(m->generator);
    transformer_free(m->transformer);
    if (m->memory) device_free(m->device, m->memory, m->bytes);
    free(m->units);
    stream_free(m->stream);
    device_close(m->device);
    shard_layout_release(&m->layout);
    tensor_table_release(&m->table);
    model_desc_release(&m->desc);
    checkpoint_close(m->checkpoint);
    adapter_config_release(&m->adapter);
    peft_base_release(&m->base);
    token_list_release(&m->prompt);
    tokenizer_free(m->tokenizer);
    *m = (struct sample_model){.a = m->a};
}

/* ---- the prompt ---------------------------------------------------------- */

/* "1,2,3", with blanks around the numbers if the caller likes. */
static enum status read_sample_ids(const char *text, struct token_list *ids, struct error *err)
{
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        const long long id = strtoll(at, &end, 10);
        const size_t blanks = strspn(end, " \n");
        if (end == at || errno || id < 0 || id > INT32_MAX || (end[blanks] && end[blanks] != ','))
            return error_set(err, STATUS_USAGE,
                             "--prompt-tokens: token ids with commas expected, as in 1,2,3, not '%s'", PRINTABLE(text));
        token_list_add(ids, (int32_t)id);
        if (!end[blanks]) return STATUS_OK;
        at = end + blanks + 1;
    }
}

static enum status check_prompt(const struct sample_model *model, struct error *err)
{
    const int64_t num_prompt = (int64_t)model->prompt.count;
    for (int64_t i = 0; i < num_prompt; i++)
        if (model->prompt.ids[i] >= model->desc.vocab_size)
            return error_set(err, STATUS_USAGE,
                             "token %" PRId32 " of the prompt is not in the model's vocabulary: ids are 0 to %" PRId64,
                             model->prompt.ids[i], model->desc.vocab_size - 1);
    if (num_prompt == 0)
        return error_set(err, STATUS_USAGE,
                         "the prompt is empty, and the model has no bos_token_id to begin from; hint: give it a text");
    if (num_prompt >= model_desc_longest(&model->desc))
        return error_set(err, STATUS_USAGE,
                         "the prompt has %" PRId64 " tokens, and the model's context of %" PRId64
                         " has no room for one more; hint: shorten the prompt",
                         num_prompt, model->desc.max_positions);
    return STATUS_OK;
}

/* ---- the continuation ---------------------------------------------------- */

/* Prints a text, and empties it; what was printed before it becomes visible. */
static enum status print_sample_text(struct text *text, struct error *err)
{
    if (text->count && isatty(STDOUT_FILENO))
        printable_put(stdout, text->bytes, text->count);
    else if (text->count)
        fwrite(text->bytes, 1, text->count, stdout);
    text->count = 0;
    if (!fflush(stdout) && !ferror(stdout)) return STATUS_OK;
    return error_set(err, STATUS_USAGE, "cannot write to standard output: %s", strerror(errno));
}

/* On stdout, as it comes: text, or token ids with commas. Half a character waits for its rest. */
static enum status continue_prompt(struct sample_model *model, struct error *err)
{
    RELEASED(sampler_drop) struct sampler *sampler = sampler_new(&model->settings, model->desc.vocab_size);
    RELEASED(text_release) struct text text = {0}; /* of the last token */
    struct text_stream stream = {.count = 0};
    float *logits;
    TRY(generator_feed(model->generator, model->prompt.ids, (int64_t)model->prompt.count, &model->verbs, model->stream,
                       &logits, err));
    for (int64_t i = 0; i < model->max_tokens; i++) {
        const int64_t token = sampler_choose(sampler, logits, (uint64_t)i);
        if (token < 0)
            return error_set(err, STATUS_DATA,
                             "the logits of token %" PRId64
                             " are not finite numbers; hint: is the model damaged, or does it need --dtype fp32?",
                             i + 1);
        const int32_t next = (int32_t)token;
        const bool ends = end_tokens_have(&model->ends, token);
        if (!model->tokenizer)
            printf("%s%lld", i ? "," : "", (long long)token);
        else if (!ends) /* the token that ends the text is not shown in it */
            text_stream_push(&stream, model->tokenizer, next, true, &text);
        TRY(print_sample_text(&text, err));
        if (ends || i + 1 == model->max_tokens) break;
        TRY(generator_feed(model->generator, &next, 1, &model->verbs, model->stream, &logits, err));
    }
    if (model->tokenizer) text_stream_end(&stream, &text);
    text_add(&text, "\n", 1);
    return print_sample_text(&text, err);
}

/* Reads the model, and checks the prompt against it. */
static enum status prepare(struct sample_model *model, struct error *err)
{
    const struct arguments *a = model->a;
    TRY(read_sample_settings(model, err));
    if (strcmp(a->device, "auto") != 0 && strcmp(a->device, "cpu") != 0 && strcmp(a->device, "cuda") != 0)
        return error_set(err, STATUS_USAGE, "--device must be auto, cpu or cuda, not '%s'", PRINTABLE(a->device));
    if (a->dtype && dtype_find(a->dtype) == DTYPE_COUNT)
        return error_set(err, STATUS_USAGE, "--dtype must be fp32, bf16 or fp16, not '%s'", PRINTABLE(a->dtype));
    if (a->prompt_tokens) TRY(read_sample_ids(a->prompt_tokens, &model->prompt, err));
    TRY(open_model(model, err));
    if (a->prompt) {
        const enum status status = tokenizer_folder_open(model->folder, &model->tokenizer, err);
        if (status == STATUS_USAGE) /* there is none that ztrain reads */
            error_hint(err, "--prompt-tokens 1,2,3 takes token ids");
        TRY(status);
        TRY(tokenizer_encode(model->tokenizer, a->prompt, strlen(a->prompt), true, &model->prompt, err));
        if (model->prompt.count == 0 && model->ends.begin >= 0 && model->ends.begin <= INT32_MAX)
            token_list_add(&model->prompt, (int32_t)model->ends.begin); /* as the tokenizer puts nothing before it */
    }
    TRY(check_prompt(model, err));
    const int64_t num_prompt = (int64_t)model->prompt.count;
    model->max_tokens = min64(model->max_tokens, model_desc_longest(&model->desc) - num_prompt);
    return start_model(model, num_prompt, num_prompt + model->max_tokens, err);
}

enum status cmd_sample(int argc, char **argv, struct error *err)
{
    struct arguments a = {.device = "auto"};
    RELEASED(close_model) struct sample_model model = {.a = &a};
    RELEASED(tokenizer_drop) struct tokenizer *unused = NULL;
    struct error why;
    TRY(command_line_parse(&command_line, argc, argv, &a, err));
    if (!a.prompt && !a.prompt_tokens)
        return error_set(err, STATUS_USAGE, "the prompt is missing; hint: %s", command_line.example);
    if (a.prompt && a.prompt_tokens)
        return error_set(err, STATUS_USAGE, "--prompt and --prompt-tokens are two prompts; hint: one of the two");
    enum status status = STATUS_OK;
    bool again = true;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++) { /* a run that trains meanwhile deletes checkpoints */
        close_model(&model);
        status = prepare(&model, err);
        again = status == STATUS_CHECKPOINT && model.checkpoint && checkpoint_is_gone(model.checkpoint);
    }
    TRY(status);
    /* ids were given, and ids are printed; a notice if the folder has a tokenizer that ztrain does not read */
    if (a.prompt_tokens && tokenizer_folder_has(model.folder) &&
        tokenizer_folder_open(model.folder, &unused, &why) == STATUS_USAGE)
        log_warn("%s; the continuation is printed as token ids", why.text);
    return continue_prompt(&model, err);
}
