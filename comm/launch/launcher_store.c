/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_store.c: for ranks that take their rank and rank 0's machine from the environment (torchrun's variables,
 * SLURM_* without PMI). They meet at ztrain's own store (kv_store.h), authenticated with ZTRAIN_JOB_SECRET.
 *
 * Port: MASTER_PORT; without it one of a few that are derived from job and secret. Rank 0 takes the first that is free,
 * the others try them all; a stranger there does not have the secret and is passed over.
 *
 * Address: rank 0 listens at comm.interface, else at the addresses of its name for the others; if that is loopback
 * (many /etc/hosts) and there are other nodes, at this machine's other addresses as well.
 *
 * No launcher ends such a job. So a rank that is told of its end, or has lost rank 0, ends itself after a pause. */
#include "comm/launch/kv_store.h"
#include "comm/launch/launcher.h"
#include "comm/wire/wire.h"

#include <sodium.h>

enum {
    PORT_CHOICES = 8,
    PORT_FIRST = 20000, /* below those that systems give to outgoing connections */
    PORT_COUNT = 10000,
    HOST_ADDRESSES = 4, /* of a host name */
    ADDRESSES_MAX = 2 * HOST_ADDRESSES + WIRE_HOST_ADDRESSES
};
_Static_assert((int)KV_DOORS_MAX >= (int)ADDRESSES_MAX, "a door at each address");

static const double abort_grace = 3;       /* seconds for the rank to end in order */
static const double farewell_seconds = 10; /* for the others to leave as well */

struct store {
    struct launcher base;
    struct launcher_rendezvous rendezvous;
    struct wire_self self;
    struct kv_server *server; /* rank 0's */
    struct kv_client *client;
};

/* ---- where rank 0 is ----------------------------------------------------- */

static uint16_t port_choice(const struct launcher_rendezvous *rendezvous, int i)
{
    if (rendezvous->port) return (uint16_t)rendezvous->port;
    unsigned char hash[crypto_generichash_BYTES];
    crypto_generichash(hash, sizeof hash, (const unsigned char *)rendezvous->job_id, strlen(rendezvous->job_id),
                       rendezvous->secret, sizeof rendezvous->secret);
    return (uint16_t)(PORT_FIRST + (hash[2 * i] << 8 | hash[2 * i + 1]) % PORT_COUNT);
}

static int port_choices(const struct launcher_rendezvous *rendezvous)
{
    return rendezvous->port ? 1 : PORT_CHOICES;
}

/* Numeric addresses with port 0. */
static enum status store_hosts(const struct launcher_rendezvous *rendezvous, struct wire_address *addresses, int *count,
                               struct error *err)
{
    enum status status = STATUS_PEER;
    *count = 0;
    for (size_t h = 0; h < COUNT_OF(rendezvous->hosts); h++) {
        int found = 0;
        if (!rendezvous->hosts[h][0]) continue;
        status = wire_resolve(rendezvous->hosts[h], 0, addresses + *count, HOST_ADDRESSES, &found, err);
        *count += found;
    }
    if (*count > 0) /* one of the names is enough */
        return STATUS_OK;
    error_hint(err, "set MASTER_ADDR to an address of rank 0's machine");
    return status;
}

static void launcher_add_address(struct wire_address *addresses, int *count, const char *text)
{
    for (int i = 0; i < *count; i++)
        if (!strcmp(addresses[i].text, text)) return;
    if (*count < ADDRESSES_MAX) snprintf(addresses[(*count)++].text, sizeof addresses->text, "%s", text);
}

/* Where rank 0 should listen; some may not be this machine's. */
static enum status store_addresses(const struct launcher_rendezvous *rendezvous, const char *interface,
                                   struct wire_address *addresses, int *count, struct error *err)
{
    struct wire_host own;
    *count = 0;
    if (interface && *interface) {
        TRY(wire_host_read(interface, &own, err));
    } else {
        TRY(store_hosts(rendezvous, addresses, count, err));
        bool loopback = false;
        for (int i = 0; i < *count; i++)
            loopback |= !strncmp(addresses[i].text, "127.", 4) || !strcmp(addresses[i].text, "::1");
        if (!loopback || !rendezvous->several_nodes) return STATUS_OK;
        TRY(wire_host_read(NULL, &own, err));
    }
    for (int i = 0; i < own.count; i++) launcher_add_address(addresses, count, own.addresses[i].text);
    return STATUS_OK;
}

/* ---- connecting ---------------------------------------------------------- */

/* Opens a door at each address of this machine, all with one port. *count: addresses; becomes doors. */
static enum status open_doors(struct store *store, const struct wire_address *addresses, int *count,
                              struct wire_server **doors, struct error *err)
{
    for (int p = 0; p < port_choices(&store->rendezvous); p++) {
        int opened = 0;
        bool taken = false;
        for (int i = 0; i < *count && !taken; i++) {
            struct wire_address address = addresses[i];
            int listener;
            address.port = port_choice(&store->rendezvous, p);
            if (wire_listen(&address, &listener, err) != STATUS_OK)
                taken = err->cause == EADDRINUSE || err->cause == EACCES;
            else if (wire_server_new(&store->self, listener, &doors[opened], err) == STATUS_OK)
                opened++;
            else
                taken = true;
        }
        if (opened > 0 && !taken) {
            *count = opened;
            return STATUS_OK;
        }
        while (opened > 0) wire_server_free(doors[--opened]);
    }
    return err->code;
}

static enum status open_server(struct store *store, const char *interface, int *own, struct error *err)
{
    struct wire_address addresses[ADDRESSES_MAX] = {0};
    struct wire_server *doors[KV_DOORS_MAX];
    int count;
    TRY(store_addresses(&store->rendezvous, interface, addresses, &count, err));
    if (open_doors(store, addresses, &count, doors, err) == STATUS_OK)
        return kv_server_new(store->base.world, doors, count, &store->server, own, err);
    error_prefix(err, "rank 0");
    return error_hint(err, "MASTER_ADDR has to be an address of rank 0's machine, and MASTER_PORT a free port there; "
                           "comm.interface chooses another interface");
}

static enum status reach_server(struct store *store, double seconds, int *fd, struct error *err)
{
    const struct launcher_rendezvous *rendezvous = &store->rendezvous;
    struct wire_address addresses[ADDRESSES_MAX] = {0}, doors[ADDRESSES_MAX * PORT_CHOICES];
    int count, num = 0;
    TRY(store_hosts(rendezvous, addresses, &count, err));
    for (int p = 0; p < port_choices(rendezvous); p++)
        for (int i = 0; i < count; i++, num++) {
            doors[num] = addresses[i];
            doors[num].port = port_choice(rendezvous, p);
        }
    struct wire_peer zero = {
        .service = WIRE_STORE, .host = rendezvous->hosts[0], .addresses = doors, .num_addresses = num};
    enum status status = wire_connect(&store->self, NULL, &zero, 1, seconds, err);
    *fd = zero.fd;
    if (status == STATUS_PEER)
        return error_hint(err,
                          "rank 0 has to run there with the same ZTRAIN_JOB_SECRET, and this machine has to reach it "
                          "under that name (MASTER_ADDR)");
    return status;
}

/* The job has ended for this rank (kv_store.h), which has not ended in order. */
static void launcher_end_process(void *context, enum status code, const char *text)
{
    (void)context;
    struct error err;
    error_set(&err, code, "the job has ended: %s", text);
    log_error(&err);
    fflush(NULL);
    _exit((int)code);
}

static enum status store_connect(struct launcher *launcher, double seconds, const char *interface, struct error *err)
{
    struct store *store = (struct store *)launcher;
    int fd = -1;
    store->self.timeout_seconds = seconds;
    if (launcher->rank == 0)
        TRY(open_server(store, interface, &fd, err));
    else
        TRY(reach_server(store, seconds, &fd, err));
    return kv_client_new(fd, launcher->world, abort_grace, launcher_end_process, NULL, &store->client, err);
}

/* ---- the other verbs ----------------------------------------------------- */

static enum status store_exchange(struct launcher *launcher, const char *key, const char *own, char *values,
                                  double seconds, struct error *err)
{
    struct store *store = (struct store *)launcher;
    (void)key; /* exchanges come one after the other */
    enum status status = kv_exchange(store->client, own, values, seconds, err);
    if (status != STATUS_PEER) return status;
    return error_hint(err,
                      "a missing rank was not started, has ended (see its own messages), does not reach rank 0 at "
                      "%.128s (MASTER_ADDR), or has another ZTRAIN_JOB_SECRET",
                      store->rendezvous.hosts[0]);
}

static void store_abort(struct launcher *launcher, enum status code, const char *text)
{
    struct store *store = (struct store *)launcher;
    char message[KV_TEXT_MAX];
    if (!store->client) return;
    snprintf(message, sizeof message, "rank %d: %s", launcher->rank, text);
    kv_abort(store->client, code, message);
}

static void store_finish(struct launcher *launcher)
{
    struct store *store = (struct store *)launcher;
    if (store->client) kv_leave(store->client, farewell_seconds);
}

static void store_release(struct launcher *launcher)
{
    struct store *store = (struct store *)launcher;
    kv_client_free(store->client);
    kv_server_free(store->server);
    free(store);
}

enum status launcher_store_new(int rank, int world, const struct launcher_rendezvous *rendezvous,
                               struct launcher **launcher, struct error *err)
{
    static const struct launcher_verbs verbs = {store_connect, store_exchange, store_abort, store_finish,
                                                store_release};
    if (sodium_init() < 0) return error_set(err, STATUS_DEVICE, "cannot initialise libsodium");
    struct store *store = memory_zeroed(1, sizeof *store);
    store->rendezvous = *rendezvous;
    store->base = (struct launcher){.verbs = &verbs, .rank = rank, .world = world, .secret = store->rendezvous.secret};
    store->self = (struct wire_self){
        .rank = rank, .world = world, .job = store->rendezvous.job_id, .secret = store->rendezvous.secret};
    *launcher = &store->base;
    return STATUS_OK;
}
