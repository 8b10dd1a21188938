/* SPDX-License-Identifier: Apache-2.0 */
/* bootstrap.c: where this process's rank comes from: variables of a supervisor, else claims of launchers
 * (launcher_environment.h). With several ranks one of the claims must come from a launcher through which they can meet;
 * a refusal shows the srun line that works. */
#include "comm/launch/bootstrap.h"

#include "comm/launch/launcher.h"
#include "comm/launch/launcher_environment.h"

#include <sodium.h>

static const char local_rank_name[] = "ZTRAIN_LOCAL_RANK", local_world_name[] = "ZTRAIN_LOCAL_WORLD",
                  local_fd_name[] = "ZTRAIN_LOCAL_FD", secret_name[] = "ZTRAIN_JOB_SECRET";

/* A step inherits the variables of an enclosing one. own: this step's name. */
enum { STEP_NAME = 64 };
static bool bootstrap_pmi_left_over(char own[STEP_NAME])
{
    const char *pmi = env_variable("PMI_JOBID"), *job = env_variable("SLURM_JOB_ID"),
               *step = env_variable("SLURM_STEP_ID");
    if (!pmi || !job || !step || !slurm_step_is_task() || env_variable("SLURM_HET_SIZE"))
        return false; /* the components of a heterogeneous job have their own numbers */
    snprintf(own, STEP_NAME, "%s.%s", job, step);
    return strcmp(pmi, own) != 0;
}

/* A refused environment: if PMI_FD certainly belongs to this step, its other ranks can be told (bootstrap_refuse()). */
static void find_way_to_refuse(struct bootstrap *boot)
{
    const char *fd = env_variable("PMI_FD"), *rank = env_variable("PMI_RANK"), *size = env_variable("PMI_SIZE");
    char own[STEP_NAME];
    struct stat info;
    if (!fd || !rank || !size || !slurm_step_is_task() || bootstrap_pmi_left_over(own)) return;
    int r = env_number(rank), world = env_number(size), number = env_number(fd);
    if (r < 0 || r >= world || world > BOOTSTRAP_MAX_RANKS || number < 0 || fstat(number, &info) != 0 ||
        !S_ISSOCK(info.st_mode))
        return;
    boot->rank = r;
    boot->world = world;
    boot->unused_pmi_fd = number;
}

/* ---- the choice ---------------------------------------------------------- */

/* Ranks without PMI meet at a key-value store of rank 0. */
static enum status choose_store(struct bootstrap *boot, enum claimant claimant, struct error *err)
{
    struct launcher_rendezvous rendezvous = {.several_nodes = true};
    const char *address = env_variable("MASTER_ADDR"), *port = env_variable("MASTER_PORT"),
               *name = claimant == CLAIM_SLURM ? "srun" : "torchrun";
    char line[SRUN_LINE];
    if (!env_variable(secret_name)) {
        error_set(err, STATUS_USAGE, "%s started rank %d of %d, but %s is not set",
                  claimant == CLAIM_SLURM ? "srun --mpi=none" : name, boot->rank, boot->world, secret_name);
        return error_hint(err, "%s; or set it on all ranks: export %s=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')",
                          srun_line(boot->world, line), secret_name);
    }
    const char *secret = getenv(secret_name);
    size_t length;
    if (strlen(secret) != 64 || sodium_hex2bin(rendezvous.secret, 32, secret, 64, NULL, &length, NULL) ||
        length != 32) {
        error_set(err, STATUS_USAGE, "%s is not 64 hexadecimal digits", secret_name);
        return error_hint(err, "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' prints such digits");
    }
    rendezvous.port = port ? env_number(port) : 0;
    if (rendezvous.port < 0 || rendezvous.port > 65535 || (port && !rendezvous.port))
        return error_set(
            err, STATUS_USAGE,
            "MASTER_PORT=%s is not a port number (1 to 65535); hint: choose one that is free on rank 0's machine, "
            "the same for all ranks",
            port);
    if (claimant == CLAIM_SLURM) {
        const char *nodes = env_variable("SLURM_STEP_NODELIST"), *count = env_variable("SLURM_STEP_NUM_NODES"),
                   *launch = env_variable("SLURM_LAUNCH_NODE_IPADDR");
        if (!address && nodes && !slurm_first_node(nodes, rendezvous.hosts[0], sizeof rendezvous.hosts[0]))
            return error_set(err, STATUS_USAGE, "SLURM_STEP_NODELIST='%.200s' is not a list of nodes", nodes);
        if (!address && launch)
            snprintf(rendezvous.hosts[*rendezvous.hosts[0] != 0], sizeof rendezvous.hosts[1], "%s", launch);
        rendezvous.several_nodes = !count || env_number(count) != 1;
    } else {
        const char *local_world = env_variable("LOCAL_WORLD_SIZE");
        rendezvous.several_nodes = !local_world || env_number(local_world) != boot->world;
        if (env_variable("TORCHELASTIC_USE_AGENT_STORE") && !strcmp(getenv("TORCHELASTIC_USE_AGENT_STORE"), "True"))
            rendezvous.port = 0; /* torchrun itself listens at MASTER_PORT */
    }
    if (address) snprintf(rendezvous.hosts[0], sizeof rendezvous.hosts[0], "%s", address);
    if (!rendezvous.hosts[0][0]) {
        error_set(err, STATUS_USAGE, "rank %d of %d started by %s does not know where rank 0 is", boot->rank,
                  boot->world, name);
        return error_hint(err, "set MASTER_ADDR to rank 0's machine on all ranks, or use %s",
                          srun_line(boot->world, line));
    }
    snprintf(rendezvous.job_id, sizeof rendezvous.job_id, "%s", boot->job_id);
    return launcher_store_new(boot->rank, boot->world, &rendezvous, &boot->launcher, err);
}

static enum status choose_pmi2(struct bootstrap *boot, struct error *err)
{
    int fd = env_number(getenv("PMI_FD"));
    char own[STEP_NAME], line[SRUN_LINE];
    if (bootstrap_pmi_left_over(own)) {
        error_set(err, STATUS_USAGE, "PMI_FD is left over from another step: PMI_JOBID=%.32s, and this is %s",
                  getenv("PMI_JOBID"), own);
        return error_hint(err, "start this one with %s; for a single rank: unset PMI_FD PMI_RANK PMI_SIZE PMI_JOBID",
                          srun_line(boot->world, line));
    }
    /* newer libraries can connect to slurmstepd again */
    if (!env_variable("PMI2_CONNECT_TO_SERVER") && (fd < 0 || fcntl(fd, F_GETFD) < 0)) {
        error_set(err, STATUS_USAGE, "PMI_FD=%s is not an open descriptor", getenv("PMI_FD"));
        return error_hint(err,
                          "a program between srun and ztrain closed it: have srun start ztrain itself, %s; if it is "
                          "left over from another step: unset PMI_FD PMI_RANK PMI_SIZE",
                          srun_line(boot->world, line));
    }
    snprintf(boot->source, sizeof boot->source, "srun --mpi=pmi2");
    enum status status = launcher_pmi2_new(boot->rank, boot->world, &boot->launcher, err);
    if (status != STATUS_OK && fd >= 0)
        boot->unused_pmi_fd = fd; /* the other ranks wait for this one at its other end */
    return status;
}

static enum status choose_launcher(struct bootstrap *boot, const struct claims *claims, struct error *err)
{
    char line[SRUN_LINE];
    bool elastic = claims->elastic, slurm = claim_is_whole(&claims->of[CLAIM_SLURM]);
    if (boot->world > BOOTSTRAP_MAX_RANKS)
        return error_set(err, STATUS_USAGE, "%d ranks are more than the %d that ztrain supports", boot->world,
                         BOOTSTRAP_MAX_RANKS);
    if (!elastic && env_variable("PMI_FD")) return choose_pmi2(boot, err);
    if (claims->of[CLAIM_PMIX].rank_name) {
        snprintf(boot->source, sizeof boot->source, "%s", slurm ? "srun --mpi=pmix" : "PMIx");
        return launcher_pmix_new(boot->rank, boot->world, &boot->launcher, err);
    }
    if (claim_is_whole(&claims->of[CLAIM_TORCHRUN]) && (elastic || !slurm)) {
        snprintf(boot->source, sizeof boot->source, "%s", elastic ? "torchrun" : "RANK and WORLD_SIZE");
        return choose_store(boot, CLAIM_TORCHRUN, err);
    }
    if (slurm) {
        snprintf(boot->source, sizeof boot->source, "srun --mpi=none");
        return choose_store(boot, CLAIM_SLURM, err);
    }
    int other = claim_is_whole(&claims->of[CLAIM_MPIRUN]) ? CLAIM_MPIRUN : CLAIM_PMI2;
    error_set(err, STATUS_USAGE, "rank %d of %d started by %s without PMI-2 or PMIx: not supported", boot->rank,
              boot->world, other == CLAIM_MPIRUN ? "mpirun" : "a launcher that sets PMI_RANK");
    return error_hint(err, "%s; or --local-gpus %d for ranks on this machine", srun_line(boot->world, line),
                      boot->world);
}

/* A requeued job keeps its number, so its restarts are counted. */
static void name_job(struct bootstrap *boot)
{
    const char *job = env_variable("SLURM_JOB_ID"), *step = slurm_step_is_task() ? env_variable("SLURM_STEP_ID") : NULL,
               *restart = env_variable("SLURM_RESTART_COUNT"), *elastic = env_variable("TORCHELASTIC_RUN_ID"),
               *port = env_variable("MASTER_PORT");
    boot->job_id[0] = 0;
    if (elastic)
        snprintf(boot->job_id, sizeof boot->job_id, "%.40s%s%.8s", elastic, port ? "." : "", port ? port : "");
    else if (job)
        snprintf(boot->job_id, sizeof boot->job_id, "%.20s%s%.12s%s%.10s", job, step ? "." : "", step ? step : "",
                 restart ? ".r" : "", restart ? restart : "");
    for (char *c = boot->job_id; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '.' && *c != '-') *c = '_';
}

enum status bootstrap_check_launcher(struct error *err)
{
    struct claims claims;
    TRY(claims_read(&claims, err));
    if (claims.world == 1) return STATUS_OK;
    char text[CLAIM_TEXT];
    int whose = 0;
    while (whose < CLAIM_COUNT - 1 && !claim_is_whole(&claims.of[whose])) whose++;
    error_set(err, STATUS_USAGE, "rank %d of %d (%s) cannot have local ranks", claims.rank, claims.world,
              claim_print(&claims.of[whose], text));
    return error_hint(err, "start one task, with --local-gpus N for N ranks on this machine, or N tasks without it");
}

enum status bootstrap_check_alone(struct error *err)
{
    static const char *const names[] = {"SLURM_NTASKS", "SLURM_JOB_NUM_NODES"};
    const char *name = NULL;
    char line[SRUN_LINE];
    int most = 1;
    if (!env_variable("SLURM_JOB_ID") || slurm_step_is_set() || env_variable("WORLD_SIZE")) return STATUS_OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = env_variable(names[i]);
        if (value && env_number(value) > most) {
            most = env_number(value);
            name = names[i];
        }
    }
    if (!name) return STATUS_OK;
    error_set(err, STATUS_USAGE, "job %.32s has %s=%d, but ztrain was started without srun and would be its only rank",
              getenv("SLURM_JOB_ID"), name, most);
    return error_hint(err, "%s; to train with one rank on this node: --local-gpus 1", srun_line(most, line));
}

/* ---- the machine --------------------------------------------------------- */

void bootstrap_host(char *host, size_t size)
{
    ASSERT(size > 1);
    if (gethostname(host, size) != 0) snprintf(host, size, "localhost");
    host[size - 1] = 0;
}

/* Processors of this node that Slurm has given to the job (the affinity mask may have more). */
static int bootstrap_slurm_cores(void)
{
    const char *job = env_variable("SLURM_JOB_ID"), *here = env_variable("SLURM_CPUS_ON_NODE");
    return job && here && env_number(here) > 0 ? env_number(here) : INT_MAX;
}

int bootstrap_cores(void)
{
    return (int)min64(machine_cores(), bootstrap_slurm_cores());
}

int bootstrap_threads(int cores, int ranks)
{
    char first[16];
    const char *given = env_variable("OMP_NUM_THREADS"); /* "4" or, for nested teams, "4,2" */
    if (given) {
        snprintf(first, sizeof first, "%.*s", (int)strcspn(given, ","), given);
        if (env_number(first) > 0) return env_number(first);
    }
    return ranks <= 1 ? cores : cores > ranks ? cores / ranks : 1;
}

/* ---- local ranks --------------------------------------------------------- */

bool bootstrap_is_local_rank(void)
{
    return getenv(local_rank_name) != NULL;
}

static enum status local_ranks(struct bootstrap *boot, struct error *err)
{
    const char *rank = getenv(local_rank_name), *world = getenv(local_world_name), *fd = getenv(local_fd_name);
    int r = rank ? env_number(rank) : -1, n = world ? env_number(world) : -1, shared = fd ? env_number(fd) : -1;
    if (r < 0 || n < 1 || r >= n || n > BOOTSTRAP_MAX_RANKS || shared < 0 || fcntl(shared, F_GETFD) < 0) {
        error_set(err, STATUS_USAGE, "%s=%s, %s=%s, %s=%s do not describe a local rank", local_rank_name,
                  rank ? rank : "", local_world_name, world ? world : "", local_fd_name, fd ? fd : "");
        return error_hint(err, "--local-gpus N sets them; do not set them by hand");
    }
    fcntl(shared, F_SETFD, FD_CLOEXEC); /* programs that this rank executes are not ranks */
    boot->rank = boot->local_rank = r;
    boot->world = boot->local_world = n;
    boot->shared_fd = shared;
    /* the supervisor's cores may be more than Slurm has given */
    boot->cores = (int)min64(machine_cores(), max64(bootstrap_slurm_cores() / n, 1));
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
        if (setenv(variables[i].name, text, 1) != 0) memory_exhausted(0);
    }
    fcntl(shared_fd, F_SETFD, 0);
    const char *pmi = env_variable("PMI_FD"); /* the supervisor's, which is srun's task */
    if (pmi && env_number(pmi) > 2) fcntl(env_number(pmi), F_SETFD, FD_CLOEXEC);
    unsetenv("PMI_FD");
}

/* ---- the start ----------------------------------------------------------- */

enum status bootstrap_init(struct bootstrap *bootstrap, struct error *err)
{
    *bootstrap = (struct bootstrap){.world = 1,
                                    .local_world = 1,
                                    .num_nodes = 1,
                                    .source = "alone",
                                    .shared_fd = -1,
                                    .unused_pmi_fd = -1,
                                    .cores = bootstrap_cores()};
    bootstrap_host(bootstrap->host, sizeof bootstrap->host);
    name_job(bootstrap);
    if (getenv(local_rank_name) || getenv(local_world_name) || getenv(local_fd_name))
        return local_ranks(bootstrap, err);
    struct claims claims;
    enum status status = claims_read(&claims, err);
    bootstrap->rank = claims.rank;
    bootstrap->world = claims.world;
    if (status != STATUS_OK) find_way_to_refuse(bootstrap);
    /* a single rank meets no others: PMI_FD may be closed */
    if (status == STATUS_OK && claims.world > 1) status = choose_launcher(bootstrap, &claims, err);
    if (status != STATUS_OK)
        error_blame(err, bootstrap->rank, FAILURE_NONE); /* its variables differ between ranks by their numbers */
    return status;
}
