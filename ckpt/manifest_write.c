/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/manifest_text.h"
#include "ckpt/state_hash.h"

#include "core/version.h"

#include <xxhash.h>

/* Version 2 has fewer states, for optimizers other than Adam; a checkpoint with all states has version 1. */
_Static_assert(STATE_KIND_COUNT == 3, "a new kind of state needs a new version of the format");

/* ---- members ------------------------------------------------------------- */

/* JSON has no NaN: a number that is not finite becomes a string. */
static json_t *manifest_real(double x)
{
    return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

static json_t *manifest_hex(uint64_t x)
{
    return json_string(hash_digits(x).text);
}

static json_t *scores_to_manifest(const struct eval_scores *scores)
{
    json_t *object = json_object();
    json_object_set_new(object, "data", manifest_hex(scores->data));
    for (int i = 0; i < EVAL_METRIC_COUNT; i++)
        if (!isnan(scores->values[i]))
            json_object_set_new(object, eval_metric_name((enum eval_metric)i), manifest_real(scores->values[i]));
    return object;
}

static json_t *field_to_manifest(const struct field *field, const void *at)
{
    switch (field->type) {
    case FIELD_INTEGER: return json_integer(*(const int64_t *)at);
    case FIELD_INT32: return json_integer(*(const int32_t *)at);
    case FIELD_REAL: return manifest_real(*(const double *)at);
    case FIELD_BOOL: return json_boolean(*(const bool *)at);
    case FIELD_HASH: return manifest_hex(*(const uint64_t *)at);
    case FIELD_METRIC: return json_string(eval_metric_name(*(const enum eval_metric *)at));
    }
    BUG("field type %d", (int)field->type);
}

static json_t *fields_to_manifest(const struct train_position *position, const struct field *fields, size_t count)
{
    json_t *object = json_object();
    for (size_t i = 0; i < count; i++) {
        const void *at = (const char *)position + fields[i].offset;
        if (!fields[i].if_true || *(const bool *)at)
            json_object_set_new(object, fields[i].name, field_to_manifest(&fields[i], at));
    }
    return object;
}
#define FIELDS_TO_JSON(position, fields) fields_to_manifest(position, fields, COUNT_OF(fields))

static json_t *position_to_manifest(const struct train_position *position, enum dtype dtype)
{
    json_t *object = FIELDS_TO_JSON(position, position_fields);
    if (position->scores.known) json_object_set_new(object, "evaluation", scores_to_manifest(&position->scores));
    if (position->stopping.begun)
        json_object_set_new(object, "early_stopping", FIELDS_TO_JSON(position, stopping_fields));
    if (position->mean_loss.steps) json_object_set_new(object, "mean_loss", FIELDS_TO_JSON(position, mean_loss_fields));
    if (dtype == DTYPE_F16) json_object_set_new(object, "loss_scaler", FIELDS_TO_JSON(position, loss_scaler_fields));
    return object;
}

static void write_member(FILE *out, bool first, const char *name, const json_t *value)
{
    fprintf(out, "%s\n \"%s\": ", first ? "" : ",", name);
    if (json_is_array(value)) {
        size_t i;
        json_t *element;
        fputs("[", out);
        json_array_foreach (value, i, element) {
            fputs(i ? ",\n  " : "\n  ", out);
            json_dumpf(element, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        }
        fputs("\n ]", out);
    } else {
        json_dumpf(value, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    }
}

/* Those of frozen units that the run keeps as bytes are as if they were elements: checkpoints do not have them. */
static json_t *units_to_manifest(const struct tensor_table *table, const struct shard_layout *layout)
{
    json_t *units = json_array();
    for (int u = 0; u < table->num_units; u++) {
        const int64_t slice = table->units[u].stored_bytes
                                  ? shard_slice_of(table, table->units[u].numel, layout->world, layout->parts)
                                  : layout->slice[u];
        json_array_append_new(units, json_pack("{ss, sI, sI, so*}", "name", table->units[u].name, "numel",
                                               (json_int_t)table->units[u].numel, "slice", (json_int_t)slice, "frozen",
                                               u >= layout->num_trained ? json_true() : NULL));
    }
    return units;
}

static json_t *tensors_to_manifest(const struct tensor_table *table)
{
    json_t *tensors = json_array();
    for (int i = 0; i < table->num_tensors; i++) {
        const struct tensor_info *t = &table->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->ndim; d++) json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(tensors, json_pack("{s:s, s:i, s:I, s:o}", "name", t->name, "unit", t->unit, "offset",
                                                 (json_int_t)t->offset, "shape", shape));
    }
    return tensors;
}

static json_t *files_to_json(const struct manifest_file *files, int num_files)
{
    json_t *list = json_array();
    for (int i = 0; i < num_files; i++) {
        const int64_t frames = files[i].num_frames;
        json_array_append_new(list,
                              json_pack("{ss, sI, so*, so}", "name", files[i].name, "bytes", (json_int_t)files[i].bytes,
                                        "frames", frames ? json_integer(frames) : NULL,
                                        frames ? "index_checksum" : "checksum", manifest_hex(files[i].checksum)));
    }
    return list;
}

/* ---- the whole manifest -------------------------------------------------- */

static json_t *borrowed(const json_t *value)
{
    return json_incref((json_t *)(uintptr_t)value);
}

static json_t *all_members(const struct checkpoint_writer *writer, const struct train_position *position,
                           int num_states, const uint64_t *hashes, const struct manifest_file *files, int num_files)
{
    char now[32];
    struct tm utc;
    const time_t seconds = time(NULL);
    gmtime_r(&seconds, &utc);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *states = json_array(), *sums = hashes ? json_object() : NULL, *base = NULL, *root = json_object();
    for (int s = 0; s < num_states; s++) {
        json_array_append_new(states, json_string(state_kind_names[s]));
        if (hashes) json_object_set_new(sums, state_hash_name((enum state_kind)s), manifest_hex(hashes[s]));
    }
    if (writer->adapter || writer->base.folder)
        base = json_pack("{so, so*, sI}", "hash", manifest_hex(writer->base.hash), "folder",
                         writer->base.folder ? json_string(writer->base.folder) : NULL, "seed",
                         (json_int_t)writer->base.seed);
    const int version = writer->table->moment_blocks ? 5 : writer->adapter ? 4 : num_states == STATE_KIND_COUNT ? 1 : 2;
    const uint64_t data = writer->data_fingerprint.first, sampled = writer->data_fingerprint.sampled;
    /* a member without a value (NULL) is left out */
    json_object_set_new(root, "format", json_string(FORMAT));
    json_object_set_new(root, "format_version", json_integer(version));
    json_object_set_new(root, "ztrain_version", json_string(ZTRAIN_VERSION));
    json_object_set_new(root, "time", json_string(now));
    json_object_set_new(root, "position", position_to_manifest(position, writer->dtype));
    json_object_set_new(root, "world", json_integer(writer->layout->world));
    json_object_set_new(root, "virtual_ranks", writer->virtual_ranks ? json_integer(writer->virtual_ranks) : NULL);
    json_object_set_new(root, "dtype", json_string(dtype_name(writer->dtype)));
    json_object_set_new(root, "compression_level", json_integer(writer->compression_level));
    json_object_set_new(root, "states", states);
    json_object_set_new(root, "moment_block", writer->table->moment_blocks ? json_integer(MOMENT_BLOCK) : NULL);
    json_object_set_new(root, "hashes", sums);
    json_object_set_new(root, "frame_elements", json_integer(RANKFILE_FRAME_ELEMENTS));
    json_object_set_new(root, "spec", borrowed(writer->spec));
    json_object_set_new(root, "model", borrowed(writer->model));
    json_object_set_new(root, "machine", borrowed(writer->machine));
    json_object_set_new(root, "evaluation_part", borrowed(writer->evaluation_part));
    json_object_set_new(root, "adapter", borrowed(writer->adapter));
    json_object_set_new(root, "base", base);
    json_object_set_new(root, "data_fingerprint", data ? manifest_hex(data) : NULL);
    json_object_set_new(root, "data_sample_fingerprint", sampled ? manifest_hex(sampled) : NULL);
    json_object_set_new(root, "units", units_to_manifest(writer->table, writer->layout));
    json_object_set_new(root, "tensors", tensors_to_manifest(writer->table));
    json_object_set_new(root, "files", files_to_json(files, num_files));
    return root;
}

static void write_text(json_t *root, char **text, size_t *bytes)
{
    FILE *out = memory_stream(text, bytes);
    const char *name;
    json_t *value;
    bool first = true;
    fputs("{", out);
    json_object_foreach (root, name, value) {
        write_member(out, first, name, value);
        first = false;
    }
    fputs(CHECKSUM_HEAD, out);
    fflush(out);
    fprintf(out, "%s" CHECKSUM_TAIL, hash_digits(XXH3_64bits(*text, *bytes)).text);
    fclose(out);
}

enum status manifest_encode(const struct checkpoint_writer *writer, const struct train_position *position,
                            int num_states, const uint64_t *hashes, const struct manifest_file *files, int num_files,
                            char **text, size_t *bytes, struct error *err)
{
    RELEASED(manifest_drop) struct manifest *manifest = NULL;
    struct error damage;
    json_auto_t *root = all_members(writer, position, num_states, hashes, files, num_files);
    write_text(root, text, bytes);
    enum status status = manifest_decode(*text, *bytes, MANIFEST_NAME, &manifest, &damage);
    if (status == STATUS_OK) return STATUS_OK;
    free(TAKEN(*text));
    return error_set(err, status, "the new checkpoint's manifest cannot be read back: %.1500s", damage.text);
}
