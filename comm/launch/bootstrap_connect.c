/* SPDX-License-Identifier: Apache-2.0 */
/* bootstrap_connect.c: ranks exchange introductions; rank 0's has the job's secret and name. A node is a set of ranks
 * with the same kernel (boot id), namespaces and node number from the launcher: two of Slurm's nodes may be one machine
 * in a test. Host names are for messages only. */

#include "comm/launch/launcher.h"
#include "comm/wire/wire.h"
#include "core/version.h"

#include <sodium.h>
#include <sys/random.h>
#include <xxhash.h>

enum { VALUE_BYTES = BOOTSTRAP_VALUE_MAX + 1, ABORT_BYTES = 384 };

static const double shortest_start = 10; /* seconds; a busy machine starts slowly */
static const double start_per_rank = 0.25;

static const char place_key[] = "place";       /* the key of every rank's introduction */
static const char refused[] = "refused-with-"; /* and an exit code: the value of a rank that does not come */

/* The same bytes on all machines of one architecture, sent in hexadecimal digits. */
struct introduction {
    char version[16]; /* of ztrain */
    uint64_t node;    /* equal for ranks of one node */
    uint64_t cores;   /* equal for ranks of one node that share their cores */
    int32_t pid;
    char host[64];
    char job_id[64];          /* of rank 0: the job's */
    unsigned char secret[32]; /* of rank 0: the job's, unless every rank was given it */
};
_Static_assert(sizeof(struct introduction) <= BOOTSTRAP_EXCHANGE_MAX, "an introduction is one value");

/* ---- exchange ------------------------------------------------------------ */

void bootstrap_refuse(const struct bootstrap *bootstrap, enum status code)
{
    char value[sizeof refused + 16];
    snprintf(value, sizeof value, "%s%d", refused, (int)code);
    if (bootstrap->unused_pmi_fd >= 0)
        launcher_pmi2_refuse(bootstrap->unused_pmi_fd, bootstrap->rank, place_key, value,
                             shortest_start + start_per_rank * bootstrap->world);
}

enum status bootstrap_exchange(struct bootstrap *bootstrap, const char *key, const void *own, size_t bytes, void *all,
                               struct error *err)
{
    ASSERT(bytes > 0 && bytes <= BOOTSTRAP_EXCHANGE_MAX && strlen(key) <= BOOTSTRAP_KEY_MAX);
    if (bootstrap->world == 1) {
        memcpy(all, own, bytes);
        return STATUS_OK;
    }
    char text[VALUE_BYTES];
    OWNED char *values = memory_alloc((size_t)bootstrap->world * VALUE_BYTES);
    sodium_bin2hex(text, sizeof text, own, bytes);
    TRY(bootstrap->launcher->verbs->exchange(bootstrap->launcher, key, text, values, bootstrap->start_seconds, err));
    for (int r = 0; r < bootstrap->world; r++) {
        const char *value = values + (size_t)r * VALUE_BYTES;
        unsigned char *to = (unsigned char *)all + (size_t)r * bytes;
        size_t length;
        if (!sodium_hex2bin(to, bytes, value, strlen(value), NULL, &length, NULL) && length == bytes) continue;
        if (strncmp(value, refused, sizeof refused - 1) == 0) {
            const int code = atoi(value + sizeof refused - 1);
            bootstrap->failed_together = true;
            error_set(err, code > 0 && code < 256 ? (enum status)code : STATUS_PEER, "rank %d cannot start", r);
            return error_mark_printed(err); /* by that rank, with the reason */
        }
        return error_set(err, STATUS_PEER,
                         "rank %d has put '%.40s' as '%s', which is not %zu bytes; hint: check that all ranks run the "
                         "same ztrain (ztrain version)",
                         r, key, value, bytes);
    }
    return STATUS_OK;
}

/* ---- introductions ------------------------------------------------------- */

static uint64_t identify_connect_node(const char *host)
{
    static const char *const spaces[] = {"/proc/self/ns/pid", "/proc/self/ns/uts"};
    static const char *const names[] = {"SLURM_NODEID", "SLURMD_NODENAME", "GROUP_RANK"};
    char text[1024];
    snprintf(text, sizeof text, "%" PRIx64 "|%s|", wire_kernel_identity(), host);
    for (size_t i = 0; i < COUNT_OF(spaces); i++) {
        struct stat info = {.st_ino = 0};
        if (stat(spaces[i], &info) != 0) info.st_ino = 0;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%" PRIu64 "|", (uint64_t)info.st_ino);
    }
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%.64s|", value ? value : "");
    }
    return XXH3_64bits(text, strlen(text));
}

static void connect_introduction(const struct bootstrap *boot, struct introduction *own)
{
    memset(own, 0, sizeof *own);
    snprintf(own->version, sizeof own->version, "%.15s", ZTRAIN_VERSION);
    snprintf(own->host, sizeof own->host, "%.63s", boot->host);
    own->node = identify_connect_node(boot->host);
    own->pid = getpid();
    snprintf(own->job_id, sizeof own->job_id, "%s", boot->job_id);
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    own->cores = XXH3_64bits(&set, sizeof set);
}

/* Nodes in the order of their lowest ranks, local ranks in rank order; and this rank's share of its cores. */
static enum status connect_places(struct bootstrap *boot, const struct introduction *all, struct error *err)
{
    const struct introduction *own = &all[boot->rank];
    int sharers = 0;
    boot->num_nodes = boot->local_world = 0;
    for (int r = 0; r < boot->world; r++) {
        const struct introduction *other = &all[r];
        struct rank_place *place = &boot->places[r];
        if (memcmp(other->version, all[0].version, sizeof other->version) != 0) {
            error_set(err, STATUS_USAGE, "rank %d on %.63s runs ztrain %.15s, rank 0 on %.63s runs %.15s", r,
                      other->host, other->version, all[0].host, all[0].version);
            boot->failed_together = true; /* every rank has the same table */
            error_hint(err, "install the same version on every node");
            error_blame(err, r, FAILURE_NONE);
            if (boot->rank != 0) error_mark_printed(err);
            return STATUS_USAGE;
        }
        *place = (struct rank_place){.node = -1, .pid = other->pid};
        snprintf(place->host, sizeof place->host, "%.63s", other->host);
        for (int before = 0; before < r; before++)
            if (all[before].node == other->node) {
                place->node = boot->places[before].node;
                place->local_rank++;
            }
        if (place->node < 0) place->node = boot->num_nodes++;
        boot->local_world += other->node == own->node;
        sharers += other->node == own->node && other->cores == own->cores;
    }
    boot->node = boot->places[boot->rank].node;
    boot->local_rank = boot->places[boot->rank].local_rank;
    ASSERT(sharers > 0); /* at least this rank */
    boot->cores = bootstrap_threads(boot->cores, sharers);
    return STATUS_OK;
}

static enum status connect_by_launcher(struct bootstrap *boot, const char *interface, struct error *err)
{
    struct launcher *launcher = boot->launcher;
    struct introduction own;
    OWNED struct introduction *all = memory_zeroed((size_t)boot->world, sizeof *all);
    connect_introduction(boot, &own);
    TRY(launcher->verbs->connect(launcher, boot->start_seconds, interface, err));
    if (!launcher->secret && boot->rank == 0 &&
        getrandom(own.secret, sizeof own.secret, 0) != (ssize_t)sizeof own.secret)
        return error_set(err, STATUS_DEVICE, "cannot generate a secret for the job: %s", strerror(errno));
    TRY(bootstrap_exchange(boot, place_key, &own, sizeof own, all, err));
    for (int r = 0; r < boot->world; r++) { /* bytes from outside */
        all[r].host[sizeof all[r].host - 1] = 0;
        all[r].job_id[sizeof all[r].job_id - 1] = 0;
        all[r].version[sizeof all[r].version - 1] = 0;
    }
    TRY(connect_places(boot, all, err));
    memcpy(boot->secret, launcher->secret ? launcher->secret : all[0].secret, sizeof boot->secret);
    snprintf(boot->job_id, sizeof boot->job_id, "%.63s", all[0].job_id);
    size_t length = strlen(boot->source);
    snprintf(boot->source + length, sizeof boot->source - length, ", %d ranks on %d node%s", boot->world,
             boot->num_nodes, boot->num_nodes == 1 ? "" : "s");
    return STATUS_OK;
}

enum status bootstrap_connect(struct bootstrap *bootstrap, double timeout_seconds, const char *interface,
                              struct error *err)
{
    bootstrap->start_seconds = fmax(timeout_seconds, shortest_start) + start_per_rank * bootstrap->world;
    if (bootstrap->places) return STATUS_OK;
    bootstrap->places = memory_zeroed((size_t)bootstrap->world, sizeof *bootstrap->places);
    if (bootstrap->launcher) return connect_by_launcher(bootstrap, interface, err);
    bootstrap->cores = bootstrap_threads(bootstrap->cores, 1);
    for (int r = 0; r < bootstrap->world; r++) { /* alone, or ranks of one supervisor: all on this node */
        struct rank_place *place = &bootstrap->places[r];
        place->local_rank = r;
        place->pid = r == bootstrap->rank ? (int)getpid() : 0;
        snprintf(place->host, sizeof place->host, "%.63s", bootstrap->host);
    }
    return STATUS_OK;
}

/* ---- ends ---------------------------------------------------------------- */

void bootstrap_abort(struct bootstrap *bootstrap, enum status code, const char *text)
{
    if (!bootstrap->launcher) return;
    char line[ABORT_BYTES]; /* printable characters only, and no ';', which ends a message of PMI-2 */
    snprintf(line, sizeof line, "%s", text);
    for (char *c = line; *c; c++)
        if (*c == ';' || (unsigned char)*c < ' ') *c = ',';
    memory_leave_libraries(); /* PMI-2's may call exit() */
    bootstrap->launcher->verbs->abort(bootstrap->launcher, code, line);
}

void bootstrap_finish(struct bootstrap *bootstrap)
{
    if (bootstrap->launcher) bootstrap->launcher->verbs->finish(bootstrap->launcher);
}

void bootstrap_release(struct bootstrap *bootstrap)
{
    if (bootstrap->launcher) bootstrap->launcher->verbs->release(bootstrap->launcher);
    free(bootstrap->places);
    bootstrap->launcher = NULL;
    bootstrap->places = NULL;
}
