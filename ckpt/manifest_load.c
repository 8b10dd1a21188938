/* manifest_load.c: the manifest of a folder, and the files next to it. */
#include "ckpt/manifest.h"

#include "core/fsutil.h"
#include "core/io.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

enum status manifest_check_files(const struct manifest *manifest, const char *folder, int first, int end,
                                 struct error *err)
{
    char path[FS_PATH_MAX];
    for (int i = first; i < end; i++) {
        const struct manifest_file *file = &manifest->files[i];
        struct stat info;
        TRY(fs_join(path, folder, file->name, STATUS_CHECKPOINT, err));
        if (io_stat(path, &info))
            return error_system(err, STATUS_CHECKPOINT, errno, "cannot open '%s'", path);
        if (!S_ISREG(info.st_mode) || info.st_size != file->bytes)
            return error_set(
                err, STATUS_CHECKPOINT,
                "'%s' is damaged at offset %" PRId64 ": it has %" PRId64 " bytes where the manifest has %" PRId64, path,
                info.st_size < file->bytes ? (int64_t)info.st_size : file->bytes, (int64_t)info.st_size, file->bytes);
    }
    return STATUS_OK;
}

enum status manifest_load(const char *folder, bool files, struct manifest **out, struct error *err)
{
    enum status status = STATUS_OK;
    struct manifest *manifest = NULL;
    char path[FS_PATH_MAX], *text = NULL;
    size_t bytes;
    TRY(fs_join(path, folder, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    TRY(fs_read_file(path, MANIFEST_MAX_BYTES, STATUS_CHECKPOINT, &text, &bytes, err));
    TRY_GOTO(manifest_decode(text, bytes, path, &manifest, err));
    if (files)
        TRY_GOTO(manifest_check_files(manifest, folder, 0, manifest->num_files, err));
    free(text);
    *out = manifest;
    return STATUS_OK;
fail:
    free(text);
    manifest_free(manifest);
    return status;
}
