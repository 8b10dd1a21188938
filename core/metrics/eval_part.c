/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/eval_part.h"

#include "core/core.h"

static const double largest_count = 0x1p53; /* up to here every whole number is a double */

/* NULL: a value is not finite. */
static json_t *eval_part_reals(const double *values, int count)
{
    json_auto_t *array = json_array();
    for (int i = 0; i < count; i++)
        if (json_array_append_new(array, json_real(values[i]))) return NULL;
    return TAKEN(array);
}

json_t *eval_part_to_json(const struct eval_part *part)
{
    return json_pack("{sI ss so so}", "samples", (json_int_t)part->samples, "data", hash_digits(part->data).text,
                     "losses", eval_part_reals(part->losses, part->world), "counts",
                     eval_part_reals(part->counts, part->num_counts));
}

static enum status eval_part_bad_member(const char *path, const char *member, const char *expected, struct error *err)
{
    return error_set(err, STATUS_CHECKPOINT, "'%s': evaluation_part.%s: expected %s", path, member, expected);
}

/* Reads a list of finite numbers, [*count] (owned by the caller). */
static enum status eval_part_read_reals(const json_t *array, const char *path, const char *member, int *count,
                                        double **values, struct error *err)
{
    const size_t size = json_array_size(array);
    if (size < 1 || size > INT_MAX) return eval_part_bad_member(path, member, "a list of numbers", err);
    *values = memory_zeroed(size, sizeof **values);
    *count = (int)size;
    for (size_t i = 0; i < size; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_number(value)) return eval_part_bad_member(path, member, "a list of numbers", err);
        (*values)[i] = json_number_value(value);
    }
    return STATUS_OK;
}

enum status eval_part_from_json(const json_t *object, const char *path, struct eval_part *part, struct error *err)
{
    const json_t *samples = json_object_get(object, "samples");
    const char *digits = json_string_value(json_object_get(object, "data"));
    *part = (struct eval_part){.samples = json_integer_value(samples)};
    if (part->samples < 1) return eval_part_bad_member(path, "samples", "a positive integer", err);
    if (!digits || !hash_digits_parse(digits, &part->data))
        return eval_part_bad_member(path, "data", "16 hexadecimal digits", err);
    TRY(eval_part_read_reals(json_object_get(object, "losses"), path, "losses", &part->world, &part->losses, err));
    TRY(eval_part_read_reals(json_object_get(object, "counts"), path, "counts", &part->num_counts, &part->counts, err));
    const double targets = part->counts[0]; /* the others may be sums of numbers */
    if (targets < 0 || targets > largest_count || targets != floor(targets))
        return eval_part_bad_member(path, "counts", "a whole number at first", err);
    return STATUS_OK;
}

void eval_part_release(struct eval_part *part)
{
    free(part->losses);
    free(part->counts);
    *part = (struct eval_part){.samples = 0};
}
