/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/checkpoint_list.h"

static int listed_newest_first(const void *left, const void *right)
{
    const struct checkpoint_entry *a = left, *b = right;
    if (a->position.step != b->position.step) return a->position.step < b->position.step ? 1 : -1;
    if (a->position.evaluation_due != b->position.evaluation_due) return a->position.evaluation_due ? 1 : -1;
    if (a->position.epoch_end != b->position.epoch_end) /* the same step; the end of the epoch was processed as well */
        return a->position.epoch_end ? -1 : 1;
    return strcmp(a->name, b->name); /* X before X.replaced-1 */
}

static int listed_by_name(const void *left, const void *right)
{
    const struct checkpoint_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

bool checkpoint_may_be_later(const struct checkpoint_entry *unread, const struct train_position *position)
{
    if (unread->position.step != INT64_MAX)
        return unread->position.step > position->step ||
               (unread->position.step == position->step && position->evaluation_due);
    return !unread->position.epoch_end || unread->position.epoch > position->epoch ||
           (unread->position.epoch == position->epoch && !position->epoch_end);
}

/* ---- reading manifests --------------------------------------------------- */

static void list_entry_name(struct checkpoint_entry *entry, const char *name, uint64_t inode)
{
    long long step, epoch;
    memset(entry, 0, sizeof *entry);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->inode = inode;
    entry->position.step = sscanf(name, "step-%lld", &step) == 1 && step >= 0 ? step : INT64_MAX;
    entry->position.epoch_end = sscanf(name, "epoch-%lld", &epoch) == 1 && epoch > 0;
    entry->position.epoch = entry->position.epoch_end ? epoch : 0;
}

bool checkpoint_name_fits(const struct checkpoint_entry *entry)
{
    struct checkpoint_entry named;
    list_entry_name(&named, entry->name, entry->inode);
    return named.position.epoch_end ? named.position.epoch == entry->position.epoch
                                    : named.position.step == entry->position.step;
}

static void entry_release(struct checkpoint_entry *entry)
{
    free(entry->damage);
    manifest_free(entry->manifest);
    entry->damage = NULL;
    entry->manifest = NULL;
}

/* Reads an entry, which has the facts of its name, and its manifest. files: looks at the files next to it as well. */
static enum status list_entry_fill(struct checkpoint_entry *entry, const char *path, bool files, struct error *err)
{
    struct manifest *manifest = NULL;
    struct error damage = {0};
    bool there;
    enum status status = manifest_load(path, files, &manifest, &damage);
    if (status != STATUS_OK && status != STATUS_CHECKPOINT) { /* a lack of memory is not damage */
        if (err) *err = damage;
        return status;
    }
    heartbeat_beat();
    entry->read = true;
    entry->ok = status == STATUS_OK;
    entry->settled = files || !entry->ok;
    if (entry->ok) {
        entry->position = manifest->facts.position;
        entry->bytes = manifest->facts.bytes;
        entry->manifest = manifest;
        return STATUS_OK;
    }
    entry->unread = error_is_unreadable(&damage) || fs_find_dir(path, &there, STATUS_CHECKPOINT, &damage) != STATUS_OK;
    entry->damage = memory_text(damage.text);
    entry->cause = entry->unread ? damage.cause : 0;
    return STATUS_OK;
}

static int64_t listed_time_ns(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static struct checkpoint_stamp listed_stamp(const char *path)
{
    struct stat folder, manifest;
    char file[FS_PATH_MAX];
    if (fs_join(file, path, MANIFEST_NAME, STATUS_CHECKPOINT, NULL) != STATUS_OK || io_stat(path, &folder) != 0 ||
        io_stat(file, &manifest) != 0)
        return (struct checkpoint_stamp){.device = 0};
    return (struct checkpoint_stamp){.device = folder.st_dev,
                                     .folder = folder.st_ino,
                                     .manifest = manifest.st_ino,
                                     .folder_changed = listed_time_ns(folder.st_mtim),
                                     .manifest_changed = listed_time_ns(manifest.st_mtim),
                                     .manifest_bytes = manifest.st_size};
}

/* Reads an entry anew while a run may delete (*gone) or replace the folder. holds: the entry keeps its manifest. */
static enum status list_read_still(struct checkpoint_entry *entry, const char *dir, bool files, bool holds, bool *gone,
                                   struct error *err)
{
    struct stat identity;
    struct checkpoint_entry now;
    char path[FS_PATH_MAX];
    *gone = false;
    TRY(fs_join(path, dir, entry->name, STATUS_CHECKPOINT, err));
    for (int i = 0;; i++) {
        bool known = checkpoint_identify(path, &identity);
        list_entry_name(&now, entry->name, entry->inode);
        now.stamp = listed_stamp(path);
        TRY(list_entry_fill(&now, path, files, err));
        if (now.ok || (known && checkpoint_is_still(path, &identity)) || i == CHECKPOINT_TRIES) break;
        *gone = !fs_exists(path);
        if (*gone || !known) /* not known: the disk does not answer */
            break;
        entry_release(&now);
    }
    entry_release(entry);
    *entry = now;
    if (!holds) manifest_free(TAKEN(entry->manifest));
    return STATUS_OK;
}

static enum status list_read_in_place(struct checkpoint_entry *entry, const char *dir, bool files, struct error *err)
{
    bool gone;
    TRY(list_read_still(entry, dir, files, false, &gone, err));
    if (!gone) return STATUS_OK;
    free(entry->damage);
    entry->ok = entry->unread = false;
    entry->damage = memory_text("it was deleted meanwhile");
    return STATUS_OK;
}

enum status checkpoint_entry_read(struct checkpoint_entry *entry, const char *dir, struct error *err)
{
    return entry->read ? STATUS_OK : list_read_in_place(entry, dir, false, err);
}

enum status checkpoint_entry_settle(struct checkpoint_entry *entry, const char *dir, struct error *err)
{
    return entry->settled ? STATUS_OK : list_read_in_place(entry, dir, true, err);
}

enum status checkpoint_entry_renew(struct checkpoint_entry *entry, const char *dir, bool *changed, struct error *err)
{
    char path[FS_PATH_MAX];
    *changed = false;
    TRY(fs_join(path, dir, entry->name, STATUS_CHECKPOINT, err));
    const struct checkpoint_stamp now = listed_stamp(path);
    *changed = entry->read && memcmp(&now, &entry->stamp, sizeof now) != 0;
    return *changed ? list_read_in_place(entry, dir, true, err) : checkpoint_entry_settle(entry, dir, err);
}

/* Reads entry i, which is not in its place yet. One that was deleted leaves the list: the last one takes its place. */
static enum status list_read(struct checkpoint_list *list, const char *dir, int i, struct error *err)
{
    bool gone;
    TRY(list_read_still(&list->entries[i], dir, false, list->holds, &gone, err));
    if (gone) {
        list->changed = true;
        entry_release(&list->entries[i]);
        list->entries[i] = list->entries[--list->count];
    }
    return STATUS_OK;
}

/* ---- order --------------------------------------------------------------- */

/* Of the entries that are not in their places: the newest that was read (*top) and that is ok as well (*known), and the
 * newest by their names of those that were not read, of steps and of epochs; -1: none. */
struct heads {
    int top, known, step, epoch;
};

static struct heads list_heads(const struct checkpoint_list *list)
{
    const struct checkpoint_entry *all = list->entries;
    struct heads heads = {-1, -1, -1, -1};
    for (int i = list->ordered; i < list->count; i++) {
        const struct checkpoint_entry *entry = &all[i];
        if (entry->read) {
            if (heads.top < 0 || listed_newest_first(entry, &all[heads.top]) < 0) heads.top = i;
            if (entry->ok && (heads.known < 0 || listed_newest_first(entry, &all[heads.known]) < 0)) heads.known = i;
        } else if (entry->position.step != INT64_MAX) {
            if (heads.step < 0 || listed_newest_first(entry, &all[heads.step]) < 0) heads.step = i;
        } else if (heads.epoch < 0 || entry->position.epoch > all[heads.epoch].position.epoch ||
                   (entry->position.epoch == all[heads.epoch].position.epoch &&
                    listed_by_name(entry, &all[heads.epoch]) < 0))
            heads.epoch = i;
    }
    return heads;
}

/* The entry that has to be read before the newest is known; -1: heads->top is the newest. */
static int list_to_read(const struct checkpoint_list *list, const struct heads *heads)
{
    const struct checkpoint_entry *all = list->entries;
    if (heads->step >= 0 && (heads->top < 0 || all[heads->step].position.step >= all[heads->top].position.step))
        return heads->step;
    if (heads->epoch < 0) return -1;
    if (heads->known < 0) return heads->epoch;
    return checkpoint_may_be_later(&all[heads->epoch], &all[heads->known].position) ? heads->epoch : -1;
}

enum status checkpoint_list_order(struct checkpoint_list *list, const char *dir, int n, struct error *err)
{
    while (list->ordered < n && list->ordered < list->count) {
        const struct heads heads = list_heads(list);
        const int next = list_to_read(list, &heads);
        if (next >= 0) {
            TRY(list_read(list, dir, next, err));
            continue;
        }
        struct checkpoint_entry *place = &list->entries[list->ordered++], entry = *place;
        *place = list->entries[heads.top];
        list->entries[heads.top] = entry;
    }
    return STATUS_OK;
}

static void list_sort(struct checkpoint_list *list)
{
    if (list->count) qsort(list->entries, (size_t)list->count, sizeof *list->entries, listed_newest_first);
}

enum status checkpoint_list_read_later(struct checkpoint_list *list, const char *dir,
                                       const struct train_position *position, struct error *err)
{
    list->ordered = 0;
    for (int i = list->count - 1; i >= 0; i--) {
        const struct checkpoint_entry *entry = &list->entries[i];
        if (!entry->read && (!position || checkpoint_may_be_later(entry, position))) TRY(list_read(list, dir, i, err));
    }
    list_sort(list);
    return STATUS_OK;
}

/* ---- listing ------------------------------------------------------------- */

enum status checkpoint_list_update(struct checkpoint_list *list, const char *dir, bool want_aside, struct error *err)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list known = *list;
    bool aside;
    memset(list, 0, sizeof *list);
    if (known.count) qsort(known.entries, (size_t)known.count, sizeof *known.entries, listed_by_name);
    OWNED_DIR *folder = io_opendir(dir);
    if (!folder) return error_system(err, STATUS_CHECKPOINT, errno, "cannot open the folder '%s'", dir);
    for (struct dirent *entry; (entry = io_readdir(folder));) {
        if (!checkpoint_own_name(entry->d_name, &aside) || aside != want_aside || !checkpoint_is_folder(dir, entry))
            continue;
        list->entries = memory_grow(list->entries, (size_t)list->count, sizeof *list->entries);
        struct checkpoint_entry key, *old = NULL;
        list_entry_name(&key, entry->d_name, entry->d_ino);
        if (known.count) old = bsearch(&key, known.entries, (size_t)known.count, sizeof key, listed_by_name);
        if (old && old->inode == entry->d_ino && !old->unread) {
            key = *old;
            old->damage = NULL; /* have moved */
            old->manifest = NULL;
        }
        list->entries[list->count++] = key;
    }
    const int code = errno; /* of io_readdir() */
    if (code)
        checkpoint_list_release(list);
    else
        list_sort(list);
    return code ? error_system(err, STATUS_CHECKPOINT, code, "cannot read the folder '%s'", dir) : STATUS_OK;
}

enum status checkpoint_list_init(struct checkpoint_list *list, const char *dir, bool aside, struct error *err)
{
    memset(list, 0, sizeof *list);
    enum status status = checkpoint_list_update(list, dir, aside, err);
    for (int i = list->count - 1; i >= 0 && status == STATUS_OK; i--) status = list_read(list, dir, i, err);
    if (status == STATUS_OK)
        list_sort(list);
    else
        checkpoint_list_release(list);
    list->ordered = list->count;
    return status;
}

void checkpoint_list_release(struct checkpoint_list *list)
{
    for (int i = 0; i < list->count; i++) entry_release(&list->entries[i]);
    free(list->entries);
    memset(list, 0, sizeof *list);
}
