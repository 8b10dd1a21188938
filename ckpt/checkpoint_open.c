/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_open.c: opens checkpoints, and chooses the newest valid one of a run folder, by the steps in the
 * manifests; those alone are read that may be the newest by their names. `latest` may be stale or dangling after a
 * crash. */
#include "ckpt/checkpoint_read.h"
#include "ckpt/checkpoint_retention.h"

/* ---- open and close ------------------------------------------------------ */

/* Gives the reader its manifest: that of the entry (may be NULL) if the folder is still the same, else the folder's. */
static enum status open_manifest(struct checkpoint_reader *reader, const char *folder, struct checkpoint_entry *entry,
                                 struct error *err)
{
    if (entry && entry->manifest) {
        reader->identity = (struct stat){.st_dev = entry->stamp.device, .st_ino = entry->stamp.folder};
        if (checkpoint_is_still(folder, &reader->identity)) {
            reader->manifest = entry->manifest;
            entry->manifest = NULL;
            return STATUS_OK;
        }
    }
    checkpoint_identify(folder, &reader->identity); /* if it does not exist, reading the manifest fails */
    return manifest_load(folder, false, &reader->manifest, err);
}

/* How the contents of a checkpoint are verified before it is taken; no function: they are not. */
struct verifier {
    checkpoint_verifier *verify;
    void *context;
};

/* entry: of a list that holds manifests, or NULL. files: looks at all files next to the manifest. */
static enum status open_folder(const char *folder, struct checkpoint_entry *entry, bool files, struct verifier full,
                               struct checkpoint **out, struct error *err)
{
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = memory_zeroed(1, sizeof *checkpoint);
    struct checkpoint_reader *reader = checkpoint->private_ = memory_zeroed(1, sizeof *reader);
    if (strlen(folder) >= sizeof checkpoint->path)
        return error_set(err, STATUS_CHECKPOINT, "the path '%.100s…' is too long", folder);
    TRY(open_manifest(reader, folder, entry, err));
    if (files) TRY(manifest_check_files(reader->manifest, folder, 0, reader->manifest->num_files, err));
    *checkpoint = reader->manifest->facts;
    checkpoint->private_ = reader;
    strcpy(checkpoint->path, folder);
    reader->folder = checkpoint->path;
    if (full.verify) TRY(full.verify(full.context, checkpoint, err));
    *out = TAKEN(checkpoint);
    return STATUS_OK;
}

const struct manifest *checkpoint_manifest(const struct checkpoint *checkpoint)
{
    return reader_of(checkpoint)->manifest;
}

bool checkpoint_is_gone(const struct checkpoint *checkpoint)
{
    return !checkpoint_is_still(checkpoint->path, &reader_of(checkpoint)->identity);
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (!checkpoint) return;
    struct checkpoint_reader *reader = reader_of(checkpoint);
    checkpoint_reader_close_files(reader);
    manifest_free(reader->manifest);
    free(reader);
    free(checkpoint);
}

/* The hint where no checkpoint is taken. damaged: there are others, and a warning has named the damage of each. */
static void hint_checkpoint_aside(const char *dir, bool damaged, struct error *err)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list aside = {0};
    const struct checkpoint_entry *found = NULL;
    checkpoint_list_init(&aside, dir, true, NULL);
    for (int i = 0; i < aside.count && !found; i++)
        if (aside.entries[i].ok) found = &aside.entries[i];
    if (found)
        error_hint(err,
                   "'%s/%s' of step %" PRId64 " was moved aside and can be named (%d in all; ztrain inspect "
                   "lists them); another run.name starts a new run",
                   dir, found->name, found->position.step, aside.count);
    else if (damaged)
        error_hint(err, "another run.name starts a new run");
    else
        error_hint(err, "%s", CHECKPOINT_NONE_HINT);
}

/* Orders the list as far as the first entry from `at` on that is ok (*ok). NULL: none is left. */
static enum status open_next_ok(struct checkpoint_list *list, const char *dir, int at,
                                const struct checkpoint_entry **ok, struct error *err)
{
    *ok = NULL;
    for (;; at++) {
        TRY(checkpoint_list_order(list, dir, at + 1, err));
        if (at >= list->count) return STATUS_OK;
        if (list->entries[at].ok) {
            *ok = &list->entries[at];
            return STATUS_OK;
        }
    }
}

/* The first entry that could not be read and may be newer than `entry` (which may be NULL). NULL: there is none. */
static const struct checkpoint_entry *hidden_before(const struct checkpoint_list *list,
                                                    const struct checkpoint_entry *entry)
{
    static const struct train_position first = {.step = -1};
    for (int i = 0; i < list->count; i++)
        if (list->entries[i].unread && checkpoint_may_be_later(&list->entries[i], entry ? &entry->position : &first))
            return &list->entries[i];
    return NULL;
}

/* Adds a hint if the newest checkpoint cannot be read. older: the next one that can; NULL: there is none. */
static enum status hint_unopened(const char *dir, const char *name, const struct checkpoint_entry *older,
                                 struct error *err)
{
    if (older)
        return error_hint(err, "make '%s/%s' readable, or name an older checkpoint: '%s/%s' is of step %" PRId64, dir,
                          name, dir, older->name, older->position.step);
    return error_hint(err, "make '%s/%s' readable", dir, name);
}

/* Once a checkpoint is taken: warns about the others that could not be read; they are older. */
static void say_unopened(const struct checkpoint_list *list, const char *dir)
{
    const struct checkpoint_entry *first = NULL;
    int count = 0;
    for (int i = 0; i < list->count; i++)
        if (list->entries[i].unread && !count++) first = &list->entries[i];
    if (count == 1)
        log_warn("the checkpoint '%s/%s' cannot be read, but it is older and not needed: %s", dir, first->name,
                 first->damage);
    else if (count > 1)
        log_warn("%d checkpoints in '%s' cannot be read, but they are older and not needed; %s: %s", count, dir,
                 first->name, first->damage);
}

/* Opens entry `at` of the list, which is ok. *damaged: an older one may be taken; a lack of memory or a failing disk
 * does not justify that. *again: it was deleted or replaced meanwhile. */
static enum status open_entry(struct checkpoint_list *list, const char *dir, int at, struct verifier full,
                              struct checkpoint **out, bool *damaged, bool *again, struct error *err)
{
    struct checkpoint_entry *entry = &list->entries[at];
    const struct checkpoint_entry *older;
    char folder[FS_PATH_MAX];
    *damaged = true;
    TRY(fs_join(folder, dir, entry->name, STATUS_CHECKPOINT, err));
    enum status status = open_folder(folder, entry, true, full, out, err);
    const struct stat identity = {.st_dev = entry->stamp.device, .st_ino = entry->stamp.folder};
    *again =
        status == STATUS_CHECKPOINT && (identity.st_ino ? !checkpoint_is_still(folder, &identity) : !fs_exists(folder));
    *damaged = status == STATUS_CHECKPOINT && !*again && !error_is_unreadable(err);
    if (status == STATUS_CHECKPOINT && !*again && !*damaged) {
        open_next_ok(list, dir, at + 1, &older, NULL);
        hint_unopened(dir, entry->name, older, err);
    }
    return status;
}

/* One that cannot be read is passed over only if its name shows that it is older. *again: a checkpoint was deleted or
 * replaced meanwhile. */
static enum status open_newest(const char *dir, struct verifier full, struct checkpoint **out, bool *again,
                               struct error *err)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list list = {.count = 0};
    struct error damage, failure; /* err is touched only if none is found */
    *again = false;
    TRY(checkpoint_list_update(&list, dir, false, err));
    list.holds = true; /* what is read to choose is not read again to open */
    enum status status = error_set(&failure, STATUS_CHECKPOINT, "there is no checkpoint in '%s'", dir);
    for (int i = 0;; i++) {
        const struct checkpoint_entry *ok;
        enum status found = open_next_ok(&list, dir, i, &ok, &damage);
        const struct checkpoint_entry *entry = &list.entries[i], *hidden = hidden_before(&list, ok);
        bool damaged = found == STATUS_OK;
        if (damaged && hidden) {
            error_set(&failure, STATUS_CHECKPOINT, "%s", hidden->damage);
            error_cause(&failure, hidden->cause);
            status = hint_unopened(dir, hidden->name, ok, &failure);
            break;
        }
        if (damaged && i >= list.count) break;
        if (damaged && entry->unread) continue;
        if (damaged && entry->ok)
            found = open_entry(&list, dir, i, full, out, &damaged, again, &damage);
        else if (damaged)
            snprintf(damage.text, sizeof damage.text, "%s", entry->damage);
        if (!damaged) {
            status = found;
            if (status == STATUS_OK)
                say_unopened(&list, dir);
            else
                failure = damage;
            break;
        }
        log_warn("the checkpoint '%s/%s' is not used: %s", dir, entry->name, damage.text);
        status = error_set(&failure, STATUS_CHECKPOINT,
                           "none of the %d checkpoints in '%s' is valid; the last one tried: %.1500s", list.count, dir,
                           damage.text);
    }
    *again = status == STATUS_CHECKPOINT && (*again || list.changed);
    if (status == STATUS_CHECKPOINT && !*again && !error_is_unreadable(&failure))
        hint_checkpoint_aside(dir, list.count > 0, &failure);
    if (status != STATUS_OK && err) *err = failure;
    return status;
}

enum status checkpoint_open_verified(const char *dir, checkpoint_verifier *verify, void *context,
                                     struct checkpoint **checkpoint, struct error *err)
{
    const struct verifier full = {verify, context};
    bool is_checkpoint;
    char folder[FS_PATH_MAX];
    TRY(checkpoint_locate(dir, &is_checkpoint, folder, err));
    if (is_checkpoint) return open_folder(folder, NULL, true, full, checkpoint, err);
    enum status status = STATUS_OK;
    bool again = true;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++) status = open_newest(folder, full, checkpoint, &again, err);
    return status;
}

static enum status verify_opened(void *context, const struct checkpoint *checkpoint, struct error *err)
{
    (void)context;
    return checkpoint_verify(checkpoint, err);
}

enum status checkpoint_open(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err)
{
    return checkpoint_open_verified(dir, full ? verify_opened : NULL, NULL, checkpoint, err);
}

enum status checkpoint_open_part(const char *folder, int part, int parts, struct checkpoint **checkpoint,
                                 struct error *err)
{
    bool is_checkpoint;
    char place[FS_PATH_MAX];
    TRY(checkpoint_locate(folder, &is_checkpoint, place, err));
    if (!is_checkpoint) return error_set(err, STATUS_CHECKPOINT, "'%s' is a folder of checkpoints", folder);
    TRY(open_folder(place, NULL, false, (struct verifier){0}, checkpoint, err));
    enum status status = checkpoint_check_part(*checkpoint, part, parts, err);
    if (status != STATUS_OK) checkpoint_close(TAKEN(*checkpoint));
    return status;
}

/* ---- the best one -------------------------------------------------------- */

/* The best of the listed checkpoints that has all of its files; NULL: none has a score. Only the files of those that
 * would be the best are looked at. *again: the run has deleted it meanwhile, which is an error. */
static enum status best_whole(const char *folder, struct checkpoint_list *list, const struct checkpoint_keep *keep,
                              const struct checkpoint_entry **best, bool *again, struct error *err)
{
    char path[FS_PATH_MAX];
    *again = false;
    while ((*best = checkpoint_best(list, keep, INT64_MAX))) {
        struct checkpoint_entry *entry = &list->entries[*best - list->entries];
        TRY(checkpoint_entry_settle(entry, folder, err));
        if (entry->ok) return STATUS_OK;
        TRY(fs_join(path, folder, entry->name, STATUS_CHECKPOINT, err));
        *again = !fs_exists(path);
        if (*again) return error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' was deleted while it was read", path);
        log_warn("the checkpoint '%s' is not used: %s", path, entry->damage);
    }
    return STATUS_OK;
}

static enum status open_listed(const char *folder, struct checkpoint_list *list, struct checkpoint_keep *keep,
                               bool full, struct checkpoint **checkpoint, bool *again, struct error *err)
{
    char path[FS_PATH_MAX];
    struct stat identity;
    const struct checkpoint_entry *best;
    bool found = false; /* scores compare with those of the newest evaluation: of the data that counts now */
    for (int i = 0; i < list->count; i++) {
        const struct checkpoint_entry *entry = &list->entries[i];
        if (!entry->ok) log_warn("the checkpoint '%s/%s' is not used: %s", folder, entry->name, entry->damage);
        if (!found && entry->ok && entry->position.scores.known) keep->data = entry->position.scores.data;
        found |= entry->ok && entry->position.scores.known;
    }
    TRY(best_whole(folder, list, keep, &best, again, err));
    if (!best) {
        *again = list->changed;
        error_set(err, STATUS_CHECKPOINT, "no checkpoint in '%s' was written after an evaluation with %s", folder,
                  eval_metric_name(keep->metric));
        return error_hint(err, "checkpoint.keep_best writes one at each of the best evaluations");
    }
    TRY(fs_join(path, folder, best->name, STATUS_CHECKPOINT, err));
    bool known = checkpoint_identify(path, &identity);
    enum status status = checkpoint_open(path, full, checkpoint, err);
    *again = status == STATUS_CHECKPOINT && (!known || !checkpoint_is_still(path, &identity));
    if (status == STATUS_CHECKPOINT && !*again)
        error_hint(err, "without --best the newest one is taken; 'ztrain verify' shows which ones are whole");
    return status;
}

enum status checkpoint_open_best(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err)
{
    bool is_checkpoint;
    char folder[FS_PATH_MAX];
    struct checkpoint_keep keep;
    TRY(checkpoint_locate(dir, &is_checkpoint, folder, err));
    if (is_checkpoint)
        return error_set(err, STATUS_USAGE,
                         "'%s' is one checkpoint, and the best is chosen among those of a run; hint: name the run "
                         "folder, or leave out --best",
                         dir);
    RELEASED(checkpoint_drop) struct checkpoint *newest = NULL; /* versions without these keys had the defaults */
    TRY(checkpoint_open(dir, false, &newest, err));
    enum eval_metric metric = eval_metric_find(json_string_value(json_object_get(newest->spec, "checkpoint.metric")));
    const char *mode = json_string_value(json_object_get(newest->spec, "checkpoint.mode"));
    keep = (struct checkpoint_keep){.metric = metric == EVAL_METRIC_COUNT ? EVAL_METRIC_LOSS : metric};
    if (mode && strcmp(mode, "auto") != 0) keep.mode = strcmp(mode, "min") ? EVAL_MODE_MAX : EVAL_MODE_MIN;
    enum status status = STATUS_OK;
    bool again = true;
    for (int i = 0; i < CHECKPOINT_TRIES && again; i++) {
        RELEASED(checkpoint_list_release) struct checkpoint_list list = {0};
        TRY(checkpoint_list_init(&list, folder, false, err));
        status = open_listed(folder, &list, &keep, full, checkpoint, &again, err);
    }
    return status;
}
