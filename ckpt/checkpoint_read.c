/* checkpoint_read.c: opens, verifies and reads checkpoints, and chooses the newest valid one of a run folder.
 *
 * Every frame is compared with its checksum before its contents are used, and the manifest covers the checksums. So a
 * checkpoint can be opened by its manifest and file sizes alone (full: false), and its contents are verified as they
 * are read. The checkpoints of a run folder are ordered by the steps in their manifests, newest first; those alone are
 * read that may be the newest by their names (checkpoint_list.h). `latest` is not used, because it may be stale or
 * dangling after a crash.
 *
 * Contents come from a stream (checkpoint_stream.h): a thread reads frames while those before them are verified and
 * decompressed. One thread at a time may read from a checkpoint. */
#include "ckpt/checkpoint.h"

#include "ckpt/checkpoint_folders.h"
#include "ckpt/checkpoint_list.h"
#include "ckpt/checkpoint_stream.h"
#include "ckpt/manifest.h"
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
#include <unistd.h>
#include <xxhash.h>

enum { COPY_BYTES = 1 << 20 };

/* checkpoint->private_ */
struct reader {
    struct stat identity;      /* of the folder, before anything was read */
    struct manifest *manifest; /* owned */
    struct checkpoint_files files;
};

static struct reader *reader_of(const struct checkpoint *checkpoint)
{
    return checkpoint->private_;
}

/* ---- open and close ------------------------------------------------------ */

static enum status open_folder(const char *folder, struct checkpoint **out, struct error *err)
{
    enum status status = STATUS_OK;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    struct reader *reader = checkpoint ? calloc(1, sizeof *reader) : NULL;
    if (checkpoint)
        checkpoint->private_ = reader;
    if (!reader)
        TRY_GOTO(error_set(err, STATUS_DEVICE, "out of memory for the checkpoint '%s'", folder));
    if (strlen(folder) >= sizeof checkpoint->path)
        TRY_GOTO(error_set(err, STATUS_CHECKPOINT, "the path '%.100s…' is too long", folder));
    strcpy(checkpoint->path, folder);
    checkpoint_identify(folder, &reader->identity); /* if it does not exist, reading the manifest fails */
    TRY_GOTO(manifest_load(folder, true, &reader->manifest, err));
    const struct manifest *manifest = reader->manifest;
    TRY_GOTO(checkpoint_files_init(&reader->files, checkpoint->path, manifest, err));
    checkpoint->manifest = manifest->root;
    checkpoint->position = manifest->position;
    checkpoint->spec = manifest->spec;
    checkpoint->model = manifest->model;
    checkpoint->machine = manifest->machine;
    checkpoint->evaluation_part = manifest->evaluation_part;
    checkpoint->world = manifest->world;
    checkpoint->data_fingerprint = manifest->data_fingerprint;
    checkpoint->bytes = manifest->bytes;
    checkpoint->dtype = manifest->dtype;
    *out = checkpoint;
    return STATUS_OK;
fail:
    checkpoint_close(checkpoint);
    return status;
}

bool checkpoint_is_gone(const struct checkpoint *checkpoint)
{
    return !checkpoint_is_still(checkpoint->path, &reader_of(checkpoint)->identity);
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    struct reader *reader = reader_of(checkpoint);
    if (reader) {
        checkpoint_files_release(&reader->files);
        manifest_free(reader->manifest);
        free(reader);
    }
    free(checkpoint);
}

/* How the contents of a checkpoint are verified before it is taken; no function: they are not. */
struct verifier {
    checkpoint_verifier *verify;
    void *context;
};

/* Opens a folder and, if asked, verifies it. */
static enum status open_one(const char *folder, struct verifier full, struct checkpoint **out, struct error *err)
{
    struct checkpoint *checkpoint;
    TRY(open_folder(folder, &checkpoint, err));
    enum status status = full.verify ? full.verify(full.context, checkpoint, err) : STATUS_OK;
    if (status == STATUS_OK)
        *out = checkpoint;
    else
        checkpoint_close(checkpoint);
    return status;
}

/* Adds a hint if no checkpoint is taken: the user may name one that was moved aside. damaged: there are others, and a
 * warning has named the damage of each. */
static void hint_aside(const char *dir, bool damaged, struct error *err)
{
    struct checkpoint_list aside;
    const struct checkpoint_entry *found = NULL;
    if (checkpoint_list_aside(&aside, dir, NULL) != STATUS_OK)
        memset(&aside, 0, sizeof aside);
    for (int i = 0; i < aside.count && !found; i++)
        if (aside.entries[i].ok)
            found = &aside.entries[i];
    if (found)
        error_hint(err,
                   "'%s/%s' of step %" PRId64 " was moved aside and can be named (%d in all; ztrain inspect "
                   "lists them); another run.name starts a new run",
                   dir, found->name, found->step, aside.count);
    else if (damaged)
        error_hint(err, "another run.name starts a new run");
    else
        error_hint(err, "%s", CHECKPOINT_NONE_HINT);
    checkpoint_list_release(&aside);
}

/* Orders the list as far as the first entry from `at` on that is not known to be damaged or unreadable (*ok). NULL:
 * none is left. */
static enum status next_ok(struct checkpoint_list *list, const char *dir, int at, const struct checkpoint_entry **ok,
                           struct error *err)
{
    *ok = NULL;
    for (;; at++) {
        TRY(checkpoint_list_order(list, dir, at + 1, err));
        if (at >= list->count)
            return STATUS_OK;
        if (list->entries[at].ok) {
            *ok = &list->entries[at];
            return STATUS_OK;
        }
    }
}

/* For a hint: the next one that can be read after entry `at`, or NULL. */
static const struct checkpoint_entry *older_than(struct checkpoint_list *list, const char *dir, int at)
{
    const struct checkpoint_entry *older;
    return next_ok(list, dir, at + 1, &older, NULL) == STATUS_OK ? older : NULL;
}

/* The first entry that could not be read and may be newer than `entry` (which may be NULL). NULL: there is none. */
static const struct checkpoint_entry *hidden_before(const struct checkpoint_list *list,
                                                    const struct checkpoint_entry *entry)
{
    struct train_position position = {.step = -1};
    if (entry)
        position = (struct train_position){.step = entry->step,
                                           .evaluation_due = entry->evaluation_due,
                                           .epoch = entry->epoch,
                                           .epoch_end = entry->epoch_end};
    for (int i = 0; i < list->count; i++)
        if (list->entries[i].unread && checkpoint_may_be_later(&list->entries[i], &position))
            return &list->entries[i];
    return NULL;
}

/* Adds a hint if the newest checkpoint cannot be read. older: the next one that can; NULL: there is none. */
static enum status hint_unread(const char *dir, const char *name, const struct checkpoint_entry *older,
                               struct error *err)
{
    if (older)
        return error_hint(err, "make '%s/%s' readable, or name an older checkpoint: '%s/%s' is of step %" PRId64, dir,
                          name, dir, older->name, older->step);
    return error_hint(err, "make '%s/%s' readable", dir, name);
}

static enum status fail_unread(const char *dir, const struct checkpoint_entry *unread,
                               const struct checkpoint_entry *older, struct error *err)
{
    error_set(err, STATUS_CHECKPOINT, "%s", unread->damage);
    error_cause(err, unread->cause);
    return hint_unread(dir, unread->name, older, err);
}

/* Warns, once a checkpoint is taken, about those that could not be read while it was looked for; all of them are
 * older. */
static void say_unread(const struct checkpoint_list *list, const char *dir)
{
    const struct checkpoint_entry *first = NULL;
    int count = 0;
    for (int i = 0; i < list->count; i++)
        if (list->entries[i].unread && !count++)
            first = &list->entries[i];
    if (count == 1)
        log_warn("the checkpoint '%s/%s' cannot be read, but it is older and not needed: %s", dir, first->name,
                 first->damage);
    else if (count > 1)
        log_warn("%d checkpoints in '%s' cannot be read, but they are older and not needed; %s: %s", count, dir,
                 first->name, first->damage);
}

/* Opens the newest valid checkpoint of a folder, and warns about newer ones that are damaged. One that cannot be read
 * is passed over only if its name shows that it is older. *again: a checkpoint was deleted or replaced meanwhile. */
static enum status open_newest(const char *dir, struct verifier full, struct checkpoint **out, bool *again,
                               struct error *err)
{
    struct stat identity;
    struct checkpoint_list list = {.count = 0};
    *again = false;
    struct error damage, failure; /* err is touched only if none is found */
    char folder[FS_PATH_MAX];
    TRY(checkpoint_list_update(&list, dir, err));
    enum status status = error_set(&failure, STATUS_CHECKPOINT, "there is no checkpoint in '%s'", dir);
    for (int i = 0;; i++) {
        const struct checkpoint_entry *ok;
        enum status listed = next_ok(&list, dir, i, &ok, &damage);
        const struct checkpoint_entry *entry = &list.entries[i], *hidden = hidden_before(&list, ok);
        if (listed != STATUS_OK) {
            status = listed;
            failure = damage;
            break;
        }
        if (hidden) {
            status = fail_unread(dir, hidden, ok, &failure);
            break;
        }
        if (i >= list.count)
            break;
        if (entry->unread)
            continue;
        snprintf(damage.text, sizeof damage.text, "%s", entry->damage ? entry->damage : "");
        if (entry->ok && fs_join(folder, dir, entry->name, STATUS_CHECKPOINT, &damage) == STATUS_OK) {
            bool known = checkpoint_identify(folder, &identity);
            status = open_one(folder, full, out, &damage);
            if (status == STATUS_OK) {
                say_unread(&list, dir);
                break;
            }
            *again =
                status == STATUS_CHECKPOINT && (known ? !checkpoint_is_still(folder, &identity) : !fs_exists(folder));
            if (*again) {
                failure = damage;
                break;
            }
            /* a lack of memory or a failing disk does not justify an older checkpoint */
            if (status != STATUS_CHECKPOINT || error_is_unreadable(&damage)) {
                if (status == STATUS_CHECKPOINT)
                    hint_unread(dir, entry->name, older_than(&list, dir, i), &damage);
                failure = damage;
                break;
            }
        }
        log_warn("the checkpoint '%s/%s' is not used: %s", dir, entry->name, damage.text);
        status = error_set(&failure, STATUS_CHECKPOINT,
                           "none of the %d checkpoints in '%s' is valid; the last one "
                           "tried: %.1500s",
                           list.count, dir, damage.text);
    }
    *again = status == STATUS_CHECKPOINT && (*again || list.changed);
    if (status == STATUS_CHECKPOINT && !*again && !error_is_unreadable(&failure))
        hint_aside(dir, list.count > 0, &failure);
    checkpoint_list_release(&list);
    if (status != STATUS_OK && err)
        *err = failure;
    return status;
}

static enum status open_dir(const char *dir, struct verifier full, struct checkpoint **checkpoint, struct error *err)
{
    bool is_checkpoint;
    char folder[FS_PATH_MAX];
    TRY(checkpoint_locate(dir, &is_checkpoint, folder, err));
    if (is_checkpoint)
        return open_one(folder, full, checkpoint, err);
    enum status status = STATUS_OK;
    bool again = true;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++)
        status = open_newest(folder, full, checkpoint, &again, err);
    return status;
}

static enum status verify_all(void *context, const struct checkpoint *checkpoint, struct error *err)
{
    (void)context;
    return checkpoint_verify(checkpoint, err);
}

enum status checkpoint_open(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err)
{
    return open_dir(dir, (struct verifier){full ? verify_all : NULL, NULL}, checkpoint, err);
}

enum status checkpoint_open_verified(const char *dir, checkpoint_verifier *verify, void *context,
                                     struct checkpoint **checkpoint, struct error *err)
{
    return open_dir(dir, (struct verifier){verify, context}, checkpoint, err);
}

/* ---- reading ------------------------------------------------------------- */

enum status checkpoint_read(const struct checkpoint *checkpoint, enum state_kind state, int unit, int64_t first,
                            int64_t count, float *out, struct error *err)
{
    const struct manifest *manifest = reader_of(checkpoint)->manifest;
    ASSERT(unit >= 0 && unit < manifest->num_units && first >= 0 && count >= 0);
    ASSERT(count <= manifest->units[unit].numel - first);
    const struct checkpoint_range range = {(int)state, unit, first, count};
    struct checkpoint_stream *stream;
    TRY(checkpoint_stream_new(&reader_of(checkpoint)->files, &checkpoint->retry, &range, 1, &stream, err));
    enum status status = checkpoint_stream_next(stream, out, err);
    checkpoint_stream_free(stream);
    return status;
}

/* Verifies a file that one checksum covers as a whole. */
static enum status verify_whole(const struct checkpoint *checkpoint, const struct manifest_file *file,
                                struct error *err)
{
    enum status status = STATUS_OK;
    char path[FS_PATH_MAX];
    int fd = -1;
    int64_t bytes;
    XXH3_state_t *hash = XXH3_createState();
    uint8_t *buffer = malloc(COPY_BYTES);
    if (!hash || !buffer)
        TRY_END(error_set(err, STATUS_DEVICE, "out of memory for '%s'", file->name));
    XXH3_64bits_reset(hash);
    TRY_END(fs_join(path, checkpoint->path, file->name, STATUS_CHECKPOINT, err));
    TRY_END(fs_open_read(path, STATUS_CHECKPOINT, &fd, &bytes, err));
    for (int64_t at = 0; at < file->bytes;) {
        size_t n = file->bytes - at < COPY_BYTES ? (size_t)(file->bytes - at) : COPY_BYTES;
        TRY_END(fs_pread(fd, path, buffer, n, at, STATUS_CHECKPOINT, err));
        XXH3_64bits_update(hash, buffer, n);
        at += (int64_t)n;
    }
    if (XXH3_64bits_digest(hash) != file->checksum)
        status = error_set(err, STATUS_CHECKPOINT,
                           "'%s' is damaged at offset 0: its %" PRId64 " bytes do not match their checksum", path,
                           file->bytes);
end:
    if (fd >= 0)
        io_close(fd);
    free(buffer);
    XXH3_freeState(hash);
    return status;
}

enum status checkpoint_verify_part(const struct checkpoint *checkpoint, int part, int parts, struct error *err)
{
    struct reader *reader = reader_of(checkpoint);
    const struct manifest *manifest = reader->manifest;
    struct checkpoint_stream *stream;
    TRY(checkpoint_stream_new_part(&reader->files, part, parts, &stream, err));
    enum status status = checkpoint_stream_verify(stream, err);
    checkpoint_stream_free(stream);
    for (int i = manifest->world; i < manifest->num_files && part == parts - 1 && status == STATUS_OK; i++)
        status = verify_whole(checkpoint, &manifest->files[i], err);
    return status;
}

enum status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err)
{
    return checkpoint_verify_part(checkpoint, 0, 1, err);
}

/* ---- loading ------------------------------------------------------------- */

/* "'wte.weight' of shape (256, 64)" */
static void tensor_text(const char *name, int ndim, const int64_t *shape, char out[192])
{
    if (ndim == 1)
        snprintf(out, 192, "'%.96s' of shape (%" PRId64 ")", name, shape[0]);
    else
        snprintf(out, 192, "'%.96s' of shape (%" PRId64 ", %" PRId64 ")", name, shape[0], shape[1]);
}

enum status checkpoint_check_table(const struct checkpoint *checkpoint, const struct tensor_table *table,
                                   struct error *err)
{
    const struct manifest *manifest = reader_of(checkpoint)->manifest;
    enum status status = STATUS_OK;
    char theirs[192] = "no more tensors", ours[192] = "no more tensors";
    int most = manifest->num_tensors > table->num_tensors ? manifest->num_tensors : table->num_tensors;
    for (int i = 0; i < most && status == STATUS_OK; i++) {
        const struct manifest_tensor *a = i < manifest->num_tensors ? &manifest->tensors[i] : NULL;
        const struct tensor_info *b = i < table->num_tensors ? &table->tensors[i] : NULL;
        if (a && b && !strcmp(a->name, b->name) && a->ndim == b->ndim && a->shape[0] == b->shape[0] &&
            a->shape[1] == b->shape[1]) {
            if (a->unit != b->unit || a->offset != b->offset)
                return error_set(err, STATUS_CHECKPOINT,
                                 "the checkpoint '%s' has '%s' at element %" PRId64 " of unit %d, this model at "
                                 "element %" PRId64 " of unit %d",
                                 checkpoint->path, a->name, a->offset, a->unit, b->offset, b->unit);
            continue;
        }
        if (a)
            tensor_text(a->name, a->ndim, a->shape, theirs);
        if (b)
            tensor_text(b->name, b->ndim, b->shape, ours);
        status = error_set(err, STATUS_CHECKPOINT,
                           "the checkpoint '%s' is of another model: tensor %d is %s there and "
                           "%s in this model",
                           checkpoint->path, i, theirs, ours);
        error_hint(err, "resume with the model that the checkpoint was trained with (ztrain inspect shows it)");
    }
    if (status == STATUS_OK && manifest->num_units != table->num_units)
        return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' has %d units, this model %d", checkpoint->path,
                         manifest->num_units, table->num_units);
    for (int u = 0; status == STATUS_OK && u < table->num_units; u++)
        if (manifest->units[u].numel != table->units[u].numel)
            status = error_set(err, STATUS_CHECKPOINT,
                               "the checkpoint '%s' has %" PRId64 " elements in unit %d, this model %" PRId64,
                               checkpoint->path, manifest->units[u].numel, u, table->units[u].numel);
    return status;
}

/* The range of a unit that a rank owns; its slice may have padding after it, or hold nothing else. */
static struct checkpoint_range own_range(const struct tensor_table *table, const struct shard_layout *layout, int rank,
                                         int state, int unit)
{
    int64_t size = layout->slice[unit], first = size * rank, left = table->units[unit].numel - first;
    int64_t count = left < 0 ? 0 : left < size ? left : size;
    return (struct checkpoint_range){state, unit, count ? first : 0, count};
}

/* Reads the ranges, unit by unit of each state, into the rank's slices. */
static enum status load_slices(struct checkpoint_stream *stream, const struct checkpoint_range *ranges,
                               const struct shard_layout *layout, struct state_slices slices, struct error *err)
{
    for (int i = 0; i < slices.count * layout->num_units; i++) {
        const struct checkpoint_range *range = &ranges[i];
        float *own;
        TRY(state_slice(slices, SLICE_WRITE, (enum state_kind)range->state, range->unit, &own, err));
        TRY(checkpoint_stream_next(stream, own, err));
        memset(own + range->count, 0, (size_t)(layout->slice[range->unit] - range->count) * sizeof *own); /* padding */
    }
    return STATUS_OK;
}

enum status checkpoint_load(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err)
{
    ASSERT(rank >= 0 && rank < layout->world && layout->num_units == table->num_units);
    TRY(checkpoint_check_table(checkpoint, table, err));
    const int stored = reader_of(checkpoint)->manifest->num_states, num = slices.count * layout->num_units;
    if (stored != slices.count)
        return error_set(err, STATUS_USAGE,
                         "the checkpoint '%s' has %d kinds of state, the optimizer of this run %d; hint: set "
                         "optimizer.type and its momentum as they were, or start a new run from an export",
                         checkpoint->path, stored, slices.count);
    struct checkpoint_range *ranges = memory_alloc((size_t)num * sizeof *ranges);
    for (int i = 0; i < num; i++)
        ranges[i] = own_range(table, layout, rank, i / layout->num_units, i % layout->num_units);
    struct checkpoint_stream *stream = NULL;
    enum status status =
        checkpoint_stream_new(&reader_of(checkpoint)->files, &checkpoint->retry, ranges, num, &stream, err);
    if (status == STATUS_OK)
        status = load_slices(stream, ranges, layout, slices, err);
    checkpoint_stream_free(stream);
    free(ranges);
    return status;
}
