/* SPDX-License-Identifier: Apache-2.0 */
/* comm_nodes.c: gives the ranks of a launcher shared memory on each node, and connections between nodes.
 *
 *     first rank of a node   makes the node's memory                                    exchange "first": fd, addresses
 *     every rank             opens its node's memory, listens at the address that fits  exchange "second": the address
 *     every rank             connects with all ranks on other nodes, first ranks also for the agents
 *
 * After that no port is open any more. With each of the two words the ranks agree (agree.h). */
#include "comm/agree.h"
#include "comm/comm_internal.h"
#include "comm/wire/wire.h"

#include <sys/resource.h>

/* ---- topology ------------------------------------------------------------ */

void topology_init(struct topology *t, int rank, int world, const struct rank_place *places)
{
    ASSERT(world >= 1 && rank >= 0 && rank < world);
    *t = (struct topology){.rank = rank, .world = world, .node = places[rank].node, .num_nodes = 1};
    for (int r = 0; r < world; r++)
        if (places[r].node >= t->num_nodes) t->num_nodes = places[r].node + 1;
    t->node_of = memory_zeroed((size_t)world, sizeof *t->node_of);
    t->locals = memory_zeroed((size_t)world, sizeof *t->locals);
    t->remotes = memory_zeroed((size_t)world, sizeof *t->remotes);
    t->proxies = memory_zeroed((size_t)t->num_nodes, sizeof *t->proxies);
    t->proxy_of = memory_zeroed((size_t)world, sizeof *t->proxy_of);
    t->index_at_proxy = memory_zeroed((size_t)world, sizeof *t->index_at_proxy);
    OWNED int *sizes = memory_zeroed((size_t)t->num_nodes, sizeof *sizes);
    OWNED int *counts = memory_zeroed((size_t)world, sizeof *counts);
    for (int r = 0; r < world; r++) {
        t->node_of[r] = places[r].node;
        sizes[places[r].node]++;
        if (r == rank) t->local_rank = t->local_world;
        if (places[r].node == t->node)
            t->locals[t->local_world++] = r;
        else
            t->remotes[t->num_remotes++] = r;
    }
    for (int r = 0, *seen = counts; r < world; r++) { /* seen[node]: its ranks before r; num_nodes <= world */
        int node = places[r].node, local = seen[node]++;
        ASSERT(places[r].local_rank == local);
        if (local == t->local_rank % sizes[node]) t->proxies[node] = r;
    }
    t->proxies[t->node] = rank;
    for (int l = 0; l < t->local_world; l++) counts[l] = 0;
    for (int i = 0; i < t->num_remotes; i++) {
        int proxy = places[t->remotes[i]].local_rank % t->local_world;
        t->proxy_of[i] = proxy;
        t->index_at_proxy[i] = counts[proxy]++;
    }
    t->proxied = t->num_remotes > 0 ? counts[t->local_rank] : 0;
    for (int l = 0; l < t->local_world; l++)
        t->most_carried = counts[l] > t->most_carried ? counts[l] : t->most_carried;
}

void topology_release(struct topology *t)
{
    free(t->node_of);
    free(t->locals);
    free(t->remotes);
    free(t->proxies);
    free(t->proxy_of);
    free(t->index_at_proxy);
    *t = (struct topology){.world = 0};
}

/* ---- one node ------------------------------------------------------------ */

static void end_stuck_node(const char *text, void *context)
{
    struct comm *comm = context;
    control_blame(comm->control, comm->rank, FAILURE_ERROR, STATUS_PEER, "%s", text);
    if (comm->config.stuck) comm->config.stuck(comm->config.stuck_context, text);
}

enum status comm_attach_node(struct comm *comm, int fd, const char *host, struct error *err)
{
    const struct comm_config *config = &comm->config;
    const double most = 0.2, limit = config->io_timeout_seconds > 0 ? config->io_timeout_seconds : 600;
    TRY(control_attach(fd, comm->rank, comm->world, host, config->timeout_seconds, &comm->control, err));
    if (comm->world == 1) /* no peer waits for this rank */
        return STATUS_OK;
    double tick = config->timeout_seconds / 10 < most ? config->timeout_seconds / 10 : most;
    int error = heartbeat_thread_start(tick, limit, end_stuck_node, comm);
    return error ? error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error)) : STATUS_OK;
}

/* ---- several nodes ------------------------------------------------------- */

/* What the ranks exchange before they share memory. */
struct word {
    struct outcome outcome;
    int32_t shared_fd; /* first: of a node's first rank */
    union {
        struct wire_host host;       /* first: of a node's first rank */
        struct wire_address address; /* second: where the rank listens, with several nodes */
    };
};
_Static_assert(sizeof(struct word) <= BOOTSTRAP_EXCHANGE_MAX, "a word is exchanged at once");

struct opening {
    struct bootstrap *boot;
    struct comm *comm;
    struct word *words;      /* (world) */
    struct wire_host *hosts; /* (num_nodes), by their first ranks */
    int listener;            /* -1: none */
    struct wire_peer *peers; /* connections to make */
    int num_agents;          /* the last of them */
};

/* Collective: fills o->words. status and err: this rank's outcome so far. */
static enum status exchange_node_words(struct opening *o, const char *key, struct word *own, enum status status,
                                       struct error *err)
{
    int lowest;
    status = agree_by_key(o->boot, key, &own->outcome, sizeof *own, o->words, status, &lowest, err);
    o->boot->failed_together |= lowest >= 0;
    return status;
}

static enum status open_node_second(struct opening *o, const struct control_shape *shape, struct word *own,
                                    struct error *err)
{
    const struct topology *t = &o->comm->topology;
    const int first = t->locals[0];
    if (t->rank != first)
        TRY(control_open(o->boot->places[first].pid, o->words[first].shared_fd, shape, &o->comm->own_fd, err));
    if (t->num_nodes == 1) return STATUS_OK;
    TRY(wire_choose(o->hosts, t->num_nodes, t->node, &own->address, err));
    return wire_listen(&own->address, &o->listener, err);
}

static enum status share_node_memory(struct opening *o, struct error *err)
{
    const struct topology *t = &o->comm->topology;
    struct bootstrap *boot = o->boot;
    struct control_shape shape = {.world = boot->world,
                                  .local_world = t->local_world,
                                  .num_nodes = t->num_nodes,
                                  .token = control_token(boot->secret, t->node),
                                  .places = boot->places};
    struct word first = {.shared_fd = -1}, second = {.shared_fd = -1};
    enum status status = STATUS_OK;
    if (t->local_rank == 0) {
        status = control_create(&shape, &o->comm->own_fd, err);
        first.shared_fd = o->comm->own_fd;
    }
    if (status == STATUS_OK && t->num_nodes > 1) status = wire_host_read(o->comm->config.interface, &first.host, err);
    TRY(exchange_node_words(o, "first", &first, status, err));
    for (int r = 0; r < boot->world && status == STATUS_OK; r++) {
        if (boot->places[r].local_rank == 0) o->hosts[boot->places[r].node] = o->words[r].host;
        if (!wire_host_is_valid(&o->words[r].host)) {
            error_set(err, STATUS_PEER, "rank %d on %s has sent addresses that cannot be read", r,
                      boot->places[r].host);
            status = error_blame(err, r, FAILURE_NONE);
        }
    }
    if (status == STATUS_OK) status = open_node_second(o, &shape, &second, err);
    return exchange_node_words(o, "second", &second, status, err);
}

static void allow_descriptors(int count)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)count + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) return;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static enum status connect_nodes(struct opening *o, struct error *err)
{
    const struct topology *t = &o->comm->topology;
    struct bootstrap *boot = o->boot;
    const struct wire_self self = {.rank = t->rank,
                                   .world = t->world,
                                   .job = boot->job_id,
                                   .secret = boot->secret,
                                   .timeout_seconds = o->comm->config.timeout_seconds};
    RELEASED(wire_server_drop) struct wire_server *server = NULL;
    int count = 0, listener = o->listener;
    o->listener = -1;
    TRY(wire_server_new(&self, listener, &server, err));
    for (int i = 0; i < t->num_remotes; i++) {
        int r = t->remotes[i];
        struct wire_peer peer = {.rank = r,
                                 .service = WIRE_DATA,
                                 .host = boot->places[r].host,
                                 .addresses = &o->words[r].address,
                                 .num_addresses = 1,
                                 .fd = -1};
        if (!wire_address_is_valid(peer.addresses)) {
            error_set(err, STATUS_PEER, "rank %d on %s has sent an address that cannot be read", r,
                      boot->places[r].host);
            return error_blame(err, r, FAILURE_NONE);
        }
        o->peers[count++] = peer;
    }
    for (int i = 0; i < t->num_remotes; i++)
        if (t->local_rank == 0 && boot->places[o->peers[i].rank].local_rank == 0) {
            o->peers[count] = o->peers[i];
            o->peers[count++].service = WIRE_AGENT;
        }
    o->num_agents = count - t->num_remotes;
    allow_descriptors(count);
    const enum status status = wire_connect(&self, server, o->peers, count, boot->start_seconds, err);
    char text[WIRE_PRINTED];
    log_debug("connected with %d ranks on other nodes from %s", t->num_remotes,
              wire_address_print(&o->words[t->rank].address, text));
    return status;
}

static enum status hand_over_node_connections(struct opening *o, struct error *err)
{
    const struct topology *t = &o->comm->topology;
    OWNED struct agent_link *links = memory_zeroed((size_t)o->num_agents + 1, sizeof *links);
    o->comm->net = net_new(o->comm->control, t->world);
    for (int i = 0; i < t->num_remotes; i++) net_connect(o->comm->net, o->peers[i].rank, o->peers[i].fd);
    for (int i = 0; i < o->num_agents; i++) {
        const struct wire_peer *peer = &o->peers[t->num_remotes + i];
        links[i] = (struct agent_link){.node = o->boot->places[peer->rank].node, .fd = peer->fd};
    }
    return t->local_rank == 0 ? agent_start(o->comm->control, links, o->num_agents, &o->comm->agent, err) : STATUS_OK;
}

enum status comm_join_nodes(struct comm *c, struct bootstrap *boot, struct error *err)
{
    struct opening opening = {.boot = boot, .comm = c, .listener = -1}, *o = &opening;
    enum status status;
    size_t world = (size_t)boot->world;
    o->words = memory_zeroed(world, sizeof *o->words);
    o->hosts = memory_zeroed((size_t)c->topology.num_nodes, sizeof *o->hosts);
    o->peers = memory_zeroed(2 * world, sizeof *o->peers);
    TRY_END(share_node_memory(o, err));
    TRY_END(comm_attach_node(c, c->own_fd, boot->host, err));
    if (c->topology.num_nodes > 1) {
        TRY_END(connect_nodes(o, err));
        TRY_END(hand_over_node_connections(o, err));
        transport_host_prepare(c);
    }
end:
    if (o->listener >= 0) close(o->listener);
    free(o->words);
    free(o->hosts);
    free(o->peers);
    return status;
}
