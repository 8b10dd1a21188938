/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/places.h"

#include "ckpt/checkpoint.h"
#include "comm/gpu_binding.h"
#include "gpu/open/device_open.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

static const char variable[] = "ZTRAIN_RESTART_PLACES";

bool places_read(struct places *places)
{
    const bool whole = env_kept(variable, places, sizeof *places) && places->count > 0 && places->count <= PLACES_MAX;
    if (!whole) *places = (struct places){.count = 0};
    return whole;
}

void places_write(const struct places *places)
{
    env_keep(variable, places, sizeof *places);
}

static struct place_out *places_find_out(struct places *places, const char *name)
{
    for (int i = 0; i < places->num_out; i++)
        if (!strcmp(places->out[i].name, name)) return &places->out[i];
    return NULL;
}

bool places_failed(struct places *places, int rank, enum status code, bool gained)
{
    const char *name = rank >= 0 && rank < places->count ? places->used[rank] : "";
    int kept = 0;
    for (int i = 0; i < places->num_out && gained; i++)
        if (!places->out[i].tried) { /* what was tried again is sound, and the rest is tried again */
            places->out[kept] = places->out[i];
            places->out[kept++].tried = true;
        }
    places->num_out = gained ? kept : places->num_out;
    struct place_out *out = places_find_out(places, name);
    const bool again = !gained && (out || !strcmp(name, places->suspect));
    if (!*name || (code != STATUS_BROKEN && !again) || (!out && places->num_out == PLACES_MAX)) {
        const bool other = !gained && *name && !places->suspect_changed;
        places->suspect_changed = other;
        snprintf(places->suspect, sizeof places->suspect, "%s", name);
        return other;
    }
    if (!out) out = &places->out[places->num_out++];
    *out = (struct place_out){.rank = rank, .broken = code == STATUS_BROKEN};
    snprintf(out->name, sizeof out->name, "%s", name);
    *places->suspect = '\0';
    places->suspect_changed = false;
    return true;
}

/* ---- the places that there are ------------------------------------------- */

struct place_list {
    int count;
    char names[PLACES_MAX][PLACE_NAME_MAX]; /* (count) as CUDA_VISIBLE_DEVICES takes them, or "0", "1", … */
};

static const double driver_patience = 120; /* seconds: it may initialise every GPU of the machine */

/* "GPU-5c1d…", the entry of CUDA_VISIBLE_DEVICES for a part of a GPU, or the number where the UUID is not known. */
static void place_name_gpu(const char *visible, int index, const unsigned char uuid[DEVICE_UUID_BYTES],
                           char name[PLACE_NAME_MAX])
{
    static const unsigned char unknown[DEVICE_UUID_BYTES];
    const char *entry = NULL;
    size_t length = 0, used = 4;
    const bool named = visible && gpu_visible_entry(visible, index, &entry, &length) && length < PLACE_NAME_MAX;
    if (named && (!strncmp(entry, "MIG-", 4) || !memcmp(uuid, unknown, sizeof unknown))) {
        snprintf(name, PLACE_NAME_MAX, "%.*s", (int)length, entry);
        return;
    }
    snprintf(name, PLACE_NAME_MAX, "%d", index);
    if (!memcmp(uuid, unknown, sizeof unknown)) return;
    memcpy(name, "GPU-", used);
    for (int i = 0; i < DEVICE_UUID_BYTES; i++)
        used += (size_t)snprintf(name + used, PLACE_NAME_MAX - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* In the child: writes a name for each GPU. */
static void places_tell_gpus(int to)
{
    unsigned char uuids[GPU_VIEW_MAX][DEVICE_UUID_BYTES] = {{0}};
    char why[256];
    const int found = device_cuda_available(why) ? device_cuda_list(uuids, GPU_VIEW_MAX) : 0;
    for (int i = 0; i < found && i < GPU_VIEW_MAX; i++) {
        char name[PLACE_NAME_MAX] = "";
        place_name_gpu(getenv("CUDA_VISIBLE_DEVICES"), i, uuids[i], name);
        if (write(to, name, sizeof name) != (ssize_t)sizeof name) return;
    }
}

/* Reads the names until the child closes its end. false: it does not answer in time. */
static bool places_hear_gpus(int from, struct place_list *list)
{
    const double end = seconds_now() + driver_patience;
    char *at = list->names[0];
    size_t used = 0;
    for (;;) {
        struct pollfd ready = {.fd = from, .events = POLLIN};
        const double left = end - seconds_now();
        if (left <= 0) return false;
        if (poll(&ready, 1, (int)(left * 1000) + 1) <= 0) continue;
        const ssize_t n = read(from, at + used, sizeof list->names - used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        used += (size_t)n;
    }
    list->count = (int)(used / PLACE_NAME_MAX);
    return true;
}

static enum status places_ask_driver(struct place_list *list, struct error *err)
{
    int ends[2], status;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, STATUS_DEVICE, "cannot ask for the GPUs: %s", strerror(errno));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        places_tell_gpus(ends[1]);
        _exit(0);
    }
    const int error = errno;
    close(ends[1]);
    const bool heard = child > 0 && places_hear_gpus(ends[0], list);
    close(ends[0]);
    if (child < 0) return error_set(err, STATUS_DEVICE, "cannot ask for the GPUs: %s", strerror(error));
    if (!heard) kill(child, SIGKILL);
    while (waitpid(child, &status, heard ? 0 : WNOHANG) < 0 && errno == EINTR) /* one that hangs may not be killed */
        ;
    return heard ? STATUS_OK
                 : error_set(err, STATUS_DEVICE, "the GPU driver has not listed its GPUs within %g s", driver_patience);
}

/* ---- before a start ------------------------------------------------------ */

/* Whether `ranks` can share the batch and the experts. checkpoint: the run continues from it; NULL: it begins. */
static bool places_fit(struct run_spec *spec, int ranks, int64_t batch, const struct checkpoint *checkpoint)
{
    const int64_t virtual_ranks = spec->train.virtual_ranks;
    if (ranks % spec->expert_parallel_size != 0) return false;
    if (virtual_ranks) return virtual_ranks % ranks == 0;
    if (checkpoint)
        return spec_resolve_batch_resumed(spec, ranks, "", checkpoint->spec, checkpoint->world, NULL) == STATUS_OK;
    return spec_resolve_batch(spec, ranks, "", NULL) == STATUS_OK && spec->train_batch_size == batch;
}

/* The largest number of ranks from `least` to `most` that can share the batch; 0: none. */
static int places_most_ranks(const struct places_wish *wish, int most)
{
    const int64_t batch = wish->spec->train_batch_size;
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    int ranks = most;
    if (wish->resume && !wish->spec->train.virtual_ranks)
        checkpoint_open(wish->resume, false, &checkpoint, NULL); /* without it the ranks will say why */
    while (ranks >= wish->least && !places_fit(wish->spec, ranks, batch, checkpoint)) ranks--;
    return ranks >= wish->least ? ranks : 0;
}

/* "3 GPUs are there; rank 2's GPU failed" */
static void places_reason(const struct places *places, int there, int most, char *text, size_t size)
{
    const char *noun = places->gpus ? "GPU" : "device";
    *text = '\0';
    if (there < most) snprintf(text, size, "%d GPU%s there", there, there == 1 ? " is" : "s are");
    for (int i = 0; i < places->num_out; i++) {
        const struct place_out *out = &places->out[i];
        const size_t used = strlen(text);
        if (!out->tried && out->broken)
            snprintf(text + used, size - used, "%srank %d's %s failed", used ? "; " : "", out->rank, noun);
        else if (!out->tried)
            snprintf(text + used, size - used, "%srank %d failed twice without a newer checkpoint", used ? "; " : "",
                     out->rank);
    }
}

enum status places_choose(struct places *places, const struct places_wish *wish, struct error *err)
{
    struct place_list list = {.count = 0};
    char reason[1024], where[64] = "";
    char bits[128] = "the bits change with the number of ranks (train.virtual_ranks is not set)";
    const int64_t virtual_ranks = wish->spec->train.virtual_ranks;
    int left = 0;
    const int before = places->count;
    /* the GPUs that a new process sees, in its order; on the CPU device, and if ranks share a GPU, processes. A child
     * asks the driver, which may be gone or hang, and keeps its first answer. Without a GPU places are processes, whose
     * ranks say why, unless the start before had GPUs. */
    bool shared = false;
    TRY(env_switch("ZTRAIN_SHARE_GPUS", "ranks may share a GPU", &shared, err));
    if (wish->spec->train.device != SPEC_DEVICE_CPU && !shared) TRY(places_ask_driver(&list, err));
    places->gpus = list.count > 0 || (places->gpus && !shared);
    ASSERT(wish->most <= PLACES_MAX);
    for (; !places->gpus && list.count < wish->most; list.count++)
        snprintf(list.names[list.count], PLACE_NAME_MAX, "%d", list.count);
    for (int i = 0; i < list.count && left < wish->most; i++) {
        const struct place_out *out = places_find_out(places, list.names[i]);
        if (!out || out->tried) memcpy(places->used[left++], list.names[i], PLACE_NAME_MAX);
    }
    places_reason(places, list.count, wish->most, reason, sizeof reason);
    places->count = left < wish->most ? places_most_ranks(wish, left) : left;
    const char *noun = places->gpus ? "GPUs" : "ranks", *colon = *reason ? ": " : "";
    if (places->count == 0) {
        if (left < wish->least)
            error_set(err, STATUS_DEVICE, "%d of %d %s %s left, fewer than --min-gpus %d%s%s", left, wish->most, noun,
                      left == 1 ? "is" : "are", wish->least, colon, reason);
        else
            error_set(err, STATUS_DEVICE,
                      "%d of %d %s are left, and no number of ranks from --min-gpus %d to %d can share the batch%s%s",
                      left, wish->most, noun, wish->least, left, colon, reason);
        return left ? error_hint(err, "a smaller --min-gpus") : STATUS_DEVICE;
    }
    if (places->count == wish->most && (before == 0 || before >= places->count)) return STATUS_OK;
    if (wish->step >= 0) snprintf(where, sizeof where, " from step %" PRId64, wish->step);
    if (virtual_ranks)
        snprintf(bits, sizeof bits, "the bits stay the same (train.virtual_ranks %" PRId64 ")", virtual_ranks);
    log_info("%s on %d of %d %s%s%s%s; %s", wish->resume ? "continuing" : "starting", places->count, wish->most, noun,
             where, colon, reason, bits);
    return STATUS_OK;
}

char *places_visible(const struct places *places)
{
    if (!places->gpus) return NULL;
    char *text;
    FILE *names = memory_stream(&text, NULL);
    for (int i = 0; i < places->count; i++) fprintf(names, "%s%s", i ? "," : "", places->used[i]);
    fclose(names);
    return text;
}
