/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_folders.h: the folder of checkpoints: the names in it, moving aside and deleting. checkpoint_list.h lists
 * the checkpoints.
 *
 *   epoch-0001, step-00000020   checkpoints: exactly the names that ztrain writes (step-%08d, epoch-%04d); a folder
 *                               with any other name, such as step-00000020.best, belongs to the user: it is never
 *                               listed, moved or deleted
 *   X.replaced-N                a valid checkpoint that is being replaced, if two folders cannot be exchanged in one
 *                               call: it counts as a checkpoint until the new X exists
 *   X.damaged-N, X.aside-N      moved out of the way; never read again, unless the user names it
 *   .tmp-…                      half written or half deleted; never read, and deleted by the next save
 *   latest, best                links for people and scripts; ztrain itself reads the folders */
#pragma once

#include "ckpt/checkpoint.h"
#include "core/core.h"

#include <dirent.h>

enum { CHECKPOINT_NAME_MAX = 256 };

/* The hint where a run has no checkpoint so far. */
#define CHECKPOINT_NONE_HINT                                                                                         \
    "a run writes one every checkpoint.interval_steps, at the end of an epoch, and when it is asked to stop; until " \
    "then "                                                                                                          \
    "it starts as the first time (--resume auto does either)"

/* epoch-NNNN if the position ends an epoch, else step-NNNNNNNN. */
void checkpoint_name(const struct train_position *position, char name[64]);

/* Whether ztrain writes this name. *aside: the folder was moved aside, or is damaged. */
bool checkpoint_own_name(const char *name, bool *aside);

/* fs_find_dir() of a folder of a run, with a hint about a link in its place whose disk is not mounted. */
enum status checkpoint_find_folder(const char *dir, bool *there, struct error *err);

/* Or a link to a folder; one that leads nowhere now counts too. */
bool checkpoint_is_folder(const char *dir, const struct dirent *entry);

/* The inode of the folder of this name; false: no folder has it. */
bool checkpoint_identify(const char *folder, struct stat *identity);
/* Whether the name still belongs to the same folder. */
bool checkpoint_is_still(const char *folder, const struct stat *identity);

/* folder = dir if that is a checkpoint; if it is a run folder or its checkpoints/, the latter. STATUS_CHECKPOINT: it is
 * neither, or a checkpoint without its manifest. */
enum status checkpoint_locate(const char *dir, bool *is_checkpoint, char folder[FS_PATH_MAX], struct error *err);

/* dir/FROM becomes dir/TO; flags of renameat2(). */
enum status checkpoint_rename(const char *dir, const char *from, const char *to, unsigned flags, struct error *err);

/* dir/NAME becomes dir/NAME.KIND-N with the first free N. to: the new path. */
enum status checkpoint_move_aside(const char *dir, const char *name, const char *kind, char to[FS_PATH_MAX],
                                  struct error *err);

/* Points dir/LINK ("latest", "best") at NAME, atomically. A failure is a warning: the link serves people only. */
void checkpoint_point(const char *dir, const char *link, const char *name);
/* Removes the link dir/LINK if it points at nothing, or `always`. */
void checkpoint_unpoint(const char *dir, const char *link, bool always);

/* Deletes a checkpoint: renamed to .tmp-delete-NAME first, so that a half-deleted folder is never taken for one. */
enum status checkpoint_delete(const char *dir, const char *name, struct error *err);

/* Deletes a file, or a folder with all its contents. */
enum status checkpoint_remove_tree(const char *path, struct error *err);

/* Deletes everything in dir whose name begins with .tmp-; a failure is a warning. */
void checkpoint_sweep(const char *dir);

/* ---- small files of a checkpoint that is being written ------------------- */

/* "cannot WHAT 'path': …", of errno. A full disk gets a hint. Returns STATUS_CHECKPOINT. */
enum status checkpoint_io_error(const char *what, const char *path, struct error *err);

/* Creates folder/name, which must not exist, with all of its bytes, and fsyncs it. */
enum status checkpoint_put_file(const char *folder, const char *name, const void *data, size_t bytes,
                                struct error *err);

/* The next read of a file comes from the disk, if that works. */
enum status checkpoint_reads_from_disk(const char *path, struct error *err);
