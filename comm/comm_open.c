/* comm_open.c: how the ranks of a launcher come to share memory on each node and connections between nodes.
 *
 *     each node's first rank    makes the node's memory; every rank says where it may be reached    exchange "first"
 *     every rank                opens its node's memory, listens at the address that fits           exchange "address"
 *     every rank                connects with all ranks on other nodes, first ranks also for the agents
 *
 * Then no port is open any more. */
#include "comm/comm_internal.h"
#include "comm/wire.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* What ranks tell each other before they share anything. */
struct first_word {
    int32_t shared_fd;              /* of a node's first rank */
    int32_t code;                   /* enum status: the rank cannot go on */
    char addresses[WIRE_HOST_TEXT]; /* wire_host_print(); with a code: why */
};
_Static_assert(sizeof(struct first_word) <= BOOTSTRAP_EXCHANGE_MAX, "it is exchanged at once");

/* The opening of several nodes. */
struct opening {
    struct bootstrap *boot;
    const struct comm_config *config;
    struct comm *comm;
    struct first_word *words;    /* (world) */
    struct wire_host *hosts;     /* (num_nodes), by their first ranks */
    struct wire_address address; /* where this rank listens */
    struct wire_peer *peers;     /* connections to make */
    int num_data, num_agents;    /* of peers: data first */
};

/* What this rank brings: the node's memory, if it is the first there, and addresses. */
static enum status prepare_word(struct opening *o, const struct control_shape *shape, struct first_word *own,
                                struct error *err)
{
    const struct topology *t = &o->comm->topology;
    struct wire_host host = {.count = 0};
    own->shared_fd = -1;
    if (t->local_rank == 0) {
        TRY(control_create(shape, &o->comm->own_fd, err));
        own->shared_fd = o->comm->own_fd;
    }
    if (t->num_nodes > 1)
        TRY(wire_host_read(o->config->interface, &host, err));
    wire_host_print(&host, own->addresses);
    return STATUS_OK;
}

/* A rank that cannot go on tells the others, which would wait for it: all end with its code. */
static enum status take_failure(struct opening *o, const struct first_word *own, struct error *err)
{
    struct bootstrap *boot = o->boot;
    for (int r = 0; r < boot->world; r++) {
        struct first_word *word = &o->words[r];
        word->addresses[sizeof word->addresses - 1] = 0;
        if (!word->code)
            continue;
        boot->failed_together = true;
        if (r == boot->rank)
            return error_set(err, (enum status)own->code, "%s", own->addresses);
        return error_set(err, (enum status)word->code, "rank %d on %s ended: %s", r, boot->places[r].host,
                         word->addresses);
    }
    return STATUS_OK;
}

/* Makes or opens the node's shared memory, learns everybody's addresses and chooses its own. */
static enum status share_node(struct opening *o, struct error *err)
{
    const struct topology *t = &o->comm->topology;
    struct bootstrap *boot = o->boot;
    struct control_shape shape = {.world = boot->world,
                                  .local_world = t->local_world,
                                  .num_nodes = t->num_nodes,
                                  .token = control_token(boot->secret, t->node),
                                  .places = boot->places};
    struct first_word own = {.code = STATUS_OK};
    struct error failure = {.code = STATUS_OK};
    own.code = prepare_word(o, &shape, &own, &failure);
    if (own.code)
        snprintf(own.addresses, sizeof own.addresses, "%.*s", (int)sizeof own.addresses - 1, failure.text);
    TRY(bootstrap_exchange(boot, "first", &own, sizeof own, o->words, err));
    TRY(take_failure(o, &own, err));
    for (int r = 0; r < boot->world; r++) {
        struct first_word *word = &o->words[r];
        if (boot->places[r].local_rank == 0 && !wire_host_parse(word->addresses, &o->hosts[boot->places[r].node]))
            return error_set(err, STATUS_PEER, "rank %d on %s has sent addresses that cannot be read", r,
                             boot->places[r].host);
    }
    if (t->num_nodes > 1) /* before anything else, as all ranks of a node find out the same */
        TRY(wire_choose(o->hosts, t->num_nodes, t->node, &o->address, err));
    const int first = t->locals[0];
    if (t->rank == first)
        return STATUS_OK;
    return control_open(boot->places[first].pid, o->words[first].shared_fd, &shape, &o->comm->own_fd, err);
}

/* Room for a connection with every rank of other nodes. */
static void allow_descriptors(int count)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)count + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Connections with all ranks of other nodes, and between the agents. */
static enum status connect_nodes(struct opening *o, struct error *err)
{
    const struct topology *t = &o->comm->topology;
    struct bootstrap *boot = o->boot;
    char job[sizeof boot->job_id + 1];
    snprintf(job, sizeof job, "%s", boot->job_id);
    const struct wire_self self = {.rank = t->rank,
                                   .world = t->world,
                                   .job = job,
                                   .secret = boot->secret,
                                   .timeout_seconds = o->config->timeout_seconds};
    struct wire_address *all = calloc((size_t)t->world, sizeof *all);
    struct wire_server *server = NULL;
    enum status status;
    int listener, count = 0;
    if (!all)
        return error_set(err, STATUS_DEVICE, "out of memory");
    TRY_GOTO(wire_listen(&o->address, &listener, err));
    TRY_GOTO(wire_server_new(&self, listener, &server, err));
    TRY_GOTO(bootstrap_exchange(boot, "address", &o->address, sizeof o->address, all, err));
    for (int i = 0; i < t->num_remotes; i++) {
        int r = t->remotes[i];
        all[r].text[sizeof all[r].text - 1] = 0;
        o->peers[count++] = (struct wire_peer){
            .rank = r, .service = WIRE_DATA, .host = boot->places[r].host, .address = all[r], .fd = -1};
    }
    o->num_data = count;
    for (int i = 0; i < t->num_remotes; i++) {
        int r = t->remotes[i];
        if (t->local_rank == 0 && boot->places[r].local_rank == 0)
            o->peers[count++] = (struct wire_peer){
                .rank = r, .service = WIRE_AGENT, .host = boot->places[r].host, .address = all[r], .fd = -1};
    }
    o->num_agents = count - o->num_data;
    allow_descriptors(count);
    status = wire_mesh(&self, server, o->peers, count, boot->start_seconds, err);
    char text[WIRE_PRINTED];
    log_debug("connected with %d ranks on other nodes from %s", o->num_data, wire_address_print(&o->address, text));
fail:
    wire_server_free(server);
    free(all);
    return status;
}

/* Hands the connections to those who use them. */
static enum status hand_out(struct opening *o, struct error *err)
{
    const struct topology *t = &o->comm->topology;
    int *ranks = calloc((size_t)o->num_data + 1, sizeof *ranks), *fds = calloc((size_t)o->num_data + 1, sizeof *fds);
    struct agent_link *links = calloc((size_t)o->num_agents + 1, sizeof *links);
    enum status status = STATUS_OK;
    if (!ranks || !fds || !links) {
        status = error_set(err, STATUS_DEVICE, "out of memory");
        goto fail;
    }
    for (int i = 0; i < o->num_data; i++) {
        ranks[i] = o->peers[i].rank;
        fds[i] = o->peers[i].fd;
        o->peers[i].fd = -1;
    }
    TRY_GOTO(net_new(o->comm->control, t->world, ranks, fds, o->num_data, &o->comm->net, err));
    for (int i = 0; i < o->num_agents; i++) {
        struct wire_peer *peer = &o->peers[o->num_data + i];
        links[i] = (struct agent_link){.node = o->boot->places[peer->rank].node, .fd = peer->fd};
        peer->fd = -1;
    }
    if (t->local_rank == 0)
        TRY_GOTO(agent_start(o->comm->control, links, o->num_agents, &o->comm->agent, err));
fail:
    free(ranks);
    free(fds);
    free(links);
    return status;
}

enum status comm_meet_nodes(struct comm *c, struct bootstrap *boot, const struct comm_config *config, struct error *err)
{
    struct opening opening = {.boot = boot, .config = config, .comm = c}, *o = &opening;
    enum status status;
    size_t world = (size_t)boot->world;
    int num_peers = 0;
    o->words = calloc(world, sizeof *o->words);
    o->hosts = calloc((size_t)c->topology.num_nodes, sizeof *o->hosts);
    o->peers = calloc(2 * world, sizeof *o->peers);
    if (!o->words || !o->hosts || !o->peers) {
        status = error_set(err, STATUS_DEVICE, "out of memory");
        goto fail;
    }
    TRY_GOTO(share_node(o, err));
    TRY_GOTO(control_attach(c->own_fd, c->rank, c->world, boot->host, o->config->timeout_seconds, &c->control, err));
    if (c->topology.num_nodes > 1) {
        TRY_GOTO(connect_nodes(o, err));
        num_peers = o->num_data + o->num_agents;
        TRY_GOTO(hand_out(o, err));
        TRY_GOTO(network_prepare(c, err));
    }
fail:
    for (int i = 0; i < num_peers; i++)
        if (o->peers[i].fd >= 0)
            close(o->peers[i].fd);
    free(o->words);
    free(o->hosts);
    free(o->peers);
    return status;
}
