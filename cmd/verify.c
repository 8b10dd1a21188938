/* verify.c: `ztrain verify DIR`: every byte of a checkpoint, or of all checkpoints of a run, against its checksums. */
#include "ckpt/checkpoint_folders.h"
#include "cmd/commands.h"
#include "cmd/unknown_word.h"
#include "core/printable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const OPTIONS[] = {"help"};
static const char USAGE[] =
    "usage: ztrain verify DIR\n"
    "\n"
    "Reads every byte of a checkpoint and compares it with the checksums in its manifest.\n"
    "Exit code 0: all is right; 4: something is damaged or missing (file and offset are named).\n"
    "\n"
    "  DIR    a checkpoint, or a run folder (all of its checkpoints, a line for each)\n";

/* Verifies one folder and prints its line. */
static enum status verify_one(const char *folder, struct error *err)
{
    struct checkpoint *checkpoint;
    enum status status = checkpoint_open(folder, true, &checkpoint, err);
    if (status == STATUS_OK) {
        printf("ok       %s: step %" PRId64 ", %d rank%s, %" PRId64 " bytes\n", PRINTABLE(folder),
               checkpoint->position.step, checkpoint->world, checkpoint->world == 1 ? "" : "s", checkpoint->bytes);
        checkpoint_close(checkpoint);
    }
    return status;
}

/* All of them, newest first; the first fault becomes the command's. */
static enum status verify_all(const char *dir, struct error *err)
{
    struct checkpoint_list list;
    enum status status = STATUS_OK;
    char folder[FS_PATH_MAX];
    int faulty = 0;
    TRY(checkpoint_list_init(&list, dir, err));
    for (int i = 0; i < list.count; i++) {
        struct error fault = {.code = STATUS_OK};
        enum status result = fs_join(folder, dir, list.entries[i].name, STATUS_CHECKPOINT, &fault);
        if (result == STATUS_OK)
            result = verify_one(folder, &fault);
        if (result == STATUS_OK)
            continue;
        printf("damaged  %s: %s\n", PRINTABLE(folder), PRINTABLE(fault.text));
        faulty++;
        if (status == STATUS_OK) {
            status = result;
            *err = fault;
        }
    }
    if (list.count == 0)
        status = error_set(err, STATUS_CHECKPOINT, "there is no checkpoint in '%s'", dir);
    else if (faulty)
        error_prefix(err, "%d of %d checkpoints damaged", faulty, list.count);
    checkpoint_list_release(&list);
    return status;
}

enum status cmd_verify(int argc, char **argv, struct error *err)
{
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(USAGE, stdout);
            return STATUS_OK;
        }
        if (argv[i][0] == '-')
            return unknown_option("verify", argv[i], OPTIONS, COUNT_OF(OPTIONS), err);
        if (dir)
            return error_set(err, STATUS_USAGE, "one folder at a time: '%s' and '%s'; hint: ztrain verify --help", dir,
                             argv[i]);
        dir = argv[i];
    }
    if (!dir)
        return error_set(err, STATUS_USAGE, "no folder was named; hint: ztrain verify DIR");
    bool is_checkpoint;
    char folder[FS_PATH_MAX];
    TRY(checkpoint_locate(dir, &is_checkpoint, folder, err));
    return is_checkpoint ? verify_one(folder, err) : verify_all(folder, err);
}
