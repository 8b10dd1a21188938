/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: `ztrain verify DIR` compares every byte of the checkpoints with their checksums. */
#include "ckpt/checkpoint_list.h"
#include "cmd/command_line.h"

static const char USAGE[] =
    "usage: ztrain verify DIR\n\n"
    "Reads every byte of a checkpoint and compares it with the checksums in its manifest.\n"
    "Exit code 0: everything is intact; 4: something is damaged or missing (file and offset are named), or\n"
    "cannot be read now (EIO, EACCES), which is not damage.\n"
    "A run may train meanwhile: a checkpoint that it deletes or replaces is not damaged.\n\n"
    "  DIR    a checkpoint, or a run folder (all of its checkpoints, a line for each)\n";

enum verify_outcome { OUTCOME_OK, OUTCOME_DAMAGED, OUTCOME_UNREAD, OUTCOME_GONE };

/* Prints an intact folder's line; err has others' faults. listed: among checkpoints, where others are damage. */
static enum verify_outcome verify_one(const char *folder, bool listed, struct error *err)
{
    for (int i = 0; i < CHECKPOINT_TRIES; i++) {
        struct stat before;
        RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
        bool there, is_checkpoint;
        if (fs_find_dir(folder, &there, STATUS_CHECKPOINT, err) != STATUS_OK) return OUTCOME_UNREAD;
        if (!checkpoint_identify(folder, &before)) break;
        char place[FS_PATH_MAX];
        if (listed && checkpoint_locate(folder, &is_checkpoint, place, err) == STATUS_OK && !is_checkpoint)
            error_set(err, STATUS_CHECKPOINT, "'%s' has a checkpoint's name, and is a folder of checkpoints", folder);
        else if (checkpoint_open(folder, true, &checkpoint, err) == STATUS_OK) {
            printf("ok       %s: step %" PRId64 ", %d rank%s, %" PRId64 " bytes\n", PRINTABLE(folder),
                   checkpoint->position.step, checkpoint->world, PLURAL(checkpoint->world), checkpoint->bytes);
            return OUTCOME_OK;
        }
        if (checkpoint_is_still(folder, &before)) return error_is_unreadable(err) ? OUTCOME_UNREAD : OUTCOME_DAMAGED;
    }
    error_set(err, STATUS_CHECKPOINT, "the checkpoint '%s' was deleted or replaced while it was read", folder);
    return OUTCOME_GONE;
}

struct tally {
    int ok, damaged, unread;
    struct error first; /* fault: of a damaged checkpoint if there is one, else of one that cannot be read */
};

static enum status verify_list(const struct checkpoint_list *list, const char *dir, struct tally *tally,
                               struct error *err)
{
    char folder[FS_PATH_MAX];
    for (int i = 0; i < list->count; i++) {
        struct error fault = {.code = STATUS_OK};
        TRY(fs_join(folder, dir, list->entries[i].name, STATUS_CHECKPOINT, err));
        switch (verify_one(folder, true, &fault)) {
        case OUTCOME_OK: tally->ok++; break;
        case OUTCOME_GONE: printf("gone     %s: deleted or replaced while it was read\n", PRINTABLE(folder)); break;
        case OUTCOME_UNREAD:
            printf("unread   %s: %s\n", PRINTABLE(folder), PRINTABLE(fault.text));
            if (!tally->unread++ && !tally->damaged) tally->first = fault;
            break;
        case OUTCOME_DAMAGED:
            if (fault.code != STATUS_CHECKPOINT) { /* out of memory is not damage */
                *err = fault;
                return fault.code;
            }
            printf("damaged  %s: %s\n", PRINTABLE(folder), PRINTABLE(fault.text));
            if (!tally->damaged++) tally->first = fault;
        }
    }
    return STATUS_OK;
}

static enum status nothing_to_verify(const char *dir, struct error *err)
{
    RELEASED(checkpoint_list_release) struct checkpoint_list aside = {0};
    error_set(err, STATUS_CHECKPOINT, "there is no checkpoint in '%s'", dir);
    checkpoint_list_init(&aside, dir, true, NULL);
    if (!aside.count) return STATUS_CHECKPOINT;
    return error_hint(err, "ztrain inspect %s lists the %d that %s set aside; each can be verified by its name", dir,
                      aside.count, aside.count == 1 ? "is" : "are");
}

/* Verifies all, newest first; the first fault is the command's. If all that were listed are gone, it lists again. */
static enum status verify_all(const char *dir, struct error *err)
{
    struct tally tally = {.ok = 0};
    for (int i = 0; i < CHECKPOINT_TRIES && !tally.ok && !tally.damaged && !tally.unread; i++) {
        RELEASED(checkpoint_list_release) struct checkpoint_list list = {0};
        TRY(checkpoint_list_init(&list, dir, false, err));
        TRY(list.count ? verify_list(&list, dir, &tally, err) : nothing_to_verify(dir, err));
    }
    int faults = tally.damaged + tally.unread;
    if (tally.ok && !faults) return STATUS_OK;
    if (!faults)
        return error_set(err, STATUS_CHECKPOINT, "each checkpoint in '%s' was deleted or replaced while it was read",
                         dir);
    *err = tally.first;
    return tally.damaged ? error_prefix(err, "%d of %d checkpoints damaged", tally.damaged, faults + tally.ok)
                         : error_prefix(err, "%d of %d checkpoints cannot be read", tally.unread, faults + tally.ok);
}

enum status cmd_verify(int argc, char **argv, struct error *err)
{
    static const struct command_line line = {"verify", USAGE, "folder", 1, "ztrain verify DIR", NULL, 0};
    const char *dir = NULL;
    TRY(command_line_parse(&line, argc, argv, &dir, err));
    bool is_checkpoint;
    char folder[FS_PATH_MAX];
    TRY(checkpoint_locate(dir, &is_checkpoint, folder, err));
    if (!is_checkpoint) return verify_all(folder, err);
    return verify_one(folder, false, err) == OUTCOME_OK ? STATUS_OK : err->code;
}
