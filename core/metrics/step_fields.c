#include "core/metrics/step_fields.h"

#include <math.h>

#define AT(member) offsetof(struct step_metrics, member)

/* clang-format off */
const struct step_field step_fields[STEP_FIELDS] = {
    [STEP_NUMBER] = {"", "step", STEP_TYPE_INTEGER, AT(step), .curve = false},
    [STEP_EPOCH] = {"", "epoch", STEP_TYPE_INTEGER, AT(epoch), .curve = false},
    [STEP_LOSS] = {"", "loss", STEP_TYPE_EXACT, AT(loss), .curve = true, .order = 1, .tag = "Train/Samples/train_loss"},
    [STEP_GRAD_NORM] = {"", "grad_norm", STEP_TYPE_EXACT, AT(grad_norm), .curve = true, .order = 4, .tag = "Train/Samples/grad_norm"},
    [STEP_LR] = {"", "lr", STEP_TYPE_EXACT, AT(lr), .curve = true, .order = 2, .tag = "Train/Samples/lr"},
    [STEP_LOSS_SCALE] = {"", "loss_scale", STEP_TYPE_EXACT, AT(loss_scale), .curve = true, .order = 3, .tag = "Train/Samples/loss_scale"},
    [STEP_SKIPPED] = {"", "skipped", STEP_TYPE_FLAG, AT(skipped), .curve = false},
    [STEP_TOKENS] = {"", "tokens", STEP_TYPE_INTEGER, AT(tokens), .curve = false},
    [STEP_TARGETS] = {"", "targets", STEP_TYPE_INTEGER, AT(targets), .curve = false},
    [STEP_RATE] = {"", "tokens_per_s", STEP_TYPE_ROUGH, AT(tokens_per_s), .curve = true, .order = 5, .tag = "Train/Samples/tokens_per_s"},
    [STEP_MFU] = {"", "mfu", STEP_TYPE_SHARE, AT(mfu), .curve = true, .order = 6, .tag = "Train/Samples/mfu"},
    [STEP_DEVICE] = {"memory_bytes", "device", STEP_TYPE_INTEGER, AT(memory_device), .curve = true},
    [STEP_HOST] = {"memory_bytes", "host", STEP_TYPE_INTEGER, AT(memory_host), .curve = true},
    [STEP_SECONDS] = {"seconds", "step", STEP_TYPE_SECONDS, AT(seconds.step), .curve = true, .order = 7, .tag = "Train/Samples/step_seconds"},
    [STEP_DATA] = {"seconds", "data", STEP_TYPE_ROUGH, AT(seconds.data), .curve = true},
    [STEP_FORWARD] = {"seconds", "forward", STEP_TYPE_ROUGH, AT(seconds.forward), .curve = true},
    [STEP_BACKWARD] = {"seconds", "backward", STEP_TYPE_ROUGH, AT(seconds.backward), .curve = true},
    [STEP_REDUCE] = {"seconds", "reduce", STEP_TYPE_ROUGH, AT(seconds.reduce), .curve = true},
    [STEP_OPTIMIZER] = {"seconds", "optimizer", STEP_TYPE_ROUGH, AT(seconds.optimizer), .curve = true},
    [STEP_CHECKPOINT] = {"seconds", "checkpoint", STEP_TYPE_ROUGH, AT(seconds.checkpoint), .curve = true},
};
/* clang-format on */

double step_field_value(const struct step_metrics *metrics, enum step_field_index field)
{
    const struct step_field *f = &step_fields[field];
    const void *at = (const char *)metrics + f->offset;
    if (f->type == STEP_TYPE_FLAG)
        return *(const bool *)at;
    if (f->type == STEP_TYPE_INTEGER)
        return (double)*(const int64_t *)at;
    const double value = *(const double *)at;
    return f->type == STEP_TYPE_SHARE && value < 0 ? NAN : value;
}
