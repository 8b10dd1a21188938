#include "gpu/model/transformer_unit.h"

enum status unit_acquire(const struct pass *pass, struct unit *unit, int index, enum param_pass kind)
{
    *unit = (struct unit){.index = index, .kind = kind};
    const struct param_verbs *verbs = pass->verbs;
    return verbs->acquire(verbs->self, index, kind, pass->stream, &unit->params, pass->err);
}

void unit_release(const struct pass *pass, const struct unit *unit)
{
    pass->verbs->release(pass->verbs->self, unit->index, unit->kind, pass->stream);
}

/* The products of the other units also have gradients of embeddings, or several chunks, in the same tensor. */
static bool unit_is_block(const struct transformer *t, int index)
{
    return index > 0 && index <= t->L;
}

enum status unit_grads(const struct pass *pass, struct unit *unit)
{
    const struct param_verbs *verbs = pass->verbs;
    const size_t elements = (size_t)pass->transformer->config.table->units[unit->index].numel;
    TRY(verbs->grads(verbs->self, unit->index, pass->stream, &unit->grads, &unit->accumulate, pass->err));
    if (verbs->matrix_sums && unit_is_block(pass->transformer, unit->index))
        unit->matrix_sums = verbs->matrix_sums(verbs->self, unit->index, &unit->matrix_adds);
    if (pass->M == 0 && !unit->accumulate)
        stream_fill_zero(pass->stream, unit->grads, elements * sizeof(float));
    if (pass->M == 0 && unit->matrix_sums && !unit->matrix_adds)
        stream_fill_zero(pass->stream, unit->matrix_sums, elements * dtype_size(DTYPE_BF16));
    return STATUS_OK;
}

enum status unit_ready(const struct pass *pass, const struct unit *unit)
{
    return pass->verbs->grads_ready(pass->verbs->self, unit->index, pass->stream, pass->err);
}

const void *unit_param(const struct transformer *t, const struct unit *unit, enum tensor_role role)
{
    if (role == ROLE_COUNT || t->offset[role] < 0)
        return NULL;
    return (const char *)unit->params + (size_t)t->offset[role] * dtype_size(t->dtype);
}

float *unit_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role)
{
    return role == ROLE_COUNT || t->offset[role] < 0 ? NULL : unit->grads + t->offset[role];
}

void *unit_matrix_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role)
{
    if (!unit->matrix_sums)
        return unit_grad(t, unit, role);
    return (char *)unit->matrix_sums + (size_t)t->offset[role] * dtype_size(DTYPE_BF16);
}
