/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_list.h: the checkpoints of a folder, with the facts from their manifests.
 *
 * A list is made from the names in the folder. A manifest is read when one of its facts is needed: that of 512 ranks
 * has some 50 KB of text for its files, and a run may have hundreds of checkpoints. What the names tell:
 *
 *   step-N    of step N
 *   epoch-N   of the end of epoch N: later than any position of an earlier epoch, or before the end of this one
 *
 * The order itself is that of the steps in the manifests. */
#pragma once

#include "ckpt/checkpoint_folders.h"
#include "ckpt/manifest.h"

/* By which a checkpoint is known again: another one under its name, another manifest in its folder and a file that came
 * or went change one of these. All zero: the folder or its manifest is not there. */
struct checkpoint_stamp {
    uint64_t device, folder, manifest;        /* inodes */
    int64_t folder_changed, manifest_changed; /* mtime, ns */
    int64_t manifest_bytes;
};

/* A checkpoint folder. Until it is read, it has what its name tells, and the inode. */
struct checkpoint_entry {
    char name[CHECKPOINT_NAME_MAX];
    bool read;                      /* its manifest was read, or cannot be */
    bool ok;                        /* the manifest is right and, if settled, the file sizes; contents were not read */
    bool settled;                   /* the files were looked at (checkpoint_entry_settle()), or the entry is not ok */
    bool unread;                    /* not ok, because it could not be read (EIO, EACCES), which is not damage */
    struct train_position position; /* from the manifest. If that was not read, its name tells the epoch, epoch_end, and
                                       the step; INT64_MAX and 0: it does not */
    int64_t bytes;                  /* from the manifest */
    char *damage;                   /* owned; the damage, or the reason why it could not be read; NULL if ok */
    int cause;                      /* if it could not be read: the errno */
    uint64_t inode;                 /* of the folder: a folder of this name with another inode is another checkpoint */
    struct checkpoint_stamp stamp;  /* from before it was read */
    struct manifest *manifest;      /* owned; what was read, if the list holds manifests; else NULL */
};

struct checkpoint_list {
    int count;
    int ordered;                      /* entries [0, ordered) are in their places, newest first, and were read */
    bool changed;                     /* a checkpoint was deleted before it was read, and is not in the list */
    bool holds;                       /* entries keep the manifests that checkpoint_list_order() reads from now on */
    struct checkpoint_entry *entries; /* owned */
};

/* Lists all checkpoint folders in dir, or those that were moved aside (X.aside-N and X.damaged-N), by their manifests,
 * newest step first, those of unknown step before all others. STATUS_CHECKPOINT: dir cannot be read. */
enum status checkpoint_list_init(struct checkpoint_list *list, const char *dir, bool aside, struct error *err);
/* Brings a list up to date with the names in dir (it may be empty), and opens no file; its order is that of what is
 * known. Entries whose folders are still there keep what was read of them, unless that had failed. On failure the list
 * is empty. */
enum status checkpoint_list_update(struct checkpoint_list *list, const char *dir, bool aside, struct error *err);

/* Puts the `n` newest entries in their places until the next update; reads only what has to be read to choose them. A
 * checkpoint that was deleted meanwhile leaves the list. An error is a lack of memory. */
enum status checkpoint_list_order(struct checkpoint_list *list, const char *dir, int n, struct error *err);
/* Reads the entries that are later than a position, as far as their names tell; NULL: all. Then sorts the list, in
 * which the others have the places that their names give them. */
enum status checkpoint_list_read_later(struct checkpoint_list *list, const char *dir,
                                       const struct train_position *position, struct error *err);
/* Reads the manifest of an entry that was not read yet. One that was deleted meanwhile counts as damaged. */
enum status checkpoint_entry_read(struct checkpoint_entry *entry, const char *dir, struct error *err);
/* Looks at the checkpoint's files, unless that was done. A missing or short one makes it not ok. */
enum status checkpoint_entry_settle(struct checkpoint_entry *entry, const char *dir, struct error *err);
/* Settles an entry. One that has changed since it was read is read anew, and *changed is set: nothing may be deleted
 * because of facts that are no longer true. */
enum status checkpoint_entry_renew(struct checkpoint_entry *entry, const char *dir, bool *changed, struct error *err);
/* Whether the manifest, which was read, has the step or the epoch of the folder's name; a user may rename a folder. */
bool checkpoint_name_fits(const struct checkpoint_entry *entry);

void checkpoint_list_release(struct checkpoint_list *list);

/* Whether an entry may be of a later position than this one, judging by its name, as it was not read. */
bool checkpoint_may_be_later(const struct checkpoint_entry *unread, const struct train_position *position);
