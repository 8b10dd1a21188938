/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_binding.c: see gpu_binding.h. A matching of ranks and GPUs by augmenting paths: a rank whose GPUs are all taken
 * may move their owners to others. */
#include "comm/gpu_binding.h"

#include <xxhash.h>

bool gpu_visible_entry(const char *visible, int i, const char **entry, size_t *length)
{
    for (const char *at = visible;; at++) {
        at += strspn(at, " ");
        *entry = at;
        *length = strcspn(at, ", ");
        if (*length == 0 || *at == '-') return false;
        if (i-- == 0) return true;
        at += strcspn(at, ",");
        if (!*at) return false;
    }
}

enum status gpu_view_init(struct gpu_view *view, int rank, const char *visible, int count,
                          unsigned char (*uuids)[DEVICE_UUID_BYTES], struct error *err)
{
    static const unsigned char unknown[DEVICE_UUID_BYTES];
    bool known = uuids != NULL;
    ASSERT(count > 0);
    memset(view, 0, sizeof *view); /* padding included: its bytes are exchanged */
    view->rank = rank;
    view->count = count;
    if (count > GPU_VIEW_MAX) {
        error_set(err, STATUS_USAGE, "rank %d sees %d GPUs, but ztrain supports at most %d", rank, count, GPU_VIEW_MAX);
        error_blame(err, rank, FAILURE_NONE);
        return error_hint(err, "name fewer in CUDA_VISIBLE_DEVICES");
    }
    for (int i = 0; i < count && known; i++) known = memcmp(uuids[i], unknown, sizeof unknown) != 0;
    for (int i = 0; i < count; i++) {
        const char *entry = NULL;
        size_t length = 0;
        bool named = visible && gpu_visible_entry(visible, i, &entry, &length);
        if (named && !strncmp(entry, "MIG-", 4)) { /* the UUID may be that of the whole GPU */
            view->ids[i] = XXH3_64bits(entry, length);
        } else if (known) {
            view->ids[i] = XXH3_64bits(uuids[i], DEVICE_UUID_BYTES);
        } else if (!visible) {
            view->ids[i] = (uint64_t)i + 1;
        } else if (named) {
            char *end;
            unsigned long number = strtoul(entry, &end, 10);
            view->ids[i] = end == entry + length ? (uint64_t)number + 1 : XXH3_64bits(entry, length);
        } else {
            error_set(err, STATUS_USAGE, "rank %d sees %d GPUs, but CUDA_VISIBLE_DEVICES='%.200s' names %d", rank,
                      count, visible, i);
            error_blame(err, rank, FAILURE_NONE);
            return error_hint(err, "list numbers, or GPU-... and MIG-... names, separated by commas");
        }
    }
    return STATUS_OK;
}

void gpu_view_none(struct gpu_view *view, int rank, enum status code, const char *why)
{
    ASSERT(code != STATUS_OK);
    memset(view, 0, sizeof *view);
    view->rank = rank;
    view->code = (int32_t)code;
    snprintf(view->why, sizeof view->why, "%s", why);
}

struct matching {
    const struct gpu_view *views;
    int count;
    int *chosen;   /* (count) index of each rank's GPU in its view, -1: none yet */
    bool *visited; /* (count) ranks that this search has tried to move */
};

static int owner_of_gpu(const struct matching *m, uint64_t id)
{
    for (int r = 0; r < m->count; r++)
        if (m->chosen[r] >= 0 && m->views[r].ids[m->chosen[r]] == id) return r;
    return -1;
}

/* Gives rank `r` a GPU: a free one, else one whose owner can move to another. */
static bool match_rank_to_gpu(struct matching *m, int r)
{
    const struct gpu_view *view = &m->views[r];
    m->visited[r] = true;
    for (int i = 0; i < view->count; i++)
        if (owner_of_gpu(m, view->ids[i]) < 0) {
            m->chosen[r] = i;
            return true;
        }
    for (int i = 0; i < view->count; i++) {
        int owner = owner_of_gpu(m, view->ids[i]);
        if (owner >= 0 && !m->visited[owner] && match_rank_to_gpu(m, owner)) {
            m->chosen[r] = i;
            return true;
        }
    }
    return false;
}

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

static enum status no_gpu_left(const struct gpu_view *views, int count, int rank_left, const struct gpu_host *host,
                               struct error *err)
{
    int gpus = count_gpus(views, count);
    error_set(err, STATUS_USAGE, "rank %d on %s has no GPU of its own: %d rank%s there see %d GPU%s",
              views[rank_left].rank, host->name, count, count == 1 ? "" : "s", gpus, gpus == 1 ? "" : "s");
    error_blame(err, views[rank_left].rank, FAILURE_NONE);
    if (host->supervised)
        return error_hint(err, "--local-gpus %d; or train.device: cpu; or, for a test, ZTRAIN_SHARE_GPUS=1", gpus);
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

enum status gpu_binding_choose(const struct gpu_view *views, int count, int self, const struct gpu_host *host,
                               int *index, struct error *err)
{
    ASSERT(count > 0 && self >= 0 && self < count);
    OWNED int *chosen = memory_alloc((size_t)count * sizeof *chosen);
    OWNED bool *visited = memory_alloc((size_t)count * sizeof *visited);
    struct matching m = {views, count, chosen, visited};
    *index = -1;
    for (int r = 0; r < count; r++) chosen[r] = -1;
    for (int r = 0; r < count; r++) {
        memset(visited, 0, (size_t)count * sizeof *visited);
        if (!match_rank_to_gpu(&m, r)) return no_gpu_left(views, count, r, host, err);
    }
    *index = chosen[self];
    return STATUS_OK;
}

/* ---- over the ranks of a job --------------------------------------------- */

static enum status check_views(const struct bootstrap *boot, struct gpu_view *views, struct gpu_binding *binding,
                               struct error *err)
{
    *binding = (struct gpu_binding){.blind = -1, .may_share = true};
    for (int r = 0; r < boot->world; r++) {
        struct gpu_view *view = &views[r];
        view->why[sizeof view->why - 1] = 0;
        if (view->rank != r || view->count < 0 || view->count > GPU_VIEW_MAX || !view->count != !!view->code) {
            error_set(err, STATUS_PEER, "rank %d on %s sent a damaged list of its GPUs", r, boot->places[r].host);
            return error_blame(err, r, FAILURE_NONE);
        }
        if (view->code && view->code != STATUS_DEVICE) return error_set(err, (enum status)view->code, "%s", view->why);
        if (view->code && binding->blind < 0) {
            binding->blind = r;
            memcpy(binding->why, view->why, sizeof binding->why);
        }
        binding->seeing += !view->code;
        binding->may_share &= view->share != 0;
    }
    return STATUS_OK;
}

static enum status choose_on_node(const struct bootstrap *boot, const struct gpu_view *views,
                                  struct gpu_binding *binding, struct error *err)
{
    const struct gpu_host host = {.name = boot->host, .supervised = !boot->launcher};
    OWNED struct gpu_view *here = memory_zeroed((size_t)boot->local_world, sizeof *here);
    int count = 0;
    for (int r = 0; r < boot->world; r++)
        if (boot->places[r].node == boot->node) here[count++] = views[r];
    ASSERT(count == boot->local_world);
    const enum status status = gpu_binding_choose(here, count, boot->local_rank, &host, &binding->index, err);
    if (status != STATUS_USAGE || !binding->may_share) return status;
    binding->index = boot->local_rank % here[boot->local_rank].count;
    binding->sharing = count;
    binding->shared = count_gpus(here, count);
    return STATUS_OK;
}

enum status gpu_binding_find(struct comm *comm, const struct bootstrap *boot, const struct gpu_view *own,
                             struct gpu_binding *binding, struct error *err)
{
    ASSERT(boot->places && comm_world(comm) == boot->world);
    OWNED struct gpu_view *views = memory_zeroed((size_t)boot->world, sizeof *views);
    TRY(comm_exchange(comm, own, sizeof *own, views, err));
    TRY(check_views(boot, views, binding, err));
    return binding->blind < 0 ? choose_on_node(boot, views, binding, err) : STATUS_OK;
}
