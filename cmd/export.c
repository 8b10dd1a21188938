/* SPDX-License-Identifier: Apache-2.0 */
/* export.c: `ztrain export DIR --out HFDIR` writes a checkpoint as a Hugging Face folder, that of an adapter as a PEFT
 * folder. It has its name only when it is whole; an earlier export stays until then. One process at a time writes it.
 *
 *     PARENT/NAME                         the export: absent, the earlier one, or the new one
 *     PARENT/.NAME.ztrain-export/         lock, owner (cmd/run/run_lock.h)
 *                                new/     the new export while it is written; the earlier one after an exchange
 *                                former/  the earlier one, on a file system that cannot exchange two folders
 *
 * A kill leaves the folder beside NAME, which the next export of this name cleans; after a kill between the two renames
 * it first gives the earlier export its name back. Files of an earlier export's folder that no export writes, such as a
 * README.md, are linked into the new one before the exchange. */
#include "ckpt/huggingface/huggingface.h"
#include "cmd/command_line.h"
#include "cmd/run/run_state.h"
#include "core/faults.h"
#include "core/spec/adapter_config.h"

static const char USAGE[] =
    "usage: ztrain export DIR --out HFDIR [--best] [--merge] [--base DIR] [--dtype TYPE]\n"
    "                     [--force]\n\n"
    "Writes the weights of a checkpoint as a folder that Hugging Face transformers loads:\n"
    "safetensors, config.json, and the tokenizer files that came with the model. Of a run\n"
    "with an adapter it writes a folder that PEFT and vLLM load: adapter_model.safetensors,\n"
    "adapter_config.json, tokenizer files.\n\n"
    "  DIR             a checkpoint, or a run folder (its newest valid checkpoint)\n"
    "  --out HFDIR     the folder to write: a new one, an empty one, or one with an earlier\n"
    "                  export, which stays until the new one is whole. One export at a time\n"
    "                  writes it; another is refused\n"
    "                  (llama.cpp's convert_hf_to_gguf.py makes a GGUF file from it)\n"
    "  --best          take the run folder's checkpoint with the best evaluation, by the run's\n"
    "                  checkpoint.metric and checkpoint.mode\n"
    "  --merge         of a run with an adapter: the whole model, with the adapter merged into\n"
    "                  its base as peft's merge_and_unload() does\n"
    "  --base DIR      with --merge, or of a multimodal model: where the folder of the base\n"
    "                  model is now, if it has moved\n"
    "  --dtype TYPE    dtype of the weights: fp32, bf16 or fp16 (default: the run's; of an\n"
    "                  adapter fp32, of a merged model that of its base)\n"
    "  --force         write a model that has diverged: no step changed it, its evaluation has\n"
    "                  no finite loss, or its weights hold NaN or infinities\n";

struct arguments {
    const char *dir, *out, *dtype, *base;
    bool best, merge, force;
    enum dtype chosen; /* by `dtype`; DTYPE_COUNT: the default */
};

static const struct option_row options[] = {
    OPTION(struct arguments, out, "out", "HFDIR"), OPTION(struct arguments, dtype, "dtype", "TYPE"),
    OPTION(struct arguments, best, "best", NULL),  OPTION(struct arguments, merge, "merge", NULL),
    OPTION(struct arguments, base, "base", "DIR"), OPTION(struct arguments, force, "force", NULL),
};
static const struct command_line command_line = {
    "export", USAGE, "checkpoint or run folder", 1, "ztrain export DIR --out HFDIR", options, COUNT_OF(options)};

enum { LOCK_TRIES = 10 };

static const char config_name[] = "config.json", old_temporary[] = ".tmp-";

static bool is_export_config(const char *name)
{
    return !strcmp(name, config_name) || !strcmp(name, ADAPTER_CONFIG_FILE);
}

struct export_folder {
    char out[FS_PATH_MAX];                        /* without links */
    char work[FS_PATH_MAX];                       /* .NAME.ztrain-export beside it, while an export lasts */
    char fresh[FS_PATH_MAX], former[FS_PATH_MAX]; /* in it: the new export; the earlier one, once it has given way */
    struct run_lock *lock;                        /* of `work`; owned; NULL: not open */
};

typedef enum status visitor(void *context, const char *dir, const char *name, struct error *err);

/* Stops at the first failure. */
static enum status for_each_export_entry(const char *dir, visitor *visit, void *context, struct error *err)
{
    OWNED_DIR *listing = io_opendir(dir);
    if (!listing) return error_system(err, STATUS_DATA, errno, "cannot list the folder '%s'", dir);
    enum status status = STATUS_OK;
    for (struct dirent *item; status == STATUS_OK && (item = io_readdir(listing));)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            status = visit(context, dir, item->d_name, err);
    return status;
}

struct content {
    bool any, ours, foreign, config, run;
};

static enum status look_at_export_entry(void *context, const char *dir, const char *name, struct error *err)
{
    struct content *content = context;
    char path[FS_PATH_MAX];
    RELEASED(safetensors_header_release) struct safetensors_header header = {0};
    struct error damage;
    if (!strncmp(name, old_temporary, strlen(old_temporary))) return STATUS_OK;
    content->any = true;
    content->config |= is_export_config(name);
    content->run |= !strcmp(name, "metrics.jsonl") || !strcmp(name, "run.yaml");
    content->foreign |= !strncmp(name, "pytorch_model", strlen("pytorch_model"));
    if (!fs_has_suffix(name, ".safetensors")) return STATUS_OK;
    TRY(fs_join(path, dir, name, STATUS_DATA, err));
    enum status status = safetensors_read_header(path, &header, &damage);
    bool ours = status == STATUS_OK && header.by_ztrain;
    if (status == STATUS_DEVICE) /* out of memory: the file may be fine */
        return error_set(err, status, "%s", damage.text);
    *(ours ? &content->ours : &content->foreign) = true;
    return STATUS_OK;
}

/* ---- the target ---------------------------------------------------------- */

/* The real path of `out`, whose last part may be absent. */
static enum status find_export_folder(const char *out, char real[FS_PATH_MAX], struct error *err)
{
    char above[FS_PATH_MAX], place[PATH_MAX], name[NAME_MAX + 1];
    struct stat facts;
    bool there;
    if (io_stat(out, &facts) == 0 && !S_ISDIR(facts.st_mode))
        return error_set(err, STATUS_USAGE, "'%s' is a file, not a folder; hint: name the folder for the model", out);
    TRY(fs_find_dir(out, &there, STATUS_USAGE, err));
    fs_parent(out, above);
    TRY(fs_mkdirs(there ? out : above, STATUS_DATA, err));
    if (fs_is_dir(out)) { /* also X/.., whose X was absent */
        if (!realpath(out, place)) return error_system(err, STATUS_DATA, errno, "cannot open the folder '%s'", out);
        snprintf(real, FS_PATH_MAX, "%s", place);
        return STATUS_OK;
    }
    size_t length;
    const char *last = fs_last_part(out, &length);
    snprintf(name, sizeof name, "%.*s", (int)length, last);
    if (!realpath(above, place)) return error_system(err, STATUS_DATA, errno, "cannot open the folder '%s'", above);
    return fs_join(real, place, name, STATUS_DATA, err);
}

/* Whether `out` can be renamed: it is neither a mount point nor the current folder of this process. */
static enum status check_export_place(const char *out, const char *above, struct error *err)
{
    struct stat own, parent, here;
    if (io_stat(out, &own) != 0) return STATUS_OK;
    if (io_stat(above, &parent) != 0) return error_system(err, STATUS_DATA, errno, "cannot look at '%s'", above);
    if (own.st_dev != parent.st_dev || own.st_ino == parent.st_ino) {
        error_set(err, STATUS_USAGE, "'%s' is a mount point, and an export replaces its folder as a whole", out);
        return error_hint(err, "name a folder in it: --out %s/model", out);
    }
    if (io_stat(".", &here) == 0 && here.st_dev == own.st_dev && here.st_ino == own.st_ino) {
        error_set(err, STATUS_USAGE, "'%s' is the current folder, and an export replaces its folder as a whole", out);
        return error_hint(err, "cd .. and name it, or name another one");
    }
    return STATUS_OK;
}

static enum status check_export_content(const char *out, struct error *err)
{
    struct content content = {.any = false};
    if (!fs_exists(out)) return STATUS_OK;
    TRY(for_each_export_entry(out, look_at_export_entry, &content, err));
    if (content.foreign || (content.config && !content.ours)) {
        error_set(err, STATUS_USAGE, "folder '%s' holds a model that ztrain did not export", out);
        return error_hint(err, "choose another folder, or remove its files");
    }
    if (content.run || (content.any && !content.ours)) {
        error_set(err, STATUS_USAGE, content.run ? "folder '%s' is that of a run" : "folder '%s' is not empty", out);
        return error_hint(err, "an export has a folder to itself, such as --out %s/model", out);
    }
    if (content.ours) log_info("an earlier export in %s is replaced", out);
    return STATUS_OK;
}

/* ---- the folder while it is written -------------------------------------- */

/* Makes the folder and locks it. An export that ends meanwhile deletes it: then again. */
static enum status lock_work(struct export_folder *folder, struct error *err)
{
    struct run_lock_config config;
    struct error why = {.code = STATUS_OK};
    run_lock_config_init(&config);
    config.words =
        (struct run_lock_words){"export folder", "another export", "wait for it to end, or export into another folder"};
    config.patience = 0;
    enum status status = STATUS_OK;
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (io_mkdir(folder->work, 0777) && errno != EEXIST) {
            error_system(err, STATUS_DATA, errno, "cannot make the folder '%s'", folder->work);
            return error_hint(
                err,
                "an export is written beside its folder and then renamed: name one in a folder that may be written");
        }
        status = run_lock_take(&folder->lock, folder->work, &config, &why);
        if (status != STATUS_CHECKPOINT || why.cause != ENOENT) break;
    }
    if (status != STATUS_OK) *err = why;
    return status == STATUS_CHECKPOINT ? err->code = STATUS_DATA : status;
}

/* Chooses `fresh`, and keeps other exports out. STATUS_USAGE: `out` cannot be replaced, or another process exports into
 * it. The caller closes the folder also after an error. */
static enum status export_folder_open(struct export_folder *folder, const char *out, struct error *err)
{
    char above[FS_PATH_MAX], hidden[NAME_MAX + 32];
    *folder = (struct export_folder){.lock = NULL};
    TRY(find_export_folder(out, folder->out, err));
    fs_parent(folder->out, above);
    TRY(check_export_place(folder->out, above, err));
    snprintf(hidden, sizeof hidden, ".%s.ztrain-export", basename(folder->out));
    TRY(fs_join(folder->work, above, hidden, STATUS_DATA, err));
    TRY(fs_join(folder->fresh, folder->work, "new", STATUS_DATA, err));
    TRY(fs_join(folder->former, folder->work, "former", STATUS_DATA, err));
    TRY(lock_work(folder, err));
    if (fs_exists(folder->former)) { /* an export was killed */
        const int reason = FAULT(RENAME, io_rename(folder->former, folder->out)) ? errno : 0;
        if (!reason)
            log_info("an export into %s was killed; the one before it has its name again", folder->out);
        else if (reason != ENOTEMPTY && reason != EEXIST) /* else the new one has the name */
            return error_system(err, STATUS_DATA, reason, "cannot rename '%s' to '%s'", folder->former, folder->out);
    }
    TRY(checkpoint_remove_tree(folder->fresh, err));
    TRY(checkpoint_remove_tree(folder->former, err));
    return check_export_content(folder->out, err);
}

/* ---- publication --------------------------------------------------------- */

/* Gives a new folder the rights of the one whose place it takes. */
static enum status take_export_rights(const char *path, const struct stat *from, struct error *err)
{
    if (chmod(path, from->st_mode & 07777) != 0)
        return error_system(err, STATUS_DATA, errno, "cannot set the mode of '%s'", path);
    int refused = chown(path, from->st_uid, from->st_gid); /* where it is another user's, or another group's */
    (void)refused;
    return STATUS_OK;
}

/* Links dir/NAME, with all that is in it, into the folder `context`. */
static enum status link_export_entry(void *context, const char *dir, const char *name, struct error *err)
{
    char from[FS_PATH_MAX], to[FS_PATH_MAX];
    struct stat facts;
    TRY(fs_join(from, dir, name, STATUS_DATA, err));
    TRY(fs_join(to, context, name, STATUS_DATA, err));
    if (io_lstat(from, &facts) != 0) return error_system(err, STATUS_DATA, errno, "cannot look at '%s'", from);
    if (S_ISDIR(facts.st_mode)) {
        if (io_mkdir(to, 0777)) return error_system(err, STATUS_DATA, errno, "cannot make the folder '%s'", to);
        TRY(for_each_export_entry(from, link_export_entry, to, err));
        TRY(take_export_rights(to, &facts, err));
        return fs_sync_dir(to, STATUS_DATA, err);
    }
    if (io_link(from, to) == 0) return STATUS_OK;
    if (!S_ISREG(facts.st_mode)) return error_system(err, STATUS_DATA, errno, "cannot link '%s' to '%s'", to, from);
    return fs_copy_file(from, to, STATUS_DATA, err); /* a file system without hard links */
}

/* The same at the top, for what the new export neither has nor replaces. */
static enum status keep_export_entry(void *context, const char *dir, const char *name, struct error *err)
{
    char to[FS_PATH_MAX];
    TRY(fs_join(to, context, name, STATUS_DATA, err));
    const bool replaced = is_export_config(name) || fs_has_suffix(name, ".safetensors") ||
                          fs_has_suffix(name, ".safetensors.index.json") ||
                          !strncmp(name, old_temporary, strlen(old_temporary)); /* tokenizer files stay */
    return replaced || fs_exists(to) ? STATUS_OK : link_export_entry(context, dir, name, err);
}

static enum status cannot_publish(const struct export_folder *folder, struct error *err)
{
    const int reason = errno;
    error_system(err, STATUS_DATA, reason, "cannot rename '%s' to '%s'", folder->fresh, folder->out);
    return reason == EBUSY ? error_hint(err, "a mount point cannot be replaced: --out %s/model", folder->out)
                           : STATUS_DATA;
}

static enum status replace(struct export_folder *folder, struct error *err)
{
    if (FAULT(RENAME, io_rename2(folder->fresh, folder->out, RENAME_EXCHANGE)) == 0) return STATUS_OK;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return cannot_publish(folder, err);
    if (FAULT(RENAME, io_rename(folder->out, folder->former)))
        return error_system(err, STATUS_DATA, errno, "cannot rename '%s' to '%s'", folder->out, folder->former);
    if (FAULT(RENAME, io_rename(folder->fresh, folder->out)) == 0) return STATUS_OK;
    cannot_publish(folder, err);
    if (io_rename(folder->former, folder->out))
        log_warn("cannot rename '%s' back to '%s': %s", folder->former, folder->out, strerror(errno));
    return STATUS_DATA;
}

/* Renames `fresh` to `out`, in one call if the file system can exchange two folders. STATUS_DATA: it cannot, and `out`
 * is as it was; STATUS_USAGE: another process has taken over. */
static enum status export_folder_publish(struct export_folder *folder, struct error *err)
{
    char above[FS_PATH_MAX];
    struct stat facts;
    const int reason = io_stat(folder->out, &facts) ? errno : 0;
    if (reason && reason != ENOENT) return error_system(err, STATUS_DATA, reason, "cannot look at '%s'", folder->out);
    if (!reason) { /* the new export gets what stays of the folder whose place it takes */
        TRY(for_each_export_entry(folder->out, keep_export_entry, folder->fresh, err));
        TRY(take_export_rights(folder->fresh, &facts, err));
        TRY(fs_sync_dir(folder->fresh, STATUS_DATA, err));
    }
    TRY(run_lock_check(folder->lock, err));
    if (FAULT(RENAME, io_rename(folder->fresh, folder->out))) { /* works where `out` is absent or empty */
        if (errno != ENOTEMPTY && errno != EEXIST) return cannot_publish(folder, err);
        TRY(replace(folder, err));
    }
    fs_parent(folder->out, above);
    return fs_sync_dir(above, STATUS_DATA, err);
}

static void export_folder_close(struct export_folder *folder)
{
    struct error err;
    if (!folder->lock) return;
    if (run_lock_check(folder->lock, &err) == STATUS_OK) {
        if (checkpoint_remove_tree(folder->fresh, &err) != STATUS_OK) log_warn("%s", err.text);
        /* where `out` is gone, the next export gives the former one its name back */
        if (fs_exists(folder->out) && checkpoint_remove_tree(folder->former, &err) != STATUS_OK)
            log_warn("%s", err.text);
    }
    run_lock_release(TAKEN(folder->lock), true);
}

/* vLLM takes A and B only, and their scale is lora_alpha and r. */
static void export_notes_vllm(const json_t *adapter, const struct tensor_table *table)
{
    if (json_object_size(json_object_get(adapter, "rank_pattern")) ||
        json_object_size(json_object_get(adapter, "alpha_pattern")))
        log_info("the adapter has ranks or scales by patterns, which vLLM does not read: --merge writes a model that "
                 "it loads");
    for (int i = 0; i < table->num_tensors; i++)
        if (!table->tensors[i].frozen && table->tensors[i].part == PART_BASE) {
            log_info("'%s' is trained as a whole (modules_to_save): vLLM refuses such adapters; --merge writes a model "
                     "that it loads",
                     table->tensors[i].name);
            return;
        }
}

static bool is_same_folder(const char *a, const char *b)
{
    struct stat one, other;
    return b && io_stat(a, &one) == 0 && io_stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

static enum status write_export_folder(const struct checkpoint *checkpoint, const struct arguments *a,
                                       struct error *err)
{
    const enum dtype dtype = a->chosen;
    RELEASED(export_folder_close) struct export_folder folder = {0};
    if (is_same_folder(a->out, checkpoint->base.folder) || is_same_folder(a->out, a->base))
        return error_set(err, STATUS_USAGE, "'%s' is the base of the %s; hint: --out names another folder", a->out,
                         checkpoint->adapter ? "adapter" : "multimodal model"); /* an earlier export */
    TRY(export_folder_open(&folder, a->out, err));
    if (checkpoint->adapter) {
        RELEASED(model_desc_release) struct model_desc desc = {0};
        RELEASED(tensor_table_release) struct tensor_table table = {0};
        RELEASED(peft_base_release) struct peft_base base = {.folder = ""};
        TRY(checkpoint_model(checkpoint, &desc, &table, err));
        if (a->merge) {
            TRY(peft_base_find(checkpoint, a->base, &desc, &table, &base, err));
            peft_base_store(checkpoint, &desc, &table);
            TRY(peft_merge(checkpoint, &base.source, folder.fresh, dtype, a->force, err));
        } else {
            TRY(peft_export(checkpoint, &desc, &table, folder.fresh, dtype == DTYPE_COUNT ? DTYPE_F32 : dtype, a->force,
                            err));
            export_notes_vllm(checkpoint->adapter, &table);
        }
    } else {
        TRY(huggingface_export(checkpoint, a->base, folder.fresh, dtype == DTYPE_COUNT ? checkpoint->dtype : dtype, 0,
                               a->force, err));
    }
    return export_folder_publish(&folder, err);
}

static enum status check_arguments(const struct checkpoint *checkpoint, const struct arguments *a, struct error *err)
{
    const bool multimodal = !checkpoint->adapter && checkpoint->base.folder;
    if (!checkpoint->adapter && (a->merge || (a->base && !multimodal)))
        return error_set(err, STATUS_USAGE,
                         "--%s is for runs with an adapter, and '%s' is a whole model; hint: leave it out",
                         a->merge ? "merge" : "base", checkpoint->path);
    if (a->base && !a->merge && !multimodal)
        return error_set(err, STATUS_USAGE,
                         "--base is the model that --merge reads; hint: leave it out, or add --merge");
    if (a->force || run_check_history(&checkpoint->position, err) == STATUS_OK) return STATUS_OK;
    error_prefix(err, "'%s'", checkpoint->path);
    return error_hint(err, "an earlier checkpoint; --force exports this one as it is");
}

/* *again: a run that trains has deleted or replaced the checkpoint. */
static enum status export_once(const struct arguments *a, bool *again, struct error *err)
{
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    *again = false;
    /* verified first: in a run folder a damaged newest checkpoint is passed over before anything is written */
    TRY((a->best ? checkpoint_open_best : checkpoint_open)(a->dir, true, &checkpoint, err));
    TRY(check_arguments(checkpoint, a, err));
    const enum status status = write_export_folder(checkpoint, a, err);
    *again = status == STATUS_CHECKPOINT && checkpoint_is_gone(checkpoint);
    TRY(status);
    const bool adapter = checkpoint->adapter, merge = a->merge;
    log_info("exported %s%s (step %lld) to %s in %s",
             !adapter ? ""
             : merge  ? "the model with the adapter of "
                      : "the adapter of ",
             checkpoint->path, (long long)checkpoint->position.step, a->out,
             a->chosen != DTYPE_COUNT ? dtype_name(a->chosen)
             : !adapter               ? dtype_name(checkpoint->dtype)
             : merge                  ? "the dtype of its base"
                                      : "fp32");
    return STATUS_OK;
}

enum status cmd_export(int argc, char **argv, struct error *err)
{
    /* a name with the ending of a file was meant for another program's format */
    static const char *const endings[] = {".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".json"};
    struct arguments arguments = {0};
    TRY(command_line_parse(&command_line, argc, argv, &arguments, err));
    if (!arguments.out) return error_set(err, STATUS_USAGE, "--out HFDIR is missing; hint: %s", command_line.example);
    size_t length = strlen(arguments.out);
    while (length && arguments.out[length - 1] == '/') length--;
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        const size_t n = strlen(endings[i]);
        if (length < n || strncasecmp(arguments.out + length - n, endings[i], n) != 0) continue;
        error_set(err, STATUS_USAGE, "--out '%s' is a folder's name, not a file's", arguments.out);
        return error_hint(
            err,
            i == 0
                ? "export a folder, --out %.*s, and make the GGUF file from it with llama.cpp's convert_hf_to_gguf.py"
                : "--out %.*s: the safetensors files and config.json will be in it",
            (int)(length - n), arguments.out);
    }
    arguments.chosen = dtype_find(arguments.dtype);
    if (arguments.dtype && arguments.chosen == DTYPE_COUNT)
        return error_set(err, STATUS_USAGE, "--dtype '%s' is not supported; hint: fp32, bf16 and fp16 are",
                         arguments.dtype);

    bool again = true;
    enum status status = STATUS_OK;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++) status = export_once(&arguments, &again, err);
    return status;
}
