/* gpu_binding.c: see gpu_binding.h. The choice is a matching of ranks and GPUs, made by augmenting paths: a rank that
 * finds all it sees taken may send their owners on to others. */
#include "comm/gpu_binding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char key[] = "gpus";

/* The i-th entry of CUDA_VISIBLE_DEVICES, or false. CUDA stops at the first that it does not know, as -1. */
static bool visible_entry(const char *visible, int i, const char **entry, size_t *length)
{
    for (const char *at = visible;; at++) {
        at += strspn(at, " ");
        *entry = at;
        *length = strcspn(at, ", ");
        if (*length == 0 || *at == '-')
            return false;
        if (i-- == 0)
            return true;
        at += strcspn(at, ",");
        if (!*at)
            return false;
    }
}

enum status gpu_view_init(struct gpu_view *view, int rank, const char *visible, int count,
                          const unsigned char (*uuids)[GPU_UUID_BYTES], struct error *err)
{
    ASSERT(count >= 0);
    *view = (struct gpu_view){.rank = rank, .count = count};
    if (count > GPU_VIEW_MAX) {
        error_set(err, STATUS_USAGE, "rank %d sees %d GPUs, at most %d are supported", rank, count, GPU_VIEW_MAX);
        return error_hint(err, "name fewer in CUDA_VISIBLE_DEVICES");
    }
    for (int i = 0; i < count; i++) {
        const char *entry;
        size_t length;
        if (uuids) {
            view->ids[i] = XXH3_64bits(uuids[i], GPU_UUID_BYTES);
        } else if (!visible) {
            view->ids[i] = (uint64_t)i + 1;
        } else if (visible_entry(visible, i, &entry, &length)) {
            char *end;
            unsigned long number = strtoul(entry, &end, 10);
            view->ids[i] = end == entry + length ? (uint64_t)number + 1 : XXH3_64bits(entry, length);
        } else {
            error_set(err, STATUS_USAGE, "rank %d sees %d GPUs, but CUDA_VISIBLE_DEVICES='%.200s' names %d", rank,
                      count, visible, i);
            return error_hint(err, "it takes numbers or GPU-... and MIG-... names, with commas between them");
        }
    }
    return STATUS_OK;
}

struct matching {
    const struct gpu_view *views;
    int count;
    int *chosen;   /* (count) index of each rank's GPU in its view, -1: none yet */
    bool *visited; /* (count) ranks that have been asked to move, in this search */
};

static int owner_of(const struct matching *m, uint64_t id)
{
    for (int r = 0; r < m->count; r++)
        if (m->chosen[r] >= 0 && m->views[r].ids[m->chosen[r]] == id)
            return r;
    return -1;
}

/* Gives rank `r` a GPU: a free one, else one whose owner can move on. */
static bool serve(struct matching *m, int r)
{
    const struct gpu_view *view = &m->views[r];
    m->visited[r] = true;
    for (int i = 0; i < view->count; i++)
        if (owner_of(m, view->ids[i]) < 0) {
            m->chosen[r] = i;
            return true;
        }
    for (int i = 0; i < view->count; i++) {
        int owner = owner_of(m, view->ids[i]);
        if (owner >= 0 && !m->visited[owner] && serve(m, owner)) {
            m->chosen[r] = i;
            return true;
        }
    }
    return false;
}

/* How many different GPUs the ranks see together. */
static int count_gpus(const struct gpu_view *views, int count)
{
    int different = 0;
    for (int r = 0; r < count; r++)
        for (int i = 0; i < views[r].count; i++) {
            bool before = false;
            for (int s = 0; s <= r && !before; s++)
                for (int j = 0; j < (s < r ? views[s].count : i) && !before; j++)
                    before = views[s].ids[j] == views[r].ids[i];
            different += !before;
        }
    return different;
}

static enum status refuse(const struct gpu_view *views, int count, int rank_left, const char *host, struct error *err)
{
    int gpus = count_gpus(views, count);
    if (views[rank_left].count == 0) {
        error_set(err, STATUS_USAGE, "rank %d on %s sees no GPU", views[rank_left].rank, host);
        return error_hint(err,
                          "srun --mpi=pmi2 --ntasks-per-node=%d --gpus-per-node=%d ztrain ... gives every rank one; "
                          "or device: cpu",
                          count, count);
    }
    error_set(err, STATUS_USAGE, "rank %d on %s has no GPU of its own: %d rank%s there see %d GPU%s",
              views[rank_left].rank, host, count, count == 1 ? "" : "s", gpus, gpus == 1 ? "" : "s");
    if (gpus < count)
        return error_hint(err,
                          "no more ranks than GPUs on a node: srun --mpi=pmi2 --ntasks-per-node=%d "
                          "--gpus-per-node=%d ztrain ...",
                          gpus, gpus);
    return error_hint(err,
                      "let every rank see all GPUs of its node: srun --mpi=pmi2 --ntasks-per-node=%d "
                      "--gpus-per-node=%d ztrain ..., without CUDA_VISIBLE_DEVICES",
                      count, gpus);
}

enum status gpu_binding_choose(const struct gpu_view *views, int count, int self, const char *host, int *index,
                               struct error *err)
{
    ASSERT(count > 0 && self >= 0 && self < count);
    enum status status = STATUS_OK;
    struct matching m = {.views = views, .count = count};
    *index = -1;
    m.chosen = malloc((size_t)count * sizeof *m.chosen);
    m.visited = malloc((size_t)count * sizeof *m.visited);
    if (!m.chosen || !m.visited) {
        status = error_set(err, STATUS_DEVICE, "out of memory");
        goto fail;
    }
    for (int r = 0; r < count; r++)
        m.chosen[r] = -1;
    for (int r = 0; r < count; r++) {
        memset(m.visited, 0, (size_t)count * sizeof *m.visited);
        if (!serve(&m, r)) {
            status = refuse(views, count, r, host, err);
            goto fail;
        }
    }
    *index = m.chosen[self];
fail:
    free(m.chosen);
    free(m.visited);
    return status;
}

/* ---------------------------------------------------------------- over the ranks of a node */

/* "2:00000000000000ff,1234567890abcdef": the count is there because a value must not be empty */
static void print_view(const struct gpu_view *view, char text[BOOTSTRAP_VALUE_MAX + 1])
{
    int length = snprintf(text, BOOTSTRAP_VALUE_MAX + 1, "%d:", view->count);
    for (int i = 0; i < view->count; i++)
        length += snprintf(text + length, (size_t)(BOOTSTRAP_VALUE_MAX + 1 - length), "%s%016" PRIx64, i ? "," : "",
                           view->ids[i]);
}

static bool parse_view(const char *text, struct gpu_view *view)
{
    int at = 0;
    if (sscanf(text, "%d:%n", &view->count, &at) != 1 || at == 0 || view->count < 0 || view->count > GPU_VIEW_MAX)
        return false;
    for (int i = 0; i < view->count; i++) {
        int used = 0;
        if ((i && text[at++] != ',') || sscanf(text + at, "%16" SCNx64 "%n", &view->ids[i], &used) != 1 || used != 16)
            return false;
        at += used;
    }
    return text[at] == 0;
}

static enum status collect(struct bootstrap *bootstrap, const struct gpu_view *own, struct gpu_view *views,
                           struct error *err)
{
    char text[BOOTSTRAP_VALUE_MAX + 1];
    int count = 0;
    if (bootstrap->launcher) {
        print_view(own, text);
        TRY(bootstrap_put(bootstrap, key, text, err));
        TRY(bootstrap_fence(bootstrap, err));
    }
    for (int r = 0; r < bootstrap->world; r++) {
        if (bootstrap->places[r].node != bootstrap->node)
            continue;
        struct gpu_view *view = &views[count++];
        *view = *own; /* local ranks of a supervisor have one environment */
        view->rank = r;
        if (!bootstrap->launcher || r == bootstrap->rank)
            continue;
        TRY(bootstrap_get(bootstrap, r, key, text, err));
        if (!parse_view(text, view))
            return error_set(err, STATUS_PEER, "rank %d's GPUs have arrived damaged: '%.60s'", r, text);
    }
    ASSERT(count == bootstrap->local_world);
    return STATUS_OK;
}

enum status gpu_binding_find(struct bootstrap *bootstrap, const struct gpu_view *own, int *index, struct error *err)
{
    ASSERT(bootstrap->places);
    enum status status;
    struct gpu_view *views = calloc((size_t)bootstrap->local_world, sizeof *views);
    if (!views)
        return error_set(err, STATUS_DEVICE, "out of memory");
    TRY_GOTO(collect(bootstrap, own, views, err));
    status = gpu_binding_choose(views, bootstrap->local_world, bootstrap->local_rank, bootstrap->host, index, err);
fail:
    free(views);
    return status;
}
