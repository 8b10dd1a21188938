/* SPDX-License-Identifier: Apache-2.0 */
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
    struct unit_grads *to = &unit->to;
    TRY(verbs->grads(verbs->self, unit->index, pass->stream, to, pass->err));
    for (int part = 0; pass->M == 0 && part < UNIT_PARTS; part++) {
        const size_t elements = (size_t)to->numel[part];
        if (!to->adds && to->grads[part]) stream_fill_zero(pass->stream, to->grads[part], elements * sizeof(float));
        if (to->matrix_sums[part] && !to->matrix_adds)
            stream_fill_zero(pass->stream, to->matrix_sums[part], elements * dtype_size(DTYPE_BF16));
    }
    return STATUS_OK;
}

enum status unit_ready(const struct pass *pass, const struct unit *unit)
{
    return pass->verbs->grads_ready(pass->verbs->self, unit->index, pass->stream, pass->err);
}

const void *unit_param(const struct transformer *t, const struct unit *unit, enum tensor_role role)
{
    const struct tensor_info *tensor = transformer_tensor(t, unit->index, role);
    if (!tensor) return NULL;
    const int part = role_part(role);
    const char *params = tensor->frozen ? unit->params.frozen[part] : unit->params.trained[part];
    return params + (size_t)tensor->offset * dtype_size(t->dtype);
}

float *unit_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role)
{
    const struct tensor_info *tensor = transformer_tensor(t, unit->index, role);
    return !tensor || tensor->frozen ? NULL : unit->to.grads[role_part(role)] + tensor->offset;
}

void *unit_matrix_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role)
{
    const struct tensor_info *tensor = transformer_tensor(t, unit->index, role);
    if (!unit->to.matrix_sums[0] || tensor->frozen) return unit_grad(t, unit, role);
    return (char *)unit->to.matrix_sums[role_part(role)] + (size_t)tensor->offset * dtype_size(DTYPE_BF16);
}
