#include "ckpt/checkpoint_publish.h"

#include "ckpt/checkpoint_retention.h"
#include "ckpt/checkpoint_save_cache.h"
#include "core/faults.h"
#include "core/io.h"
#include "core/log.h"
#include "core/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
                      reports[rank].host, path, reports[0].host);
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
    char *text;
    size_t bytes;
    TRY(manifest_encode(save->writer, &save->position, save->num_states, save->files, save->num_files, &text, &bytes,
                        err));
    enum status status = checkpoint_put_file(save->tmp, MANIFEST_NAME, text, bytes, err);
    free(text);
    TRY(status);
    save->bytes += (int64_t)bytes;
    return checkpoint_sync(save->tmp, err);
}

/* Reads back what is not a rank file. */
static enum status read_back(const struct checkpoint_saving *save, struct error *err)
{
    char path[FS_PATH_MAX], *data;
    struct manifest *manifest;
    TRY(fs_join(path, save->tmp, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    TRY(checkpoint_reads_from_disk(path, err));
    TRY(manifest_load(save->tmp, false, &manifest, err));
    manifest_free(manifest);
    for (int i = save->world; i < save->num_files; i++) {
        const struct manifest_file *file = &save->files[i];
        TRY(fs_join(path, save->tmp, file->name, STATUS_CHECKPOINT, err));
        TRY(checkpoint_reads_from_disk(path, err));
        TRY(manifest_read_file(save->tmp, file, &data, err));
        free(data);
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
            save->exchanged = fault_rename(save->tmp, save->final, RENAME_EXCHANGE) == 0;
            if (save->exchanged)
                return checkpoint_sync(dir, err);
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
    if (fault_rename(save->tmp, save->final, 0)) {
        checkpoint_io_error("publish the checkpoint as", save->final, err);
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

/* The same once the checkpoint is complete. *ours: false, with a warning, if the owner could not be read. */
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
    checkpoint_retention_apply(writer->dir, save->name, &save->position, &writer->keep, &writer->cache->known);
}

enum status checkpoint_publish(struct checkpoint_saving *save, struct error *err)
{
    enum status status;
    save->files = memory_zeroed((size_t)save->world + TOKENIZER_FILES_MAX, sizeof *save->files);
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

void checkpoint_publish_again(struct checkpoint_save_cache *cache, const char *dir, const char *name,
                              const struct train_position *position, const struct checkpoint_keep *keep)
{
    checkpoint_sweep(dir);
    checkpoint_point(dir, "latest", name);
    checkpoint_retention_apply(dir, name, position, keep, &cache->known);
}
