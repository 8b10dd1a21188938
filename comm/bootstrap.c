/* bootstrap.c: where this process's rank comes from. See bootstrap.h.
 *
 * Local ranks get three variables from their supervisor; they count before anything else. Otherwise every launcher that
 * has left a rank and a number of ranks in the environment makes a claim (the table below). One rank everywhere is as
 * good as alone. With more, all claims must say the same, and one of them must be a launcher through which ranks can
 * meet; whoever is refused is told the srun line that works. */
#include "comm/bootstrap.h"

#include "comm/launcher.h"
#include "comm/slurm_step.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char local_rank_name[] = "ZTRAIN_LOCAL_RANK", local_world_name[] = "ZTRAIN_LOCAL_WORLD",
                  local_fd_name[] = "ZTRAIN_LOCAL_FD", secret_name[] = "ZTRAIN_JOB_SECRET";

/* A whole non-negative number, or -1. */
static int parse_number(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno || end == text || *end || value < 0 || value > INT_MAX ? -1 : (int)value;
}

/* A variable that is set and not empty, or NULL. */
static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* ---------------------------------------------------------------- claims */

enum claimant { CLAIM_TORCHRUN, CLAIM_PMI2, CLAIM_PMIX, CLAIM_SLURM, CLAIM_MPIRUN, CLAIM_COUNT };

/* What a launcher says. */
struct claim {
    const char *rank_name, *world_name; /* NULL: not set */
    int rank, world;                    /* -1: not set */
};

/* The variables; of several for the number of ranks the first that is set counts. */
static const struct claimant_row {
    const char *name, *rank, *worlds[2];
    bool (*counts)(void); /* NULL: always */
} claimants[] = {
    [CLAIM_TORCHRUN] = {"torchrun", "RANK", {"WORLD_SIZE"}, NULL},
    [CLAIM_PMI2] = {"srun --mpi=pmi2", "PMI_RANK", {"PMI_SIZE"}, NULL},
    [CLAIM_PMIX] = {"PMIx", "PMIX_RANK", {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"}, NULL},
    [CLAIM_SLURM] = {"srun", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, slurm_step_is_task},
    [CLAIM_MPIRUN] = {"mpirun", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, NULL},
};
_Static_assert(COUNT_OF(claimants) == CLAIM_COUNT, "every claimant has a row");

/* The line that starts `world` ranks with PMI-2, for hints. */
static const char *srun_line(int world, char line[96])
{
    const char *nodes = variable("SLURM_STEP_NUM_NODES");
    int n = nodes ? parse_number(nodes) : -1;
    if (n > 1 && n <= world && world % n == 0)
        snprintf(line, 96, "srun --mpi=pmi2 -N %d --ntasks-per-node=%d ztrain ...", n, world / n);
    else
        snprintf(line, 96, "srun --mpi=pmi2 -n %d ztrain ...", world);
    return line;
}

static bool claim_is_whole(const struct claim *claim)
{
    return claim->rank >= 0 && claim->world > 0;
}

/* "SLURM_PROCID=1, SLURM_NTASKS=2" */
static const char *claim_print(const struct claim *claim, char text[160])
{
    text[0] = 0;
    if (claim->rank_name)
        snprintf(text, 160, "%.32s=%.32s", claim->rank_name, getenv(claim->rank_name));
    if (claim->world_name)
        snprintf(text + strlen(text), 160 - strlen(text), "%s%.32s=%.32s", *text ? ", " : "", claim->world_name,
                 getenv(claim->world_name));
    return text;
}

static enum status read_claim(const struct claimant_row *row, struct claim *claim, struct error *err)
{
    *claim = (struct claim){.rank = -1, .world = -1};
    if (row->counts && !row->counts())
        return STATUS_OK;
    claim->rank_name = variable(row->rank) ? row->rank : NULL;
    for (size_t i = 0; i < COUNT_OF(row->worlds) && !claim->world_name; i++)
        claim->world_name = variable(row->worlds[i]) ? row->worlds[i] : NULL;
    if (!claim->rank_name && row == &claimants[CLAIM_PMIX])
        claim->world_name = NULL; /* the number is someone else's */
    if (claim->rank_name)
        claim->rank = parse_number(getenv(claim->rank_name));
    if (claim->world_name)
        claim->world = parse_number(getenv(claim->world_name));
    if ((claim->rank_name && claim->rank < 0) || (claim->world_name && claim->world < 1) ||
        (claim_is_whole(claim) && claim->rank >= claim->world)) {
        char text[160];
        error_set(err, STATUS_USAGE, "%s %s no rank and number of ranks", claim_print(claim, text),
                  claim->rank_name && claim->world_name ? "are" : "is");
        return error_hint(err, "unset what %s has not set itself, or start ranks on this machine with --local-gpus N",
                          row->name);
    }
    return STATUS_OK;
}

static enum status refuse_half(const struct claimant_row *row, const struct claim *claim, struct error *err)
{
    error_set(err, STATUS_USAGE, "%s is set and %s is not: half of an environment of %s",
              claim->rank_name ? claim->rank_name : claim->world_name, claim->rank_name ? row->worlds[0] : row->rank,
              row->name);
    return error_hint(err, "unset it, or start ranks on this machine with --local-gpus N, on several with %s",
                      "srun --mpi=pmi2");
}

static enum status refuse_contradiction(const struct claim *a, const struct claim *b, struct error *err)
{
    char first[160], second[160], line[96];
    int world = a->world > b->world ? a->world : b->world;
    error_set(err, STATUS_USAGE, "the environment contradicts itself: %s, but %s", claim_print(a, first),
              claim_print(b, second));
    return error_hint(err, "unset those that are left over from elsewhere, then: %s", srun_line(world, line));
}

/* The variables of an enclosing step are inherited by the next one, which may be one without PMI. */
static enum status check_pmi_step(int world, struct error *err)
{
    const char *pmi = variable("PMI_JOBID"), *job = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID");
    char own[64], line[96];
    if (!pmi || !job || !step || !slurm_step_is_task() || variable("SLURM_HET_SIZE"))
        return STATUS_OK; /* components of a heterogeneous job have numbers of their own */
    snprintf(own, sizeof own, "%s.%s", job, step);
    if (!strcmp(pmi, own))
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "PMI_FD is left over from another step: PMI_JOBID=%.32s, and this is %s", pmi, own);
    return error_hint(err, "start this one with %s", srun_line(world, line));
}

/* What the claims amount to. Alone: world 1. */
static enum status read_claims(struct claim claims[CLAIM_COUNT], struct claim *agreed, struct error *err)
{
    *agreed = (struct claim){.rank = 0, .world = 1};
    /* torchrun as a task of srun: its ranks inherit that task's variables, its own are the ones that count */
    int count = variable("TORCHELASTIC_RUN_ID") ? CLAIM_TORCHRUN + 1 : CLAIM_COUNT;
    for (int i = 0; i < CLAIM_COUNT; i++)
        claims[i] = (struct claim){.rank = -1, .world = -1};
    for (int i = 0; i < count; i++)
        TRY(read_claim(&claimants[i], &claims[i], err));
    const struct claim *whole = NULL;
    for (int i = 0; i < count; i++) {
        if (!claim_is_whole(&claims[i]))
            continue;
        if (whole && (whole->rank != claims[i].rank || whole->world != claims[i].world))
            return refuse_contradiction(whole, &claims[i], err);
        whole = &claims[i];
    }
    for (int i = 0; i < count; i++) {
        const struct claim *half = &claims[i];
        if (claim_is_whole(half) || (!half->rank_name && !half->world_name))
            continue;
        if (!whole)
            return refuse_half(&claimants[i], half, err);
        if (whole &&
            ((half->rank >= 0 && half->rank != whole->rank) || (half->world >= 0 && half->world != whole->world)))
            return refuse_contradiction(whole, half, err);
    }
    if (whole)
        *agreed = *whole;
    if (variable("PMI_FD") && count == CLAIM_COUNT && !claim_is_whole(&claims[CLAIM_PMI2])) {
        error_set(err, STATUS_USAGE, "PMI_FD is set and PMI_RANK and PMI_SIZE are not: half of an environment of srun");
        return error_hint(err, "unset PMI_FD, or start ranks with srun --mpi=pmi2");
    }
    return STATUS_OK;
}

/* ---------------------------------------------------------------- the choice */

static enum status parse_secret(unsigned char secret[32], struct error *err)
{
    const char *text = variable(secret_name);
    bool good = text && strlen(text) == 64;
    for (int i = 0; good && i < 64; i++)
        good = isxdigit((unsigned char)text[i]) != 0;
    if (!good) {
        error_set(err, STATUS_USAGE, "%s is not 64 hexadecimal digits", secret_name);
        return error_hint(err, "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' makes them");
    }
    for (int i = 0; i < 32; i++) {
        unsigned value;
        sscanf(text + 2 * i, "%2x", &value);
        secret[i] = (unsigned char)value;
    }
    return STATUS_OK;
}

/* Ranks that know each other from the environment only meet at a store of rank 0. */
static enum status choose_store(struct bootstrap *boot, enum claimant claimant, struct error *err)
{
    struct launcher_meeting meeting = {.several_nodes = true};
    const char *address = variable("MASTER_ADDR"), *port = variable("MASTER_PORT"), *name = claimants[claimant].name;
    char line[96];
    if (!variable(secret_name)) {
        error_set(err, STATUS_USAGE, "rank %d of %d started by %s: without PMI ranks need %s to trust each other",
                  boot->rank, boot->world, claimant == CLAIM_SLURM ? "srun --mpi=none" : name, secret_name);
        return error_hint(err, "%s; or set it on all ranks: export %s=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')",
                          srun_line(boot->world, line), secret_name);
    }
    TRY(parse_secret(meeting.secret, err));
    meeting.port = port ? parse_number(port) : 0;
    if (meeting.port < 0 || meeting.port > 65535 || (port && !meeting.port))
        return error_set(err, STATUS_USAGE, "MASTER_PORT=%s is not a port number (1 to 65535)", port);
    if (claimant == CLAIM_SLURM) {
        const char *nodes = variable("SLURM_STEP_NODELIST"), *count = variable("SLURM_STEP_NUM_NODES"),
                   *launch = variable("SLURM_LAUNCH_NODE_IPADDR");
        if (!address && nodes && !slurm_first_node(nodes, meeting.hosts[0], sizeof meeting.hosts[0]))
            return error_set(err, STATUS_USAGE, "SLURM_STEP_NODELIST='%.200s' is not a list of nodes", nodes);
        if (!address && launch)
            snprintf(meeting.hosts[1], sizeof meeting.hosts[1], "%s", launch);
        meeting.several_nodes = !count || parse_number(count) != 1;
    } else {
        const char *local_world = variable("LOCAL_WORLD_SIZE");
        meeting.several_nodes = !local_world || parse_number(local_world) != boot->world;
        if (variable("TORCHELASTIC_USE_AGENT_STORE") && !strcmp(getenv("TORCHELASTIC_USE_AGENT_STORE"), "True"))
            meeting.port = 0; /* torchrun itself listens at MASTER_PORT */
    }
    if (address)
        snprintf(meeting.hosts[0], sizeof meeting.hosts[0], "%s", address);
    if (!meeting.hosts[0][0] && !meeting.hosts[1][0]) {
        error_set(err, STATUS_USAGE, "rank %d of %d started by %s does not know where rank 0 is", boot->rank,
                  boot->world, name);
        return error_hint(err, "set MASTER_ADDR to rank 0's machine on all ranks, or use %s",
                          srun_line(boot->world, line));
    }
    snprintf(meeting.job_id, sizeof meeting.job_id, "%s", boot->job_id);
    return launcher_store_new(boot->rank, boot->world, &meeting, &boot->launcher, err);
}

static enum status choose_pmi2(struct bootstrap *boot, struct error *err)
{
    int fd = parse_number(getenv("PMI_FD"));
    char line[96];
    TRY(check_pmi_step(boot->world, err));
    /* newer libraries find slurmstepd again when a shell has closed the descriptor, if told to */
    if (!variable("PMI2_CONNECT_TO_SERVER") && (fd < 0 || fcntl(fd, F_GETFD) < 0)) {
        error_set(err, STATUS_USAGE, "PMI_FD=%s is no open descriptor", getenv("PMI_FD"));
        return error_hint(err,
                          "it is left over from another step, or a program between srun and ztrain closed it; "
                          "have srun start ztrain itself: %s",
                          srun_line(boot->world, line));
    }
    snprintf(boot->source, sizeof boot->source, "srun --mpi=pmi2");
    return launcher_pmi2_new(boot->rank, boot->world, &boot->launcher, err);
}

/* Chooses among claims that agree on several ranks. */
static enum status choose(struct bootstrap *boot, const struct claim claims[CLAIM_COUNT], struct error *err)
{
    char line[96];
    bool elastic = variable("TORCHELASTIC_RUN_ID") != NULL;
    if (boot->world > BOOTSTRAP_MAX_RANKS)
        return error_set(err, STATUS_USAGE, "%d ranks are more than the %d that are supported", boot->world,
                         BOOTSTRAP_MAX_RANKS);
    if (!elastic && variable("PMI_FD"))
        return choose_pmi2(boot, err);
    if (!elastic && claim_is_whole(&claims[CLAIM_PMIX]) && variable("PMIX_NAMESPACE")) {
        bool slurm = claim_is_whole(&claims[CLAIM_SLURM]);
        snprintf(boot->source, sizeof boot->source, "%s", slurm ? "srun --mpi=pmix" : "PMIx");
        return launcher_pmix_new(boot->rank, boot->world, &boot->launcher, err);
    }
    if (claim_is_whole(&claims[CLAIM_TORCHRUN]) && (elastic || !claim_is_whole(&claims[CLAIM_SLURM]))) {
        snprintf(boot->source, sizeof boot->source, "%s", elastic ? "torchrun" : "RANK and WORLD_SIZE");
        return choose_store(boot, CLAIM_TORCHRUN, err);
    }
    if (claim_is_whole(&claims[CLAIM_SLURM])) {
        snprintf(boot->source, sizeof boot->source, "srun --mpi=none");
        return choose_store(boot, CLAIM_SLURM, err);
    }
    int other = claim_is_whole(&claims[CLAIM_MPIRUN]) ? CLAIM_MPIRUN : CLAIM_PMI2;
    error_set(err, STATUS_USAGE, "rank %d of %d started by %s without PMI-2 or PMIx: not supported", boot->rank,
              boot->world, other == CLAIM_MPIRUN ? "mpirun" : "a launcher that sets PMI_RANK");
    return error_hint(err, "%s; or --local-gpus %d for ranks on this machine", srun_line(boot->world, line),
                      boot->world);
}

/* A name for this start of the job. A requeued job keeps its number. */
static void name_job(struct bootstrap *boot)
{
    const char *job = variable("SLURM_JOB_ID"), *step = slurm_step_is_task() ? variable("SLURM_STEP_ID") : NULL,
               *restart = variable("SLURM_RESTART_COUNT"), *elastic = variable("TORCHELASTIC_RUN_ID"),
               *port = variable("MASTER_PORT");
    boot->job_id[0] = 0;
    if (elastic)
        snprintf(boot->job_id, sizeof boot->job_id, "%.40s%s%.8s", elastic, port ? "." : "", port ? port : "");
    else if (job)
        snprintf(boot->job_id, sizeof boot->job_id, "%.20s%s%.12s%s%.10s", job, step ? "." : "", step ? step : "",
                 restart ? ".r" : "", restart ? restart : "");
    for (char *c = boot->job_id; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '.' && *c != '-')
            *c = '_';
}

enum status bootstrap_check_launcher(struct error *err)
{
    struct claim claims[CLAIM_COUNT], agreed;
    TRY(read_claims(claims, &agreed, err));
    if (agreed.world == 1)
        return STATUS_OK;
    char text[160];
    error_set(err, STATUS_USAGE, "rank %d of %d (%s) cannot have local ranks", agreed.rank, agreed.world,
              claim_print(&agreed, text));
    return error_hint(err, "start one task, with --local-gpus N for N ranks on this machine, or N tasks without it");
}

/* ---------------------------------------------------------------- local ranks */

bool bootstrap_is_local_rank(void)
{
    return getenv(local_rank_name) != NULL;
}

static enum status local_ranks(struct bootstrap *boot, struct error *err)
{
    const char *rank = getenv(local_rank_name), *world = getenv(local_world_name), *fd = getenv(local_fd_name);
    int r = rank ? parse_number(rank) : -1, n = world ? parse_number(world) : -1, shared = fd ? parse_number(fd) : -1;
    if (r < 0 || n < 1 || r >= n || n > BOOTSTRAP_MAX_RANKS || shared < 0 || fcntl(shared, F_GETFD) < 0) {
        error_set(err, STATUS_USAGE, "%s=%s, %s=%s, %s=%s do not describe a local rank", local_rank_name,
                  rank ? rank : "", local_world_name, world ? world : "", local_fd_name, fd ? fd : "");
        return error_hint(err, "--local-gpus N sets them; do not set them by hand");
    }
    fcntl(shared, F_SETFD, FD_CLOEXEC); /* what this rank executes is no rank */
    boot->rank = boot->local_rank = r;
    boot->world = boot->local_world = n;
    boot->shared_fd = shared;
    snprintf(boot->source, sizeof boot->source, "--local-gpus %d", n);
    return STATUS_OK;
}

void bootstrap_local_env(int rank, int world, int shared_fd)
{
    const struct {
        const char *name;
        int value;
    } variables[] = {{local_rank_name, rank}, {local_world_name, world}, {local_fd_name, shared_fd}};
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", variables[i].value);
        setenv(variables[i].name, text, 1);
    }
    fcntl(shared_fd, F_SETFD, 0);
    const char *pmi = variable("PMI_FD"); /* the supervisor's task of srun, not a local rank's */
    if (pmi && parse_number(pmi) > 2)
        fcntl(parse_number(pmi), F_SETFD, FD_CLOEXEC);
    unsetenv("PMI_FD");
}

/* ---------------------------------------------------------------- the machine */

void bootstrap_host(char *host, size_t size)
{
    ASSERT(size > 1);
    if (gethostname(host, size) != 0)
        snprintf(host, size, "localhost");
    host[size - 1] = 0;
}

int bootstrap_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

/* ---------------------------------------------------------------- */

enum status bootstrap_init(struct bootstrap *bootstrap, struct error *err)
{
    *bootstrap = (struct bootstrap){
        .world = 1, .local_world = 1, .num_nodes = 1, .source = "alone", .shared_fd = -1, .cores = bootstrap_cores()};
    bootstrap_host(bootstrap->host, sizeof bootstrap->host);
    name_job(bootstrap);
    if (getenv(local_rank_name) || getenv(local_world_name) || getenv(local_fd_name))
        return local_ranks(bootstrap, err);
    struct claim claims[CLAIM_COUNT], agreed;
    TRY(read_claims(claims, &agreed, err));
    bootstrap->rank = agreed.rank;
    bootstrap->world = agreed.world;
    return agreed.world > 1 ? choose(bootstrap, claims, err) : STATUS_OK;
}
