/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/metrics_reader.h"

#include "core/core.h"

enum status metrics_reader_open(struct metrics_reader *reader, const char *path, struct error *err)
{
    *reader = (struct metrics_reader){.path = path};
    return fs_open_stream(path, STATUS_CHECKPOINT, &reader->file, err);
}

void metrics_reader_close(struct metrics_reader *reader)
{
    if (reader->file) fclose(reader->file);
    json_decref(reader->object);
    free(reader->text);
    *reader = (struct metrics_reader){.file = NULL};
}

bool metrics_reader_next(struct metrics_reader *reader)
{
    json_decref(TAKEN(reader->object));
    reader->step = 0;
    if (!reader->file) return false;
    struct slow_call call;
    heartbeat_slow_begin(&call, "reading", reader->path, -1);
    ssize_t n = memory_getline(&reader->text, &reader->room, reader->file);
    heartbeat_slow_end(&call);
    if (n < 0) return false;
    heartbeat_beat();
    reader->length = (size_t)n;
    reader->number++;
    json_t *object = json_loadb(reader->text, reader->length, 0, NULL), *step = json_object_get(object, "step");
    if (json_is_integer(step)) {
        reader->object = object;
        reader->step = json_integer_value(step);
    } else {
        json_decref(object);
    }
    return true;
}

enum status metrics_reader_check(const struct metrics_reader *reader, struct error *err)
{
    return ferror(reader->file)
               ? error_set(err, STATUS_CHECKPOINT, "cannot read '%s': %s", reader->path, strerror(errno))
               : STATUS_OK;
}

const char *metrics_reader_folder(const struct metrics_reader *reader, const char *member)
{
    const char *path = json_string_value(json_object_get(reader->object, member));
    return path ? basename(path) : "";
}
