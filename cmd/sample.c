/* sample.c: `ztrain sample DIR --prompt TEXT` continues a prompt with a trained model. */
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/sample_model.h"
#include "core/log.h"
#include "core/printable.h"
#include "core/text/tokenizer.h"
#include "gpu/model/sampler.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] =
    "usage: ztrain sample DIR --prompt TEXT [options]\n"
    "\n"
    "Continues a prompt with a trained model, and prints the continuation as it comes, until the model ends it\n"
    "(eos_token_id), --max-tokens are there, or the model's context is full.\n"
    "\n"
    "  DIR                  a checkpoint, a run folder (its newest valid checkpoint), a Hugging Face folder, or the\n"
    "                       name of a model in the local Hugging Face cache (Qwen/Qwen2.5-0.5B)\n"
    "  --best               of a run folder: the checkpoint with the best evaluation\n"
    "  --prompt TEXT        the prompt; the tokenizer.json of the folder (byte-level BPE) turns it into tokens; an\n"
    "                       empty one begins from the tokenizer's or the model's first token (bos_token_id)\n"
    "  --prompt-tokens IDS  the prompt as token ids with commas; the continuation is printed in the same way\n"
    "  --max-tokens N       at most this many tokens (default: 128)\n"
    "  --temperature X      0: always the most probable token (greedy); higher: more even. Default: 0, or 1 with one "
    "of\n"
    "                       the next three\n"
    "  --top-k K            draw from the K most probable tokens (default: 0, all)\n"
    "  --top-p P            draw from the most probable tokens that together reach P (default: 1, all)\n"
    "  --seed S             of the random numbers (default: 1234): the same seed draws the same tokens\n"
    "  --device NAME        auto, cpu or cuda (default: auto)\n"
    "  --dtype TYPE         fp32, bf16 or fp16 (default: what the run computes in; of a Hugging Face folder fp32 on "
    "the\n"
    "                       CPU, and on a GPU the dtype of its config.json)\n";

struct arguments {
    const char *dir;
    const char *prompt, *prompt_tokens, *max_tokens, *temperature, *top_k, *top_p, *seed, *device, *dtype; /* or NULL */
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
    OPTION(struct arguments, best, "best", NULL),
};
static const char EXAMPLE[] = "ztrain sample DIR --prompt TEXT, or --prompt-tokens 1,2,3";
static const struct command_line command_line = {"sample", USAGE, "folder", 1, EXAMPLE, options, COUNT_OF(options)};

/* A prompt and how to continue it. */
struct task {
    struct token_list prompt;    /* owned */
    struct tokenizer *tokenizer; /* owned; NULL: the prompt is given as ids, and so is the continuation */
    int64_t max_tokens;
    struct sampler_settings settings;
};

/* ---- the command line ---------------------------------------------------- */

static enum status check_prompts(const struct arguments *a, struct error *err)
{
    if (!a->prompt && !a->prompt_tokens)
        return error_set(err, STATUS_USAGE, "the prompt is missing; hint: %s", command_line.example);
    if (a->prompt && a->prompt_tokens)
        return error_set(err, STATUS_USAGE, "--prompt and --prompt-tokens are two prompts; hint: one of the two");
    return STATUS_OK;
}

static enum status read_integer(const char *option, const char *text, int64_t least, int64_t most, int64_t *value,
                                struct error *err)
{
    char *end;
    if (!text)
        return STATUS_OK;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    if (*end || end == text || errno || n < least || n > most)
        return error_set(err, STATUS_USAGE, "--%s must be a whole number from %" PRId64 " to %" PRId64 ", not '%s'",
                         option, least, most, PRINTABLE(text));
    *value = n;
    return STATUS_OK;
}

static enum status read_number(const char *option, const char *text, double *value, struct error *err)
{
    char *end;
    if (!text)
        return STATUS_OK;
    const double x = strtod(text, &end);
    if (*end || end == text || !isfinite(x))
        return error_set(err, STATUS_USAGE, "--%s must be a number, not '%s'", option, PRINTABLE(text));
    *value = x;
    return STATUS_OK;
}

static enum status read_settings(const struct arguments *a, struct task *task, struct error *err)
{
    const bool draws = a->top_k || a->top_p || a->seed;
    struct sampler_settings *s = &task->settings;
    int64_t seed = 1234;
    *s = (struct sampler_settings){.temperature = draws ? 1 : 0, .top_p = 1};
    task->max_tokens = 128;
    TRY(read_integer("max-tokens", a->max_tokens, 1, INT32_MAX, &task->max_tokens, err));
    TRY(read_integer("top-k", a->top_k, 0, INT32_MAX, &s->top_k, err));
    TRY(read_integer("seed", a->seed, 0, INT64_MAX, &seed, err));
    TRY(read_number("temperature", a->temperature, &s->temperature, err));
    TRY(read_number("top-p", a->top_p, &s->top_p, err));
    s->seed = (uint64_t)seed;
    if (s->temperature < 0)
        return error_set(err, STATUS_USAGE, "--temperature must be 0 (greedy) or higher, not %s", a->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return error_set(err, STATUS_USAGE, "--top-p must be above 0 and at most 1, not %s", a->top_p);
    if (s->temperature == 0 && draws) {
        error_set(err, STATUS_USAGE,
                  "--temperature 0 takes the most probable token: --top-k, --top-p and --seed have no "
                  "effect with it");
        return error_hint(err, "leave them out, or set a temperature above 0");
    }
    return STATUS_OK;
}

static bool is_one_of(const char *text, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(text, names[i]))
            return true;
    return false;
}

static enum status check_words(const struct arguments *a, struct error *err)
{
    static const char *const devices[] = {"auto", "cpu", "cuda"}, *const dtypes[] = {"fp32", "bf16", "fp16"};
    if (a->device && !is_one_of(a->device, devices, COUNT_OF(devices)))
        return error_set(err, STATUS_USAGE, "--device must be auto, cpu or cuda, not '%s'", PRINTABLE(a->device));
    if (a->dtype && !is_one_of(a->dtype, dtypes, COUNT_OF(dtypes)))
        return error_set(err, STATUS_USAGE, "--dtype must be fp32, bf16 or fp16, not '%s'", PRINTABLE(a->dtype));
    return STATUS_OK;
}

/* ---- the prompt ---------------------------------------------------------- */

/* "1,2,3", with blanks around the numbers if the caller likes. */
static enum status read_ids(const char *text, struct task *task, struct error *err)
{
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        const long long id = strtoll(at, &end, 10);
        const size_t blanks = strspn(end, " \n");
        if (end == at || errno || id < 0 || id > INT32_MAX || (end[blanks] && end[blanks] != ','))
            return error_set(err, STATUS_USAGE,
                             "--prompt-tokens: token ids with commas expected, as in 1,2,3, not '%s'", PRINTABLE(text));
        token_list_add(&task->prompt, (int32_t)id);
        if (!end[blanks])
            return STATUS_OK;
        at = end + blanks + 1;
    }
}

/* The prompt's text by the tokenizer of the model's folder; an empty one begins with the model's bos_token_id, if the
 * tokenizer puts nothing before it. */
static enum status read_text(const struct sample_model *model, const char *text, struct task *task, struct error *err)
{
    enum status status = STATUS_OK;
    token_list_release(&task->prompt);
    tokenizer_free(task->tokenizer);
    task->tokenizer = NULL;
    status = tokenizer_open(model->folder, &task->tokenizer, err);
    if (status == STATUS_USAGE) /* there is none that ztrain reads */
        error_hint(err, "--prompt-tokens 1,2,3 takes token ids");
    TRY(status);
    TRY(tokenizer_encode(task->tokenizer, text, strlen(text), true, &task->prompt, err));
    if (task->prompt.count == 0 && model->ends.begin >= 0 && model->ends.begin <= INT32_MAX)
        token_list_add(&task->prompt, (int32_t)model->ends.begin);
    return STATUS_OK;
}

/* Ids were given, and ids are printed; a notice if the folder has a tokenizer that ztrain does not read, so that text
 * cannot be had. */
static void note_tokenizer(const char *folder)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {.code = STATUS_OK};
    if (tokenizer_is_there(folder) && tokenizer_open(folder, &tokenizer, &err) == STATUS_USAGE)
        log_warn("%s; the continuation is printed as token ids", err.text);
    tokenizer_free(tokenizer);
}

/* Against the model: ids and context. */
static enum status check_prompt(const struct sample_model *model, const struct task *task, struct error *err)
{
    const int64_t num_prompt = (int64_t)task->prompt.count;
    for (int64_t i = 0; i < num_prompt; i++)
        if (task->prompt.ids[i] >= model->desc.vocab_size)
            return error_set(err, STATUS_USAGE,
                             "token %" PRId32 " of the prompt is not in the model's vocabulary: ids are "
                             "0 to %" PRId64,
                             task->prompt.ids[i], model->desc.vocab_size - 1);
    if (num_prompt == 0)
        return error_set(err, STATUS_USAGE,
                         "the prompt is empty, and the model has no bos_token_id to begin from; hint: give it a text");
    if (num_prompt >= model->desc.max_positions) {
        error_set(err, STATUS_USAGE,
                  "the prompt has %" PRId64 " tokens, and the model's context of %" PRId64 " has no room for one more",
                  num_prompt, model->desc.max_positions);
        return error_hint(err, "shorten the prompt");
    }
    return STATUS_OK;
}

/* ---- the output ---------------------------------------------------------- */

/* The continuation on standard output, as it comes: text, or token ids with commas. Half a character waits for its last
 * byte; a terminal gets control characters other than line ends and tabs as \xNN. */
struct output {
    const struct tokenizer *tokenizer; /* borrowed; NULL: ids are printed */
    struct text_stream stream;
    struct text text; /* owned: of the last token */
    int64_t count;    /* tokens so far */
};

static enum status flush(struct error *err)
{
    if (!fflush(stdout) && !ferror(stdout))
        return STATUS_OK;
    return error_set(err, STATUS_USAGE, "cannot write to standard output: %s", strerror(errno));
}

/* Control characters of one byte, and those of C1, which are two bytes: 0xc2 and 0x80 … 0x9f. */
static void print_for_terminal(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char byte = bytes[i];
        const bool c1 = byte == 0xc2 && i + 1 < count && bytes[i + 1] < 0xa0;
        if (c1)
            printf("\\x%02x", bytes[++i]);
        else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f)
            printf("\\x%02x", byte);
        else
            putchar(byte);
    }
}

/* Prints output->text, and empties it. */
static enum status print_text(struct output *output, struct error *err)
{
    struct text *text = &output->text;
    if (text->count && isatty(STDOUT_FILENO))
        print_for_terminal((const unsigned char *)text->bytes, text->count);
    else if (text->count)
        fwrite(text->bytes, 1, text->count, stdout);
    text->count = 0;
    return flush(err);
}

/* `ends`: the token is the one that ends the text, which ids show and text does not. */
static enum status print_token(struct output *output, int64_t token, bool ends, struct error *err)
{
    if (!output->tokenizer) {
        printf("%s%lld", output->count++ ? "," : "", (long long)token);
        return flush(err);
    }
    output->count++;
    if (!ends)
        text_stream_push(&output->stream, output->tokenizer, (int32_t)token, true, &output->text);
    return print_text(output, err);
}

/* Prints what is left, and the end of the line. */
static enum status end_output(struct output *output, struct error *err)
{
    if (output->tokenizer)
        text_stream_end(&output->stream, &output->text);
    text_add(&output->text, "\n", 1);
    return print_text(output, err);
}

/* ---- the continuation ---------------------------------------------------- */

/* Draws and prints tokens, at most `most` of them. */
static enum status continue_prompt(struct sample_model *model, const struct task *task, int64_t most,
                                   struct sampler *sampler, struct output *output, struct error *err)
{
    float *logits;
    TRY(generator_feed(model->generator, task->prompt.ids, (int64_t)task->prompt.count, &model->verbs, model->stream,
                       &logits, err));
    for (int64_t i = 0; i < most; i++) {
        const int64_t token = sampler_choose(sampler, logits, (uint64_t)i);
        if (token < 0)
            return error_set(err, STATUS_DATA,
                             "the logits of token %" PRId64 " are not finite numbers; hint: is the "
                             "model damaged, or does it need --dtype fp32?",
                             i + 1);
        const int32_t next = (int32_t)token;
        const bool ends = end_tokens_have(&model->ends, token);
        TRY(print_token(output, token, ends, err));
        if (ends || i + 1 == most)
            break;
        TRY(generator_feed(model->generator, &next, 1, &model->verbs, model->stream, &logits, err));
    }
    return end_output(output, err);
}

/* Everything but the words: reads the model, and checks the prompt against it. *most: the tokens that can follow. */
static enum status prepare(struct sample_model *model, const struct arguments *a, struct task *task, int64_t *most,
                           struct error *err)
{
    TRY(sample_model_open(model, a->dir, a->best, err));
    if (a->prompt)
        TRY(read_text(model, a->prompt, task, err));
    TRY(check_prompt(model, task, err));
    const int64_t num_prompt = (int64_t)task->prompt.count;
    const int64_t room = model->desc.max_positions - num_prompt;
    *most = task->max_tokens < room ? task->max_tokens : room;
    const struct sample_request request = {.device = a->device ? a->device : "auto",
                                           .dtype = a->dtype,
                                           .prompt = num_prompt,
                                           .context = num_prompt + *most};
    return sample_model_start(model, &request, err);
}

static enum status sample(struct sample_model *model, const struct arguments *a, struct task *task, struct error *err)
{
    struct sampler *sampler;
    int64_t most = 0;
    enum status status = STATUS_OK;
    bool again = true;
    TRY(read_settings(a, task, err));
    TRY(check_words(a, err));
    if (a->prompt_tokens)
        TRY(read_ids(a->prompt_tokens, task, err));
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++) { /* a run that trains meanwhile deletes checkpoints */
        sample_model_close(model);
        status = prepare(model, a, task, &most, err);
        again = status == STATUS_CHECKPOINT && model->checkpoint && checkpoint_is_gone(model->checkpoint);
    }
    TRY(status);
    sampler = sampler_new(&task->settings, model->desc.vocab_size);
    if (a->prompt_tokens)
        note_tokenizer(model->folder);
    struct output output = {.tokenizer = task->tokenizer};
    status = continue_prompt(model, task, most, sampler, &output, err);
    text_release(&output.text);
    sampler_free(sampler);
    return status;
}

enum status cmd_sample(int argc, char **argv, struct error *err)
{
    struct arguments arguments = {0};
    struct sample_model model = {0};
    struct task task = {0};
    bool helped;
    TRY(command_line_parse(&command_line, argc, argv, &arguments, &helped, err));
    if (helped)
        return STATUS_OK;
    TRY(check_prompts(&arguments, err));
    const enum status status = sample(&model, &arguments, &task, err);
    token_list_release(&task.prompt);
    tokenizer_free(task.tokenizer);
    sample_model_close(&model);
    return status;
}
