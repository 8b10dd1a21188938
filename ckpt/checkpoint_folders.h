/* checkpoint_folders.h: the folder that checkpoints lie in: their names, which there are, which are in the way, which
 * go. For checkpoint_save.c and checkpoint_read.c; nothing here is collective.
 *
 *   epoch-0001, step-00000020   checkpoints: exactly the names that ztrain writes (step-%08d, epoch-%04d); any other
 *                               name, as step-00000020.best, is the user's: not listed, not moved, not deleted
 *   X.replaced-N                a valid checkpoint on its way out, where two folders cannot be exchanged in one call:
 *                               it counts as a checkpoint until the new X is there
 *   X.damaged-N, X.aside-N      moved out of the way; never looked at again, unless named
 *   .tmp-…                      half written, or half deleted: never read, swept away by the next save
 *   latest                      a link for people and scripts; ztrain itself reads the folders */
#ifndef ZTRAIN_CKPT_CHECKPOINT_FOLDERS_H
#define ZTRAIN_CKPT_CHECKPOINT_FOLDERS_H

#include "ckpt/checkpoint.h"
#include "core/fsutil.h"

#include <sys/stat.h>

enum { CHECKPOINT_NAME_MAX = 256 };

/* A checkpoint folder, and what its manifest (and its files' sizes) say. */
struct checkpoint_entry {
    char name[CHECKPOINT_NAME_MAX];
    bool ok;             /* manifest and sizes are right; contents were not looked at */
    bool unread;         /* not ok: the disk failed to read it (EIO, EACCES), which is not damage */
    int64_t step;        /* of the manifest; where that cannot be read, from a step-N name; else INT64_MAX */
    bool evaluation_due; /* of the manifest: another one of this step was made after it */
    bool epoch_end;      /* of the manifest; where that cannot be read, from an epoch-N name */
    int64_t epoch;       /* the same; 0: unknown */
    int64_t bytes;       /* of the manifest */
    char *damage;        /* owned; what is damaged, or why it could not be read; NULL if ok */
    int cause;           /* where it could not be read: the errno */
    uint64_t inode;      /* of the folder: another one of that name is another checkpoint */
};

struct checkpoint_list {
    int count;
    bool changed;                     /* one was deleted while it was read, and is left out */
    struct checkpoint_entry *entries; /* owned; by step, newest first; those of unknown step before all */
};

/* All checkpoint folders in dir, with those that cannot be read. A dir that cannot be read is STATUS_CHECKPOINT. */
enum status checkpoint_list_init(struct checkpoint_list *list, const char *dir, struct error *err);
/* Brings a list (or an empty one) up to date; opens only what it has not listed yet, or could not read. On failure it
 * is empty. */
enum status checkpoint_list_update(struct checkpoint_list *list, const char *dir, struct error *err);
/* The same of those that were moved aside: X.aside-N and X.damaged-N. */
enum status checkpoint_list_aside(struct checkpoint_list *list, const char *dir, struct error *err);
void checkpoint_list_release(struct checkpoint_list *list);

/* Which folder has that name now: false, if none has. */
bool checkpoint_identify(const char *folder, struct stat *identity);
/* Whether it is still the same one, and not deleted or replaced. */
bool checkpoint_is_still(const char *folder, const struct stat *identity);

/* Whether an entry that could not be read may be of a later position than this one, as far as its name says. */
bool checkpoint_may_be_later(const struct checkpoint_entry *unread, const struct train_position *position);

/* What `dir` is: a checkpoint (*is_checkpoint; folder = dir), or a run folder or its checkpoints/ (folder = where the
 * checkpoints lie). STATUS_CHECKPOINT if it is neither, or a checkpoint without its manifest. */
enum status checkpoint_locate(const char *dir, bool *is_checkpoint, char folder[FS_PATH_MAX], struct error *err);

/* epoch-NNNN if the position ends an epoch, else step-NNNNNNNN. */
void checkpoint_name(const struct train_position *position, char name[64]);

/* fsync of a folder of checkpoints: its renames are durable. Ticks progress. */
enum status checkpoint_sync(const char *dir, struct error *err);

/* dir/NAME becomes dir/NAME.KIND-N with the first free N. `to` (may be NULL): the new path. */
enum status checkpoint_move_aside(const char *dir, const char *name, const char *kind, char *to, struct error *err);

/* Points dir/latest at NAME: made under another name, then renamed. It is a service to people: what stands in its way
 * is a warning. */
void checkpoint_point_latest(const char *dir, const char *name);

/* Deletes a checkpoint: renamed to .tmp-delete-NAME first, so that no half of it is ever taken for one. */
enum status checkpoint_delete(const char *dir, const char *name, struct error *err);

/* Deletes a file or a folder with all that is in it. Ticks progress. */
enum status checkpoint_remove_tree(const char *path, struct error *err);

/* Deletes everything in dir whose name begins with .tmp-; what cannot be deleted is a warning. */
void checkpoint_sweep(const char *dir);

#endif
