/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_read.c: checks size, the fixed end, the checksum, JSON, then every member with its type and range. Numbers
 * are below 2^53, because other programs may read them as doubles. */
#include "ckpt/manifest_text.h"
#include "ckpt/state_hash.h"

#include "core/metrics/eval_part.h"

#include <xxhash.h>

enum { TAIL_BYTES = HASH_DIGITS + sizeof CHECKSUM_TAIL - 1 };
#define NUMBER_MAX ((int64_t)1 << 53)

void manifest_rank_name(int rank, char name[MANIFEST_NAME_MAX])
{
    snprintf(name, MANIFEST_NAME_MAX, "rank-%05d.zst", rank);
}

struct rankfile_shape manifest_shape(const struct manifest *manifest, int rank)
{
    return (struct rankfile_shape){
        .rank = rank,
        .world = manifest->facts.world,
        .num_states = manifest->facts.num_states,
        .num_units = manifest->num_trained,
        .slice = manifest->slice,
        .state_name = state_kind_names,
        .moments = manifest->moments,
    };
}

/* ---- members ------------------------------------------------------------- */

struct place {
    const char *path; /* of the manifest */
    const char *list; /* "units", "position", …; "": the top */
    int index;        /* in the list; -1: not a list */
    const json_t *object;
};

static enum status bad_manifest(const struct place *at, const char *member, struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "'manifest.json' is damaged: units[3].numel: WHAT" */
static enum status bad_manifest(const struct place *at, const char *member, struct error *err, const char *format, ...)
{
    char what[512], index[32] = "";
    WITH_ARGS(format, vsnprintf(what, sizeof what, format, args));
    if (at->index >= 0) snprintf(index, sizeof index, "[%d]", at->index);
    return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged: %s%s%s%s: %s", at->path, at->list, index,
                     *at->list && *member ? "." : "", member, what);
}

static enum status manifest_get_integer(const struct place *at, const char *member, int64_t min, int64_t max,
                                        int64_t *out, struct error *err)
{
    const json_t *value = json_object_get(at->object, member);
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
        return bad_manifest(at, member, err, "expected an integer from %" PRId64 " to %" PRId64, min, max);
    *out = json_integer_value(value);
    return STATUS_OK;
}

static enum status manifest_get_int(const struct place *at, const char *member, int min, int max, int *out,
                                    struct error *err)
{
    int64_t value = 0;
    TRY(manifest_get_integer(at, member, min, max, &value, err));
    *out = (int)value;
    return STATUS_OK;
}

static enum status manifest_get_string(const struct place *at, const char *member, const char **out, struct error *err)
{
    *out = json_string_value(json_object_get(at->object, member));
    return *out ? STATUS_OK : bad_manifest(at, member, err, "expected a string");
}

static enum status manifest_get_checksum(const struct place *at, const char *member, uint64_t *out, struct error *err)
{
    const char *digits;
    TRY(manifest_get_string(at, member, &digits, err));
    return hash_digits_parse(digits, out)
               ? STATUS_OK
               : bad_manifest(at, member, err, "expected %d hexadecimal digits", HASH_DIGITS);
}

static enum status manifest_get_real(const struct place *at, const char *member, double *out, struct error *err)
{
    const json_t *value = json_object_get(at->object, member);
    const char *word = json_string_value(value);
    if (json_is_number(value))
        *out = json_number_value(value);
    else if (word && !strcmp(word, "nan"))
        *out = NAN;
    else if (word && (!strcmp(word, "inf") || !strcmp(word, "-inf")))
        *out = *word == '-' ? -INFINITY : INFINITY;
    else
        return bad_manifest(at, member, err, "expected a number");
    return STATUS_OK;
}

static enum status manifest_get_object(const struct place *at, const char *member, json_t **out, struct error *err)
{
    *out = json_object_get(at->object, member);
    return json_is_object(*out) ? STATUS_OK : bad_manifest(at, member, err, "expected an object");
}

static enum status manifest_get_list(const struct place *at, const char *member, int max, json_t **out, int *count,
                                     struct error *err)
{
    *out = json_object_get(at->object, member);
    if (!json_is_array(*out) || json_array_size(*out) < 1 || json_array_size(*out) > (size_t)max)
        return bad_manifest(at, member, err, "expected a list of 1 to %d elements", max);
    *count = (int)json_array_size(*out);
    return STATUS_OK;
}

/* ---- the sections -------------------------------------------------------- */

static enum status read_field(const struct place *at, const struct field *field, void *out, struct error *err)
{
    const json_t *value = json_object_get(at->object, field->name);
    switch (field->type) {
    case FIELD_INTEGER: return manifest_get_integer(at, field->name, field->min, NUMBER_MAX, out, err);
    case FIELD_INT32: return manifest_get_int(at, field->name, (int)field->min, INT32_MAX, out, err);
    case FIELD_REAL: return manifest_get_real(at, field->name, out, err);
    case FIELD_HASH: return manifest_get_checksum(at, field->name, out, err);
    case FIELD_BOOL:
        if ((value || !field->if_true) && !json_is_boolean(value))
            return bad_manifest(at, field->name, err, "expected true or false");
        *(bool *)out = json_is_true(value);
        return STATUS_OK;
    case FIELD_METRIC:
        *(enum eval_metric *)out = eval_metric_find(json_string_value(value));
        if (*(enum eval_metric *)out == EVAL_METRIC_COUNT)
            return bad_manifest(at, field->name, err, "expected the name of a metric");
        return STATUS_OK;
    }
    BUG("field type %d", (int)field->type);
}

/* The fields of an object; part: "position", or a part of it. */
static enum status read_fields(const struct place *top, const char *part, const json_t *object,
                               const struct field *fields, size_t count, struct train_position *position,
                               struct error *err)
{
    const struct place at = {top->path, part, -1, object};
    if (!json_is_object(object)) return bad_manifest(&at, "", err, "expected an object");
    for (size_t i = 0; i < count; i++) TRY(read_field(&at, &fields[i], (char *)position + fields[i].offset, err));
    return STATUS_OK;
}

/* May be absent: there was no evaluation after this step. */
static enum status read_scores(const struct place *top, const json_t *object, struct eval_scores *scores,
                               struct error *err)
{
    struct place at = {top->path, "position.evaluation", -1, object};
    if (!object) return STATUS_OK;
    if (!json_is_object(object)) return bad_manifest(&at, "", err, "expected an object");
    scores->known = true;
    TRY(manifest_get_checksum(&at, "data", &scores->data, err));
    for (int i = 0; i < EVAL_METRIC_COUNT; i++) {
        const char *name = eval_metric_name((enum eval_metric)i);
        scores->values[i] = NAN;
        if (json_object_get(object, name)) TRY(manifest_get_real(&at, name, &scores->values[i], err));
    }
    return STATUS_OK;
}

/* Parts may be absent: without an evaluation after this step, train.early_stopping, train.spike_factor, and fp16. */
static enum status read_position(const struct place *top, struct manifest *manifest, struct error *err)
{
    struct train_position *position = &manifest->facts.position;
    json_t *object, *part;
    TRY(manifest_get_object(top, "position", &object, err));
    TRY(read_fields(top, "position", object, position_fields, COUNT_OF(position_fields), position, err));
    TRY(read_scores(top, json_object_get(object, "evaluation"), &position->scores, err));
    if ((part = json_object_get(object, "early_stopping"))) {
        TRY(read_fields(top, "position.early_stopping", part, stopping_fields, COUNT_OF(stopping_fields), position,
                        err));
        position->stopping.begun = true;
    }
    if ((part = json_object_get(object, "mean_loss")))
        TRY(read_fields(top, "position.mean_loss", part, mean_loss_fields, COUNT_OF(mean_loss_fields), position, err));
    if (!(part = json_object_get(object, "loss_scaler"))) return STATUS_OK;
    const struct place at = {top->path, "position.loss_scaler", -1, part};
    TRY(read_fields(top, at.list, part, loss_scaler_fields, COUNT_OF(loss_scaler_fields), position, err));
    return position->scaler.scale > 0 && isfinite(position->scaler.scale)
               ? STATUS_OK
               : bad_manifest(&at, "scale", err, "expected a positive number");
}

/* May be absent. Its texts go into messages, so they must be printable. */
static enum status read_machine(const struct place *top, struct manifest *manifest, struct error *err)
{
    const char *name;
    json_t *value;
    if (!json_object_get(top->object, "machine")) return STATUS_OK;
    TRY(manifest_get_object(top, "machine", &manifest->facts.machine, err));
    json_object_foreach (manifest->facts.machine, name, value) {
        if (json_is_boolean(value) || json_is_integer(value)) continue;
        const char *text = json_string_value(value);
        while (text && *text >= ' ' && *text <= '~') text++;
        if (!text || *text)
            return bad_manifest(top, "machine", err, "expected printable texts, integers, true or false");
    }
    return STATUS_OK;
}

/* May be absent: no evaluation was broken off, or nothing of it was done. */
static enum status read_evaluation_part(const struct place *top, struct manifest *manifest, struct error *err)
{
    RELEASED(eval_part_release) struct eval_part part = {0};
    manifest->facts.evaluation_part = json_object_get(top->object, "evaluation_part");
    if (!manifest->facts.evaluation_part) return STATUS_OK;
    return eval_part_from_json(manifest->facts.evaluation_part, top->path, &part, err);
}

/* May be absent: the run has no adapter, nor is it of a multimodal folder. */
static enum status read_adapter(const struct place *top, struct manifest *manifest, struct error *err)
{
    struct place at = {top->path, "base", -1, NULL};
    struct checkpoint_base *base = &manifest->facts.base;
    json_t *object;
    if (json_object_get(top->object, "adapter"))
        TRY(manifest_get_object(top, "adapter", &manifest->facts.adapter, err));
    else if (!json_object_get(top->object, "base"))
        return STATUS_OK;
    TRY(manifest_get_object(top, "base", &object, err));
    at.object = object;
    TRY(manifest_get_checksum(&at, "hash", &base->hash, err));
    if (json_object_get(object, "folder")) TRY(manifest_get_string(&at, "folder", &base->folder, err));
    return manifest_get_integer(&at, "seed", 0, INT64_MAX, &base->seed, err);
}

static enum status read_head(const struct place *top, struct manifest *manifest, int *out_version, struct error *err)
{
    const char *format, *dtype;
    int version, level;
    TRY(manifest_get_string(top, "format", &format, err));
    if (strcmp(format, FORMAT) != 0)
        return bad_manifest(top, "format", err, "expected '%s', not '%.40s'", FORMAT, format);
    TRY(manifest_get_int(top, "format_version", 1, 1000000, &version, err));
    *out_version = version;
    if (version > MANIFEST_VERSION || version == 3)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' has format version %d; this ztrain reads versions 1, 2, 4 and %d", top->path, version,
                         MANIFEST_VERSION);
    TRY(manifest_get_int(top, "world", 1, MANIFEST_MAX_WORLD, &manifest->facts.world, err));
    TRY(manifest_get_int(top, "compression_level", 0, 100, &level, err));
    if (json_object_get(top->object, "data_fingerprint"))
        TRY(manifest_get_checksum(top, "data_fingerprint", &manifest->facts.data_fingerprint.first, err));
    if (json_object_get(top->object, "data_sample_fingerprint"))
        TRY(manifest_get_checksum(top, "data_sample_fingerprint", &manifest->facts.data_fingerprint.sampled, err));
    TRY(manifest_get_string(top, "dtype", &dtype, err));
    manifest->facts.dtype = dtype_find(dtype);
    if (manifest->facts.dtype == DTYPE_COUNT)
        return bad_manifest(top, "dtype", err, "expected fp32, bf16 or fp16, not '%.40s'", dtype);

    json_t *states;
    int frame_elements;
    TRY(manifest_get_list(top, "states", STATE_KIND_COUNT, &states, &manifest->facts.num_states, err));
    for (int s = 0; s < (version == 1 ? STATE_KIND_COUNT : manifest->facts.num_states); s++) {
        const char *name = json_string_value(json_array_get(states, (size_t)s));
        if (!name || strcmp(name, state_kind_names[s]) != 0)
            return bad_manifest(top, "states", err, "expected master, exp_avg, exp_avg_sq%s",
                                version == 1 ? "" : ", or the first ones of these");
    }
    TRY(manifest_get_int(top, "frame_elements", RANKFILE_FRAME_ELEMENTS, RANKFILE_FRAME_ELEMENTS, &frame_elements,
                         err));
    TRY(manifest_get_object(top, "spec", &manifest->facts.spec, err));
    return manifest_get_object(top, "model", &manifest->facts.model, err);
}

/* May be absent: an earlier ztrain has written the manifest, or the run has no virtual ranks. */
static enum status read_hashes(const struct place *top, struct manifest *manifest, struct error *err)
{
    struct place at = {top->path, "hashes", -1, NULL};
    json_t *object;
    if (json_object_get(top->object, "virtual_ranks")) {
        TRY(manifest_get_int(top, "virtual_ranks", 1, MANIFEST_MAX_WORLD, &manifest->facts.virtual_ranks, err));
        if (manifest->facts.virtual_ranks % manifest->facts.world)
            return bad_manifest(top, "virtual_ranks", err, "expected a multiple of %d ranks", manifest->facts.world);
    }
    manifest->facts.hashed = json_object_get(top->object, "hashes");
    if (!manifest->facts.hashed) return STATUS_OK;
    TRY(manifest_get_object(top, "hashes", &object, err));
    at.object = object;
    for (int s = 0; s < manifest->facts.num_states; s++)
        TRY(manifest_get_checksum(&at, state_hash_name((enum state_kind)s), &manifest->facts.hashes[s], err));
    return STATUS_OK;
}

/* Of an adapter's base a unit may have no elements, because all of it is frozen. */
static enum status read_units(const struct place *top, struct manifest *manifest, int version, struct error *err)
{
    json_t *list;
    TRY(manifest_get_list(top, "units", 1 << 20, &list, &manifest->num_units, err));
    manifest->units = memory_zeroed((size_t)manifest->num_units, sizeof *manifest->units);
    manifest->slice = memory_zeroed((size_t)manifest->num_units, sizeof *manifest->slice);
    int64_t sum = 0;
    for (int u = 0; u < manifest->num_units; u++) {
        const struct place at = {top->path, "units", u, json_array_get(list, (size_t)u)};
        struct manifest_unit *unit = &manifest->units[u];
        TRY(manifest_get_string(&at, "name", &unit->name, err));
        const json_t *frozen = json_object_get(at.object, "frozen");
        if (frozen && !json_is_boolean(frozen)) return bad_manifest(&at, "frozen", err, "expected true or false");
        if (!json_is_true(frozen) && manifest->num_trained < u)
            return bad_manifest(&at, "frozen", err, "a unit that is trained follows one that is not");
        manifest->num_trained += !json_is_true(frozen);
        TRY(manifest_get_integer(&at, "numel", version < 4, NUMBER_MAX, &unit->numel, err));
        TRY(manifest_get_integer(&at, "slice", 1, NUMBER_MAX, &manifest->slice[u], err));
        int64_t padded;
        if (__builtin_mul_overflow(manifest->slice[u], (int64_t)manifest->facts.world, &padded) ||
            padded < unit->numel || __builtin_add_overflow(sum, padded, &sum) || sum > NUMBER_MAX)
            return bad_manifest(&at, "slice", err, "%d slices of %" PRId64 " elements cannot be a unit of %" PRId64,
                                manifest->facts.world, manifest->slice[u], unit->numel);
    }
    if (!manifest->num_trained || (manifest->num_trained < manifest->num_units && !manifest->facts.adapter))
        return bad_manifest(top, "units", err, "%d of %d are frozen", manifest->num_units - manifest->num_trained,
                            manifest->num_units);
    struct rankfile_shape shape = manifest_shape(manifest, 0);
    if (rankfile_num_frames(&shape) < 0) return bad_manifest(top, "units", err, "more elements than a file can hold");
    return STATUS_OK;
}

static enum status read_tensors(const struct place *top, struct manifest *manifest, struct error *err)
{
    json_t *list;
    TRY(manifest_get_list(top, "tensors", 1 << 24, &list, &manifest->num_tensors, err));
    manifest->tensors = memory_zeroed((size_t)manifest->num_tensors, sizeof *manifest->tensors);
    int unit = 0;
    int64_t end = 0; /* of the tensor before, in `unit` */
    for (int i = 0; i < manifest->num_tensors; i++) {
        const struct place at = {top->path, "tensors", i, json_array_get(list, (size_t)i)};
        const json_t *shape = json_object_get(at.object, "shape");
        struct manifest_tensor *tensor = &manifest->tensors[i];
        TRY(manifest_get_string(&at, "name", &tensor->name, err));
        TRY(manifest_get_int(&at, "unit", unit, manifest->num_units - 1, &tensor->unit, err));
        if (tensor->unit != unit) {
            unit = tensor->unit;
            end = 0;
        }
        TRY(manifest_get_integer(&at, "offset", end, NUMBER_MAX, &tensor->offset, err));
        tensor->ndim = (int)json_array_size(shape);
        if (tensor->ndim < 1 || tensor->ndim > 3)
            return bad_manifest(&at, "shape", err, "expected one to three dimensions");
        tensor->shape[1] = tensor->shape[2] = tensor->numel = 1;
        bool fits = true;
        for (int d = 0; d < tensor->ndim; d++) {
            tensor->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
            fits &= tensor->shape[d] >= 1 && !__builtin_mul_overflow(tensor->numel, tensor->shape[d], &tensor->numel);
        }
        if (!fits || tensor->numel > manifest->units[unit].numel ||
            tensor->offset > manifest->units[unit].numel - tensor->numel)
            return bad_manifest(&at, "shape", err, "the tensor does not fit in its unit");
        end = tensor->offset + tensor->numel;
        manifest->num_params += tensor->numel;
    }
    return STATUS_OK;
}

/* Which tensors have moments in 8 bits follows from their sizes and offsets. */
static enum status read_moments(const struct place *top, struct manifest *manifest, struct error *err)
{
    int block;
    if (!json_object_get(top->object, "moment_block")) return STATUS_OK;
    TRY(manifest_get_int(top, "moment_block", MOMENT_BLOCK, MOMENT_BLOCK, &block, err));
    manifest->facts.moment_blocks = true;
    moment_map_init(&manifest->map, manifest->num_units, manifest->num_tensors);
    for (int i = 0; i < manifest->num_tensors; i++) {
        const struct manifest_tensor *tensor = &manifest->tensors[i];
        if (tensor->unit < manifest->num_trained && moments_fit_blocks(tensor->offset, tensor->numel))
            moment_map_add(&manifest->map, manifest->num_units, tensor->unit, tensor->offset, tensor->numel);
    }
    manifest->moments = memory_zeroed((size_t)manifest->num_units, sizeof *manifest->moments);
    for (int u = 0; u < manifest->num_units; u++) {
        const struct place at = {top->path, "units", u, NULL};
        const int64_t slice = manifest->slice[u];
        if (slice % MOMENT_BLOCK) return bad_manifest(&at, "slice", err, "expected a multiple of %d", MOMENT_BLOCK);
        manifest->moments[u] =
            round_up(moment_map_room(&manifest->map, u, slice, manifest->facts.world, 0, slice), SHARD_ALIGN);
    }
    return STATUS_OK;
}

static enum status read_files(const struct place *top, struct manifest *manifest, struct error *err)
{
    json_t *list;
    TRY(manifest_get_list(top, "files", MANIFEST_MAX_WORLD + 1000, &list, &manifest->num_files, err));
    if (manifest->num_files < manifest->facts.world)
        return bad_manifest(top, "files", err, "%d files for %d ranks", manifest->num_files, manifest->facts.world);
    manifest->files = memory_zeroed((size_t)manifest->num_files, sizeof *manifest->files);
    struct rankfile_shape shape = manifest_shape(manifest, 0);
    int64_t num_frames = rankfile_num_frames(&shape);
    for (int i = 0; i < manifest->num_files; i++) {
        const struct place at = {top->path, "files", i, json_array_get(list, (size_t)i)};
        struct manifest_file *file = &manifest->files[i];
        const char *name;
        TRY(manifest_get_string(&at, "name", &name, err));
        /* a plain file name, because the file is opened, and copied by export */
        if (!*name || strlen(name) >= MANIFEST_NAME_MAX || *name == '.' || strchr(name, '/') ||
            !strcmp(name, MANIFEST_NAME))
            return bad_manifest(&at, "name", err, "not the name of a file of a checkpoint");
        strcpy(file->name, name);
        TRY(manifest_get_integer(&at, "bytes", 0, NUMBER_MAX, &file->bytes, err));
        if (__builtin_add_overflow(manifest->facts.bytes, file->bytes, &manifest->facts.bytes))
            return bad_manifest(&at, "bytes", err, "too many bytes in all");
        if (i < manifest->facts.world) {
            char expected[MANIFEST_NAME_MAX];
            manifest_rank_name(i, expected);
            if (strcmp(name, expected) != 0) return bad_manifest(&at, "name", err, "expected '%s'", expected);
            TRY(manifest_get_integer(&at, "frames", num_frames, num_frames, &file->num_frames, err));
            TRY(manifest_get_checksum(&at, "index_checksum", &file->checksum, err));
        } else {
            TRY(manifest_get_checksum(&at, "checksum", &file->checksum, err));
        }
    }
    return STATUS_OK;
}

static enum status check_manifest_end(const char *text, size_t bytes, const char *path, struct error *err)
{
    if (bytes < TAIL_BYTES)
        return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged at offset %zu: it is truncated", path, bytes);
    size_t covered = bytes - TAIL_BYTES, head = sizeof CHECKSUM_HEAD - 1;
    if (covered < head || memcmp(text + covered - head, CHECKSUM_HEAD, head) != 0 ||
        memcmp(text + covered + HASH_DIGITS, CHECKSUM_TAIL, sizeof CHECKSUM_TAIL - 1) != 0)
        return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged at offset %zu: it does not end with its checksum",
                         path, covered);
    const struct hash_digits digits = hash_digits(XXH3_64bits(text, covered));
    if (memcmp(digits.text, text + covered, HASH_DIGITS) != 0)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s' is damaged at offset 0: its %zu bytes do not match the checksum at offset %zu", path,
                         covered, covered);
    return STATUS_OK;
}

enum status manifest_decode(const char *text, size_t bytes, const char *path, struct manifest **out, struct error *err)
{
    struct place top = {path, "", -1, NULL};
    TRY(check_manifest_end(text, bytes, path, err));
    RELEASED(manifest_drop) struct manifest *manifest = memory_zeroed(1, sizeof *manifest);
    json_error_t syntax;
    int version = 0;
    top.object = manifest->facts.manifest = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &syntax);
    if (!json_is_object(manifest->facts.manifest))
        return error_set(err, STATUS_CHECKPOINT, "'%s' is damaged at offset %d: %s", path,
                         manifest->facts.manifest ? 0 : syntax.position,
                         manifest->facts.manifest ? "not an object" : syntax.text);
    manifest->facts.bytes = (int64_t)bytes;
    TRY(read_head(&top, manifest, &version, err));
    TRY(read_hashes(&top, manifest, err));
    TRY(read_machine(&top, manifest, err));
    TRY(read_evaluation_part(&top, manifest, err));
    TRY(read_adapter(&top, manifest, err));
    TRY(read_position(&top, manifest, err));
    TRY(read_units(&top, manifest, version, err));
    TRY(read_tensors(&top, manifest, err));
    TRY(read_moments(&top, manifest, err));
    TRY(read_files(&top, manifest, err));
    *out = TAKEN(manifest);
    return STATUS_OK;
}

/* ---- files next to it ---------------------------------------------------- */

enum status manifest_check_files(const struct manifest *manifest, const char *folder, int first, int end,
                                 struct error *err)
{
    char path[FS_PATH_MAX];
    for (int i = first; i < end; i++) {
        const struct manifest_file *file = &manifest->files[i];
        struct stat info;
        TRY(fs_join(path, folder, file->name, STATUS_CHECKPOINT, err));
        if (io_stat(path, &info)) return error_system(err, STATUS_CHECKPOINT, errno, "cannot open '%s'", path);
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
    RELEASED(manifest_drop) struct manifest *manifest = NULL;
    OWNED char *text = NULL;
    char path[FS_PATH_MAX];
    size_t bytes;
    TRY(fs_join(path, folder, MANIFEST_NAME, STATUS_CHECKPOINT, err));
    TRY(fs_read_file(path, MANIFEST_MAX_BYTES, STATUS_CHECKPOINT, &text, &bytes, err));
    TRY(manifest_decode(text, bytes, path, &manifest, err));
    if (files) TRY(manifest_check_files(manifest, folder, 0, manifest->num_files, err));
    *out = TAKEN(manifest);
    return STATUS_OK;
}

enum status manifest_read_file(const char *folder, const struct manifest_file *file, char **data, struct error *err)
{
    char path[FS_PATH_MAX];
    size_t bytes;
    *data = NULL;
    TRY(fs_join(path, folder, file->name, STATUS_CHECKPOINT, err));
    TRY(fs_read_file(path, (size_t)file->bytes, STATUS_CHECKPOINT, data, &bytes, err));
    if ((int64_t)bytes == file->bytes && XXH3_64bits(*data, bytes) == file->checksum) return STATUS_OK;
    free(TAKEN(*data));
    return error_set(err, STATUS_CHECKPOINT,
                     "'%s' is damaged at offset 0: its %" PRId64 " bytes do not match their checksum", path,
                     file->bytes);
}

void manifest_free(struct manifest *manifest)
{
    if (!manifest) return;
    json_decref(manifest->facts.manifest);
    free(manifest->units);
    free(manifest->moments);
    moment_map_release(&manifest->map);
    free(manifest->slice);
    free(manifest->tensors);
    free(manifest->files);
    free(manifest);
}
