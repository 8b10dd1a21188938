/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/run_folder.h"

#include "core/core.h"

/* Network file systems may show a new file late. */
static const double appear_patience = 5; /* seconds */

void run_folder_init(struct run_folder *folder, const struct run_home *home)
{
    folder->lock = NULL;
    snprintf(folder->path, sizeof folder->path, "%s", home->path);
    snprintf(folder->checkpoints, sizeof folder->checkpoints, "%s/checkpoints", folder->path);
    snprintf(folder->metrics, sizeof folder->metrics, "%s/metrics.jsonl", folder->path);
}

enum status run_folder_open(struct run_folder *folder, const struct run_home *home, struct error *err)
{
    struct run_lock_config config;
    TRY(fs_mkdirs(folder->path, STATUS_CHECKPOINT, err));
    run_lock_config_init(&config);
    TRY(run_lock_take(&folder->lock, folder->path, &config, err));
    return run_home_check(home, err); /* again: another run may just have ended there */
}

enum status run_folder_still_ours(void *folder, struct error *err)
{
    const struct run_folder *own = folder;
    return own->lock ? run_lock_check(own->lock, err) : STATUS_OK;
}

enum status run_folder_open_log(const struct run_folder *folder, int rank, struct error *err)
{
    char path[3300];
    snprintf(path, sizeof path, "%s/log", folder->path);
    TRY(fs_mkdirs(path, STATUS_CHECKPOINT, err));
    snprintf(path, sizeof path, "%s/log/rank-%05d.log", folder->path, rank);
    return log_open(path, err);
}

enum status run_folder_check_shared(const struct run_folder *folder, const char *nonce, const char *rank_0,
                                    struct error *err)
{
    const double end = seconds_now() + appear_patience;
    while (!run_lock_is_owner(folder->path, nonce)) {
        if (seconds_now() >= end)
            return error_set(err, STATUS_USAGE,
                             "run folder '%s' is not the one of rank 0 on %s: a file made there does not appear here; "
                             "hint: run.dir has to lie on a file system that all nodes share",
                             folder->path, rank_0);
        heartbeat_pause(0.05);
        OWNED_DIR *entries = io_opendir(folder->path); /* makes a network file system look again */
    }
    return STATUS_OK;
}

enum status run_folder_write_spec(const struct run_folder *folder, const struct run_spec *spec, struct error *err)
{
    static const char *const written[] = {"run.yaml", "metrics.jsonl", "comms.json", "kernels-"};
    char path[3300];
    OWNED char *text = NULL;
    size_t length = 0;
    OWNED_DIR *entries = io_opendir(folder->path);
    FILE *out = memory_stream(&text, &length);
    spec_write_yaml(spec, out);
    fclose(out);
    snprintf(path, sizeof path, "%s/run.yaml", folder->path);
    for (struct dirent *entry; entries && (entry = io_readdir(entries));) /* what kills in fs_write_file() have left */
        for (size_t i = 0; i < COUNT_OF(written); i++)
            if (!strncmp(entry->d_name, written[i], strlen(written[i])) && strstr(entry->d_name, ".tmp-") &&
                unlinkat(dirfd(entries), entry->d_name, 0))
                log_warn("cannot delete '%s/%s': %s", folder->path, entry->d_name, strerror(errno));
    enum status status = fs_write_file(path, text, length, STATUS_CHECKPOINT, err);
    if (status != STATUS_OK && (err->cause == ENOSPC || err->cause == EDQUOT))
        error_hint(err, "free space there, and start the run again");
    return status;
}
