#include "cmd/run_folder.h"

#include "ckpt/checkpoint.h"
#include "core/fsutil.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static enum status lock_folder(struct run_folder *folder, struct error *err)
{
    folder->lock_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock_fd < 0)
        return error_set(err, STATUS_USAGE, "cannot open run folder '%s': %s", folder->path, strerror(errno));
    if (flock(folder->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        error_set(err, STATUS_USAGE, "run folder '%s' is in use by another run", folder->path);
        return error_hint(err, "wait for it to end, or give this run another run.name");
    }
    return STATUS_OK; /* a file system without locks: no protection, as everywhere */
}

enum status run_folder_open(struct run_folder *folder, const struct run_spec *spec, int rank, bool resume,
                            struct error *err)
{
    folder->lock_fd = -1;
    int n = snprintf(folder->path, sizeof folder->path, "%s/%s", spec->run.dir, spec->run.name);
    if (n < 0 || (size_t)n >= sizeof folder->path)
        return error_set(err, STATUS_USAGE, "run.dir and run.name: the path is longer than %zu bytes",
                         sizeof folder->path - 1);
    snprintf(folder->checkpoints, sizeof folder->checkpoints, "%s/checkpoints", folder->path);
    snprintf(folder->metrics, sizeof folder->metrics, "%s/metrics.jsonl", folder->path);
    char path[3300];
    snprintf(path, sizeof path, "%s/log", folder->path);
    if (rank == 0 && !resume && checkpoint_any(folder->checkpoints)) {
        error_set(err, STATUS_USAGE, "run folder '%s' already holds checkpoints", folder->path);
        return error_hint(err, "--resume %s to go on, or another run.name to start anew", folder->path);
    }
    TRY(fs_mkdirs(path, STATUS_USAGE, err));
    if (rank == 0)
        TRY(lock_folder(folder, err));
    snprintf(path, sizeof path, "%s/log/rank-%05d.log", folder->path, rank);
    return log_open(path, err);
}

enum status run_folder_write_spec(const struct run_folder *folder, const struct run_spec *spec, struct error *err)
{
    char *text = NULL, path[3300];
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return error_set(err, STATUS_DEVICE, "out of memory");
    spec_write_yaml(spec, out, true);
    fclose(out);
    snprintf(path, sizeof path, "%s/run.yaml", folder->path);
    enum status status = fs_write_file(path, text, length, STATUS_USAGE, err);
    free(text);
    return status;
}

void run_folder_close(struct run_folder *folder)
{
    if (folder->lock_fd >= 0)
        close(folder->lock_fd);
    folder->lock_fd = -1;
}
