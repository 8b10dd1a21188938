/* checkpoint_save.c: writing a checkpoint so that a kill at any instant leaves a valid one.
 *
 *   step  who      what                                         if all stops right after it
 *   ----  -------  -------------------------------------------  --------------------------------------------------
 *   1     rank 0   sweeps away .tmp-*, makes .tmp-NAME-UNIQUE   an empty .tmp folder, which is never read
 *   2     all      write rank-NNNNN.zst there, fsync; with      a .tmp folder, which is never read
 *                  keep_last each reads its file back
 *   3     rank 0   writes tokenizer files, fsync                same
 *   4     rank 0   writes manifest.json, fsync; fsync .tmp-…;   same: it is complete, but has no name yet
 *                  with keep_last it reads these files back
 *   5     rank 0   rename .tmp-… to NAME, fsync the folder      the new checkpoint counts; `latest` is stale, which
 *                                                               matters to people only: ztrain reads the folders
 *   6     rank 0   moves `latest` (made aside, then renamed)    all is there; older ones wait to be deleted
 *   7     rank 0   deletes the oldest                           a half-deleted .tmp folder; the next save sweeps it
 *                  (checkpoint_retention.h): renamed to
 *                  .tmp-delete-X first
 *
 * UNIQUE is new for each save: a rank of an earlier start that was cut off may still write into its .tmp folder, and
 * may prevent its deletion (a warning), but it does not disturb this save. The manifest is decoded from its bytes and
 * compared with its sources before it is written (manifest_encode()). Files are read back from the disk if the file
 * system drops its cached pages (posix_fadvise).
 *
 * Until step 5 the previous checkpoints and `latest` are untouched; before step 7 only folders that are never read are
 * deleted. The order on disk is that of the table, because each step is fsynced before the next.
 *
 * If NAME exists already (a run resumed from further back, a damaged checkpoint written again):
 *   valid, same step   the two folders change places in one call (renameat2), and the old one, now .tmp-…, is deleted;
 *                      if the file system cannot do that, the old one becomes NAME.replaced-1, which still counts as a
 *                      checkpoint, the new one is renamed to NAME, and NAME.replaced-1 is deleted
 *   damaged            it becomes NAME.damaged-1
 *   valid, other step  it becomes NAME.aside-1
 * Checkpoints of later steps belong to a course that this run has left by resuming from further back: they become
 * X.aside-1 as well, because a resume of the run folder would take them for the newest.
 *
 * A save is an object (struct checkpoint_saving). checkpoint_saving_work() does a rank's share of a part and uses no
 * communicator, so it may run in a thread beside the training; checkpoint_saving_agree() is the exchange after it, in
 * the thread that communicates. checkpoint_save() calls both in turn. cmd/train/background_save.h has them apart.
 *
 * A failure of one rank is a failure of all: after each of the three parts (folder, rank files, publication) the ranks
 * exchange their outcomes, and all return the error of the lowest rank that has one. Rank 0 then removes .tmp-…. A
 * failure after step 5 (`latest`, deleting) is a warning, because the checkpoint is complete.
 *
 * Before each of steps 5, 6 and 7 rank 0 checks that the run folder still belongs to this run (writer->still_owner). If
 * another job has taken it over, the save ends with that error on all ranks. If the disk does not answer, step 5 fails,
 * and steps 6 and 7 are left out. */
#include "ckpt/checkpoint.h"

#include "ckpt/checkpoint_retention.h"
#include "ckpt/checkpoint_save_cache.h"
#include "ckpt/manifest.h"
#include "ckpt/rankfile.h"
#include "comm/agree.h"
#include "core/faults.h"
#include "core/fsutil.h"
#include "core/io.h"
#include "core/liveness.h"
#include "core/log.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

enum { UNIQUE_BYTES = 17 }; /* 16 hexadecimal digits */

/* What ranks exchange after a part. */
struct report {
    struct outcome outcome;
    int cause; /* error_cause() */
    char host[256], text[1536];
    struct rankfile_facts facts;
    char unique[UNIQUE_BYTES]; /* rank 0's */
    int64_t bytes;             /* rank 0's, after publication */
};
_Static_assert(sizeof(struct report) <= COMM_EXCHANGE_MAX, "a report must fit in one exchange");

/* The parts of a save; the ranks exchange their outcomes after each. */
enum part { PART_FOLDER, PART_RANK_FILES, PART_PUBLICATION, PARTS };

/* One save on this rank. */
struct checkpoint_saving {
    const struct checkpoint_writer *writer;
    struct train_position position;
    struct state_slices slices;
    enum part part; /* to be done next; PARTS: all are done */
    enum status status;
    struct error err;            /* of this rank's share of `part` */
    struct rankfile_facts facts; /* of this rank's file */
    struct report *reports;      /* [world] owned: of the part before */
    bool made, complete;         /* the folder `tmp` was made by this rank; the checkpoint is published */
    int rank, world, num_states;
    char name[64], unique[UNIQUE_BYTES];
    char tmp[FS_PATH_MAX], final[FS_PATH_MAX]; /* folders */
    bool exchanged;                            /* the folder under `tmp` now was under `final` before */
    struct manifest_file *files;               /* [world + the cache's files] owned; rank 0 */
    int num_files;
    int64_t bytes;  /* of all files and the manifest; rank 0 */
    bool peer_lost; /* others may still write under tmp: the next save sweeps it away */
};

/* Exchanges the outcomes of a part. If it failed anywhere, every rank gets the error of the lowest rank that failed. */
static enum status finish_part(struct checkpoint_saving *save, struct error *err)
{
    struct report own = {.bytes = save->bytes, .facts = save->facts};
    enum status status = save->status;
    int lowest;
    *err = save->err;
    snprintf(own.host, sizeof own.host, "%s", save->writer->host ? save->writer->host : "");
    if (status != STATUS_OK) {
        own.cause = err->cause;
        snprintf(own.text, sizeof own.text, "%.1500s", err->text);
    }
    memcpy(own.unique, save->unique, sizeof own.unique);
    status = agree_with(save->writer->comm, &own.outcome, sizeof own, save->reports, status, &lowest, err);
    save->peer_lost = status != STATUS_OK && lowest < 0;
    if (lowest < 0)
        return status;
    error_set(err, status, "%s", save->reports[lowest].text);
    if (save->world > 1)
        error_prefix(err, "rank %d on %s", lowest, save->reports[lowest].host);
    error_cause(err, save->reports[lowest].cause);
    return status;
}

/* ---- writing files ------------------------------------------------------- */

static enum status io_error(const char *what, const char *path, struct error *err)
{
    int code = errno;
    error_set(err, STATUS_CHECKPOINT, "cannot %s '%s': %s", what, path, strerror(code));
    if (code == ENOSPC || code == EDQUOT)
        error_hint(err, "free space there, or keep fewer checkpoints (checkpoint.keep_last)");
    error_cause(err, code);
    return STATUS_CHECKPOINT;
}

/* Creates a file in the temporary folder with all of its bytes, and fsyncs it. */
static enum status put_file(const char *folder, const char *name, const void *data, size_t bytes, struct error *err)
{
    char path[FS_PATH_MAX];
    TRY(fs_join(path, folder, name, STATUS_CHECKPOINT, err));
    int fd = io_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return io_error("create", path, err);
    enum status status = fs_write(fd, path, data, bytes, STATUS_CHECKPOINT, NULL);
    if (status != STATUS_OK || fault_fsync(fd))
        status = io_error("write", path, err);
    if (io_close(fd) && status == STATUS_OK)
        status = io_error("write", path, err);
    liveness_tick();
    return status;
}

/* .tmp-NAME-UNIQUE: no rank of another start, cut off from this one, can write there. */
static enum status name_folders(struct checkpoint_saving *save, struct error *err)
{
    char hidden[sizeof save->name + UNIQUE_BYTES + 8];
    snprintf(hidden, sizeof hidden, ".tmp-%s-%s", save->name, save->unique);
    TRY(fs_join(save->tmp, save->writer->dir, hidden, STATUS_CHECKPOINT, err));
    return fs_join(save->final, save->writer->dir, save->name, STATUS_CHECKPOINT, err);
}

/* Step 1. */
static enum status make_folder(struct checkpoint_saving *save, struct error *err)
{
    const char *dir = save->writer->dir;
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return io_error("name a folder in", dir, err);
    snprintf(save->unique, sizeof save->unique, "%016" PRIx64, random);
    TRY(name_folders(save, err));
    if (!fs_is_dir(dir)) {
        char parent[FS_PATH_MAX];
        TRY(fs_mkdirs(dir, STATUS_CHECKPOINT, err));
        TRY(fs_join(parent, dir, "..", STATUS_CHECKPOINT, err));
        TRY(checkpoint_sync(parent, err));
    }
    checkpoint_sweep(dir);
    save->made = fault_mkdir(save->tmp, 0777) == 0;
    return save->made ? STATUS_OK : io_error("make the folder", save->tmp, err);
}

/* Drops the cached pages of a file that is on disk, so that the next read comes from there. If that does not work, the
 * read at least verifies the cached pages. */
static enum status read_from_disk(const char *path, struct error *err)
{
    int fd = io_open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return io_error("open", path, err);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    io_close(fd);
    return STATUS_OK;
}

/* With keep_last, older checkpoints are deleted only after every byte of the new one was read back. */
static enum status read_back_rank_file(const char *path, const struct rankfile_shape *shape,
                                       const struct rankfile_facts *facts, struct error *err)
{
    struct rankfile *file;
    TRY(read_from_disk(path, err));
    enum status status = rankfile_open(path, shape, facts, &file, err);
    if (status == STATUS_OK) {
        status = rankfile_verify(file, err);
        rankfile_close(file);
    }
    if (status != STATUS_OK)
        error_prefix(err, "reading the new checkpoint back");
    return status;
}

/* Step 2. */
static enum status write_rank_file(struct checkpoint_saving *save, struct error *err)
{
    const struct checkpoint_writer *writer = save->writer;
    const struct state_slices slices = save->slices;
    enum status status = STATUS_OK;
    struct rankfile_writer *file = NULL;
    char name[MANIFEST_NAME_MAX], path[FS_PATH_MAX];
    struct rankfile_shape shape = {.rank = save->rank,
                                   .world = save->world,
                                   .num_states = slices.count,
                                   .num_units = writer->layout->num_units,
                                   .slice = writer->layout->slice,
                                   .state_name = state_kind_names};
    manifest_rank_name(save->rank, name);
    TRY(fs_join(path, save->tmp, name, STATUS_CHECKPOINT, err));
    TRY(rankfile_writer_new(path, &shape, writer->compression_level, &file, err));
    for (int s = 0; s < slices.count; s++)
        for (int unit = 0; unit < writer->layout->num_units; unit++) {
            float *own;
            TRY_END(state_slice(slices, SLICE_READ, (enum state_kind)s, unit, &own, err));
            TRY_END(rankfile_writer_slice(file, s, unit, own, err));
        }
    TRY_END(rankfile_writer_finish(file, &save->facts, err));
end:
    rankfile_writer_free(file);
    if (status == STATUS_OK && writer->keep.last)
        status = read_back_rank_file(path, &shape, &save->facts, err);
    return status;
}

/* ---- publishing (rank 0) ------------------------------------------------- */

/* Collects the rank files as the ranks reported them; this rank must see them as well. */
static enum status collect_rank_files(struct checkpoint_saving *save, struct error *err)
{
    const struct report *reports = save->reports;
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
                      reports[rank].host, path, reports[0].host);
            error_hint(err, "all ranks must see the same run folder (run.dir on a shared file system)");
            return STATUS_CHECKPOINT;
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
        TRY(put_file(save->tmp, from->name, from->data, from->bytes, err));
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
    char *text;
    size_t bytes;
    TRY(manifest_encode(save->writer, &save->position, save->num_states, save->files, save->num_files, &text, &bytes,
                        err));
    enum status status = put_file(save->tmp, MANIFEST_NAME, text, bytes, err);
    free(text);
    TRY(status);
    save->bytes += (int64_t)bytes;
    return checkpoint_sync(save->tmp, err);
}

/* Reads the other files back, as read_back_rank_file() does with this rank's file. */
static enum status read_back(const struct checkpoint_saving *save, struct error *err)
{
    char path[FS_PATH_MAX], *data;
    size_t bytes;
    struct manifest *manifest;
    TRY(fs_join(path, save->tmp, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    TRY(read_from_disk(path, err));
    TRY(manifest_load(save->tmp, &manifest, err));
    manifest_free(manifest);
    for (int i = save->world; i < save->num_files; i++) {
        const struct manifest_file *file = &save->files[i];
        TRY(fs_join(path, save->tmp, file->name, STATUS_CHECKPOINT, err));
        TRY(read_from_disk(path, err));
        TRY(fs_read_file(path, (size_t)file->bytes, STATUS_CHECKPOINT, &data, &bytes, err));
        bool same = (int64_t)bytes == file->bytes && XXH3_64bits(data, bytes) == file->checksum;
        free(data);
        if (!same)
            return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged: it does not match its checksum", path);
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
            error_set(err, found, "%s", damage.text);
            error_cause(err, damage.cause);
            return found;
        }
        if (replaces) {
            save->exchanged = fault_rename(save->tmp, save->final, RENAME_EXCHANGE) == 0;
            if (save->exchanged)
                return checkpoint_sync(dir, err);
            if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
                return io_error("replace", save->final, err);
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
    if (fault_rename(save->tmp, save->final, 0)) {
        io_error("publish the checkpoint as", save->final, err);
        if (replaces && io_rename(aside, save->final)) /* it still counts under its other name */
            log_warn("cannot rename '%s' back to '%s': %s", aside, save->final, strerror(errno));
        return STATUS_CHECKPOINT;
    }
    return checkpoint_sync(dir, err);
}

/* Another job may have taken over the run folder while this one was cut off or stopped. */
static enum status still_owner(const struct checkpoint_saving *save, struct error *err)
{
    const struct checkpoint_writer *writer = save->writer;
    return writer->still_owner ? writer->still_owner(writer->owner, err) : STATUS_OK;
}

/* The same once the checkpoint is complete. *ours is false if the owner could not be read: only a warning by now. */
static enum status owner_of_published(const struct checkpoint_saving *save, bool *ours, struct error *err)
{
    struct error unread;
    enum status status = still_owner(save, &unread);
    *ours = status == STATUS_OK;
    if (status == STATUS_OK)
        return STATUS_OK;
    if (!error_is_transient(&unread)) {
        *err = unread;
        return status;
    }
    log_warn("%s; the checkpoint itself is complete", unread.text);
    return STATUS_OK;
}

/* Removes the checkpoint that had the new one's name, and applies the limit. */
static void tidy(const struct checkpoint_saving *save)
{
    const struct checkpoint_writer *writer = save->writer;
    struct error err;
    if (save->exchanged && checkpoint_remove_tree(save->tmp, &err) != STATUS_OK)
        log_warn("%s", err.text);
    checkpoint_retention_apply(writer->dir, save->name, save->position.step, &writer->keep, &writer->cache->known);
}

/* Steps 3 to 7. */
static enum status publish(struct checkpoint_saving *save, struct error *err)
{
    enum status status;
    save->files = calloc((size_t)save->world + TOKENIZER_FILES_MAX, sizeof *save->files);
    if (!save->files)
        return error_set(err, STATUS_DEVICE, "out of memory for the checkpoint's manifest");
    TRY(collect_rank_files(save, err));
    TRY(copy_tokenizer(save, err));
    TRY(write_manifest(save, err));
    if (save->writer->keep.last && (status = read_back(save, err)) != STATUS_OK) {
        error_prefix(err, "reading the new checkpoint back");
        return status;
    }
    TRY(still_owner(save, err));
    TRY(give_name(save, err));
    bool ours;
    TRY(owner_of_published(save, &ours, err));
    if (ours)
        checkpoint_point(save->writer->dir, "latest", save->name); /* step 6 */
    TRY(owner_of_published(save, &ours, err));
    if (ours)
        tidy(save); /* step 7 */
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
    struct error local, *why = err ? err : &local;
    *complete = false;
    TRY(finish_part(save, why));
    if (save->part == PART_FOLDER && save->rank != 0) {
        memcpy(save->unique, save->reports[0].unique, sizeof save->unique);
        TRY(name_folders(save, why)); /* the name is as long as rank 0's, so this cannot fail on this rank alone */
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
    if (!save)
        return;
    if (clean && save->made && !save->complete && !save->peer_lost &&
        checkpoint_remove_tree(save->tmp, &leftover) != STATUS_OK)
        log_warn("%s", leftover.text);
    free(save->files);
    free(save->reports);
    free(save);
}

enum status checkpoint_save(const struct checkpoint_writer *writer, const struct train_position *position,
                            struct state_slices slices, char *name, int64_t *bytes, struct error *err)
{
    enum status status = STATUS_OK;
    struct checkpoint_saving *save;
    bool complete = false;
    checkpoint_saving_new(writer, position, slices, &save);
    while (status == STATUS_OK && !complete) {
        checkpoint_saving_work(save);
        status = checkpoint_saving_agree(save, &complete, err);
    }
    if (complete) {
        strcpy(name, save->name);
        *bytes = checkpoint_saving_bytes(save);
    }
    checkpoint_saving_free(save, true);
    return status;
}
