/* spec_profiling.c: the rules of the keys that measure a run: comms_logger. */
#include "core/spec/spec_keys.h"

#include <string.h>

/* Names of DeepSpeed's and PyTorch's that ztrain has a collective for. */
static bool is_collective(const char *name)
{
    static const char *const names[] = {"all_gather", "all_gather_into_tensor", "reduce_scatter",
                                        "reduce_scatter_tensor"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

static void check_prof_ops(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    const struct string_list *names = &full->spec.comms_logger.prof_ops;
    const struct spec_node *node = spec_find(root, "comms_logger.prof_ops"),
                           *all = spec_find(root, "comms_logger.prof_all");
    for (int i = 0; i < names->count; i++)
        if (!is_collective(names->items[i]))
            spec_error(ctx, node->pos,
                       "'comms_logger.prof_ops': there is no collective '%s' here; hint: all_gather and reduce_scatter "
                       "are all there are, an all-reduce consists of both",
                       spec_show(ctx, names->items[i]));
    if (full->spec.comms_logger.enabled && !full->spec.comms_logger.prof_all && names->count == 0)
        spec_notice(ctx, all->key_pos,
                    "'comms_logger.prof_all' false without prof_ops records nothing, as in DeepSpeed");
}

void spec_check_profiling(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    check_prof_ops(ctx, full, root);
}
