/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/huggingface/huggingface.h"

#include "core/fsutil.h"
#include "core/model/model_folder.h"
#include "core/printable.h"

#include <stdio.h>
#include <string.h>

static enum status find_peft_base(const struct checkpoint *checkpoint, const char *moved, char folder[FS_PATH_MAX],
                                  struct error *err)
{
    const char *was = checkpoint->base.folder;
    if (!was)
        return error_set(err, STATUS_USAGE,
                         "the base of '%s' were initial values with run.seed %lld, which are in no folder; hint: leave "
                         "--base out",
                         checkpoint->path, (long long)checkpoint->base.seed);
    if (model_folder_find(moved ? moved : was, folder))
        return STATUS_OK;
    error_set(err, STATUS_DATA, "the base of the adapter in '%s' is not there: '%s'", checkpoint->path,
              PRINTABLE(moved ? moved : was));
    return error_hint(err, "--base DIR names the folder with these weights, wherever it is now");
}

/* model.ignore_tensors of the run. */
static void read_peft_ignored(const struct checkpoint *checkpoint, struct string_list *ignore)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(checkpoint->spec, "model.ignore_tensors"), i, item) if (json_is_string(item))
        string_list_add(ignore, json_string_value(item));
}

enum status peft_base_find(const struct checkpoint *checkpoint, const char *moved, struct model_desc *desc,
                           const struct tensor_table *table, struct peft_base *base, struct error *err)
{
    memset(base, 0, sizeof *base);
    base->source = (struct huggingface_source){.desc = desc, .table = table, .quiet = true};
    if (!moved && !checkpoint->base.folder)
        return STATUS_OK;
    TRY(find_peft_base(checkpoint, moved, base->folder, err));
    read_peft_ignored(checkpoint, &base->ignore);
    base->source.dir = base->folder;
    base->source.ignore = &base->ignore;
    struct model_desc folder = {.num_labels = 0};
    const enum status status = model_desc_load(base->folder, &folder, err);
    if (status == STATUS_OK)
        desc->new_head = desc->num_labels > 0 && folder.num_labels == 0;
    model_desc_release(&folder);
    return status;
}

void peft_base_release(struct peft_base *base)
{
    string_list_release(&base->ignore);
}
