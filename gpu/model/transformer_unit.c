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

enum status unit_grads(const struct pass *pass, struct unit *unit)
{
    const struct param_verbs *verbs = pass->verbs;
    TRY(verbs->grads(verbs->self, unit->index, pass->stream, &unit->grads, &unit->accumulate, pass->err));
    if (pass->M == 0 && !unit->accumulate) {
        int64_t elements = pass->transformer->config.table->units[unit->index].numel;
        stream_fill_zero(pass->stream, unit->grads, (size_t)elements * sizeof(float));
    }
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
