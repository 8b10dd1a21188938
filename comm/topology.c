/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/topology.h"

#include "core/memory.h"

#include <stdlib.h>

void topology_init(struct topology *t, int rank, int world, const struct rank_place *places)
{
    ASSERT(world >= 1 && rank >= 0 && rank < world);
    *t = (struct topology){.rank = rank, .world = world, .node = places[rank].node, .num_nodes = 1};
    for (int r = 0; r < world; r++)
        if (places[r].node >= t->num_nodes)
            t->num_nodes = places[r].node + 1;
    t->locals = memory_zeroed((size_t)world, sizeof *t->locals);
    t->remotes = memory_zeroed((size_t)world, sizeof *t->remotes);
    t->proxies = memory_zeroed((size_t)t->num_nodes, sizeof *t->proxies);
    t->proxy_of = memory_zeroed((size_t)world, sizeof *t->proxy_of);
    t->index_at_proxy = memory_zeroed((size_t)world, sizeof *t->index_at_proxy);
    int *sizes = memory_zeroed((size_t)t->num_nodes, sizeof *sizes),
        *counts = memory_zeroed((size_t)world, sizeof *counts);
    for (int r = 0; r < world; r++) {
        sizes[places[r].node]++;
        if (r == rank)
            t->local_rank = t->local_world;
        if (places[r].node == t->node)
            t->locals[t->local_world++] = r;
        else
            t->remotes[t->num_remotes++] = r;
    }
    for (int r = 0, *seen = counts; r < world; r++) { /* seen[node]: its ranks before r; num_nodes <= world */
        int node = places[r].node, local = seen[node]++;
        ASSERT(places[r].local_rank == local);
        if (local == t->local_rank % sizes[node])
            t->proxies[node] = r;
    }
    t->proxies[t->node] = rank;
    for (int l = 0; l < t->local_world; l++)
        counts[l] = 0;
    for (int i = 0; i < t->num_remotes; i++) {
        int proxy = places[t->remotes[i]].local_rank % t->local_world;
        t->proxy_of[i] = proxy;
        t->index_at_proxy[i] = counts[proxy]++;
    }
    t->proxied = t->num_remotes > 0 ? counts[t->local_rank] : 0;
    for (int l = 0; l < t->local_world; l++)
        t->most_carried = counts[l] > t->most_carried ? counts[l] : t->most_carried;
    free(sizes);
    free(counts);
}

void topology_release(struct topology *t)
{
    free(t->locals);
    free(t->remotes);
    free(t->proxies);
    free(t->proxy_of);
    free(t->index_at_proxy);
    *t = (struct topology){.world = 0};
}
