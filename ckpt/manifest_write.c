/* manifest_write.c: writes manifest.json, and reads it back before it is used: what manifest_decode() makes of the text
 * has to be what was written. */
#include "ckpt/manifest_text.h"

#include "core/hash_digits.h"
#include "core/memory.h"
#include "core/version.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

/* Version 2 has fewer states, for optimizers other than Adam; a checkpoint with all states has version 1. */
_Static_assert(STATE_KIND_COUNT == 3, "a new kind of state needs a new version of the format");

/* ---- members ------------------------------------------------------------- */

/* JSON has no NaN: a number that is not finite becomes a string. */
static json_t *real_to_json(double x)
{
    return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

static json_t *hex_to_json(uint64_t x)
{
    return json_string(hash_digits(x).text);
}

static json_t *scores_to_json(const struct eval_scores *scores)
{
    json_t *object = json_object();
    json_object_set_new(object, "data", hex_to_json(scores->data));
    for (int i = 0; i < EVAL_METRIC_COUNT; i++)
        if (!isnan(scores->values[i]))
            json_object_set_new(object, eval_metric_name((enum eval_metric)i), real_to_json(scores->values[i]));
    return object;
}

static json_t *stopping_to_json(const struct early_stop *stopping, bool stopped)
{
    json_t *object = json_object();
    json_object_set_new(object, "data", hex_to_json(stopping->data));
    json_object_set_new(object, "metric", json_string(eval_metric_name(stopping->metric)));
    json_object_set_new(object, "best", real_to_json(stopping->best));
    json_object_set_new(object, "evaluations", json_integer(stopping->evaluations));
    json_object_set_new(object, "stopped", json_boolean(stopped));
    return object;
}

static json_t *mean_to_json(const struct loss_mean *mean)
{
    json_t *object = json_object();
    json_object_set_new(object, "mean", real_to_json(mean->mean));
    json_object_set_new(object, "steps", json_integer(mean->steps));
    return object;
}

static json_t *position_to_json(const struct train_position *position, enum dtype dtype)
{
    json_t *object = json_object();
    for (size_t i = 0; i < COUNT_OF(position_fields); i++) {
        int64_t value;
        memcpy(&value, (const char *)position + position_fields[i].offset, sizeof value);
        json_object_set_new(object, position_fields[i].name, json_integer(value));
    }
    json_object_set_new(object, "epoch_loss_sum", real_to_json(position->epoch_loss_sum));
    json_object_set_new(object, "epoch_end", json_boolean(position->epoch_end));
    if (position->evaluation_due)
        json_object_set_new(object, "evaluation_due", json_true());
    if (position->scores.known)
        json_object_set_new(object, "evaluation", scores_to_json(&position->scores));
    if (position->stopping.begun)
        json_object_set_new(object, "early_stopping", stopping_to_json(&position->stopping, position->stopped_early));
    if (position->mean_loss.steps)
        json_object_set_new(object, "mean_loss", mean_to_json(&position->mean_loss));
    const struct loss_scaler *scaler = &position->scaler;
    if (dtype == DTYPE_F16) {
        json_t *inner = json_object();
        json_object_set_new(inner, "scale", json_real(scaler->scale));
        json_object_set_new(inner, "steps", json_integer(scaler->steps));
        json_object_set_new(inner, "last_overflow", json_integer(scaler->last_overflow));
        json_object_set_new(inner, "hysteresis", json_integer(scaler->hysteresis));
        json_object_set_new(object, "loss_scaler", inner);
    }
    return object;
}

static void write_member(FILE *out, bool first, const char *name, json_t *value)
{
    fprintf(out, "%s\n \"%s\": ", first ? "" : ",", name);
    if (value && json_is_array(value)) {
        size_t i;
        json_t *element;
        fputs("[", out);
        json_array_foreach(value, i, element)
        {
            fputs(i ? ",\n  " : "\n  ", out);
            json_dumpf(element, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        }
        fputs("\n ]", out);
    } else if (value) {
        json_dumpf(value, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    }
    json_decref(value);
}

static json_t *units_to_json(const struct tensor_table *table, const struct shard_layout *layout)
{
    json_t *units = json_array();
    for (int u = 0; u < table->num_units; u++) {
        json_t *unit = json_pack("{s:s, s:I, s:I}", "name", table->units[u].name, "numel",
                                 (json_int_t)table->units[u].numel, "slice", (json_int_t)layout->slice[u]);
        if (u >= layout->num_trained)
            json_object_set_new(unit, "frozen", json_true());
        json_array_append_new(units, unit);
    }
    return units;
}

static json_t *tensors_to_json(const struct tensor_table *table)
{
    json_t *tensors = json_array();
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *t = &table->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(tensors, json_pack("{s:s, s:i, s:I, s:o}", "name", t->name, "unit", t->unit, "offset",
                                                 (json_int_t)t->offset, "shape", shape));
    }
    return tensors;
}

static json_t *files_to_json(const struct manifest_file *files, int num_files)
{
    json_t *list = json_array();
    for (int i = 0; i < num_files; i++) {
        json_t *file = json_pack("{s:s, s:I}", "name", files[i].name, "bytes", (json_int_t)files[i].bytes);
        if (files[i].num_frames)
            json_object_set_new(file, "frames", json_integer(files[i].num_frames));
        json_object_set_new(file, files[i].num_frames ? "index_checksum" : "checksum", hex_to_json(files[i].checksum));
        json_array_append_new(list, file);
    }
    return list;
}

/* ---- the whole manifest -------------------------------------------------- */

static bool same_real(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static bool same_scores(const struct eval_scores *a, const struct eval_scores *b)
{
    bool same = a->known == b->known && (!a->known || a->data == b->data);
    for (int i = 0; same && a->known && i < EVAL_METRIC_COUNT; i++)
        same = same_real(a->values[i], b->values[i]);
    return same;
}

static bool same_stopping(const struct early_stop *a, const struct early_stop *b)
{
    return a->begun == b->begun && (!a->begun || (a->metric == b->metric && a->data == b->data &&
                                                  same_real(a->best, b->best) && a->evaluations == b->evaluations));
}

static bool same_position(const struct train_position *a, const struct train_position *b, enum dtype dtype)
{
    for (size_t i = 0; i < COUNT_OF(position_fields); i++)
        if (memcmp((const char *)a + position_fields[i].offset, (const char *)b + position_fields[i].offset,
                   sizeof(int64_t)) != 0)
            return false;
    return same_real(a->epoch_loss_sum, b->epoch_loss_sum) && a->epoch_end == b->epoch_end &&
           a->evaluation_due == b->evaluation_due && same_scores(&a->scores, &b->scores) &&
           same_stopping(&a->stopping, &b->stopping) && (!a->stopping.begun || a->stopped_early == b->stopped_early) &&
           a->mean_loss.steps == b->mean_loss.steps && same_real(a->mean_loss.mean, b->mean_loss.mean) &&
           (dtype != DTYPE_F16 ||
            (same_real(a->scaler.scale, b->scaler.scale) && a->scaler.steps == b->scaler.steps &&
             a->scaler.last_overflow == b->scaler.last_overflow && a->scaler.hysteresis == b->scaler.hysteresis));
}

/* Compares units and tensors. */
static bool same_table(const struct manifest *manifest, const struct checkpoint_writer *writer)
{
    const struct tensor_table *table = writer->table;
    bool same = manifest->num_units == table->num_units && manifest->num_tensors == table->num_tensors &&
                manifest->num_trained == writer->layout->num_trained;
    for (int u = 0; same && u < table->num_units; u++)
        same = !strcmp(manifest->units[u].name, table->units[u].name) &&
               manifest->units[u].numel == table->units[u].numel && manifest->slice[u] == writer->layout->slice[u];
    for (int i = 0; same && i < table->num_tensors; i++) {
        const struct manifest_tensor *a = &manifest->tensors[i];
        const struct tensor_info *b = &table->tensors[i];
        same = !strcmp(a->name, b->name) && a->unit == b->unit && a->offset == b->offset && a->ndim == b->ndim &&
               a->numel == b->numel;
    }
    return same;
}

static bool same_files(const struct manifest *manifest, const struct manifest_file *files, int num_files)
{
    bool same = manifest->num_files == num_files;
    for (int i = 0; same && i < num_files; i++)
        same = !strcmp(manifest->files[i].name, files[i].name) && manifest->files[i].bytes == files[i].bytes &&
               manifest->files[i].num_frames == files[i].num_frames && manifest->files[i].checksum == files[i].checksum;
    return same;
}

/* Of members that may be absent. */
static bool same_json(const json_t *a, const json_t *b)
{
    return a && b ? json_equal(a, b) : a == b;
}

/* Reads the text as a resume does and compares it with the state that it describes: without memory jansson's functions
 * may leave out a member. */
static enum status check_encoded(const char *text, size_t bytes, const struct checkpoint_writer *writer,
                                 const struct train_position *position, int num_states,
                                 const struct manifest_file *files, int num_files, struct error *err)
{
    struct manifest *manifest;
    struct error damage;
    enum status status = manifest_decode(text, bytes, MANIFEST_NAME, &manifest, &damage);
    if (status == STATUS_OK) {
        bool same = manifest->num_states == num_states && manifest->world == writer->layout->world &&
                    manifest->dtype == writer->dtype && manifest->compression_level == writer->compression_level &&
                    manifest->data_fingerprint.first == writer->data_fingerprint.first &&
                    manifest->data_fingerprint.sampled == writer->data_fingerprint.sampled &&
                    same_position(&manifest->position, position, writer->dtype) && same_table(manifest, writer) &&
                    same_files(manifest, files, num_files) && json_equal(manifest->spec, writer->spec) &&
                    json_equal(manifest->model, writer->model) && same_json(manifest->machine, writer->machine) &&
                    same_json(manifest->evaluation_part, writer->evaluation_part);
        manifest_free(manifest);
        if (same)
            return STATUS_OK;
        error_set(&damage, STATUS_CHECKPOINT, "it differs from the state that it describes");
    }
    return error_set(
        err, status == STATUS_OK ? STATUS_DEVICE : status,
        "the new checkpoint's manifest cannot be read back: %.1500s; hint: the machine may be out of memory",
        damage.text);
}

enum status manifest_encode(const struct checkpoint_writer *writer, const struct train_position *position,
                            int num_states, const struct manifest_file *files, int num_files, char **text,
                            size_t *bytes, struct error *err)
{
    char now[32];
    struct tm utc;
    time_t seconds = time(NULL);
    gmtime_r(&seconds, &utc);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);

    *text = NULL;
    FILE *out = memory_stream(text, bytes);
    fputs("{", out);
    write_member(out, true, "format", json_string(FORMAT));
    const int version = writer->table->num_frozen ? 3 : num_states == STATE_KIND_COUNT ? 1 : 2;
    write_member(out, false, "format_version", json_integer(version));
    write_member(out, false, "ztrain_version", json_string(ZTRAIN_VERSION));
    write_member(out, false, "time", json_string(now));
    write_member(out, false, "position", position_to_json(position, writer->dtype));
    write_member(out, false, "world", json_integer(writer->layout->world));
    write_member(out, false, "dtype", json_string(dtype_name(writer->dtype)));
    write_member(out, false, "compression_level", json_integer(writer->compression_level));
    json_t *states = json_array();
    for (int s = 0; s < num_states; s++)
        json_array_append_new(states, json_string(state_kind_names[s]));
    write_member(out, false, "states", states);
    write_member(out, false, "frame_elements", json_integer(RANKFILE_FRAME_ELEMENTS));
    write_member(out, false, "spec", json_incref((json_t *)writer->spec));
    write_member(out, false, "model", json_incref((json_t *)writer->model));
    if (writer->machine)
        write_member(out, false, "machine", json_incref((json_t *)writer->machine));
    if (writer->evaluation_part)
        write_member(out, false, "evaluation_part", json_incref((json_t *)writer->evaluation_part));
    if (writer->data_fingerprint.first)
        write_member(out, false, "data_fingerprint", hex_to_json(writer->data_fingerprint.first));
    if (writer->data_fingerprint.sampled)
        write_member(out, false, "data_sample_fingerprint", hex_to_json(writer->data_fingerprint.sampled));
    write_member(out, false, "units", units_to_json(writer->table, writer->layout));
    write_member(out, false, "tensors", tensors_to_json(writer->table));
    write_member(out, false, "files", files_to_json(files, num_files));
    fputs(CHECKSUM_HEAD, out);
    if (fflush(out) == 0)
        fprintf(out, "%s" CHECKSUM_TAIL, hash_digits(XXH3_64bits(*text, *bytes)).text);
    if (fclose(out)) {
        free(*text);
        *text = NULL;
        return error_set(err, STATUS_DEVICE, "out of memory for the checkpoint's manifest");
    }
    enum status status = check_encoded(*text, *bytes, writer, position, num_states, files, num_files, err);
    if (status != STATUS_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
