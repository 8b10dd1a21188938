/* checkpoint_save.c: writing a checkpoint so that a kill at any instant leaves a valid one. docs/checkpoint-format.md
 * says what a kill after each step leaves, and what becomes of folders whose names are in the way.
 *
 *   step 1  rank 0   sweeps away .tmp-*, makes .tmp-NAME-UNIQUE
 *        2  all      write rank-NNNNN.zst there, fsync; with keep_last each reads its file back
 *        3  rank 0   writes tokenizer files, fsync
 *        4  rank 0   writes manifest.json, fsync; fsync .tmp-…; with keep_last it reads these files back
 *        5  rank 0   rename .tmp-… to NAME, fsync the folder: the new checkpoint counts
 *        6  rank 0   moves `latest` (made aside, then renamed)
 *        7  rank 0   deletes the oldest (checkpoint_retention.h): renamed to .tmp-delete-X first
 *
 * Steps 3 to 7 are in checkpoint_publish.c. Each is fsynced before the next; before step 7 only folders that are never
 * read are deleted. UNIQUE is new for each save: a rank of an earlier start that was cut off may still write into its
 * .tmp folder, and may prevent its deletion (a warning), but does not disturb this save.
 *
 * After each of the three parts (folder, rank files, publication) the ranks exchange their outcomes, and all return the
 * error of the lowest rank that has one. Rank 0 then removes .tmp-…. A failure after step 5 is a warning.
 *
 * Before steps 1, 5, 6 and 7 rank 0 checks that the run folder still belongs to this run (writer->still_owner); else
 * the save ends with that error on all ranks. If the disk does not answer, steps 1 and 5 fail, and steps 6 and 7 are
 * left out: checkpoint_publish_again() does them at the next start. */
#include "ckpt/checkpoint_folders.h"
#include "ckpt/checkpoint_publish.h"
#include "core/faults.h"
#include "core/io.h"
#include "core/log.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Exchanges the outcomes of a part. */
static enum status finish_part(struct checkpoint_saving *save, struct error *err)
{
    struct saving_report own = {.bytes = save->bytes, .facts = save->facts};
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
    if (save->world > 1) {
        error_prefix(err, "rank %d on %s", lowest, save->reports[lowest].host);
        error_blame(err, lowest, FAILURE_NONE);
    }
    error_cause(err, save->reports[lowest].cause);
    return status;
}

/* ---- writing files ------------------------------------------------------- */

static enum status name_folders(struct checkpoint_saving *save, struct error *err)
{
    char hidden[sizeof save->name + SAVING_UNIQUE_BYTES + 8];
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
        return checkpoint_io_error("name a folder in", dir, err);
    snprintf(save->unique, sizeof save->unique, "%016" PRIx64, random);
    TRY(name_folders(save, err));
    if (save->writer->still_owner) /* in a run folder that was moved away nothing is made again */
        TRY(save->writer->still_owner(save->writer->owner, err));
    if (!fs_is_dir(dir)) {
        char parent[FS_PATH_MAX];
        if (io_mkdir(dir, 0777) && errno != EEXIST)
            return checkpoint_io_error("make the folder", dir, err);
        TRY(fs_join(parent, dir, "..", STATUS_CHECKPOINT, err));
        TRY(checkpoint_sync(parent, err));
    }
    checkpoint_sweep(dir);
    save->made = fault_mkdir(save->tmp, 0777) == 0;
    return save->made ? STATUS_OK : checkpoint_io_error("make the folder", save->tmp, err);
}

static enum status read_back_rank_file(const char *path, const struct rankfile_shape *shape,
                                       const struct rankfile_facts *facts, struct error *err)
{
    struct rankfile *file;
    TRY(checkpoint_reads_from_disk(path, err));
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
                                   .num_trained = writer->layout->num_trained,
                                   .slice = writer->layout->slice,
                                   .state_name = state_kind_names};
    manifest_rank_name(save->rank, name);
    TRY(fs_join(path, save->tmp, name, STATUS_CHECKPOINT, err));
    TRY(rankfile_writer_new(path, &shape, writer->compression_level, &file, err));
    for (int s = 0; s < slices.count; s++)
        for (int unit = 0; unit < state_units(writer->layout, (enum state_kind)s); unit++) {
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
        save->status = checkpoint_publish(save, &save->err);
}

enum status checkpoint_saving_agree(struct checkpoint_saving *save, bool *complete, struct error *err)
{
    *complete = false;
    TRY(finish_part(save, err));
    if (save->part == PART_FOLDER && save->rank != 0) {
        memcpy(save->unique, save->reports[0].unique, sizeof save->unique);
        TRY(name_folders(save, err)); /* the name is as long as rank 0's, so this cannot fail on this rank alone */
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
