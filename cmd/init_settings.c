/* SPDX-License-Identifier: Apache-2.0 */
/* init_settings.c: the machine and the length of a run that `ztrain init` writes. See init.h. */
#include "cmd/init.h"
#include "core/data/data_summary.h"
#include "core/machine.h"
#include "core/size_text.h"
#include "gpu/open/device_open.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const double gib = (double)(1 << 30);

/* ---- numbers ------------------------------------------------------------- */

static enum status init_whole(const char *text, int64_t least, int64_t most, int64_t *value, struct error *err)
{
    char *end;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < least || number > most)
        return error_set(err, STATUS_USAGE, "'%s' is not a number from %" PRId64 " to %" PRId64, text, least, most);
    *value = number;
    return STATUS_OK;
}

static enum status init_real(const char *text, double most, double *value, struct error *err)
{
    char *end;
    const double number = strtod(text, &end);
    if (end == text || *end || !(number > 0) || !(number <= most))
        return error_set(err, STATUS_USAGE, "'%s' is not a number above 0, and at most %g", text, most);
    *value = number;
    return STATUS_OK;
}

/* ---- the machine --------------------------------------------------------- */

/* What the driver says; a machine without one, or whose GPU does not open, has none. */
static void init_find_gpus(struct init_machine *machine)
{
    struct device *device;
    struct error err;
    *machine = (struct init_machine){.gpus = 0};
    if (!device_cuda_available(machine->why))
        return;
    if (device_open(DEVICE_CUDA, 0, 1, &device, &err) != STATUS_OK) {
        snprintf(machine->why, sizeof machine->why, "%.*s", (int)sizeof machine->why - 1, err.text);
        return;
    }
    machine->gpus = device_cuda_list(NULL, 0);
    machine->memory = (int64_t)device->memory_bytes;
    snprintf(machine->name, sizeof machine->name, "%s", device->name);
    device_close(device);
}

const char *init_usual_gpus(struct init *t, char text[INIT_TEXT])
{
    const bool cpu = t->flags.device && strcasecmp(t->flags.device, "cpu") == 0;
    init_find_gpus(&t->machine);
    const int named = t->flags.device && !t->machine.gpus ? 1 : t->machine.gpus;
    snprintf(text, INIT_TEXT, "%d", cpu ? 0 : named);
    return text;
}

enum status init_take_gpus(struct init *t, const char *text, struct error *err)
{
    const bool cpu = t->flags.device && strcasecmp(t->flags.device, "cpu") == 0;
    int64_t gpus = 0;
    TRY(init_whole(text, 0, 65536, &gpus, err));
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

const char *init_usual_device(const struct init *t)
{
    struct gpu_model model;
    struct error err;
    const bool known = t->machine.gpus > 0 && gpu_catalog_find(t->machine.name, &model, &err) == STATUS_OK;
    return !t->cuda ? "cpu" : known ? t->machine.name : gpu_catalog_usual;
}

enum status init_take_device(struct init *t, const char *text, struct error *err)
{
    const bool cpu = strcasecmp(text, "cpu") == 0;
    if (!cpu && !t->cuda)
        return error_set(err, STATUS_USAGE, "'%s' is a GPU, and --gpus is 0", text);
    if (cpu && t->cuda)
        return error_set(err, STATUS_USAGE, "'cpu' is no GPU; hint: --gpus 0");
    if (cpu)
        return STATUS_OK;
    TRY(gpu_catalog_find(text, &t->gpu, err));
    t->memory = (int64_t)(t->gpu.memory_gib * gib);
    return STATUS_OK;
}

enum status init_take_memory(struct init *t, const char *text, struct error *err)
{
    char size[SIZE_TEXT_MAX], whole[SIZE_TEXT_MAX];
    int64_t bytes;
    if (!t->cuda)
        return error_set(err, STATUS_USAGE, "it is the memory of each GPU, and the run is on the CPU");
    if (!size_parse(text, &bytes)) {
        error_set(err, STATUS_USAGE, "'%s' is not a size", text);
        return error_hint(err, SIZE_FORMS);
    }
    if (bytes > t->memory)
        init_note("--memory %s is more than an %s has: the plan takes its %s", size_format(bytes, size), t->gpu.option,
                  size_round(t->memory, whole));
    else
        t->memory = bytes;
    return STATUS_OK;
}

/* ---- samples and steps --------------------------------------------------- */

/* A power of two. With a mask: holds 99 % of the documents, and four average ones, so that samples are filled. */
const char *init_usual_seq_length(const struct init *t, char text[INIT_TEXT])
{
    const int64_t documents = token_set_documents(t->set), tokens = token_set_tokens(t->set);
    const int64_t most = t->masked && t->desc.max_positions > 8192 ? 8192 : t->desc.max_positions;
    int64_t length = t->masked ? 256 : t->labels ? 16 : 2048;
    for (int k = 0; t->masked && k < INIT_LENGTHS && length < most; k++)
        if (INT64_C(1) << k >= length &&
            ((double)t->within[k] < 0.99 * (double)documents || (INT64_C(1) << k) * documents < 4 * tokens))
            length = INT64_C(2) << k;
    while (t->labels && length < t->labels->longest)
        length *= 2;
    snprintf(text, INIT_TEXT, "%" PRId64, length < most ? length : most);
    return text;
}

static enum status init_count_samples(struct init *t, struct error *err)
{
    struct first_fit *fit = NULL;
    struct data_summary summary;
    t->samples = token_set_samples(t->set, t->seq_length, !t->labels);
    if (!t->masked)
        return STATUS_OK;
    TRY(data_summary_read(t->set, 0, &summary, err));
    if (summary.learned == 0) {
        error_set(err, STATUS_DATA, "the loss mask of the data lets no token be learned");
        return error_hint(err, "`ztrain data PREFIX --show 3 --tokenizer DIR` shows what is");
    }
    TRY(first_fit_new(t->set, t->seq_length, &fit, err));
    t->samples = fit->samples;
    first_fit_free(fit);
    TRY(cut_count(t->set, t->seq_length, &t->cut, err));
    if (t->cut.documents == 0 || t->cut.targets == 0 || t->cut.target_left)
        return STATUS_OK;
    return error_set(err, STATUS_USAGE,
                     "%" PRId64 " cuts off all tokens that are learned: documents have up to %" PRId64 " tokens",
                     t->seq_length, t->longest);
}

enum status init_take_seq_length(struct init *t, const char *text, struct error *err)
{
    if (init_whole(text, 2, t->desc.max_positions, &t->seq_length, err) != STATUS_OK)
        return error_hint(err, "the model has %" PRId64 " positions", t->desc.max_positions);
    if (t->labels && t->labels->longest > t->seq_length) {
        error_set(err, STATUS_USAGE, "a document has %" PRId64 " tokens, and %" PRId64 " is the most",
                  t->labels->longest, t->seq_length);
        return error_hint(err, "ztrain-tokenize --max-length %" PRId64 " cuts texts and keeps their special tokens",
                          t->seq_length);
    }
    TRY(init_count_samples(t, err));
    if (t->samples >= t->ranks)
        return STATUS_OK;
    error_set(err, STATUS_USAGE,
              "the data make %" PRId64 " samples of %" PRId64 " tokens, fewer than the %d that a step needs",
              t->samples, t->seq_length, t->ranks);
    return error_hint(err, "a shorter --seq-length, fewer --gpus, or more data");
}

/* About 128 Ki tokens, in a power of two of samples on each rank; fewer, if an epoch had less than 50 steps. */
const char *init_usual_batch(const struct init *t, char text[INIT_TEXT])
{
    int64_t batch = t->ranks;
    while (2 * batch * t->seq_length <= 128 << 10 && t->samples / (2 * batch) >= 50)
        batch *= 2;
    snprintf(text, INIT_TEXT, "%" PRId64, batch);
    return text;
}

/* As many as the GPUs, up to eight so that the run may grow; they divide the batch. 0: one. */
static int init_virtual_ranks(const struct init *t)
{
    const int least = t->ranks, most = least > 8 ? least : 8;
    int virtual_ranks = least;
    for (int n = least; n <= most; n += least)
        if (t->batch % n == 0)
            virtual_ranks = n;
    return virtual_ranks > 1 ? virtual_ranks : 0;
}

enum status init_take_batch(struct init *t, const char *text, struct error *err)
{
    const int64_t ranks = t->ranks;
    TRY(init_whole(text, 1, t->samples, &t->batch, err));
    t->virtual_ranks = init_virtual_ranks(t);
    if (t->batch % ranks == 0)
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "%" PRId64 " samples of a step are not a multiple of %" PRId64 " GPUs", t->batch,
              ranks);
    return error_hint(err, "%" PRId64 " is the next one", (t->batch / ranks + 1) * ranks);
}

/* One pass over text, three over what is labelled or masked. */
const char *init_usual_epochs(const struct init *t)
{
    return t->masked || t->labels ? "3" : "1";
}

enum status init_take_epochs(struct init *t, const char *text, struct error *err)
{
    TRY(init_real(text, 1e6, &t->epochs, err));
    t->steps = spec_run_length(t->epochs, 0, t->samples / t->batch);
    return STATUS_OK;
}

const char *init_usual_lr(const struct init *t, char text[INIT_TEXT])
{
    snprintf(text, INIT_TEXT, "%s", t->method != INIT_FULL ? "2e-4" : t->pretrained ? "2e-5" : "3e-4");
    return text;
}

enum status init_take_lr(struct init *t, const char *text, struct error *err)
{
    return init_real(text, 1, &t->lr, err);
}
