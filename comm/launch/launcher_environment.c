/* SPDX-License-Identifier: Apache-2.0 */
/* launcher_environment.c: see launcher_environment.h. A launcher that gives a process its rank and the number of ranks
 * makes a claim. All claims must agree, and half a claim must not contradict a whole one. Other variables are evidence
 * for a least number of ranks (it is the third task of its node). A process that would train with fewer is refused: its
 * siblings would write the same run folder. */
#include "comm/launch/launcher_environment.h"

/* ---- Slurm's steps ------------------------------------------------------- */

const char *env_variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

int env_number(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno || end == text || *end || value < 0 || value > INT_MAX ? -1 : (int)value;
}

#define SLURM_MAX_NORMAL_STEP_ID UINT64_C(0xfffffff0) /* batch, extern and interactive steps have larger numbers */

static bool slurm_step_normal(const char *step)
{
    char *end;
    unsigned long long id = strtoull(step, &end, 10);
    return end != step && !*end && id < SLURM_MAX_NORMAL_STEP_ID;
}

bool slurm_step_is_task(void)
{
    const char *step = env_variable("SLURM_STEP_ID");
    return step && env_variable("SLURM_PROCID") && slurm_step_normal(step);
}

bool slurm_step_is_set(void)
{
    const char *step = env_variable("SLURM_STEP_ID");
    return step ? slurm_step_normal(step)
                : env_variable("SLURM_STEP_NUM_TASKS") || env_variable("SLURM_STEP_TASKS_PER_NODE");
}

int slurm_task_count(const char *list)
{
    long long total = 0;
    for (const char *at = list;;) {
        char *end;
        long long tasks = strtoll(at, &end, 10), nodes = 1;
        if (end == at || tasks < 0 || tasks > INT32_MAX) return -1;
        if (!strncmp(end, "(x", 2)) {
            at = end + 2;
            nodes = strtoll(at, &end, 10);
            if (end == at || *end++ != ')' || nodes < 1 || nodes > INT32_MAX) return -1;
        }
        total += tasks * nodes;
        if (total > INT32_MAX || (*end && *end != ',')) return -1;
        if (!*end) return (int)total;
        at = end + 1;
    }
}

bool slurm_first_node(const char *list, char *out, size_t size)
{
    size_t length = 0;
    const char *at = list;
    while (*at && *at != ',') {
        const char *end;
        if (*at == '[') { /* the first number of the first range, up to '-', ',' or ']' */
            at++;
            size_t digits = strspn(at, "0123456789");
            end = strchr(at, ']');
            if (!digits || !end || !strchr("-,]", at[digits])) return false;
            if (length + digits >= size) return false;
            memcpy(out + length, at, digits);
            length += digits;
            at = end + 1;
        } else {
            if (!(isalnum((unsigned char)*at) || strchr("-_.", *at)) || length + 1 >= size) return false;
            out[length++] = *at++;
        }
    }
    if (!length) return false;
    out[length] = 0;
    return true;
}

/* ---- the variables ------------------------------------------------------- */

/* Of several variables for the number of ranks, the first that is set counts. */
static const struct claimant_row {
    const char *name, *rank, *worlds[2];
    bool (*counts)(void); /* NULL: always */
} claimants[] = {
    [CLAIM_TORCHRUN] = {"torchrun", "RANK", {"WORLD_SIZE"}, NULL},
    [CLAIM_PMI2] = {"srun --mpi=pmi2", "PMI_RANK", {"PMI_SIZE"}, NULL},
    [CLAIM_PMIX] = {"PMIx", "PMIX_RANK", {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"}, NULL},
    [CLAIM_SLURM] = {"srun", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, slurm_step_is_set},
    [CLAIM_MPIRUN] = {"mpirun", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, NULL},
};
_Static_assert(COUNT_OF(claimants) == CLAIM_COUNT, "every claimant has a row");

/* text: a rank's number, or those of this node's ranks, "2,3" */
static int beyond_last_rank(const char *text)
{
    const char *last = strrchr(text, ',');
    const int index = env_number(last ? last + 1 : text);
    return index < 0 || index == INT_MAX ? -1 : index + 1;
}

/* `ranks` returns the least number of ranks that the variable implies; -1: none. */
static const struct evidence_row {
    const char *name;
    int (*ranks)(const char *text);
    bool slurm; /* a step's: without meaning in batch scripts and interactive shells */
} evidence[] = {
    {"SLURM_STEP_TASKS_PER_NODE", slurm_task_count, true},
    {"SLURM_STEP_NUM_NODES", env_number, true},
    {"SLURM_GTIDS", beyond_last_rank, true},
    {"SLURM_PROCID", beyond_last_rank, true},
    {"SLURM_LOCALID", beyond_last_rank, true},
    {"SLURM_NODEID", beyond_last_rank, true},
    {"LOCAL_RANK", beyond_last_rank, false},
    {"LOCAL_WORLD_SIZE", env_number, false},
    {"GROUP_RANK", beyond_last_rank, false},
    {"GROUP_WORLD_SIZE", env_number, false},
    {"OMPI_COMM_WORLD_LOCAL_RANK", beyond_last_rank, false},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", env_number, false},
    {"MPI_LOCALRANKID", beyond_last_rank, false},
    {"MPI_LOCALNRANKS", env_number, false},
};

/* ---- small pieces -------------------------------------------------------- */

const char *srun_line(int world, char line[SRUN_LINE])
{
    const char *nodes = env_variable("SLURM_STEP_NUM_NODES");
    if (!nodes) /* in a batch script */
        nodes = env_variable("SLURM_JOB_NUM_NODES");
    int n = nodes ? env_number(nodes) : -1;
    if (world < 2)
        snprintf(line, SRUN_LINE, "srun --mpi=pmi2 -n N ztrain ...");
    else if (n > 1 && n <= world && world % n == 0)
        snprintf(line, SRUN_LINE, "srun --mpi=pmi2 -N %d --ntasks-per-node=%d ztrain ...", n, world / n);
    else
        snprintf(line, SRUN_LINE, "srun --mpi=pmi2 -n %d ztrain ...", world);
    return line;
}

bool claim_is_whole(const struct claim *claim)
{
    return claim->rank >= 0 && claim->world > 0;
}

const char *claim_print(const struct claim *claim, char text[CLAIM_TEXT])
{
    text[0] = 0;
    if (claim->rank_name) snprintf(text, CLAIM_TEXT, "%.32s=%.32s", claim->rank_name, getenv(claim->rank_name));
    if (claim->world_name)
        snprintf(text + strlen(text), CLAIM_TEXT - strlen(text), "%s%.32s=%.32s", *text ? ", " : "", claim->world_name,
                 getenv(claim->world_name));
    return text;
}

/* ---- claims -------------------------------------------------------------- */

static enum status read_claim(const struct claimant_row *row, struct claim *claim, struct error *err)
{
    if (row->counts && !row->counts()) return STATUS_OK;
    claim->rank_name = env_variable(row->rank) ? row->rank : NULL;
    for (size_t i = 0; i < COUNT_OF(row->worlds) && !claim->world_name; i++)
        claim->world_name = env_variable(row->worlds[i]) ? row->worlds[i] : NULL;
    if (!claim->rank_name && row == &claimants[CLAIM_PMIX])
        claim->world_name = NULL; /* the number belongs to another launcher */
    if (claim->rank_name) claim->rank = env_number(getenv(claim->rank_name));
    if (claim->world_name) claim->world = env_number(getenv(claim->world_name));
    if ((claim->rank_name && claim->rank < 0) || (claim->world_name && claim->world < 1) ||
        (claim_is_whole(claim) && claim->rank >= claim->world)) {
        char text[CLAIM_TEXT];
        error_set(err, STATUS_USAGE, "%s %s not a rank and a number of ranks", claim_print(claim, text),
                  claim->rank_name && claim->world_name ? "are" : "is");
        return error_hint(
            err, "unset the variables that %s has not set itself, or start ranks on this machine with --local-gpus N",
            row->name);
    }
    return STATUS_OK;
}

static enum status refuse_half(const char *set, const char *missing, const char *whose, int world, struct error *err)
{
    char line[SRUN_LINE];
    error_set(err, STATUS_USAGE, "%s is set and %s is not: half of an environment of %s", set, missing, whose);
    return error_hint(err,
                      "unset it if it is left over from elsewhere; ranks are started with %s, or on this machine "
                      "with --local-gpus N",
                      srun_line(world, line));
}

static enum status refuse_contradiction(const struct claim *a, const struct claim *b, struct error *err)
{
    char first[CLAIM_TEXT], second[CLAIM_TEXT], line[SRUN_LINE];
    int world = a->world > b->world ? a->world : b->world;
    error_set(err, STATUS_USAGE, "the environment contradicts itself: %s, but %s", claim_print(a, first),
              claim_print(b, second));
    return error_hint(err, "unset those that are left over from elsewhere, then: %s", srun_line(world, line));
}

/* Whole claims must agree with each other, and halves with them. *whole: one of them, or NULL. */
static enum status compare_claims(struct claims *claims, const struct claim **whole, struct error *err)
{
    *whole = NULL;
    for (const struct claim *claim = claims->of; claim < claims->of + CLAIM_COUNT; claim++) {
        if (!claim_is_whole(claim)) continue;
        if (*whole && ((*whole)->rank != claim->rank || (*whole)->world != claim->world))
            return refuse_contradiction(*whole, claim, err);
        *whole = claim;
    }
    for (int i = 0; i < CLAIM_COUNT; i++) {
        const struct claim *half = &claims->of[i];
        if (claim_is_whole(half) || (!half->rank_name && !half->world_name)) continue;
        /* a step of one task is one rank, whatever its number is */
        if (!*whole && i == CLAIM_SLURM && !half->rank_name && half->world == 1) continue;
        if (!*whole)
            return refuse_half(half->rank_name ? half->rank_name : half->world_name,
                               half->rank_name ? claimants[i].worlds[0] : claimants[i].rank, claimants[i].name,
                               half->world, err);
        if ((half->rank >= 0 && half->rank != (*whole)->rank) || (half->world >= 0 && half->world != (*whole)->world))
            return refuse_contradiction(*whole, half, err);
    }
    return STATUS_OK;
}

/* ---- evidence ------------------------------------------------------------ */

/* The largest number of ranks in the evidence, and its variable (NULL: none). */
static int most_env_evidence(const char **name)
{
    int most = 0;
    *name = NULL;
    const char *step = env_variable("SLURM_STEP_ID");
    const bool script = step && !slurm_step_normal(step);
    for (size_t i = 0; i < COUNT_OF(evidence); i++) {
        const char *value = env_variable(evidence[i].name);
        if (!value || (evidence[i].slurm && script)) continue;
        int ranks = evidence[i].ranks(value);
        if (ranks > most) {
            most = ranks;
            *name = evidence[i].name;
        }
    }
    return most;
}

static enum status check_evidence(const struct claims *claims, const struct claim *whole, struct error *err)
{
    const char *name;
    char text[CLAIM_TEXT], other[CLAIM_TEXT], line[SRUN_LINE];
    int ranks = most_env_evidence(&name);
    if (ranks <= claims->world) return STATUS_OK;
    if (whole)
        error_set(err, STATUS_USAGE, "the environment contradicts itself: %s, so there are at least %d ranks, but %s",
                  claim_print(&(struct claim){.rank_name = name}, text), ranks, claim_print(whole, other));
    else
        error_set(
            err, STATUS_USAGE,
            "%s implies at least %d ranks, but no variable gives the rank of this process: half of an environment of a "
            "launcher",
            claim_print(&(struct claim){.rank_name = name}, text), ranks);
    return error_hint(err, "unset it if it is left over from elsewhere; ranks are started with %s",
                      srun_line(ranks, line));
}

/* Checks that all variables are there that srun --mpi=pmi2 sets together. */
static enum status check_pmi2(const struct claims *claims, struct error *err)
{
    static const char *const names[] = {"PMI_FD", "PMI_RANK", "PMI_SIZE"};
    char set[32] = "", missing[32] = "", line[SRUN_LINE];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *list = env_variable(names[i]) ? set : missing;
        snprintf(list + strlen(list), sizeof set - strlen(list), "%s%s", *list ? " and " : "", names[i]);
    }
    bool fd = env_variable("PMI_FD") != NULL, step = claim_is_whole(&claims->of[CLAIM_SLURM]);
    if (!*set || !*missing || (!fd && (claims->world == 1 || !step)) || env_variable("PMI2_CONNECT_TO_SERVER"))
        return STATUS_OK;
    bool one_set = !strchr(set, ' '), one_missing = !strchr(missing, ' ');
    error_set(err, STATUS_USAGE, "%s %s set and %s %s not: half of an environment of srun --mpi=pmi2", set,
              one_set ? "is" : "are", missing, one_missing ? "is" : "are");
    return error_hint(err,
                      "if %s left over from another step: unset %s; else a program between srun and ztrain has "
                      "removed the rest: %s",
                      one_set ? "it is" : "they are", "PMI_FD PMI_RANK PMI_SIZE", srun_line(claims->world, line));
}

/* ---- reading all of them ------------------------------------------------- */

static enum status check_claims(struct claims *claims, struct error *err)
{
    const struct claim *whole;
    for (int i = 0; i < CLAIM_COUNT; i++)
        if (!claims->elastic || i == CLAIM_TORCHRUN) TRY(read_claim(&claimants[i], &claims->of[i], err));
    TRY(compare_claims(claims, &whole, err));
    claims->rank = whole ? whole->rank : 0;
    claims->world = whole ? whole->world : 1;
    if (claims->elastic) return STATUS_OK;
    TRY(check_evidence(claims, whole, err));
    if (!whole && slurm_step_is_set() && !env_variable("SLURM_PROCID") && claims->of[CLAIM_SLURM].world != 1)
        return refuse_half("SLURM_STEP_ID", "SLURM_PROCID", "srun", claims->world, err);
    /* the tasks of srun's step ("2(x2),1" are 5) must be as many as it claims */
    const struct claim *slurm = &claims->of[CLAIM_SLURM];
    const char *tasks = env_variable("SLURM_STEP_TASKS_PER_NODE");
    const struct claim other = {
        .rank_name = "SLURM_STEP_TASKS_PER_NODE", .rank = -1, .world = tasks ? slurm_task_count(tasks) : -1};
    if (claim_is_whole(slurm) && other.world > 0 && other.world != slurm->world && !env_variable("SLURM_HET_SIZE"))
        return refuse_contradiction(slurm, &other, err);
    TRY(check_pmi2(claims, err));
    /* srun --mpi=pmix and mpirun set these two together */
    const bool space = env_variable("PMIX_NAMESPACE"), rank = env_variable("PMIX_RANK");
    if (space == rank || claims->world == 1 || env_variable("PMI_FD")) return STATUS_OK;
    return refuse_half(space ? "PMIX_NAMESPACE" : "PMIX_RANK", space ? "PMIX_RANK" : "PMIX_NAMESPACE", "PMIx",
                       claims->world, err);
}

enum status claims_read(struct claims *claims, struct error *err)
{
    /* torchrun may be a task of srun; its variables count */
    *claims = (struct claims){.world = 1, .elastic = env_variable("TORCHELASTIC_RUN_ID") != NULL};
    for (int i = 0; i < CLAIM_COUNT; i++) claims->of[i] = (struct claim){.rank = -1, .world = -1};
    enum status status = check_claims(claims, err);
    if (status == STATUS_OK) return STATUS_OK;
    const char *name;
    int ranks = claims->elastic ? 1 : most_env_evidence(&name);
    claims->world = ranks > 1 ? ranks : 1;
    for (int i = 0; i < CLAIM_COUNT; i++) {
        if (claims->of[i].world > claims->world) claims->world = claims->of[i].world;
        if (claims->of[i].rank > claims->rank) claims->rank = claims->of[i].rank;
    }
    if (claims->rank >= claims->world) claims->world = claims->rank < INT_MAX ? claims->rank + 1 : INT_MAX;
    return status;
}
