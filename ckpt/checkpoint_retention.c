/* checkpoint_retention.c: see checkpoint_retention.h. */
#include "ckpt/checkpoint_retention.h"

#include "core/log.h"

#include <inttypes.h>
#include <string.h>

/* Whether `name` is X.replaced-N and X exists, so that the replaced checkpoint is no longer needed. */
static bool is_replaced(const char *dir, const char *name)
{
    char path[FS_PATH_MAX];
    const char *suffix = strstr(name, ".replaced-");
    if (!suffix || fs_join(path, dir, name, STATUS_CHECKPOINT, NULL) != STATUS_OK)
        return false;
    path[strlen(path) - strlen(suffix)] = '\0';
    return fs_is_dir(path);
}

static enum status move_later_aside(const char *dir, const struct checkpoint_entry *entry, struct error *err)
{
    char aside[FS_PATH_MAX];
    TRY(checkpoint_move_aside(dir, entry->name, "aside", aside, err));
    log_warn("the checkpoint '%s/%s' is of step %" PRId64 ", which this run has not reached again yet; it is now '%s'",
             dir, entry->name, entry->step, aside);
    return STATUS_OK;
}

void checkpoint_retention_apply(const char *dir, const char *name, int64_t step, int64_t keep_last,
                                struct checkpoint_list *known)
{
    struct error err;
    if (checkpoint_list_update(known, dir, &err) != STATUS_OK) {
        log_warn("%s", err.text);
        return;
    }
    int64_t kept = 1, keep = keep_last ? keep_last : INT64_MAX;
    for (int i = 0; i < known->count; i++) {
        const struct checkpoint_entry *entry = &known->entries[i];
        if (!entry->ok || !strcmp(entry->name, name))
            continue;
        enum status status = STATUS_OK;
        if (entry->step > step)
            status = move_later_aside(dir, entry, &err);
        else if (kept == keep || is_replaced(dir, entry->name))
            status = checkpoint_delete(dir, entry->name, &err);
        else
            kept++;
        if (status != STATUS_OK)
            log_warn("%s", err.text);
    }
}
