/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/places.h"

#include "ckpt/checkpoint.h"
#include "cmd/run/places_list.h"
#include "core/log.h"
#include "core/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- from start to start ------------------------------------------------- */

/* Words: "gpu" or "cpu"; "same" or "changed"; the suspect or "-"; for each place in use +NAME; for each that is out
 * [bt][-t]RANK=NAME: broken or twice, out or tried again. Names have no spaces. */
static const char variable[] = "ZTRAIN_RESTART_PLACES";

static bool places_take_word(struct places *places, const char *word)
{
    struct place_out out = {.broken = word[0] == 'b'};
    char tried;
    if (word[0] == '+') {
        if (places->count == PLACES_MAX || !word[1])
            return false;
        snprintf(places->used[places->count++], PLACE_NAME_MAX, "%s", word + 1);
        return true;
    }
    if (places->num_out == PLACES_MAX || (word[0] != 'b' && word[0] != 't') ||
        sscanf(word + 1, "%c%d=%79s", &tried, &out.rank, out.name) != 3)
        return false;
    out.tried = tried == 't';
    places->out[places->num_out++] = out;
    return true;
}

bool places_read(struct places *places)
{
    const char *text = getenv(variable);
    *places = (struct places){.count = 0};
    if (!text)
        return false;
    char *copy = memory_printf("%s", text), *rest = NULL;
    const char *kind = strtok_r(copy, " ", &rest), *changed = strtok_r(NULL, " ", &rest),
               *suspect = strtok_r(NULL, " ", &rest);
    bool whole = kind && changed && suspect;
    places->suspect_changed = whole && !strcmp(changed, "changed");
    places->gpus = whole && !strcmp(kind, "gpu");
    if (whole && strcmp(suspect, "-") != 0)
        snprintf(places->suspect, sizeof places->suspect, "%s", suspect);
    for (const char *word; whole && (word = strtok_r(NULL, " ", &rest));)
        whole = places_take_word(places, word);
    free(copy);
    whole = whole && places->count > 0;
    if (!whole)
        *places = (struct places){.count = 0};
    return whole;
}

void places_write(const struct places *places)
{
    char *text = memory_printf("%s %s %s", places->gpus ? "gpu" : "cpu", places->suspect_changed ? "changed" : "same",
                               *places->suspect ? places->suspect : "-");
    for (int i = 0; i < places->count + places->num_out; i++) {
        const struct place_out *out = i < places->count ? NULL : &places->out[i - places->count];
        char *longer = out ? memory_printf("%s %c%c%d=%s", text, out->broken ? 'b' : 't', out->tried ? 't' : '-',
                                           out->rank, out->name)
                           : memory_printf("%s +%s", text, places->used[i]);
        free(text);
        text = longer;
    }
    if (setenv(variable, text, 1) != 0)
        memory_exhausted(0);
    free(text);
}

/* ---- after a failure ----------------------------------------------------- */

static struct place_out *places_find_out(struct places *places, const char *name)
{
    for (int i = 0; i < places->num_out; i++)
        if (!strcmp(places->out[i].name, name))
            return &places->out[i];
    return NULL;
}

/* A checkpoint was gained: what was tried again is sound, and the rest is tried again. */
static void places_return(struct places *places)
{
    int kept = 0;
    for (int i = 0; i < places->num_out; i++)
        if (!places->out[i].tried) {
            places->out[kept] = places->out[i];
            places->out[kept++].tried = true;
        }
    places->num_out = kept;
}

bool places_failed(struct places *places, int rank, enum status code, bool gained)
{
    const char *name = rank >= 0 && rank < places->count ? places->used[rank] : "";
    if (gained)
        places_return(places);
    struct place_out *out = places_find_out(places, name);
    const bool again = !gained && (out || !strcmp(name, places->suspect));
    if (!*name || (code != STATUS_BROKEN && !again) || (!out && places->num_out == PLACES_MAX)) {
        const bool other = !gained && *name && !places->suspect_changed;
        places->suspect_changed = other;
        snprintf(places->suspect, sizeof places->suspect, "%s", name);
        return other;
    }
    if (!out)
        out = &places->out[places->num_out++];
    *out = (struct place_out){.rank = rank, .broken = code == STATUS_BROKEN};
    snprintf(out->name, sizeof out->name, "%s", name);
    *places->suspect = '\0';
    places->suspect_changed = false;
    return true;
}

/* ---- before a start ------------------------------------------------------ */

/* Whether `ranks` can share the run's batch. checkpoint: the run continues from it; NULL: it begins. */
static bool places_fit(struct run_spec *spec, int ranks, int64_t batch, const struct checkpoint *checkpoint)
{
    const int64_t virtual_ranks = spec->train.virtual_ranks;
    if (virtual_ranks)
        return virtual_ranks % ranks == 0;
    if (checkpoint)
        return spec_resolve_batch_resumed(spec, ranks, "", checkpoint->spec, checkpoint->world, NULL) == STATUS_OK;
    return spec_resolve_batch(spec, ranks, "", NULL) == STATUS_OK && spec->train_batch_size == batch;
}

/* The largest number of ranks from `least` to `most` that can share the batch; 0: none. */
static int places_most_ranks(const struct places_wish *wish, int most)
{
    const int64_t batch = wish->spec->train_batch_size;
    struct checkpoint *checkpoint = NULL;
    int ranks = most;
    if (wish->resume && !wish->spec->train.virtual_ranks)
        checkpoint_open(wish->resume, false, &checkpoint, NULL); /* without it the ranks will say why */
    while (ranks >= wish->least && !places_fit(wish->spec, ranks, batch, checkpoint))
        ranks--;
    checkpoint_close(checkpoint);
    return ranks >= wish->least ? ranks : 0;
}

/* "3 GPUs are there; rank 2's GPU failed" */
static void places_reason(const struct places *places, int there, int most, char *text, size_t size)
{
    const char *noun = places->gpus ? "GPU" : "device";
    *text = '\0';
    if (there < most)
        snprintf(text, size, "%d GPU%s there", there, there == 1 ? " is" : "s are");
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

static void places_say(const struct places *places, const struct places_wish *wish, const char *reason)
{
    char where[64] = "", bits[128] = "the bits change with the number of ranks (train.virtual_ranks is not set)";
    if (wish->step >= 0)
        snprintf(where, sizeof where, " from step %" PRId64, wish->step);
    if (wish->spec->train.virtual_ranks)
        snprintf(bits, sizeof bits, "the bits stay the same (train.virtual_ranks %" PRId64 ")",
                 wish->spec->train.virtual_ranks);
    log_info("%s on %d of %d %s%s%s%s; %s", wish->resume ? "continuing" : "starting", places->count, wish->most,
             places->gpus ? "GPUs" : "ranks", where, *reason ? ": " : "", reason, bits);
}

/* left: places that could be used. */
static enum status places_refuse(const struct places *places, const struct places_wish *wish, int left,
                                 const char *reason, struct error *err)
{
    const char *noun = places->gpus ? "GPUs" : "ranks", *colon = *reason ? ": " : "";
    if (left < wish->least)
        error_set(err, STATUS_DEVICE, "%d of %d %s %s left, fewer than --min-gpus %d%s%s", left, wish->most, noun,
                  left == 1 ? "is" : "are", wish->least, colon, reason);
    else
        error_set(err, STATUS_DEVICE,
                  "%d of %d %s are left, and no number of ranks from --min-gpus %d to %d can share the batch%s%s", left,
                  wish->most, noun, wish->least, left, colon, reason);
    return left ? error_hint(err, "a smaller --min-gpus") : STATUS_DEVICE;
}

enum status places_choose(struct places *places, const struct places_wish *wish, struct error *err)
{
    struct place_list list;
    char reason[1024];
    int left = 0;
    const int before = places->count;
    TRY(places_list(wish->spec->train.device, wish->most, places->gpus, &list, err));
    places->gpus = list.gpus;
    for (int i = 0; i < list.count && left < wish->most; i++) {
        const struct place_out *out = places_find_out(places, list.names[i]);
        if (!out || out->tried)
            memcpy(places->used[left++], list.names[i], PLACE_NAME_MAX);
    }
    places_reason(places, list.count, wish->most, reason, sizeof reason);
    places->count = left < wish->most ? places_most_ranks(wish, left) : left;
    if (places->count == 0)
        return places_refuse(places, wish, left, reason, err);
    if (places->count < wish->most || (before > 0 && before < places->count))
        places_say(places, wish, reason);
    return STATUS_OK;
}

char *places_visible(const struct places *places)
{
    if (!places->gpus)
        return NULL;
    char *text = memory_printf("%s", places->used[0]);
    for (int i = 1; i < places->count; i++) {
        char *longer = memory_printf("%s,%s", text, places->used[i]);
        free(text);
        text = longer;
    }
    return text;
}
