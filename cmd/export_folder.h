/* export_folder.h: the folder that an export writes. It has its name only when it is whole, and an earlier export stays
 * until then; one process at a time writes it.
 *
 *     export_folder_open()       chooses `fresh`, and keeps other exports out
 *     …                          the caller makes `fresh` and writes the model there
 *     export_folder_publish()    gives it its name
 *     export_folder_close() */
#pragma once

#include "core/fsutil.h"
#include "core/status.h"

struct export_folder {
    char out[FS_PATH_MAX];                        /* without links */
    char work[FS_PATH_MAX];                       /* .NAME.ztrain-export beside it, while an export lasts */
    char fresh[FS_PATH_MAX], former[FS_PATH_MAX]; /* in it: the new export; the earlier one, once it has given way */
    struct run_lock *lock;                        /* of `work`; owned; NULL: not open */
};

/* Makes the folders above `out`. STATUS_USAGE: `out` is neither absent nor empty nor an earlier export, cannot be
 * replaced as a whole, or another process exports into it; STATUS_DATA: the folder beside it cannot be made. The caller
 * closes the folder also after an error. */
enum status export_folder_open(struct export_folder *folder, const char *out, struct error *err);

/* Renames `fresh` to `out`, in one call if the file system can exchange two folders. STATUS_DATA: it cannot, and `out`
 * is as it was; STATUS_USAGE: another process has taken over. */
enum status export_folder_publish(struct export_folder *folder, struct error *err);

/* Deletes what is left beside `out`. */
void export_folder_close(struct export_folder *folder);
