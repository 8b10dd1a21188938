/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/run_folder.h"

#include "ckpt/checkpoint_folders.h"

/* Whether one of two places is the folder or is inside it. They are absolute, without links. */
static bool home_has(const char *folder, const char *place, const char *other)
{
    char real[PATH_MAX];
    const size_t length = realpath(folder, real) ? strlen(real) : 0;
    /* strchr() also finds the end */
    return length && ((!strncmp(place, real, length) && strchr("/", place[length])) ||
                      (!strncmp(other, real, length) && strchr("/", other[length])));
}

/* Whether the folder is that of a run with this spec's name; of an adapter, with those of the same group. */
static bool is_run_of(const char *folder, const struct run_spec *wanted)
{
    char path[FS_PATH_MAX];
    RELEASED(spec_drop) struct run_spec *spec = NULL;
    RELEASED(spec_report_release) struct spec_report report = {0};
    if (fs_join(path, folder, "checkpoints", STATUS_USAGE, NULL) != STATUS_OK || !fs_is_dir(path) ||
        fs_join(path, folder, "run.yaml", STATUS_USAGE, NULL) != STATUS_OK || !fs_exists(path))
        return false;
    return spec_load(path, NULL, NULL, 0, &spec, &report) == STATUS_OK && !strcmp(spec->run.name, wanted->run.name) &&
           (!wanted->run.group || !strcmp(basename(spec->run.dir), wanted->run.group));
}

/* Finds the run folder of that name from `resume`: the folder itself, its checkpoints/, or one of its checkpoints. */
static bool find_moved_home(const char *resume, const struct run_spec *spec, char path[FS_PATH_MAX])
{
    char up[FS_PATH_MAX];
    strcpy(path, resume);
    for (int level = 0; level < 3; level++) {
        if (is_run_of(path, spec)) return true;
        fs_parent(path, up);
        strcpy(path, up);
    }
    return false;
}

static bool home_has_checkpoint(const char *folder)
{
    char checkpoints[FS_PATH_MAX];
    bool any = false;
    return fs_join(checkpoints, folder, "checkpoints", STATUS_USAGE, NULL) == STATUS_OK &&
           checkpoint_any(checkpoints, true, &any, NULL) == STATUS_OK && any;
}

static bool home_any_has_checkpoint(const char *dir)
{
    char folder[FS_PATH_MAX];
    const struct dirent *entry;
    bool any = false;
    OWNED_DIR *stream = io_opendir(dir);
    while (stream && !any && (entry = io_readdir(stream)))
        any = entry->d_name[0] != '.' && fs_join(folder, dir, entry->d_name, STATUS_USAGE, NULL) == STATUS_OK &&
              home_has_checkpoint(folder);
    return any;
}

const char *run_resume_of(const struct run_spec *spec, const char *resume, char path[FS_PATH_MAX])
{
    char dir[FS_PATH_MAX];
    if (!spec->run.group || !resume || !strcmp(resume, RUN_HOME_AUTO)) return resume;
    snprintf(dir, sizeof dir, "%s", resume);
    if (home_has_checkpoint(resume)) /* one of them, as messages name it */
        fs_parent(resume, dir);
    if (fs_join(path, dir, spec->run.name, STATUS_USAGE, NULL) != STATUS_OK) return resume;
    return home_has_checkpoint(path) || !home_any_has_checkpoint(dir) ? path : RUN_HOME_AUTO;
}

const char *run_home_resume(const struct run_home *home, const char *resume)
{
    if (home->start == RUN_NEW) return NULL;
    return !strcmp(resume, RUN_HOME_AUTO) ? home->path : resume;
}

static const char run_dir_hint[] = "run.dir names the folder in which run folders are made";

enum status run_home_find(const struct run_spec *spec, const char *resume, struct run_home *home, struct error *err)
{
    char target[PATH_MAX], entry[PATH_MAX]; /* where `resume` leads to; the place of its name, maybe a link */
    char above[FS_PATH_MAX], moved[FS_PATH_MAX], checkpoints[FS_PATH_MAX];
    bool any, there;
    memset(home, 0, sizeof *home);
    int n = snprintf(home->path, sizeof home->path, "%s/%s", spec->run.dir, spec->run.name);
    if (n < 0 || (size_t)n >= sizeof home->path)
        return error_set(err, STATUS_USAGE, "run.dir and run.name: the path is longer than %zu bytes",
                         sizeof home->path - 1);
    fs_parent(home->path, above);
    if (fs_find_dir(above, &there, STATUS_USAGE, err) != STATUS_OK) /* the spec names something else than a folder */
        return error_is_unreadable(err) && err->cause != EACCES ? (err->code = STATUS_CHECKPOINT)
                                                                : error_hint(err, "%s", run_dir_hint);
    if (resume && !strcmp(resume, RUN_HOME_AUTO)) {
        /* a checkpoint that cannot be read counts, and is reported when it is opened */
        TRY(fs_join(checkpoints, home->path, "checkpoints", STATUS_USAGE, err));
        TRY(checkpoint_any(checkpoints, true, &any, err));
        home->start = any ? RUN_RESUMED : RUN_NEW;
        return STATUS_OK;
    }
    home->start = resume ? RUN_RESUMED : RUN_NEW;
    if (!resume || strlen(resume) >= FS_PATH_MAX || !realpath(resume, target))
        return STATUS_OK; /* opening it will report that it does not exist */
    fs_parent(resume, above);
    if (!realpath(above, entry) || home_has(home->path, target, entry) ||
        (fs_join(checkpoints, home->path, "checkpoints", STATUS_USAGE, NULL) == STATUS_OK &&
         home_has(checkpoints, target, entry))) /* which may be a link to another disk */
        return STATUS_OK;
    home->moved = !fs_exists(home->path) && find_moved_home(target, spec, moved);
    if (!home->moved) {
        home->start = RUN_BRANCHED;
        return STATUS_OK;
    }
    n = snprintf(home->path, sizeof home->path, "%s", moved);
    if (n < 0 || (size_t)n >= sizeof home->path)
        return error_set(err, STATUS_USAGE, "--resume: the path is longer than %zu bytes", sizeof home->path - 1);
    return STATUS_OK;
}

enum status run_home_check(const struct run_home *home, struct error *err)
{
    char checkpoints[FS_PATH_MAX];
    bool any, of_history;
    static const char *const names[] = {"checkpoints", "log"}; /* nothing else may be in their place */
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct error why;
        char path[FS_PATH_MAX];
        bool there;
        TRY(fs_join(path, home->path, names[i], STATUS_USAGE, err));
        if (checkpoint_find_folder(path, &there, &why) == STATUS_OK || error_is_unreadable(&why))
            continue; /* a disk that does not answer is waited for later */
        *err = why;
        return why.code;
    }
    if (home->start == RUN_RESUMED) return STATUS_OK;
    TRY(fs_join(checkpoints, home->path, "checkpoints", STATUS_USAGE, err));
    TRY(checkpoint_any(checkpoints, false, &any, err));
    if (!any) return STATUS_OK;
    TRY(checkpoint_any(checkpoints, true, &of_history, err));
    error_set(err, STATUS_USAGE, "run folder '%s' already holds checkpoints%s", home->path,
              home->start == RUN_BRANCHED ? ", and --resume names one that lies elsewhere" : "");
    if (!of_history)
        return error_hint(err,
                          "all of them were moved aside: ztrain inspect %s lists them and shows how to resume from "
                          "one; or choose another run.name to start anew",
                          home->path);
    return error_hint(err, "--resume %s to continue the run, or another run.name to %s", home->path,
                      home->start == RUN_BRANCHED ? "branch off into a folder of its own" : "start anew");
}

enum status run_home_check_room(const struct run_home *home, struct error *err)
{
    char nearest[sizeof home->path];
    snprintf(nearest, sizeof nearest, "%s", home->path);
    while (!fs_exists(nearest)) {
        char *slash = strrchr(nearest, '/');
        if (slash > nearest)
            *slash = 0;
        else
            snprintf(nearest, sizeof nearest, slash ? "/" : ".");
    }
    if (faccessat(AT_FDCWD, nearest, W_OK | X_OK, AT_EACCESS) == 0) return STATUS_OK;
    const char *problem =
        errno == EROFS ? "lies on a file system that is read-only" : "may not be written by this user";
    if (strcmp(nearest, home->path) == 0)
        error_set(err, STATUS_USAGE, "run folder '%s' %s", home->path, problem);
    else
        error_set(err, STATUS_USAGE, "cannot make run folder '%s': '%s' %s", home->path, nearest, problem);
    return error_hint(err, "%s", run_dir_hint);
}

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
