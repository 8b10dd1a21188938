/* SPDX-License-Identifier: Apache-2.0 */
/* spec_resolve.c: fills in what follows from the data and the run that is resumed. */
#include "core/fsutil.h"
#include "core/spec/spec_keys.h"

#include <math.h>
#include <string.h>

void spec_resolve_document_mask(struct run_spec *spec, bool has_masks)
{
    const bool matters = spec->data.packing != SPEC_PACKING_NONE && spec->model.task == TASK_CAUSAL_LM;
    if (spec->data.document_mask != SPEC_AUTO)
        return;
    spec_full(spec)->auto_document_mask = true;
    spec->data.document_mask = has_masks && matters ? SPEC_ON : SPEC_OFF;
}

bool spec_document_mask_was_auto(const struct run_spec *spec)
{
    return spec_full(spec)->auto_document_mask;
}

double spec_comm_factor(const struct run_spec *spec, int world)
{
    if (spec->communication_data_type != DTYPE_F16 || spec->prescale_gradients)
        return 1;
    return world / spec->gradient_predivide_factor;
}

/* ---- length of the run --------------------------------------------------- */

/* The steps of some passes over the data; those of a fraction are rounded up, as in Trainer. */
static int64_t resolve_steps_of_epochs(double epochs, int64_t steps_per_epoch)
{
    static const double slack = 1e-6; /* of a step: 0.1 is a little more than a tenth, and still 1 step of 10 */
    const double whole = floor(epochs), part = ceil((epochs - whole) * (double)steps_per_epoch - slack);
    int64_t steps;
    if (!(whole < 0x1p62) || __builtin_mul_overflow((int64_t)whole, steps_per_epoch, &steps) ||
        __builtin_add_overflow(steps, (int64_t)part, &steps))
        return INT64_MAX;
    return steps > 0 ? steps : 1;
}

int64_t spec_run_length(double epochs, int64_t max_steps, int64_t steps_per_epoch)
{
    if (epochs <= 0 && max_steps)
        return max_steps;
    const int64_t steps = resolve_steps_of_epochs(epochs > 0 ? epochs : 1, steps_per_epoch);
    return max_steps && max_steps < steps ? max_steps : steps;
}

int64_t spec_resolve_steps(struct run_spec *spec, int64_t steps_per_epoch)
{
    ASSERT(steps_per_epoch > 0);
    const int64_t steps = spec_run_length(spec->train.epochs, spec->train.max_steps, steps_per_epoch);
    if (!spec_full(spec)->given_total_steps)
        spec->scheduler.total_steps = steps;
    return steps;
}

/* ---- a resumed run ------------------------------------------------------- */

void spec_resolve_resumed(struct run_spec *spec, const json_t *stored)
{
    struct spec_full *full = spec_full(spec);
    const json_t *was = json_object_get(stored, "gradient_clipping"), *type = json_object_get(stored, "scheduler.type");
    const double clipping = json_number_value(was);
    spec_resolve_document_mask(spec, json_is_true(json_object_get(stored, "data.document_mask")));
    if (full->unset_clipping && clipping != spec->gradient_clipping) {
        spec->gradient_clipping = clipping;
        spec_auto_origin(full, spec_key_find("gradient_clipping"), "the run as it began");
    }
    const bool same_type =
        json_is_string(type) && strcmp(json_string_value(type), schedule_name(spec->scheduler.type)) == 0;
    full->former_follows = same_type && !json_object_get(stored, "scheduler.params.total_steps") &&
                           !json_object_get(stored, "scheduler.params.total_num_steps");
    full->former_epochs = json_number_value(json_object_get(stored, "train.epochs"));
    full->former_max_steps = json_integer_value(json_object_get(stored, "train.max_steps"));
}

int64_t spec_former_steps(const struct run_spec *spec, int64_t steps_per_epoch)
{
    const struct spec_full *full = spec_full(spec);
    if (!full->former_follows || full->given_total_steps)
        return 0;
    return spec_run_length(full->former_epochs, full->former_max_steps, steps_per_epoch);
}

void spec_resolve_tokenizer_resumed(struct run_spec *spec, const char *checkpoint)
{
    if (spec->model.tokenizer_folder && !fs_is_dir(spec->model.tokenizer_folder))
        spec->model.tokenizer_folder = spec_arena_text(&spec_full(spec)->arena, checkpoint);
}
