/* checkpoint_folders.h: the folder of checkpoints: the names in it, listing, moving aside and deleting. For the files
 * of ckpt/; nothing here is collective.
 *
 *   epoch-0001, step-00000020   checkpoints: exactly the names that ztrain writes (step-%08d, epoch-%04d); a folder
 *                               with any other name, such as step-00000020.best, belongs to the user: it is never
 *                               listed, moved or deleted
 *   X.replaced-N                a valid checkpoint that is being replaced, if two folders cannot be exchanged in one
 *                               call: it counts as a checkpoint until the new X exists
 *   X.damaged-N, X.aside-N      moved out of the way; never read again, unless the user names it
 *   .tmp-…                      half written or half deleted; never read, and deleted by the next save
 *   latest, best                links for people and scripts; ztrain itself reads the folders */
#ifndef ZTRAIN_CKPT_CHECKPOINT_FOLDERS_H
#define ZTRAIN_CKPT_CHECKPOINT_FOLDERS_H

#include "ckpt/checkpoint.h"
#include "core/fsutil.h"

#include <sys/stat.h>

enum { CHECKPOINT_NAME_MAX = 256 };

/* The hint where a run has no checkpoint so far. */
#define CHECKPOINT_NONE_HINT                                                                                         \
    "a run writes one every checkpoint.interval_steps, at the end of an epoch, and when it is asked to stop; until " \
    "then "                                                                                                          \
    "it starts as the first time (--resume auto does either)"

/* A checkpoint folder, with the facts from its manifest. */
struct checkpoint_entry {
    char name[CHECKPOINT_NAME_MAX];
    bool ok;                   /* the manifest is right and, if settled, the file sizes; contents were not read */
    bool settled;              /* the files were looked at (checkpoint_entry_settle()), or the entry is not ok */
    bool unread;               /* not ok, because it could not be read (EIO, EACCES), which is not damage */
    int64_t step;              /* from the manifest; if that cannot be read, from a step-N name; else INT64_MAX */
    bool evaluation_due;       /* from the manifest: a checkpoint after the evaluation of this step is newer */
    bool epoch_end;            /* from the manifest; if that cannot be read, from an epoch-N name */
    int64_t epoch;             /* likewise; 0: unknown */
    int64_t bytes;             /* from the manifest */
    struct eval_scores scores; /* from the manifest: of the evaluation after `step` */
    char *damage;              /* owned; the damage, or the reason why it could not be read; NULL if ok */
    int cause;                 /* if it could not be read: the errno */
    uint64_t inode;            /* of the folder: a folder of this name with another inode is another checkpoint */
};

struct checkpoint_list {
    int count;
    bool changed;                     /* a checkpoint was deleted while it was read, and is not in the list */
    struct checkpoint_entry *entries; /* owned; newest step first, entries of unknown step before all others */
};

/* Lists all checkpoint folders in dir, including those that cannot be read; all entries are settled, which takes a
 * system call for each file of each checkpoint. STATUS_CHECKPOINT: dir cannot be read. */
enum status checkpoint_list_init(struct checkpoint_list *list, const char *dir, struct error *err);
/* Brings a list up to date (it may be empty); opens only the manifests of checkpoints that are new to it or could not
 * be read before, and looks at no other file. On failure the list is empty. */
enum status checkpoint_list_update(struct checkpoint_list *list, const char *dir, struct error *err);
/* Settles an entry: looks at the checkpoint's files, of which there is one for each rank, unless that was done. A
 * missing or short one makes it not ok. An error is a lack of memory. */
enum status checkpoint_entry_settle(struct checkpoint_entry *entry, const char *dir, struct error *err);
/* Lists the checkpoints that were moved aside, X.aside-N and X.damaged-N, by their manifests alone. */
enum status checkpoint_list_aside(struct checkpoint_list *list, const char *dir, struct error *err);
void checkpoint_list_release(struct checkpoint_list *list);

/* The same as checkpoint_any() of checkpoint folders that were not moved aside; from the names alone. */
enum status checkpoint_any_of_course(const char *dir, bool *any, struct error *err);

/* The identity (inode) of the folder that has this name now; false: there is none. */
bool checkpoint_identify(const char *folder, struct stat *identity);
/* Whether the name still belongs to the same folder, which has not been deleted or replaced. */
bool checkpoint_is_still(const char *folder, const struct stat *identity);

/* Whether an entry that could not be read may be of a later position than this one, judging by its name. */
bool checkpoint_may_be_later(const struct checkpoint_entry *unread, const struct train_position *position);

/* Finds out whether `dir` is a checkpoint (*is_checkpoint; folder = dir), or a run folder or its checkpoints/ (folder =
 * the folder of the checkpoints). STATUS_CHECKPOINT: it is neither, or a checkpoint without its manifest. */
enum status checkpoint_locate(const char *dir, bool *is_checkpoint, char folder[FS_PATH_MAX], struct error *err);

/* epoch-NNNN if the position ends an epoch, else step-NNNNNNNN. */
void checkpoint_name(const struct train_position *position, char name[64]);

/* fsync of a folder of checkpoints: its renames are durable. Ticks progress. */
enum status checkpoint_sync(const char *dir, struct error *err);

/* dir/NAME becomes dir/NAME.KIND-N with the first free N. `to` (may be NULL): the new path. */
enum status checkpoint_move_aside(const char *dir, const char *name, const char *kind, char *to, struct error *err);

/* Points dir/LINK ("latest", "best") at NAME: the link is made under another name, then renamed. The link serves people
 * only, so a failure is a warning. */
void checkpoint_point(const char *dir, const char *link, const char *name);
/* Removes the link dir/LINK if it points at nothing, or `always`. */
void checkpoint_unpoint(const char *dir, const char *link, bool always);

/* Deletes a checkpoint: renamed to .tmp-delete-NAME first, so that a half-deleted folder is never taken for a
 * checkpoint. */
enum status checkpoint_delete(const char *dir, const char *name, struct error *err);

/* Deletes a file, or a folder with all its contents. Ticks progress. */
enum status checkpoint_remove_tree(const char *path, struct error *err);

/* Deletes everything in dir whose name begins with .tmp-; a failure is a warning. */
void checkpoint_sweep(const char *dir);

#endif
