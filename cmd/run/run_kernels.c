/* SPDX-License-Identifier: Apache-2.0 */
/* run_kernels.c: the kernels that a run computes with, as kernels-GPU.txt in its folder, for each model of rank 0's
 * GPU: a resumed run on another machine must compute with the same. Rank 0 only. */
#include "ckpt/checkpoint.h"
#include "cmd/run/run_folder.h"
#include "gpu/autotune_cache.h"

/* A text of 16 MiB has about fifty thousand choices, a run has about fifty. */
enum { NAME_SIZE = 160, TEXT_MAX = 1 << 24, HEAD_LINES = 3 };

static const char prefix[] = "kernels-";

static void kernels_file_name(const struct device *device, char name[NAME_SIZE])
{
    char words[sizeof device->name];
    autotune_cache_file_words(device->name, words);
    snprintf(name, NAME_SIZE, "%s%s.txt", prefix, words);
}
_Static_assert(sizeof prefix + sizeof((struct device *)NULL)->name + sizeof ".txt" <= NAME_SIZE, "every name fits");

/* The length of the lines that name the format, the GPU model and the library version. */
static size_t kernels_head_length(const char *text)
{
    const char *end = text;
    for (int i = 0; i < HEAD_LINES && *end; i++) end += strcspn(end, "\n") + 1;
    return (size_t)(end - text);
}

static bool kernels_file_in(const char *folder, const char *name, char path[FS_PATH_MAX])
{
    return fs_join(path, folder, name, STATUS_CHECKPOINT, NULL) == STATUS_OK && fs_exists(path);
}

/* Beside checkpoints/, in which the checkpoint lies. */
static bool kernels_file_above(const char *checkpoint, const char *name, char path[FS_PATH_MAX])
{
    char checkpoints[FS_PATH_MAX], folder[FS_PATH_MAX];
    fs_parent(checkpoint, checkpoints);
    fs_parent(checkpoints, folder);
    return kernels_file_in(folder, name, path);
}

/* NULL: the device cannot take it, as its head is not that of the device's own. */
static char *read_kernels_text(const char *path, const char *own)
{
    struct error err;
    OWNED char *text = NULL;
    size_t size;
    if (fs_read_file(path, TEXT_MAX, STATUS_CHECKPOINT, &text, &size, &err) != STATUS_OK) {
        log_warn("%s: kernels are chosen anew, and the run may continue with other bits", err.text);
        return NULL;
    }
    if (strncmp(text, own, kernels_head_length(own)) == 0) return TAKEN(text);
    log_info("the kernels in '%s' are of another GPU or library: they are chosen anew", path);
    return NULL;
}

char *run_kernels_take(struct device *device, const struct run_home *home, const struct checkpoint *checkpoint)
{
    static const char *const words[] = {"again"};
    char path[FS_PATH_MAX], name[NAME_SIZE], real[PATH_MAX], *text = NULL;
    int word;
    kernels_file_name(device, name);
    /* the checkpoint's run's, whose folder is another one if a run branches off, and may be behind a link */
    const bool found =
        checkpoint &&
        (home->start == RUN_RESUMED ? kernels_file_in(home->path, name, path)
                                    : kernels_file_above(checkpoint->path, name, path) ||
                                          (realpath(checkpoint->path, real) && kernels_file_above(real, name, path)));
    if (!found || (env_choice("ZTRAIN_GEMM_MEASURE", words, COUNT_OF(words), &word, NULL) == STATUS_OK && word == 0))
        return NULL;
    OWNED char *own = device_choices(device);
    if (own)
        text = read_kernels_text(path, own);
    else if (device->kind == DEVICE_CUDA)
        log_warn("cannot use the run's kernels in '%s': there is no folder for choices of kernels, so the run may "
                 "continue with other bits; hint: set ZTRAIN_GEMM_CACHE or HOME",
                 path);
    if (!text) return NULL;
    device_take_choices(device, text, false);
    log_detail("kernels: those that the run has computed with, from '%s'; what they lack is chosen anew", path);
    return text;
}

char *run_kernels_join(struct device *device, const char *taken)
{
    OWNED char *own = device_choices(device);
    if (!own || !taken) return TAKEN(own);
    char *joined = NULL;
    FILE *out = memory_stream(&joined, NULL);
    /* of two choices for one product the later counts; a last line without its end is damaged */
    fprintf(out, "%.*s", (int)(strrchr(taken, '\n') + 1 - taken), taken);
    fputs(own + kernels_head_length(own), out);
    fclose(out);
    return joined;
}

void run_kernels_write(const char *folder, const struct device *device, const char *text)
{
    char name[NAME_SIZE], path[FS_PATH_MAX];
    struct error err;
    kernels_file_name(device, name);
    enum status status = fs_join(path, folder, name, STATUS_CHECKPOINT, &err);
    if (status == STATUS_OK) status = fs_write_file(path, text, strlen(text), STATUS_CHECKPOINT, &err);
    if (status != STATUS_OK)
        log_warn("%s: a resumed run may compute with other kernels, and continue with other bits", err.text);
}
