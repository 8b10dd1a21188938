/* export.c: `ztrain export DIR --out HFDIR [--best] [--dtype fp32|bf16] [--force]` writes a checkpoint as a Hugging
 * Face folder. */
#include "ckpt/huggingface/huggingface.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/export_folder.h"
#include "cmd/run/run_state.h"
#include "core/log.h"

#include <string.h>
#include <strings.h>

static const char USAGE[] = "usage: ztrain export DIR --out HFDIR [--best] [--dtype fp32|bf16] [--force]\n"
                            "\n"
                            "Writes the weights of a checkpoint as a folder that Hugging Face transformers loads:\n"
                            "safetensors, config.json, and the tokenizer files that came with the model.\n"
                            "\n"
                            "  DIR             a checkpoint, or a run folder (its newest valid checkpoint)\n"
                            "  --out HFDIR     the folder to write: a new one, an empty one, or one with an earlier\n"
                            "                  export, which stays until the new one is whole. One export at a time\n"
                            "                  writes it; another is refused\n"
                            "                  (llama.cpp's convert_hf_to_gguf.py makes a GGUF file from it)\n"
                            "  --best          of a run folder: the checkpoint with the best evaluation, by the run's\n"
                            "                  checkpoint.metric and checkpoint.mode\n"
                            "  --dtype TYPE    dtype of the weights: fp32 or bf16 (default: the run's)\n"
                            "  --force         also a model that has diverged: no step changed it, its evaluation\n"
                            "                  has no finite loss, or its weights hold NaN or infinities\n";

struct arguments {
    const char *dir, *out, *dtype;
    bool best, force;
};

static const struct option_row options[] = {
    OPTION(struct arguments, out, "out", "HFDIR"),
    OPTION(struct arguments, dtype, "dtype", "TYPE"),
    OPTION(struct arguments, best, "best", NULL),
    OPTION(struct arguments, force, "force", NULL),
};
static const struct command_line command_line = {
    "export", USAGE, "checkpoint or run folder", 1, "ztrain export DIR --out HFDIR", options, COUNT_OF(options)};

/* --out names a folder; a name with the ending of a file was meant for another program's format. */
static enum status check_out(const char *out, struct error *err)
{
    static const char *const endings[] = {".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".json"};
    size_t length = strlen(out);
    while (length && out[length - 1] == '/')
        length--;
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        size_t n = strlen(endings[i]);
        if (length < n || strncasecmp(out + length - n, endings[i], n) != 0)
            continue;
        error_set(err, STATUS_USAGE, "--out '%s' is a folder's name, not a file's", out);
        if (i == 0)
            return error_hint(err,
                              "export a folder, --out %.*s, and make the GGUF file from it with llama.cpp's "
                              "convert_hf_to_gguf.py",
                              (int)(length - n), out);
        return error_hint(err, "--out %.*s: the safetensors files and config.json will be in it", (int)(length - n),
                          out);
    }
    return STATUS_OK;
}

/* STATUS_DIVERGED: nobody would want this model. */
static enum status check_history(const struct checkpoint *checkpoint, struct error *err)
{
    enum status status = run_check_history(&checkpoint->position, err);
    if (status != STATUS_OK) {
        error_prefix(err, "'%s'", checkpoint->path);
        error_hint(err, "an earlier checkpoint; --force exports this one as it is");
    }
    return status;
}

static enum status write_folder(const struct checkpoint *checkpoint, const struct arguments *arguments,
                                enum dtype dtype, struct error *err)
{
    struct export_folder folder;
    enum status status = export_folder_open(&folder, arguments->out, err);
    if (status == STATUS_OK)
        status = huggingface_export(checkpoint, folder.fresh, dtype, 0, arguments->force, err);
    if (status == STATUS_OK)
        status = export_folder_publish(&folder, err);
    export_folder_close(&folder);
    return status;
}

/* chosen: NULL for the dtype of the run. *again: a run that trains meanwhile has deleted or replaced the checkpoint. */
static enum status export_once(const struct arguments *arguments, const enum dtype *chosen, bool *again,
                               struct error *err)
{
    struct checkpoint *checkpoint;
    *again = false;
    /* verified first: in a run folder a damaged newest checkpoint is passed over before anything is written */
    if (arguments->best)
        TRY(checkpoint_open_best(arguments->dir, true, &checkpoint, err));
    else
        TRY(checkpoint_open(arguments->dir, true, &checkpoint, err));
    enum dtype dtype = chosen ? *chosen : checkpoint->dtype;
    enum status status = arguments->force ? STATUS_OK : check_history(checkpoint, err);
    if (status == STATUS_OK)
        status = write_folder(checkpoint, arguments, dtype, err);
    if (status == STATUS_OK)
        log_info("exported %s (step %lld) to %s in %s", checkpoint->path, (long long)checkpoint->position.step,
                 arguments->out, dtype_name(dtype));
    *again = status == STATUS_CHECKPOINT && checkpoint_is_gone(checkpoint);
    checkpoint_close(checkpoint);
    return status;
}

enum status cmd_export(int argc, char **argv, struct error *err)
{
    struct arguments arguments = {0};
    bool helped;
    TRY(command_line_parse(&command_line, argc, argv, &arguments, &helped, err));
    if (helped)
        return STATUS_OK;
    if (!arguments.out)
        return error_set(err, STATUS_USAGE, "--out HFDIR is missing; hint: %s", command_line.example);
    TRY(check_out(arguments.out, err));
    const enum dtype choices[] = {DTYPE_F32, DTYPE_BF16};
    const enum dtype *chosen = NULL;
    for (size_t i = 0; arguments.dtype && i < COUNT_OF(choices); i++)
        if (strcmp(arguments.dtype, dtype_name(choices[i])) == 0)
            chosen = &choices[i];
    if (arguments.dtype && !chosen)
        return error_set(err, STATUS_USAGE, "--dtype '%s' is not supported; hint: fp32 and bf16 are", arguments.dtype);

    bool again = true;
    enum status status = STATUS_OK;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++)
        status = export_once(&arguments, chosen, &again, err);
    return status;
}
