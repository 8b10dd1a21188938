/* checkpoint_publish.h: a save under way, and its last part: rank 0 makes a checkpoint of the files that the ranks have
 * written. For checkpoint_save.c, which names the steps. */
#pragma once

#include "ckpt/manifest.h"
#include "comm/agree.h"
#include "core/fsutil.h"

enum { SAVING_UNIQUE_BYTES = 17 }; /* 16 hexadecimal digits */

/* What ranks exchange after a part. */
struct saving_report {
    struct outcome outcome;
    int cause; /* error_cause() */
    char host[256], text[1536];
    struct rankfile_facts facts;
    char unique[SAVING_UNIQUE_BYTES]; /* rank 0's */
    int64_t bytes;                    /* rank 0's, after publication */
};
_Static_assert(sizeof(struct saving_report) <= COMM_EXCHANGE_MAX, "a report must fit in one exchange");

/* The parts of a save; the ranks exchange their outcomes after each. */
enum saving_part { PART_FOLDER, PART_RANK_FILES, PART_PUBLICATION, PARTS };

/* One save on this rank. */
struct checkpoint_saving {
    const struct checkpoint_writer *writer;
    struct train_position position;
    struct state_slices slices;
    enum saving_part part; /* to be done next; PARTS: all are done */
    enum status status;
    struct error err;              /* of this rank's share of `part` */
    struct rankfile_facts facts;   /* of this rank's file */
    struct saving_report *reports; /* [world] owned: of the part before */
    bool made, complete;           /* the folder `tmp` was made by this rank; the checkpoint is published */
    int rank, world, num_states;
    char name[64], unique[SAVING_UNIQUE_BYTES];
    char tmp[FS_PATH_MAX], final[FS_PATH_MAX]; /* folders */
    bool exchanged;                            /* the folder under `tmp` now was under `final` before */
    struct manifest_file *files;               /* [world + the cache's files] owned; rank 0 */
    int num_files;
    int64_t bytes;  /* of all files and the manifest; rank 0 */
    bool peer_lost; /* others may still write under tmp: the next save sweeps it away */
};

/* Steps 3 to 7, on rank 0. `reports` are those of the part in which the ranks wrote their files. A failure after step 5
 * is a warning, unless the folder belongs to another run. */
enum status checkpoint_publish(struct checkpoint_saving *save, struct error *err);
