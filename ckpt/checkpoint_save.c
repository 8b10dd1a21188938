/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_save.c: writing a checkpoint so that a kill at any instant leaves a valid one. docs/checkpoint-format.md
 * lists the steps, and says what a kill after each leaves and what becomes of folders whose names are in the way.
 *
 * Before step 7 only folders that are never read are deleted. UNIQUE is new for each save: a rank of an earlier start
 * that was cut off may still write into its own .tmp folder.
 *
 * After each part (folder, rank files, publication) all ranks return the error of the lowest rank that has one. Rank 0
 * then removes .tmp-…. A failure after step 5 is a warning.
 *
 * Before steps 1, 5, 6 and 7 rank 0 checks that the run folder still belongs to this run (writer->still_owner); else
 * the save ends with that error on all ranks. If the disk does not answer, steps 1 and 5 fail, and steps 6 and 7 are
 * left out: checkpoint_save_tidy() does them at the next start. */
#include "ckpt/checkpoint_retention.h"
#include "ckpt/checkpoint_save_cache.h"
#include "ckpt/state_hash.h"
#include "comm/agree.h"
#include "core/faults.h"

#include <sys/random.h>

enum { SAVING_UNIQUE_BYTES = 17 }; /* 16 hexadecimal digits */

struct saving_report {
    struct told_outcome told;
    struct rankfile_facts facts;
    char unique[SAVING_UNIQUE_BYTES]; /* rank 0's */
    int64_t bytes;                    /* rank 0's, after publication */
};
_Static_assert(sizeof(struct saving_report) <= COMM_EXCHANGE_MAX, "a report must fit in one exchange");

/* The parts of a save; the ranks exchange their outcomes after each. */
enum saving_part { PART_FOLDER, PART_RANK_FILES, PART_PUBLICATION, PARTS };

struct checkpoint_saving {
    const struct checkpoint_writer *writer;
    struct train_position position;
    struct state_slices slices;
    enum saving_part part; /* to be done next; PARTS: all are done */
    enum status status;
    struct error err;                  /* of this rank's share of `part` */
    struct rankfile_facts facts;       /* of this rank's file */
    struct state_hash hash;            /* of its contents */
    uint64_t hashes[STATE_KIND_COUNT]; /* of all ranks' */
    struct saving_report *reports;     /* [world] owned: of the part before */
    bool made, complete;               /* the folder `tmp` was made by this rank; the checkpoint is published */
    int rank, world, num_states;
    char name[64], unique[SAVING_UNIQUE_BYTES];
    char tmp[FS_PATH_MAX], final[FS_PATH_MAX]; /* folders */
    bool exchanged;                            /* the folder under `tmp` now was under `final` before */
    struct manifest_file *files;               /* [world + the cache's files] owned; rank 0 */
    int num_files;
    int64_t bytes;  /* of all files and the manifest; rank 0 */
    bool peer_lost; /* others may still write under tmp: the next save sweeps it away */
};

static enum status finish_part(struct checkpoint_saving *save, struct error *err)
{
    struct saving_report own = {.bytes = save->bytes, .facts = save->facts};
    int lowest;
    *err = save->err;
    memcpy(own.unique, save->unique, sizeof own.unique);
    enum status status = agree_telling(save->writer->comm, save->writer->host, &own.told, sizeof own, save->reports,
                                       save->status, &lowest, err);
    save->peer_lost = status != STATUS_OK && lowest < 0;
    if (lowest < 0 || save->world == 1) return status;
    error_prefix(err, "rank %d on %s", lowest, save->reports[lowest].told.host);
    return error_blame(err, lowest, FAILURE_NONE);
}

/* ---- writing files ------------------------------------------------------- */

static enum status name_folders(struct checkpoint_saving *save, struct error *err)
{
    char hidden[sizeof save->name + SAVING_UNIQUE_BYTES + 8];
    snprintf(hidden, sizeof hidden, ".tmp-%s-%s", save->name, save->unique);
    TRY(fs_join(save->tmp, save->writer->dir, hidden, STATUS_CHECKPOINT, err));
    return fs_join(save->final, save->writer->dir, save->name, STATUS_CHECKPOINT, err);
}

/* Another job may have taken over the run folder while this one was cut off or stopped. */
static enum status still_owner(const struct checkpoint_saving *save, struct error *err)
{
    const struct checkpoint_writer *writer = save->writer;
    return writer->still_owner ? writer->still_owner(writer->owner, err) : STATUS_OK;
}

/* Step 1. */
static enum status make_folder(struct checkpoint_saving *save, struct error *err)
{
    const char *dir = save->writer->dir;
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return checkpoint_io_error("name a folder in", dir, err);
    snprintf(save->unique, sizeof save->unique, "%016" PRIx64, random);
    TRY(name_folders(save, err));
    TRY(still_owner(save, err)); /* in a run folder that was moved away nothing is made again */
    if (!fs_is_dir(dir)) {
        char parent[FS_PATH_MAX];
        if (io_mkdir(dir, 0777) && errno != EEXIST) return checkpoint_io_error("make the folder", dir, err);
        TRY(fs_join(parent, dir, "..", STATUS_CHECKPOINT, err));
        TRY(fs_sync_dir(parent, STATUS_CHECKPOINT, err));
    }
    checkpoint_sweep(dir);
    save->made = FAULT(MKDIR, io_mkdir(save->tmp, 0777)) == 0;
    return save->made ? STATUS_OK : checkpoint_io_error("make the folder", save->tmp, err);
}

/* Step 2. */
static enum status write_rank_file(struct checkpoint_saving *save, struct error *err)
{
    const struct checkpoint_writer *writer = save->writer;
    const struct state_slices slices = save->slices;
    char name[MANIFEST_NAME_MAX], path[FS_PATH_MAX];
    struct rankfile_shape shape = {.rank = save->rank,
                                   .world = save->world,
                                   .num_states = slices.count,
                                   .num_units = writer->layout->num_trained,
                                   .slice = writer->layout->slice,
                                   .state_name = state_kind_names,
                                   .moments = writer->layout->room};
    manifest_rank_name(save->rank, name);
    TRY(fs_join(path, save->tmp, name, STATUS_CHECKPOINT, err));
    {
        RELEASED(rankfile_writer_drop) struct rankfile_writer *file = NULL;
        TRY(rankfile_writer_new(path, &shape, writer->compression_level, &file, err));
        for (int s = 0; s < slices.count; s++)
            for (int unit = 0; unit < writer->layout->num_trained; unit++) {
                float *own;
                TRY(state_slice(slices, SLICE_READ, (enum state_kind)s, unit, &own, err));
                TRY(rankfile_writer_slice(file, s, unit, own, err));
                state_hash_add(&save->hash, (enum state_kind)s, unit, own);
            }
        TRY(rankfile_writer_finish(file, &save->facts, err));
    }
    if (!writer->keep.last) return STATUS_OK;
    RELEASED(rankfile_drop) struct rankfile *written = NULL;
    TRY(checkpoint_reads_from_disk(path, err));
    enum status status = rankfile_open(path, &shape, &save->facts, &written, err);
    if (status == STATUS_OK) status = rankfile_verify(written, err);
    if (status != STATUS_OK) error_prefix(err, "reading the new checkpoint back");
    return status;
}

/* ---- publication --------------------------------------------------------- */

/* Collects the rank files as the ranks reported them; this rank must see them as well. */
static enum status collect_rank_files(struct checkpoint_saving *save, struct error *err)
{
    const struct saving_report *reports = save->reports;
    for (int rank = 0; rank < save->world; rank++) {
        struct manifest_file *file = &save->files[save->num_files++];
        char path[FS_PATH_MAX];
        struct stat info;
        manifest_rank_name(rank, file->name);
        file->bytes = reports[rank].facts.bytes;
        file->num_frames = reports[rank].facts.num_frames;
        file->checksum = reports[rank].facts.index_checksum;
        save->bytes += file->bytes;
        TRY(fs_join(path, save->tmp, file->name, STATUS_CHECKPOINT, err));
        int unseen = io_stat(path, &info) ? errno : 0;
        if (unseen && unseen != ENOENT)
            return error_system(err, STATUS_CHECKPOINT, unseen, "cannot look at '%s'", path);
        if (unseen || info.st_size != file->bytes) {
            error_set(err, STATUS_CHECKPOINT, "rank %d on %s wrote '%s', but %s does not see it", rank,
                      reports[rank].told.host, path, reports[0].told.host);
            error_hint(err, "all ranks must see the same run folder (run.dir on a shared file system)");
            return error_blame(err, rank, FAILURE_NONE);
        }
    }
    return STATUS_OK;
}

/* Step 3. */
static enum status copy_tokenizer(struct checkpoint_saving *save, struct error *err)
{
    const struct checkpoint_save_cache *cache = save->writer->cache;
    for (int i = 0; i < cache->num_files; i++) {
        const struct tokenizer_file *from = &cache->files[i];
        struct manifest_file *file = &save->files[save->num_files++];
        TRY(checkpoint_put_file(save->tmp, from->name, from->data, from->bytes, err));
        snprintf(file->name, sizeof file->name, "%s", from->name);
        file->bytes = (int64_t)from->bytes;
        file->num_frames = 0;
        file->checksum = from->checksum;
        save->bytes += file->bytes;
    }
    return STATUS_OK;
}

/* Step 4. */
static enum status write_manifest(struct checkpoint_saving *save, struct error *err)
{
    OWNED char *text = NULL;
    size_t bytes;
    TRY(manifest_encode(save->writer, &save->position, save->num_states, save->hashes, save->files, save->num_files,
                        &text, &bytes, err));
    TRY(checkpoint_put_file(save->tmp, MANIFEST_NAME, text, bytes, err));
    save->bytes += (int64_t)bytes;
    return fs_sync_dir(save->tmp, STATUS_CHECKPOINT, err);
}

static enum status read_back(const struct checkpoint_saving *save, struct error *err)
{
    char path[FS_PATH_MAX];
    RELEASED(manifest_drop) struct manifest *manifest = NULL;
    TRY(fs_join(path, save->tmp, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    TRY(checkpoint_reads_from_disk(path, err));
    TRY(manifest_load(save->tmp, false, &manifest, err));
    for (int i = save->world; i < save->num_files; i++) {
        const struct manifest_file *file = &save->files[i];
        TRY(fs_join(path, save->tmp, file->name, STATUS_CHECKPOINT, err));
        TRY(checkpoint_reads_from_disk(path, err));
        OWNED char *data = NULL;
        TRY(manifest_read_file(save->tmp, file, &data, err));
    }
    return STATUS_OK;
}

/* Step 5. Every byte of an old folder of that name is verified before its fate is decided. */
static enum status give_name(struct checkpoint_saving *save, struct error *err)
{
    const char *dir = save->writer->dir;
    char aside[FS_PATH_MAX] = "";
    bool replaces = false;
    struct stat info;
    int absent = io_lstat(save->final, &info) ? errno : 0;
    if (absent && absent != ENOENT)
        return error_system(err, STATUS_CHECKPOINT, absent, "cannot look at '%s'", save->final);
    if (!absent) {
        struct checkpoint *old;
        struct error damage;
        enum status found = checkpoint_open(save->final, true, &old, &damage);
        if (found == STATUS_OK) {
            replaces = old->position.step == save->position.step;
            checkpoint_close(old);
        } else if (found != STATUS_CHECKPOINT || error_is_unreadable(&damage)) {
            *err = damage;
            return found;
        }
        if (replaces) {
            save->exchanged = FAULT(RENAME, io_rename2(save->tmp, save->final, RENAME_EXCHANGE)) == 0;
            if (save->exchanged) return fs_sync_dir(dir, STATUS_CHECKPOINT, err);
            if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
                return checkpoint_io_error("replace", save->final, err);
        }
        TRY(checkpoint_move_aside(dir, save->name,
                                  replaces             ? "replaced"
                                  : found == STATUS_OK ? "aside"
                                                       : "damaged",
                                  aside, err));
        if (found != STATUS_OK)
            log_warn("a damaged checkpoint had this name; it is now '%s' (%s)", aside, damage.text);
        else if (!replaces)
            log_warn("'%s' was a checkpoint of another step; it is now '%s'", save->final, aside);
    }
    if (FAULT(RENAME, io_rename(save->tmp, save->final))) {
        checkpoint_io_error("publish the checkpoint as", save->final, err);
        if (replaces && io_rename(aside, save->final)) /* it still counts under its other name */
            log_warn("cannot rename '%s' back to '%s': %s", aside, save->final, strerror(errno));
        return STATUS_CHECKPOINT;
    }
    return fs_sync_dir(dir, STATUS_CHECKPOINT, err);
}

/* still_owner() once the checkpoint is complete. *ours: false, with a warning, if the owner could not be read. */
static enum status owner_of_published(const struct checkpoint_saving *save, bool *ours, struct error *err)
{
    struct error unread;
    enum status status = still_owner(save, &unread);
    *ours = status == STATUS_OK;
    if (status == STATUS_OK) return STATUS_OK;
    if (!error_is_transient(&unread)) {
        *err = unread;
        return status;
    }
    log_warn("%s; the checkpoint itself is complete", unread.text);
    return STATUS_OK;
}

static enum status publish(struct checkpoint_saving *save, struct error *err)
{
    const struct checkpoint_writer *writer = save->writer;
    enum status status;
    save->files = memory_zeroed((size_t)save->world + TOKENIZER_FILES_MAX, sizeof *save->files);
    TRY(collect_rank_files(save, err));
    TRY(copy_tokenizer(save, err));
    TRY(write_manifest(save, err));
    if (writer->keep.last && (status = read_back(save, err)) != STATUS_OK) {
        error_prefix(err, "reading the new checkpoint back");
        return status;
    }
    TRY(still_owner(save, err));
    TRY(give_name(save, err));
    bool ours;
    TRY(owner_of_published(save, &ours, err));
    if (ours) checkpoint_point(writer->dir, "latest", save->name); /* step 6 */
    TRY(owner_of_published(save, &ours, err));
    if (!ours) return STATUS_OK;
    struct error leftover; /* step 7 */
    if (save->exchanged && checkpoint_remove_tree(save->tmp, &leftover) != STATUS_OK) log_warn("%s", leftover.text);
    checkpoint_retention_apply(writer->dir, save->name, &save->position, &writer->keep, &writer->cache->known);
    return STATUS_OK;
}

/* ---- save ---------------------------------------------------------------- */

void checkpoint_saving_new(const struct checkpoint_writer *writer, const struct train_position *position,
                           struct state_slices slices, struct checkpoint_saving **saving)
{
    struct checkpoint_saving *save = memory_zeroed(1, sizeof *save);
    *save = (struct checkpoint_saving){
        .writer = writer,
        .position = *position,
        .slices = slices,
        .rank = comm_rank(writer->comm),
        .world = comm_world(writer->comm),
        .num_states = slices.count,
    };
    ASSERT(save->rank != 0 || writer->cache);
    ASSERT(writer->layout->world == save->world && writer->layout->num_units == writer->table->num_units);
    ASSERT(position->step >= 0 && position->epoch >= position->epoch_end);
    save->reports = memory_zeroed((size_t)save->world, sizeof *save->reports);
    state_hash_init(&save->hash, writer->layout, save->rank, slices.count);
    checkpoint_name(position, save->name);
    *saving = save;
}

void checkpoint_saving_work(struct checkpoint_saving *save)
{
    const bool leads = save->rank == 0;
    save->status = STATUS_OK;
    if (save->part == PART_FOLDER && leads)
        save->status = make_folder(save, &save->err);
    else if (save->part == PART_RANK_FILES)
        save->status = write_rank_file(save, &save->err);
    else if (save->part == PART_PUBLICATION && leads)
        save->status = publish(save, &save->err);
}

enum status checkpoint_saving_agree(struct checkpoint_saving *save, bool *complete, struct error *err)
{
    *complete = false;
    TRY(finish_part(save, err));
    if (save->part == PART_FOLDER && save->rank != 0) {
        memcpy(save->unique, save->reports[0].unique, sizeof save->unique);
        TRY(name_folders(save, err)); /* the name is as long as rank 0's, so this cannot fail on this rank alone */
    }
    if (save->part == PART_RANK_FILES) {
        const enum status status = state_hash_join(&save->hash, save->writer->comm, save->hashes, err);
        save->peer_lost = status != STATUS_OK;
        TRY(status);
    }
    save->part++;
    *complete = save->complete = save->part == PARTS;
    return STATUS_OK;
}

const char *checkpoint_saving_name(const struct checkpoint_saving *save)
{
    return save->name;
}

int64_t checkpoint_saving_bytes(const struct checkpoint_saving *save)
{
    return save->reports[0].bytes;
}

void checkpoint_saving_free(struct checkpoint_saving *save, bool clean)
{
    struct error leftover;
    if (!save) return;
    if (clean && save->made && !save->complete && !save->peer_lost &&
        checkpoint_remove_tree(save->tmp, &leftover) != STATUS_OK)
        log_warn("%s", leftover.text);
    state_hash_release(&save->hash);
    free(save->files);
    free(save->reports);
    free(save);
}

void checkpoint_save_tidy(struct checkpoint_save_cache *cache, const char *dir, const char *name,
                          const struct train_position *position, const struct checkpoint_keep *keep)
{
    checkpoint_sweep(dir);
    checkpoint_point(dir, "latest", name);
    checkpoint_retention_apply(dir, name, position, keep, &cache->known);
}
