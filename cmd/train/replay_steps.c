/* SPDX-License-Identifier: Apache-2.0 */
/* replay_steps.c: `ztrain replay RUN --step S`: the steps from the newest checkpoint before S up to S once more,
 * compared with what the run has recorded: losses, norms, hashes, and the state in the checkpoint of step S.
 *
 * A replay is a resumed run without a folder of its own: no lock, log, metrics, flight record, evaluations or
 * checkpoints. So RUN may be read-only, or a run that trains meanwhile. */
#include "cmd/train/rank_main.h"

#include "ckpt/checkpoint_list.h"
#include "ckpt/state_hash.h"
#include "cmd/observe/integrity.h"
#include "core/metrics/metrics_reader.h"

/* What metrics.jsonl has of a step. */
enum { NUMBERS = 3 };
static const char *const number_names[NUMBERS] = {"loss", "grad_norm", "lr"};

struct replay_record {
    double numbers[NUMBERS]; /* NAN: null */
    uint64_t hash;           /* if hashed */
    bool known, hashed;
};

struct replay {
    char checkpoint[FS_PATH_MAX]; /* to begin from */
    int64_t from, step;           /* its step; the last one */
    int world_before, world;      /* that wrote it; that has computed the steps, or 0: not all on one number of ranks */
    struct {
        char name[CHECKPOINT_NAME_MAX]; /* of the checkpoint after `step`; "": none has hashes to compare */
        int states;
        uint64_t hashes[STATE_KIND_COUNT];
    } end;
    int64_t extent;                /* of records: step - from, or fewer while they are read */
    struct replay_record *records; /* (extent) of the steps after the checkpoint; owned */
};

void replay_free(struct replay *replay)
{
    if (replay) free(replay->records);
    free(replay);
}

static struct replay_record *replay_record_of(const struct replay *replay, int64_t step)
{
    return step > replay->from && step <= replay->from + replay->extent ? &replay->records[step - replay->from - 1]
                                                                        : NULL;
}

/* ---- rank 0: what there is ----------------------------------------------- */

/* The newest entry first. *later: the last one that is not before the replay's last step; NULL: none. */
static enum status replay_choose(struct replay *replay, const char *dir, const struct checkpoint_list *list,
                                 const struct checkpoint_entry **later, struct error *err)
{
    int64_t oldest = -1;
    *later = NULL;
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        char path[FS_PATH_MAX];
        if (!entry->ok) { /* its step may be unknown */
            log_warn("checkpoint %s is passed over: %s", entry->name, entry->damage);
            continue;
        }
        oldest = entry->position.step;
        if (entry->position.step >= replay->step) {
            *later = entry;
            continue;
        }
        TRY(fs_join(path, dir, entry->name, STATUS_CHECKPOINT, err));
        RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
        struct error damage;
        if (checkpoint_open(path, true, &checkpoint, &damage) != STATUS_OK) { /* as a resume of a run folder does */
            log_warn("checkpoint %s is passed over: %s", entry->name, damage.text);
            continue;
        }
        snprintf(replay->checkpoint, sizeof replay->checkpoint, "%s", path);
        replay->from = checkpoint->position.step;
        replay->world_before = replay->world = checkpoint->world;
        if (replay->from < replay->step) return STATUS_OK;
    }
    error_set(err, STATUS_CHECKPOINT, "'%s' has no valid checkpoint of a step before %" PRId64, dir, replay->step);
    if (oldest < replay->step) return STATUS_CHECKPOINT;
    return error_hint(err, "its oldest one is of step %" PRId64 "; checkpoint.keep_every_steps keeps some for good",
                      oldest);
}

static enum status replay_find_checkpoints(struct run *run, const char *dir, struct error *err)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list list = {0};
    RELEASED(checkpoint_drop) struct checkpoint *after = NULL;
    struct replay *replay = run->replay;
    const struct checkpoint_entry *later;
    char path[FS_PATH_MAX];
    struct error unread;
    TRY(checkpoint_list_init(&list, dir, false, err));
    TRY(replay_choose(replay, dir, &list, &later, err));
    if (!later) return STATUS_OK;
    TRY(fs_join(path, dir, later->name, STATUS_CHECKPOINT, err));
    if (checkpoint_open(path, false, &after, &unread) != STATUS_OK) return STATUS_OK;
    /* of the first checkpoint after the steps: its ranks have computed them; of the last step's, the hashes */
    const int64_t virtual_ranks = run->spec->train.virtual_ranks;
    const bool same = virtual_ranks ? after->virtual_ranks == virtual_ranks
                                    : !after->virtual_ranks && after->world == run->boot->world;
    replay->world = after->world;
    if (after->position.step != replay->step) return STATUS_OK;
    if (!after->hashed || !same) {
        log_info("the state of checkpoint %s is not compared: it %s", later->name,
                 after->hashed ? "was written on another number of ranks" : "has no hashes");
        return STATUS_OK;
    }
    snprintf(replay->end.name, sizeof replay->end.name, "%s", later->name);
    replay->end.states = after->num_states;
    memcpy(replay->end.hashes, after->hashes, sizeof replay->end.hashes);
    return STATUS_OK;
}

/* Takes memory for the records up to this step: not before a line shows that the run has come so far. */
static void replay_extend(struct replay *replay, int64_t step)
{
    const int64_t extent = step - replay->from, more = extent - replay->extent;
    if (more <= 0) return;
    replay->records = memory_resize(replay->records, (size_t)extent * sizeof *replay->records);
    memset(replay->records + replay->extent, 0, (size_t)more * sizeof *replay->records);
    replay->extent = extent;
}

/* Of several lines of a step the last counts. Sets replay->world: a resume's line, else the next checkpoint, has it. */
static void replay_read_lines(struct replay *replay, struct metrics_reader *line)
{
    const int after = replay->world;
    int ranks = replay->world_before;
    bool first = true;
    while (metrics_reader_next(line)) {
        if (line->object && line->step >= replay->from && json_object_get(line->object, "resumed_from"))
            ranks = (int)json_integer_value(json_object_get(line->object, "ranks"));
        if (!line->object || !json_object_get(line->object, "loss")) continue;
        if (line->step <= replay->from || line->step > replay->step) continue;
        replay_extend(replay, line->step);
        struct replay_record *record = replay_record_of(replay, line->step);
        const char *digits = json_string_value(json_object_get(line->object, "hash"));
        *record = (struct replay_record){.known = true};
        for (int i = 0; i < NUMBERS; i++) {
            const json_t *value = json_object_get(line->object, number_names[i]);
            record->numbers[i] = json_is_number(value) ? json_number_value(value) : NAN;
        }
        record->hashed = digits && hash_digits_parse(digits, &record->hash);
        const int world = ranks ? ranks : after;
        replay->world = first || replay->world == world ? world : 0;
        first = false;
    }
}

static enum status replay_read_records(struct replay *replay, const char *path, struct error *err)
{
    RELEASED(metrics_reader_close) struct metrics_reader line = {0};
    TRY(metrics_reader_open(&line, path, err));
    replay_read_lines(replay, &line);
    TRY(metrics_reader_check(&line, err));
    const struct replay_record *last = replay_record_of(replay, replay->step);
    if (!*replay->end.name && !(last && last->known))
        return error_set(err, STATUS_USAGE,
                         "--step %" PRId64 ": '%s' has no line of this step, so there is nothing to compare with",
                         replay->step, path);
    replay_extend(replay, replay->step);
    return STATUS_OK;
}

/* Without virtual ranks the bits follow from the number of ranks. */
static enum status replay_check_world(const struct run *run, struct error *err)
{
    const struct replay *replay = run->replay;
    if (run->spec->train.virtual_ranks || replay->world == run->boot->world) return STATUS_OK;
    if (!replay->world) {
        error_set(err, STATUS_USAGE, "steps %" PRId64 " to %" PRId64 " were not all computed on one number of ranks",
                  replay->from + 1, replay->step);
        return error_hint(err, "only a run with train.virtual_ranks has the same bits on other numbers");
    }
    error_set(err, STATUS_USAGE, "the run cannot be replayed on %d rank%s (%s): these steps were computed on %d rank%s",
              run->boot->world, PLURAL(run->boot->world), run->boot->source, replay->world, PLURAL(replay->world));
    return error_hint(err, "--local-gpus %d; only a run with train.virtual_ranks has the same bits on other numbers",
                      replay->world);
}

static enum status replay_look(struct run *run, struct error *err)
{
    char checkpoints[FS_PATH_MAX], metrics[FS_PATH_MAX];
    TRY(fs_join(checkpoints, run->home.path, "checkpoints", STATUS_CHECKPOINT, err));
    TRY(fs_join(metrics, run->home.path, "metrics.jsonl", STATUS_CHECKPOINT, err));
    TRY(replay_find_checkpoints(run, checkpoints, err));
    TRY(replay_read_records(run->replay, metrics, err));
    return replay_check_world(run, err);
}

/* ---- all ranks ----------------------------------------------------------- */

enum status replay_open(struct run *run, struct error *err)
{
    enum status status = STATUS_OK;
    struct replay *replay = run->replay = memory_zeroed(1, sizeof *replay);
    replay->step = run->options->replay_step;
    run->home.start = RUN_RESUMED;
    const int n = snprintf(run->home.path, sizeof run->home.path, "%s", run->options->replay);
    if (n < 0 || (size_t)n >= sizeof run->home.path)
        status =
            error_set(err, STATUS_USAGE, "the path of the run is longer than %zu bytes", sizeof run->home.path - 1);
    else if (run->boot->rank == 0)
        status = replay_look(run, err);
    TRY(run_agree(run, status, err));
    struct replay_record *records = replay->records;
    TRY(comm_broadcast(run->comm, replay, sizeof *replay, 0, err));
    const size_t count = (size_t)(replay->step - replay->from);
    replay->records = records ? records : memory_zeroed(count, sizeof *records);
    TRY(comm_broadcast(run->comm, replay->records, count * sizeof *records, 0, err));
    run->resume = replay->checkpoint;
    run_folder_init(&run->folder, &run->home);
    run->spec->checkpoint.decoupled = SPEC_OFF;
    run->spec->comms_logger.enabled = run->spec->flops_profiler.enabled = false;
    return STATUS_OK;
}

enum status replay_begin(const struct run *run, struct error *err)
{
    const struct replay *replay = run->replay;
    if (replay->step > run->engine.total_steps)
        return error_set(err, STATUS_USAGE, "--step %" PRId64 ": the run has %" PRId64 " steps", replay->step,
                         run->engine.total_steps);
    if (run->boot->rank != 0) return STATUS_OK;
    char before[32] = "";
    if (replay->from + 1 < replay->step) snprintf(before, sizeof before, "s %" PRId64 " to", replay->from + 1);
    log_info("replays step%s %" PRId64 " from %s; nothing is written", before, replay->step, replay->checkpoint);
    log_info("%8s  %-18s %-18s %-16s  %s", "step", "loss", "grad_norm", "hash", "record");
    return STATUS_OK;
}

bool replay_wants_hash(const struct run *run, int64_t step)
{
    const struct replay_record *record = replay_record_of(run->replay, step);
    return record && record->hashed;
}

static enum status replay_differs(const struct run *run, int64_t step, const char *what, const char *now,
                                  const char *recorded, struct error *err)
{
    return error_set(err, STATUS_DIVERGED,
                     "step %" PRId64 " differs from the run's record: %s is %s in the replay, and %s in '%s'", step,
                     what, now, recorded, run->home.path);
}

enum status replay_compare_step(const struct run *run, const struct step_metrics *m, struct error *err)
{
    const struct replay_record *record = replay_record_of(run->replay, m->step);
    const double now[NUMBERS] = {m->loss, m->grad_norm, m->lr}; /* the rate differs if the schedule is another now */
    enum status status = STATUS_OK;
    for (int i = 0; i < NUMBERS && record->known && status == STATUS_OK; i++) {
        char texts[2][32]; /* metrics.jsonl has all bits of a number, but no NaN and no infinity */
        if (isfinite(now[i]) ? now[i] == record->numbers[i] : !isfinite(record->numbers[i])) continue;
        snprintf(texts[0], sizeof texts[0], "%.17g", now[i]);
        snprintf(texts[1], sizeof texts[1], "%.17g", record->numbers[i]);
        status = replay_differs(run, m->step, number_names[i], texts[0], texts[1], err);
    }
    if (record->hashed && status == STATUS_OK && m->hash != record->hash)
        status = replay_differs(run, m->step, "the hash of the parameters", hash_digits(m->hash).text,
                                hash_digits(record->hash).text, err);
    if (run->boot->rank == 0)
        log_info("%8" PRId64 "  %-18.9g %-18.9g %-16s  %s", m->step, m->loss, m->grad_norm,
                 m->hashed ? hash_digits(m->hash).text : "-",
                 status != STATUS_OK ? "differs"
                 : record->known     ? "same"
                                     : "none");
    return status;
}

enum status replay_finish(struct run *run, struct error *err)
{
    const struct replay *replay = run->replay;
    uint64_t hashes[STATE_KIND_COUNT];
    enum status status = STATUS_OK;
    ASSERT(run->position.step == replay->step);
    const int states = *replay->end.name ? replay->end.states : 0, own = zero_slices(run->engine.zero).count;
    if (states && states != own)
        status = error_set(err, STATUS_DIVERGED, "checkpoint %s has %d kinds of state, and the replay %d",
                           replay->end.name, states, own);
    else if (states)
        TRY(run_hash_state(run, states, hashes, err));
    for (int s = 0; s < states && status == STATUS_OK; s++) {
        char what[CHECKPOINT_NAME_MAX + 64];
        snprintf(what, sizeof what, "the hash of %s after it (checkpoint %s)", state_hash_name((enum state_kind)s),
                 replay->end.name);
        if (hashes[s] != replay->end.hashes[s])
            status = replay_differs(run, replay->step, what, hash_digits(hashes[s]).text,
                                    hash_digits(replay->end.hashes[s]).text, err);
    }
    TRY(run_agree(run, status, err));
    if (run->boot->rank != 0) return STATUS_OK;
    const int64_t count = replay->step - replay->from;
    int64_t known = 0, hashed = 0;
    char texts[64] = "", state[CHECKPOINT_NAME_MAX + 64] = "";
    for (int64_t i = 0; i < count; i++) {
        known += replay->records[i].known;
        hashed += replay->records[i].hashed;
    }
    if (hashed)
        snprintf(texts, sizeof texts, ", %" PRId64 " hash%s of the parameters", hashed, hashed == 1 ? "" : "es");
    if (*replay->end.name) snprintf(state, sizeof state, ", the state of checkpoint %s", replay->end.name);
    log_info("the replay is the same as the record: %" PRId64 " of %" PRId64 " step%s%s%s", known, count, PLURAL(count),
             texts, state);
    return STATUS_OK;
}
